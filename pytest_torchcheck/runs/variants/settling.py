"""What training mode gives without dropout and batch statistics, and where statistics of the model's own settle."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any

import torch

from ...lean import dataclass
from ...objects import trees
from ...objects.kinds import shape_of
from ...objects.peek import names_in
from ...record.modes import Observer
from ...state import has_drawn, random_states, seed_everything
from ...subject.errors import SubjectError
from ...subject.remembered import remembered
from ..facts import copied, outputs

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import nn

    from ...batches import Batch
    from ...subject import Subject

_ROUNDS = 4
_LINEAR = 1e-3
_FOLLOWED = 4

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """What calls of one batch in training mode, at fixed weights, showed.

    Attributes:
        quiet: The outputs, with torch's own dropout and batch statistics as in evaluation.
        random: Whether random numbers were drawn all the same.
        moving: Whether the outputs differ from call to call.
        written: Buffers that the calls changed.
        ratios: Of each buffer that is an average, the ratio of one change to the change before.
        limits: The value that each such buffer settles at.
    """

    quiet: Tensors
    random: bool
    moving: bool
    written: tuple[str, ...]
    ratios: dict[str, float] = field(default_factory=dict)
    limits: Tensors = field(default_factory=dict)


def asking_for_mode(model: nn.Module) -> list[str]:
    """Return the classes of a model, other than torch's, whose methods read ``training``."""
    kinds = {type(m) for m in model.modules() if not _is_torchs(m)}
    return sorted(kind.__name__ for kind in kinds if asks_for_mode(kind))


def asks_for_mode(kind: type) -> bool:
    """Say whether a method of a class, torch's own aside, reads ``training``."""
    return any(
        "training" in names_in(value)
        for cls in kind.__mro__
        if cls.__module__.partition(".")[0] not in ("torch", "builtins")
        for value in vars(cls).values()
    )


def _is_torchs(module: nn.Module) -> bool:
    return type(module).__module__.partition(".")[0] == "torch"


@remembered("settled")
def settled(subject: Subject) -> Settled:
    """Call the model in training mode with everything of torch's own as in evaluation; cached.

    Cost: 1 forward; 3 more where it changes buffers.

    Raises:
        SubjectError: The model raised.
    """
    with subject.pristine() as model, torch.no_grad():
        quiet(model)
        states = [_buffers(model)]
        outputs = []
        for _ in range(_ROUNDS):
            seed_everything(subject.seed)
            before = random_states()
            with Quiet():
                outputs.append(copied(subject.call(model, subject.batch().clone())))
            random = has_drawn(before)
            states.append(_buffers(model))
            written = tuple(n for n, t in states[0].items() if not trees.same(t, states[1][n]))
            if not written or random:
                break
        moving = any(not _close(outputs[0], other) for other in outputs[1:])
        found = Settled(quiet=outputs[0], random=random, moving=moving, written=written)
        for name in written if len(states) > _ROUNDS else ():
            _follow(found, name, [state[name].double() for state in states[1:]])
        return found


def alike_in_few(subject: Subject, most: float) -> bool:
    """Say whether a few samples give in quiet training mode what they give in evaluation.

    False too where that cannot be told of them: the forward draws, or writes to buffers.

    Args:
        subject: Whose model.
        most: The largest difference, relative.
    """
    if (few := subject.few(subject.batch())) is None:
        return False
    try:
        expected = outputs(subject, few)
        with subject.pristine() as model, torch.no_grad():
            quiet(model)
            before = _buffers(model)
            seed_everything(subject.seed)
            drawn = random_states()
            with Quiet():
                found = copied(subject.call(model, few.clone()))
            still = not has_drawn(drawn)
            still = still and all(map(trees.same, before.values(), _buffers(model).values()))
    except SubjectError:
        return False  # the whole batch decides
    return still and gap(found, expected) <= most


