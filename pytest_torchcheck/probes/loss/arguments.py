"""What the values and options of one call of a loss function tell, and whether a loss, a model or a step reads its targets at all."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from ...lean import dataclass
from ...objects import trees
from ...objects.kinds import finite
from ...objects.peek import signature_of
from ...state import seed_everything
from ...subject.errors import SubjectError
from .consumption import POSITIVE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from ...batches import Batch
    from ...subject import Subject
    from .consumption import LossCall, Producer


@dataclass(frozen=True, slots=True, kw_only=True)
class Alignable:
    """The labels of a CTC loss, those beyond ``target_lengths`` left out; plain data.

    Attributes:
        classes: Size of the class dimension, the blank included.
        blank: Its index.
        low, top: Smallest and largest label.
        counted: How many labels count.
        blanks: How many of them are the blank.
        trailing: Whether every blank stands behind the last other label of its row, as padding does.
        frames: How many steps in time the log-probabilities have.
        lengths: How many of them count, for each sample.
    """

    classes: int
    blank: int
    low: int
    top: int
    counted: int
    blanks: int
    trailing: bool
    frames: int
    lengths: tuple[int, ...]


def alignable(call: LossCall) -> Alignable | None:
    """Return the labels of a call of ``F.ctc_loss``; None of another, and where no label counts."""
    if call.op.name != "F.ctc_loss" or call.target is None or len(call.arguments) < 4:
        return None
    lengths = torch.as_tensor(call.arguments[3]).flatten().tolist()
    target = call.target.detach()
    if target.dim() == 2 and len(target) == len(lengths):
        rows = [row[:n].tolist() for row, n in zip(target, lengths, strict=True)]
    else:
        flat, rows = target.flatten().tolist(), []
        for n in lengths:
            rows.append(flat[:n])
            flat = flat[n:]
    labels = [int(label) for row in rows for label in row]
    if not labels:
        return None
    blank = int(call.options.get("blank", 0))
    return Alignable(
        classes=call.input.shape[-1],
        blank=blank,
        low=min(labels),
        top=max(labels),
        counted=len(labels),
        blanks=labels.count(blank),
        trailing=all(blank not in row[: _last_other(row, blank)] for row in rows),
        frames=len(call.input),
        lengths=tuple(torch.as_tensor(call.arguments[2]).flatten().tolist()),
    )


def frames_left(labels: Alignable, batch: Batch, symbol: str) -> bool:
    """Say whether a CTC loss leaves out the last frames of every sample, though one is as long as its input.

    Args:
        labels: What the loss was given.
        batch: The inputs; an integer for each sample, of which the largest is a size of another input, is a length.
        symbol: Of the dimension of the samples.
    """
    if max(labels.lengths) > _SHORT * labels.frames:
        return False
    leaves = [t for _, t in batch.input_leaves() if isinstance(t, torch.Tensor)]
    sizes = {n for t in leaves if t.is_floating_point() for n in t.shape[1:]}
    counts = [
        t for t in leaves if not t.is_floating_point() and t.shape == (batch.sizes.get(symbol),)
    ]
    return any(int(t.max()) in sizes for t in counts)


_SHORT = 0.7
"""Share of the frames: what a layer without padding cuts off at the ends is far less."""


def _last_other(row: list[int], blank: int) -> int:
    return max((i for i, label in enumerate(row) if label != blank), default=len(row) - 1) + 1


def misfit(call: LossCall, values: torch.Tensor, grad: torch.Tensor | None) -> str:
    """Return the code of what is wrong with the input of a loss of rates or of log-probabilities; empty for nothing.

    Args:
        call: The call.
        values: Its input, dense and finite.
        grad: The loss's gradient to it.
    """
    if call.op.name == "F.poisson_nll_loss":
        return _rate(bool(call.options.get("log_input", True)), values, call.producer)
    if call.op.name == "F.kl_div" and not call.options.get("log_target", False):
        return _divergence(call.target, values, grad, call.producer)
    return ""


def _rate(logged: bool, values: torch.Tensor, producer: Producer | None) -> str:
    if not logged:
        return "log-as-rate" if float(values.min()) < 0 else ""
    made = producer is not None and producer.kind in POSITIVE
    return "rate-as-log" if made and float(values.min()) >= 0 else ""


def _divergence(
    target: Any, values: torch.Tensor, grad: torch.Tensor | None, producer: Producer | None
) -> str:
    """Tell logits from log-probabilities: some are positive, and to raise all of a row lowers the loss for ever."""
    if target is None or grad is None or target.shape != values.shape or values.dim() < 2:
        return ""
    if float(values.max()) <= 0 or producer is None or "log" in producer.kind:
        return ""
    goal, slope = trees.dense(target.detach()).float(), trees.dense(grad).float()
    for dim in (-1, 1):
        if values.shape[dim] < 2 or not bool(((goal.sum(dim) - 1).abs() < 1e-3).all()):
            continue
        rows, size = slope.sum(dim), slope.abs().sum(dim)
        if bool((goal >= 0).all()) and bool(((rows < -0.01 * size) & (size > 0)).all()):
            return "kl-of-logits"
    return ""


def unread_targets(
    batch: Batch,
    run: Callable[[Batch], dict[str, torch.Tensor]],
    exact: Callable[[Batch], dict[str, torch.Tensor]],
    values: Mapping[str, range],
) -> tuple[list[str], bool]:
    """Return the paths of the targets that have no influence, and whether a run computes with them all the same.

    Tried are targets in another order, and values that nothing can read without a trace. Where only the
    latter change what a run gives, and that holds for each target, they are multiplied by zero, say, or
    rounded to one value: neither numbers of any size, nor any value that an integer may have, change it.

    Args:
        batch: The batch.
        run: Does with a batch what may read its targets, from one state and seed; returns what they
            would decide.
        exact: The same, with the gradients too: a head of zeros has one loss for all classes.
        values: What integer targets may be, by path.
    """
    targets = {path: t for path, t in targets_of(batch).items() if t.numel()}
    if not targets:
        return [], False
    try:
        base = run(batch)
    except SubjectError:
        return [], False
    if not base or not all_finite(base):
        return [], False

    def matters(target: torch.Tensor, others: Iterable[torch.Tensor]) -> bool:
        for other in others:
            try:
                if not same_results(base, run(with_target(batch, target, other))):
                    return True
            except SubjectError:
                return True  # it is read, and refused
        return False

    still = {p: t for p, t in targets.items() if not matters(t, [t.flip(0) if t.dim() else t])}
    unread = [path for path, t in still.items() if not matters(t, [_unreadable(t)])]
    if unread or len(still) < len(targets):
        return unread, False
    if any(not t.is_floating_point() and p not in values for p, t in targets.items()):
        return [], False
    run = exact
    try:
        base = run(batch)
    except SubjectError:
        return [], False
    tried = ((t, _all_values(t, values.get(path))) for path, t in targets.items())
    decided = not base or not all_finite(base) or any(matters(t, others) for t, others in tried)
    return ([], False) if decided else (list(targets), True)


def targets_of(batch: Batch) -> dict[str, torch.Tensor]:
    """Return the tensors of the targets, by their paths in the batch."""
    own = {id(t) for t in trees.tensors(batch.targets).values()}
    return {path: t for path, t in batch.tensors().items() if id(t) in own}


def with_target(batch: Batch, old: torch.Tensor, new: torch.Tensor) -> Batch:
    """Return the batch with one target tensor exchanged for another."""
    targets = batch.targets
    changed = new if targets is old else trees.substitute(targets, {id(old): new})
    return replace(batch, targets=changed)


def by_step(
    subject: Subject,
    *batches: Batch,
    seed: int = 0,
    around: Callable[[torch.nn.Module], AbstractContextManager[object]] = nullcontext,
) -> dict[str, torch.Tensor]:
    """Return the loss, parameters and gradients after steps of training, one with each batch.

    Empty where no parameter moves and no gradient is left: nothing would show what was read.
    ``around`` is entered for the length of the steps.

    Raises:
        SubjectError: The step raises.
    """
    with subject.pristine(steps=True, train=True) as model:
        seed_everything(subject.seed + seed)
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        optimizer = subject.make_optimizer(model)
        loss = None
        with around(model):
            for batch in batches:
                loss = subject.train_step(model, optimizer, batch.clone())
        made = {name: p.detach().clone() for name, p in model.named_parameters()}
        grads = {
            f"gradient {n}": p.grad.clone()
            for n, p in model.named_parameters()
            if p.grad is not None
        }
        if not grads and all(trees.same(before[name], made[name]) for name in made):
            return {}
        if isinstance(loss, torch.Tensor | float):
            made["loss"] = torch.as_tensor(loss).detach().clone()
        return made | grads


def by_own_loss(subject: Subject, batch: Batch) -> dict[str, torch.Tensor]:
    """Return the loss that the model itself computes of a batch.

    Raises:
        SubjectError: The model raises, or returns no loss.
    """
    output = subject.forward(batch, train=True)
    return {"loss": subject.compute_loss(output, batch).detach().clone()}


def same_results(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> bool:
    """Say whether two runs returned the same tensors, bit by bit."""
    return one.keys() == two.keys() and all(trees.same(one[key], two[key]) for key in one)


def all_finite(results: dict[str, torch.Tensor]) -> bool:
    """Say whether the floating-point tensors that a run returned, sparse ones included, are finite."""
    return all(finite(trees.dense(t)) for t in trees.floats(results).values())


def _all_values(target: torch.Tensor, values: range | None) -> Iterator[torch.Tensor]:
    """Yield targets of one value each: all that an integer may have, or large ones to both sides."""
    size = 1e4 if target.dtype == torch.float16 else 1e9
    if not target.is_floating_point() and target.dim():
        yield from (target.flip(0), target.roll(1, 0))
    for value in (size, -size) if target.is_floating_point() else values or ():
        yield torch.full_like(target, value)


def _unreadable(target: torch.Tensor) -> torch.Tensor:
    """Return a target of values that change whatever is computed from them."""
    if target.is_floating_point() or target.is_complex():
        return torch.full_like(target, float("nan"))
    return (
        ~target
        if target.dtype == torch.bool
        else torch.full_like(target, max(torch.iinfo(target.dtype).min, -127) or 255)
    )


def named_unused(function: object, place: int) -> bool:
    """Say whether a function says by the name of a parameter that it does not use it."""
    if not callable(function):
        return False
    if isinstance(function, torch.nn.Module):
        function = function.forward
    signature = signature_of(function)
    names = [] if signature is None else list(signature.parameters)
    return len(names) > place and names[place].startswith("_")
