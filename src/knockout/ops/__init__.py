"""The five operators behind the library: declared once, differentiated once, implemented by each backend.

=============  ==========================================================================================
schema.py      the operators as PyTorch knows them, ``torch.ops.knockout.*``: schemas and output shapes
backend.py     the contract of a backend: why it refuses a call, and the operators
choice.py      which backend runs a call: the only place that decides
autograd/      derivatives to any order, and vmap rules, for all backends
reference/     plain PyTorch, on every device: what other backends are tested against
cpu/           C++ kernels on PyTorch's stable ABI
=============  ==========================================================================================

The rest of the library calls ``ops.choice.choose``, ``ops.autograd.tournament.tournament``,
``ops.autograd.gather.blend``, and ``ops.autograd.topk.topk``, which is both in one, for backends that have it.
"""
