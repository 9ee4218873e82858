"""Noise that the first training forward draws and keeps, and no later one draws again."""

from __future__ import annotations

import re
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final

import torch

from ... import sources
from ...lean import dataclass
from ...objects import trees
from ...objects.peek import names_in
from ...state import seed_everything
from ...subject.errors import SubjectError
from ..facts import copied
from ..remembering import kept_value, kept_values, put_value
from ..training.observation import observe

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from torch import nn

    from ...findings import Location
    from ...subject import Subject
    from ..pieces import Piece

_CALLS: Final = 12
"""Training forwards after which what is drawn again from time to time has been."""
_RESET = re.compile(r"_*(reset|redraw|resample|renew|clear|new|sample|draw)(_|$)")


@dataclass(frozen=True, slots=True)
class KeptNoise:
    """Noise in an attribute, which all training forwards after the first read.

    Attributes:
        piece: The attribute, and its value.
        dropped: The share of zeros, where it holds zeros and one other number; else None.
        location: The line of the forward that keeps it, where known.
        calls: How many training forwards left it as it was.
    """

    piece: Piece
    dropped: float | None
    location: Location | None
    calls: int = _CALLS


def kept_noise(subject: Subject) -> KeptNoise | None:
    """Return noise of the first training forward that all later ones read too, and evaluation does not.

    Cost: nothing where the step that all checks share leaves no new tensor in an attribute; else 3 forwards, and
    about 20 more for each that the second one leaves as the first drew it.
    """
    try:
        changed = observe(subject).changed
        pieces = {piece.name: piece for piece in changed if _may_be_noise(piece)}
        if not pieces:
            return None
        first, second = _values(subject, pieces, range(2))
        (other,) = _values(subject, pieces, range(1), by=1)
        for name, piece in pieces.items():
            value, drawn = first[name], other[name]
            kept = value is not None and _same(value, second[name])
            if value is None or drawn is None or value.shape != drawn.shape or not kept:
                continue
            # what another seed leaves as it is, is computed and not drawn
            if not trees.same(value, drawn) and _is_stale(subject, piece, value, drawn):
                return KeptNoise(piece, _dropped(value), _keeping_line(piece))
    except SubjectError:
        pass  # a step that raises is explained by others
    return None


def _may_be_noise(piece: Piece) -> bool:
    """Say whether what a training forward has changed is a tensor of numbers or truth values."""
    value = piece.value
    if piece.kind not in ("tensor", "buffer") or not isinstance(value, torch.Tensor):
        return False
    return (
        trees.computable(value)
        and value.numel() > 1
        and (value.is_floating_point() or value.dtype == torch.bool)
    )


def _is_stale(subject: Subject, piece: Piece, first: torch.Tensor, other: torch.Tensor) -> bool:
    """Say whether noise is never drawn again, by nothing that there is, and read in training alone."""
    if _dropped(first) is None and not _passes_on(subject, piece):
        return False  # random features, or a projection
    calls = _values(subject, (piece.name,), range(_CALLS))
    if not all(_same(first, values[piece.name]) for values in calls):
        return False
    if _is_reset(subject, piece, first):
        return False
    return _only_training_reads(subject, piece, first, other)


def _same(value: torch.Tensor, other: torch.Tensor | None) -> bool:
    return other is not None and trees.same(value, other)


def _keeping_line(piece: Piece) -> Location | None:
    """Return the line outside of the constructor that keeps the noise."""
    pattern = rf"\bself\.{re.escape(piece.key)}\s*=(?!=)(?!\s*None\b)"
    methods = _methods(piece.owner)
    lines = (sources.search(f, pattern) for name, f in methods.items() if name != "__init__")
    return next((line for line in lines if line is not None), None)


def _dropped(value: torch.Tensor) -> float | None:
    """Return the share of zeros in a mask; None of what holds other numbers than zeros and one more."""
    number = value.float()
    zeros, top = number == 0, number.max()
    mask = bool(zeros.any()) and bool((zeros | (number == top)).all()) and bool(top > 0)
    return float(zeros.float().mean()) if mask else None


def _values(
    subject: Subject, names: Collection[str], calls: range, *, by: int = 0
) -> list[dict[str, torch.Tensor | None]]:
    """Return what attributes hold after each training forward; each draws other numbers, for other samples.

    Args:
        subject: Whose model.
        names: Of the attributes.
        calls: Numbers of the forwards.
        by: Added to the seeds.
    """
    found: list[dict[str, torch.Tensor | None]] = []
    with subject.pristine(train=True) as model, torch.no_grad():
        for number in calls:
            seed_everything(subject.seed + by + 2 * number)
            subject.call(model, subject.batch(number % 2).clone())
            now = kept_values(model, names)
            found.append({n: v if isinstance(v, torch.Tensor) else None for n, v in now.items()})
    return found


