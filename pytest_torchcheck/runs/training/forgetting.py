"""Optimizers of the user's own that keep nothing of earlier steps, or undo their own, whatever was learned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from ...lean import dataclass
from ...loop.checkpoints import is_torchs
from ...objects import trees
from ...probes.recorded.unread import UnreadWatch
from ...state import seed_everything
from ...subject.errors import SubjectError
from ...subject.optimizers import optimizers_of
from ...subject.remembered import remembered
from ..liveness.unread import judged
from .enduring import MANY

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ...subject import Subject
    from ..liveness.unread import Unread

_STEPS: Final = 4
"""Steps of which the last has the same gradients in both runs; some optimizers warm up in the first ones."""
_COUNTERS: Final = frozenset({"step", "steps", "t", "step_count", "num_steps"})
"""What optimizers call the number of their steps, torch's own and others."""
_MORE: Final = 7
_SIGNS: Final = 1e-6  # of the values: what float32 leaves of two equal steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgetting:
    """An optimizer whose step depends on no earlier gradient.

    Attributes:
        optimizer: It.
        option: Its option that says otherwise, as ``momentum=0.9``.
        kept: What it keeps of each parameter, by the names of its state; empty where it keeps nothing.
    """

    optimizer: torch.optim.Optimizer
    option: str
    kept: tuple[str, ...]


def forgetting(subject: Subject) -> Forgetting | None:
    """Return the optimizer of the user's own that has a momentum, and takes the same step whatever came before.

    Each steps alone, twice from the same values: with other gradients in all steps but the last one, before which
    the parameters are put back. A moving average, of gradients or of their squares, makes the last steps differ.

    Cost: nothing for torch's own optimizers; else steps of the optimizer alone.
    """
    if own_optimizer(subject) is None:
        return None
    one, other = (_last_values(subject, seed) for seed in (1, 2))
    for place, (optimizer, option, begun, values) in one.items():
        again = other[place][3] if place in other else None
        if again is None or all(map(trees.same, begun, values)):
            continue
        if all(map(_by_signs, begun, values)):
            continue  # earlier gradients may not be large enough yet to turn a sign
        if all(map(trees.same, values, again)):
            return Forgetting(optimizer=optimizer, option=option, kept=_kept(optimizer))
    return None


def _by_signs(before: torch.Tensor, after: torch.Tensor) -> bool:
    """Say whether all elements of a parameter moved by the same amount, up or down."""
    moved = (after - before).abs()
    return not moved.numel() or bool(moved.max() - moved.min() <= _SIGNS * after.abs().max())


def uncounted(subject: Subject) -> tuple[torch.optim.Optimizer, str] | None:
    """Return the optimizer of the user's own that reads a number of steps which never changes, and its name.

    The number must be the same after four steps and after eight, and a copy of the optimizer in which it is greater
    must take another step.

    Cost: nothing for torch's own optimizers; else steps of the optimizer alone.
    """
    if own_optimizer(subject) is None:
        return None
    with subject.pristine(steps=True) as model:
        for optimizer in own_optimizers(subject.make_optimizer(model)):
            held = [p for g in optimizer.param_groups for p in g["params"] if trees.computable(p)]
            begun = [p.detach().clone() for p in held]
            if not held or not _stepped(optimizer, held, begun, seed=1):
                continue
            first = _counters(optimizer)
            if not first or not _stepped(optimizer, held, begun, seed=2):
                continue
            last = _counters(optimizer)
            name = next((key[1] for key, v in first.items() if last.get(key) == v), "")
            if name and _reads(optimizer, held, begun, name):
                return optimizer, name
    return None


def _reads(
    optimizer: torch.optim.Optimizer, held: list[Any], begun: list[torch.Tensor], name: str
) -> bool:
    """Say whether the optimizer takes another step where its number of steps is greater, and repeats it where not."""
    before = [{k: _apart(v) for k, v in holder.items()} for holder in _holders(optimizer)]
    made: list[list[torch.Tensor]] = []
    for more in (0, 0, _MORE):
        for holder, values in zip(_holders(optimizer), before, strict=True):
            holder.update({k: _apart(v) for k, v in values.items()})
            if name in holder:
                holder[name] = holder[name] + more
        if not _stepped(optimizer, held, begun, seed=1, steps=1):
            return False
        made.append([p.detach().clone() for p in held])
    plain, again, later = made
    # what it counts elsewhere makes a further step differ, too
    return all(map(trees.same, plain, again)) and not all(map(trees.same, plain, later))


