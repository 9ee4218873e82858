"""Does accumulating over micro-batches give the full batch's gradient?

Both are computed in float64 on the same weights, with dropout and batch statistics off, so that only the
way the loop divides and adds can make a difference. The accumulated gradient is taken as it stands after
the last backward pass before the optimizer's step.
"""

from __future__ import annotations

import contextlib
import functools
import math
from dataclasses import field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from .. import sources
from ..lean import dataclass
from ..record.tracing import line_of
from ..state import seed_everything
from ..subject.errors import SubjectError, UnmeasurableError
from ..subject.gradients import clear_gradients
from .closures import kept
from .micro import (
    call_micro_step,
    counts_of,
    divisible,
    parts_of,
    valid_targets,
    with_unequal_counts,
)
from .naming import name_called_on, user_frame

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..batches import Batch
    from ..findings import Location
    from ..subject import Subject

Gradients = dict[str, torch.Tensor]

_EXACT = 1e-6
"""How near the micro-batches' gradients must add up to the whole one's, in float64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """An accumulated gradient beside the full batch's.

    Attributes:
        passes: Backward passes before the step.
        error: Norm of the difference, relative to the full gradient's.
        ratio: Length of the accumulated gradient along the full one.
        residual: What is left of it across, relative: 0 where they are parallel.
        means: Relative distance to the mean of the micro-batches' own gradients.
        last: Relative distance to the last micro-batch's own gradient, up to a factor.
        whole: Whether the first pass alone gives the full gradient: nothing was split.
        applied: The same of what stands in the gradients when the optimizer steps.
        worst: Parameters that differ most, the worst first.
        dtype: In which they were computed.
        difference: What the accumulated gradient has more than the full batch's.
        weights: How much each micro-batch counts in the full gradient; empty where that is no sum
            of theirs, as of a loss that relates samples to each other.
        counts: Valid targets of each micro-batch, where targets are labels.
        loss: Name of the tensor that backward is called on, and the line that makes it.
        place: Line of the backward pass.
    """

    passes: int
    error: float
    ratio: float
    residual: float
    means: float
    last: float
    applied: float
    whole: bool
    worst: tuple[str, ...]
    dtype: str
    counts: tuple[int, ...]
    difference: Gradients = field(repr=False, compare=False)
    weights: tuple[float, ...] = ()
    loss: str = ""
    loss_place: Location | None = None
    place: Location | None = None

    @property
    def related(self) -> bool:
        """Whether the accumulated gradient is something known, which the difference is large beside."""
        return min(self.residual, self.means, self.last) < self.error / 100


@dataclass(slots=True)
class _Capture:
    """What stands in the gradients after each backward pass, until the optimizer steps."""

    model: nn.Module
    gradients: Gradients = field(default_factory=dict)
    first: Gradients = field(default_factory=dict)
    applied: Gradients = field(default_factory=dict)
    passes: int = 0
    stepped: bool = False
    place: Location | None = None
    loss: str = ""
    function: Any = None
    untaken: frozenset[int] = frozenset()

    def after_backward(self, root: Any) -> None:
        if self.stepped:
            return
        self.gradients = gradients_of(self.model)
        self.first = self.first or self.gradients
        self.passes += 1
        frame = user_frame()
        self.place = sources.of_frame(frame)
        self.loss = name_called_on(frame, root)
        code = frame.f_code if frame is not None else None
        if frame is not None and code is not self.function:
            self.untaken = sources.untaken_in(frame)
        self.function = code


def compare(
    subject: Subject, n: int, micro_step: Callable[..., Any] | None, *, unequal: bool
) -> Comparison | None:
    """Run the user's accumulation and the full batch once each, and compare their gradients.

    Args:
        subject: With a loss.
        n: How many micro-batches.
        micro_step: As promised; used where the contract declares no train step.
        unequal: Mark targets as ignored, so that the micro-batches have unequal counts.

    Returns:
        The comparison, or None where ``unequal`` cannot be had.
    """
    if unequal and with_unequal_counts(subject, divisible(subject, n)) is None:
        return None
    with subject.pristine(steps=True), in_double_without_noise(subject) as (model, dtype):
        batch, parts = divided(subject, n, dtype, unequal=unequal)
        full = _full(subject, model, batch)
        capture = _accumulated(subject, model, batch, n, micro_step)
        micro = [_full(subject, model, part) for part in parts]
    return _compare(
        capture,
        full,
        micro,
        str(dtype or torch.float32).removeprefix("torch."),
        counts_of(subject, batch, n),
    )


def divided(
    subject: Subject, n: int, dtype: torch.dtype | None, *, unequal: bool
) -> tuple[Batch, list[Batch]]:
    """Return the batch that is compared, and its parts."""
    batch = divisible(subject, n)
    changed = with_unequal_counts(subject, batch) if unequal else None
    batch = (changed or batch).to(dtype=dtype).clone()
    return batch, parts_of(subject, batch, n)


@contextlib.contextmanager
def in_double_without_noise(subject: Subject) -> Iterator[tuple[nn.Module, torch.dtype | None]]:
    """Give the model as :func:`compare` runs it."""
    with _in_double(subject) as (model, dtype), without_noise(model):
        yield model, dtype


@contextlib.contextmanager
def _in_double(subject: Subject) -> Iterator[tuple[nn.Module, torch.dtype | None]]:
    """Give the model in float64, or as it is where it cannot run so."""
    try:
        with subject.in_double() as model, torch.no_grad():
            subject.call(model, subject.batch().to(dtype=torch.float64).clone())
        wide = True
    except SubjectError:
        wide = False
    if wide:
        with subject.in_double() as model:
            yield model, torch.float64
    else:
        yield subject.model, None


@contextlib.contextmanager
def without_noise(model: nn.Module) -> Iterator[None]:
    """Hold the model in eval mode, whatever the loop says: no dropout, no batch statistics."""
    model.eval()
    kept_ = {name: module.__dict__.get("train") for name, module in model.named_modules()}
    for module in model.modules():
        module.__dict__["train"] = lambda mode=True, module=module: module
    try:
        yield
    finally:
        for name, module in model.named_modules():
            if kept_.get(name) is None:
                module.__dict__.pop("train", None)
            else:
                module.__dict__["train"] = kept_[name]


def gradients_of(model: nn.Module) -> Gradients:
    """Copy the gradients of a model, in float64; zeros where there is none."""
    return {
        name: torch.zeros_like(p, dtype=torch.float64)
        if p.grad is None
        else (p.grad.to_dense() if p.grad.layout != torch.strided else p.grad)
        .detach()
        .double()
        .clone()
        for name, p in model.named_parameters()
        if p.requires_grad
    }


def _full(subject: Subject, model: nn.Module, batch: Batch) -> Gradients:
    """Return the gradient of the declared loss over a whole batch."""
    clear_gradients(model)
    seed_everything(subject.seed)
    batch = batch.clone()
    with torch.enable_grad():
        loss = subject.compute_loss(subject.call(model, batch), batch)
        if not loss.requires_grad:
            raise UnmeasurableError(
                "micro-batches are compared in eval mode, in which the loss has no graph"
            )
        with subject.phase("backward", batch):
            torch.autograd.backward(loss)
    found = gradients_of(model)
    clear_gradients(model)
    return found


def _accumulated(
    subject: Subject, model: nn.Module, batch: Batch, n: int, micro_step: Callable[..., Any] | None
) -> _Capture:
    """Run the train step on the whole batch; on ``n`` parts where one call is one part; else the micro step."""
    parts = parts_of(subject, batch, n)
    capture = None
    if subject.contract.train_step is not None:
        for batches in ([batch], parts):
            capture = _run(subject, model, functools.partial(_step_all, subject, model, batches))
            if capture.stepped and capture.passes > 1:
                return capture
    if micro_step is not None:
        whole = valid_targets(subject, batch)
        return _run(
            subject,
            model,
            functools.partial(_micro_steps, subject, model, micro_step, parts, whole),
        )
    assert capture is not None
    return capture


def _step_all(subject: Subject, model: nn.Module, batches: list[Batch], optimizer: Any) -> None:
    for part in batches:
        subject.train_step(model, optimizer, part.clone())


def _micro_steps(
    subject: Subject,
    model: nn.Module,
    function: Callable[..., Any],
    parts: list[Batch],
    whole: int,
    optimizer: Any,
) -> None:
    for place, part in enumerate(parts):
        with subject.phase("step", part):
            call_micro_step(function, model, optimizer, part.clone(), place, len(parts), whole)


def _run(subject: Subject, model: nn.Module, call: Callable[[Any], None]) -> _Capture:
    contract = subject.contract
    clear_gradients(model)
    capture = _Capture(model)
    values = {name: p.detach().clone() for name, p in model.named_parameters()}
    original = torch.autograd.backward

    def backward(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        root = args[0] if args else kwargs.get("tensors")
        capture.after_backward(root[0] if isinstance(root, list | tuple) else root)
        return result

    def stepping(*_: Any) -> None:
        if not capture.stepped:
            capture.applied = gradients_of(model)
        capture.stepped = True

    with kept(contract.train_step, contract.optimizer, without=(model,)):
        seed_everything(subject.seed)
        optimizer = subject.make_optimizer(model)
        handle = register_optimizer_step_pre_hook(stepping)
        torch.autograd.backward = backward
        try:
            call(optimizer)
        finally:
            torch.autograd.backward = original
            handle.remove()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(values[name])
    clear_gradients(model)
    return capture


def flat(gradients: Gradients) -> torch.Tensor:
    """Return all gradients as one vector of shape ``(n,)``; one float64 zero where there are none."""
    return (
        torch.cat([g.flatten() for g in gradients.values()])
        if gradients
        else torch.zeros(1, dtype=torch.float64)
    )


def _compare(
    capture: _Capture, full: Gradients, micro: list[Gradients], dtype: str, counts: tuple[int, ...]
) -> Comparison:
    got = capture.gradients or {name: torch.zeros_like(g) for name, g in full.items()}
    a, b = flat(got), flat(full)
    size = float(b.norm()) or 1.0
    ratio = float(a @ b) / size**2
    means = sum((flat(m) for m in micro), torch.zeros_like(b)) / max(len(micro), 1)
    last = flat(micro[-1])
    worst = sorted(full, key=lambda name: -float((got[name] - full[name]).norm()))
    return Comparison(
        passes=capture.passes,
        error=float((a - b).norm()) / size,
        ratio=ratio,
        residual=float((a - ratio * b).norm()) / size,
        means=float((a - means).norm()) / size,
        last=_across(a, last),
        whole=bool(capture.first) and float((flat(capture.first) - b).norm()) <= _EXACT * size,
        applied=_across(flat(capture.applied), last) if capture.applied else math.inf,
        worst=tuple(worst[:4]),
        dtype=dtype,
        counts=counts,
        difference={name: got[name] - full[name] for name in full},
        weights=_weights(b, [flat(m) for m in micro]),
        loss=capture.loss,
        loss_place=_bound_at(capture),
        place=capture.place,
    )


def _weights(full: torch.Tensor, parts: list[torch.Tensor]) -> tuple[float, ...]:
    """Return the factors with which the parts add up to the whole; nothing where they do not, or not in one way."""
    rows, full = torch.stack(parts).cpu(), full.cpu()  # CUDA has no solver for dependent rows
    found = torch.linalg.lstsq(rows @ rows.T, rows @ full, driver="gelsd").solution
    near = float((found @ rows - full).norm()) <= _EXACT * float(full.norm())
    distinct = int(torch.linalg.matrix_rank(rows @ rows.T, hermitian=True)) == len(parts)
    return tuple(found.tolist()) if near and distinct else ()


def _across(vector: torch.Tensor, direction: torch.Tensor) -> float:
    """Return what is left of a vector across a direction, relative to its own length."""
    along = float(vector @ direction) / max(float(direction @ direction), 1e-300)
    return float((vector - along * direction).norm()) / max(float(vector.norm()), 1e-300)


def _bound_at(capture: _Capture) -> Location | None:
    """Return the last line of the function that binds the loss's name, in no branch that is ruled out."""
    if not capture.loss or capture.function is None:
        return None
    import dis

    lines: list[int] = []
    line = 0
    for instruction in dis.get_instructions(capture.function):
        line = instruction.starts_line or line
        stores = instruction.opname.startswith("STORE") and instruction.argval == capture.loss
        if stores and line not in capture.untaken:
            lines.append(int(line))
    return line_of(capture.function, lines[-1]) if lines else None