def other_statistics(subject: Subject) -> Batch:
    """Return a batch with other statistics than the base one: some of its samples, or the same in another order."""
    batch, symbol = subject.batch(), subject.source.batch_symbol
    size = batch.sizes.get(symbol, 0) if symbol is not None else 0
    if size < 4:
        return subject.batch(1)
    return subject.source.rows(batch, torch.arange((size + 1) // 2))


def quiet(model: nn.Module) -> None:
    """Set training mode, and evaluation for the modules that are torch's own."""
    model.train()
    for module in model.modules():
        if _is_torchs(module) and not any(True for _ in module.children()):
            module.eval()


def running_away(subject: Subject, names: Iterable[str], growth: float) -> list[str]:
    """Return the buffers that move away by themselves, and whose change another batch decides.

    An average of what another average gives grows for as long as that one still moves: each buffer is
    followed with all others held. What every batch changes alike counts steps, or follows a schedule.

    Args:
        subject: Whose model.
        names: The buffers whose changes grew; the first few are followed.
        growth: Ratio of one change to the change before, from which on a buffer grows.
    """
    found = []
    for name in list(names)[:_FOLLOWED]:
        try:
            alone = _alone(subject, name, subject.batch(), _ROUNDS)
            ratio = _ratio(alone)
            if ratio is None or abs(ratio) <= growth:
                continue
            other = _alone(subject, name, other_statistics(subject), 1)
        except SubjectError:  # it takes no such batch: then nothing is known
            continue
        if not trees.same(alone[0], other[0]):
            found.append(name)
    return found


def _alone(subject: Subject, name: str, batch: Batch, rounds: int) -> list[torch.Tensor]:
    """Return the values of a buffer after each call of one batch, all other buffers put back before it."""
    states = []
    with subject.pristine() as model, torch.no_grad(), Quiet():
        quiet(model)
        start = _buffers(model)
        for _ in range(rounds):
            for other, buffer in model.named_buffers():
                if other != name and other in start and buffer.shape == start[other].shape:
                    buffer.copy_(start[other])
            seed_everything(subject.seed)
            subject.call(model, batch.clone())
            states.append(_buffers(model)[name].double())
    return states


def other_norms(model: nn.Module) -> Tensors:
    """Return other running statistics for torch's norms by name: equal ones for equal shapes, as of a copy."""
    found: Tensors = {}
    for prefix, module in model.named_modules():
        mean, var = (getattr(module, name, None) for name in ("running_mean", "running_var"))
        if not _is_torchs(module) or mean is None or var is None or mean.is_meta:
            continue
        generator = torch.Generator().manual_seed(mean.numel())
        drawn = torch.rand((2, *mean.shape), generator=generator).to(mean)
        start = f"{prefix}." if prefix else ""
        found[f"{start}running_mean"] = mean + (drawn[0] - 0.5) * var.abs().sqrt()
        found[f"{start}running_var"] = var * (0.5 + 1.5 * drawn[1])
    return found


def apart_with(subject: Subject, buffers: Tensors) -> float:
    """Return how far quiet training mode lies from evaluation with other values in some buffers, on a few samples.

    Cost: 2 forwards of a few samples.

    Raises:
        SubjectError: The model raised.
    """
    batch = subject.few(subject.batch()) or subject.batch()
    evaluated, trained = (
        outputs_with(subject, buffers, train=train, batch=batch) for train in (False, True)
    )
    return gap(trained, evaluated)


def outputs_with(
    subject: Subject, buffers: Tensors, *, train: bool, batch: Batch | None = None
) -> Tensors:
    """Return the outputs with other values in some buffers, in eval mode or in quiet training mode."""
    given = subject.batch() if batch is None else batch
    with subject.pristine() as model, torch.no_grad():
        quiet(model) if train else model.eval()
        known = dict(model.named_buffers())
        for name, value in buffers.items():
            known[name].copy_(value)
        seed_everything(subject.seed)
        with Quiet():
            return copied(subject.call(model, given.clone()))


def gap(first: Tensors, second: Tensors) -> float:
    """Return the largest relative difference between outputs; infinite where they are not alike in kind.

    Single numbers are left out: a loss that is returned beside the output often exists in training alone.
    """
    if first.keys() != second.keys() or any(
        shape_of(first[p]) != shape_of(second[p]) for p in first
    ):
        return float("inf")
    return max((trees.apart(second[p], t) for p, t in first.items() if t.numel() > 1), default=0.0)


def _close(first: Tensors, second: Tensors) -> bool:
    return gap(first, second) <= _LINEAR


def _buffers(model: nn.Module) -> Tensors:
    return {
        name: tensor.detach().clone()
        for name, tensor in model.named_buffers()
        if tensor.is_floating_point() and not tensor.is_meta
    }


def _follow(found: Settled, name: str, states: list[torch.Tensor]) -> None:
    """Note the limit of a buffer whose changes shrink, or grow, by one factor."""
    ratio = _ratio(states)
    if ratio is None:
        return
    found.ratios[name] = ratio
    if abs(ratio) < 1.0 - _LINEAR:
        found.limits[name] = states[-1] + (states[-1] - states[-2]) * ratio / (1.0 - ratio)


def _ratio(states: list[torch.Tensor]) -> float | None:
    """Return the factor from one change to the next; None where there is no single one."""
    if len({tuple(s.shape) for s in states}) > 1:
        return None
    first, second = states[-2] - states[-3], states[-1] - states[-2]
    size = float(first.square().sum())
    if size == 0.0:
        return 0.0
    ratio = float((first * second).sum()) / size
    error = float((second - ratio * first).norm()) / max(float(second.norm()), 1e-30)
    return ratio if error <= _LINEAR or abs(ratio) < _LINEAR else None


class _Norms(Observer):
    """Keeps the statistics that each call of ``F.batch_norm`` was given, and whether it is in training."""

    def __init__(self) -> None:
        self.calls: list[tuple[torch.Tensor, bool]] = []

    def around(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run one call."""
        given = given_to_norm(func, args, kwargs)
        if (mean := given.get("running_mean")) is not None and not mean.is_meta:
            both = torch.stack([mean.detach(), given["running_var"].detach()])
            self.calls.append((both, bool(given.get("training"))))
        return func(*args, **kwargs)


def stuck_norms(subject: Subject) -> list[bool]:
    """Return the norms that training computes of each batch, and evaluation of statistics that no batch moves.

    For each of them, whether its running means are zeros, as they are made.

    Cost: nothing unless a norm of torch has ``momentum=0``, or a class of the model's own calls ``batch_norm``;
    else 3 forwards.

    Raises:
        SubjectError: The model raised.
    """
    if not subject.has_modes or not any(map(_may_be_stuck, subject.model.modules())):
        return []
    runs: list[list[tuple[torch.Tensor, bool]]] = []
    with subject.pristine() as model, torch.no_grad():
        for train in (False, True, False):
            model.train(train)
            seed_everything(subject.seed)
            with (norms := _Norms()):
                subject.call(model, subject.batch().clone())
            runs.append(norms.calls)
    if len(set(map(len, runs))) > 1:
        return []
    return [
        not bool(before[0].any())
        for (before, evaluates), (_, trains), (after, _) in zip(*runs, strict=True)
        if trains and not evaluates and trees.same(before, after)
    ]


def _may_be_stuck(module: nn.Module) -> bool:
    if isinstance(module, torch.nn.modules.batchnorm._NormBase):
        return module.running_mean is not None and module.momentum == 0
    own = [
        cls
        for cls in type(module).__mro__
        if cls.__module__.partition(".")[0] not in ("torch", "builtins")
    ]
    return any("batch_norm" in names_in(value) for cls in own for value in vars(cls).values())


class Quiet(Observer):
    """Lets the functions of torch that behave otherwise in training do what they do in evaluation."""

    def around(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run one call."""
        name = getattr(func, "__name__", "")
        if "dropout" in name and args and isinstance(args[0], torch.Tensor):
            return args[0]
        if name == "scaled_dot_product_attention":
            kwargs = {**kwargs, "dropout_p": 0.0}
            args = args[:4]
        elif (given := given_to_norm(func, args, kwargs)).get("running_mean") is not None:
            return func(**{**given, "training": False})
        return func(*args, **kwargs)


def given_to_norm(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call of ``F.batch_norm`` by name; nothing of another call."""
    if (getattr(func, "__module__", ""), getattr(func, "__name__", "")) != _NORM:
        return {}
    return dict(zip(_BATCH_NORM, args, strict=False)) | kwargs


_NORM = ("torch.nn.functional", "batch_norm")


_BATCH_NORM = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")  # fmt: skip
