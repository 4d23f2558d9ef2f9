"""The explorer without a browser: its arithmetic against the library, its state in an address, what explore writes."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from py_mini_racer import MiniRacer

import knockout
from knockout import explorer
from knockout.boost import Adaptive, Base, Boost, Fixed, Power, Relative
from tests.cases import INF, NAN, run_python
from tests.explorer_differences import Case, asked, boost_settings, differences, drawn, engine, expected

SCORES = torch.tensor([0.1, 0.9, 0.7, 0.3, 0.8, 0.85, 0.2, 0.4], dtype=torch.float64)


@pytest.fixture(scope="module")
def context() -> MiniRacer:
    return engine("state.js", "presets.js")


def evaluated(context: MiniRacer, code: str) -> Any:
    return json.loads(str(context.eval(f"JSON.stringify({code})")))


def played(context: MiniRacer, state: Any) -> dict[str, Any]:
    """What the page computes for a state as JSON has it, where a score of None is -inf."""
    state["scores"] = [-INF if score is None else score for score in state["scores"]]
    answer: dict[str, Any] = json.loads(str(context.eval(f"ask(completed({json.dumps(state)}))")))
    return answer


@pytest.mark.parametrize("seed", range(6))
def test_drawn_cases(context: MiniRacer, seed: int) -> None:
    for case in drawn(25, seed):
        found = differences(asked(context, case), expected(case))
        assert max(found.values()) < 1e-9, (case, found)


def test_the_same_bits_as_the_library(context: MiniRacer) -> None:
    compared = 0
    for case in drawn(60, seed=100):
        if not isinstance(case.boost, (Base, Power)):  # the logarithm of a base may be another in its last bit
            answer, truth = asked(context, case), expected(case)
            for name in ("leaders", "weights", "scores"):
                assert answer[name] == truth[name], (case, name)
            compared += 1
    assert compared > 30


def test_ties_byes_empty_slots_and_single_candidates(context: MiniRacer) -> None:
    default = Adaptive(2, 1.5)
    for case in (
        Case([1.0] * 32, None, 1, default, "score", False),
        Case([0.0, -0.0, 0.0], None, 2, Relative(4), "position", False),
        Case([1.0, 0.0], None, 1, Relative(1, unit=1.0), "score", False),  # the mean gap is exactly the unit
        Case([5.0], None, 1, default, "score", True),
        Case([1.0, 2.0, 3.0, 4.0, 5.0], None, 4, default, "score", False),
        Case([1.0, 2.0, -INF, 4.0], [True, False, True, True], 3, Fixed(1), "position", False),
        Case([1.0, 2.0], [False, False], 2, default, "score", False),
        Case([3.0, 1.0, 2.0], None, 3, Power(20), "score", True),
        Case([100.0, 1.0, 100.0, 2.0], None, 1, Power(20), "score", False),  # 20^100 counts as e^40
    ):
        found = differences(asked(context, case), expected(case))
        assert max(found.values()) < 1e-12, (case, found)


@pytest.mark.parametrize("bad", [NAN, INF])
@pytest.mark.parametrize("hard", [False, True])
def test_a_row_that_is_not_valid_is_nan(context: MiniRacer, bad: float, hard: bool) -> None:
    case = Case([1.0, bad, 3.0, 2.0, -INF], None, 2, Adaptive(2, 1.5), "score", hard)
    answer, truth = asked(context, case), expected(case)
    assert math.isnan(float(answer["weights"][0][0]))
    for name in ("gradientsOfScores", "gradientsOfWeights"):
        del answer[name], truth[name]
        answer[name], truth[name] = [[0.0]], [[0.0]]
    assert max(differences(answer, truth).values()) == 0.0
    masked = Case(case.scores, [True, False, True, True, True], 2, case.boost, "score", hard)
    assert max(differences(asked(context, masked), expected(masked)).values()) < 1e-12


def close(ours: Any, theirs: torch.Tensor) -> None:
    torch.testing.assert_close(torch.tensor(ours, dtype=torch.float64), theirs, rtol=1e-9, atol=1e-9)


STATES = [
    {"scores": [0.1, -2.5e-7, 1e300], "k": 2},
    {"scores": [1.0, 2.0, 3.0], "k": 3, "mask": [True, False, False], "slot": 2, "candidate": 0, "order": "position"},
    {"scores": [1.0], "hard": True, "temperature": 0.01, "names": ["a,b&c=d% é"]},
    *(
        {"scores": [0.3, 0.1], "boost": boost_settings(b)}
        for b in (Adaptive(3, 0.1, 2), Relative(9), Power(5), Base(2))
    ),
]


@pytest.mark.parametrize("part", STATES)
def test_the_address_tells_the_state(context: MiniRacer, part: dict[str, Any]) -> None:
    before = evaluated(context, f"completed({json.dumps(part)})")
    assert all(before[name] == value for name, value in part.items() if name != "boost")
    address = context.eval(f"toAddress(completed({json.dumps(part)}))")
    told = evaluated(context, f"fromAddress({json.dumps('#' + str(address))})")
    unused = {"relative": ["b"], "adaptive": ["b"], "power": ["c", "unit"], "base": ["c", "unit"]}[
        before["boost"]["kind"]
    ]
    for name in unused:
        del before["boost"][name], told["state"]["boost"][name]
    assert told == {"state": before, "problems": []}
    assert re.fullmatch(r"[\w.,&=%+-]+", str(address))


def test_inactive_candidates_are_told_as_minus_infinity(context: MiniRacer) -> None:
    assert str(context.eval("toAddress(completed({ scores: [1, -Infinity], k: 1 }))")).startswith("scores=1,-inf&")
    assert context.eval("fromAddress('scores=1,-inf').state.scores[1] === -Infinity")


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("scores=1,x", "scores=1,x"),
        ("scores=1,NaN", "scores=1,NaN"),
        ("scores=1,1e301", "scores=1,1e301"),
        ("scores=" + ",".join("1" * 33), "more than 32 scores"),
        ("scores=1,2&k=3", "k=3"),
        ("scores=1,2&k=1.5", "k=1.5"),
        ("scores=1,2&boost=soft", "boost=soft"),
        ("scores=1,2&boost=power&b=1", "b=1"),
        ("scores=1,2&c=-1", "c=-1"),
        ("scores=1,2&unit=", "unit="),
        ("scores=1,2&alpha=3", "alpha=3"),
        ("scores=1,2&order=up", "order=up"),
        ("scores=1,2&off=2", "off=2"),
        ("scores=1,2&names=%", "names=%"),
    ],
)
def test_what_is_wrong_in_an_address_is_named_and_left_out(context: MiniRacer, address: str, problem: str) -> None:
    told = evaluated(context, f"fromAddress({json.dumps(address)})")
    assert told["problems"] == [problem]
    if told["state"] is not None:
        assert 1 <= told["state"]["k"] <= len(told["state"]["scores"]) <= 32


def test_presets_are_complete_states(context: MiniRacer) -> None:
    presets = evaluated(context, "PRESETS")
    assert len(presets) >= 6
    for name, preset in presets.items():
        state = evaluated(context, f"completed(PRESETS[{json.dumps(name)}])")
        assert preset["note"]
        assert state["scores"] == preset["scores"]
        assert state["k"] == preset["k"] <= len(preset["scores"]) <= 32


@pytest.mark.parametrize("part", STATES[1:2] + STATES[3:])
@pytest.mark.parametrize("candidate", [None, 0])
def test_the_code_that_the_page_shows_does_the_same(
    context: MiniRacer, part: dict[str, Any], candidate: int | None
) -> None:
    state = {**part, "slot": 0, "hard": candidate is not None, "candidate": -1 if candidate is None else candidate}
    code = str(context.eval(f"toPython(completed({json.dumps(state)}))")).splitlines()
    names: dict[str, Any] = {}
    exec("\n".join(code[:-1]), names)
    answer = played(context, state)
    close(answer["weights"], names["picked"].weights().detach())
    found = answer["gradientsOfScores"][0] if candidate is None else answer["gradientsOfWeights"][0][candidate]
    (slopes,) = eval(code[-1], names)
    close(found, slopes)


def start_of(path: Path) -> dict[str, Any]:
    """The state that a written page starts with."""
    found = re.search(r'<script type="application/json" id="start">(.*?)</script>', path.read_text("utf-8"))
    assert found
    state: dict[str, Any] = json.loads(found[1])
    return state


SELECTIONS: list[Callable[[], knockout.Selection]] = [
    lambda: knockout.select(SCORES, 3),
    lambda: knockout.select(SCORES, 3, 2.0, order="position"),
    lambda: knockout.select(SCORES, 3, Fixed(torch.tensor(2.0)), hard=True),
    lambda: knockout.select(SCORES, 0.25, Adaptive(torch.tensor(2.0), torch.tensor(0.5))),
    lambda: knockout.select(SCORES, 4, Power(20), SCORES > 0.75),
    lambda: knockout.select(torch.where(SCORES > 0.3, SCORES, -INF), 2, Base(20, alpha=2)),
    lambda: knockout.select(SCORES, torch.tensor(2), Relative(4, unit=0.1), max_k=5),
    lambda: knockout.select(SCORES, 2, mask=SCORES > 1),
    lambda: knockout.select(SCORES, 8),
]


@pytest.mark.parametrize("selection", SELECTIONS)
def test_a_page_starts_with_the_selection(
    context: MiniRacer, tmp_path: Path, selection: Callable[[], knockout.Selection]
) -> None:
    picked = selection()
    path = knockout.plot.explore(picked, tmp_path / "explorer.html")
    assert path == tmp_path / "explorer.html"
    made = played(context, start_of(path))
    # Slots that a fraction or a count leaves empty are not shown.
    slots = len(made["leaders"])
    assert made["leaders"] == picked.indices[:slots].tolist()
    assert not picked.mask[slots:].any()
    close(made["weights"], picked.weights()[:slots])
    close(made["scores"], picked.scores[:slots])


def test_a_row_of_a_batch_with_names(tmp_path: Path) -> None:
    scores = torch.stack([SCORES, SCORES.flip(0)]).reshape(1, 2, 8)
    picked = knockout.select(scores, k=2, mask=torch.ones(8, dtype=torch.bool))
    names = ["</script><b>", "\ud800", *"cdefgh"]
    state = start_of(knockout.plot.explore(picked, str(tmp_path / "page.html"), row=(0, 1), names=names))
    assert state["scores"] == SCORES.flip(0).tolist()
    assert state["names"] == ["</script><b>", "?", *"cdefgh"]
    assert state["mask"] == [True] * 8


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_scores_have_no_more_digits_than_their_dtype(tmp_path: Path, dtype: torch.dtype) -> None:
    scores = torch.tensor([0.1, -0.3, 1e-5, 0.7], dtype=dtype)
    boost = Relative(torch.tensor(0.3, dtype=dtype))
    state = start_of(knockout.plot.explore(knockout.select(scores, 2, boost), tmp_path / "page.html"))
    assert state["scores"] == [0.1, -0.3, 1e-5, 0.7]
    assert state["boost"]["c"] == 0.3


def test_a_page_is_one_file_that_loads_nothing() -> None:
    page = explorer.page()
    assert not re.search(r"<link|\bsrc=|https?://(?!www\.w3\.org/2000/svg)|@import|url\(", page)
    assert "default-src 'none'" in page
    for file in Path(explorer.__file__).parent.glob("*.js"):
        assert file.read_text("utf-8") in page, f"{file.name} is not in page.html"
    assert "<!-- " not in page.split("<script")[0].replace("<!doctype", "")


def test_the_default_path_and_a_file_that_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert knockout.plot.explore(knockout.select(SCORES, 1)) == Path("explorer.html")
    knockout.plot.explore(knockout.select(SCORES, 2))
    assert start_of(tmp_path / "explorer.html")["k"] == 2


def test_what_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "explorer.html"
    with pytest.raises(TypeError, match=r"selection must be a knockout\.Selection; got Tensor"):
        knockout.plot.explore(SCORES, path)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at most 32 candidates, for a picture; got n = 33"):
        knockout.plot.explore(knockout.select(torch.rand(33), 2), path)
    with pytest.raises(ValueError, match=r"must come straight from knockout\.select: the page is played again"):
        knockout.plot.explore(knockout.methods.hard(SCORES, 2), path)
    with pytest.raises(ValueError, match="names must be as many as candidates, n = 8; got 3"):
        knockout.plot.explore(knockout.select(SCORES, 2), path, names="abc")
    with pytest.raises(ValueError, match=r"row must be an index into the batch \(2,\); got 5"):
        knockout.plot.explore(knockout.select(SCORES.expand(2, -1), 2), path, row=5)
    with pytest.raises(ValueError, match="row must be one with finite scores"):
        knockout.plot.explore(knockout.select(torch.tensor([1.0, NAN]), 1), path)
    with pytest.raises(ValueError, match=r"scores must be from -1e\+300 to 1e\+300, for the page; got -1e\+301"):
        knockout.plot.explore(knockout.select(SCORES.where(SCORES > 0.1, -1e301), 1), path)
    scores = SCORES.clone()
    picked = knockout.select(scores, 2)
    scores.copy_(SCORES.flip(0))
    with pytest.raises(ValueError, match="have not changed since it was made: select again"):
        knockout.plot.explore(picked, path)
    with pytest.raises(FileNotFoundError):
        knockout.plot.explore(knockout.select(SCORES, 2), tmp_path / "nowhere" / "explorer.html")
    assert not path.exists()


def test_without_matplotlib(tmp_path: Path) -> None:
    run_python(
        f"""
import sys
sys.modules["matplotlib"] = None
import torch, knockout
knockout.plot.explore(knockout.select(torch.rand(4), k=2), {str(tmp_path / "explorer.html")!r})
"""
    )
    assert (tmp_path / "explorer.html").exists()


def test_all_boosts_are_known_to_the_page(context: MiniRacer) -> None:
    kinds = {each.__name__.lower() for each in (Adaptive, Base, Fixed, Power, Relative)}
    assert kinds == set(evaluated(context, "BOOSTS"))
    assert {type(boost) for boost in (Adaptive(1), Base(2), Fixed(1), Power(2), Relative(1))} == {
        each
        for each in vars(knockout.boost).values()
        if isinstance(each, type) and issubclass(each, Boost) and each.__name__[0] != "_"
    } - {Boost}
