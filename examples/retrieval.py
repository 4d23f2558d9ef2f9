"""Retrieval from a file larger than memory: learn which 16 of ten million vectors belong to a question.

Among n candidates, vectors of 64 numbers and nearly all of them noise, are topics: 16 vectors around a center each. The
center of a topic has eight degrees of freedom, and a question about it is a noisy mixture of these in 32 numbers. A
small network computes a query from the question, scores are dot products with all candidates, the best 16 are selected
softly, and the loss is the mean cosine distance of the selected vectors from the center of the topic. The network is
not told which candidates are the right ones: the gradient reaches the query through the selection.

Candidates stay in their file. Scores are computed chunk by chunk, and again in the backward pass; only value rows with
a weight are read.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.progress import Progress
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, normalize
from torch.utils.checkpoint import checkpoint

import knockout
from examples.common import notes, optimizer_for, parser, screen, show_table, training_step
from harness.command import UsageError, number, run_command
from harness.memory import peak_resident, reset_peak_resident
from knockout.nn import Sharpen, TopK, evaluate_hard

DIM, K = 64, 16
DEGREES, OBSERVED, NOISE = 8, 32, 0.1  # degrees of freedom of a topic, size of a question, noise in it
CLOSE = 0.95  # cosine of a topic's vectors with its center
TESTED = 32  # topics that are never trained on
RATE = 6e-3
EVERY = 5  # steps between two checkpoints of the training
CHUNK = 2**18  # candidates that are generated, or scored, at a time: 64 MiB
FORMAT = 1  # version of the file, to be changed when other candidates are generated


class Topics(NamedTuple):
    """The topics of the questions."""

    center: Tensor  # (topics, DIM), of length 1
    shown: Tensor  # (topics, OBSERVED): a question without noise
    place: Tensor  # (topics, K): which candidates belong to it

    def ask(self, which: Tensor, generator: torch.Generator) -> Tensor:
        """Draw a question (..., OBSERVED) about each of these topics."""
        return self.shown[which] + NOISE * torch.randn(*which.shape, OBSERVED, generator=generator)


def draw_topics(n: int, count: int, seed: int) -> Topics:
    """Draw topics, and different places for their vectors among n candidates."""
    generator = torch.Generator().manual_seed(seed)
    state = normalize(torch.randn(count, DEGREES, generator=generator), dim=1)
    meaning = torch.linalg.qr(torch.randn(DIM, DEGREES, generator=generator)).Q
    mixture = torch.randn(OBSERVED, DEGREES, generator=generator)
    # One place in each of count * K equal intervals.
    interval = n // (count * K)
    place = torch.arange(count * K) * interval + torch.randint(interval, (count * K,), generator=generator)
    place = place[torch.randperm(count * K, generator=generator)].reshape(count, K)
    return Topics(state @ meaning.T, state @ mixture.T, place)


@dataclass
class Candidates:
    """A file of n candidates (n, DIM), float32."""

    path: Path
    n: int

    def rows(self) -> np.memmap[Any, Any]:
        """Map the file, for a selection to read from."""
        return np.memmap(self.path, np.float32, "r", shape=(self.n, DIM))

    def scores(self, query: Tensor) -> Iterator[Tensor]:
        """Compute scores (..., chunk) of a query (..., DIM), chunk by chunk of the candidates.

        Autograd would keep the factors of each product, and so in the end the whole file. A checkpoint keeps only the
        query, and reads the chunk again in the backward pass.
        """
        for start in range(0, self.n, CHUNK):
            yield checkpoint(self._score, query, start, use_reentrant=False, preserve_rng_state=False)

    def _score(self, query: Tensor, start: int) -> Tensor:
        # A new mapping for each chunk: pages that were read count as memory of the process until it is closed.
        # Copy on write, because PyTorch warns of read-only arrays; nothing is written.
        shape = (min(CHUNK, self.n - start), DIM)
        chunk = np.memmap(self.path, np.float32, "c", offset=start * DIM * 4, shape=shape)
        return query @ torch.from_numpy(chunk).T


def make_candidates(folder: Path, n: int, topics: Topics, seed: int) -> Candidates:
    """Generate the file unless it exists; it gets its name only when it is complete."""
    path = folder / f"candidates-{FORMAT}-{n}-{len(topics.place)}-{seed}.f32"
    if path.exists() and path.stat().st_size == n * DIM * 4:
        notes.print(f"using the candidates in {path}", highlight=False)
        return Candidates(path, n)
    folder.mkdir(parents=True, exist_ok=True)
    place, order = topics.place.flatten().sort()
    topic = order // K
    unfinished = path.with_suffix(".unfinished")
    try:
        with Progress(console=notes) as progress, unfinished.open("wb") as file:
            for start in progress.track(range(0, n, CHUNK), description="candidates"):
                generator = torch.Generator().manual_seed(seed * 2**32 + start + 1)
                chunk = torch.randn(min(CHUNK, n - start), DIM, generator=generator)
                first, last = torch.searchsorted(place, torch.tensor([start, start + len(chunk)])).tolist()
                mine = place[first:last] - start
                # As long as the other candidates, and close to the center.
                aside = normalize(chunk[mine], dim=1) * (1 - CLOSE**2) ** 0.5
                chunk[mine] = DIM**0.5 * (CLOSE * topics.center[topic[first:last]] + aside)
                file.write(chunk.numpy().data)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return Candidates(path, n)


class Retriever(nn.Module):
    """Questions (batch, OBSERVED) to vectors of candidates (batch, K, DIM)."""

    def __init__(self, candidates: Candidates) -> None:
        super().__init__()
        self.candidates = candidates
        self.query = nn.Sequential(nn.Linear(OBSERVED, 128), nn.GELU(), nn.Linear(128, DIM))
        self.topk = TopK(K, boost=4.0)  # sharp at the end: only rows that carry weight are read

    def forward(self, question: Tensor) -> knockout.functional.TopKResult:
        query = normalize(self.query(question), dim=-1)  # so that scores are of the order of 1, the unit of the boost
        out: knockout.functional.TopKResult = self.topk(self.candidates.rows(), self.candidates.scores(query))
        return out


def distance(values: Tensor, center: Tensor) -> Tensor:
    """Compute the mean cosine distance of the retrieved vectors from the center: 0 if parallel, 1 if orthogonal."""
    return (1 - cosine_similarity(values, center.unsqueeze(-2), dim=-1)).mean()


def train(model: Retriever, topics: Topics, steps: int, batch: int, seed: int) -> None:
    """Train with a boost from 1, which gives many candidates a gradient, to 4, which selects sharply.

    A checkpoint beside the candidates, written every few steps, lets an interrupted training continue.
    """
    optimizer, rate = optimizer_for(model, RATE, steps)
    boost = Sharpen(model, steps, start=1.0, end=4.0, hold=0.25)
    generator = torch.Generator().manual_seed(seed + 1)
    parts: dict[str, Any] = {"model": model, "optimizer": optimizer, "rate": rate, "boost": boost}
    settings, start = [model.candidates.n, len(topics.center), steps, batch, seed], 0
    path = model.candidates.path.with_suffix(".training")
    kept = torch.load(path, weights_only=True) if path.exists() else {}
    if kept.get("settings") == settings:
        for name, part in parts.items():
            part.load_state_dict(kept[name])
        generator.set_state(kept["generator"])
        start = kept["step"]
        notes.print(f"resuming: {start} of {steps} steps are already done")
    with Progress(console=notes) as progress:
        task = progress.add_task("training", total=steps, completed=start)
        for step in range(start, steps):
            which = torch.randint(len(topics.center) - TESTED, (batch,), generator=generator)
            out = model.train()(topics.ask(which, generator))
            loss = distance(out.values, topics.center[which])
            training_step(loss, optimizer, rate, boost)
            progress.update(task, advance=1)
            if step % EVERY == EVERY - 1:
                state = {name: part.state_dict() for name, part in parts.items()}
                state |= {"settings": settings, "step": step + 1, "generator": generator.get_state()}
                torch.save(state, path.with_suffix(".unfinished"))
                path.with_suffix(".unfinished").replace(path)
            if step % max(1, steps // 10) == 0:
                notes.print(f"step {step}: distance {loss.item():.3f}, boost {model.topk.sharpness:.2f}")
    path.unlink(missing_ok=True)


@torch.no_grad()
def evaluate(model: Retriever, topics: Topics, batch: int) -> tuple[float, float]:
    """Measure recall and distance of a hard selection, for topics that were not trained on."""
    generator = torch.Generator().manual_seed(0)
    recall, far = 0.0, 0.0
    with Progress(console=notes) as progress, evaluate_hard(model):
        which = torch.arange(len(topics.center) - TESTED, len(topics.center))
        for some in progress.track(which.split(batch), description="testing"):
            out = model.eval()(topics.ask(some, generator))
            recall += recall_of(out.indices, topics.place[some]) * len(some)
            far += distance(out.values, topics.center[some]).item() * len(some)
    return recall / TESTED, far / TESTED


def recall_of(chosen: Tensor, place: Tensor) -> float:
    """Compute the share of the right candidates (batch, K) among the selected ones (batch, K)."""
    return (place.unsqueeze(-1) == chosen.unsqueeze(-2)).any(dim=-1).float().mean().item()


def main() -> None:
    """Generate candidates, train, show the results."""
    options = parser("retrieval", __doc__)
    options.add_argument("--candidates", type=int, default=10**7, help="256 bytes each, on disk (%(default)s)")
    options.add_argument("--topics", type=int, default=100, help=f"{TESTED} of them for the test (%(default)s)")
    options.add_argument("--steps", type=number(1, 10**6), default=60, help="training steps (%(default)s)")
    options.add_argument(
        "--batch",
        type=number(1, 10**6),
        default=2,
        help="questions per step; some 600 MB each at 10^7 candidates",
    )
    options.add_argument(
        "--seed", type=number(0, 2**31 - 1), default=0, help="seed of candidates and training (%(default)s)"
    )
    chosen = options.parse_args()
    n, steps, batch = chosen.candidates, chosen.steps, chosen.batch
    if chosen.quick:
        n, steps = min(n, 10_000), min(steps, 2)
    if chosen.topics <= TESTED or n < chosen.topics * K:
        raise UsageError(
            f"--topics must be more than {TESTED}, and --candidates {K} times as many; got {chosen.topics} and {n}"
        )
    topics = draw_topics(n, chosen.topics, chosen.seed)
    candidates = make_candidates(chosen.out, n, topics, chosen.seed)
    torch.manual_seed(chosen.seed)
    model = Retriever(candidates)
    reset_peak_resident()
    before = evaluate(model, topics, batch)
    begin = time.perf_counter()
    train(model, topics, steps, batch, chosen.seed)
    seconds = time.perf_counter() - begin
    after = evaluate(model, topics, batch)
    rows = [
        [name, f"{100 * recall:.1f}", f"{far:.3f}"]
        for name, (recall, far) in {"untrained": before, f"after {steps} steps": after}.items()
    ]
    title = f"{K} of {n:,} candidates, for topics not trained on"
    show_table(title, ["query", f"recall of the topic's {K}, %", "distance from its center"], rows, chosen.out)
    gigabytes = candidates.path.stat().st_size / 1e9
    screen.print(
        f"{seconds:.0f} s of training, {seconds / steps:.1f} s per step; at most {peak_resident() / 2**30:.2f} GiB of "
        f"memory, candidates of {gigabytes:.2f} GB",
        highlight=False,
    )


if __name__ == "__main__":
    sys.exit(run_command("examples.retrieval", main))
