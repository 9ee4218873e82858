"""Arrays that a library's function returns and the dataset's code drops, as if it wrote to its argument."""

from __future__ import annotations

import ast
import sys
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from ... import sources
from ...lean import dataclass
from ...record.lines import traced
from ...verdicts import violated
from ..contents import is_array
from ..snapshot import put_back
from ..validity import read
from ..wording import dataset_culprit, line_ref

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType, FrameType

    from ...findings import Finding, Location
    from ..validity import Survey

_READS: Final = 8
"""A flip with a probability of a half is missed in all of them once in 256 times."""
_MOST: Final = 2**20
"""Elements of an argument that is compared before and after."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """A call whose result nothing takes.

    Attributes:
        function: Its name.
        index: The sample that was read.
        line: The user's.
    """

    function: str
    index: int
    line: Location


def dropped(survey: Survey) -> Dropped | None:
    """Read samples and look at what the library functions return that a statement consists of.

    An array that is none of the arguments, where no argument has changed, does nothing.

    Cost: eight reads under a line tracer.
    """
    part = survey.part
    if not part.is_map_style or not survey.samples:
        return None
    indices = [survey.samples[n % len(survey.samples)].index for n in range(_READS)]
    watch = _Calls()
    with put_back(part.dataset, tuple(dict.fromkeys(indices))):
        for number, index in enumerate(indices):
            with traced(watch.enter):
                read(part.dataset, index, survey.seed + number)
            if watch.found is not None:
                function, line = watch.found
                return Dropped(function=function, index=index, line=line)
    return None


def told(survey: Survey, found: Dropped) -> Finding:
    """Explain a call of which the result is lost."""
    part, name, line = survey.part, found.function, found.line
    return violated(
        "result-unread",
        f"{part.prefix}{part.name} drops the result of {name}: the sample stays as it was",
        culprits=[dataset_culprit(part, name, "its result is dropped", line)],
        location=line,
        observed=f"reading sample {found.index}, line {line.line} calls {name}, which returns an array",
        cause=f"{name} returns a new array and does not change the one that it is given",
        because="what it returned is none of its arguments, they are unchanged after it, and the statement "
        f"at {line_ref(line)} is nothing but the call",
        fix=f"assign what it returns on line {line.line}",
    )


class _Calls:
    """Follows the functions of libraries that a statement of the user's own consists of."""

    def __init__(self) -> None:
        self.found: tuple[str, Location] | None = None
        self._alone: dict[tuple[CodeType, int], bool] = {}

    def enter(self, frame: FrameType, _event: str, _value: Any) -> Any:
        """See a call; follow it to its end where nothing takes what it returns."""
        above = frame.f_back
        if self.found is not None or above is None:
            return None
        file = above.f_code.co_filename
        if sources.rank(frame.f_code.co_filename) == 2 or sources.rank(file) != 2:
            return None
        place = above.f_code, above.f_lasti
        if place not in self._alone:
            self._alone[place] = _is_alone(file, above)
        if not self._alone[place]:
            return None
        given = [(value, _copy(value)) for value in _arguments(frame)]
        line = sources.of_frame(above)

        def leave(_frame: FrameType, event: str, value: Any) -> Any:
            if event == "return" and line is not None and _is_lost(value, given):
                self.found = (frame.f_code.co_name, line)
            return leave

        return leave


def _is_alone(file: str, frame: FrameType) -> bool:
    """Say whether a frame runs a call that is a statement of its own, no argument of another one."""
    statement = sources.statement(file, frame.f_lineno)
    if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
        return False
    value = statement.value
    span = next(islice(frame.f_code.co_positions(), frame.f_lasti // 2, None), None)
    return span == (value.lineno, value.end_lineno, value.col_offset, value.end_col_offset)


def _arguments(frame: FrameType) -> Iterator[Any]:
    for value in frame.f_locals.values():
        for part in value if isinstance(value, tuple | list) else (value,):
            if _is_picture(part) or is_array(part):
                yield part


def _is_picture(value: Any) -> bool:
    pillow = sys.modules.get("PIL.Image")
    return pillow is not None and isinstance(value, pillow.Image)


def _copy(value: Any) -> Any:
    if _is_picture(value):
        return value.tobytes()
    size = value.numel() if hasattr(value, "numel") else value.size
    return value.tolist() if size <= _MOST else None


def _is_lost(result: Any, given: list[tuple[Any, Any]]) -> bool:
    """Say whether a result is an array or a picture of its own, and the arguments are what they were."""
    if not given or not (_is_picture(result) or is_array(result)):
        return False
    if any(result is value or then is None for value, then in given):
        return False
    return all(_copy(value) == then for value, then in given)
