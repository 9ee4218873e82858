"""Backward succeeds, and every parameter and input gets a gradient that is neither dead nor broken."""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING, Final

import torch

from .. import sources
from ..codes import gradients as explain
from ..objects import trees
from ..objects.kinds import here
from ..probes.gradient.structural_zeros import structural_zeros
from ..runs.facts import forward_facts
from ..runs.layers import parameter_rows
from ..runs.looks import (
    HIDDEN,
    REDRAWS,
    hidden_by_data,
    hidden_by_hooks,
    shared_shifts,
    unhooked,
    unreached,
)
from ..runs.numerics import broken_in_eval
from ..runs.omitted import read_where_given
from ..runs.training.observation import observe
from ..runs.training.otherwise import in_live_memory, trained_in_step, written_by_step
from ..runs.training.stale_copies import MANY_STEPS, kept_copies
from ..runs.training.steps import trajectory, untrainable
from ..runs.variants.apart import overwritten_inputs
from ..state import seed_everything
from ..subject.errors import SubjectError
from ..subject.gradients import Gradients, clear_gradients, gradient_stats
from ..text.wording import names_text
from ..verdicts import inconclusive, not_applicable, passed, violated

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from torch import nn

    from ..findings import Finding, Status
    from ..subject import Subject


_BY_STEP: Final = "none: the train_step writes the values itself"
_KEPT: Final = "none: the train_step keeps them as copies of weights that train"
_CANCELS: Final = "none: a constant that cancels in the loss"


def backward(subject: Subject) -> Iterator[Finding]:
    """Run forward, loss and backward, then a training step, then backward again."""
    if not any(p.requires_grad for p in subject.model.parameters()):
        output = subject.forward(train=True)
        yield not_applicable(
            f"no parameter requires a gradient; the forward ran and gave {_describe(output)}"
        )
        return
    try:
        moved = trajectory(subject)
    except Exception:  # an error of the forward itself comes first
        subject.gradients()
        raise
    first = subject.gradients()  # a plain step has shown them already
    if moved.error is not None:
        raise moved.error
    yield passed(
        f"backward ran {len(moved.losses)} times, on a fresh model and after steps; loss {first.loss:.4g}",
        evidence={"losses": list(moved.losses)},
    )


def _describe(output: object) -> str:
    found = trees.tensors(output)
    return (
        ", ".join(f"{path} {list(t.shape)}" for path, t in list(found.items())[:3])
        or type(output).__name__
    )


def _needs_none(subject: Subject, name: str) -> bool:
    """Say whether a promise lets a parameter be without a gradient: it may lack one, or is to stay as it is."""
    return any(subject.is_promised(kind, name) for kind in ("MayLackGradient", "Frozen"))


def gradients_exist(subject: Subject) -> Iterator[Finding]:
    """Look for None and zero gradients; look again over batches, seeds and steps before judging."""
    if not any(p.requires_grad for p in subject.model.parameters()):
        if _is_to_train(subject):
            yield explain.nothing_trainable(subject)
        else:
            yield not_applicable("no parameter requires a gradient")
        return
    first = subject.gradients()
    live = set(first.names("live"))
    dead = {name: kind_of(first.stats[name].kind) for name in first.stats if name not in live}
    dead = {name: kind for name, kind in dead.items() if not _needs_none(subject, name)}
    _redrawn(dead, subject)
    if dead:
        _after_steps(subject, dead)
    otherwise = _moved_otherwise(subject, dead)
    elsewhere = unreached(subject, set(dead)) if dead else set()
    for name in elsewhere:
        dead.pop(name, None)
    shifts = shared_shifts(subject, [name for name, kind in dead.items() if kind == "zero"])
    for name in shifts:
        del dead[name]
    rounding = structural_zeros(subject, set(first.names("live")))
    zeros = [*rounding, *(name for name, kind in dead.items() if kind == "zero")]
    alone = hidden_by_data(subject, zeros)
    rounding = [name for name in rounding if name not in alone]
    for name in alone.keys() & set(dead):
        del dead[name]
    omitted = read_where_given(subject, [name for name, kind in dead.items() if kind == "none"])
    for name in omitted:
        del dead[name]
    if untrained := _untrained(subject):
        yield from explain.off(subject, [name for name, _ in untrained])
    none = [name for name, kind in dead.items() if kind == "none"]
    zero = [name for name, kind in dead.items() if kind == "zero"]
    total = len(first.stats)
    resting = list(_resting_copies(subject, none, total))
    table = {"gradients": parameter_rows(subject, first.stats)}
    if none:
        yield from _with_table(explain.missing(subject, none, total), table)
    yield from resting
    if omitted:
        yield from _with_table(explain.not_given(subject, omitted, total), table)
    if zero or rounding:
        found = explain.zero(subject, [*zero, *rounding], total, rounding=rounding)
        yield from _with_table(found, {} if none else table)
    for kind, why in HIDDEN.items():
        if hidden := sorted(name for name in alone if alone[name] == kind):
            yield inconclusive(
                f"{names_text(hidden)} got no gradient here: {why}", code="not-reached"
            )
    if elsewhere:
        yield inconclusive(
            f"{names_text(sorted(elsewhere))} got no gradient here: the data selected other "
            "modules of the same container, or another batch or initialisation reaches them",
            code="not-reached",
        )
    elif not (alone or none or resting or omitted or zero or rounding or untrained):
        otherwise[_CANCELS] = shifts
        yield from _with_gradients(first, subject, otherwise, table)