def _passes_on(subject: Subject, piece: Piece) -> bool:
    """Say whether the module that holds the noise gives back its input in eval mode."""
    seen: list[bool] = []

    def look(_module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        given = args[0] if args else None
        if isinstance(given, torch.Tensor) and isinstance(output, torch.Tensor):
            seen.append(trees.same(given, output))
        else:
            seen.append(False)

    with subject.pristine(train=False, seeded=True) as model, torch.no_grad():
        handle = piece.owner.register_forward_hook(look)
        try:
            subject.call(model, subject.batch().clone())
        finally:
            handle.remove()
    return bool(seen) and all(seen)


def _is_reset(subject: Subject, piece: Piece, first: torch.Tensor) -> bool:
    """Say whether something is there to draw it again: a method, a step of the user's, or a change of the mode."""
    if any(_sets(function, piece.key) for function in _other_methods(piece.owner)):
        return True
    with subject.pristine(train=True, seeded=True) as model, torch.no_grad():
        subject.call(model, subject.batch().clone())
        for method in _resets(model, piece):
            try:
                method()
            except Exception:  # a method of the user's, called by its name alone
                continue
        model.eval()
        subject.call(model, subject.batch().clone())
        model.train()
        seed_everything(subject.seed + 1)
        subject.call(model, subject.batch().clone())
        now = kept_value(model, piece.name)
        if not (isinstance(now, torch.Tensor) and trees.same(now, first)):
            return True
    return subject.contract.train_step is not None and _step_draws(subject, piece.name)


def _resets(model: nn.Module, piece: Piece) -> Iterator[Any]:
    """Return the methods of the module that holds the noise, and of those around it, that are named as a reset is."""
    parts = piece.name.rpartition(".")[0].split(".")
    owners = {
        id(m): m for n in range(len(parts) + 1) if (m := _module(model, parts[:n])) is not None
    }
    for owner in (*owners.values(), piece.owner):
        for name in dir(type(owner)):
            if _RESET.match(name) and callable(method := getattr(owner, name, None)):
                yield method


def _module(model: nn.Module, parts: list[str]) -> nn.Module | None:
    try:
        return model.get_submodule(".".join(parts))
    except AttributeError:
        return None


def _methods(owner: nn.Module) -> dict[str, FunctionType]:
    """Return the methods of a class, other than torch's, by name."""
    return {
        name: value
        for cls in reversed(type(owner).__mro__)
        if cls.__module__.partition(".")[0] != "torch"
        for name, value in vars(cls).items()
        if isinstance(value, FunctionType)
    }


def _other_methods(owner: nn.Module) -> Iterator[FunctionType]:
    """Return the methods of a class that its constructor and its forward do not call."""
    own, called = _methods(owner), {"__init__", "forward"}
    for _ in own:
        more = {n for name in called & own.keys() for n in names_in(own[name])} & own.keys()
        if more <= called:
            break
        called |= more
    return (function for name, function in own.items() if name not in called)


def _sets(function: FunctionType, key: str) -> bool:
    """Say whether a method assigns an attribute of its object."""
    return sources.search(function, rf"\bself\.{re.escape(key)}\s*(:[^=]+)?=(?!=)") is not None


def _step_draws(subject: Subject, name: str) -> bool:
    """Say whether the declared training step has other noise in its second call than in its first."""
    values = []
    with subject.pristine(steps=True, train=True, seeded=True) as model:
        optimizer = subject.make_optimizer(model)
        for number in range(2):
            seed_everything(subject.seed + number)
            subject.train_step(model, optimizer, subject.batch().clone())
            values.append(kept_value(model, name))
    same = all(isinstance(value, torch.Tensor) for value in values) and trees.same(*values)
    return not same


def _only_training_reads(
    subject: Subject, piece: Piece, first: torch.Tensor, other: torch.Tensor
) -> bool:
    """Say whether other noise in the attribute changes the output of training and not that of evaluation."""
    made: dict[tuple[bool, int], dict[str, torch.Tensor]] = {}
    for train in (True, False):
        for number, value in enumerate((first, other)):
            with subject.pristine(train=train) as model, torch.no_grad():
                put_value(model, piece.name, value.clone())
                seed_everything(subject.seed + 1)
                made[train, number] = copied(subject.call(model, subject.batch().clone()))
    trained, evaluated = (
        all(path in made[train, 1] and trees.same(t, made[train, 1][path]) for path, t in made[train, 0].items())
        for train in (True, False)
    )  # fmt: skip
    return evaluated and not trained
