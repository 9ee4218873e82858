"""Which operation of a check torch, or a class of the user's, does not carry out for a tensor that is not plain."""

from __future__ import annotations

import sys
import traceback
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_map

from ..blame import is_own, is_torchs
from ..objects import trees
from ..objects.kinds import COMPARED_AS, kind_of, shape_of
from ..probes.recorded.watch import name_of, tensors_in
from ..record.modes import Observer
from ..subject.errors import SubjectError
from ..text.printable import message_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import CodeType

    from ..subject import Subject


def unsupported(
    error: BaseException, again: Callable[[], object], subjects: Iterable[Subject]
) -> str | None:
    """Name the operation that is not supported for a tensor of the user's, if that is what a check failed by.

    The check is run once more. This package must call the operation, at the line from which the error came,
    with a tensor of a kind that the model holds, takes, makes or returns; and the call must do with plain
    tensors of the same sizes. Anything else is a defect of this package.

    Args:
        error: What the check raised.
        again: Runs it once more.
        subjects: With one of them it did.
    """
    seen = _Raising()
    try:
        with seen:
            again()
    except Exception as raised:
        second = raised.error if isinstance(raised, SubjectError) else raised
        # of an operator whose function refuses both operands, Python raises an error of its own
        operator = message_of(second).startswith("unsupported operand type")
        last = seen.error if operator and isinstance(second, TypeError) else second
        if last is not seen.error or type(second) is not type(error):
            return None
    if seen.error is None or not _is_from(error, seen.caller):
        return None
    given = {kind_of(tensor) for tensor in tensors_in((seen.args, seen.kwargs))} - {""}
    kind = next((k for s in subjects for k in sorted(given & _kinds(s))), None) if given else None
    if kind is None or not _runs_plainly(seen):
        return None
    said = message_of(error).strip().partition("\n")[0][:100]
    return f"{name_of(seen.func)} of {kind} is not supported: {type(error).__name__}: {said}"


class _Raising(Observer):
    """Keeps the call of a torch function that raised last."""

    error: BaseException | None = None

    def around(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run one call."""
        try:
            return func(*args, **kwargs)
        except Exception as error:
            caller = sys._getframe(2)  # above the mode
            while is_torchs(caller) and caller.f_back is not None:
                caller = caller.f_back
            self.caller = (caller.f_code, caller.f_lineno)
            self.error, self.func, self.args, self.kwargs = error, func, args, kwargs
            raise


class _Kinds(Observer):
    """Collects the kinds of tensors that are not plain among what calls of torch functions return."""

    def __init__(self) -> None:
        self.found: set[str] = set()

    def look(self, value: Any) -> None:
        """Look at tensors in any structure."""
        self.found |= {kind_of(tensor) for tensor in trees.tensors(value).values()} - {""}

    def around(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run one call."""
        result = func(*args, **kwargs)
        self.look(result)
        return result


def _is_from(error: BaseException, caller: tuple[CodeType, int]) -> bool:
    """Say whether an error came from a line of this package."""
    frames = traceback.walk_tb(error.__traceback__)
    return any(is_own(frame) and (frame.f_code, line) == caller for frame, line in frames)


def _kinds(subject: Subject) -> set[str]:
    """Return the kinds of tensors that a model holds, and those that its forward and backward take and make."""
    seen = _Kinds()
    try:
        held = [*subject.model.parameters(), *subject.model.buffers()]
        seen.look([held, list(subject.batch().tensors().values())])
        seen.look(subject.forward())
        with seen, subject.backward():
            seen.look([p.grad for p in held])
    except Exception:  # what was seen before counts
        pass
    return seen.found


def _runs_plainly(seen: _Raising) -> bool:
    """Say whether a call runs with plain tensors of the sizes that it was given."""

    def plain(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if not kind_of(value):
            return value.clone()
        dtype = torch.float32 if value.is_quantized else COMPARED_AS.get(value.dtype, value.dtype)
        return torch.ones(shape_of(value), dtype=dtype)

    try:
        with torch.no_grad():
            args, kwargs = tree_map(plain, (seen.args, seen.kwargs))
            seen.func(*args, **kwargs)
    except Exception:  # a call that is wrong whatever the tensors are
        return False
    return True
