"""Why one batch cannot be learnt: what the failed runs show."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from ... import sources
from ...batches.rows import flat_rows
from ...explanation import on_line
from ...findings import Culprit, Finding, Location
from ...objects import trees
from ...probes.gradient.surrogates import Stepwise
from ...probes.recorded.watch import Watch
from ...runs.again import forward_and_loss
from ...runs.losses.consumption import evidence
from ...runs.overfitting.one_batch import small_batch
from ...verdicts import suspicious, violated
from ..gradient.zero import zero
from ..loss.consumed import loss_line
from .positions import order_unseen

if TYPE_CHECKING:
    from ...runs.overfitting.attempts import Attempt
    from ...runs.overfitting.reach import Outputs
    from ...subject import Subject


def stuck(
    subject: Subject, observed: str, found: Outputs, shown: dict[str, Any], *, lost: bool
) -> Finding | None:
    """Explain a loss that does not fall, where something else was measured; or None.

    Args:
        subject: What was trained.
        observed: What the runs showed.
        found: What two forwards in float64 showed.
        shown: Evidence of the finding.
        lost: Whether the pull of the loss on the outputs reaches no parameter.
    """
    fields = (
        _blind(subject, found)
        or _unmoved(subject, found)
        or (_lost(subject) if lost else None)
        or _barred(subject)
        or _contradicted(subject)
    )
    if fields is None:
        return None
    code = fields.pop("code", "overfit-stuck")
    return violated(
        code, "the model cannot memorise one batch", observed=observed, evidence=shown, **fields
    )


def _blind(subject: Subject, found: Outputs) -> dict[str, Any] | None:
    """Explain outputs that are equal where targets differ."""
    same = found.same
    if same is None:
        return None
    weights = "in float64 and at two random settings of the weights"
    if not same.axis:
        place = sources.of_object(type(subject.model).forward)
        counting, fact = order_unseen(subject) or ([], "")
        whole = Culprit("output", same.path, "the same for all samples", place)
        return {
            "culprits": [*counting, whole],
            "location": counting[0].location if counting else place,
            "cause": "the model gives different samples the same output"
            + (": it does not follow the order of their entries" if counting else ""),
            "because": f"{same.path} is equal for all {same.size} samples, {weights}; no two of them have "
            "equal inputs, and their targets differ" + (f"; {fact}" if fact else ""),
            "fix": (
                "make the output depend on what distinguishes the samples (order, position, an "
                "unused input)"
            ),
        }
    place, name = _stretched(subject, same.size)
    culprits = [Culprit("output", same.path, f"constant along dimension {same.axis}", place)]
    if name:
        culprits.insert(
            0,
            Culprit("buffer", name, "one row for all positions", place),
        )
    return {
        "code": "overfit-blind",
        "culprits": culprits,
        "location": place,
        "cause": f"the model cannot distinguish positions along dimension {same.axis} of {same.path}",
        "because": f"{same.path} is equal at every position of dimension {same.axis}, {weights}, "
        "while its "
        "targets differ there",
        "fix": "make the output depend on the position"
        + (f": {name} is broadcast over that dimension on this line" if name else ""),
    }


def _unmoved(subject: Subject, found: Outputs) -> dict[str, Any] | None:
    """Explain outputs that follow no parameter."""
    if not found.unmoved:
        return None
    place = sources.of_object(type(subject.model).forward)
    return {
        "culprits": [Culprit("output", "output", "depends on no parameter", place)],
        "location": place,
        "cause": "the output does not depend on the model's parameters",
        "because": "two random settings of all parameters give bit-equal outputs",
        "fix": "compute the output from the parameters themselves in each forward",
    }


def _lost(subject: Subject) -> dict[str, Any]:
    """Explain a pull on the outputs that reaches no parameter."""
    culprits = _stepwise(subject)
    line = loss_line(subject)
    if not culprits:
        names = [name for name, p in subject.named_parameters().items() if p.requires_grad]
        found = next(zero(subject, names, len(names), rounding=[]))
        return {
            "culprits": found.culprits[:6],
            "location": found.location or line,
            "cause": found.cause,
            "because": found.because,
            "fix": found.fix,
        }
    one = culprits[0]
    return {
        "culprits": [*culprits, Culprit("loss", "loss", "stuck", line)],
        "location": one.location or line,
        "cause": f"{one.name} {one.detail}",
        "because": "the loss has a gradient with respect to the output, but the gradient of every "
        "parameter is exactly zero",
        "fix": f"use a differentiable version{on_line(one.location)}",
    }


def _barred(subject: Subject) -> dict[str, Any] | None:
    """Explain an activation whose range excludes targets of the user's own batch."""
    barred = _out_of_reach(subject)
    if barred is None or barred[1] < _MOSTLY:
        return None
    culprit, _ = barred
    return {
        "culprits": [culprit],
        "location": culprit.location,
        "cause": f"{culprit.name} keeps the output from reaching the targets",
        "because": culprit.detail,
        "fix": "drop this activation after the last layer, or scale the targets into its range",
    }


