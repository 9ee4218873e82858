"""Weights that a step moves uphill for a second gradient, and does not bring back to where they were."""

from __future__ import annotations

import contextlib
from dataclasses import field
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from ...findings import Culprit
from ...lean import dataclass
from ...objects import trees
from ...record.tracing import find_line, line_of
from ...state import seed_everything
from ...subject.errors import SubjectError
from ...verdicts import suspicious, violated
from ..patches import listening
from ..steps import begun
from .wording import at, few

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from ...batches import Batch
    from ...findings import Finding, Location
    from ...subject import Subject
    from ..trace import Trace

_UPHILL: Final = 0.5
"""Cosine between the move and the gradient before it; that of a random move is near 0."""
_LEFT: Final = 1e-2
"""Share of the move that is more than rounding leaves of it."""
_STAYS: Final = 0.9
"""Share of the move that is still there where nothing brings it back."""


def taken_back_findings(subject: Subject, trace: Trace) -> Iterator[Finding]:
    """Yield weights that were moved uphill between two passes and are not brought back to where they were.

    What a step writes to weights besides their optimizer's update, such as clipping, decay or noise, does
    not depend on the samples; a move along their gradient does, and is taken back before the call ends. The
    optimizer's own updates are undone here, so that what is left is what the step wrote itself.
    """
    if subject.contract.train_step is None or subject.source.batch_symbol is None:
        return
    found = [(e.step, e.rewritten) for e in trace.backwards() if e.rewritten and e.step]
    if not found:
        return
    step = found[0][0]  # not the first one: a first forward may set weights by its samples
    passes = [i for i, e in enumerate(trace.backwards(step)) if e.rewritten]
    applied = {
        name for one in trace.optimizer_steps(step) for names in one.sources.values() for name in names
    }  # fmt: skip
    names = found[0][1] & applied
    batch = subject.batch()
    size = batch.sizes.get(subject.source.batch_symbol, 0)
    if not names or size < 2:
        return
    other = subject.source.rows(batch, torch.arange(size) // 2)
    ways = [_way(subject, names, step, passes[0], one) for one in (batch, other)]
    if ways[0] is None or ways[1] is None:
        return
    way, differently = ways[0], ways[1]
    away = float(way.away.norm())
    differs = float((way.left - differently.left).norm())
    # false where weights diverged to NaN: nothing is known of their move
    if away and differs > max(_LEFT * away, way.rounding) and way.uphill >= _UPHILL:
        yield _told(subject, step, way, names)


@dataclass(slots=True)
class _Way:
    """Where the weights were at the start of a step, at the second of two passes, and at its end.

    Attributes:
        away: How they were moved before the pass.
        left: How they differ from the start at the end, without the optimizer's updates.
        uphill: Cosine of ``away`` with the gradient of the pass before.
        rounding: Norm that is no more than rounding.
        parts: By name, what is left.
    """

    away: torch.Tensor
    left: torch.Tensor
    uphill: float
    rounding: float
    parts: dict[str, float]


@dataclass(slots=True)
class _Undoing:
    """Undoes what optimizers write within their own steps; what an optimizer does around another's stays."""

    open: list[list[Any]] = field(default_factory=list)

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        before = register_optimizer_step_pre_hook(lambda one, *_: self._before(one))
        with before, register_optimizer_step_post_hook(lambda *_: self._after()):
            yield

    def _before(self, optimizer: torch.optim.Optimizer) -> None:
        if self.open:
            self.open[-1].clear()
        held = [p for group in optimizer.param_groups for p in group["params"]]
        self.open.append([(p, p.detach().clone()) for p in held])

    def _after(self) -> None:
        with torch.no_grad():
            for parameter, then in self.open.pop():
                parameter.copy_(then)


def _way(
    subject: Subject, names: frozenset[str], step: int, place: int, batch: Batch
) -> _Way | None:
    """Take steps, the last of them on this batch, and follow some weights through it."""
    points: list[torch.Tensor] = []
    gradients: list[torch.Tensor] = []
    with begun(subject) as (model, made):
        named = {n: p for n, p in model.named_parameters() if n in names and trees.computable(p)}

        def joined(tensors: list[torch.Tensor]) -> torch.Tensor:
            return torch.cat([t.detach().double().flatten() for t in tensors])

        def passed(original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            points.append(joined(list(named.values())))
            result = original(*args, **kwargs)
            gradients.append(
                joined([torch.zeros_like(p) if p.grad is None else p.grad for p in named.values()])
            )
            return result

        hooks = listening({"backward": passed}, before_step=lambda *_: None)
        try:
            with _Undoing().listening(), hooks:
                for number in range(step + 1):
                    points.clear()
                    gradients.clear()
                    start = {n: p.detach().clone() for n, p in named.items()}
                    seed_everything(subject.seed + number)
                    given = batch if number == step else subject.batch()
                    subject.train_step(model, made, given.clone())
        except SubjectError:
            return None
        if not 0 < place < len(points) or not named:
            return None
        begin, end = joined(list(start.values())), joined(list(named.values()))
        away = points[place] - begin
        eps = max(torch.finfo(p.dtype).eps for p in named.values())
        return _Way(
            away=away,
            left=end - begin,
            uphill=float(torch.nn.functional.cosine_similarity(away, gradients[place - 1], dim=0)),
            rounding=32 * eps * float(begin.norm()),
            parts={n: float((p.detach() - start[n]).double().norm()) for n, p in named.items()},
        )


def _last_write(subject: Subject, name: str, step: int) -> Location | None:
    """Return the last line of a step that writes to a parameter, apart from its optimizer's step."""
    last: list[Location] = []
    with begun(subject) as (model, made), _Undoing().listening():
        parameter = model.get_parameter(name)

        def run(number: int) -> None:
            seed_everything(subject.seed + number)
            subject.train_step(model, made, subject.batch().clone())

        for number in range(step):
            run(number)
        value = [parameter.detach().clone()]

        def watcher(frame: FrameType, event: str, line: int) -> bool:
            if event != "call" and not torch.equal(value[0], parameter.detach()):
                value[0] = parameter.detach().clone()
                last[:] = [line_of(frame.f_code, line)]
            return False

        find_line(lambda: run(step), watcher)
    return last[0] if last else None


def _told(subject: Subject, step: int, way: _Way, names: frozenset[str]) -> Finding:
    square = float(way.away.square().sum())
    stays = float((way.away * way.left).sum()) / square
    place = _last_write(subject, max(way.parts, key=lambda n: way.parts[n]), step)
    most = sorted(way.parts, key=lambda n: -way.parts[n])
    share = float(way.left.norm()) / square**0.5
    returns = stays < _STAYS
    make = violated if returns else suspicious
    return make(
        "weights-not-taken-back",
        f"the step moves {few(names)} uphill for a second gradient and "
        f"{'does not bring them all the way back' if returns else 'leaves them there'}",
        culprits=(
            *(
                [Culprit("call", place.function.rpartition(".")[2] or "step", "the last write", place)]
                if place is not None
                else []
            ),
            *(Culprit("parameter", name, f"off by {way.parts[name]:.3g}") for name in most[:3]),
        ),
        location=place,
        observed=f"without the optimizer's update, the weights end {float(way.left.norm()):.4g} away from where the "
            f"step began: {share:.1%} of the {square**0.5:.4g} that they were moved between the backward passes",
        cause=f"the last write, at {at(place)}, does not undo the move"
            if returns and place is not None
            else "nothing undoes the move",
        because=f"the weights moved along the first gradient (cosine {way.uphill:.3g}), and where they end depends on "
            "the samples of the batch, even when the optimizer's update is undone",
        fix="save the move, or a copy of the weights, before the second forward; subtract that same move, or copy "
            "the weights back, before optimizer.step()",
        evidence={"moved": square**0.5, "left": float(way.left.norm()), "cosine": way.uphill},
    )  # fmt: skip
