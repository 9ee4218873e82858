"""One training pass in two ways: how far outputs, gradients and buffers of the second are from the first.

The oracle is float64 on the CPU; what rounding may do is measured, by a second run that only rounds.
"""

from __future__ import annotations

import contextlib
import copy
from dataclasses import field
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

from ..lean import dataclass
from ..objects import trees
from ..record.hooks import hooked
from ..state import ModuleState, is_lazy, seed_everything
from ..subject.errors import SubjectError, UnmeasurableError
from ..subject.losses import probe_loss
from ..text.printable import message_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..batches import Batch
    from ..subject import Subject

NO_ORACLE = "no-oracle"
"""Code where nothing exact is there to compare with."""
NOT_COPIED = "the model cannot be copied: there is nothing to compare with"
Part = Literal["output", "gradient", "buffer"]
Tensors = dict[str, torch.Tensor]
_SMALL: dict[Part, float] = {"output": 1e-3, "gradient": 0.1, "buffer": 1e-3}
"""Of the largest tensor of its part: below, a tensor is measured against the others. Gradients that are zero by
structure (a bias before a normalisation, the bias of keys) are nothing but rounding."""


@dataclass(slots=True, kw_only=True)
class Run:
    """What one pass gave, as float64 on the CPU.

    Attributes:
        output: By path.
        gradient: By parameter.
        buffer: Floating buffers afterwards, by name.
        modules: Outputs of leaf modules in the order in which they ran, where they were watched.
        dtypes: Of the gradients, by parameter.
    """

    output: Tensors = field(default_factory=dict)
    gradient: Tensors = field(default_factory=dict)
    buffer: Tensors = field(default_factory=dict)
    modules: list[tuple[str, torch.Tensor]] = field(default_factory=list)
    dtypes: dict[str, torch.dtype] = field(default_factory=dict)

    def of(self, part: Part) -> Tensors:
        """Return one part."""
        found: Tensors = getattr(self, part)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """The largest relative difference in one part of two runs.

    Attributes:
        part: Which.
        name: The tensor.
        value: Its largest difference, over its own largest magnitude.
    """

    part: Part
    name: str
    value: float

    @property
    def label(self) -> str:
        """Part and name, once where they are the same."""
        return self.name if self.name.startswith(self.part) else f"{self.part} {self.name}"


def exact_run(subject: Subject, batch: Batch) -> tuple[Run, bool]:
    """Run a watched pass in float64 on the CPU, in training mode where that repeats.

    Returns:
        The pass, and whether it was in training mode.

    Raises:
        UnmeasurableError: The model cannot be copied, does not run in float64, or never repeats.
    """
    wide = twin(subject, torch.float64)
    if wide is None:
        raise UnmeasurableError(NOT_COPIED, NO_ORACLE)
    double = batch.to(device="cpu", dtype=torch.float64)
    try:
        train = is_repeatable(subject, wide, double)
        if train or is_repeatable(subject, wide, double, train=False):
            return run(subject, wide, double, train=train, watch=True), train
    except SubjectError as error:
        said = f"the model does not run in float64 on the CPU: {message_of(error)}"
        raise UnmeasurableError(said, NO_ORACLE) from error
    raise UnmeasurableError(
        "the model is random in eval mode too: no two passes can be compared", "noisy"
    )


def twin(subject: Subject, dtype: torch.dtype | None = None) -> nn.Module | None:
    """Return a copy of the model on the CPU, in another dtype; None where it cannot be copied."""
    with subject.pristine() as model:
        try:
            made = copy.deepcopy(model)
        except Exception:  # any object may refuse to be copied, in its own words
            return None
    made = made.to("cpu")
    return made if dtype is None else convert(made, dtype)


