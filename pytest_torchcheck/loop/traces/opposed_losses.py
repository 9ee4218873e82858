"""Losses or passes of one step that work against each other: one moves what another trains, or the weights between."""

from __future__ import annotations

import contextlib
import itertools
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from ...findings import Culprit
from ...lean import dataclass
from ...objects import trees
from ...subject.errors import SubjectError
from ...verdicts import suspicious, violated
from ..patches import listening
from ..recorder import record
from ..steps import StepWatch, begun, take_steps
from ..trace import Backward, Forward
from .wording import at, call, few

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import nn

    from ...findings import Finding
    from ...subject import Subject
    from ..trace import OptimizerStep, Trace

_SHIFTS = (-1e4, -10.0, 0.0, 10.0, 1e4)
"""Beyond all targets, so that a loss with a best output rises on both sides of it."""


def opposed_findings(subject: Subject, trace: Trace) -> Iterator[Finding]:
    """Yield a step that applies to one part the gradient of a loss which reaches another part through it.

    The first part is trained by a loss of its own; the other loss is to train what comes before it, as an
    actor's loss behind a critic, a generator's behind a discriminator. It is told where this loss falls without
    end when the outputs of the first part are all raised, or all lowered: no weights of it are best then.
    Losses that agree, such as two reconstructions by one decoder, have a best output.
    """
    # what another call applies, it applies in the first one too
    steps = trace.optimizer_steps(step=0)
    passes = [
        [(p, e) for p in s.fresh if isinstance(e := trace.events[p], Backward)] for s in steps
    ]
    for (step, later), (before, earlier) in itertools.product(
        zip(steps, passes, strict=True), repeat=2
    ):
        for (own, mine), (through, other) in itertools.product(earlier, later):
            both = before.sources[own] & step.sources[through]
            if mine.touched < other.touched and both and both == mine.touched & other.touched:
                finding = _opposed(subject, trace, (before, step), (own, through))
                if finding is not None:
                    yield finding
                    return


def _opposed(
    subject: Subject,
    trace: Trace,
    steps: tuple[OptimizerStep, OptimizerStep],
    places: tuple[int, int],
) -> Finding | None:
    """Ask whether the second pass goes through what the first one trains, and wants its outputs without bound.

    ``steps`` are those that apply the two, ``places`` where they stand in the trace.
    """
    own, through = (trace.events[p] for p in places)
    assert isinstance(own, Backward)
    assert isinstance(through, Backward)
    index = [trace.backwards(e.step).index(e) for e in (own, through)]
    names = _whole_modules(subject.model, own.touched)
    rest = through.touched - own.touched
    cut = _run(subject, names, lambda output: output, detach=True)
    if cut is None or len(cut) <= index[1]:
        return None
    runs = (_run(subject, names, partial(torch.add, other=by)) for by in _SHIFTS)
    made = [one for one in runs if one is not None and len(one) > max(index)]
    if len(made) < len(_SHIFTS):
        return None
    values = [[one[i][0] for one in made] for i in index]
    if not _monotone(values[1]) or _monotone(values[0]):
        return None
    whole, beside = (one[index[1]][1] for one in (made[_SHIFTS.index(0.0)], cut))
    if all(beside.get(n) == whole.get(n) for n in rest):
        return None  # it reaches what comes before without the first part
    only = not rest & beside.keys()
    return _told(trace, steps, (own, through), names, rest, values[1], only=only)


def _monotone(values: list[float]) -> bool:
    steps = [b - a for a, b in itertools.pairwise(values)]
    least = 1e-6 * max(1.0, *(abs(value) for value in values))
    return all(one > -least for one in steps) != all(one < least for one in steps)


def _whole_modules(model: nn.Module, parameters: frozenset[str]) -> list[str]:
    """Return the largest modules whose parameters are all among some."""
    found: list[str] = []
    for name, module in model.named_modules():
        held = [f"{name}.{n}" if name else n for n, _ in module.named_parameters()]
        within = any(name.startswith(f"{other}.") for other in found)
        if held and name and parameters.issuperset(held) and not within:
            found.append(name)
    return found


