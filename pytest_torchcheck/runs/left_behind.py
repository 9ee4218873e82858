"""What an evaluation, or building the model, leaves behind in the process: settings, and generators that it seeded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..lean import dataclass
from ..objects.peek import names_in
from ..probes.randomness import generators
from ..state import isolated, seed_everything
from ..state.settings import settings_kept
from ..subject.errors import SubjectError
from .facts import settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from ..subject import Subject

_SEED = 12345  # one that no program sets by itself
_SEEDING = frozenset({"manual_seed", "manual_seed_all", "seed", "seed_everything", "set_seed"})


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftBehind:
    """What ``eval()``, a forward and ``train()`` left, called as a loop does with gradients on.

    Attributes:
        before, after: Global settings.
        seeded: Generators of the process that are in one state, whatever the seed was before.
    """

    before: dict[str, object]
    after: dict[str, object]
    seeded: tuple[str, ...] = ()


def after_evaluation(subject: Subject) -> LeftBehind | None:
    """Evaluate a few samples with gradients on, and return to training; None where that raises.

    What a training forward seeds as well is told of that.

    Cost: 1 forward of two samples; 1 more where an evaluation moves a generator.
    """
    try:
        before, after, start, first = _run(subject, _SEED, train=False)
        seeded: tuple[str, ...] = ()
        if first != start:
            seeded = _alike(start, first, _run(subject, _SEED + 1, train=False)[3])
        if seeded:
            _, _, start, first = _run(subject, _SEED, train=True)
            also = _alike(start, first, _run(subject, _SEED + 1, train=True)[3])
            seeded = tuple(name for name in seeded if name not in also)
    except SubjectError:
        return None
    return LeftBehind(before=before, after=after, seeded=seeded)


def _run(
    subject: Subject, seed: int, *, train: bool
) -> tuple[dict[str, object], dict[str, object], dict[str, object], dict[str, object]]:
    """Call the model with gradients on; return settings and states of generators before and after."""
    batch = subject.few(subject.batch()) or subject.batch()
    with settings_kept(), subject.pristine() as model, torch.enable_grad():
        seed_everything(seed)
        before, start = settings(), _states()
        if not train:
            model.eval()
        subject.call(model, batch.clone())
        states = _states()
        model.train()
        return before, settings(), start, states


def _alike(
    start: dict[str, object], one: dict[str, object], two: dict[str, object]
) -> tuple[str, ...]:
    """Name the generators that are in one state after two runs under different seeds, and moved."""
    return tuple(name for name in one if one[name] == two.get(name) and one[name] != start[name])


def seeded_by_building(subject: Subject) -> tuple[tuple[str, ...], type[nn.Module] | None]:
    """Return the generators that constructing the model seeds, and the class whose constructor does.

    A factory may seed on purpose, a class of the model's own does it to all that is built after it.

    Cost: nothing unless the constructor of a class names a function that seeds; else 2 builds.
    """
    kinds = dict.fromkeys(map(type, subject.model.modules()))
    found = next((kind for kind in kinds if _seeds(kind)), None)
    if found is None or not subject.contract.is_factory:
        return (), None

    def left(seed: int) -> tuple[dict[str, object], dict[str, object]]:
        with isolated():
            seed_everything(seed)
            before = _states()
            subject.build(seed)
            return before, _states()

    (start, one), (_, two) = left(_SEED), left(_SEED + 1)
    names = _alike(start, one, two)
    return names, found if names else None


def _seeds(kind: type) -> bool:
    own = kind.__module__.partition(".")[0] not in ("torch", "builtins")
    return own and bool(_SEEDING & names_in(vars(kind).get("__init__")))


def _states() -> dict[str, object]:
    """Return the state of each generator of the process in a form that can be compared."""
    return {name: _plain(read) for name, read in generators().items()}


def _plain(read: Callable[[], Any]) -> object:
    state = read()
    return state.numpy().tobytes() if isinstance(state, torch.Tensor) else state
