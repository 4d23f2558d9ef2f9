"""What a layer returns: all its results, or some of them as plain tensors."""

from __future__ import annotations

from typing import Any

from knockout.checks import check_choice

Output = str | tuple[str, ...] | None


def check_output(output: Any, fields: tuple[str, ...]) -> Output:
    """Check for None, the name of a field, or names of fields, which are returned as a tuple."""
    if output is None:
        return None
    if isinstance(output, str):
        check_choice(output, "output", fields)
        return output
    if not isinstance(output, (tuple, list)) or not output:
        raise TypeError(
            f"output must be None, for all results, the name of one, or a tuple of names, out of {', '.join(fields)}; "
            f"got {output!r}"
        )
    for name in output:
        check_choice(name, "output", fields)
    return tuple(output)


def choose_output(result: Any, output: Output) -> Any:
    """All results, a NamedTuple; or the one that is wanted alone; or a tuple of those that are."""
    if output is None:
        return result
    if isinstance(output, str):
        return getattr(result, output)
    return tuple([getattr(result, name) for name in output])
