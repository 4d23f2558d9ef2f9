"""The experiments: all kernels of a call, compiled for a target."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from evals.gpu.calls import OPTIONS, SIZES, recorded
from harness.journal import Rows
from harness.runner import Experiment, rows_match

CALLS = SIZES | OPTIONS
TARGETS = ("sm_80", "sm_90", "sm_100", "gfx942", "gfx1100")
FOR_OPTIONS = ("sm_80", "gfx942")  # one of each maker: to compile all options for all targets would take an hour
_FIELDS = {
    "target": str, "call": str, "pass": str, "kernel": str, "settings": str, "warps": int, "registers": int,
    "stack": int, "shared": int, "seconds": float, "inexact": int,
}  # fmt: skip


@dataclass(frozen=True)
class Settings:
    """All that the results depend on."""

    targets: tuple[str, ...]
    calls: tuple[str, ...]


def settings_for(quick: bool) -> Settings:
    """Make the settings of the full run, or of one that takes less than a minute."""
    return Settings(("sm_80",), ("64, 16",)) if quick else Settings(TARGETS, tuple(CALLS))


def compile_call(name: str, target: str) -> Rows:
    """Compile all kernels of a call, a row for each."""
    from evals.gpu.compiling import Specialized, compiled

    passes = recorded(CALLS[name])
    rows: Rows = []
    seen: set[str] = set()
    for direction, launches in (("forward", passes.forward), ("backward", passes.backward)):
        for launch in launches:
            settings = Specialized.of(launch).settings
            kernel = launch.kernel.__name__
            if f"{kernel} {settings}" in seen:
                continue
            seen.add(f"{kernel} {settings}")
            named = {"target": target, "call": name, "pass": direction, "kernel": kernel, "settings": settings}
            rows.append({**named, **compiled(launch, target)._asdict()})
    return rows


def experiments(settings: Settings) -> list[Experiment]:
    """List the experiments."""
    return [
        Experiment(f"compile {target} {name}", 1.0, partial(compile_call, name, target))
        for target in settings.targets
        for name in settings.calls
        if name in SIZES or target in FOR_OPTIONS
    ]


def is_complete(name: str, rows: Rows) -> bool:  # noqa: ARG001
    """Whether the recorded rows of an experiment are whole."""
    return rows_match(rows, _FIELDS)
