"""The mutation tests themselves: on a module of a few lines with tests that miss something."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from mutants.__main__ import main
from mutants.cpp import cpp_mutants
from mutants.equivalent import Equivalents
from mutants.python import python_mutants
from mutants.targets import Project, Target, knockout

MODULE = '''"""A module with a number, 7, in its docstring."""

from __future__ import annotations


def at_most(x: int | None, limit: int = 10) -> int:
    # if x < limit
    if x is None:
        raise ValueError(f"x must be an int; got {x + 1}")
    while x > limit:
        x -= 1
    return x


DEFAULT = at_most(20 // 2)
'''
TESTS = """from toy import DEFAULT, at_most

def test_above():
    assert at_most(12) == 10 == DEFAULT

def test_below():
    assert at_most(3, 5) == 3
"""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    for name, text in {"src/toy.py": MODULE, "tests/test_toy.py": TESTS, "pyproject.toml": ""}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    target = Target("src/toy.py", ("tests/test_toy.py",))
    return Project(tmp_path, "toy", ("src", "tests"), (target,), equivalent=tmp_path / "equivalent.toml", patience=0.5)


def run(project: Project, *arguments: str) -> int:
    return main(["--out", str(project.root / "out"), "--workers", "1", *arguments], project)


def outcomes(project: Project) -> list[list[str]]:
    lines = (project.root / "out/journal.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_a_run_from_beginning_to_end(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    mutants = [mutant for mutant, _ in project.mutants().values()]
    assert run(project) == 1
    found = {mutant.after: outcome for mutant in mutants for outcome in outcomes(project) if outcome[0] == mutant.key}
    assert {after: outcome[1] for after, outcome in found.items()} == {
        "def at_most(x: int | None, limit: int = 11) -> int:": "killed",
        "if x is not None:": "broken",  # the module cannot be imported
        "while x >= limit:": "killed",
        "pass": "timeout",
        "x -= 0": "timeout",
        "return None": "killed",
        "DEFAULT = at_most(21 // 2)": "survived",
        "DEFAULT = at_most(20 * 2)": "survived",
        "DEFAULT = at_most(20 // 3)": "killed",
    }
    assert found["while x >= limit:"][2] == "tests/test_toy.py::test_above"
    assert (project.root / "src/toy.py").read_text() == MODULE
    shown = capsys.readouterr().out
    assert "75.0 %" in shown
    assert "src/toy.py:15  // to *\n  - DEFAULT = at_most(20 // 2)\n  + DEFAULT = at_most(20 * 2)" in shown


def test_a_stopped_run_continues(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    journal = project.root / "out/journal.jsonl"
    run(project, "--sample", "2")
    first = outcomes(project)
    assert len(first) == 2
    journal.write_text(journal.read_text() + '["src/toy.py 12')  # killed in the middle of a line
    run(project, "--sample", "2", "--seed", "0")
    assert journal.read_text().endswith("12")  # nothing was left to do
    run(project, "--sample", "3")
    kept = [line for line in journal.read_text().splitlines() if line.endswith("]")]
    assert [json.loads(line) for line in kept[:2]] == first
    assert len(kept) == 3
    capsys.readouterr()
    run(project, "--report")
    assert "not run" in capsys.readouterr().out
    assert len(journal.read_text().splitlines()) == 4


def test_accepted_survivors(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    project = replace(project, skipped=(("-= 1", "would time out"),))
    assert project.equivalent is not None
    project.equivalent.write_text(
        "[[equivalent]]\nfile = 'src/toy.py'\nreason = 'both are 10'\n"
        "mutants = [['DEFAULT = at_most(20 // 2)', 'DEFAULT = at_most(20 * 2)'], ['gone', 'away']]\n"
        "[[equivalent]]\nfile = 'src/toy.py'\nreason = 'nonsense'\nlines = '^return'\n"
        "[[equivalent]]\nfile = 'src/toy.py'\nreason = 'nonsense'\nlines = 'nowhere'\n"
    )
    assert run(project, "--equivalent") == 1
    shown = capsys.readouterr().out
    assert "at_most(21 // 2)" in shown
    assert "+ DEFAULT = at_most(20 * 2)" not in shown
    assert "no mutant matches: remove or correct them:\nsrc/toy.py: gone -> away\nsrc/toy.py: nowhere\n" in shown
    assert "not equivalent:\nsrc/toy.py:12: return x -> return None: noticed by tests/test_toy.py::test_above" in shown


def test_tests_that_fail_without_a_mutant(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    (project.root / "tests/test_toy.py").write_text("def test_nothing():\n    assert False\n")
    assert run(project, "--sample", "1") == 2
    assert "the tests fail without any mutant: tests/test_toy.py::test_nothing" in capsys.readouterr().err
    assert not (project.root / "out/journal.jsonl").exists()


def kinds(source: str, of: str) -> Counter[str]:
    mutants = (python_mutants if of == "py" else cpp_mutants)(f"file.{of}", source.encode())
    return Counter(mutant.kind for mutant in mutants)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("a = b < c and not d", {"< to <=": 1, "and to or": 1, "without not": 1}),
        ("a = (b + 1) * -c", {"+ to -": 1, "1 to 0": 1, "* to /": 1, "without -": 1}),
        ("a = min(b, 0.5, -1)", {"min to max": 1, "0.5 to 1.0": 1, "1 to 0": 1}),
        ("a = (b).clamp(min=c)", {"without clamp": 1}),
        ("def f(x: int | None = None, *, y=True): 'é'; x[0] = a", {"True to False": 1, "statement removed": 1,
                                                                   "0 to 1": 1}),
        ("a = b if c else d", {"condition negated": 1}),
        ("a = b if c is not d else e", {"is not to is": 1}),
        ("raise ValueError(1 + 1)", {}),
        ("'é' # < \nf(x)", {"statement removed": 1}),
    ],
)  # fmt: skip
def test_mutants_of_python(source: str, expected: dict[str, int]) -> None:
    assert kinds(source, "py") == expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("if (a < b && !c) d = -e;", {"< to <=": 1, "&& to ||": 1, "without !": 1, "condition negated": 1,
                                      "statement removed": 1, "without -": 1}),
        ("std::vector<T*> a(const T& b, T&& c);", {}),
        ("template <int n = 1 + 1>\nvoid f() { static_assert(a < 1); }", {}),
        ("// a < b\n#if a < b\n/* 1 */ const char* text = \"1 < 2\";", {}),
        ("{ x = std::max(std::clamp(f(a, b), 0, c), 0x1p-40); }", {"statement removed": 1, "max to min": 1,
            "without clamp": 1, "0 to 1": 1, "0x1p-40 to (2 * 0x1p-40)": 1}),
        ("std::numeric_limits<T>::max()", {}),
        ("for (int i = 0; i < n; ++i) a[i] += 2.0f;", {"0 to 1": 1, "< to <=": 1, "statement removed": 1,
                                                       "+= to -=": 1, "2.0f to (2 * 2.0)": 1}),
        ("{ const int a = b ? c : d; break; }", {"condition negated": 1, "statement removed": 1}),
    ],
)  # fmt: skip
def test_mutants_of_cpp(source: str, expected: dict[str, int]) -> None:
    assert kinds(source, "h") == expected


def test_the_library_has_mutants_and_no_stale_equivalents() -> None:
    project = knockout()
    mutants = [mutant for mutant, _ in project.mutants().values()]
    assert {mutant.path for mutant in mutants} >= {target.path for target in project.targets if "boost" in target.path}
    assert Equivalents(project.equivalent).stale(mutants) == []
    for mutant in mutants:
        if mutant.path.endswith(".py"):
            compile(mutant.mutated, mutant.path, "exec")
    for target in project.targets:
        for test in (*target.first, *target.then):
            assert "test" not in test or (project.root / test.partition("::")[0]).exists() or " " in test
