"""One batch can be learnt by heart: the end-to-end test of model, loss, targets and optimizer."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from .. import sources, trees
from ..contracts import Overfit
from ..diagnosis import overfitting as explain
from ..findings import Culprit, Finding
from ..runs.attempts import Attempt, Floor, small_batch
from ..state import seed_everything
from ..subject import Subject, SubjectError, optimizers_of, schedulers_of
from ..verdicts import inconclusive, not_applicable, passed, violated
from .registry import check

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LADDER = (1e-2, 3e-3, 3e-2, 1e-3, 1e-1)
"""Learning rates of Adam, tried in this order until one succeeds (CHECKS E17)."""
_STUCK = 0.3  # above this share of the distance to the floor, a plateau is a failure
_UNBOUNDED = 0.95  # where the loss has no known floor, only a model that learns nothing is stuck
_NOTHING = 1e-6  # where the floor itself is not known, a drop by this share of the loss
_FLOOR_STEPS = 200
_MOVES = (1.0, 10.0, 10.0)
"""Standard deviations by which outputs are moved to see whether a loss heeds them."""
_CONSTANT = 1e-6  # what rounding may change in a loss that heeds nothing
_CRAWL = 0.9995
"""Share of the way that is left when a rate is far too low: 100 000 steps would not do."""


_UNKNOWN = Floor(value=0.0, bounded=True, known=False)


@check(
    "overfit",
    "One batch can be learnt nearly by heart.",
    needs=("overfit",),
    cost="5 to 300 FBS with the user's optimizer; up to 1500 more only where that fails",
    axes="device",
)
def overfit(subject: Subject) -> Iterator[Finding]:
    """Train on one batch with the user's optimizer, then with a ladder of learning rates.

    Findings of their own: a loss that stays the same whatever the outputs are (at the logarithm of the number of
    classes, say), an optimizer under which it grows, and one that leaves 99.95 % of the way where another rate
    learns the batch. Where the loss is at its floor from the start, there is nothing to learn, and no pass.
    """
    goal = subject.contract.overfit
    if goal is None:
        yield not_applicable("the contract declares overfit=None")
        return
    if not any(p.requires_grad for p in subject.model.parameters()):
        yield not_applicable("no parameter requires a gradient")
        return
    with subject.pristine() as model:
        several = len(optimizers_of(subject.make_optimizer(model))) > 1
    if several:
        yield not_applicable(
            "several optimizers play against each other; no single loss is to fall"
        )
        return
    floor = _floor(subject)
    attempts = [_attempt(subject, goal, floor, None)]
    if not _done(attempts[0], goal) and subject.contract.loss is not None:
        for rate in LADDER:
            attempts.append(_attempt(subject, goal, floor, rate))
            if _done(attempts[-1], goal):
                break
    yield _judge(subject, goal, floor, attempts)


def _done(attempt: Attempt, goal: Overfit) -> bool:
    return attempt.remaining <= goal.ratio


def _attempt(subject: Subject, goal: Overfit, floor: Floor, rate: float | None) -> Attempt:
    """Train from the pristine state; ``rate`` None means the user's own optimizer and step."""
    batch = small_batch(subject)
    losses: list[float] = []
    made: Any = None
    with subject.pristine(steps=True) as model:
        model.train()
        seed_everything(subject.seed)
        if rate is None:
            made = subject.make_optimizer(model)
            step = _own_step(subject, model, made)
        else:
            step = _plain_step(subject, model, rate)
        first = _rate_of(made)
        for number in range(goal.steps):
            seed_everything(subject.seed + number)
            value = step(batch.clone())
            losses.append(value)
            if not math.isfinite(value) or _remaining(losses, floor) <= goal.ratio * 0.9:
                break
            if number >= 60 and number % 20 == 0 and _flat(losses):
                break
    return Attempt(
        name="the declared optimizer" if rate is None else f"Adam at {rate:g}",
        losses=tuple(losses),
        remaining=_remaining(losses, floor),
        falling=_falling(losses, floor),
        rates=(first, _rate_of(made)),
    )


def _rate_of(made: Any) -> float:
    """Return the highest learning rate of what an optimizer function returned; NaN without one."""
    rates = [
        float(group["lr"])
        for optimizer in (optimizers_of(made) if made is not None else ())
        for group in optimizer.param_groups
        if "lr" in group
    ]
    return max(rates, default=math.nan)


