"""Retrieval from more than memory should hold: which 16 of ten million vectors in a file belong to a question, learned.

Among n candidates, 64 numbers each and nearly all of them noise, lie topics: 16 vectors around a centre. A question is
about a topic, but does not show it: the centre has eight degrees of freedom, and what is observed is a mixture of these
in 32 numbers, with noise. A small network makes a query of it, scores are dot products with all candidates, the best 16
are selected softly, and the loss is how far the vectors that come back point from the topic's centre. Nobody tells
which candidates are the right ones: the gradient goes through the selection into the query.

Candidates stay in their file. Scores are computed chunk by chunk, and once more in the backward pass; of the values,
the rows that carry weight are read.
"""

from __future__ import annotations

import argparse
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
from benchmarks.timing import peak
from examples.laboratory import console, guarded, learn, optimizer_for, show
from knockout.nn import Sharpen, TopK, evaluate_hard

DIM, K = 64, 16
DEGREES, OBSERVED, NOISE = 8, 32, 0.1  # of a topic; numbers of a question; what is in them besides
CLOSE = 0.95  # cosine of a topic's vectors with its centre
TESTED = 32  # topics that are never trained on
RATE = 6e-3
EVERY = 5  # steps after which the training is kept
CHUNK = 2**18  # candidates that are made, or scored, at a time: 64 MiB
FORMAT = 1  # of the file: to be raised when other candidates would be made


class Topics(NamedTuple):
    """What the questions are about."""

    centre: Tensor  # (topics, DIM), of length 1
    shown: Tensor  # (topics, OBSERVED): a question without noise
    place: Tensor  # (topics, K): which candidates belong to it

    def ask(self, which: Tensor, generator: torch.Generator) -> Tensor:
        """A question (..., OBSERVED) about each of these topics."""
        return self.shown[which] + NOISE * torch.randn(*which.shape, OBSERVED, generator=generator)


def draw_topics(n: int, count: int, seed: int) -> Topics:
    """So many topics, at places of their own among n candidates."""
    generator = torch.Generator().manual_seed(seed)
    state = normalize(torch.randn(count, DEGREES, generator=generator), dim=1)
    meaning = torch.linalg.qr(torch.randn(DIM, DEGREES, generator=generator)).Q
    mixture = torch.randn(OBSERVED, DEGREES, generator=generator)
    # Any different places will do: one in each of so many equal stretches.
    stretch = n // (count * K)
    place = torch.arange(count * K) * stretch + torch.randint(stretch, (count * K,), generator=generator)
    place = place[torch.randperm(count * K, generator=generator)].reshape(count, K)
    return Topics(state @ meaning.T, state @ mixture.T, place)


@dataclass
class Candidates:
    """A file of n candidates (n, DIM), float32."""

    path: Path
    n: int

    def rows(self) -> np.memmap[Any, Any]:
        """All of them, for a selection to read from."""
        return np.memmap(self.path, np.float32, "r", shape=(self.n, DIM))

    def scores(self, query: Tensor) -> Iterator[Tensor]:
        """Scores (..., chunk) of a query (..., DIM), one chunk of candidates after the other.

        Autograd would keep what a product was made of, and so, in the end, the whole file. A checkpoint keeps the
        query, and reads the chunk again.
        """
        for start in range(0, self.n, CHUNK):
            yield checkpoint(self._score, query, start, use_reentrant=False, preserve_rng_state=False)

    def _score(self, query: Tensor, start: int) -> Tensor:
        # Mapped anew for every chunk: what was touched of a mapping counts as memory of the process until it is gone.
        # As a copy on write, because PyTorch warns of arrays that cannot be written to; nobody writes.
        shape = (min(CHUNK, self.n - start), DIM)
        chunk = np.memmap(self.path, np.float32, "c", offset=start * DIM * 4, shape=shape)
        return query @ torch.from_numpy(chunk).T


def make_candidates(folder: Path, n: int, topics: Topics, seed: int) -> Candidates:
    """The file, made if it is not there; it gets its name only when it is whole."""
    path = folder / f"candidates-{FORMAT}-{n}-{len(topics.place)}-{seed}.f32"
    if path.exists() and path.stat().st_size == n * DIM * 4:
        console.print(f"candidates as they are in {path}", highlight=False)
        return Candidates(path, n)
    folder.mkdir(parents=True, exist_ok=True)
    place, order = topics.place.flatten().sort()
    topic = order // K
    unfinished = path.with_suffix(".unfinished")
    try:
        with Progress(console=console) as progress, unfinished.open("wb") as file:
            for start in progress.track(range(0, n, CHUNK), description="candidates"):
                generator = torch.Generator().manual_seed(seed * 2**32 + start + 1)
                chunk = torch.randn(min(CHUNK, n - start), DIM, generator=generator)
                first, last = torch.searchsorted(place, torch.tensor([start, start + len(chunk)])).tolist()
                mine = place[first:last] - start
                # As long as the others, and close to the centre.
                aside = normalize(chunk[mine], dim=1) * (1 - CLOSE**2) ** 0.5
                chunk[mine] = DIM**0.5 * (CLOSE * topics.centre[topic[first:last]] + aside)
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
        self.topk = TopK(K)

    def forward(self, question: Tensor) -> knockout.functional.TopKResult:
        query = normalize(self.query(question), dim=-1)  # so scores are of the order of 1, the unit of the boost
        out: knockout.functional.TopKResult = self.topk(self.candidates.rows(), self.candidates.scores(query))
        return out


def distance(values: Tensor, centre: Tensor) -> Tensor:
    """How far the retrieved vectors point from the centre: 0 if they do not, 1 if at a right angle, on average."""
    return (1 - cosine_similarity(values, centre.unsqueeze(-2), dim=-1)).mean()


