"""Parse the shape language: a shape from its text, and a relation between sizes."""

from __future__ import annotations

import re
from functools import lru_cache

from .shapes import Axis, Expr, Shape, SpecError, error_at

_TOKEN = re.compile(
    r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)|(?P<number>\d+)|(?P<op>//|[-+*()=#?]|\.\.\.)"
)


class _Parser:
    """Recursive descent over one shape; ``column`` is where the next token starts."""

    def __init__(self, text: str, field: str) -> None:
        self.text = text
        self.field = field
        self.column = 0

    def error(self, problem: str, column: int | None = None) -> SpecError:
        return error_at(
            self.text, self.column if column is None else column, problem, field=self.field
        )

    def peek(self) -> str:
        match = _TOKEN.match(self.text, self.column)
        return match.group() if match else ""

    def take(self) -> str:
        token = self.peek()
        if not token:
            if self.column >= len(self.text):
                raise self.error("something is missing")
            raise self.error(f"unexpected {self.text[self.column]!r}")
        self.column += len(token)
        return token

    def skip_spaces(self) -> None:
        while self.column < len(self.text) and self.text[self.column].isspace():
            self.column += 1

    def shape(self) -> tuple[Axis, ...]:
        axes: list[Axis] = []
        self.skip_spaces()
        while self.column < len(self.text):
            axes.append(self.axis(len(axes)))
            if self.column < len(self.text) and not self.text[self.column].isspace():
                char = self.text[self.column]
                hint = " (the letter follows the number: write 2*D)" if char.isalpha() else ""
                hint = " (separate axes with spaces)" if char in ",;x" else hint
                raise self.error(f"unexpected {char!r}{hint}")
            self.skip_spaces()
        seen: set[str] = set()
        for axis in axes:
            if axis.kind == "variadic":
                if axis.name in seen:
                    raise self.error(f"{axis.switch} appears twice in one shape", axis.column)
                seen.add(axis.name)
        return tuple(axes)

    def axis(self, index: int) -> Axis:
        column, token = self.column, self.peek()
        if token == "...":
            self.take()
            return Axis("variadic", name="...", column=column)
        if token == "*":
            self.take()
            name = self.take()
            if not name.isidentifier():
                raise self.error("a name must follow '*', as in *batch", column + 1)
            return Axis("variadic", name=name, column=column)
        if token == "#":
            self.take()
            return Axis("broadcast", self.atom(), column=column)
        if token == "_" or (token.startswith("_") and token.isidentifier()):
            self.take()  # anonymous, as in jaxtyping: a size of its own
            return Axis("plain", Expr("symbol", name=f"_{index}"), column=column)
        if token.isidentifier() and self.text[self.column + len(token) :].startswith("="):
            self.take()
            self.take()
            return Axis("plain", self.sum(inside=False), column=column)
        size = self.sum(inside=False)
        if self.peek() == "?":
            if size.op != "symbol":
                raise self.error("only a single name can be optional, as in T?")
            self.take()
            return Axis("optional", size, column=column)
        return Axis("plain", size, column=column)

    def sum(self, *, inside: bool) -> Expr:
        left = self.term(inside=inside)
        while self.operator(inside) in ("+", "-"):
            op = self.take()
            right = self.term(inside=inside)
            left = Expr(op, args=(left, right))  # type: ignore[arg-type]
        return left

    def term(self, *, inside: bool) -> Expr:
        left = self.spaced_atom(inside)
        while self.operator(inside) in ("*", "//"):
            op = self.take()
            right = self.spaced_atom(inside)
            left = Expr(op, args=(left, right))  # type: ignore[arg-type]
        return left

    def operator(self, inside: bool) -> str:
        if inside:  # spaces mean nothing between parentheses
            self.skip_spaces()
        return self.peek()

    def spaced_atom(self, inside: bool) -> Expr:
        if inside:
            self.skip_spaces()
        return self.atom()

    def atom(self) -> Expr:
        column, token = self.column, self.take()
        if token == "(":
            inner = self.sum(inside=True)
            self.skip_spaces()
            if self.peek() != ")":
                raise self.error("expected ')'")
            self.take()
            return inner
        if token.isdigit():
            return Expr("number", int(token))
        if token.isidentifier():
            return Expr("symbol", name=token)
        raise self.error(f"unexpected {token!r}", column)


@lru_cache(maxsize=1024)
def parse_shape(text: str, field: str = "shape") -> Shape:
    """Parse a shape.

    Args:
        text: Such as ``"B 3 H W"``; see the module for the language.
        field: What to call it in an error.

    Raises:
        SpecError: With a caret under the wrong character.
    """
    return Shape(text, _Parser(text, field).shape())


@lru_cache(maxsize=1024)
def parse_relation(text: str, field: str = "sizes") -> Expr:
    """Parse one size, such as ``"2*H"`` or ``"H"``.

    Raises:
        SpecError: With a caret under the wrong character.
    """
    parser = _Parser(text, field)
    parser.skip_spaces()
    relation = parser.sum(inside=True)
    parser.skip_spaces()
    if parser.column < len(text):
        raise parser.error(f"unexpected {text[parser.column]!r}")
    return relation
