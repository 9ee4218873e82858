"""Which line gives a sample the very object that it holds, and by which line two reads of one sample part."""

from __future__ import annotations

import ast
import itertools
import re
from dataclasses import field
from typing import TYPE_CHECKING, Any, Final

from ... import sources
from ...lean import dataclass
from ...record.lines import traced
from ...record.tracing import line_of, returns
from ..contents import is_array
from ..describing import describe_leaf, leaves
from ..sample_lines import return_line
from ..snapshot import put_back
from ..validity import read

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType, FrameType

    from ...findings import Location
    from ...record.tracing import Return
    from ..plan import Part

_SHARED = (type(None), bool, int, str)
"""Many values are this same object, so the expression, not the object, shows the origin."""


def given_line(
    part: Part, index: int, path: str, seed: int, wrong: Callable[[Any], bool] | None = None
) -> Location | None:
    """Return the line by which the innermost function of the user's returns what a sample holds at a path.

    None where that is ``__getitem__`` itself, for a stream, or where it cannot be told. A value
    such as None counts where the call stands for it in what is returned: ``return {"weight":
    self.weight_of(i)}``, or by a name.

    Args:
        part: The dataset; put back afterwards.
        index: Of the sample.
        path: Of the leaf.
        seed: In force while reading.
        wrong: Which values count; all by default.
    """
    if not part.is_map_style:
        return None
    samples: list[Any] = []
    with put_back(part.dataset, (index,)):
        found = returns(lambda: samples.append(read(part.dataset, index, seed)))
    values = [value for p, value in leaves(samples[0]) if p == path] if samples else []
    if not values or not found:
        return None
    value, outer = values[0], found[-1]
    if wrong is not None and not wrong(value):
        return None
    if isinstance(value, _SHARED):
        one = _by_expression(found, value, path)
    else:
        one = next((each for each in found if each.value is value), None)
    if one is None or one.frame is outer.frame:
        return None
    return line_of(one.frame.f_code, one.line)


_AS_IT_IS = re.compile(
    "long|int|round|float|double|bool|byte|half|to|type|astype|item|clone|copy|contiguous|squeeze|unsqueeze|view|"
    "reshape|flatten|permute|transpose|tensor|as_tensor|from_numpy|array|asarray"
)
"""What a value keeps its name through."""


def returned_name(part: Part, index: int, path: str, seed: int = 0) -> str:
    """Return the variable or attribute that ``__getitem__`` returns at a place of a tuple: ``mask`` for ``sample[1]``.

    Empty where the sample has a key of its own there, or the source does not say.
    """
    place = return_line(part, index, seed) if part.is_map_style else None
    made = sources.statement(place.file, place.line) if place is not None else None
    function = sources.function_around(place.file, place.line) if place is not None else None
    if (
        function is None
        or not isinstance(made, ast.Return)
        or not path.rpartition(".")[2].isdigit()
    ):
        return ""
    value = made.value
    for key in path.split("."):
        value = _element(value, key)
    return _named(value, function)


def _named(value: ast.expr | None, function: ast.AST) -> str:
    """Return the variable of a function, or the attribute of ``self``, that an expression only indexes or casts."""
    while value is not None:
        if isinstance(value, ast.Attribute) and ast.unparse(value.value) == "self":
            return ast.unparse(value)
        if isinstance(value, ast.Name):
            own = (n for n in sources.own_nodes(function) if isinstance(n, ast.Name))
            stored = any(n.id == value.id and isinstance(n.ctx, ast.Store) for n in own)
            return value.id if stored or value.id in sources.parameters(function) else ""
        if isinstance(value, ast.Subscript):
            value = value.value
        elif isinstance(value, ast.Call) and _AS_IT_IS.fullmatch(sources.called(value)):
            owner = value.func.value if isinstance(value.func, ast.Attribute) else None
            first = value.args[0] if value.args else None
            of_module = owner is None or not _named(owner, function)
            value = first if of_module else owner
        else:
            return ""
    return ""


def _by_expression(found: list[Return], value: Any, path: str) -> Return | None:
    """Return the innermost function that returns a value, from the call that stands for it in the sample inwards."""
    key = path.rpartition(".")[2]
    inner = None
    frame = found[-1].frame
    for one in reversed(found):
        if one.frame.f_back is not frame or one.call is None or one.value is not value:
            continue
        file, call = one.call
        stands = _stands_for(file, call, key) if inner is None else _is_returned(file, call)
        if stands:
            inner, frame = one, one.frame
    return inner