def train(model: Retriever, topics: Topics, steps: int, batch: int, seed: int) -> None:
    """From a boost of 1, soft enough to hear of many candidates, to one of 4, for choosing.

    How far it has come is kept beside the candidates, every few steps: who was stopped goes on from there.
    """
    optimizer, rate = optimizer_for(model, RATE, steps)
    boost = Sharpen(model, steps, start=1.0, end=4.0, hold=0.25)
    generator = torch.Generator().manual_seed(seed + 1)
    parts: dict[str, Any] = {"model": model, "optimizer": optimizer, "rate": rate, "boost": boost}
    settings, begun = [model.candidates.n, len(topics.centre), steps, batch, seed], 0
    path = model.candidates.path.with_suffix(".training")
    kept = torch.load(path, weights_only=True) if path.exists() else {}
    if kept.get("settings") == settings:
        for name, part in parts.items():
            part.load_state_dict(kept[name])
        generator.set_state(kept["generator"])
        begun = kept["step"]
        console.print(f"going on with step {begun} of {steps}")
    with Progress(console=console) as progress:
        task = progress.add_task("training", total=steps, completed=begun)
        for step in range(begun, steps):
            which = torch.randint(len(topics.centre) - TESTED, (batch,), generator=generator)
            out = model.train()(topics.ask(which, generator))
            loss = distance(out.values, topics.centre[which])
            learn(loss, optimizer, rate, boost)
            progress.update(task, advance=1)
            if step % EVERY == EVERY - 1:
                state = {name: part.state_dict() for name, part in parts.items()}
                state |= {"settings": settings, "step": step + 1, "generator": generator.get_state()}
                torch.save(state, path.with_suffix(".unfinished"))
                path.with_suffix(".unfinished").replace(path)
            if step % max(1, steps // 10) == 0:
                progress.console.print(f"step {step}: distance {loss.item():.3f}, boost {model.topk.sharpness:.2f}")
    path.unlink(missing_ok=True)


@torch.no_grad()
def judged(model: Retriever, topics: Topics, batch: int) -> tuple[float, float]:
    """Chosen hard, for topics that were not trained on: the recall of their vectors, and the distance."""
    generator = torch.Generator().manual_seed(0)
    found, far = 0.0, 0.0
    with Progress(console=console) as progress, evaluate_hard(model):
        which = torch.arange(len(topics.centre) - TESTED, len(topics.centre))
        for some in progress.track(which.split(batch), description="testing"):
            out = model.eval()(topics.ask(some, generator))
            found += recalled(out.indices, topics.place[some]) * len(some)
            far += distance(out.values, topics.centre[some]).item() * len(some)
    return found / TESTED, far / TESTED


def recalled(chosen: Tensor, place: Tensor) -> float:
    """How many of the right candidates (batch, K) are among the chosen ones (batch, K)."""
    return (place.unsqueeze(-1) == chosen.unsqueeze(-2)).any(dim=-1).float().mean().item()


def main() -> None:
    """Make candidates, train, tell."""
    options = argparse.ArgumentParser(prog="python -m examples.retrieval", description=__doc__)
    options.add_argument("--out", type=Path, default=Path("build/examples/retrieval"), help="where the file is kept")
    options.add_argument("--quick", action="store_true", help="seconds: shows that it runs, not what it shows")
    options.add_argument("--candidates", type=int, default=10**7, help="256 bytes each, on disk")
    options.add_argument("--topics", type=int, default=100, help=f"{TESTED} of them for the test")
    options.add_argument("--steps", type=int, default=60, help="of training")
    options.add_argument("--batch", type=int, default=2, help="questions a step; some 600 MB each at 10^7 candidates")
    options.add_argument("--seed", type=int, default=0, help="of the candidates, and of the training")
    chosen = options.parse_args()
    n, steps, batch = chosen.candidates, chosen.steps, chosen.batch
    if chosen.quick:
        n, steps = min(n, 10_000), min(steps, 2)
    if steps < 1 or batch < 1 or not 0 <= chosen.seed < 2**31:
        raise ValueError(
            f"--steps and --batch must be at least 1, --seed at least 0; got {steps}, {batch}, {chosen.seed}"
        )
    if chosen.topics <= TESTED or n < chosen.topics * K:
        raise ValueError(
            f"--topics must be more than {TESTED}, and --candidates {K} times as many; got {chosen.topics} and {n}"
        )
    topics = draw_topics(n, chosen.topics, chosen.seed)
    candidates = make_candidates(chosen.out, n, topics, chosen.seed)
    torch.manual_seed(chosen.seed)
    model = Retriever(candidates)
    peak(anew=True)
    before = judged(model, topics, batch)
    begin = time.perf_counter()
    train(model, topics, steps, batch, chosen.seed)
    seconds = time.perf_counter() - begin
    after = judged(model, topics, batch)
    rows = [
        [name, f"{100 * recall:.1f}", f"{far:.3f}"]
        for name, (recall, far) in {"untrained": before, f"after {steps} steps": after}.items()
    ]
    title = f"{K} of {n:,} candidates, for topics not trained on"
    show(title, ["query", f"recall of the topic's {K}, %", "distance from its centre"], rows, chosen.out)
    gigabytes = candidates.path.stat().st_size / 1e9
    console.print(
        f"{seconds:.0f} s of training, {seconds / steps:.1f} s a step; at most {peak() / 1024:.2f} GiB of memory, "
        f"candidates of {gigabytes:.2f} GB",
        highlight=False,
    )


if __name__ == "__main__":
    guarded(main)
