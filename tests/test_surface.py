"""The public names: what ``dir`` shows, and that each submodule loads by itself."""

from __future__ import annotations

import json

import knockout
from tests.cases import run_python

NAMES = [
    "Selection",
    "backends",
    "boost",
    "distributed",
    "hf",
    "methods",
    "metrics",
    "nn",
    "plot",
    "report",
    "rows",
    "select",
    "topk",
]


def test_the_public_names() -> None:
    assert sorted([*knockout.__all__, "distributed", "hf", "plot"]) == NAMES  # those need more than PyTorch, or time
    assert all(hasattr(knockout, name) for name in NAMES)
    assert not hasattr(knockout, "nonsense")
    for_all = ["gated", "hard", "straight_through"]
    slots = ["gumbel", "iterative", "neuralsort", "perturbed", "sinkhorn", "softsort"]
    masks = ["coordinate_descent", "lapsum", "lml", "projection", "threshold"]
    assert sorted(knockout.methods.__all__) == sorted(for_all + slots + masks)


def test_dir_shows_the_public_names_only() -> None:
    assert sorted(dir(knockout)) == sorted([*NAMES, "__version__"])


def test_a_submodule_whose_package_is_missing_names_the_extra_and_disturbs_nothing_else() -> None:
    code = """
import sys; sys.modules["transformers"] = None
import inspect, knockout
from knockout import *
assert not hasattr(knockout, "hf") and inspect.getmembers(knockout)
try:
    knockout.hf
except AttributeError as error:
    print(error)
"""
    assert "pip install 'knockout-topk[hf]'" in run_python(code).stdout


# After `import knockout`, each name in a child of its own, so that no other submodule is loaded yet.
CODE = """
import json, os, sys, traceback
import knockout
loaded = sorted({name.split(".")[0] for name in sys.modules} | {"torch._dynamo"} & {*sys.modules})
failed = {}
for name in sys.argv[1:]:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        text = ""
        try:
            found = getattr(knockout, name)
            if name[0].islower() and name not in ("report", "select", "topk"):
                assert found is sys.modules[f"knockout.{name}"]
        except BaseException:
            text = traceback.format_exc()
        os.write(write, text[-9000:].encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    if text:
        failed[name] = text
print(json.dumps({"loaded": loaded, "failed": failed, "dir": dir(knockout)}))
"""


def test_each_submodule_loads_by_itself_when_it_is_named() -> None:
    names = [*NAMES, "native", "__version__"]
    code = f"import sys; sys.argv[1:] = {names}" + CODE
    found = json.loads(run_python(code).stdout)
    assert found["failed"] == {}
    assert sorted(found["dir"]) == sorted([*NAMES, "__version__"])
    # What only some submodules need is not loaded before they are named; the compiler takes as long as all of torch.
    assert not {"matplotlib", "transformers", "pyarrow", "safetensors", "torch._dynamo"} & set(found["loaded"])