def _resting_copies(subject: Subject, none: list[str], total: int) -> Iterator[Finding]:
    """Take out of ``none`` what a step keeps as copies for its targets and was not seen to write to; tell of it."""
    kept = [name for name in none if name in kept_copies(subject)]
    none[:] = [name for name in none if name not in kept]
    for finding in explain.missing(subject, kept, total) if kept else ():
        yield finding.replace(
            status="suspicious",
            cause=f"the step calls it for targets alone, and none of {MANY_STEPS} steps writes to it",
            fix="bring it up to date in the step, or freeze it with requires_grad_(False)",
        )


def _moved_otherwise(subject: Subject, dead: dict[str, str]) -> dict[str, set[str]]:
    """Take out of ``dead`` what is moved all the same; return its names by what moves it."""
    if not dead:
        return {}
    found = {
        "in the train_step only": trained_in_step(subject, dead),
        _BY_STEP: written_by_step(subject, dead),
        _KEPT: {name for name, written in kept_copies(subject).items() if written and name in dead},
        "through another on the same memory": in_live_memory(subject, dead),
    }
    for name in set().union(*found.values()):
        del dead[name]
    return found


def _redrawn(dead: dict[str, str], subject: Subject) -> None:
    """Look for gradients in the steps taken, then with other batches and seeds, until every parameter has one."""
    if dead and subject.contract.train_step is None:
        # zero-initialised heads, gates and LoRA come alive there; what the optimizer raises is no gradient's fault
        with contextlib.suppress(SubjectError):
            for name in trajectory(subject).live:
                dead.pop(name, None)
    for index, seed in REDRAWS:
        if not dead:
            break
        again = subject.gradients(index, seed=seed)
        _merge(dead, again.stats)


def _untrained(subject: Subject) -> list[tuple[str, nn.Parameter]]:
    """Return the parameters promised to be trainable that require no gradient and do not move."""
    untrained = [
        (name, parameter)
        for name, parameter in subject.named_parameters().items()
        if not parameter.requires_grad and subject.is_promised("Trainable", name)
    ]
    if untrained:
        # the optimizer function or the step may switch it on
        moved = trajectory(subject).moved
        untrained = [(name, p) for name, p in untrained if not moved.get(name, 0.0)]
    return untrained


def _with_gradients(
    first: Gradients,
    subject: Subject,
    otherwise: Mapping[str, set[str]],
    table: dict[str, list[dict[str, Any]]],
) -> Iterator[Finding]:
    """Report how many parameters have a gradient, and how it is with the others.

    Args:
        first: The gradients of the base batch.
        subject: The subject.
        otherwise: Parameters by how they get one, or why they get none.
        table: Evidence.
    """
    promised = sum(_needs_none(subject, name) for name in first.stats)
    none = set().union(*(otherwise.get(how, ()) for how in (_BY_STEP, _KEPT, _CANCELS)))
    total = len(first.stats)
    told = f"{total - promised - len(none)} of {total} parameters have a gradient"
    for how, names in otherwise.items():
        if names:
            told += f"; {names_text(sorted(names))} {how}"
    if promised:
        told += f"; {promised} may lack one"
    frozen = [name for name in subject.named_parameters() if name not in first.stats]
    if frozen:
        told += f"; frozen: {names_text(frozen)}"
    yield passed(told, evidence={"norm": first.norm, **table})


def _with_table(findings: Iterator[Finding], table: Mapping[str, Any]) -> Iterator[Finding]:
    """Give the first of some findings a table as evidence: it concerns all of them."""
    for finding in findings:
        yield finding.replace(evidence={**finding.evidence, **table})
        table = {}


def _is_to_train(subject: Subject) -> bool:
    """Say whether a model with nothing trainable is meant to train: not where all of it is promised to stay.

    Nor is a frozen model that returns its own loss (a perceptual distance).
    """
    parameters = [name for name, _ in subject.model.named_parameters()]
    return (
        callable(subject.contract.loss)
        and bool(parameters)
        and not all(_needs_none(subject, name) for name in parameters)
        and untrainable(subject)
    )


def kind_of(kind: str) -> str:
    """Return ``none`` or ``zero`` for a gradient that is not live."""
    return "none" if kind == "none" else "zero"


def _merge(dead: dict[str, str], stats: Mapping[str, object]) -> None:
    """Drop what turned out to be live, and upgrade None to zero."""
    for name in list(dead):
        stat = stats.get(name)
        kind = getattr(stat, "kind", "none")
        if kind == "live":
            del dead[name]
        elif kind == "zero":
            dead[name] = "zero"


