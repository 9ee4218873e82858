"""Statistics that copies of a model gather while they train its weights, and that are gone after the step."""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from ...lean import dataclass
from ...objects import trees
from ...record.modes import Observer
from ...state import seed_everything
from ...subject.errors import SubjectError
from ..facts import copied
from ..variants.settling import given_to_norm
from .steps import trajectory

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torch import Tensor, nn

    from ...subject import Subject

_STEPS: Final = 3
_FAR: Final = 0.1
"""Of the largest output: by so much evaluation changes with statistics of the batch in place of those that are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DroppedStatistics:
    """Running statistics that stay as they were built; plain data.

    Attributes:
        norms: Names of the norms.
        calls: How often a copy of one of them was called in training mode in a step.
        apart: How far outputs in evaluation are from those with the batch's own statistics, in parts of the largest.
        losses: The declared loss with the statistics that are kept, and with the batch's own; None without a loss.
    """

    norms: tuple[str, ...]
    calls: int
    apart: float
    losses: tuple[float, float] | None


class _Copies(Observer):
    """Sees which norms a step calls: those of the model, and copies that begin with their weights and statistics.

    Args:
        norms: The model's, by name.
    """

    def __init__(self, norms: Mapping[str, _BatchNorm]) -> None:
        self._norms = norms
        held = (t for norm in norms.values() for t in (_mean(norm), norm.weight))
        self._own = {trees.address(tensor) for tensor in held}
        self.own = False
        self.called: dict[str, list[weakref.ref[Tensor]]] = {}
        self.calls = 0

    def around(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run one call."""
        given = given_to_norm(func, args, kwargs)
        mean, weight = given.get("running_mean"), given.get("weight")
        if isinstance(mean, torch.Tensor) and isinstance(weight, torch.Tensor):
            with torch._C.DisableTorchFunction():
                self._called(mean, weight, bool(given.get("training")))
        return func(*args, **kwargs)

    def _called(self, mean: Tensor, weight: Tensor, training: bool) -> None:
        if not weight.is_leaf or self._own & {trees.address(mean), trees.address(weight)}:
            self.own = True  # or a function of its weights, as in meta-learning
        elif training:
            self.calls += 1
            for name, norm in self._norms.items():
                alike = trees.same(mean, _mean(norm)) and trees.same(weight, norm.weight)
                if alike:
                    self.called.setdefault(name, []).append(weakref.ref(mean))

    def kept(self) -> bool:
        """Say whether copies are still there, with statistics of their own."""
        return any(ref() is not None for refs in self.called.values() for ref in refs)


def _mean(norm: _BatchNorm) -> Tensor:
    assert norm.running_mean is not None
    return norm.running_mean


def dropped_statistics(subject: Subject) -> DroppedStatistics | None:
    """Return the norms whose weights a step takes from copies in training mode, and whose statistics it does not.

    The copies begin with the model's own weights and statistics, and are gone after the step; the model itself is not
    called in it. None where the step uses a norm of the model, or its weight, in whichever mode,
    where weights stay, and where evaluation is nearly the same with the batch's own statistics.

    Cost: nothing unless the steps that were taken anyway move the weight of a norm and not its statistics; else a
        step, and three more where copies are called.
    """
    norms = _unmoved(subject) if subject.contract.train_step is not None else ()
    if not norms:
        return None
    try:
        with subject.pristine(steps=True, train=True) as model:
            copies = _Copies(_norms(model, norms))
            seed_everything(subject.seed)
            made = subject.make_optimizer(model)
            with copies:
                subject.train_step(model, made, subject.batch().clone())
            gc.collect()
            if copies.own or copies.called.keys() != set(norms) or copies.kept():
                return None
        return _apart(subject, norms, copies.calls)
    except SubjectError:
        return None  # weights-update tells of it


def _norms(model: nn.Module, names: Iterable[str]) -> dict[str, _BatchNorm]:
    found = {name: model.get_submodule(name) for name in names}
    return {name: norm for name, norm in found.items() if isinstance(norm, _BatchNorm)}


def _unmoved(subject: Subject) -> tuple[str, ...]:
    """Name the norms whose weight some steps move, and whose statistics they do not."""
    names = [
        name
        for name, module in subject.model.named_modules()
        if isinstance(module, _BatchNorm) and module.affine and module.running_mean is not None
        and not module.running_mean.is_meta and module.momentum != 0
        and not subject.is_promised("Frozen", f"{name}.running_mean")
    ]  # fmt: skip
    if not names:
        return ()
    made = trajectory(subject)
    still = [
        name
        for name in names
        if made.moved.get(f"{name}.weight", 0.0) > 0.0
        and not {f"{name}.running_mean", f"{name}.running_var"}.intersection(made.buffers)
    ]
    return tuple(still) if made.error is None and len(still) == len(names) else ()


def _apart(subject: Subject, names: tuple[str, ...], calls: int) -> DroppedStatistics | None:
    """Compare evaluation after some steps with the statistics that are kept, and with the batch's own."""
    batch, outputs = subject.batch(), []
    losses: list[float] = []
    with subject.pristine(steps=True, train=True) as model:
        seed_everything(subject.seed)
        made = subject.make_optimizer(model)
        for _ in range(_STEPS):
            subject.train_step(model, made, batch.clone())
        model.eval()
        for anew in (False, True):
            for norm in _norms(model, names).values():
                norm.train(anew)
            with torch.no_grad():
                output = subject.call(model, batch.clone())
                outputs.append(copied(output))
                if callable(subject.contract.loss):
                    losses.append(float(subject.compute_loss(output, batch.clone())))
    kept, own = outputs
    worst = max(
        (
            trees.worst(kept[path], own[path]) / (trees.scale(own[path]) or 1.0)
            for path in kept.keys() & own.keys()
        ),
        default=0.0,
    )
    if worst <= _FAR:
        return None
    return DroppedStatistics(
        norms=names, calls=calls, apart=worst, losses=(losses[0], losses[1]) if losses else None
    )
