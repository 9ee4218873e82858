"""Arithmetic on stored bytes that wraps around: a sample that goes up and down as its bytes rise, and the line."""

from __future__ import annotations

import ast
import math
import operator
from collections import Counter
from contextlib import nullcontext
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, TypeVar

import torch

from ... import sources
from ...probes.numbers.wrapping import Wrapped
from ...record.lines import traced
from ...record.tracing import line_of
from ...sources.syntax import around
from ...state import randomness_kept

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import CodeType, FrameType

    _Arithmetic = ast.BinOp | ast.AugAssign

_T = TypeVar("_T")

_ROUNDING: Final = 1e-4
_OPERATORS: Final[dict[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Pow: operator.pow,
}  # fmt: skip
_LIBRARIES: Final = frozenset({"random", "math", "numpy", "torch", "_random", "mtrand"})
_BUILTINS: Final = (int, float, abs, min, max, len, round, sum, pow)
"""Functions of Python that change nothing; of others, such as the methods of a list, that is not known."""
_WRITING: Final = frozenset(
    {"sort", "fill", "resize", "partition", "put", "shuffle", "copyto", "place", "putmask", "save", "tofile", "dump"}
)  # fmt: skip
"""Names of what writes to what it is given."""
_LOOKS: Final = 16
"""How often the arithmetic of one line is computed ahead in one read: a loop over pixels is seen at its start."""
_PLAIN: Final = (
    ast.Name, ast.Attribute, ast.Subscript, ast.Slice, ast.Constant, ast.Tuple, ast.UnaryOp, ast.unaryop, ast.BinOp,
    ast.operator, ast.Call, ast.keyword, ast.expr_context,
)  # fmt: skip
_SOMETIMES: Final = (ast.IfExp, ast.BoolOp)


def saw_tooth(samples: Sequence[Mapping[str, torch.Tensor]]) -> bool:
    """Say whether an element of a field rises and falls over samples whose bytes rise.

    Normalisation, crops, flips, brightness, contrast, gamma, inversion and fewer levels keep one direction.
    """
    for path, first in samples[0].items():
        rows = [sample[path] for sample in samples if path in sample]
        if len(rows) < len(samples) or any(row.shape != first.shape for row in rows):
            continue
        every = torch.stack(rows)
        steps, least = every.diff(dim=0), _ROUNDING * float(every.abs().max())
        if bool(((steps > least).any(0) & (steps < -least).any(0)).any()):
            return True
    return False


def wraps(call: Callable[[], _T]) -> tuple[_T, list[Wrapped]]:
    """Run a call; return its result, and the arithmetic of the user's lines that gives other numbers in int64.

    Before each line its sums, differences, products and powers are computed on their own, in the dtypes that their
    operands have and in int64.
    """
    found: list[Wrapped] = []
    known: dict[tuple[CodeType, int], list[_Arithmetic]] = {}
    looks: Counter[tuple[CodeType, int]] = Counter()

    def line(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            place = frame.f_code, frame.f_lineno
            if place not in known:
                known[place] = _arithmetic(frame.f_code.co_filename, frame.f_lineno)
            looks[place] += 1
            ahead = known[place] if looks[place] <= _LOOKS else ()
            found.extend(wrap for node in ahead for wrap in _wrapped(node, frame))
        return line

    def enter(frame: FrameType, event: str, _: Any) -> Any:
        return line if sources.rank(frame.f_code.co_filename) == 2 else None

    with traced(enter):
        result = call()
    return result, found


def _arithmetic(file: str, line: int) -> list[_Arithmetic]:
    """Return the arithmetic of a line that runs whenever the line does."""
    every = (*around(file, line, ast.stmt), *around(file, line, ast.expr))
    maybe = {id(n) for node in every if isinstance(node, _SOMETIMES) for n in ast.walk(node)}
    found = (node for node in every if isinstance(node, ast.BinOp | ast.AugAssign))
    return [node for node in found if type(node.op) in _OPERATORS and id(node) not in maybe]


def _wrapped(node: _Arithmetic, frame: FrameType) -> Iterator[Wrapped]:
    apply = _OPERATORS[type(node.op)]
    names = (node.left, node.right) if isinstance(node, ast.BinOp) else (node.target, node.value)
    try:
        calls = any(isinstance(part, ast.Call) for name in names for part in ast.walk(name))
        # the line itself draws the same numbers
        with randomness_kept() if calls else nullcontext():
            first, second = (_value(part, frame) for part in names)
        if not _is_narrow(got := apply(first, second)):
            return
        wrong = got != (meant := apply(_wide(first), _wide(second)))
        if not wrong.any():
            return
    except Exception:  # what the line computes may raise by itself
        return
    yield Wrapped(
        op=ast.unparse(node),
        location=line_of(frame.f_code, frame.f_lineno),
        dtype=str(got.dtype).removeprefix("torch."),
        count=int(wrong.sum()),
        size=math.prod(wrong.shape),
        meant=int(meant[wrong][0]),
        got=int(got[wrong][0]),
    )


def _value(node: ast.expr, frame: FrameType) -> Any:
    """Return the value of an expression in a frame.

    Raises:
        ValueError: It is more than arithmetic and calls of libraries.
    """

    def value(part: ast.expr) -> Any:
        return eval(ast.unparse(part), frame.f_globals, frame.f_locals)

    for part in ast.walk(node):
        if not isinstance(part, _PLAIN):
            raise ValueError
        if isinstance(part, ast.Call) and not _of_library(value(part.func)):
            raise ValueError
    return value(node)


def _of_library(function: Any) -> bool:
    """Say whether a function is a library's, and changes nothing but the state of a random generator."""
    if function in _BUILTINS:
        return True
    owner, name = getattr(function, "__self__", None), str(getattr(function, "__name__", "_"))
    if name.endswith("_") or name in _WRITING:
        return False
    plain = owner is None or isinstance(owner, type | ModuleType)
    of = function if plain else type(owner)
    return str(getattr(of, "__module__", "") or "").partition(".")[0] in _LIBRARIES


def _is_narrow(value: Any) -> bool:
    dtype = str(getattr(value, "dtype", "")).removeprefix("torch.")
    return dtype in ("uint8", "int8", "uint16", "int16") and value.ndim > 0


def _wide(value: Any) -> Any:
    if not _is_narrow(value):
        return value
    return value.long() if isinstance(value, torch.Tensor) else value.astype("int64")
