"""Targets that nothing reads: how sure it is that something should, and an error about them that is caught."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import torch
from torch.utils.data import DataLoader, Dataset

from ...codes import loss as explain
from ...objects import trees
from ...probes.loss.arguments import (
    by_step,
    named_unused,
    same_results,
    targets_of,
    unread_targets,
    with_target,
)
from ...record.tracing import swallowed
from ...runs.facts import output_for_loss
from ...specs import Labels
from ...subject.errors import SubjectError
from ...text.wording import have, names_text
from ...verdicts import inconclusive

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...batches import Batch
    from ...findings import Finding, Status
    from ...probes.loss.slopes import LossOfOutput
    from ...record.tracing import Swallowed
    from ...specs.tensors import TensorSpec
    from ...subject import Subject

_MOST_VALUES: Final = 256
_MOST_CLASSES: Final = 8  # that labels are tried with


def unread_by_step(subject: Subject) -> tuple[list[str], Finding | None]:
    """Return the targets that a step never reads, and what is wrong with that.

    Take one step with the targets of the base batch, and one each with others, from the same state.

    On a GPU nobody can try the step first, and an index out of range would cost the process its context.
    Where a loss is declared beside the step, the targets may be for that alone: equations are solved without.
    """
    if not subject.kernel_exact:
        return [], None
    paths, found = ignores(subject, subject.batch(), partial(by_step, subject))
    if found is not None and callable(subject.contract.loss):
        found = found.replace(status="suspicious")
    return paths, found


def idle_fields(subject: Subject, paths: list[str]) -> Finding | None:
    """Say that targets which a batch by hand holds are not read, though they look like targets; None where none do.

    They have numbers of their own for each sample, or are labels of one of the classes of an output. It may be that
    the batch holds more than is used: nobody has declared what is a target.
    """
    batch, size = subject.batch(), subject.source.batch_symbol
    count = batch.sizes.get(size, 0) if size is not None else 0
    found = {
        p: t for p, t in targets_of(batch).items() if p in paths and t.dim() and len(t) == count
    }
    leaves = trees.floats(output_for_loss(subject)).values() if found else ()

    def meant(target: torch.Tensor) -> bool:
        if not target.numel() or bool((target == target.flatten()[0]).all()):
            return False
        if target.is_floating_point():
            return True
        if target.dtype == torch.bool or target.is_complex():
            return False
        low, high = int(target.min()), int(target.max())
        return any(
            _fits(target, t) and low >= -1 and high < max(t.shape[1], t.shape[-1]) for t in leaves
        )

    names = [path for path, target in found.items() if trees.computable(target) and meant(target)]
    if not names:
        return None
    return inconclusive(
        f"{names_text(names)} {have(names, 'differs')} among the samples of the batch, and nothing reads "
        f"{'it' if len(names) == 1 else 'them'}; declare targets by specs, or leave out of the batch what is none"
    )


def ignores(
    subject: Subject,
    batch: Batch,
    run: Callable[[Batch], dict[str, torch.Tensor]],
    loss: LossOfOutput | None = None,
) -> tuple[list[str], Finding | None]:
    """Return the targets that a run never reads, and what is wrong with that: an error about them may be caught.

    Other batches are asked too: whether one target is read may be for another to say, as an event does of a time.
    """
    exact = partial(_with_slopes, loss) if loss is not None else run
    paths, computed = unread_targets(batch, run, exact, _values(subject, batch))
    for other in (subject.batch(index) for index in (1, 2) if paths):
        if other.sizes == batch.sizes:
            again = unread_targets(other, run, exact, _values(subject, other))[0]
            read = targets_of(other).keys() - again
            paths = [path for path in paths if path not in read]
    if not paths and (lost := _lost_labels(subject, batch, exact)):
        return paths, explain.ignored(subject, loss, lost, "violated", computed=True)
    status = _how_sure(subject, batch, paths)
    if status is None:
        return paths, None
    errors = swallowed(lambda: run(batch))
    if errors and _depends_on(batch, paths, run, errors):
        return paths, explain.caught(subject, batch, paths, errors[-1])
    return paths, explain.ignored(subject, loss, paths, status, computed=computed)


def _with_slopes(loss: LossOfOutput, batch: Batch) -> dict[str, torch.Tensor]:
    """Return a loss and its gradients by the outputs; nothing where it has none."""
    slopes = loss.slopes(batch)
    return {} if slopes is None else {"loss": torch.tensor(slopes.value), **slopes.by_output}


def _values(subject: Subject, batch: Batch) -> dict[str, range]:
    """Return what the integer targets may be, by path, as far as that is declared."""
    found = {}
    for path in targets_of(batch):
        spec = subject.source.specs.get(path)
        ends = spec.values.ends if spec is not None and spec.values is not None else None
        if ends is not None and 0 < ends[1] - ends[0] < _MOST_VALUES:
            found[path] = range(int(ends[0]), int(ends[1]) + 1)
    return found


def _lost_labels(
    subject: Subject, batch: Batch, run: Callable[[Batch], dict[str, torch.Tensor]]
) -> list[str]:
    """Return the one target that has the form of class labels, where it decides nothing, whatever classes it names.

    Other targets are beside it; flags among them, which may say which labels count, are all on and all off too, and
    numbers, such as rewards, are other ones.
    """
    targets = targets_of(batch)
    if len(targets) < 2:
        return []
    leaves = trees.floats(output_for_loss(subject)).values()
    odd = (torch.bool, torch.complex64, torch.complex128)
    whole = {p: t for p, t in targets.items() if not t.is_floating_point() and t.dtype not in odd}
    fitting = [(p, t, leaf) for p, t in whole.items() for leaf in leaves if _fits(t, leaf)]
    if len(fitting) != 1 or fitting[0][1].numel() < 2:
        return []
    path, labels, scores = fitting[0]
    classes = range(min(scores.shape[1], scores.shape[-1], _MOST_CLASSES))
    beside = [t for p, t in targets.items() if p != path]
    if not all(map(trees.computable, beside)):
        return []
    flags = [t for t in beside if bool(((t == 0) | (t == 1)).all())]
    switched = [with_target(batch, t, torch.full_like(t, on)) for t in flags for on in (1, 0)]
    switched += [with_target(batch, t, _spread(t)) for t in beside if t.is_floating_point()]
    others = [labels.flip(0), labels.roll(1, 0), *(torch.full_like(labels, c) for c in classes)]
    try:
        for given in (batch, *switched):
            base = run(given)
            if not base and given is batch:
                return []
            if any(not same_results(base, run(with_target(given, labels, o))) for o in others):
                return []
    except SubjectError:
        return []
    return [path]


def _spread(target: torch.Tensor) -> torch.Tensor:
    """Return numbers from -1 to 1 in a target's shape."""
    line = torch.linspace(-1, 1, max(target.numel(), 1), device=target.device)
    return line[: target.numel()].view(target.shape).to(target.dtype)


