"""The C++ kernels for CPU tensors."""
