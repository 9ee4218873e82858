"""An average whose source and copy changed places: the line that moves the trained weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ... import sources
from ...findings import Culprit, Finding, Location
from ...loop.replay import replay
from ...record.tracing import line_of
from ...subject.optimizers import optimizers_of
from ...text.wording import names_text
from ...verdicts import violated

if TYPE_CHECKING:
    from types import FrameType

    from torch import nn

    from ...record.tracing import Watcher
    from ...subject import Subject


def pulled_back(subject: Subject, pairs: dict[str, str], share: float) -> Finding:
    """Trained weights that each step moves to a copy that stays as it is."""
    copy, source = next(iter(pairs.items()))
    owner = copy.partition(".")[0]
    inner, call = _lines(subject, source, owner)
    place = call or inner
    return violated(
        "average-swapped",
        f"{owner} never moves, and each step moves the trained weights back to it",
        culprits=[
            Culprit("parameter", copy, "stays as it is", place),
            Culprit("parameter", source, "is moved to it after the optimizer's step", inner),
        ],
        location=place,
        observed=f"after the optimizer's step, {names_text(list(pairs.values()))} went {share:.3g} of the way to "
        f"{names_text(list(pairs))}",
        cause="the update of the average writes to its source: the two are swapped",
        because=f"the copies are bit-equal after the steps, and the moves differ from {share:.3g} * (copy - weight) "
        "by rounding alone",
        fix=f"swap the two on line {place.line}" if place is not None else "swap the two",
        evidence={"copies": dict(pairs), "share": share},
    )


def _lines(subject: Subject, name: str, attribute: str) -> tuple[Location | None, Location | None]:
    """Return the line that moves a parameter after the optimizer's step, and the line that called its function."""
    calls: list[Location] = []

    def watcher(model: nn.Module, made: Any) -> Watcher:
        parameter = dict(model.named_parameters())[name]
        known: list[torch.Tensor] = []

        def stepped(*_: Any) -> None:
            known[:] = [parameter.detach().clone()]

        for optimizer in optimizers_of(made):
            optimizer.register_step_post_hook(stepped)

        def moved(frame: FrameType, event: str, line: int) -> bool:
            if event == "call" or not known or torch.equal(known[0], parameter):
                return False
            outer: FrameType | None = frame
            while outer is not None:
                if sources.rank(outer.f_code.co_filename) == 2:
                    named = attribute in (*outer.f_code.co_names, *outer.f_code.co_varnames)
                    if named:  # the function that knows which of the two is the copy
                        if outer is not frame:
                            calls.append(line_of(outer.f_code, outer.f_lineno))
                        return True
                outer = outer.f_back
            return True

        return moved

    inner = replay(subject, watcher)
    return inner, calls[0] if calls else None