def _is_returned(file: str, call: ast.expr) -> bool:
    statement = sources.statement(file, call.lineno)
    return isinstance(statement, ast.Return) and statement.value is call


def _stands_for(file: str, call: ast.expr, key: str) -> bool:
    """Say whether a call's value is, by the text, the element of a sample with a key: itself, or by one name."""
    statement = sources.statement(file, call.lineno)
    if _element(getattr(statement, "value", None), key) is call:
        return isinstance(statement, ast.Return | ast.Assign)
    if not isinstance(statement, ast.Assign) or statement.value is not call:
        return False
    target = statement.targets[0]
    if isinstance(target, ast.Subscript):
        return isinstance(target.slice, ast.Constant) and str(target.slice.value) == key
    name = getattr(target, "id", None)
    function = sources.function_around(file, call.lineno)
    nodes = [] if function is None or name is None else list(ast.walk(function))
    bound = [
        n
        for n in nodes
        if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Store)
    ]
    ends = [n for n in nodes if isinstance(n, ast.Return | ast.Assign)]
    return len(bound) == 1 and any(
        isinstance(e := _element(n.value, key), ast.Name) and e.id == name for n in ends
    )


def _element(value: ast.expr | None, key: str) -> ast.expr | None:
    """Return the element of a tuple, list or dict, as it is written, with a key; the whole for an empty key."""
    if not key:
        return value
    if isinstance(value, ast.Tuple | ast.List) and key.isdigit() and int(key) < len(value.elts):
        return value.elts[int(key)]
    if isinstance(value, ast.Dict):
        for name, element in zip(value.keys, value.values, strict=True):
            if isinstance(name, ast.Constant) and str(name.value) == key:
                return element
    if isinstance(value, ast.Call):
        return next((k.value for k in value.keywords if k.arg == key), None)
    return None


_SMALL: Final = 16  # elements of what decides, rather than is decided on
_DEPTH: Final = 6


@dataclass(frozen=True, slots=True)
class _Step:
    """A line that ran: in which frame, called by which at which lines, the innermost last, and what was so then."""

    frame: int
    code: CodeType
    line: int
    callers: tuple[tuple[int, CodeType, int], ...]
    maps: tuple[str, ...]
    plain: dict[str, str]


@dataclass(slots=True)
class Traced:
    """A sample and the lines that read it; the sample is None where reading it raised."""

    sample: Any = None
    steps: list[_Step] = field(default_factory=list)


def traced_read(part: Part, index: int, seed: int, size: int) -> Traced:
    """Read a sample line by line.

    Args:
        part: Whose sample.
        index: Which one.
        seed: For the reading.
        size: Of the arrays that are compared: how many elements they have.
    """
    found = Traced()
    frames: dict[FrameType, int] = {}
    last: dict[FrameType, int] = {}

    def local(frame: FrameType, event: str, value: Any) -> Any:
        if event in ("line", "return"):
            if frame in last:
                callers = tuple(_callers(frame, frames))[::-1]
                held = [*frame.f_locals.items(), *([("", value)] if event == "return" else [])]
                maps, plain = tuple(_maps(held, size)), dict(_plain(frame))
                step = _Step(frames[frame], frame.f_code, last[frame], callers, maps, plain)
                found.steps.append(step)
            last[frame] = frame.f_lineno
        return local

    def enter(frame: FrameType, event: str, _: Any) -> Any:
        if event != "call" or sources.rank(frame.f_code.co_filename) < 2:
            return None
        frames[frame] = len(frames)
        return local

    try:
        with traced(enter):
            found.sample = read(part.dataset, index, seed)
    except Exception as error:  # a sample that cannot be read under this seed is left out
        error.__traceback__ = None
    return found


