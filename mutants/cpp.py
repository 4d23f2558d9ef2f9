"""The mutants of a C++ file, from its tokens.

The code is formatted by clang-format: binary operators have spaces around them, and the brackets of templates,
references and pointers do not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from mutants.mutant import Mutant

OPERATORS = {
    "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "&&": "||", "||": "&&",
    "+": "-", "-": "+", "*": "/", "/": "*", "%": "*", "<<": ">>", ">>": "<<", "&": "|", "|": "&",
    "+=": "-=", "-=": "+=", "*=": "/=", "/=": "*=",
}  # fmt: skip
NAMES = {"min": "max", "max": "min", "true": "false", "false": "true"}
TOKEN = re.compile(
    rb"""(?P<skip>//[^\n]*|/\*.*?\*/|^[ \t]*\#(?:\\\n|[^\n])*|\s+)
    |(?P<string>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])+')
    |(?P<number>(?:0[xX][0-9a-fA-F.']+(?:[pP][-+]?\d+)?|(?:\d[\d']*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)[fFuUlLzZ]*)
    |(?P<name>[A-Za-z_]\w*)
    |(?P<operator><<=|>>=|<=>|->|\+\+|--|::|&&|\|\||[-+*/%&|^=!<>]=|<<|>>|.)""",
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)
CLOSING = {"(": ")", "[": "]", "{": "}"}
HEADS = ("if", "for", "while", "switch")
Change = tuple[int, int, str, str]  # from, to, replacement, kind


class Token(NamedTuple):
    """A token, or a comment or space is no token."""

    kind: str
    text: str
    start: int
    end: int


def cpp_mutants(path: str, source: bytes) -> list[Mutant]:
    """All mutants of a file, in the order of their places."""
    changes = set(_File(source).changes())
    return [
        Mutant(path, source, start, end, replacement.encode(), kind)
        for start, end, replacement, kind in sorted(changes)
    ]


class _File:
    def __init__(self, source: bytes) -> None:
        self.source = source
        self.tokens = [
            Token(match.lastgroup or "", match.group().decode(), match.start(), match.end())
            for match in TOKEN.finditer(source)
            if match.lastgroup != "skip"
        ]
        self.pairs = self._brackets()

    def changes(self) -> Iterator[Change]:
        ignored = self._ignored()
        for i, token in enumerate(self.tokens):
            if i not in ignored:
                yield from getattr(self, f"_{token.kind}", lambda _: ())(i)
        for i in self._statement_starts():
            if i not in ignored:
                yield from self._statement(i)

    def _text(self, i: int) -> str:
        return self.tokens[i].text if 0 <= i < len(self.tokens) else ""

    def _brackets(self) -> dict[int, int]:
        """The places of matching brackets, both ways."""
        pairs: dict[int, int] = {}
        stack: list[int] = []
        for i, token in enumerate(self.tokens):
            if token.text in CLOSING:
                stack.append(i)
            elif token.text in CLOSING.values():
                pairs[i] = stack.pop()
                pairs[pairs[i]] = i
        return pairs

    def _ignored(self) -> set[int]:
        """Tokens of static assertions and of heads of templates."""
        ignored: set[int] = set()
        for i, token in enumerate(self.tokens):
            if token.text == "static_assert":
                ignored.update(range(i, self.pairs[i + 1] + 1))
            elif token.text == "template":
                depth, end = 0, i + 1
                while depth or end == i + 1:
                    depth += {"<": 1, ">": -1, ">>": -2}.get(self._text(end), 0)
                    end += 1
                ignored.update(range(i, end))
        return ignored

    def _operator(self, i: int) -> Iterator[Change]:
        token, before = self.tokens[i], self._text(i - 1)
        spaced = self.source[token.start - 1 : token.start].isspace(), self.source[token.end : token.end + 1].isspace()
        if all(spaced) and token.text in OPERATORS and before not in ("operator", "template"):
            other = OPERATORS[token.text]
            yield token.start, token.end, other, f"{token.text} to {other}"
        if token.text == "!" or self._is_minus(i):
            yield token.start, token.end, "", f"without {token.text}"
        if token.text == "?" and self.tokens[i - 1].kind == "name" and self._text(i - 2) in ("=", "(", "return", ","):
            start = self.tokens[i - 1].start
            yield start, start, "!", "condition negated"

    def _is_minus(self, i: int) -> bool:
        """Whether a token is the minus of a negative number or of a negated expression."""
        before = ("return", "(", "[", ",", "=", "?", ":", "&&", "||", "==", "<", ">", "*", "/", "+", "-")
        attached = not self.source[self.tokens[i].end : self.tokens[i].end + 1].isspace()
        return self._text(i) == "-" and attached and self._text(i - 1) in before

    def _number(self, i: int) -> Iterator[Change]:
        token = self.tokens[i]
        if self._is_minus(i - 1):
            return  # to leave out the minus is enough
        text = token.text.rstrip("fFuUlLzZ") if not token.text.startswith("0x") else token.text.rstrip("uUlLzZ")
        if re.fullmatch(r"[\d']+", text):
            value = int(text.replace("'", ""))
            other = str({0: 1, 1: 0}.get(value, value + 1))
        else:
            zero = not re.search("[1-9]", text.lower().replace("0x", "").split("e")[0].split("p")[0])
            other = "1.0" if zero else f"(2 * {text})"
        yield token.start, token.end, other, f"{token.text} to {other}"

    def _name(self, i: int) -> Iterator[Change]:
        token = self.tokens[i]
        # numeric_limits<T>::max is a constant, not the function of two numbers.
        is_function = self._text(i + 1) in ("(", "<") and self._text(i - 2) == "std"
        if token.text in ("true", "false") or (token.text in ("min", "max") and is_function):
            yield token.start, token.end, NAMES[token.text], f"{token.text} to {NAMES[token.text]}"
        if token.text == "clamp" and is_function and self._text(i + 1) == "(":
            comma = next(j for j in range(i + 2, self.pairs[i + 1]) if self._text(j) == "," and self._depth(j, i + 1))
            first = self.source[self.tokens[i + 1].end : self.tokens[comma].start].decode()
            yield self.tokens[i - 2].start, self.tokens[self.pairs[i + 1]].end, f"({first})", "without clamp"
        if token.text == "if":
            yield from self._condition(i + 2 if self._text(i + 1) == "constexpr" else i + 1)

    def _depth(self, j: int, opening: int) -> bool:
        """Whether a token is inside of an opening bracket and of no other bracket after that."""
        inside = (k for k in range(opening + 1, j) if k in self.pairs and k < self.pairs[k])
        return not any(self.pairs[k] > j for k in inside)

    def _condition(self, opening: int) -> Iterator[Change]:
        closing = self.pairs[opening]
        inner = [self._text(j) for j in range(opening + 1, closing)]
        # Equalities and `!` have mutants of their own that say the same.
        inverted = not {"&&", "||"} & set(inner) and ({"==", "!="} & set(inner) or inner[0] == "!")
        if not inverted and ";" not in inner:
            start, end = self.tokens[opening].end, self.tokens[closing].start
            yield start, end, f"!({self.source[start:end].decode()})", "condition negated"

    def _statement_starts(self) -> Iterator[int]:
        """The tokens with which statements may begin."""
        blocks: list[str] = ["{"]
        for i, token in enumerate(self.tokens):
            if token.text in CLOSING:
                blocks.append(token.text)
            elif token.text in CLOSING.values():
                blocks.pop()
            of_head = token.text == ")" and self._text(self.pairs[i] - 1) in (*HEADS, "constexpr")
            if of_head or token.text == "else" or (token.text in ("{", "}", ";") and blocks[-1] == "{"):
                yield i + 1

    def _statement(self, first: int) -> Iterator[Change]:
        """Calls, assignments, break and continue are removed; declarations are not."""
        end = first
        while end < len(self.tokens) and self._text(end) not in (";", "{", "}"):
            end = self.pairs[end] + 1 if self._text(end) in CLOSING else end + 1
        if self._text(end) != ";" or not (self.tokens[first].kind == "name" or self._text(first) in ("++", "--", "*")):
            return
        if self._text(first) in ("break", "continue") or self._is_expression(first, end):
            yield self.tokens[first].start, self.tokens[end].start, "", "statement removed"

    def _is_expression(self, first: int, end: int) -> bool:
        if self._text(first) in ("++", "--"):
            return True
        if self._text(first) in ("return", "using", "else", "if", "for", "while", "do", "throw", "goto", "namespace"):
            return False
        i = first + (self._text(first) == "*") + 1
        while i < end:
            text = self._text(i)
            if text in (".", "->", "::"):
                i += 2
            elif text in ("[", "("):
                i = self.pairs[i] + 1
            else:
                return text.endswith("=") and text not in ("==", "<=", ">=", "!=")
        return self._text(end - 1) == ")"