def _apart(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _holders(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    return [*(s for s in optimizer.state.values() if isinstance(s, dict)), *optimizer.param_groups]


def _counters(optimizer: torch.optim.Optimizer) -> dict[tuple[int, str], float]:
    """Return the numbers of steps that an optimizer keeps, by their places and names."""
    return {
        (place, name): float(value)
        for place, holder in enumerate(_holders(optimizer))
        for name, value in holder.items()
        if name in _COUNTERS
        and (
            (isinstance(value, torch.Tensor) and value.numel() == 1)
            or (isinstance(value, int | float) and not isinstance(value, bool))
        )
    }


def _last_values(subject: Subject, seed: int) -> dict[int, Any]:
    """Return by place each optimizer that has a momentum, with its values before and after its last step."""
    found: dict[int, Any] = {}
    with subject.pristine(steps=True) as model:
        for place, optimizer in enumerate(own_optimizers(subject.make_optimizer(model))):
            option = _momentum(optimizer)
            held = [p for g in optimizer.param_groups for p in g["params"] if trees.computable(p)]
            if not option or not held:
                continue
            seed_everything(subject.seed)
            begun = [p.detach().clone() for p in held]
            if _stepped(optimizer, held, begun, seed):
                found[place] = optimizer, option, begun, [p.detach().clone() for p in held]
    return found


def _stepped(
    optimizer: torch.optim.Optimizer,
    held: list[Any],
    begun: list[torch.Tensor],
    seed: int,
    steps: int = _STEPS,
) -> bool:
    """Take steps with drawn gradients, the last one from the first values; say whether the optimizer allows it."""
    earlier, last = (torch.Generator().manual_seed(n) for n in (seed, 0))
    for step in range(steps):
        final = step == steps - 1
        for p, value in zip(held, begun, strict=True):
            p.grad = torch.randn(p.shape, generator=last if final else earlier).to(p)
            if final:
                p.data.copy_(value)
        try:
            optimizer.step()
        except Exception:  # it needs a closure, or gradients of a kind that a loss gives
            return False
    return True


def _momentum(optimizer: torch.optim.Optimizer) -> str:
    """Return the option by which an optimizer averages over steps, as it would be written; "" where none does."""
    for group in optimizer.param_groups:
        for name, value in group.items():
            values = value if isinstance(value, tuple | list) else (value,)
            if ("momentum" in name or "beta" in name) and any(
                isinstance(v, float) and 0 < v < 1 for v in values
            ):
                return f"{name}={value}"
    return ""


def _kept(optimizer: torch.optim.Optimizer) -> tuple[str, ...]:
    names = {
        str(name): None
        for p, state in optimizer.state.items()
        if isinstance(state, dict)
        for name, value in state.items()
        if isinstance(value, torch.Tensor) and value.shape == p.shape and value.dim()
    }
    return tuple(names)


_MOST: Final = 4
"""Parameters of an optimizer that are looked at, the largest ones."""


def own_optimizers(made: Any) -> list[torch.optim.Optimizer]:
    """Return the optimizers whose step is not torch's own alone."""
    return [one for one in optimizers_of(made) if not is_torchs(one)]


@remembered("own-optimizer")
def own_optimizer(subject: Subject) -> type[torch.optim.Optimizer] | None:
    """Return the class of the first optimizer whose step is not torch's own alone, or None; cached, since four ask."""
    if subject.contract.optimizer is None:
        return None
    with subject.pristine(steps=True) as model:
        own = own_optimizers(subject.make_optimizer(model))
    return type(own[0]) if own else None


def returning(subject: Subject) -> tuple[list[str], int] | None:
    """Return what the optimizer sets back to where it began, and after how many steps; None where nothing.

    Each optimizer of the user's own steps alone, with the same gradients each time, which no rule that follows
    them can turn back. Then the declared steps must set the same parameters back after as many. One that
    evaluates a closure may return for the sake of the loss, and is not asked.

    Cost: nothing for torch's own optimizers; else the optimizer's steps alone.
    """
    try:
        if own_optimizer(subject) is None:
            return None
    except SubjectError:
        return None
    with subject.pristine(steps=True) as model:
        made = subject.make_optimizer(model)
        known = {id(p): name for name, p in model.named_parameters() if p.requires_grad}
        for optimizer in own_optimizers(made):
            held = [p for g in optimizer.param_groups for p in g["params"] if id(p) in known]
            after = _stepped_alone(optimizer, held)
            if after is not None:
                names = [known[id(p)] for p in held if p.numel() > 1] or [known[id(held[0])]]
                break
        else:
            return None
    return (names, after) if _trained_back(subject, names, after) else None


def dropped_by_steps(subject: Subject, steps: int) -> Unread | None:
    """Return the result that so many steps of the user's own optimizers compute and drop; None unless there is one."""
    watch = UnreadWatch()
    with subject.pristine(steps=True) as model:
        made = own_optimizers(subject.make_optimizer(model))
        trained = [p for p in model.parameters() if p.requires_grad]
        try:
            with watch:
                for optimizer in made * steps:
                    for p in trained:
                        p.grad = torch.ones_like(p)
                    optimizer.step()
        except Exception:  # what a step of the user's asks for besides is not known
            return None
    told = {one.location: one for p in watch.unread if (one := judged(p)) is not None}
    found = [one for one in told.values() if one.kind == "dropped"]
    return found[0] if len(found) == 1 else None


def _stepped_alone(optimizer: torch.optim.Optimizer, held: list[torch.Tensor]) -> int | None:
    looked = sorted((p for p in held if trees.computable(p)), key=lambda p: -p.numel())[:_MOST]
    if not looked:
        return None
    draw = torch.Generator().manual_seed(1)
    gradients = [torch.rand(p.shape, generator=draw).to(p) + 0.5 for p in held]
    begun = [p.detach().clone() for p in looked]
    moved = False
    for step in range(1, MANY + 1):
        for p, gradient in zip(held, gradients, strict=True):
            p.grad = gradient.clone()
        try:
            optimizer.step()
        except Exception:  # it needs a closure, or gradients of a kind that a loss gives
            return None
        if all(map(trees.same, looked, begun)):
            if moved:
                return step
        else:
            moved = True
    return None


def _trained_back(subject: Subject, names: Iterable[str], after: int) -> bool:
    """Say whether the declared steps too give parameters their first values, and move them before."""
    with subject.pristine(steps=True, train=True, seeded=True) as model:
        try:
            made = subject.make_optimizer(model)
            tensors = {name: model.get_parameter(name) for name in names}
            begun = {name: p.detach().clone() for name, p in tensors.items()}
            moved = False
            for step in range(after):
                moved = moved or any(not trees.same(p, begun[n]) for n, p in tensors.items())
                seed_everything(subject.seed + step)
                subject.train_step(model, made, subject.batch().clone())
            return moved and all(trees.same(p, begun[n]) for n, p in tensors.items())
        except SubjectError:
            return False