def parting(one: Traced, other: Traced) -> tuple[Location | None, str]:
    """Return the line by which two reads part, and the variable by which they do.

    Where a variable that this line reads differs, the line is the one that gave it its value; the name is empty where
    a line draws by itself. None where the reads do not part within lines of the user's.
    """
    for place, (a, b) in enumerate(zip(one.steps, other.steps, strict=False)):
        if (a.code, a.line) != (b.code, b.line):
            for mine, theirs in (
                (a, b),
                (b, a),
            ):  # one is within a call that the other does not make
                if (theirs.frame, theirs.code, theirs.line) in mine.callers:
                    return _drawn(one.steps, other.steps, place, theirs)
            last = place - 1
            return _drawn(one.steps, other.steps, last, one.steps[last]) if place else (None, "")
        if a.maps != b.maps:
            return _drawn(one.steps, other.steps, place, a)
    return None, ""


def _drawn(
    one: list[_Step], other: list[_Step], end: int, parted: _Step
) -> tuple[Location | None, str]:
    """Follow what a line reads, where it differs, to the line that gave it; an argument to the call that gave it."""
    frame, code, line = parted.frame, parted.code, parted.line
    callers, name = parted.callers, ""
    for _ in range(_DEPTH):
        read_here = _named_value(code, line, ast.Load)
        unlike = [
            key
            for key in read_here
            if _known(one, end, frame, key) != _known(other, end, frame, key)
        ]
        for key in unlike:
            given = _giving(one, end, frame, key)
            if given is not None:
                return line_of(given.code, given.line), key
        if not unlike or not callers:
            break
        name = unlike[0]
        frame, code, line = callers[-1]
        callers = callers[:-1]
    return line_of(code, line), name


def _known(steps: list[_Step], end: int, frame: int, key: str) -> str | None:
    """Return what a name held in a frame before the step at a place, or an argument after it as the frame's first."""
    near = (*reversed(steps[:end]), *steps[end : end + 1])
    return next((step.plain.get(key) for step in near if step.frame == frame), None)


def _giving(steps: list[_Step], end: int, frame: int, key: str) -> _Step | None:
    """Return the last step before a place that gave a name its value in a frame; an attribute, in any frame."""
    for step in reversed(steps[:end]):
        if (step.frame == frame or "." in key) and key in _named_value(
            step.code, step.line, ast.Store
        ):
            return step
    return None


def _named_value(code: CodeType, line: int, kind: type[ast.expr_context]) -> list[str]:
    """List the names and attributes of ``self`` that a line reads, or writes; of a compound statement its head's."""
    node: ast.AST | None = sources.statement(code.co_filename, line)
    if isinstance(node, ast.If | ast.While):
        parts: list[ast.AST] = [node.test]
    elif isinstance(node, ast.For):
        parts = [node.iter, node.target]
    elif isinstance(node, ast.With):
        parts = list(node.items)
    else:
        parts = [node] if node is not None else []
    found: dict[str, None] = {}
    for part in parts:
        for each in ast.walk(part):
            if isinstance(each, ast.Name) and isinstance(each.ctx, kind):
                found.setdefault(each.id)
            elif isinstance(each, ast.Attribute) and isinstance(each.ctx, kind):
                found.setdefault(ast.unparse(each))
    return list(found)


def _callers(frame: FrameType, frames: dict[FrameType, int]) -> Iterator[tuple[int, CodeType, int]]:
    caller = frame.f_back
    while caller is not None:
        if caller in frames:
            yield frames[caller], caller.f_code, caller.f_lineno
        caller = caller.f_back


def _maps(held: list[tuple[str, Any]], size: int) -> Iterator[str]:
    for name, value in held:
        for path, item in itertools.islice(leaves(value), _SMALL):
            if is_array(item) and item.reshape(-1).shape[0] == size:
                yield f"{name}.{path}.{describe_leaf('', item).digest}"


def _plain(frame: FrameType) -> Iterator[tuple[str, str]]:
    for name, value in frame.f_locals.items():
        if (said := _said(value)) is not None:
            yield name, said
    own = getattr(frame.f_locals.get("self"), "__dict__", {})
    for name, value in list(own.items()):
        if (said := _said(value)) is not None:
            yield f"self.{name}", said


def _said(value: Any) -> str | None:
    if isinstance(value, bool | int | float | str):
        return repr(value)
    if isinstance(value, list | tuple) and len(value) <= _SMALL:
        parts = [_said(item) for item in value]
        return None if None in parts else str(parts)
    if is_array(value) and value.reshape(-1).shape[0] <= _SMALL:
        return str(value.tolist())
    return None
