"""Mutation tests of the core: change the code in one small place, and see whether the tests notice.

``python -m mutants --help`` says how to run them. A mutant that no test notices is a survivor: either a test is
missing, or the mutant does the same as the original, which equivalent.toml then says, with the reason.

Why a tool of our own: mutmut and cosmic-ray know only Python, mull needs a Clang that compiles the kernels, and
universalmutator rewrites lines by regular expressions, comments and template brackets included. None of them starts the
tests from a process that has already imported PyTorch, without which a mutant takes twice as long.

==============  =======================================================================================
targets.py      which files are mutated, which tests judge them, which lines are skipped and why
mutant.py       one change of one file
python.py       the mutants of a Python file
cpp.py          the mutants of a C++ file
equivalent.py   accepted survivors, each with a reason
tree.py         a copy of the checkout, in which the tests of a mutant run
kernels.py      the C++ kernels compiled quickly
agreement.py    the kernels against stored results of the reference
child.py        a process forked for one run of the tests
run.py          all mutants by several workers, with a journal
report.py       the result
==============  =======================================================================================
"""
