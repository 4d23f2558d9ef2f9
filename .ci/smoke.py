"""Try an installed knockout as a stranger would: the README's first example, and what ``knockout info`` says.

Run with the Python of the environment that it was installed in, outside of the checkout:
``python smoke.py README.md with-kernels`` or ``... without-kernels 'the cause that the user is told'``.
"""

import re
import subprocess
import sys
import warnings
from importlib.util import find_spec
from pathlib import Path

readme, expected, *causes = Path(sys.argv[1]), *sys.argv[2:]

with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import knockout

    assert knockout.__file__.startswith(sys.prefix), f"not the installed one: {knockout.__file__}"
    example = re.search(r"```python\n(.*?)```", readme.read_text(), re.DOTALL)
    assert example, "the README has no example"
    exec(example[1], {})

has_kernels = not knockout.backends.why_not("cpu")
assert has_kernels == (expected == "with-kernels"), (
    f"{expected}, but why_not says: {knockout.backends.why_not('cpu')!r}"
)
told = [str(each.message) for each in caught if "C++ kernels" in str(each.message)]
assert len(told) == (0 if has_kernels else 1), f"one warning if the kernels are missing, else none; got {told}"
assert all(cause in text for cause in causes for text in told), f"{causes} are not in {told}"

info = subprocess.run([Path(sys.executable).with_name("knockout"), "info"], capture_output=True, text=True, check=True)
assert "cpu" in info.stdout, info.stdout
assert all(cause in info.stdout for cause in causes), info.stdout
for package in ("knockout.eval", "evals", "benchmarks", "harness", "examples", "tests"):
    assert find_spec(package) is None, f"{package} was installed"
sources = [path for path in Path(knockout.__file__).parent.rglob("*") if path.suffix in (".h", ".cpp")]
assert not sources, f"C++ sources were installed: {sources}"
print(info.stdout, f"{expected}: works", sep="\n")
