"""Run one contract's step under the tracker: real or fake, at any size, trained or inferred."""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from ..contracts import Contract
from ..declared.limits import DTYPES, DeclarationError
from ..lean import dataclass
from ..probes.memory.fake import (
    Unmeasurable,
    as_fake,
    build,
    correct,
    explain,
    fake_mode,
    fake_tensor,
)
from ..probes.memory.replay import build_profile
from ..probes.memory.tracker import MemoryTracker
from ..state import isolated, seed_everything
from ..subject import Subject
from ..subject.errors import SubjectError
from ..subject.gradients import clear_gradients
from ..text.printable import message_of
from .plain_step import StepKind, user_step

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ..batches import Batch
    from ..probes.memory.profile import MemoryProfile

_REAL_BATCH = (
    2**28
)  # elements up to which a batch that cannot be drawn without memory is drawn for real


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracked:
    """One measured step.

    Attributes:
        profile: Where its bytes were.
        flops: Floating-point operations of the step, or None where they were not asked for.
        flops_by_line: The same by phase, module and line, the most first.
        parameters: How many elements the model's parameters have.
        trainable: Names of the parameters that require a gradient.
        tracker: The closed log, for further questions.
        output: What the model returned, in inference.
    """

    profile: MemoryProfile
    flops: int | None
    flops_by_line: tuple[FlopShare, ...]
    parameters: int
    tracker: MemoryTracker
    trainable: frozenset[str] = frozenset()
    output: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FlopShare:
    """Floating-point operations of one line in one phase."""

    count: int
    phase: str
    module: str
    file: str
    line: int
    text: str


class StepFailed(Exception):
    """The step raised while it was measured.

    Attributes:
        error: What was raised.
        phase: Where in the step, as in :class:`~pytest_torchcheck.subject.SubjectError`.
        tracker: The closed log up to then.
        fake: Whether it ran on fake tensors.
    """

    def __init__(
        self,
        error: BaseException,
        phase: str,
        tracker: MemoryTracker,
        *,
        fake: bool,
        original: SubjectError | None,
    ) -> None:
        super().__init__(f"{phase}: {type(error).__name__}: {message_of(error)}")
        self.error, self.phase, self.tracker, self.fake, self.original = (
            error,
            phase,
            tracker,
            fake,
            original,
        )


def track(
    subject: Subject,
    *,
    at: Mapping[str, int] | None = None,
    fake: bool = True,
    step: StepKind = "training",
    repeats: int = 2,
    budget: int | None = None,
    flops: bool = False,
) -> Tracked:
    """Run a step under the tracker and describe the last repeat.

    Args:
        subject: Contract, device, dtype and seed; its model is used only where ``fake`` is False.
        at: Sizes of symbols; those of the base batch otherwise.
        fake: Allocate nothing.
        step: A training step, or a forward in eval mode without gradients.
        repeats: How often; the first one makes the optimizer's state, so that the second is typical.
        budget: Raise as soon as more bytes than these are live.
        flops: Count floating-point operations too.

    Raises:
        Unmeasurable: There is no batch of these sizes.
        StepFailed: The user's code, the budget or a fake kernel raised.
        SubjectError: The model could not be built, or the batch not made.
    """
    if step not in ("training", "inference"):
        raise DeclarationError(
            f"step: {step!r} is not a step; choose from 'training' and 'inference'"
        )
    sizes = dict(at or {})
    _check_sizes(subject.contract, sizes)
    where = _fake_model(subject, sizes) if fake else real_model(subject, sizes, step)
    with where as (model, batch):
        runner = _twin(subject, model) if fake else subject
        return _run(runner, model, batch, fake, step, repeats, budget, flops)


def _twin(subject: Subject, model: nn.Module) -> Subject:
    """Return a subject of a fake model, so that nothing of the real one is built, kept or asked for meanwhile."""
    twin = Subject(subject.contract, device="cpu", seed=subject.seed, examples=subject.examples)
    twin.dtype = subject.dtype
    twin._model = model
    return twin


def _run(
    subject: Subject,
    model: nn.Module,
    batch: Batch,
    fake: bool,
    step: StepKind,
    repeats: int,
    budget: int | None,
    flops: bool,
) -> Tracked:
    cuda = subject.device if not fake and subject.device.type == "cuda" else None
    parameters = sum(p.numel() for p in {id(p): p for p in model.parameters()}.values())
    trainable = frozenset(name for name, p in model.named_parameters() if p.requires_grad)
    tracker = MemoryTracker(
        model=model,
        inputs={**batch.tensors()},
        budget=budget,
        flops=flops,
        correct=correct if fake else None,
    )
    output: Any = None
    base = peak = 0
    try:
        with tracker:
            run = user_step(subject, model, batch, step)
            for number in range(repeats):
                if number:
                    tracker.next_step()
                if cuda is not None:
                    torch.cuda.synchronize(cuda)
                    torch.cuda.reset_peak_memory_stats(cuda)
                    base = torch.cuda.memory_allocated(cuda) - _live_on_gpus(tracker)
                output = run()
            if cuda is not None:
                torch.cuda.synchronize(cuda)
                peak = torch.cuda.max_memory_allocated(cuda) - base
            del run
    except SubjectError as error:
        raise StepFailed(
            error.error, error.phase, tracker, fake=fake, original=error
        ) from error.error
    except (RuntimeError, NotImplementedError, Unmeasurable) as error:
        raise StepFailed(error, tracker.phases[-1][1], tracker, fake=fake, original=None) from error
    profile = build_profile(
        tracker, device=str(subject.device.type) if not fake else None, fake=fake, sizes=batch.sizes
    )
    if cuda is not None:
        profile = profile.replace(allocator_peak_bytes=peak)
    return Tracked(
        profile=profile,
        flops=None if tracker.flops is None else sum(count for _, count, _, _ in tracker.flops),
        flops_by_line=_shares(tracker),
        parameters=parameters,
        tracker=tracker,
        trainable=trainable,
        output=output if step == "inference" else None,
    )


