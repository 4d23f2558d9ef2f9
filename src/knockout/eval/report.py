"""The report: every claim beside its measurement, tables, figures; as one HTML file and as Markdown."""

from __future__ import annotations

import base64
import html
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from knockout.eval.claims import agreement, best_runs, claims, differs, last_of
from knockout.eval.experiments import TRAINED
from knockout.eval.figures import label
from knockout.eval.grid import METHODS
from knockout.eval.journal import Journal, Rows, write
from knockout.eval.published import published

CITATION = (
    'M. Pietruszka, Ł. Borchmann, F. Graliński: "Successive Halving Top-k Operator", AAAI 2021, arXiv 2010.15552; '
    "published figures from the log that came with the authors' code (repository applicaai/successive-halving-topk)"
)


class Heading(NamedTuple):
    """Of a section."""

    text: str


class Text(NamedTuple):
    """A paragraph."""

    text: str


class Table(NamedTuple):
    """Cells are text already; all columns but the ``left`` first are numbers."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: int = 0


class Picture(NamedTuple):
    """A figure by its name."""

    name: str
    caption: str


Block = Heading | Text | Table | Picture


def document(results: Journal) -> list[Block]:
    """What the report says, in order."""
    cells = results.of("cell")
    return [
        Text(_summary(results, cells)),
        Heading("The paper's claims"),
        Table(
            ["", "claim", "verdict", "measured", "figure"],
            [
                [str(i), claim.text, claim.verdict, claim.measured, claim.figure]
                for i, claim in enumerate(claims(results), 1)
            ],
            left=5,
        ),
        Heading("The paper's figures"),
        Picture(
            "time",
            "Time of a forward pass over n, a panel for each k. The published times (grey) are of another machine, a "
            "GPU, and of a loop over the batch: compare their shape, not their height.",
        ),
        Picture("quality", "nCCS over n, a panel for each k; the published means in grey."),
        Heading("Beyond the paper"),
        Picture("backward", "Time of a forward and a backward pass, with gradients to values and scores."),
        Picture("rounds", "Quality over the number of rounds: it falls at a fixed boost, and not at a relative one."),
        Picture(
            "learning",
            "Recall of the relevant candidates by a hard selection, while a linear scorer is trained through each "
            "method. On the right: through Relative(4), by who meets whom.",
        ),
        Heading("Quality, cell by cell"),
        Text(
            "Mean nCCS (1 is perfect). A star: off the published figure by more than 0.02 and by more than four "
            "standard errors of the difference."
        ),
        _quality_table(cells),
        Heading("Time, cell by cell"),
        Text("Milliseconds a batch of 16 rows, d = 32: forward, and in brackets forward and backward. Medians."),
        _time_table(cells),
        Heading("Training"),
        Text(
            "256 candidates, k of them relevant; a linear scorer, Adam, with the learning rate that is best for each "
            "method. Recall and loss of a hard selection by the trained scorer, mean (and least recall) over seeds. "
            "Chain: dependent steps between a score and the output. The paper's halving is made for scores from 0 to "
            "1, so it is given their sigmoid; all others take them as they are."
        ),
        _training_table(results.of("training")),
        Heading("Who meets whom"),
        Text("Mean nCCS by pairing."),
        _pairing_table(results.of("pairing")),
        Heading("How it was measured"),
        Table(
            ["", ""],
            [
                [name, str(value)]
                for part in ("settings", "environment")
                for name, value in results.header[part].items()
            ],
            left=2,
        ),
        Text(f"Source of the published figures: {CITATION}."),
    ]


def _summary(results: Journal, cells: Rows) -> str:
    settings = results.header["settings"]
    met = {method: agreement(cells, method) for method in ("halving", "iterative")}
    quick = (
        ""
        if settings["grid"] == "paper"
        else " A quick run, with few seeds; the whole is: knockout reproduce --grid paper."
    )
    return (
        f"The evaluation of the Successive Halving Top-k operator, measured again: {len(cells) // len(METHODS)} cells "
        f"of n and k, up to {settings['batches']} batches of 16 rows in each, values ~ U[-1, 1], scores ~ U[0, 1], "
        "d = 32. "
        + " ".join(
            f"Of the published nCCS of the {method} method, {each.met} of {each.of} were met (within 0.02, or four "
            f"standard errors), the farthest off by {each.farthest:.3f}."
            for method, each in met.items()
        )
        + quick
    )


def _quality_table(cells: Rows) -> Table:
    theirs, ours = published(), {(row["method"], row["n"], row["k"]): row for row in cells}
    rows = []
    for n, k in dict.fromkeys((row["n"], row["k"]) for row in cells):
        line = [str(n), str(k), str(ours["halving", n, k]["rounds"])]
        for method in ("halving", "iterative"):
            known, found = theirs[method, n, k], ours[method, n, k]
            star = "*" if differs(known, found["nccs"], found["nccs_std"], found["batches"]) else ""
            line += [f"{known.nccs:.3f}", f"{found['nccs']:.3f}", f"{found['nccs'] - known.nccs:+.3f}{star}"]
        rows.append(
            line + [f"{ours[method, n, k]['nccs']:.3f}" for method in ("Relative(4)", "Relative(16)", "Fixed(100)")]
        )
    header = [
        "n",
        "k",
        "rounds",
        "halving, published",
        "here",
        "difference",
        "iterative, published",
        "here",
        "difference",
    ]
    return Table([*header, "Relative(4)", "Relative(16)", "Fixed(100)"], rows)


def _time_table(cells: Rows) -> Table:
    ours = {(row["method"], row["n"], row["k"]): row for row in cells}
    rows = [
        [str(n), str(k)]
        + [
            f"{1e3 * ours[m, n, k]['seconds']:.3g} ({1e3 * ours[m, n, k]['seconds_with_backward']:.3g})"
            for m in METHODS
        ]
        for n, k in dict.fromkeys((row["n"], row["k"]) for row in cells)
    ]
    return Table(["n", "k", *map(label, METHODS)], rows)


def _training_table(runs: Rows) -> Table:
    rows = []
    for name, k in TRAINED:
        recall, loss = last_of(runs, name, k, "recall"), last_of(runs, name, k, "loss")
        if recall:
            best = best_runs(runs, name, k)[0]
            means = [f"{statistics.fmean(recall):.3f} ({min(recall):.3f})", f"{statistics.fmean(loss):.3f}"]
            rows.append([label(name), str(k), str(best["chain"]), str(best["rate"]), *means, str(len(recall))])
    return Table(["layer", "k", "chain", "rate", "recall", "loss", "seeds"], rows, left=1)


def _pairing_table(found: Rows) -> Table:
    names = list(dict.fromkeys(row["pairing"] for row in found))
    by = {(row["n"], row["k"], row["boost"], row["pairing"]): row["nccs"] for row in found}
    rows = [
        [boost, str(n), str(k), *(f"{by[n, k, boost, name]:.3f}" for name in names)]
        for n, k, boost in dict.fromkeys((row["n"], row["k"], row["boost"]) for row in found)
    ]
    return Table(["boost", "n", "k", *names], rows, left=1)


# --- Markdown and HTML ---

TITLE = "The paper, reproduced"


def markdown(blocks: Sequence[Block]) -> str:
    """The report beside its pictures."""
    parts = [f"# {TITLE}"]
    for block in blocks:
        match block:
            case Heading(text):
                parts.append(f"## {text}")
            case Text(text):
                parts.append(_escaped(text))
            case Table(header, rows, left):
                lines = [header, ["---" if i < left else "---:" for i in range(len(header))]]
                lines += [[_escaped(cell) for cell in row] for row in rows]
                parts.append("\n".join("| " + " | ".join(line) + " |" for line in lines))
            case Picture(name, caption):
                parts.append(f"![{_escaped(caption)}]({name}.png)\n\n*{_escaped(caption)}*")
    return "\n\n".join(parts) + "\n"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*").replace("<", "&lt;")


STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1b1b2f; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; }
table { display: block; overflow-x: auto; }
th, td { padding: .2rem .6rem; border-bottom: 1px solid #dfe2e7; text-align: right; vertical-align: top; }
th { border-bottom: 2px solid #8a8f98; }
.left { text-align: left; }
figure { margin: 1.5rem 0; } figure img { max-width: 100%; } figcaption { color: #555b66; }
"""


