"""What outputs can reach: known before training, or measured where training has stopped."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from ...batches.rows import flat_rows
from ...declared.limits import UNDECLARED
from ...lean import dataclass
from ...objects import trees
from ...probes.loss.own import labels_of
from ...state import seed_everything
from ...subject.errors import SubjectError
from ...subject.gradients import clear_gradients
from ...subject.optimizers import optimizers_of
from ..facts import outputs
from ..variants.woken import jittered
from .one_batch import FORWARD, small_batch

if TYPE_CHECKING:
    from ...batches import Batch
    from ...declared.limits import Overfit
    from ...subject import Subject
    from .one_batch import Budget, Look

_DRAWN_FLOATS, _DRAWN_LABELS = 64, 1024
"""More random targets than these are not memorised within a budget of some steps."""
_EQUAL_GRADIENT = 1e-9  # of the largest element of a parameter's gradient
_EQUAL = 1e-12  # of the largest element, in float64: no more than the order of additions
_CLEAR = 1e-3  # of the largest element, in float32: far more than rounding
_FAR_ENOUGH = 0.25
"""Of the distance, for a few samples: one output for all of them leaves more of the loss of a few classes."""
_BELOW = 0.9  # of the loss of scores that are the same everywhere: what goes below follows inputs
_MOST_LEFT = 0.6
"""Of the distance: a loss that begins where one output for all samples ends has to fall, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sameness:
    """Outputs that are equal where targets differ, at two different settings of the weights.

    Attributes:
        path: Of the output.
        axis: Along which it is constant; 0 for samples that are not told apart.
        size: How many positions or samples there are.
    """

    path: str
    axis: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """What two forwards in float64 show, at two different settings of the weights.

    Attributes:
        same: Outputs that are equal where targets differ.
        unmoved: Whether no output follows any parameter.
    """

    same: Sameness | None
    unmoved: bool


def hopeless(subject: Subject, batch: Batch) -> str | None:
    """Say what keeps any correct model from memorising this batch, before any run."""
    trainable = sum(p.numel() for p in subject.model.parameters() if p.requires_grad)
    targets = _targets(batch)
    wanted = sum(t.numel() for t in targets.values())
    drawn = batch.origin == "drawn"
    if drawn:
        floats = sum(t.numel() for t in targets.values() if t.is_floating_point())
        if floats > _DRAWN_FLOATS:
            return f"{floats} random target values were drawn, which no smooth model memorises"
        if wanted > _DRAWN_LABELS:
            return f"{wanted} random labels were drawn, too many to be memorised in a few steps"
    if wanted > trainable:
        return f"{wanted} target values cannot be met by {trainable} trainable parameters"
    if drawn and (few := few_parameters(subject, batch)) is not None:
        return f"{few}, and random ones need not be within their reach"
    if _twins(subject, batch):
        return "some samples have equal inputs and different targets"
    return None


def few_parameters(subject: Subject, batch: Batch) -> str | None:
    """Say whether targets are more than half as many as parameters."""
    trainable = sum(p.numel() for p in subject.model.parameters() if p.requires_grad)
    wanted = sum(t.numel() for t in _targets(batch).values())
    if wanted * 2 > trainable:
        return f"{wanted} target values are more than half of the {trainable} trainable parameters"
    return None


def _targets(batch: Batch) -> dict[str, torch.Tensor]:
    inputs = dict(batch.input_leaves())
    return {path: t for path, t in batch.tensors().items() if path not in inputs}


def _rows(subject: Subject, batch: Batch, paths: dict[str, torch.Tensor]) -> torch.Tensor | None:
    """Return what each sample holds in some tensors, one row each; None where that is not known."""
    symbol = subject.source.batch_symbol
    if symbol is None:
        return None
    axes = subject.source.axes(symbol)
    rows = [
        flat_rows(t, axes[path]).to(torch.float64)
        for path, t in paths.items()
        if path in axes and t.dim() and not t.is_complex()
    ]
    if len(rows) < len(paths) or not rows or len({len(one) for one in rows}) > 1:
        return None
    return torch.cat([one.cpu() for one in rows], dim=1)


def _twins(subject: Subject, batch: Batch) -> bool:
    """Say whether two samples are bit-equal in all inputs and differ in their targets."""
    given = {p: t for p, t in batch.input_leaves() if isinstance(t, torch.Tensor)}
    inputs, targets = _rows(subject, batch, given), _rows(subject, batch, _targets(batch))
    if inputs is None or targets is None or len(inputs) != len(targets):
        return False
    _, groups = torch.unique(inputs, dim=0, return_inverse=True)
    return any(
        len(torch.unique(targets[groups == group], dim=0)) > 1
        for group in torch.unique(groups).tolist()
    )