def _live_on_gpus(tracker: MemoryTracker) -> int:
    return sum(a.size for a in tracker.addresses().values() if a.device.type == "cuda")


@contextmanager
def real_model(
    subject: Subject, sizes: Mapping[str, int], step: StepKind
) -> Iterator[tuple[nn.Module, Batch]]:
    """Give the pristine model and a batch of these sizes."""
    batch = subject.at(**sizes) if sizes else subject.batch()
    if batch is None:
        raise _no_batch(sizes)
    with subject.pristine(steps=step == "training") as model:
        clear_gradients(model)
        seed_everything(subject.seed)
        yield model, batch.clone()


@contextmanager
def _fake_model(subject: Subject, sizes: Mapping[str, int]) -> Iterator[tuple[nn.Module, Batch]]:
    contract = subject.contract
    elements = _elements(
        subject, sizes
    )  # before the mode begins: a user's batch function runs on real tensors
    model = contract.model
    classes = [model] if contract.is_factory else [type(module) for module in model.modules()]
    functions = (*classes, contract.loss, contract.optimizer, contract.train_step)
    with isolated():
        seed_everything(subject.seed)
        with fake_mode(*functions) as mode:
            if not contract.is_factory:
                made = as_fake(model, mode, subject.dtype)
            else:
                made = build(model, mode, subject.dtype, fallback=lambda: subject.model)
            yield made, _fake_batch(subject, sizes, mode, elements)


def _fake_batch(subject: Subject, sizes: Mapping[str, int], mode: Any, elements: int) -> Batch:
    from torch.utils._python_dispatch import _disable_current_modes

    def draw() -> Batch | None:
        if not sizes:
            return subject.source.base(subject.seed)
        return subject.source.at(subject.seed, **sizes)

    try:
        batch = draw()
    except Exception as error:  # a user's own domain may look at values, in ways of its own
        if elements > _REAL_BATCH:
            raise explain(error) from error
        with _disable_current_modes():
            batch = draw()
    if batch is None:
        raise _no_batch(sizes)
    wanted = subject.dtype

    def convert(_path: str, leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        # a batch drawn in the mode may be a view of something larger, which a real one is not
        made = fake_tensor(
            leaf.detach().clone() if isinstance(leaf, FakeTensor) else leaf, mode, wanted
        )
        return made.requires_grad_(leaf.requires_grad)

    return batch.map(convert)


def _elements(subject: Subject, sizes: Mapping[str, int]) -> int:
    """Estimate how many elements a batch of these sizes has, from the base batch."""
    base = subject.source.base(subject.seed)
    factor = math.prod(
        max(1.0, size / max(1, base.sizes.get(name, 1))) for name, size in sizes.items()
    )
    return int(sum(t.numel() for t in base.tensors().values()) * factor)


def _no_batch(sizes: Mapping[str, int]) -> Unmeasurable:
    told = ", ".join(f"{name}={size}" for name, size in sizes.items())
    return Unmeasurable(
        f"there is no batch at {told}: the shape of the real targets is not known there; declare targets="
    )


def _check_sizes(contract: Contract, sizes: Mapping[str, int]) -> None:
    known = contract.source.symbols if contract.source is not None else {}
    for name, size in sizes.items():
        if name not in known:
            raise DeclarationError(
                f"at: no input has the symbol {name!r}; symbols are: {', '.join(sorted(known)) or 'none'}"
            )
        if isinstance(size, bool) or not isinstance(size, int) or size < 0:
            raise DeclarationError(f"at[{name!r}]: must be an int of at least 0; got {size!r}")


def _shares(tracker: MemoryTracker) -> tuple[FlopShare, ...]:
    from linecache import getline

    totals: dict[tuple[Any, ...], int] = {}
    for phase, count, module, site in tracker.flops or ():
        key = (phase, module, site)
        totals[key] = totals.get(key, 0) + count
    return tuple(
        FlopShare(
            count=count,
            phase=phase,
            module=module,
            file="" if site is None else site[0].co_filename,
            line=0 if site is None else site[1],
            text="" if site is None else getline(site[0].co_filename, site[1]).strip(),
        )
        for (phase, module, site), count in sorted(totals.items(), key=lambda pair: -pair[1])
    )


def subject_for(
    contract: Contract, *, device: str = "cpu", dtype: str | None = None, seed: int = 0
) -> Subject:
    """Return a subject to measure on; ``dtype`` by name, the contract's first one by default."""
    if not isinstance(contract, Contract):
        raise TypeError(
            f"a Contract is needed, such as Contract(model=..., inputs=..., loss=...); got {type(contract).__name__}"
        )
    chosen = dtype or (contract.dtypes[0] if contract.dtypes else None)
    if chosen is not None and chosen not in DTYPES:
        raise DeclarationError(f"dtype: unknown name {chosen!r}; allowed are: {', '.join(DTYPES)}")
    return Subject(contract, device=device, dtype=chosen, seed=seed)