def html_page(blocks: Sequence[Block], folder: Path) -> str:
    """One file with everything in it, the pictures from ``folder`` too."""
    parts = [f"<h1>{TITLE}</h1>"]
    for block in blocks:
        match block:
            case Heading(text):
                parts.append(f"<h2>{html.escape(text)}</h2>")
            case Text(text):
                parts.append(f"<p>{html.escape(text)}</p>")
            case Table(header, rows, left):
                parts.append("<table>")
                for tag, line in [("th", header), *(("td", row) for row in rows)]:
                    cells = (
                        f"<{tag}{' class=left' if i < left else ''}>{html.escape(cell)}</{tag}>"
                        for i, cell in enumerate(line)
                    )
                    parts.append(f"<tr>{''.join(cells)}</tr>")
                parts.append("</table>")
            case Picture(name, caption):
                data = base64.b64encode((folder / f"{name}.svg").read_bytes()).decode()
                parts.append(
                    f'<figure><img alt="{html.escape(caption)}" src="data:image/svg+xml;base64,{data}">'
                    f"<figcaption>{html.escape(caption)}</figcaption></figure>"
                )
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{TITLE}</title>'
        f"<style>{STYLE}</style></head>\n<body>\n" + "\n".join(parts) + "\n</body></html>\n"
    )


def write_report(results: Journal, folder: Path) -> Path:
    """``report.html`` and ``report.md`` beside the figures; the path of the first."""
    blocks = document(results)
    write(folder / "report.md", markdown(blocks))
    write(folder / "report.html", html_page(blocks, folder))
    return folder / "report.html"