def _own_step(subject: Subject, model: nn.Module, made: Any) -> Callable[[Any], float]:
    schedulers = schedulers_of(made)

    def step(batch: Any) -> float:
        value = subject.train_step(model, made, batch)
        if subject.contract.train_step is None:
            for scheduler in schedulers:
                scheduler.step()
        if isinstance(value, torch.Tensor):
            return float(value.detach().float().mean())
        return float(value) if isinstance(value, int | float) else math.nan

    return step


def _plain_step(subject: Subject, model: nn.Module, rate: float) -> Callable[[Any], float]:
    """Return a plain step without dropout, so that only what the model can learn is tested."""
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.eval()
    trainable = [p for p in model.parameters() if p.requires_grad]
    sparse = {
        id(p)
        for m in model.modules()
        if getattr(m, "sparse", False)
        for p in m.parameters(recurse=False)
    }
    optimizers: list[torch.optim.Optimizer] = []
    for kind, chosen in (
        (torch.optim.Adam, [p for p in trainable if id(p) not in sparse]),
        (torch.optim.SparseAdam, [p for p in trainable if id(p) in sparse]),
    ):
        if chosen:
            optimizers.append(kind(chosen, lr=rate))

    def step(batch: Any) -> float:
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=True)
        loss = subject.compute_loss(subject.call(model, batch), batch)
        with subject.phase("backward", batch):
            loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        return float(loss.detach())

    return step


def _remaining(losses: list[float] | tuple[float, ...], floor: Floor) -> float:
    finite = [loss for loss in losses if math.isfinite(loss)]
    if not finite:
        return math.nan
    first, best = finite[0], min(finite[-5:])
    low = floor.value if floor.bounded else min(0.0, first - max(1.0, abs(first)))
    if _at_floor(first, low, floor.scale):
        return 0.0  # there was nothing to learn to begin with
    return max(0.0, (best - low) / (first - low))


def _at_floor(first: float, low: float, scale: float = 1.0) -> bool:
    return first - low <= 1e-7 * max(scale, abs(first))


def _flat(losses: list[float]) -> bool:
    """Say whether the last 40 steps brought less than a thousandth of what the run brought before."""
    recent, before = losses[-20:], losses[-40:-20]
    change = sum(before) / 20 - sum(recent) / 20
    spread = max(losses) - min(losses)
    return abs(change) <= 1e-3 * max(spread, 1e-12)


