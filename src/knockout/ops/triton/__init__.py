"""The operators by Triton kernels, for GPUs.

The tournament takes three launches, whatever the number of rounds, as long as a row fits into a program:

=============  ==========================================================================================
play.py        all rounds of a row in registers; what each round did goes to memory
expand.py      slots to members and weights, each slot by itself
gather.py      the weighted gather and its two derivatives
backward.py    the derivative of the tournament: up the brackets of the slots, and down again
long_rows.py   rounds and levels that are too long for one program
=============  ==========================================================================================

No kernel reads what another thread of the same launch has written. There are no atomics, no waiting for the device, and
no shapes that depend on data. docs/gpu.md says what was measured.

entries.py, sort.py, boost.py and arithmetic.py are what the kernels are made of; call.py, launch.py and tournament.py
prepare and launch them; backend.py makes them operators of PyTorch. All but that one are imported at the first call.
"""
