"""The Triton kernels without a GPU: compiled ahead of time for several, and a model of what a call costs on one."""
