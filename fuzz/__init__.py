"""Drawn calls of the library, valid and wrong, in processes that are watched: ``python -m fuzz``, or ``make fuzz``.

==============  ==============================================================================================
kind.py         what a kind of cases is: drawn from (seed, number) alone, run, written down and read again
public.py       valid calls of ``select`` and ``topk``, with gradients: every backend against the reference
misuse.py       wrong arguments of the public functions
calls.py        calls of the operators: how one is made, judged, and written as JSON
mutations.py    what can be wrong with an argument of an operator
hostile.py      calls of the operators with wrong arguments
watch.py        worker processes; what crashes or hangs in them is known by its number
kept.py         cases that have failed once, in kept.jsonl
==============  ==============================================================================================

What a wrong call may do:

- A public function raises a TypeError or ValueError that names an argument, or gives a result.
- An operator (``torch.ops.knockout.*``, and what it runs where there are no kernels) raises a RuntimeError, ValueError,
  TypeError, IndexError or NotImplementedError that names an argument or says that memory is missing, or a MemoryError,
  or gives a result of the right shape and dtype. With a tensor on the device ``meta`` it may raise anything.
- Nothing crashes, hangs, changes its inputs, or makes a sanitizer report an error.

Not tried: tensors that point to memory of somebody else. PyTorch's own operators crash on those as well.
"""