def told_apart(subject: Subject, batch: Batch) -> bool:
    """Say whether the outputs of a plain evaluation clearly differ wherever targets do.

    What is equal by structure is equal at all weights, and need not be looked for in float64 then.
    """
    known = trees.tensors(batch.targets) or labels_of(batch, subject.model)
    targets = [trees.dense(t) for t in known.values()]
    if not targets:
        return True
    try:
        made = trees.floats(outputs(subject, batch))
    except SubjectError:
        return False
    return not any(
        values.shape[axis] > 1
        and any(_differs(target, axis, values.shape[axis]) for target in targets)
        and _constant(values, axis, _CLEAR)
        for values in map(trees.dense, made.values())
        for axis in range(values.dim())
    )


def eased(subject: Subject, goal: Overfit, seen: Look) -> Overfit:
    """Return when a few samples are learnt: earlier where the contract declares nothing and the floor is known.

    Clearly below what scores reach that are the same for all samples and positions, they follow the inputs as the
    labels ask: that is known of losses of labels alone, and enough where the outputs differ wherever the targets do.
    """
    floor = seen.floor
    if goal is not UNDECLARED or not floor.known:
        return goal
    way = seen.loss - floor.value
    if floor.uniform is None or not (
        floor.value < floor.uniform < seen.loss and told_apart(subject, subject.batch())
    ):
        return replace(goal, ratio=_FAR_ENOUGH)
    below = _BELOW * (floor.uniform - floor.value) / way
    return replace(goal, ratio=min(max(_FAR_ENOUGH, below), _MOST_LEFT))


def outputs_in_double(subject: Subject, batch: Batch, budget: Budget) -> Outputs:
    """Compare the outputs of two forwards in float64, each at other weights."""
    seen: list[dict[str, torch.Tensor]] = []
    losses: list[float | None] = []
    read: set[str] = set()
    for seed in (subject.seed, subject.seed + 1):
        if not budget.take(2 * FORWARD):
            return Outputs(same=None, unmoved=False)
        try:
            with jittered(subject, seed=seed) as model, torch.enable_grad():
                model.train(False)
                seed_everything(subject.seed)
                given = batch.to(dtype=torch.float64).clone()
                output = subject.call(model, given)
                made = trees.floats(output)
                seen.append({p: trees.dense(t).clone() for p, t in made.items()})
                trained = {p for p, t in made.items() if t.requires_grad}
                value, pulled = _loss_in_double(subject, output, given, made)
                losses.append(value)
                read |= pulled
        except SubjectError:
            return Outputs(same=None, unmoved=False)
    first, second = seen
    # an output may hold more than its tensors, such as a distribution's transforms
    unmoved = (bool(first) and losses[0] == losses[1]) and all(
        p in second and trees.same(t, second[p]) for p, t in first.items()
    )
    computed = {p: t for p, t in first.items() if p in trained and p in read}
    same = None if unmoved else _sameness(subject, batch, computed, second)
    if same is not None:
        try:
            apart = not budget.take() or any(
                _moved_apart(subject, batch, same, p) for p in computed
            )
            same = None if apart else same
        except SubjectError:  # such as kernels without a backward in evaluation mode
            same = None
    return Outputs(same=same, unmoved=unmoved)


def _moved_apart(subject: Subject, batch: Batch, same: Sameness, path: str) -> bool:
    """Say whether a parameter moves an output apart that is equal, as where it differs by less than is rounded.

    Small weights and statistics that were never updated make such outputs of a model that reads its input.
    """
    with jittered(subject, seed=subject.seed) as model, torch.enable_grad():
        model.train(False)
        seed_everything(subject.seed)
        values = trees.floats(subject.call(model, batch.to(dtype=torch.float64).clone()))[path]
        if values.dim() <= same.axis or values.shape[same.axis] != same.size:
            return False
        parameters = [p for p in model.parameters() if p.requires_grad]
        pull = torch.randn_like(values)
        gaps = values - values.narrow(same.axis, 0, 1)
        with subject.phase("backward", batch):
            of_one, of_gap = (
                torch.autograd.grad(one, parameters, pull, allow_unused=True, retain_graph=True)
                for one in (values, gaps)
            )
        return any(
            float(gap.abs().max()) > _EQUAL_GRADIENT * float(one.abs().max())
            for one, gap in zip(of_one, of_gap, strict=True)
            if one is not None and gap is not None
        )


def _loss_in_double(
    subject: Subject, output: Any, batch: Batch, made: dict[str, torch.Tensor]
) -> tuple[float | None, set[str]]:
    """Return the loss and the outputs that it pulls on; None and all of them where it needs another mode or dtype."""
    live = {path: t for path, t in made.items() if t.requires_grad}
    try:
        loss = subject.compute_loss(output, batch)
    except SubjectError:
        return None, set(live)
    if loss.numel() != 1 or not loss.requires_grad or len(live) < 2:
        return (float(loss) if loss.numel() == 1 else None), set(live)
    try:
        with subject.phase("backward", batch):
            pulls = torch.autograd.grad(loss, list(live.values()), allow_unused=True)
    except SubjectError:  # such as kernels without a backward in evaluation mode
        return float(loss), set(live)
    return float(loss), {p for p, pull in zip(live, pulls, strict=True) if pull is not None}


