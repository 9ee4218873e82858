"""Modules and parameters that attributes hold and no registration knows, and whether that is meant."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from torch import nn

from ..lean import dataclass
from ..probes.holding.held_by_models import Holding, holdings
from ..subject.optimizers import optimizers_of
from ..subject.remembered import remembered
from .training.observation import observe

if TYPE_CHECKING:
    from ..subject import Subject

_ON_PURPOSE = re.compile(
    r"teacher|ema|target|momentum|frozen|reference|vgg|lpips|percept|clip|pretrain|critic",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hidden:
    """What attributes hold and no registration knows.

    Attributes:
        trained: Paths of hidden modules, parameters and trainable tensors that get a gradient, to
            their holdings.
        on_purpose: Those of them that seem to be hidden deliberately, and why.
        stateful: Hidden modules that ran and behave differently in training and evaluation.
    """

    trained: dict[str, Holding]
    on_purpose: dict[str, str]
    stateful: dict[str, Holding]


@remembered("hidden")
def hidden(subject: Subject) -> Hidden:
    """Find hidden modules and parameters that train; cached. Costs nothing where attributes hold none."""
    candidates = [h for h in holdings(subject.model) if h.kind != "tensor" or h.value.requires_grad]
    if not candidates:
        return Hidden(trained={}, on_purpose={}, stateful={})
    seen = observe(subject)
    trained = {
        h.path: h
        for h in seen.held
        if any(path in seen.live for path, _ in h.tensors())
        and not any(subject.is_promised(kind, h.path) for kind in ("Frozen", "MayLackGradient"))
    }
    on_purpose = {path: why for path, h in trained.items() if (why := _purpose(subject, h))}
    stateful = {
        h.path: h
        for h in seen.held
        if h.kind == "module"
        and h.path in seen.called
        and h.path not in trained
        and _has_modes(h.value)
    }
    trained = {path: h for path, h in trained.items() if path not in on_purpose}
    return Hidden(trained=trained, on_purpose=on_purpose, stateful=stateful)


def _purpose(subject: Subject, holding: Holding) -> str:
    """Return why a hidden module seems to be hidden deliberately, or an empty text."""
    if holding.kind == "module":
        alone = (
            re.fullmatch(re.escape(holding.attribute) + r"\[0\]", holding.path)
            and _length(holding) == 1
        )
        if (alone or holding.via == "closure") and _ON_PURPOSE.search(holding.attribute):
            return f"{holding.attribute} is a list of one module, the usual way to hide a helper network"
    if subject.contract.optimizer is not None:
        with subject.pristine() as model:
            groups = [
                g for o in optimizers_of(subject.make_optimizer(model)) for g in o.param_groups
            ]
            optimized = {id(p) for group in groups for p in group["params"]}
            if all(id(t) in optimized for _, t in holding.tensors() if t.requires_grad):
                return "the optimizer of the contract holds its parameters"
    return ""


def _length(holding: Holding) -> int:
    value = getattr(holding.owner, holding.name, ())
    return len(value) if isinstance(value, list | tuple | set | dict) else 0


def _has_modes(module: nn.Module) -> bool:
    modal = (nn.modules.dropout._DropoutNd, nn.modules.batchnorm._NormBase)
    return any(isinstance(part, modal) for part in module.modules())
