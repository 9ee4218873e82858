"""The shape language: ``"B 3 H W"``, ``"B (H*W) D"``, ``"... T+1"``, parsed, resolved and matched.

The vocabulary is jaxtyping's, with relations that can be drawn as well as checked:

=============  ========================================================================== ``B``
a free size; the same name is the same size in every tensor of a batch ``3``          a fixed size
``H*W``        a relation: ``+``, ``-``, ``*``, ``//`` and parentheses over names and numbers
``heads=4``    a fixed size with a name for the reader ``*batch``     any number of axes, the same
ones wherever ``*batch`` stands ``...``        any number of axes, the same ones wherever ``...``
stands ``T?``         an axis that may be absent ``#T``         an axis of size ``T`` or 1 ``_``
an axis of any size, tied to nothing =============
==========================================================================

An empty string is a scalar.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Literal

from ..lean import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

ALLOWED = (
    "names (B), numbers (3), relations (H*W, T+1, 2*D, H//2, parentheses), "
    "named numbers (heads=4), *batch, ..., T? (optional), #T (1 or T), _ (any)"
)
MAX_SEARCH = 200_000
"""Combinations of sizes tried when a relation has several unknowns (``H*W`` of a real batch)."""


Op = Literal["number", "symbol", "+", "-", "*", "//"]


class SpecError(ValueError):
    """What a user declared is not a spec; the message points to the character that is wrong."""


class ShapeMismatch(ValueError):
    """A tensor's shape is not what its spec says."""


def error_at(text: str, column: int, problem: str, *, field: str = "shape") -> SpecError:
    """Make the error that points to one character of a spec.

    Args:
        text: The whole spec.
        column: Offset of the wrong character, from 0; ``len(text)`` means that something is missing.
        problem: What is wrong there.
        field: The field in which the spec stands.
    """
    return SpecError(
        f"{field}: {problem} at character {column + 1} of {text!r}\n"
        f"    {text}\n    {' ' * column}^\n"
        f"allowed: {ALLOWED}"
    )


