"""Every benchmark runs on a tiny cell, and reports nothing when its results are wrong; what they measure with."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import benchmarks.__main__ as command
import knockout
from benchmarks import common, gather, kernels, registry
from benchmarks.__main__ import main
from benchmarks.common import Size
from benchmarks.registry import NAMES, load
from harness import memory, timing
from knockout import backends
from knockout.cli import timing as package_timing

ROOT = Path(__file__).parents[1]
HELPERS = {"__init__", "__main__", "common", "registry"}


@pytest.fixture(autouse=True)
def _malloc_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Benchmarks change malloc for the rest of their process, which other tests share."""
    monkeypatch.setattr(registry, "keep_freed_memory", lambda: None)


def options_of(name: str, folder: Path) -> list[str]:
    return {"distributed": ["--ranks", "2"], "beyond_memory": ["--folder", str(folder)]}.get(name, [])


# --- the registry ---------------------------------------------------------------------------------


def test_every_file_is_a_benchmark_in_the_registry() -> None:
    files = {path.stem for path in (ROOT / "benchmarks").glob("*.py")}
    assert set(NAMES) | HELPERS == files
    for name in NAMES:
        assert load(name).name == name
        assert "\n" not in load(name).description


def test_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    out, errors = capsys.readouterr()
    assert errors == ""
    for name in NAMES:
        assert f"\n{name} " in out
        assert load(name).description in out