def _depends_on(
    batch: Batch,
    paths: list[str],
    run: Callable[[Batch], dict[str, torch.Tensor]],
    errors: list[Swallowed],
) -> bool:
    """Say whether errors that are caught are about targets: those of another shape raise others, or none."""
    targets = targets_of(batch)
    for target in (targets[path] for path in paths):
        for other in (target.flatten(), target.unsqueeze(-1)):
            reshaped = with_target(batch, target, other)
            try:
                if swallowed(partial(run, reshaped)) != errors:
                    return True
            except SubjectError:
                return True
    return False


def _how_sure(subject: Subject, batch: Batch, unread: list[str]) -> Status | None:
    """Say what it means that targets are not read: where they are not declared as targets, perhaps nothing.

    Targets of a spec are. Those that a batch is given by hand are where they fit an output: a label
    for each row of scores, or a value for each. Constants and copies of an input may stand for none,
    and so may those that the loss or the step takes as ``_`` or by a name with an
    underscore before it. Where others are read, a batch by hand may hold more than is used; a
    declared target is missed for certain where it alone fits an output.
    """
    targets = targets_of(batch)
    if not unread:
        return None
    some = len(unread) < len(targets)
    if some and batch.origin != "drawn":
        return None
    contract = subject.contract
    if named_unused(contract.loss, 1) or named_unused(contract.train_step, 3):
        return "suspicious"
    if some:
        specs, leaves = subject.source.specs, trees.floats(output_for_loss(subject)).values()
        fitting = [
            {p for p, t in targets.items() if _fits(t, leaf, specs.get(p))} for leaf in leaves
        ]
        sure = any(paths and paths <= set(unread) for paths in fitting)
        return "violated" if sure else "suspicious"
    inputs = [t for _, t in batch.input_leaves() if isinstance(t, torch.Tensor)]
    for target in targets.values():
        varied = target.numel() > 1 and not bool((target == target.flatten()[0]).all())
        if not varied or any(trees.same(target, t) for t in inputs if t.shape == target.shape):
            continue
        leaves = trees.floats(output_for_loss(subject)).values()
        if batch.origin == "drawn" or (
            not isinstance(subject.contract.batch, DataLoader | Dataset)
            and any(_fits(target, leaf) for leaf in leaves)
        ):
            return "violated"
    return "suspicious"


def _fits(target: torch.Tensor, leaf: torch.Tensor, spec: TensorSpec | None = None) -> bool:
    """Say whether a target has the form that a criterion of torch compares with this output of the model."""
    if target.is_floating_point() or target.dtype == torch.bool:
        return leaf.numel() == target.numel()
    rows = target.dim() and leaf.dim() == target.dim() + 1 and len(leaf) == len(target)
    sizes = (leaf.shape[1], leaf.shape[-1]) if rows else ()
    return (
        1 not in sizes and bool(sizes) and (not isinstance(spec, Labels) or spec.classes in sizes)
    )
