"""The contract of a backend: what docs/semantics.md promises, tested for every name in ``knockout.backends.NAMES``.

The judge is tests/oracle.py, the paper's pseudo-code. Every test runs once for each backend: see conftest.py. The cases
that every transform of PyTorch is tried with are ``CASES`` in cases.py. What is special to one backend is tested beside
this package: threads and forked processes of the C++ kernels in tests/test_cpu_kernels.py, which backend runs a call in
tests/test_backends.py, tensors on another device in tests/test_meta_device.py.
"""