def test_a_benchmark_needs_no_other_one() -> None:
    code = (
        "import sys; from benchmarks.__main__ import main; assert main(['gather', '--quick']) == 0\n"
        "print([name for name in sys.modules if name.startswith('benchmarks.')])"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert "scatter_add" in done.stdout
    assert done.stdout.splitlines()[-1].count("benchmarks.") == 4  # __main__, registry, common and gather


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["kernel"], "unknown benchmark 'kernel'; choose from kernels, length,"),
        (["kernels", "--part", "all"], "--part"),
        (["kernels", "--repeats", "0"], "--repeats: must be a whole number from 1"),
        (["gather", "--ranks", "2"], "--ranks"),
        (["--quick"], "--quick"),
    ],
)
def test_a_wrong_call(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code: Any = main(arguments)
    except SystemExit as stopped:
        code = stopped.code
    out, errors = capsys.readouterr()
    assert (code, out) == (2, "")
    assert message in errors


@pytest.mark.parametrize("name", NAMES)
def test_every_benchmark_on_a_tiny_cell(name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    benchmark = load(name)
    if benchmark.backend and benchmark.backend not in backends.available():
        pytest.skip(f"the backend {benchmark.backend!r} cannot be used")
    threads, file = torch.get_num_threads(), tmp_path / "results.json"
    assert main([name, "--quick", "--json", str(file), *options_of(name, tmp_path / "files")]) == 0
    assert torch.get_num_threads() == threads
    (result,) = json.loads(file.read_text())["results"]
    assert result["benchmark"] == name
    assert result["rows"]
    assert len({tuple(row) for row in result["rows"]}) == 1  # all have the same columns
    out = capsys.readouterr().out
    for column, value in result["rows"][0].items():
        assert isinstance(value, list) or column in out


def test_all_as_json(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "NAMES", ("rules", "rounds", "gather"))  # the first is left out
    assert main(["all", "--quick", "--json", "--threads", "1", "--repeats", "2"]) == 0
    results = json.loads(capsys.readouterr().out)["results"]
    assert [each["benchmark"] for each in results] == ["rounds", "gather"]
    assert [each["threads"] for each in results] == [1, 1]


@pytest.mark.parametrize("name", NAMES)
def test_every_benchmark_has_cells_like_its_tiny_one(name: str) -> None:
    benchmark = load(name)
    cells = benchmark.cells(command._parser(name).parse_args([]))
    assert cells
    assert {type(cell) for cell in cells} == {type(benchmark.tiny)}


# --- checks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [[], ["--json"]])
@pytest.mark.parametrize("fails_in", ["check", "measure"])
def test_nothing_is_reported_when_a_check_fails(
    fails_in: str, options: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(*_: object) -> None:
        raise AssertionError("they differ by 3")

    monkeypatch.setattr(gather.Gather, fails_in, wrong)
    assert main(["gather", "--quick", *options]) == 1
    out, errors = capsys.readouterr()
    assert out == ""
    assert "the results of Size(batch=2, n=21, k=4, d=3) are wrong; no times are reported. they differ by 3" in errors


def test_all_stops_at_a_failing_check(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*_: object) -> None:
        raise AssertionError("wrong")

    monkeypatch.setattr(command, "NAMES", ("rules", "rounds", "gather", "bare"))
    monkeypatch.setattr(gather.Gather, "check", wrong)
    assert main(["all", "--quick"]) == 1
    out, errors = capsys.readouterr()
    assert out.startswith("rounds: ")  # rules is left out
    assert "bare" not in out
    assert errors.startswith("python -m benchmarks: error: gather: ")


def test_wrong_results_are_found(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The checks compare with something else than what is measured."""
    right = common.soft

    def wrong(*arguments: Any, **named: Any) -> torch.Tensor:
        return right(*arguments, **named) * (1.0 if backends.chosen_for(torch.device("cpu")) == "reference" else 1.01)

    for module in (common, kernels):
        monkeypatch.setattr(module, "soft", wrong)
    if "cpu" in backends.available():
        assert main(["kernels", "--quick"]) == 1
        assert main(["bare", "--quick"]) == 1
    monkeypatch.setattr(gather, "blend", lambda *_: torch.zeros(2, 4, 3))
    assert main(["gather", "--quick"]) == 1
    assert "knockout: rows with weight" in capsys.readouterr().err


def test_a_backend_that_is_not_used(capsys: pytest.CaptureFixture[str]) -> None:
    with backends.force("reference"):
        assert main(["kernels", "--quick"]) == 1
    assert "kernels measures the backend 'cpu', which is not used here" in capsys.readouterr().err


@pytest.mark.skipif("cpu" not in backends.available(), reason="no kernels here")
def test_the_layer_with_nothing_set(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """It is measured with the boost that it calibrates, and has a line of its own in the summary."""
    cell = kernels.Cell(2, 64, 8, 4, "normal", None)
    values, scores = cell.inputs()
    layer = knockout.nn.TopK(8)
    layer(values, scores)
    assert torch.equal(cell.operator()(values, scores), knockout.topk(values, scores, 8, layer.boost).values)
    monkeypatch.setattr(kernels, "PARTS", {"training": [cell, cell._replace(boost=kernels.SHARP)]})
    assert main(["kernels", "--part", "training", "--repeats", "1"]) == 0
    summary = capsys.readouterr().out.splitlines()[-4:-1]
    assert [line.split(":")[0] for line in summary] == ["None, normal scores", f"{kernels.SHARP}, normal scores", "all"]


@pytest.mark.parametrize("size", [Size(2, 21, 4, 3), Size(3, 64, 4, 2), Size(1, 5, 5, 2)])
def test_padding_is_not_scattered_out_of_bounds(size: Size) -> None:
    """Slots with fewer members than the fullest are filled up with padding, member n, where n - 1 is the last row."""
    member, _ = common.sparse(knockout.select(common.draw(size)[1], size.k, 4.0))
    assert (member == size.n).any() == (size.n > size.k)
    gather.BENCHMARK.check(size)


# --- what they measure with -----------------------------------------------------------------------


def test_the_harness_times_as_the_package_does() -> None:
    assert timing.interleaved is package_timing.interleaved


def test_peak_of_tensors() -> None:
    x = torch.rand(1000, 250)  # a million bytes

    def step() -> None:
        y = x.clone().requires_grad_()
        y.exp().exp().sum().backward()  # two results, of which both are saved, and a gradient

    some = 10_000  # bytes of scalars
    assert 0 <= memory.peak_bytes(lambda: x.add(x).mul(x)) - 2_000_000 < some
    assert 0 <= memory.peak_bytes(lambda: x.add(x).mul_(x)) - 1_000_000 < some
    assert 0 <= memory.peak_bytes(step) - 4_000_000 < some
    assert memory.peak_bytes(lambda: None) == 0


def test_peak_of_the_process() -> None:
    before = memory.reset_peak_resident()
    assert before <= memory.peak_resident()
    torch.ones(2**25)
    assert memory.peak_resident() - before > 0.9 * 2**27
    if sys.platform == "linux":
        memory.reset_peak_resident()
        assert memory.peak_resident() - before < 2**26


@pytest.mark.skipif(sys.platform != "linux", reason="an option of glibc")
def test_freed_memory_is_kept() -> None:
    code = """
import ctypes, resource
from harness.memory import keep_freed_memory
keep_freed_memory()
libc = ctypes.CDLL("libc.so.6")
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
def use() -> None:
    memory = libc.malloc(2**26)  # more than glibc keeps by itself
    ctypes.memset(memory, 1, 2**26)
    libc.free(memory)
use()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
use()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 2**10  # of 2**14 pages
