"""Parameters that a step moves by the gradient of another one: seen by turning the gradients of some of them round."""

from __future__ import annotations

import contextlib
import dis
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from ...lean import dataclass
from ...loop.closures import functions_of
from ...objects import trees
from ...probes.recorded.watch import version_of
from ...state import is_lazy, seed_everything
from ...subject.errors import SubjectError
from .forgetting import own_optimizer, own_optimizers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from collections.abc import Set as AbstractSet

    from torch import nn

    from ...subject import Subject

    Values = dict[str, torch.Tensor]
    Run = Callable[[AbstractSet[str]], Values | None]

_SHARE: Final = 0.01
"""Of its own movement: how far a parameter must end elsewhere."""
_MOST: Final = 32
"""Parameters that are asked one by one which of them moves another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossed:
    """What moves by the gradient of another parameter.

    Attributes:
        names: The parameters that end elsewhere.
        by: The one whose gradient does it to the first of them; "" where several together do.
        own: Whether the first one's own gradient counts too.
        optimizer: The optimizer's class; None where the step hands the gradients over.
    """

    names: list[str]
    by: str
    own: bool
    optimizer: type[torch.optim.Optimizer] | None


def crossed(subject: Subject) -> Crossed | None:
    """Return the parameters whose update follows the sign of the gradient of another one of their shape.

    A norm over all gradients, or a product of two vectors of all of them, as clipping, line searches and
    preconditioners take it, is the same if the gradients of some parameters have the other sign. So is what
    becomes of the others. What each parameter gets of a gradient that is not its own changes.

    Cost: nothing for torch's own optimizers and steps that assign no gradient; else two steps of the
    optimizer alone, or two of the declared step.
    """
    if any(subject.contract.promised(kind) for kind in ("Replicated", "Tied")):
        return None  # their gradients may be averaged
    step = subject.contract.train_step
    with contextlib.suppress(SubjectError):
        if (kind := own_optimizer(subject)) is not None:
            found = _among(subject, lambda turned: _stepped_alone(subject, turned))
            if found is not None:
                return Crossed(names=found[0], by=found[1], own=found[2], optimizer=kind)
        if step is not None and _assigns_gradients(step):
            found = _among(subject, lambda turned: _stepped(subject, turned))
            if found is not None and not found[2]:  # what counts its own too may be meant
                return Crossed(names=found[0], by=found[1], own=False, optimizer=None)
    return None


def _assigns_gradients(step: Callable[..., Any]) -> bool:
    """Say whether a step binds the attribute ``grad`` of anything."""
    return any(
        code.opname == "STORE_ATTR" and code.argval == "grad"
        for function in functions_of(step)
        for code in dis.get_instructions(function)
    )


def _among(subject: Subject, run: Run) -> tuple[list[str], str, bool] | None:
    """Return what ends elsewhere if half of the gradients of each shape turn, by which, and whether its own counts."""
    turned = set[str]()
    shapes: dict[tuple[int, ...], list[str]] = {}
    for name, p in subject.named_parameters().items():
        if p.requires_grad and not is_lazy(p) and trees.computable(p) and p.numel() > 1:
            shapes.setdefault(tuple(p.shape), []).append(name)
    draw = torch.Generator().manual_seed(subject.seed)
    alike = [names for names in shapes.values() if len(names) > 1]
    for first, *others in alike:
        half = torch.randperm(len(others), generator=draw)[: len(others) // 2]
        turned |= {first, *(others[i] for i in half.tolist())}
    if not turned or (plain := run(frozenset())) is None:
        return None
    begun = {name: p.detach().clone() for name, p in subject.named_parameters().items()}

    def elsewhere(made: Values | None, name: str) -> bool:
        if made is None or name not in made or name not in plain:
            return False
        return trees.worst(made[name], plain[name]) > _SHARE * trees.worst(plain[name], begun[name])

    ends = run(turned)
    names = [n for group in alike for n in group if n not in turned and elsewhere(ends, n)]
    if not names:
        return None
    name = names[0]
    others = [n for group in alike if name in group for n in group if n != name and n in plain]
    by = next((o for o in others[:_MOST] if elsewhere(run({o}), name)), "")
    own = elsewhere(run({name}), name)
    moves = {n: plain[n] - begun[n] for n in (name, *others)}
    far = _SHARE * trees.scale(moves[name])
    if own and any(trees.worst(moves[o], moves[name]) < far for o in others):
        return None  # their gradients are averaged: both move alike
    return names, by, own


def _stepped_alone(subject: Subject, turned: AbstractSet[str]) -> Values | None:
    """Return what a step of the user's own optimizers alone makes of the parameters, with drawn gradients."""
    draw = torch.Generator().manual_seed(1)
    with subject.pristine(steps=True) as model:
        made = own_optimizers(subject.make_optimizer(model))
        known = {id(p): name for name, p in model.named_parameters() if p.requires_grad}
        seed_everything(subject.seed)
        moved: Values = {}
        for optimizer in made:
            held = [p for g in optimizer.param_groups for p in g["params"] if id(p) in known]
            for p in held:
                gradient = torch.randn(p.shape, generator=draw).to(p)
                p.grad = -gradient if known[id(p)] in turned else gradient
            try:
                optimizer.step()
            except Exception:  # it needs a closure, or gradients of a kind that a loss gives
                return None
            moved |= {known[id(p)]: p.detach().clone() for p in held}
        return moved


def _stepped(subject: Subject, turned: AbstractSet[str]) -> Values | None:
    """Return what the declared step makes of the parameters; None where gradients depend on earlier ones of it."""
    with subject.pristine(steps=True, train=True) as model:
        optimizer = subject.make_optimizer(model)
        seed_everything(subject.seed)
        with _turning(model, turned) as fired:
            subject.train_step(model, optimizer, subject.batch().clone())
        if "" in fired or len(set(fired)) < len(fired):
            return None
        return {n: p.detach().clone() for n, p in model.named_parameters() if n in fired}


@contextlib.contextmanager
def _turning(model: nn.Module, turned: AbstractSet[str]) -> Iterator[list[str]]:
    """Turn the gradients of some parameters round as autograd gives them; yield the names of those that got one.

    Among them is "" if a module ran, or something wrote to a parameter, after one had got its gradient: what
    comes later may depend on the gradients that were turned round.
    """
    fired: list[str] = []
    named = {n: p for n, p in model.named_parameters() if p.requires_grad}
    before = {n: version_of(p) for n, p in named.items()}

    def turn(name: str, gradient: torch.Tensor) -> torch.Tensor:
        written = any(version_of(p) != before[n] for n, p in named.items())
        fired.extend(["", name] if written else [name])
        return -gradient if name in turned else gradient

    def ran(*_: Any) -> None:
        if fired:
            fired.append("")

    handles = [
        p.register_hook(lambda gradient, name=n: turn(name, gradient)) for n, p in named.items()
    ]
    handles.append(register_module_forward_pre_hook(ran))
    try:
        yield fired
    finally:
        for handle in handles:
            handle.remove()
