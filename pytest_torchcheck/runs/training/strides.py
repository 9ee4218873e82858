"""How far a few elements of each parameter go in each step, and what a forward does to them."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Final

import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Iterable

_MOST: Final = 64
"""Elements of each parameter that are looked at."""
_FEWEST: Final = 4
FALL: Final = 1e-4
"""Share of the first step below which a later one is nothing; no decay of a rate goes so far so fast."""


def sampled(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return some elements of each parameter that is trained, as float64 on the CPU."""
    found = {}
    for name, parameter in model.named_parameters():
        plain = type(parameter) in (nn.Parameter, torch.Tensor) and not parameter.is_meta
        if not plain or not parameter.requires_grad or not parameter.is_floating_point():
            continue
        if parameter.layout is not torch.strided or not parameter.numel():
            continue
        every = max(1, math.ceil(parameter.numel() / _MOST))
        found[name] = parameter.detach().reshape(-1)[::every].to("cpu", torch.float64, copy=True)
    return found


@torch.no_grad()
def move(model: nn.Module, names: Iterable[str], side: float) -> None:
    """Move parameters by a share of their size, every other element by twice as much: beyond bounds, or within them."""
    for name in names:
        parameter = model.get_parameter(name)
        shift = 0.05 * float(parameter.abs().max()) + 1e-3
        steps = 1 + torch.arange(parameter.numel(), device=parameter.device) % 2
        parameter.add_(steps.view(parameter.shape).to(parameter.dtype), alpha=side * shift)


class Strides:
    """Follows the trained parameters of a model from step to step."""

    def __init__(self, model: nn.Module) -> None:
        self._at = [sampled(model)]
        self._eps = {
            n: torch.finfo(p.dtype).eps
            for n, p in model.named_parameters()
            if p.is_floating_point()
        }

        self._moves: dict[str, list[float]] = {name: [] for name in self._at[0]}

    def look(self, model: nn.Module) -> None:
        """Take the values after a step."""
        before, now = self._at[-1], sampled(model)
        self._at.append(now)
        both = [
            n for n in self._moves if n in before and n in now and before[n].shape == now[n].shape
        ]
        moved: dict[str, float] = {}
        if both:
            then, after = (torch.cat([at[n] for n in both]) for at in (before, now))
            sizes = [before[n].numel() for n in both]
            changes = (after - then).abs_().split(sizes)
            moved = dict(zip(both, (float(change.max()) for change in changes), strict=True))
        for name, moves in self._moves.items():
            moves.append(moved.get(name, math.nan))

    def moves(self, name: str) -> list[float]:
        """Return the largest change of each step."""
        return self._moves[name]

    def fading(self) -> tuple[str, ...]:
        """Return what moves in the first step, and in no later one by more than a ten-thousandth of that."""
        if len(self._at) < 3:
            return ()
        found = []
        for name in self._at[0]:
            first, *later = self.moves(name)
            if first > 0 and all(move < FALL * first for move in later):
                found.append(name)
        return tuple(found)

    def rests(self) -> bool:
        """Say whether some step after the first moves nothing."""
        moves = [self.moves(name) for name in self._at[0]]
        return any(not any(row) for row in list(zip(*moves, strict=True))[1:])

    def undone(self) -> int:
        """Return the step, from 1, after which all is bit by bit what it was before the step before it; 0 for none."""
        for later in range(2, len(self._at)):
            now = self._at[later]
            for then, between in itertools.pairwise(self._at[:later]):
                same = now.keys() == then.keys() == between.keys() and all(
                    torch.equal(now[n], then[n]) for n in now
                )
                moved = sum(int((then[n] != between[n]).sum()) for n in now) if same else 0
                if moved > _MOST // 4:
                    return later
        return 0

    def decaying(self) -> tuple[str, ...]:
        """Return what each step does nothing to but multiply it by one number."""
        return tuple(n for n in self._at[0] if self.moves(n) and all(self._scaled(n)))

    def moved_freely(self, names: Iterable[str]) -> dict[str, float]:
        """Return, for others than these, the largest change of the first step."""
        left = set(self._at[0]) - set(names)
        return {n: m[0] for n in left if (m := self.moves(n)) and m[0] > 0}

    def resolution(self, name: str) -> float:
        """Return the smallest change that the numbers of a parameter show."""
        return self._eps[name] * float(self._at[0][name].abs().max())

    def returned(self, now: dict[str, torch.Tensor]) -> tuple[str, ...]:
        """Return what the steps moved and what is now, bit by bit, where it began."""
        first, last = self._at[0], self._at[-1]
        return tuple(
            name
            for name, value in now.items()
            if name in first
            and name in last
            and not torch.equal(first[name], last[name])
            and torch.equal(first[name], value)
        )

    def written(self, now: dict[str, torch.Tensor]) -> tuple[str, ...]:
        """Return what is now something else than after the last step, though no optimizer has run since."""
        last = self._at[-1]
        return tuple(n for n, value in now.items() if n in last and not torch.equal(last[n], value))

    def _scaled(self, name: str) -> Iterable[bool]:
        for before, after in itertools.pairwise(self._at):
            a, b = before[name], after.get(name)
            if b is None or b.shape != a.shape or int(a.count_nonzero()) < _FEWEST:
                yield False
                continue
            if bool((a * (b - a) > 0).any()):
                yield False  # away from zero somewhere
                continue
            factor = float((a * b).sum() / (a * a).sum())
            eps = self._eps[name]
            exact = bool(((b - factor * a).abs() <= 4 * eps * a.abs()).all())
            yield exact and 1 - factor > 32 * eps
