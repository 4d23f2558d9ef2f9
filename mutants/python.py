"""The mutants of a Python file, from its syntax tree."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator

from mutants.mutant import Mutant

COMPARISONS = {
    "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==",
    "is": "is not", "is not": "is", "in": "not in", "not in": "in",
}  # fmt: skip
ARITHMETIC = {
    "+": "-", "-": "+", "*": "/", "/": "*", "//": "*", "%": "*", "**": "*", "<<": ">>", ">>": "<<", "&": "|", "|": "&",
}  # fmt: skip
NAMES = {
    "min": "max", "max": "min", "amin": "amax", "amax": "amin", "minimum": "maximum", "maximum": "minimum",
    "any": "all", "all": "any",
}  # fmt: skip
Change = tuple[int, int, str, str]  # from, to, replacement, kind


def python_mutants(path: str, source: bytes) -> list[Mutant]:
    """All mutants of a file, in the order of their places."""
    changes = set(_Visitor(source).changes())
    return [
        Mutant(path, source, start, end, replacement.encode(), kind)
        for start, end, replacement, kind in sorted(changes)
        if source[start:end] != replacement.encode()
    ]


class _Visitor:
    def __init__(self, source: bytes) -> None:
        self.source = source
        lines = source.splitlines(keepends=True)
        self.offsets = [0]
        for line in lines:
            self.offsets.append(self.offsets[-1] + len(line))
        # Operators are not part of the syntax tree: their places are those of the tokens.
        self.tokens = [
            (self.offsets[token.start[0] - 1] + len(token.line[: token.start[1]].encode()), token.string)
            for token in tokenize.tokenize(io.BytesIO(source).readline)
            if token.type in (tokenize.OP, tokenize.NAME)
        ]

    def changes(self) -> Iterator[Change]:
        yield from self._visit(ast.parse(self.source))

    def _place(self, node: ast.AST) -> tuple[int, int]:
        start = self.offsets[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
        return start, self.offsets[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]

    def _text(self, node: ast.AST) -> str:
        start, end = self._place(node)
        return self.source[start:end].decode()

    def _operator(self, left: ast.AST, right: ast.AST) -> tuple[int, int, str]:
        """The operator between two operands, which may be in parentheses."""
        begin, stop = self._place(left)[1], self._place(right)[0]
        found = [(at, text) for at, text in self.tokens if begin <= at < stop and text not in ("(", ")")]
        return found[0][0], found[-1][0] + len(found[-1][1]), " ".join(text for _, text in found)

    def _visit(self, node: ast.AST) -> Iterator[Change]:
        yield from getattr(self, f"_{type(node).__name__.lower()}", lambda _: ())(node)
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "type_params"):
                continue
            for child in value if isinstance(value, list) else [value]:
                # Error messages, and what an assertion says, are not mutated.
                if isinstance(child, ast.AST) and not isinstance(child, (ast.Raise, ast.Assert, ast.JoinedStr)):
                    yield from self._visit(child)

    def _compare(self, node: ast.Compare) -> Iterator[Change]:
        for left, right in zip([node.left, *node.comparators[:-1]], node.comparators, strict=True):
            start, end, text = self._operator(left, right)
            yield start, end, COMPARISONS[text], f"{text} to {COMPARISONS[text]}"

    def _binop(self, node: ast.BinOp) -> Iterator[Change]:
        start, end, text = self._operator(node.left, node.right)
        if text in ARITHMETIC:
            yield start, end, ARITHMETIC[text], f"{text} to {ARITHMETIC[text]}"

    def _boolop(self, node: ast.BoolOp) -> Iterator[Change]:
        for left, right in zip(node.values, node.values[1:], strict=False):
            start, end, text = self._operator(left, right)
            other = "or" if text == "and" else "and"
            yield start, end, other, f"{text} to {other}"

    def _unaryop(self, node: ast.UnaryOp) -> Iterator[Change]:
        if not isinstance(node.operand, ast.Constant):  # a negative number is mutated as a number
            start, end = self._place(node)[0], self._place(node.operand)[0]
            operator = self.source[start:end].decode().rstrip("(").strip()
            yield start, start + len(operator), "", f"without {operator}"

    def _constant(self, node: ast.Constant) -> Iterator[Change]:
        value, (start, end) = node.value, self._place(node)
        if isinstance(value, bool):
            yield start, end, str(not value), f"{value} to {not value}"
        elif isinstance(value, int):
            other = {0: 1, 1: 0}.get(value, value + 1)
            yield start, end, str(other), f"{value} to {other}"
        elif isinstance(value, float):
            other_float = 2 * value or 1.0
            yield start, end, repr(other_float), f"{value} to {other_float}"

    def _call(self, node: ast.Call) -> Iterator[Change]:
        function = node.func
        if isinstance(function, ast.Attribute) and function.attr == "clamp":
            dot = self.source.rfind(b".", 0, self._place(function)[1])
            yield dot, self._place(node)[1], "", "without clamp"
        name = getattr(function, "attr", getattr(function, "id", ""))
        if name in NAMES:
            end = self._place(function)[1]
            yield end - len(name), end, NAMES[name], f"{name} to {NAMES[name]}"

    def _if(self, node: ast.If | ast.IfExp) -> Iterator[Change]:
        # Equalities and `not` have mutants of their own that say the same.
        inverted = isinstance(node.test, ast.UnaryOp) or (
            isinstance(node.test, ast.Compare) and not isinstance(node.test.ops[0], (ast.Lt, ast.LtE, ast.Gt, ast.GtE))
        )
        if not inverted:
            start, end = self._place(node.test)
            yield start, end, f"not ({self._text(node.test)})", "condition negated"

    _ifexp = _if

    def _expr(self, node: ast.Expr) -> Iterator[Change]:
        if not isinstance(node.value, ast.Constant):  # or it is a docstring
            yield *self._place(node), "pass", "statement removed"

    def _augassign(self, node: ast.AugAssign) -> Iterator[Change]:
        yield *self._place(node), "pass", "statement removed"

    def _assign(self, node: ast.Assign) -> Iterator[Change]:
        """Assignments to elements, and new values of names that have one: x = f(x)."""
        targets = {name.id for target in node.targets for name in ast.walk(target) if isinstance(name, ast.Name)}
        used = {name.id for name in ast.walk(node.value) if isinstance(name, ast.Name)}
        if targets <= used or isinstance(node.targets[0], (ast.Subscript, ast.Attribute)):
            yield *self._place(node), "pass", "statement removed"

    def _break(self, node: ast.Break | ast.Continue) -> Iterator[Change]:
        yield *self._place(node), "pass", "statement removed"

    _continue = _break

    def _return(self, node: ast.Return) -> Iterator[Change]:
        if isinstance(node.value, (ast.Name, ast.Attribute)):
            yield *self._place(node.value), "None", "returns None"
