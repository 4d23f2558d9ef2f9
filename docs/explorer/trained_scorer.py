"""Where the scores of the explorer's preset "a trained scorer" come from: ``python -m docs.explorer.trained_scorer``.

A sequence has 24 tokens with noise in them. Three carry a mark and one of four classes, and the network is to name the
class that these have in common. The scorer, a linear layer, is trained through the pool with nothing set, as the README
says. Printed are its scores for a new sequence, whose marked tokens are 2, 9 and 17, and the boost that the pool has.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from knockout.nn import TokenPool

N, DIM, CLASSES, MARKED, STEPS = 24, 16, 4, 3, 300


def draw(count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens (count, N, DIM), classes (count,), and which tokens are marked (count, MARKED)."""
    tokens = torch.randn(count, N, DIM)
    marked = torch.rand(count, N).argsort(dim=-1)[:, :MARKED]
    classes = torch.randint(CLASSES, (count,))
    added = torch.zeros(count, MARKED, DIM)
    added[..., 0] = 2.5
    added.scatter_(-1, 1 + classes.view(-1, 1, 1).expand(-1, MARKED, 1), 2.5)
    return tokens.scatter_add(1, marked.unsqueeze(-1).expand(-1, -1, DIM), added), classes, marked


def main() -> None:
    """Train, and print what presets.js has."""
    torch.manual_seed(0)
    pool, head = TokenPool(DIM, k=MARKED), nn.Linear(DIM, CLASSES)
    optimizer = torch.optim.Adam([*pool.parameters(), *head.parameters()], lr=1e-2)
    for _ in range(STEPS):
        tokens, classes, _ = draw(64)
        loss = cross_entropy(head(pool(tokens).x.mean(dim=1)), classes)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    pool.eval()
    tokens, classes, marked = draw(1)
    # The marked tokens in chosen places: their order means nothing to the scorer.
    others = [i for i in range(N) if i not in marked[0]]
    places = iter(marked[0].tolist()), iter(others)
    order = [next(places[0] if i in (2, 9, 17) else places[1]) for i in range(N)]
    scores = pool.scorer(tokens[0, order]).flatten()
    print([round(score, 2) for score in scores.tolist()], pool.topk, f"loss {loss.item():.2f}", sep="\n")


if __name__ == "__main__":
    main()