def _after_steps(subject: Subject, dead: dict[str, str]) -> None:
    """Look once more after two steps: zero-initialised heads, gates and LoRA come alive then."""
    with subject.pristine(steps=True, train=True) as model:
        trainable = [p for p in model.parameters() if p.requires_grad]
        for step in range(3):
            batch = subject.batch(step % 2).clone()
            clear_gradients(model)
            seed_everything(subject.seed + 10 + step)
            loss = subject.compute_loss(subject.call(model, batch), batch)
            with subject.phase("backward", batch):
                loss.backward()
            _merge(dead, gradient_stats(model))
            if not dead:
                return
            _normalised_step(trainable)


@torch.no_grad()
def _normalised_step(parameters: list[torch.nn.Parameter], relative: float = 1e-2) -> None:
    """Move each parameter along its gradient by a share of its own size, whatever the gradient's scale."""
    for parameter in parameters:
        grad = parameter.grad
        if grad is None:
            continue
        grad = trees.dense(grad)
        norm = torch.linalg.vector_norm(grad)
        if not torch.isfinite(norm) or norm == 0:
            continue
        part = here(parameter)
        size = torch.linalg.vector_norm(part.detach()).clamp_min(math.sqrt(part.numel()) * 1e-1)
        part.sub_((grad * (relative * size / norm)).to(parameter.dtype))


def gradients_finite(subject: Subject) -> Iterator[Finding]:
    """Look for NaN and infinity in loss and gradients of the base batch, and in its outputs in eval mode.

    What eval mode gives is run without gradients, as in use: kernels that only run there count too.
    NaN and infinities that the model writes on purpose, as -inf for masked scores, are none of these. Whole
    numbers of 8 or 16 bits may not wrap around, and neighbours among positions in half precision may not become
    one number, at this size or at the largest that is declared. Hooks on parameters are laid aside: they may hide NaN.
    """
    trained = any(p.requires_grad for p in subject.model.parameters())
    if trained:
        seen = subject.gradients()
        broken = [name for name, stat in seen.stats.items() if not stat.finite]
        if broken or not math.isfinite(seen.loss):
            yield from explain.non_finite(subject, outputs=[], grads=broken, loss=seen.loss)
            return
        if hidden := hidden_by_hooks(subject):
            with unhooked(subject.model):
                found = list(
                    explain.non_finite(subject, outputs=[], grads=list(hidden), loss=seen.loss)
                )
            status: Status = "violated" if any(hidden.values()) else "suspicious"
            for one in found:
                yield one.replace(
                    status=status, cause=f"{one.cause}; a hook puts other numbers in its place"
                )
            return
    outputs: list[str] = []
    # of a model that trains, what raises in eval mode is told by the checks of eval mode
    with contextlib.suppress(SubjectError) if trained else contextlib.nullcontext():
        outputs = broken_in_eval(subject)
    if outputs:
        yield from explain.non_finite(subject, outputs=outputs, grads=[], loss=None)
        return
    if not trained:
        yield passed("the outputs are finite; no parameter requires a gradient")
        return
    # on another device or dtype the same numbers are whole, and of the same dtype
    if subject.dtype is None and (over := observe(subject).signals.wrapped):
        yield explain.wrapped(over[0])
        return
    for run in observe(subject).signals.merged if subject.dtype is None else ():
        largest = _largest(subject, run.size)
        if run.left < run.size or largest - 1 > run.most:  # positions begin with 0
            yield explain.merged(run, largest)
            return
    yield passed(
        f"loss {seen.loss:.4g} and {len(seen.stats)} gradients are finite, norm {seen.norm:.3g}"
    )


def _largest(subject: Subject, size: int) -> int:
    """Return the largest size that is declared of what has one in the base batch; 0 where nothing is."""
    sizes, symbols = subject.batch().sizes, subject.source.symbols
    alike = [symbols[name] for name, value in sizes.items() if value == size and name in symbols]
    return max((span.high for span in alike if span.declared), default=0)


def inputs_unchanged(subject: Subject) -> Iterator[Finding]:
    """Compare every input before and after a forward in both modes.

    A block of the model that activates its own input in place overwrites what its skip connection or its caller reads:
    with a copy there, the output may not be another one.
    """
    for train in (False, True):
        seen = forward_facts(subject, train=train)
        if seen.changed_inputs:
            yield from explain.changed_inputs(subject, list(seen.changed_inputs), train=train)
            return
        if seen.containers[0] != seen.containers[1]:
            yield violated(
                "input-container",
                "the forward changes a list or dict that its caller owns",
                observed=f"entries before the call: {_short(seen.containers[0])}; "
                f"after it: {_short(seen.containers[1])}",
                cause="forward adds, removes or replaces an entry of a container that it received",
                because="the containers' entries differ before and after the call",
                fix="copy the container first: batch = dict(batch)",
                location=sources.of_object(type(subject.model).forward),
            )
            return
    if (written := overwritten_inputs(subject)) is not None:
        yield explain.overwritten_input(subject, written)
        return
    if not seen.inputs:
        yield inconclusive("the model takes no tensor that it could change")
        return
    yield passed(f"{seen.inputs} inputs are bit-equal after forwards in eval and train mode")


def _short(shape: tuple[tuple[str, str], ...]) -> str:
    return ", ".join(path for path, _ in shape[:6]) or "none"
