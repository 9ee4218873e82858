"""Steps on inputs that are constant, huge or tiny, or in low precision, and what of them is not finite."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, Any

import torch

from ..batches.read import is_dense
from ..explanation import listed
from ..lean import dataclass
from ..objects import trees
from ..objects.kinds import finite, here
from ..probes.numbers.domains import holds_nonfinite, readable_values
from ..probes.numbers.finiteness import find_nonfinite
from ..specs.domains import Uniform
from ..state import seed_everything
from ..subject.errors import SubjectError
from ..subject.gradients import clear_gradients
from ..text.printable import message_of
from .facts import forward_facts

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from ..batches import Batch
    from ..probes.numbers.domains import NonFinite
    from ..subject import Subject
    from .outputs import Outputs


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
        if not trees.computable(tensor) or not tensor.numel() or "mask" in path.lower():
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
            if p.grad is not None and not finite(trees.dense(p.grad))
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


def broken_in_eval(subject: Subject) -> list[str]:
    """Name the outputs of the base batch, in eval mode without gradients, that are NaN or +inf by mistake.

    Nothing is told of a batch whose inputs are not finite, nor of NaN and infinities that the model
    writes as constants: those mark masked or missing entries. An infinity counts only where an
    operation is known that computes it; -inf is the logarithm of a probability of 0.

    Raises:
        SubjectError: The model raises in eval mode.
    """
    batch = subject.batch()
    given = (leaf for _, leaf in batch.input_leaves() if isinstance(leaf, torch.Tensor))
    found = {
        path: t
        for path, tensor in forward_facts(subject).outputs.items()
        if readable_values(tensor)
        and (t := trees.dense(tensor)).numel()
        and bool((~t.isfinite() if t.is_complex() else t.isnan() | t.isposinf()).any())
    }
    if not found or any(holds_nonfinite(t) for t in given if readable_values(t)):
        return []
    broken = []
    for path, tensor in found.items():
        with subject.pristine():
            at = find_nonfinite(eval_forward(subject, [path]), subject.model)
        if at is None or at.origin != "computed":
            wrong = at is None or at.origin != "constant"
            wrong &= bool(tensor.isnan().any())
        else:
            wrong = at.kind == "nan" or at.upward
        broken += [path] if wrong else []
    return broken


def eval_forward(subject: Subject, paths: Collection[str]) -> Callable[[], list[torch.Tensor]]:
    """Return a function that runs the base batch in eval mode without gradients and returns some outputs."""

    def run() -> list[torch.Tensor]:
        batch = subject.batch().clone()
        subject.model.train(False)
        seed_everything(subject.seed)
        with torch.no_grad():
            made = trees.floats(subject.call(subject.model, batch))
        return [t for path, t in made.items() if path in paths]

    return run


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
        if not is_dense(leaf) or leaf.dim() != 3:
            return leaf
        made = leaf.detach().transpose(-1, -2).contiguous().transpose(-1, -2)
        return made.requires_grad_(leaf.requires_grad)

    return batch.clone().map(change, targets=False)


_NO_KERNEL = (
    "not implemented for 'Half'",
    "not implemented for 'BFloat16'",
    "not implemented for 'ComplexHalf'",
)


def evaluate(subject: Subject, model: torch.nn.Module, batch: Batch) -> Outputs:
    """Return the floating outputs of a model in eval mode, detached."""
    model.eval()
    with torch.no_grad():
        return {
            path: trees.dense(t) for path, t in trees.floats(subject.call(model, batch)).items()
        }


def step_in(subject: Subject, model: torch.nn.Module, batch: Batch) -> bool:
    """Say whether a training step of this model makes NaN or infinity."""
    model.train()
    for parameter in model.parameters():
        parameter.grad = None
    loss = subject.compute_loss(subject.call(model, batch), batch)
    if loss.requires_grad:
        with subject.phase("backward", batch):
            loss.sum().backward()
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    return not all(finite(trees.dense(t)) for t in (loss.detach(), *grads))


def breaks(tensor: torch.Tensor, exact: torch.Tensor | None) -> bool:
    """Say whether an output is not finite where the exact one is: a mask's -inf is meant."""
    bad = ~torch.isfinite(trees.dense(tensor))
    known = None if exact is None else trees.dense(exact)
    if known is not None and known.shape == bad.shape:
        bad &= torch.isfinite(known)
    return bool(bad.any())


def no_kernel(error: BaseException) -> bool:
    """Say whether an error only means that this device has no kernel for a low-precision dtype."""
    return any(text in message_of(error) for text in _NO_KERNEL)


LOST = 0.5  # relative error of a low-precision output in which no digit is right


SENSITIVE = 30.0


def rounded(subject: Subject, model: torch.nn.Module, batch: Batch, exact: Outputs) -> float:
    """Return how far random rounding of the weights moves the outputs, the largest of three draws."""
    assert subject.dtype is not None
    eps = torch.finfo(subject.dtype).eps
    generator = torch.Generator().manual_seed(subject.seed)
    held = map(here, model.parameters())
    weights = [(p, p.detach().clone()) for p in held if p.is_floating_point()]
    largest = 0.0
    for _ in range(3):
        with torch.no_grad():
            for parameter, value in weights:
                noise = torch.randn(value.shape, generator=generator, dtype=value.dtype).to(
                    value.device
                )
                parameter.copy_(value * (1 + eps * noise))
        seed_everything(subject.seed)
        for path, tensor in evaluate(subject, model, batch.clone()).items():
            if path in exact and exact[path].shape == tensor.shape:
                largest = max(largest, trees.apart(tensor, exact[path]))
    return largest
