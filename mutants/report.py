"""What became of the mutants, file by file, and the survivors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from mutants.child import Outcome
from mutants.equivalent import Equivalents
from mutants.mutant import Mutant

COLUMNS = ("killed", "timeout", "survived", "equivalent", "broken", "not run")


def status(mutant: Mutant, outcomes: Mapping[str, Outcome], equivalents: Equivalents) -> str:
    """One of ``COLUMNS``. What the tests have noticed is not equivalent."""
    outcome = outcomes.get(mutant.key)
    if outcome is not None and outcome.status != "survived":
        return outcome.status
    return "equivalent" if equivalents.reason(mutant) else "survived" if outcome else "not run"


def score(counts: Mapping[str, int]) -> str:
    """The share of the mutants that the tests notice, of all that count."""
    noticed = counts["killed"] + counts["timeout"]
    counted = noticed + counts["survived"]
    return f"{100 * noticed / counted:.1f} %" if counted else "-"


def report(
    chosen: Iterable[Mutant], outcomes: Mapping[str, Outcome], equivalents: Equivalents, stale: list[str]
) -> str:
    """The whole report; a mutant that times out is noticed; one that is broken does not compile and does not count."""
    rows: dict[str, Counter[str]] = {}
    survivors, wrong = [], []
    for mutant in chosen:
        found = status(mutant, outcomes, equivalents)
        rows.setdefault(mutant.path, Counter())[found] += 1
        if found == "survived":
            survivors += [f"{mutant.path}:{mutant.line}  {mutant.kind}", f"  - {mutant.before}", f"  + {mutant.after}"]
        if found in ("killed", "timeout") and equivalents.reason(mutant):
            by = outcomes[mutant.key].by or "timeout"
            wrong.append(f"{mutant.path}:{mutant.line}: {mutant.before} -> {mutant.after}: noticed by {by}")
    width = max([len(path) for path in rows] + [5])
    lines = [f"{'':{width}s}" + "".join(f"{name:>11s}" for name in COLUMNS) + "      score"]
    for path, counts in [*rows.items(), ("total", sum(rows.values(), Counter()))]:
        numbers = "".join(f"{counts[name] or '':>11}" for name in COLUMNS)
        lines.append(f"{path:{width}s}{numbers}{score(counts):>11s}")
    for title, items in (
        ("survivors", survivors),
        ("entries of equivalent.toml that no mutant matches: remove or correct them", stale),
        ("entries of equivalent.toml that are not equivalent", wrong),
    ):
        lines += ["", f"{title}:", *items] if items else []
    return "\n".join(lines)