def convert(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Convert floating parameters and buffers, and nothing complex but to float64's counterpart."""

    def cast(tensor: torch.Tensor) -> torch.Tensor:
        if is_lazy(tensor) or not (tensor.is_floating_point() or tensor.is_complex()):
            return tensor
        if tensor.is_complex():
            return tensor.to(torch.complex128) if dtype == torch.float64 else tensor
        return tensor.to(dtype)

    made: nn.Module = model._apply(cast)
    return made


def run(
    subject: Subject,
    model: nn.Module,
    batch: Batch,
    *,
    around: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
    around_backward: Callable[[], contextlib.AbstractContextManager[Any]] | None = None,
    watch: bool = False,
    train: bool = True,
    scale: float = 1.0,
    seed: int = 0,
    rounded: torch.dtype | None = None,
) -> Run:
    """Run forward, a random projection of the outputs as the loss, and backward; dropout modules are off.

    An output that holds no tensor with a gradient, such as a distribution, has the declared loss.

    Args:
        subject: Whose model it is.
        model: The model or a copy; its gradients and buffers are changed.
        batch: On the model's device; cloned.
        around: Makes a context for forward and backward.
        around_backward: Another one for backward, such as none: torch runs it outside of autocast.
        watch: Also keep what leaf modules give.
        train: Mode; batch normalisation uses the batch's statistics in training.
        scale: Factor of the loss, divided out of the gradients.
        seed: Added to the subject's.
        rounded: Let every leaf module round its output to this dtype.

    Raises:
        SubjectError: The model or its backward raised.
    """
    batch = batch.clone()
    found = Run()
    with contextlib.ExitStack() as stack:
        stack.enter_context(_without_dropout(model))
        if watch:
            stack.enter_context(_watched(model, found.modules))
        if rounded is not None:
            stack.enter_context(_rounding(model, rounded))
        for parameter in model.parameters():
            parameter.grad = None
        model.train(train)
        seed_everything(subject.seed + seed)
        with torch.enable_grad():
            with around():
                output = subject.call(model, batch)
            # the loss stands outside: what is measured is the model
            loss = _loss(subject, output, batch) * scale
            with subject.phase("backward", batch), (around_backward or around)():
                loss.backward()
    found.output = {path: _plain(t) for path, t in trees.floats(output).items()}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            found.dtypes[name] = parameter.grad.dtype
            found.gradient[name] = _plain(parameter.grad) / scale
    found.buffer = {n: _plain(b) for n, b in model.named_buffers() if b.is_floating_point()}
    return found


def _loss(subject: Subject, output: Any, batch: Batch) -> torch.Tensor:
    wide = _wide(output)
    if any(t.requires_grad for t in wide) or subject.contract.loss is None:
        return probe_loss(wide, subject.seed)
    return subject.compute_loss(output, batch)


def gaps(found: Run, exact: Run) -> dict[Part, Gap]:
    """Return the largest relative difference of every part; infinite where one of them is not finite or missing."""
    made: dict[Part, Gap] = {}
    for part in ("output", "gradient", "buffer"):
        wanted, held = exact.of(part), found.of(part)
        whole = max((trees.scale(t) for t in wanted.values() if t.numel()), default=0.0)
        worst = Gap(part=part, name="", value=0.0)
        for name, tensor in wanted.items():
            value = _gap(held.get(name), tensor, _SMALL[part] * whole)
            if value > worst.value or not worst.name:
                worst = Gap(part=part, name=name, value=value)
        if worst.name:
            made[part] = worst
    return made


def rounded_run(subject: Subject, batch: Batch, dtype: torch.dtype, *, train: bool) -> Run:
    """Run a pass in float64 on the CPU that rounds weights, inputs and each layer's output to a dtype."""
    wide = twin(subject, torch.float64)
    assert wide is not None
    with torch.no_grad():
        for parameter in wide.parameters():
            parameter.copy_(parameter.to(dtype).to(parameter.dtype))
    low = batch.to(device="cpu", dtype=dtype).to(dtype=torch.float64)
    return run(subject, wide, low, train=train, rounded=dtype)


def moved(subject: Subject, batch: Batch, exact: Run, by: float, *, train: bool) -> float:
    """Return how far gradients move, the farthest of three draws, with weights and inputs moved by a fraction.

    The passes are in the subject's own precision, in which a solver may take other steps, too.

    Args:
        subject: Whose model it is.
        batch: Any.
        exact: What it gives in float64.
        by: The fraction of each value by which it is moved at most.
        train: Mode.
    """
    draw = torch.Generator().manual_seed(subject.seed)

    def near(value: torch.Tensor) -> torch.Tensor:
        noise = torch.rand(value.shape, generator=draw, dtype=torch.float64)
        return (value.double() * (1 + by * (2 * noise - 1))).to(value.dtype)

    def move(_path: str, leaf: Any) -> Any:
        whole = not isinstance(leaf, torch.Tensor) or not leaf.is_floating_point()
        return leaf if whole else near(leaf.detach())

    farthest, given = 0.0, batch.to(device="cpu", dtype=subject.dtype)
    for _ in range(3):
        model = twin(subject)
        assert model is not None
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.is_floating_point():
                    parameter.copy_(near(parameter))
        found = run(subject, model, given.map(move, targets=False), train=train)
        farthest = max(farthest, gaps(found, exact)["gradient"].value)
    return farthest


def first_apart(found: Run, exact: Run, bound: float) -> tuple[str, float] | None:
    """Return the first leaf module whose output is further away than a bound, and how far."""
    for (name, held), (other, wanted) in zip(found.modules, exact.modules, strict=False):
        if name != other:
            return None  # another path was taken: the order no longer corresponds
        value = _gap(held, wanted, 0.0)
        if value > bound:
            return name, value
    return None


def _gap(held: torch.Tensor | None, wanted: torch.Tensor, least: float) -> float:
    if held is None or held.shape != wanted.shape:
        return float("inf")
    if not wanted.numel():
        return 0.0
    same = torch.isfinite(wanted)
    if not bool((torch.isfinite(held) == same).all()):
        return float("inf")
    if not bool(same.any()):
        return 0.0
    a, b = held[same], wanted[same]
    return trees.worst(a, b) / (max(trees.scale(b), least) or 1.0)


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy in float64 on the CPU, also of what is so already: buffers and gradients are put back later."""
    dense = trees.dense(tensor.detach())
    real = torch.view_as_real(dense.resolve_conj()) if dense.is_complex() else dense
    return real.to("cpu", torch.float64, copy=True)


def _wide(value: Any) -> list[torch.Tensor]:
    """Return the differentiable outputs in float32 at least, so that the projection itself rounds nothing away."""
    return [
        t if t.is_complex() or t.dtype == torch.float64 else t.float()
        for t in trees.floats(value).values()
    ]


@contextlib.contextmanager
def _without_dropout(model: nn.Module) -> Iterator[None]:
    saved: list[tuple[nn.Module, str, float]] = []
    for module in model.modules():
        name = "p" if isinstance(module, nn.modules.dropout._DropoutNd) else "dropout"
        rate = getattr(module, name, None)
        if isinstance(module, nn.modules.dropout._DropoutNd | nn.MultiheadAttention | nn.RNNBase):
            saved.append((module, name, rate or 0.0))
            setattr(module, name, 0.0)
    try:
        yield
    finally:
        for module, name, rate in saved:
            setattr(module, name, rate)


def _leaves(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    return (
        (name or type(module).__name__, module)
        for name, module in model.named_modules()
        if not any(True for _ in module.children())
    )


@contextlib.contextmanager
def _watched(model: nn.Module, seen: list[tuple[str, torch.Tensor]]) -> Iterator[None]:
    def note(name: str) -> Callable[..., None]:
        def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
            if isinstance(output, torch.Tensor) and output.is_floating_point():
                seen.append((name, _plain(output)))  # a copy: the next module may write to it

        return hook

    handles = [module.register_forward_hook(note(name)) for name, module in _leaves(model)]
    with hooked(handles):
        yield


@contextlib.contextmanager
def _rounding(model: nn.Module, dtype: torch.dtype) -> Iterator[None]:
    def hook(_module: nn.Module, _inputs: Any, output: Any) -> Any:
        if isinstance(output, torch.Tensor) and output.is_floating_point():
            return output.to(dtype).to(output.dtype)  # backward rounds the gradient too
        return None

    handles = [module.register_forward_hook(hook) for _, module in _leaves(model)]
    with hooked(handles):
        yield


def is_repeatable(subject: Subject, model: nn.Module, batch: Batch, *, train: bool = True) -> bool:
    """Say whether two passes with other random numbers are the same: what is random cannot be compared."""
    saved = ModuleState(model)
    passes = []
    for seed in (0, 7):
        passes.append(run(subject, model, batch, train=train, seed=seed))
        saved.restore(parameters=False, last=seed == 7)  # a forward may resize or replace a buffer
    first, second = passes
    return all(gap.value == 0.0 for gap in gaps(first, second).values())


__all__ = [
    "Gap",
    "Run",
    "SubjectError",
    "convert",
    "first_apart",
    "gaps",
    "is_repeatable",
    "run",
    "twin",
]