def hindrance(subject: Subject) -> str | None:
    """Say which activation keeps the output from some of the targets, or None."""
    barred = _out_of_reach(subject)
    return None if barred is None else barred[0].detail


def _contradicted(subject: Subject) -> dict[str, Any] | None:
    """Explain samples whose inputs hardly differ."""
    twins = _contradiction(subject)
    if twins is None:
        return None
    return {
        "culprits": [twins],
        "location": twins.location,
        "cause": "samples with nearly the same inputs have different targets",
        "because": twins.detail,
        "fix": "compare these samples with their source: inputs may have lost information, or "
        "targets belong to other samples",
    }


def _stepwise(subject: Subject) -> list[Culprit]:
    """Return the operations that pass no gradient on, with the module built so."""
    with subject.pristine() as model, Stepwise(model) as watch:
        forward_and_loss(subject)()
    found = []
    for op, what in list(watch.found.values())[:2]:
        found.append(Culprit("call", op.name, f"passes no gradient to {what}", op.location))
        built = sources.of_parameter(subject.model, op.module) if op.module else None
        if built is not None:
            found.append(Culprit("module", op.module, "is built here", built))
    return found


def constant(subject: Subject, loss: float, moved: float, shown: dict[str, Any]) -> Finding:
    """Explain a loss that is the same whatever the model outputs."""
    place = loss_line(subject)
    classes = round(math.exp(loss)) if 0.5 < loss < 20 else 0
    guess = (
        f", the loss of a uniform guess over {classes} classes"
        if classes > 1 and abs(math.log(classes) - loss) < 1e-3
        else ""
    )
    return violated(
        "loss-constant",
        f"the loss stays at {loss:.4g}{guess}, regardless of the model's output",
        culprits=[Culprit("loss", "loss", "constant", place)],
        observed=f"loss {loss:.6g}; the same to six digits after random changes of the output "
        f"with a deviation of {moved:g}",
        cause="the output is rounded, replaced or multiplied by almost zero before the loss",
        because="replacing the output by random values does not change the loss, and its "
        "gradient is zero",
        fix="pass the model's output to the loss unchanged",
        evidence=shown,
    )


def crawling(own: Attempt, best: Attempt, place: Location | None, shown: dict[str, Any]) -> Finding:
    """Explain an optimizer that hardly moves a loss which another learning rate brings down."""
    return suspicious(
        "optimizer-crawls",
        "the declared optimizer hardly changes the loss of one batch",
        culprits=[Culprit("optimizer", "optimizer", "too slow", place)],
        observed=f"loss {own.losses[0]:.6g} -> {own.losses[-1]:.6g} in {len(own.losses)} steps at a "
        f"learning rate of {own.rates[0]:g}: less than 0.01% of the distance to the floor",
        cause="the learning rate is too low for this model and loss",
        because=f"{best.name} learns the same batch: {best.losses[0]:.4g} -> {best.losses[-1]:.4g} in "
        f"{len(best.losses)} steps",
        fix="raise the learning rate of the declared optimizer",
        evidence=shown,
    )


def climbing(
    subject: Subject,
    own: Attempt,
    best: Attempt,
    along: float,
    place: Location | None,
    shown: dict[str, Any],
) -> Finding:
    """Explain an optimizer, or a step of the user's, that goes along the gradient of the loss instead of against it."""
    step = subject.contract.train_step
    what = "optimizer" if step is None else "training step"
    if step is not None:
        place = sources.search(step, r"\.backward\(") or sources.of_object(step)
    return violated(
        "optimizer-climbs",
        f"the declared {what} raises the loss: it steps along the gradient",
        culprits=[Culprit("optimizer" if step is None else "call", what, "climbs", place)],
        observed=f"loss {own.losses[0]:.4g} -> {own.losses[-1]:.4g} in {len(own.losses)} steps",
        cause=f"the {what} maximises the declared loss: maximize=True, or a sign that is turned",
        because=f"the cosine of its first step and the gradient is {along:.2f}; {best.name} learns the "
        f"same batch: {best.losses[0]:.4g} -> {best.losses[-1]:.4g} in {len(best.losses)} steps",
        fix="drop maximize=True, or declare the loss with the other sign"
        if step is None
        else f"turn the sign of what is differentiated{on_line(place)}",
        evidence=shown,
    )


_RANGES = {
    "relu": (0.0, math.inf), "relu_": (0.0, math.inf), "softplus": (0.0, math.inf), "sigmoid": (0.0, 1.0),
    "softmax": (0.0, 1.0), "tanh": (-1.0, 1.0), "relu6": (0.0, 6.0), "hardtanh": (-1.0, 1.0),
}  # fmt: skip
"""The range of an activation; its output cannot reach targets outside."""


