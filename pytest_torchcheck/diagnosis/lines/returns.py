"""The line at which a function of the user's came back in a run, of several ``return``."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch

from ... import sources
from ...record.lines import traced
from ...state import seed_everything
from ...subject.errors import SubjectError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType

    from ...findings import Location
    from ...subject import Subject


def loss_returned(subject: Subject) -> Location | None:
    """Return the line at which the user's loss comes back; None where that cannot be seen."""
    loss = subject.contract.loss
    if loss is None or isinstance(loss, str):
        return None
    return _returned(subject, type(loss).forward if isinstance(loss, torch.nn.Module) else loss)


def forward_returned(subject: Subject) -> Location | None:
    """Return the line at which the model's own forward comes back; None where that cannot be seen."""
    return _returned(subject, type(subject.model).forward)


def _returned(subject: Subject, function: Callable[..., Any]) -> Location | None:
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None or not sources.rank(code.co_filename):
        return None
    key = f"returned {id(code)}"
    if key not in subject.cache:
        subject.cache[key] = _last_line(subject, code)
    found: Location | None = subject.cache[key]
    return found


def _last_line(subject: Subject, code: CodeType) -> Location | None:
    found: list[int] = []

    def local(frame: FrameType, event: str, _: Any) -> Any:
        if event == "return":
            found.append(frame.f_lineno)
        return local

    def enter(frame: FrameType, event: str, _: Any) -> Any:
        return local if event == "call" and frame.f_code is code else None

    batch = subject.batch().clone()
    try:
        with subject.pristine() as model, torch.no_grad():
            model.train()
            seed_everything(subject.seed)
            with traced(enter):
                output = subject.call(model, batch)
                if subject.contract.loss is not None:
                    subject.compute_loss(output, batch)
    except SubjectError:
        return None  # what it raises is told elsewhere
    if not found:
        return None
    return sources.of_line(code.co_filename, found[-1], getattr(code, "co_qualname", code.co_name))
