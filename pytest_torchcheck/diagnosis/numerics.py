"""Inputs at the edge of their domain and in other layouts: how they are made, and what went wrong."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any

import torch

from .. import sources, trees
from ..findings import Culprit, Finding
from ..probes.finiteness import NonFinite, find_nonfinite, find_overflow
from ..specs.domains import Uniform
from ..state import seed_everything
from ..subject import SubjectError, clear_gradients
from ..verdicts import explained
from .errors import explain_error
from .explanation import listed
from .gradients import evidence_of, remedy, writers

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..batches import Batch
    from ..findings import Location, Status
    from ..subject import Subject


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """One degenerate sample.

    Attributes:
        name: Such as ``all zero``.
        paths: Floating inputs that take it.
        values: What they are filled with; for a pair of equal inputs the path of the other one.
        declared: Whether the contract declares a range that holds the values.
    """

    name: str
    paths: tuple[str, ...]
    values: dict[str, float | str]
    declared: bool


def patterns(subject: Subject, batch: Batch) -> list[Pattern]:
    """Return the degenerate samples that lie in the domain of the inputs: the declared range, else the one seen."""
    spans = {path: span for path, span in _spans(subject, batch).items() if span is not None}
    if not spans:
        return []
    paths = tuple(spans)
    declared = all(known for _, _, known in spans.values())
    found = []
    if all(low <= 0.0 <= high for low, high, _ in spans.values()):
        found.append(
            Pattern(
                name="all zero", paths=paths, values=dict.fromkeys(paths, 0.0), declared=declared
            )
        )
    constants: list[tuple[str, dict[str, float | str]]] = [
        ("constant", {path: low + 0.75 * (high - low) for path, (low, high, _) in spans.items()})
    ]
    if declared:
        constants.append(
            ("at the low end of its range", {path: span[0] for path, span in spans.items()})
        )
        constants.append(
            ("at the high end of its range", {path: span[1] for path, span in spans.items()})
        )
    for name, values in constants:
        if all(values != known.values for known in found):
            found.append(Pattern(name=name, paths=paths, values=values, declared=declared))
    tensors = batch.tensors()
    pairs = [
        Pattern(
            name=f"{second} equal to {first}",
            paths=(second,),
            values={second: first},
            declared=False,
        )
        for first, second in combinations(paths, 2)
        if tensors[first].shape == tensors[second].shape
    ]
    return [
        *pairs[:1],
        *found,
    ]  # a pair of zeros is a pair of equals: the more telling name comes first


def _spans(subject: Subject, batch: Batch) -> dict[str, tuple[float, float, bool] | None]:
    """Return low, high and whether they are declared, of every floating input that holds measurements."""
    spans: dict[str, tuple[float, float, bool] | None] = {}
    for path, tensor in batch.input_leaves():
        if (
            not isinstance(tensor, torch.Tensor)
            or not tensor.is_floating_point()
            or tensor.dim() < 2
        ):
            continue
        if tensor.layout != torch.strided or not tensor.numel() or "mask" in path.lower():
            continue
        spec = subject.source.specs.get(path)
        domain = spec.values if spec is not None else None
        if isinstance(domain, Uniform):
            spans[path] = domain.low, domain.high, True
            continue
        if domain is not None and type(domain).__name__ != "Normal":
            continue  # unit vectors, probabilities, one-hot rows
        low, high = float(tensor.min()), float(tensor.max())
        if bool(((tensor == low) | (tensor == high)).all()) or not torch.isfinite(tensor).all():
            continue  # a mask, whatever its name
        spans[path] = low, high, False
    return spans


def degenerate(
    subject: Subject, batch: Batch, chosen: list[Pattern], *, whole: bool = False
) -> Batch:
    """Put patterns into a batch: the first into the first sample, and so on; or one into all of it."""
    axes = subject.source.axes(subject.source.batch_symbol) if subject.source.batch_symbol else {}
    tensors = batch.tensors()

    def change(path: str, leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        made = leaf.detach().clone()
        for row, pattern in enumerate(chosen):
            if path not in pattern.paths:
                continue
            axis = axes.get(path)
            value = pattern.values[path]
            everything = whole or axis is None
            target = made if everything else made.select(axis or 0, row)
            if isinstance(value, str):
                source = tensors[value]
                target.copy_(
                    source if everything else source.select(axes.get(value, axis) or 0, row)
                )
            else:
                target.fill_(value)
        return made.requires_grad_(leaf.requires_grad)

    return batch.map(change, targets=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """What is not finite after one forward and backward: outputs, the loss, gradients."""

    outputs: tuple[str, ...]
    loss: bool
    gradients: tuple[str, ...]

    @property
    def several(self) -> bool:
        """Whether more than one thing is meant."""
        return len(self.outputs[:2]) + self.loss > 1

    def __bool__(self) -> bool:
        return bool(self.outputs or self.loss or self.gradients)

    def __str__(self) -> str:
        parts = [*self.outputs[:2], *(["the loss"] if self.loss else [])]
        if self.gradients and not parts:
            parts.append(f"the gradient of {listed(list(self.gradients), 2)}")
        return " and ".join(parts)


def step(subject: Subject, batch: Batch) -> Trouble:
    """Run forward, loss and backward in training mode and look for NaN and infinity.

    Raises:
        SubjectError: Something raised.
    """
    model = subject.model
    if not any(p.requires_grad for p in model.parameters()):
        outputs = trees.floats(subject.forward(batch, train=True))
        return Trouble(outputs=_broken(outputs), loss=False, gradients=())
    with subject.backward(batch) as done:
        assert done.loss is not None
        bad = [
            name
            for name, p in model.named_parameters()
            if p.grad is not None and not bool(torch.isfinite(trees.dense(p.grad)).all())
        ]
        return Trouble(
            outputs=_broken(trees.floats(done.output)),
            loss=not bool(torch.isfinite(done.loss.detach()).all()),
            gradients=tuple(bad),
        )


def _broken(outputs: dict[str, torch.Tensor]) -> tuple[str, ...]:
    return tuple(path for path, t in outputs.items() if bool(torch.isnan(trees.dense(t)).any()))


def watched(subject: Subject, batch: Batch, *, train: bool = True) -> NonFinite | None:
    """Run the same step again and return the operation that made the first NaN or infinity."""

    def run() -> Any:
        copy = batch.clone()
        model = subject.model
        clear_gradients(model)
        model.train(train)
        seed_everything(subject.seed)
        output = subject.call(model, copy)
        if not train:
            return output
        loss = subject.compute_loss(output, copy)
        if loss.requires_grad:
            (loss if loss.dim() == 0 else loss.sum()).backward()
        return loss

    with subject.pristine():
        try:
            with torch.set_grad_enabled(train):
                return find_nonfinite(run, subject.model)
        except SubjectError:
            return None


def overflowing(subject: Subject, batch: Batch) -> NonFinite | None:
    """Return what computes the first infinity of the forward in eval mode, where float64 computes none."""

    def first(model: torch.nn.Module, batch: Batch) -> NonFinite | None:
        model.eval()
        seed_everything(subject.seed)
        return find_overflow(lambda: subject.call(model, batch), model)

    with subject.pristine():
        found = first(subject.model, batch.clone())
    return found if found is not None and in_double(subject, first) is None else None


def place_of(found: NonFinite | None) -> tuple[str, Location | None]:
    """Return words for the operation and module, and the line."""
    if found is None:
        return "an operation", None
    inside = f" in {found.module}" if found.module else ""
    return f"{found.op.name}{inside}", found.location


def culprits_of(found: NonFinite | None, names: tuple[str, ...]) -> list[Culprit]:
    """Name the module and the operation, else the parameters."""
    made = writers(found)
    if found is not None and found.module:
        made.append(
            Culprit(kind="module", name=found.module, detail=found.fact, location=found.location)
        )
    if found is not None:
        made.append(
            Culprit(kind="call", name=found.op.name, detail=found.fact, location=found.location)
        )
    return made or [Culprit(kind="parameter", name=name) for name in names[:4]]


def edge(subject: Subject, batch: Batch, what: str, trouble: Trouble, *, status: Status) -> Finding:
    """Explain a NaN at the edge of the domain.

    Args:
        subject: The model under test.
        batch: The batch that shows it.
        what: The edge in words, such as ``an input that is all zero``.
        trouble: What is not finite.
        status: ``violated`` where the contract declares the domain, else ``suspicious``.
    """
    found = watched(subject, batch)
    op, place = place_of(found)
    kind = found.kind if found is not None else "nan"
    word = "NaN" if kind == "nan" else "infinity"
    cause, fix = remedy(found, forward=found is None or found.phase == "forward")
    return Finding(
        status=status,
        code="edge-non-finite",
        summary=f"{trouble} {'become' if trouble.several else 'becomes'} NaN or infinite for {what}",
        culprits=tuple(culprits_of(found, trouble.gradients)),
        location=place,
        observed=f"{batch.describe()[:200]}: {trouble} {'are' if trouble.several else 'is'} not finite; on an ordinary batch all is finite",
        cause=f"{op} makes the first {word}: {cause}"
        + (", in the backward" if found and found.phase == "backward" else ""),
        because=evidence_of(found),
        fix=fix,
    )


Outputs = dict[str, torch.Tensor]


def in_double(subject: Subject, run: Callable[[Any, Batch], Any]) -> Any:
    """Run something with the model and the base batch in float64; None where the model does not run in it."""
    with subject.in_double() as model:
        batch = subject.batch().to(dtype=torch.float64).clone()
        seed_everything(subject.seed)
        try:
            return run(model, batch)
        except SubjectError:
            return None


def transposed(batch: Batch) -> Batch:
    """Return a copy whose tensors of three axes lie in memory with the last two exchanged, as permuted data does."""

    def change(_path: str, leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or leaf.layout != torch.strided or leaf.dim() != 3:
            return leaf
        made = leaf.detach().transpose(-1, -2).contiguous().transpose(-1, -2)
        return made.requires_grad_(leaf.requires_grad)

    return batch.clone().map(change, targets=False)


def moved(subject: Subject, kind: str, error: SubjectError) -> Finding:
    """Report a crash that another memory layout of the input causes."""
    with subject.pristine():
        known = explain_error(
            error.error,
            phase="forward",
            model=subject.model,
            batch=error.batch,
            rerun=error.rerun,
            device=str(subject.device),
        )
    words = kind.replace("_", "-")
    return explained(
        known,
        "suspicious",
        code="layout-crash",
        summary=f"{words} inputs crash: {known.summary}",
        location=known.location or sources.of_error(error.error),
        because=f"the same values in contiguous memory run; {known.because}",
        fix=known.fix or "use reshape instead of view",
    )