_MOSTLY = 0.75
"""Share of targets out of range; random targets of a usual scale stay below."""


def _out_of_reach(subject: Subject) -> tuple[Culprit, float] | None:
    """Return the activation that makes the output, and the share of targets it excludes.

    Only targets of the output's shape in a real batch count: drawn ones have a range of the check's
    choice.
    """
    if subject.batch().origin == "drawn":
        return None
    maker = evidence(subject).producer
    if maker is None or maker.kind not in _RANGES:
        return None
    low, high = _RANGES[maker.kind]
    shapes = {tuple(t.shape) for t in trees.floats(subject.forward()).values()}
    for path, target in trees.floats(subject.batch().targets, "targets").items():
        values = trees.dense(target)
        if target.is_complex() or tuple(values.shape) not in shapes or not values.numel():
            continue
        outside = float(((values < low) | (values > high)).float().mean())
        if outside:
            name = maker.op.module
            place = sources.of_parameter(subject.model, name) if name else None
            culprit = Culprit(
                "module" if name else "call",
                name or maker.op.name,
                f"{maker.op.name} gives {low:g} to {high:g}, and {outside:.0%} of {path} lie outside",
                place or maker.op.location,
            )
            return culprit, outside
    return None


def _contradiction(subject: Subject) -> Culprit | None:
    """Return samples, at least half, whose inputs hardly differ and whose targets do."""
    batch = small_batch(subject)
    symbol = subject.source.batch_symbol
    size = min(_COMPARED, 0 if symbol is None else batch.sizes.get(symbol, 0))
    if symbol is None or size < 2:
        return None
    axes = subject.source.axes(symbol)
    inputs = {p: t for p, t in batch.input_leaves() if isinstance(t, torch.Tensor) and t.numel()}
    targets = {p: t for p, t in batch.tensors().items() if p not in inputs and t.numel()}
    if not inputs or not targets or any(p not in axes for p in (*inputs, *targets)):
        return None
    apart = torch.zeros(size, size, dtype=torch.float64)
    for path, tensor in inputs.items():
        gaps = _gaps(tensor, axes[path])
        apart = torch.maximum(apart, gaps if tensor.is_floating_point() else gaps.sign())
    differ = torch.zeros(size, size, dtype=torch.bool)
    for path, tensor in targets.items():
        differ |= _gaps(tensor, axes[path]) > 0
    pairs = ((apart <= _ALIKE) & differ).nonzero().tolist()
    if not pairs:
        return None
    rows = len({row for pair in pairs for row in pair})
    if 2 * rows < size:
        return None
    first, second = pairs[0]
    maker = subject.contract.batch
    place = sources.of_object(maker) if callable(maker) else subject.contract.location
    return Culprit(
        "input",
        next(iter(inputs)),
        (
            f"the inputs of samples {first} and {second} differ by {float(apart[first, second]):.1g} of their size, "
            f"and their targets differ; {rows} of {size} samples have such a twin"
        ),
        place,
    )


_COMPARED = 32  # so many samples are compared with each other
_ALIKE = (
    1e-5  # of inputs that cannot be learnt: what float32 hardly keeps on its way through a model
)


def _gaps(tensor: torch.Tensor, axis: int) -> torch.Tensor:
    """Return the largest difference of each two rows, relative to the largest element."""
    rows = flat_rows(tensor, axis)[:_COMPARED].cpu()
    rows = rows.to(torch.complex128 if rows.is_complex() else torch.float64)
    return (rows[:, None] - rows[None]).abs().amax(-1) / max(float(rows.abs().max()), 1e-300)


def _stretched(subject: Subject, size: int) -> tuple[Location | None, str]:
    """Find the operation that adds one row of a larger table to every position of an axis."""
    tables = {
        id(t): name
        for name, t in (*subject.model.named_buffers(), *subject.model.named_parameters())
        if t.dim() >= 2 and max(t.shape) >= size
    }
    found: list[tuple[Location | None, str]] = []

    class Rows(Watch):
        def after(self, func: Any, args: Any, kwargs: Any, result: Any, token: Any) -> None:
            if found or not isinstance(result, torch.Tensor):
                return
            inputs = [a for a in args if isinstance(a, torch.Tensor)]
            for small in inputs:
                base = small._base if small._base is not None else small
                name = tables.get(id(base))
                if name is None or small.numel() >= base.numel():
                    continue
                if any(
                    big is not small
                    and big.dim() >= 2
                    and size in big.shape[1:]
                    and size not in small.shape
                    for big in inputs
                ):
                    found.append((self.locate(), name))

    with subject.pristine(train=False, seeded=True) as model, torch.no_grad(), Rows(model):
        subject.call(model, subject.batch().clone())
    return found[0] if found else (sources.of_object(type(subject.model).forward), "")
