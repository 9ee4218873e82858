"""Which tensor of a failing call was made under inference mode, and the line that turned that mode on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ... import sources
from ...findings import Culprit
from ...lean import dataclass
from .history import tensors_in

if TYPE_CHECKING:
    from ...findings import Location
    from .history import Fact
    from .scene import Scene


@dataclass(frozen=True, slots=True, kw_only=True)
class Inference:
    """Tensors of a failing call that were made under inference mode.

    Attributes:
        facts: The tensors.
        line: The ``with`` or decorator, where the replay saw it or the model's source has one only.
    """

    facts: tuple[Fact, ...] = ()
    line: Location | None = None

    @property
    def culprits(self) -> tuple[Culprit, ...]:
        """The line that turned the mode on."""
        if self.line is None:
            return ()
        detail = "creates a tensor that autograd cannot use"
        return (Culprit("call", "inference_mode", detail, self.line),)


def made_in_inference(scene: Scene) -> Inference:
    """Return the inference tensors that the failing call was given, and the line that made them such."""
    again = scene.replay()
    failing = again.failing if again is not None else None
    if again is None or failing is None:
        return Inference(line=_written(scene))
    given = [t for t in tensors_in((failing.args, failing.kwargs)) if t.is_inference()]
    facts = tuple(f for t in given if (f := again.fact(t)) is not None)
    for fact in facts:
        if (line := _region(fact)) is not None:
            return Inference(facts=facts, line=line)
    return Inference(facts=facts, line=_written(scene))


def _region(fact: Fact, most: int = 60) -> Location | None:
    """Return the line that turned the mode on for the latest op behind a tensor that ran in it."""
    pending, seen = [fact], 0
    while pending and seen < most:
        op, seen = pending.pop(0).made_by, seen + 1
        if op is not None and op.inference is not None:
            return op.inference
        pending += op.inputs if op is not None else ()
    return None


def _written(scene: Scene) -> Location | None:
    """Return the line of the model's classes that mentions the mode, where there is one only."""
    if scene.model is None:
        return None
    classes = dict.fromkeys(type(m) for m in scene.model.modules() if sources.is_own_class(type(m)))
    found = {p for cls in classes for p in sources.matches(cls, r"^[^#]*\binference_mode\(")}
    return found.pop() if len(found) == 1 else None