def _run(
    subject: Subject,
    names: list[str],
    change: Callable[[torch.Tensor], torch.Tensor],
    *,
    detach: bool = False,
) -> list[tuple[float, dict[str, float]]] | None:
    """Take a step with the outputs of some modules changed.

    Returns:
        The root of each pass, and the norm of what it adds to each gradient that it changes.

    With ``detach`` the modules get their inputs without a graph.
    """
    passes: list[tuple[float, dict[str, float]]] = []
    with begun(subject) as (model, made), contextlib.ExitStack() as stack:
        named = dict(model.named_parameters())

        def noted(original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            roots = args[0] if args else kwargs["tensors"]
            roots = [roots] if isinstance(roots, torch.Tensor) else list(roots)
            before = {n: None if p.grad is None else p.grad.clone() for n, p in named.items()}
            result = original(*args, **kwargs)
            added = {n: _added(before[n], p.grad) for n, p in named.items()}
            touched = {n: norm for n, norm in added.items() if norm}
            passes.append((sum(float(r.detach().sum()) for r in roots), touched))
            return result

        def entered(_: nn.Module, args: tuple[Any, ...]) -> Any:
            given = trees.floats(args).values()
            return trees.substitute(args, {id(t): t.detach() for t in given}) if detach else None

        def left(_: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
            given = trees.floats(output).values()
            return trees.substitute(output, {id(t): change(t) for t in given})

        for name in names:
            module = model.get_submodule(name)
            stack.callback(module.register_forward_pre_hook(entered).remove)
            stack.callback(module.register_forward_hook(left).remove)
        stack.enter_context(listening({"backward": noted}, before_step=lambda *_: None))
        try:
            take_steps(subject, model, made, 1, StepWatch())
        except (SubjectError, RuntimeError):
            return passes if detach and passes else None  # a pass without a graph raises
    return passes


def _added(before: torch.Tensor | None, after: torch.Tensor | None) -> float:
    """Return the norm of what a gradient has grown by."""
    if after is None:
        return 0.0
    return float((after if before is None else after - before).norm())


def _told(
    trace: Trace,
    steps: tuple[OptimizerStep, OptimizerStep],
    passes: tuple[Backward, Backward],
    names: list[str],
    rest: frozenset[str],
    values: list[float],
    *,
    only: bool,
) -> Finding:
    (own, through), (first, step), part = passes, steps, ", ".join(names)
    alone = f"give {few(rest)} an optimizer of its own"
    applied = f"{step.name}() applies both losses to it"
    both = f"{at(own.place)} and {at(through.place)}"
    seen = f"the gradients of {part} that {step.name}() applies hold two passes: {both}"
    if first is not step:
        alone = f"leave {part} out of the optimizer that steps at {at(step.place)}"
        applied = f"{step.name}() applies that loss to it"
        seen = f"{first.name}() at {at(first.place)} applies to {part} the pass {at(own.place)}, and {step.name}() at "
        seen += f"{at(step.place)} the pass {at(through.place)}"
    before = trace.events[: trace.events.index(through)]
    forwards = [e for e in before if isinstance(e, Forward) and e.module in names]
    line = next((e for e in reversed(forwards) if e.place is not None), None)
    if line is not None and sum(e.place == line.place for e in forwards) > 1:
        line = None  # a helper that both losses call
    falls = "rises" if values[0] > values[-1] else "falls"
    way = f"through {part} only" if only else f"through {part} too"
    return violated(
        "loss-moves-another-part",
        f"{through.name}() at {at(through.place)} also trains {part}: {applied}",
        culprits=(
            *(Culprit("module", name, "is moved by both losses") for name in names),
            *([call(line, "the loss goes through it")] if line is not None else []),
            call(through, f"reaches {few(rest)} through {part}"),
            call(own, f"the loss of {part} itself"),
        ),
        location=line.place if line is not None else through.place,
        observed=seen,
        cause=f"the second loss is to train {few(rest)}, which it reaches {way}; it "
        f"moves {part} as well, so as to make its outputs extreme",
        because=f"with all outputs of {part} shifted by {_SHIFTS[1]:g}, 0 and {_SHIFTS[3]:g} this loss is "
        f"{values[1]:.4g}, {values[2]:.4g} and {values[3]:.4g}: it has no minimum, and is lower the more the output {falls}",
        fix=f"freeze {part} in that pass (requires_grad_(False), and back), clear its gradients after it, or {alone}",
        evidence={"losses": values},
    )


_PARALLEL = 0.99
"""Cosine between the change of the weights between the passes and the first gradient."""


def two_point_findings(subject: Subject, trace: Trace) -> Iterator[Finding]:
    """Yield a step whose gradients sum up two passes of one call, all of its weights moved uphill between them.

    Sharpness-aware minimisation moves the weights like this, and wants the second gradient alone.
    An adversarial term that is added to the loss wants the sum: that is why this is no more than
    suspicious. Where only some of the weights move, as in adversarial training of embeddings, it is
    not even that.
    """
    for step in trace.optimizer_steps():
        places = [p for p in step.fresh if trace.events[p].step == step.step]
        if step.closure or len(places) != 2:
            continue
        first, second = (trace.events[p] for p in places)
        both = step.sources[places[0]] & step.sources[places[1]]
        if not isinstance(second, Backward) or not both or not both <= second.moved:
            continue
        cosine = _uphill(subject, both, trace.backwards(step.step).index(second))
        if cosine is not None and cosine > _PARALLEL:
            yield _between_passes(step, first, second, cosine)  # type: ignore[arg-type]
        return


def _between_passes(
    step: OptimizerStep, first: Backward, second: Backward, cosine: float
) -> Finding:
    wanted = f"{step.name.rpartition('.')[0] or 'optimizer'}.zero_grad"
    return suspicious(
        "gradients-of-two-points",
        f"{step.name}() applies the sum of two gradients, computed before and after the weights "
        "moved uphill",
        culprits=(
            call(second, "adds to the gradient computed before the weights moved"),
            Culprit("call", wanted, "none between the two passes", second.place),
            call(first, "its gradient is not cleared"),
        ),
        location=second.place,
        observed=f"gradient norm {first.norm:.4g} after {at(first.place)}, {second.norm:.4g} after {at(second.place)}",
        cause="the gradients are not cleared between the two passes, so the second one adds to "
            "them",
        because=f"between the passes the weights moved along the first gradient: cosine {cosine:.3g}",
        fix=f"call {wanted}() before the backward at {at(second.place)}, unless the sum is meant",
    )  # fmt: skip


@dataclass(slots=True)
class _Points:
    """The weights at the passes of a step, and the gradient after the first of the two that count."""

    names: frozenset[str]
    number: int
    weights: list[torch.Tensor]
    gradient: torch.Tensor | None = None

    def __call__(self, model: nn.Module) -> None:
        named = {n: p for n, p in model.named_parameters() if n in self.names}
        self.weights.append(torch.cat([p.detach().double().flatten() for p in named.values()]))
        if len(self.weights) == self.number and all(p.grad is not None for p in named.values()):
            self.gradient = torch.cat([p.grad.double().flatten() for p in named.values()])  # type: ignore[union-attr]


def _uphill(subject: Subject, names: frozenset[str], second: int) -> float | None:
    """Run a step once more and return the cosine of the weights' way before a pass with the gradient of the one before."""
    points = _Points(names=names, number=second, weights=[])
    record(subject, steps=1, after_backward=points)
    if points.gradient is None or len(points.weights) <= second:
        return None
    way = points.weights[second] - points.weights[second - 1]
    return float(torch.nn.functional.cosine_similarity(way, points.gradient, dim=0))
