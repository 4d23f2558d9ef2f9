"""Triton's interpreter, made quicker: it runs the kernels on CPU tensors in tests that force the backend ``triton``."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Any


def use_interpreter() -> None:
    """Interpret all kernels of this process, from their definition on."""
    os.environ["TRITON_INTERPRET"] = "1"
    if not find_spec("triton"):
        return
    from triton.runtime import interpreter

    # A function that a kernel calls would put the interpreter's operations into triton.language again, at each call,
    # though its kernel has just done so: a third of the time. Once for each module is enough.
    modules = set()

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.fn.__module__ not in modules:
            interpreter._patch_lang(self.fn)
            modules.add(self.fn.__module__)
        return self.rewrite()(*args, **kwargs)

    interpreter.InterpretedFunction.__call__ = call
    # Integers overflow in sort.py, as they may: to check each operation would take another sixth of the time.
    interpreter.interpreter_builder.options = interpreter.InterpreterOptions(sanitize_overflow=False)