@dataclass(frozen=True, slots=True)
class Expr:
    """A size: a number, a symbol, or a relation of two sizes.

    Attributes:
        op: ``number``, ``symbol`` or an arithmetic operator.
        value: The number.
        name: The symbol.
        args: The operands of an operator.
    """

    op: Op
    value: int = 0
    name: str = ""
    args: tuple[Expr, ...] = ()

    def symbols(self) -> tuple[str, ...]:
        """Every name in this size, in order of appearance, without repeats."""
        if self.op == "symbol":
            return (self.name,)
        return tuple(dict.fromkeys(name for arg in self.args for name in arg.symbols()))

    def value_at(self, sizes: Mapping[str, int]) -> int:
        """The size, given every symbol's.

        Raises:
            KeyError: A symbol has no size.
            ZeroDivisionError: ``//`` by a size that is zero.
        """
        if self.op == "number":
            return self.value
        if self.op == "symbol":
            return sizes[self.name]
        left, right = (arg.value_at(sizes) for arg in self.args)
        if self.op == "+":
            return left + right
        if self.op == "-":
            return left - right
        if self.op == "*":
            return left * right
        return left // right

    def solve(self, size: int, sizes: Mapping[str, int]) -> dict[str, int] | None:
        """Find the one unknown symbol of this size, or None where that has no whole answer.

        Args:
            size: What the expression is worth.
            sizes: The symbols that are known; exactly one symbol of this expression is not.
        """
        if self.op == "symbol":
            return {self.name: size}
        if self.op == "number":
            return None
        left, right = self.args
        unknown_left = any(name not in sizes for name in left.symbols())
        unknown_right = any(name not in sizes for name in right.symbols())
        if unknown_left and unknown_right:  # the same unknown on both sides, as in H*H
            (name,) = {n for n in self.symbols() if n not in sizes}
            found = [n for n in range(size + 1) if self.value_at({**sizes, name: n}) == size]
            return {name: found[0]} if len(found) == 1 else None
        known = (right if unknown_left else left).value_at(sizes)
        unknown = left if unknown_left else right
        if self.op == "+":
            return unknown.solve(size - known, sizes)
        if self.op == "-":
            return unknown.solve(size + known if unknown_left else known - size, sizes)
        if self.op == "*":
            return unknown.solve(size // known, sizes) if known and size % known == 0 else None
        return None  # a floor division loses the remainder: several sizes fit

    def __str__(self) -> str:
        if self.op == "number":
            return str(self.value)
        if self.op == "symbol":
            return self.name
        inner = (
            f"({arg})" if arg.op in "+-" and self.op in "*//" else str(arg) for arg in self.args
        )
        return self.op.join(inner)


@dataclass(frozen=True, slots=True)
class Axis:
    """One item of a shape.

    Attributes:
        kind: ``plain`` is one axis; ``variadic`` any number; ``optional`` one or none;
            ``broadcast`` one axis of the size or of 1.
        size: The size of a plain, optional or broadcast axis.
        name: The name of a variadic one, ``...`` for the anonymous.
        column: Where it stands in the text, from 0.
    """

    kind: Literal["plain", "variadic", "optional", "broadcast"]
    size: Expr = Expr("number", 1)
    name: str = ""
    column: int = 0

    @property
    def switch(self) -> str | None:
        """The symbol that says how many axes this item stands for, or None if always one."""
        if self.kind == "variadic":
            return f"*{self.name}" if self.name != "..." else "..."
        if self.kind == "optional":
            return f"{self.size}?"
        if self.kind == "broadcast":
            return f"#{self.size}"
        return None


@dataclass(frozen=True, slots=True)
class Shape:
    """A parsed shape.

    Attributes:
        text: What the user wrote.
        axes: Its items in order.
    """

    text: str
    axes: tuple[Axis, ...]

    def symbols(self) -> tuple[str, ...]:
        """Every name that has a size, and every switch of variadic, optional and broadcast axes."""
        names: dict[str, None] = {}
        for axis in self.axes:
            if axis.switch is not None:
                names[axis.switch] = None
            if axis.kind != "variadic":
                names.update(dict.fromkeys(axis.size.symbols()))
        return tuple(names)

    def dims(self, sizes: Mapping[str, int]) -> tuple[Expr, ...]:
        """The size of every axis as an expression, with variadic and optional axes spelled out.

        A variadic axis ``*batch`` of rank 2 gives the symbols ``batch[0]`` and ``batch[1]``.
        """
        found: list[Expr] = []
        for axis in self.axes:
            if axis.kind == "plain":
                found.append(axis.size)
            elif axis.kind == "variadic":
                found += [
                    Expr("symbol", name=f"{axis.name}[{i}]")
                    for i in range(sizes[axis.switch or ""])
                ]
            elif axis.kind == "optional":
                if sizes.get(axis.switch or "", 1):
                    found.append(axis.size)
            else:
                found.append(Expr("number", 1) if sizes.get(axis.switch or "", 0) else axis.size)
        return tuple(found)

    def resolve(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """The concrete shape at these sizes.

        Raises:
            SpecError: A symbol has no size, or a relation is negative there.
        """
        try:
            shape = tuple(dim.value_at(sizes) for dim in self.dims(sizes))
        except KeyError as error:
            raise SpecError(f"shape {self.text!r}: no size for {error.args[0]}") from None
        except ZeroDivisionError:
            raise SpecError(
                f"shape {self.text!r}: division by a size of zero at {dict(sizes)}"
            ) from None
        if any(size < 0 for size in shape):
            raise SpecError(f"shape {self.text!r} is negative at {dict(sizes)}: {list(shape)}")
        return shape

    def match(
        self,
        shape: Sequence[int],
        known: Mapping[str, int] | None = None,
        *,
        name: str = "tensor",
        choices: Mapping[str, Iterable[int]] | None = None,
    ) -> dict[str, int]:
        """Read the sizes off a concrete shape.

        Args:
            shape: The tensor's shape.
            known: Sizes that are already settled; they must agree.
            name: What to call the tensor in an error.
            choices: Allowed values of symbols, used where a relation has several unknowns.

        Returns:
            ``known`` and every symbol of this shape that could be told.

        Raises:
            ShapeMismatch: The shape is not of this form.
        """
        first: ShapeMismatch | None = None
        for counts in self._readings(len(shape)):
            try:
                return self._match(shape, {**(known or {})}, counts, name, choices or {})
            except ShapeMismatch as error:
                first = first or error
        if first is not None:
            raise first
        raise ShapeMismatch(
            f"{name} has shape {list(shape)}, {len(shape)} axes, where {self.text!r} asks for {self._rank()}"
        )

    def _rank(self) -> str:
        fixed = sum(axis.kind in ("plain", "broadcast") for axis in self.axes)
        return str(fixed) if fixed == len(self.axes) else f"{fixed} or more"

    def _readings(self, rank: int) -> Iterator[tuple[int, ...]]:
        """Every way to spread ``rank`` axes over the items, optional axes present first."""
        spans = [
            range(rank, -1, -1)
            if axis.kind == "variadic"
            else (1, 0)
            if axis.kind == "optional"
            else (1,)
            for axis in self.axes
        ]
        for counts in product(*spans):
            if sum(counts) == rank:
                yield counts

    def _match(
        self,
        shape: Sequence[int],
        known: dict[str, int],
        counts: Sequence[int],
        name: str,
        choices: Mapping[str, Iterable[int]],
    ) -> dict[str, int]:
        todo: list[tuple[int, Expr, int]] = []
        position = 0
        for axis, count in zip(self.axes, counts, strict=True):
            if axis.kind in ("variadic", "optional"):
                switch = axis.switch or ""
                if known.setdefault(switch, count) != count:
                    raise ShapeMismatch(
                        f"{name} has shape {list(shape)}: {count} axes for {switch} in {self.text!r}, "
                        f"{known[switch]} elsewhere"
                    )
            if axis.kind == "broadcast":
                switch, size = axis.switch or "", shape[position]
                expected = known.get(str(axis.size))
                known[switch] = int(size == 1 and expected != 1)
                if not known[switch]:
                    todo.append((position, axis.size, size))
            elif axis.kind == "variadic":
                for index in range(count):
                    part = Expr("symbol", name=f"{axis.name}[{index}]")
                    todo.append((position + index, part, shape[position + index]))
            elif count:
                todo.append((position, axis.size, shape[position]))
            position += count
        while todo:
            rest = []
            for axis_index, dim, size in todo:
                missing = [symbol for symbol in dim.symbols() if symbol not in known]
                if not missing:
                    self._agree(dim, size, known, shape, axis_index, name)
                elif len(missing) == 1:
                    found = dim.solve(size, known)
                    if found is None or min(found.values()) < 0:
                        found = _search(dim, size, known, missing, choices)
                        if found is None:
                            raise ShapeMismatch(
                                f"{name} has shape {list(shape)}: axis {axis_index} is {size}, "
                                f"which {dim} of {self.text!r} cannot be"
                            )
                    known.update(found)
                else:
                    rest.append((axis_index, dim, size))
            if len(rest) == len(todo):
                for _, dim, size in rest:
                    missing = [symbol for symbol in dim.symbols() if symbol not in known]
                    known.update(_search(dim, size, known, missing, choices) or {})
                return known
            todo = rest
        return known

    def _agree(
        self,
        dim: Expr,
        size: int,
        known: Mapping[str, int],
        shape: Sequence[int],
        axis: int,
        name: str,
    ) -> None:
        expected = dim.value_at(known)
        if expected != size:
            symbols = ", ".join(f"{symbol}={known[symbol]}" for symbol in dim.symbols())
            where = f" ({symbols})" if symbols else ""
            raise ShapeMismatch(
                f"{name} has shape {list(shape)}: axis {axis} is {size}, where {self.text!r} says "
                f"{dim}{f' = {expected}' if symbols else ''}{where}"
            )

    def __str__(self) -> str:
        return self.text


def _search(
    dim: Expr,
    size: int,
    known: Mapping[str, int],
    missing: Sequence[str],
    choices: Mapping[str, Iterable[int]],
) -> dict[str, int] | None:
    """The one assignment of ``missing`` within ``choices`` that gives ``size``, or None."""
    spans = [list(choices.get(name, range(1, size + 1))) for name in missing]
    total = 1
    for span in spans:
        total *= len(span)
    if total > MAX_SEARCH:
        return None
    found = None
    for values in product(*spans):
        sizes = dict(zip(missing, values, strict=True))
        try:
            fits = dim.value_at({**known, **sizes}) == size
        except ZeroDivisionError:
            continue
        if fits:
            if found is not None:
                return None
            found = sizes
    return found