def _sameness(
    subject: Subject, batch: Batch, first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]
) -> Sameness | None:
    """Find an axis along which all outputs that the loss reads are equal, and targets are not.

    One output may be the same for all samples where another tells them apart, such as a standard
    deviation that is a parameter beside a mean that is computed.
    """
    symbol = subject.source.batch_symbol
    size = 0 if symbol is None else batch.sizes.get(symbol, 0)
    targets = [trees.dense(t) for t in trees.tensors(batch.targets).values()]
    for path, values in first.items():
        for axis in range(values.dim()):
            others = second.get(path)
            if others is None or values.shape[axis] < 2 or others.shape != values.shape:
                continue
            if not (_constant(values, axis) and _constant(others, axis)):
                continue
            if not (values.any() or others.any()):
                continue  # neurons that do not fire, at these weights
            if not any(_differs(target, axis, values.shape[axis]) for target in targets):
                continue
            rest = [t for p, t in first.items() if p != path]
            if any(_tells_apart(t, values.shape[axis]) for t in rest):
                continue
            if axis or (values.shape[0] == size and _inputs_differ(subject, batch)):
                return Sameness(path=path, axis=axis, size=values.shape[axis])
    return None


def _tells_apart(values: torch.Tensor, size: int) -> bool:
    """Say whether an output has a dimension of that size along which it is not constant."""
    return any(n == size and not _constant(values, d) for d, n in enumerate(values.shape))


def _constant(values: torch.Tensor, axis: int, share: float = _EQUAL) -> bool:
    if not values.numel():
        return False
    gap = float((values - values.narrow(axis, 0, 1)).abs().max())
    return gap <= share * float(values.abs().max())


def _differs(target: torch.Tensor, axis: int, size: int) -> bool:
    return (
        target.dim() > axis
        and target.shape[axis] == size
        and not bool((target == target.narrow(axis, 0, 1)).all())
    )


def _inputs_differ(subject: Subject, batch: Batch) -> bool:
    """Say whether every two samples differ in their inputs."""
    given = {p: t for p, t in batch.input_leaves() if isinstance(t, torch.Tensor)}
    rows = _rows(subject, batch, given)
    return rows is not None and len(torch.unique(rows, dim=0)) == len(rows)


def residual_lost(subject: Subject, batch: Batch, budget: Budget) -> bool:
    """Say whether the loss pulls on the outputs, and not one parameter moves them that way.

    The gradient of the loss with respect to the outputs is carried back to the parameters: the
    tangent space of the outputs holds no part of it where every parameter gets exactly zero.
    """
    if not budget.take():
        return False
    with subject.pristine() as model, torch.enable_grad():
        clear_gradients(model)
        model.train()
        seed_everything(subject.seed)
        given = batch.clone()
        output = subject.call(model, given)
        live = [t for t in trees.floats(output).values() if t.requires_grad and t.grad_fn]
        loss = subject.compute_loss(output, given)
        parameters = [p for p in model.parameters() if p.requires_grad]
        if not live or not loss.requires_grad or loss.dim():
            return False
        pulls = torch.autograd.grad(loss, live, allow_unused=True, retain_graph=True)
        if not any(pull is not None and bool(pull.count_nonzero()) for pull in pulls):
            return False
        pairs = [(t, pull) for t, pull in zip(live, pulls, strict=True) if pull is not None]
        with subject.phase("backward", given):
            reached = torch.autograd.grad(
                [t for t, _ in pairs], parameters, [pull for _, pull in pairs], allow_unused=True
            )
        return not any(g is not None and bool(trees.dense(g).count_nonzero()) for g in reached)


def climb(subject: Subject, budget: Budget) -> float:
    """Return the cosine of a declared step and the gradient of the declared loss: above zero where it climbs.

    The step is the optimizer's, or the user's own; 0 where there is no gradient.
    """
    own = subject.contract.train_step is not None
    if (own and not callable(subject.contract.loss)) or not budget.take():
        return 0.0
    batch = (subject.batch() if own else small_batch(subject)).clone()
    along = ours = theirs = 0.0
    with subject.pristine(steps=True, train=True, seeded=True) as model:
        made = subject.make_optimizer(model)
        clear_gradients(model)
        try:
            subject.compute_loss(subject.call(model, batch), batch).backward()
            slopes = {
                parameter: (parameter.detach().clone(), trees.dense(parameter.grad).clone())
                for parameter in model.parameters()
                if parameter.grad is not None and trees.computable(parameter)
            }
            if own:
                clear_gradients(model)
                subject.train_step(model, made, subject.batch().clone())
            else:
                for optimizer in optimizers_of(made):
                    optimizer.step()
        except (SubjectError, RuntimeError, TypeError):  # an optimizer may want a closure
            return 0.0
        for parameter, (before, slope) in slopes.items():
            moved = (parameter.detach() - before).double().flatten()
            along += float(moved @ slope.double().flatten())
            ours, theirs = (
                ours + float(moved @ moved),
                theirs + float(slope.double().square().sum()),
            )
    return along / (ours * theirs) ** 0.5 if ours and theirs else 0.0