def _falling(losses: list[float], floor: Floor) -> bool:
    """Say whether the last quarter of the run still brought the loss clearly nearer to its floor."""
    if len(losses) < 40 or not all(math.isfinite(loss) for loss in losses):
        return False
    quarter = max(10, len(losses) // 4)
    before = sum(losses[-2 * quarter : -quarter]) / quarter
    after = sum(losses[-quarter:]) / quarter
    low = floor.value if floor.bounded else min(0.0, before)
    return before - after > 0.03 * max(before - low, 1e-12)


def _floor(subject: Subject) -> Floor:
    """Find the lowest loss by descending on the outputs themselves, as if the model could say anything."""
    if subject.contract.loss is None or subject.contract.loss == "output":
        return _UNKNOWN
    batch = small_batch(subject).clone()
    freed = _freed(subject, batch)
    if freed is None:
        return _UNKNOWN
    free, leaves = freed
    optimizer = torch.optim.Adam(leaves, lr=0.1)
    losses: list[float] = []
    try:
        with torch.enable_grad():
            for _ in range(_FLOOR_STEPS):
                seed_everything(subject.seed)
                optimizer.zero_grad(set_to_none=True)
                loss = subject.compute_loss(free, batch)
                if loss.dim() or not loss.requires_grad or not bool(torch.isfinite(loss)):
                    break
                loss.backward()
                losses.append(float(loss.detach()))
                optimizer.step()
    except (SubjectError, RuntimeError):
        # a loss may refuse free outputs (it reads the model too); its floor is not known
        return _UNKNOWN
    if not losses:
        return _UNKNOWN
    low = min(losses)
    if low < 0 and _falling(losses, Floor(value=low - abs(low), bounded=True)):
        return Floor(value=-math.inf, bounded=False)
    value = min(low, 0.0) if low < 0.05 * abs(losses[0]) else low
    near = _at_floor(losses[0], value)
    spread = _spread_of_losses(subject) if near else None
    return Floor(value=value, bounded=True, scale=1.0 if spread is None else spread)


def _freed(subject: Subject, batch: Any) -> tuple[Any, list[torch.Tensor]] | None:
    """Return the model's output with leaves in place of its tensors, and the leaves; None where that cannot be."""
    with subject.pristine() as model, torch.enable_grad():
        model.train()
        seed_everything(subject.seed)
        output = subject.call(model, batch)
    found = {path: t for path, t in trees.floats(output).items() if t.device.type != "meta"}
    # what no parameter reaches (a frozen teacher, an echo of the input) stays as it is
    found = {path: t for path, t in found.items() if t.requires_grad} or found
    if not found or isinstance(output, torch.nn.utils.rnn.PackedSequence):
        return None
    leaves = {id(t): t.detach().clone().requires_grad_(True) for t in found.values()}
    free = trees.substitute(output, leaves)
    return None if free is None else (free, list(leaves.values()))


def _spread_of_losses(subject: Subject) -> float | None:
    """Return by how much the loss changes when the outputs are moved far at random; None where that cannot be."""
    batch = small_batch(subject).clone()
    freed = _freed(subject, batch)
    if freed is None:
        return None
    free, leaves = freed
    generator = torch.Generator().manual_seed(0)
    start = [leaf.detach().clone() for leaf in leaves]
    losses = []
    try:
        with torch.no_grad():
            for size in (0.0, *_MOVES):
                for leaf, before in zip(leaves, start, strict=True):
                    noise = torch.randn(leaf.shape, generator=generator).to(leaf)
                    leaf.copy_(before + size * noise)
                seed_everything(subject.seed)
                losses.append(float(subject.compute_loss(free, batch)))
    except (SubjectError, RuntimeError):
        return None
    return max(losses) - min(losses) if all(map(math.isfinite, losses)) else None


def _judge(subject: Subject, goal: Overfit, floor: Floor, attempts: list[Attempt]) -> Finding:
    own, best = (
        attempts[0],
        min(attempts, key=lambda a: math.inf if math.isnan(a.remaining) else a.remaining),
    )
    shown = {
        "losses": list(_thin(best.losses)),
        "floor": floor.value if floor.bounded else None,
        "attempts": [
            {"name": a.name, "steps": len(a.losses), "remaining": a.remaining} for a in attempts
        ],
    }
    if _done(own, goal):
        if floor.bounded and _at_floor(own.losses[0], floor.value, floor.scale):
            return _nothing_to_learn(subject, own.losses[0], floor, shown)
        return passed(
            f"the loss fell from {own.losses[0]:.4g} to {own.losses[-1]:.4g} in {len(own.losses)} steps "
            f"({floor})",
            evidence=shown,
        )
    if _done(best, goal):
        return _own_failed(subject, own, best, shown)
    first = next((loss for loss in best.losses if math.isfinite(loss)), math.nan)
    low = min((loss for loss in best.losses if math.isfinite(loss)), default=math.nan)
    observed = (
        f"best of {len(attempts)} runs ({best.name}): loss {first:.4g} -> {low:.4g} in {len(best.losses)} steps; "
        f"{floor}"
        + ("" if math.isnan(best.remaining) else f"; {best.remaining:.0%} of the way is left")
    )
    hindrance = _hindrance(subject, best)
    if hindrance is None and not floor.bounded and best.remaining < _UNBOUNDED:
        hindrance = "the loss has no lower bound, and what this model could reach is not known"
    if hindrance is None and not floor.known and first - low > _NOTHING * max(1.0, abs(first)):
        hindrance = "the lowest value of this loss is not known (a constant term, label smoothing)"
    declared = subject.contract.overfit is not None and subject.contract.overfit != Overfit()
    if subject.contract.loss is None:
        return inconclusive(
            f"{observed}; without a declared loss no other learning rate could be tried"
        )
    if math.isnan(best.remaining) or (
        hindrance is None and (declared or best.remaining > _STUCK) and not best.falling
    ):
        return explain.stuck(subject, observed, floor, best, shown)
    reason = hindrance or (
        "the loss was still falling" if best.falling else f"it stopped below {_STUCK:.0%}"
    )
    return inconclusive(f"{observed}; {reason}, so that this proves no mistake", evidence=shown)


def _nothing_to_learn(
    subject: Subject, loss: float, floor: Floor, shown: dict[str, Any]
) -> Finding:
    """Judge a loss that is at its floor before the first step: constant, or already learnt."""
    few = _CONSTANT * abs(loss)
    # a loss may read the model besides its output: then its gradient tells
    if floor.known and loss and floor.scale <= few and subject.gradients().norm <= few:
        return explain.constant(subject, loss, max(_MOVES), shown)
    return inconclusive(
        f"the loss is at its floor from the start ({loss:.4g}): there is nothing to learn",
        evidence=shown,
    )


def _own_failed(subject: Subject, own: Attempt, best: Attempt, shown: dict[str, Any]) -> Finding:
    """Judge an optimizer that fails where another learning rate succeeds."""
    finite = [loss for loss in own.losses if math.isfinite(loss)]
    made = subject.contract.optimizer
    place = (sources.search(made, r"\blr\s*=") or sources.of_object(made)) if made else None
    if len(finite) < len(own.losses) or (finite and finite[-1] > 2 * abs(finite[0]) + 1e-3):
        return violated(
            "optimizer-diverges",
            "the loss of one batch grows under the declared optimizer",
            culprits=[
                Culprit(kind="optimizer", name="optimizer", detail="diverges", location=place)
            ],
            observed=f"loss {own.losses[0]:.4g} -> {own.losses[-1]:.4g} in {len(own.losses)} steps",
            cause="the learning rate is too high for this model and loss",
            because=f"{best.name} learns the same batch: {best.losses[0]:.4g} -> {best.losses[-1]:.4g} in "
            f"{len(best.losses)} steps",
            fix="lower the learning rate of the declared optimizer",
            evidence=shown,
        )
    if subject.contract.train_step is not None and len(set(finite)) == 1:
        step = sources.of_object(subject.contract.train_step)
        return violated(
            "step-learns-nothing",
            "the declared training step leaves the loss of one batch exactly as it is",
            culprits=[
                Culprit(kind="call", name="train_step", detail="loss constant", location=step)
            ],
            observed=f"loss {finite[0]:.6g} in each of {len(finite)} steps",
            cause="the step does not change what the loss depends on",
            because=f"a plain step ({best.name}) learns the same batch: {best.losses[0]:.4g} -> {best.losses[-1]:.4g}",
            fix="order the step as zero_grad, forward, backward, step",
            evidence=shown,
        )
    if (
        subject.contract.optimizer is not None
        and own.remaining > _CRAWL
        and len(own.losses) > 60
        and own.rates[1] <= own.rates[0]  # neither a warm-up nor unknown
    ):
        return explain.crawling(subject, own, best, place, shown)
    return passed(
        f"{best.name} learns the batch, {best.losses[0]:.4g} -> {best.losses[-1]:.4g} in {len(best.losses)} steps; "
        f"the declared optimizer was slower ({own.remaining:.0%} left after {len(own.losses)} steps)",
        evidence=shown,
    )


def _hindrance(subject: Subject, best: Attempt) -> str | None:
    """Name what keeps a correct model from learning this batch, or None."""
    batch = small_batch(subject)
    trainable = sum(p.numel() for p in subject.model.parameters() if p.requires_grad)
    wanted = sum(
        t.numel() for path, t in batch.tensors().items() if path not in dict(batch.input_leaves())
    )
    if wanted * 2 > trainable:
        return f"{wanted} target values are more than half of the {trainable} trainable parameters"
    if batch.origin == "drawn" and wanted > 64:
        return f"{wanted} random target values were drawn, which no smooth model learns by heart"
    inputs = [t for _, t in batch.input_leaves() if isinstance(t, torch.Tensor)]
    symbol = subject.source.batch_symbol
    if symbol is not None and inputs:
        axes = subject.source.axes(symbol)
        rows = [
            trees.dense(t).movedim(axes[path], 0).reshape(t.shape[axes[path]], -1).to(torch.float64)
            for path, t in batch.tensors().items()
            if path in axes
            and path in dict(batch.input_leaves())
            and t.dim()
            and not t.is_complex()
        ]
        if rows:
            joined = torch.cat(rows, dim=1)
            if len(torch.unique(joined, dim=0)) < len(joined):
                return "some samples have equal inputs"
    return None


def _thin(losses: tuple[float, ...], most: int = 60) -> list[float]:
    step = max(1, len(losses) // most)
    return [float(f"{loss:.5g}") for loss in losses[::step]]
