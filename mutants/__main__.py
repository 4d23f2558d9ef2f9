"""The command: ``python -m mutants``."""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence
from pathlib import Path

from mutants.child import Outcome
from mutants.equivalent import Equivalents
from mutants.mutant import Mutant
from mutants.report import report, status
from mutants.run import FailingTestsError, Journal, Runner
from mutants.targets import Project, knockout


def main(arguments: Sequence[str] | None = None, project: Project | None = None) -> int:
    """Run the command. Returns its exit code: 1 if a mutant survived."""
    parser = argparse.ArgumentParser("python -m mutants", description="Mutation tests of the core of the library.")
    parser.add_argument("--only", metavar="PATH", action="append", help="files whose path contains this")
    parser.add_argument("--sample", metavar="N", type=int, help="so many of the mutants, drawn at random")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--workers", metavar="W", type=int, default=2)
    parser.add_argument("--out", metavar="FOLDER", type=Path, default=Path("build/mutants"), help="journal and trees")
    parser.add_argument("--again", action="store_true", help="run mutants again that survived before")
    parser.add_argument("--equivalent", action="store_true", help="run mutants of equivalent.toml, too")
    parser.add_argument(
        "--first", action="store_true", help="only the first tests of each file, not those for survivors"
    )
    parser.add_argument("--list", action="store_true", help="only list the mutants")
    parser.add_argument("--report", action="store_true", help="only report on what the journal has")
    options = parser.parse_args(arguments)
    project = project or knockout()

    known = project.mutants()
    equivalents, journal = Equivalents(project.equivalent), Journal(options.out / "journal.jsonl")
    stale = equivalents.stale(mutant for mutant, _ in known.values())
    chosen = [key for key in known if not options.only or any(part in key.split()[0] for part in options.only)]
    if options.sample is not None and options.sample < len(chosen):
        drawn = set(random.Random(options.seed).sample(chosen, options.sample))
        chosen = [key for key in chosen if key in drawn]
    mutants = [known[key][0] for key in chosen]
    if options.list:
        for mutant in mutants:
            print(f"{mutant.path}:{mutant.line}  {mutant.kind}\n  - {mutant.before}\n  + {mutant.after}")
        print(f"{len(mutants)} mutants")
        return 0

    left = []
    for key in chosen:
        found = status(known[key][0], journal.outcomes, equivalents)
        accepted = found == "equivalent" and not (options.equivalent and key not in journal.outcomes)
        if not accepted and (found in ("not run", "equivalent") or (found == "survived" and options.again)):
            left.append(known[key])
    if left and not options.report:
        count = 0

        def done(mutant: Mutant, outcome: Outcome) -> None:
            nonlocal count
            count += 1
            journal.append(mutant.key, outcome)
            place = f"{mutant.path}:{mutant.line}"
            by = f" by {outcome.by}" if outcome.by else ""
            text = f"[{count}/{len(left)}] {place} {mutant.kind}: {outcome.status}{by}, {outcome.seconds:.0f} s"
            print(text, file=sys.stderr, flush=True)

        try:
            Runner(project, options.out, options.first).run(left, options.workers, done)
        except FailingTestsError as error:
            print(f"mutants: {error}", file=sys.stderr)
            return 2
    print(report(mutants, journal.outcomes, equivalents, stale))
    return int(any(status(mutant, journal.outcomes, equivalents) == "survived" for mutant in mutants))


if __name__ == "__main__":
    sys.exit(main())
