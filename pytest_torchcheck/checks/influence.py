"""Inputs matter, recomputation changes nothing, and the output keeps its form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from .. import sources
from ..codes import behaviour as explain
from ..objects import trees
from ..objects.kinds import here
from ..probes.gradient.recompute_divergence import watch_checkpointing
from ..runs.facts import forward_facts, outputs
from ..runs.looks import REDRAWS
from ..runs.training.observation import observe
from ..state import seed_everything
from ..subject.errors import SubjectError
from ..verdicts import inconclusive, not_applicable, passed, suspicious

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from collections.abc import Set as AbstractSet

    from ..batches import Batch
    from ..findings import Finding
    from ..subject import Subject

_CLOSE = 1e-5  # relative: the order of summation differs between a kept and a recomputed activation


def input_influence(subject: Subject) -> Iterator[Finding]:
    """Change every input; look at the gradient of a random projection of the outputs to what changes nothing."""
    batch = subject.batch()
    inputs = {
        path: leaf
        for path, leaf in batch.input_leaves()
        if isinstance(leaf, torch.Tensor) and leaf.numel()
    }
    if not inputs:
        yield inconclusive("the model takes no tensor")
        return
    moving = _moving(subject, inputs.keys())
    moving |= _moving(subject, inputs.keys() - moving, awake=True)
    moot = [path for path in inputs if path not in moving]
    silent = {p for p in moot if inputs[p].is_floating_point() or inputs[p].is_complex()}
    if silent:
        few = subject.few(batch)  # what reaches two samples has an influence
        if few is not None:
            silent &= _without_gradient(subject, few, 0)
        for index, seed in ((0, 0), *REDRAWS[:2]) if silent else ():
            silent &= _without_gradient(subject, subject.batch(index), seed)
            if not silent:
                break
    # an input may act through comparisons and indices, which have no gradient: change it
    silent |= {p for p in moot if not (inputs[p].is_floating_point() or inputs[p].is_complex())}
    ignored = [
        path
        for path in inputs
        if path in silent
        and _has_no_effect(subject, path)
        and not _moves_beside_others(subject, inputs, path)
    ]
    # other values of an integer or boolean input are only certain to mean something else where
    # their domain is declared
    certain = [
        path
        for path in ignored
        if inputs[path].is_floating_point()
        or inputs[path].is_complex()
        or subject.source.has_domain(path)
    ]
    if certain:
        yield explain.ignored(subject, certain)
    elif ignored:
        yield inconclusive(
            f"changing {', '.join(ignored)} changed no output, but the meaning of its values "
            "is not declared",
            code="no-domain",
        )
    else:
        yield passed(f"{len(inputs)} of {len(inputs)} inputs have an influence on the output")


def _moving(subject: Subject, paths: AbstractSet[str], *, awake: bool = False) -> set[str]:
    """Name the inputs other values of which change an output for two samples in eval mode: they have an influence.

    Args:
        subject: The subject.
        paths: The inputs to change, one by one.
        awake: Look at other weights: a layer that is initialised to zero hides what comes before it.
    """
    few, other = subject.few(subject.batch()), subject.few(subject.batch(1))
    if few is None or other is None or not paths:
        return set()
    fresh = other.tensors()
    # where there is one leaf, nothing else could differ
    alone = len(list(few.input_leaves())) == 1
    moved = {path: other if alone else _with(few, path, fresh[path]) for path in sorted(paths)}
    try:
        if awake:
            before, *after = _outputs_awake(subject, [few, *moved.values()], train=False)
        else:
            before, after = outputs(subject, few), [outputs(subject, b) for b in moved.values()]
    except SubjectError:
        return set()  # the whole batch, and the gradient, decide
    return {path for path, made in zip(moved, after, strict=True) if _differ(before, made)}


def _outputs_awake(
    subject: Subject, batches: Iterable[Batch], *, train: bool, held: torch.Tensor | None = None
) -> list[Any]:
    """Return the outputs of some batches at weights that are moved at random, zeros most of all.

    Args:
        subject: The subject.
        batches: What the model is called with.
        train: The mode.
        held: Integers that the buffers of their dtype hold then, drawn at random: a queue of labels may be
            filled by the step alone.
    """
    with subject.pristine(steps=True) as model, torch.no_grad():
        model.train(train)
        generator = torch.Generator().manual_seed(subject.seed)
        for parameter in map(here, model.parameters()):
            if parameter.is_floating_point() and parameter.device.type != "meta":
                noise = torch.randn(parameter.shape, generator=generator).to(parameter)
                scale = 0.1 * float(parameter.detach().std(correction=0))
                parameter.add_(noise * max(scale, 0.02))
        for buffer in model.buffers() if held is not None else ():
            if held is not None and buffer.dtype == held.dtype and buffer.device.type != "meta":
                drawn = torch.randint(held.numel(), buffer.shape, generator=generator)
                buffer.copy_(held.flatten()[drawn.to(held.device)])
        made = []
        for batch in batches:
            seed_everything(subject.seed)
            made.append(subject.call(model, batch.clone()))
    return made


def _without_gradient(subject: Subject, batch: Batch, seed: int) -> set[str]:
    floating = {
        path
        for path, leaf in batch.input_leaves()
        if isinstance(leaf, torch.Tensor) and (leaf.is_floating_point() or leaf.is_complex())
    }
    try:
        with subject.backward(batch, seed=seed, loss="probe", inputs_require_grad=True) as done:
            leaves = dict(done.batch.input_leaves())
            return {
                p
                for p in floating
                if leaves[p].grad is None or not bool((trees.dense(leaves[p].grad) != 0).any())
            }
    except SubjectError:
        return (
            floating  # some operations refuse an input that requires a gradient: values decide then
        )


def _has_no_effect(subject: Subject, path: str) -> bool:
    """Say whether other values of one input leave every output bit-equal, in either mode."""
    batch = subject.batch()
    tensor = dict(batch.input_leaves())[path]
    changed = False
    for index in (1, 2):
        fresh = subject.batch(index).tensors()[path]
        if trees.same(fresh, tensor):
            fresh = tensor.flip(0) if tensor.dim() else tensor
        if trees.same(fresh, tensor):
            continue
        changed = True
        other = _with(batch, path, fresh)
        for train in (False, True):
            before = outputs(subject, train=train)
            try:
                after = outputs(subject, other, train=train)
            except SubjectError:  # values that do not fit the other inputs: they are read
                return False
            if _differ(before, after):
                return False
        if _changes_loss(subject, batch, other):
            return False
        # a layer that is initialised to zero hides every input: look at other weights too
        if _differ(*_outputs_awake(subject, (batch, other), train=True)):
            return False
        if _meets_buffers(subject, tensor, (batch, other)):
            return False
    return changed


def _meets_buffers(subject: Subject, values: torch.Tensor, batches: tuple[Batch, Batch]) -> bool:
    """Say whether batches that differ in integers give other outputs where buffers hold some of these integers."""
    held = [b for b in subject.model.buffers() if b.dtype == values.dtype and b.numel()]
    if not held or values.is_floating_point() or values.is_complex():
        return False
    try:
        return _differ(*_outputs_awake(subject, batches, train=True, held=values))
    except SubjectError:  # the buffers mean something else, such as positions
        return False


def _moves_beside_others(subject: Subject, inputs: dict[str, torch.Tensor], path: str) -> bool:
    """Say whether an input changes an output once no other input holds zeros: a mask of this batch hides it."""

    def shifted(where: str, leaf: Any) -> Any:
        floating = where in inputs and where != path and leaf.is_floating_point()
        return leaf.detach() + 1 if floating else leaf

    if not any(
        other != path and leaf.is_floating_point() and not bool(leaf.all())
        for other, leaf in inputs.items()
    ):
        return False
    batch = subject.batch().map(shifted, targets=False)
    value = subject.batch(1).tensors()[path]
    try:
        return _differ(outputs(subject, batch), outputs(subject, _with(batch, path, value)))
    except SubjectError:  # the model refuses such values
        return False


def _changes_loss(subject: Subject, batch: Batch, other: Batch) -> bool:
    """Say whether the loss differs between two batches: an output may hold what no tensor of it shows.

    A flow returns a distribution that keeps its condition in a function, and the loss calls it.
    """
    if not callable(subject.contract.loss):
        return False
    losses = []
    with subject.pristine() as model, torch.no_grad():
        model.eval()
        for each in (batch, other):
            ours = each.clone()
            seed_everything(subject.seed)
            losses.append(subject.compute_loss(subject.call(model, ours), ours))
    return not trees.same(*losses)


def _differ(first: Any, second: Any) -> bool:
    a, b = trees.tensors(first), trees.tensors(second)
    return any(name not in b or not trees.same(a[name], b[name]) for name in a)


def _with(batch: Batch, path: str, value: torch.Tensor) -> Batch:
    return batch.map(
        lambda where, leaf: value.detach().clone() if where == path else leaf, targets=False
    )


def checkpointing(subject: Subject) -> Iterator[Finding]:
    """Run the same step with recomputation and without it, and compare values."""
    subject.require_trainable()
    try:
        used = observe(subject).regions > 0
    except SubjectError:
        used = True  # then the step itself tells what it raises
    if used:
        with watch_checkpointing() as seen:
            kept = _step(subject)
        used = seen.regions > 0
    if not used:
        yield not_applicable("the forward uses no torch.utils.checkpoint")
        return
    with watch_checkpointing(disable=True):
        plain = _step(subject)
    wrong = {
        name: trees.apart(kept[name], value)
        for name, value in plain.items()
        if name in kept and not trees.same(kept[name], value)
    }
    missing = sorted(set(plain) - set(kept))
    gradients = {
        n: gap for n, gap in wrong.items() if n.startswith(("gradient ", "output")) and gap > _CLOSE
    }
    if gradients or missing:
        yield explain.recomputed(subject, gradients, missing, seen.regions)
        return
    buffers = [name.removeprefix("buffer ") for name in wrong if name.startswith("buffer ")]
    if buffers:
        owner = buffers[0].rpartition(".")[0]
        yield suspicious(
            "checkpoint-buffers",
            f"{buffers[0]} is updated twice per step under activation checkpointing",
            observed=f"{len(buffers)} buffers differ between a step with recomputation and one "
            "without",
            cause="the recomputation runs the module's forward a second time and updates its "
            "statistics again",
            because="outputs and gradients are equal, but these buffers are not",
            fix="keep modules with running statistics out of the checkpointed region, or halve "
            "their momentum",
            location=sources.of_parameter(subject.model, owner or buffers[0]),
        )
        return
    yield passed(
        f"{seen.regions} checkpointed regions: {len(plain)} outputs, gradients and buffers agree"
    )


def _step(subject: Subject) -> dict[str, torch.Tensor]:
    """Return outputs, gradients and buffers of one step, copied."""
    with subject.backward() as done:
        made = {path: trees.dense(t).clone() for path, t in trees.floats(done.output).items()}
        for name, parameter in subject.model.named_parameters():
            if parameter.grad is not None:
                made[f"gradient {name}"] = trees.dense(parameter.grad).clone()
        for name, buffer in subject.model.named_buffers():
            made[f"buffer {name}"] = trees.dense(buffer).clone()
    return made


def output_stability(subject: Subject) -> Iterator[Finding]:
    """Compare the structure of the output between the modes."""
    train, evaluated = (forward_facts(subject, train=mode).structure for mode in (True, False))
    first, second = dict(train), dict(evaluated)
    differing = [path for path in first if path in second and first[path] != second[path]]
    if differing:
        path = differing[0]
        yield suspicious(
            "output-differs",
            f"output{path} is {first[path]} in train mode and {second[path]} in eval mode",
            observed=f"{len(differing)} of {len(first)} outputs differ in dtype or number of "
            "dimensions",
            cause="what the forward returns depends on the mode",
            because=f"both forwards were given the same batch; train mode gave {first[path]}, "
            f"eval mode {second[path]}",
            fix="return the same structure and dtypes in both modes",
            location=sources.of_object(type(subject.model).forward),
        )
        return
    extra = len(set(first) ^ set(second))
    yield passed(
        f"{len(first)} outputs have the same dtype and number of dimensions in both modes"
        + (f"; {extra} exist in one mode only" if extra else "")
    )
