"""Directional derivatives of a module: many tensors moved at once, then one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils import _pytree as pytree

from ..lean import dataclass
from .calls import is_float, seed_generators, tensors_of
from .relations.jacobians import as_real, random_like

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_GROUP = 16
"""Tensors that are moved together in the first screening; a wrong one must stand out of their sum."""

_SCREEN = 1e-4
"""Relative difference that kinks crossed by a joint step may cause (about one activation in a million)."""

_CONFIRM = 1e-3
_DRAWS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A module as a function of float64 tensors: parameters and floating inputs by name.

    Attributes:
        module: The module; only its values are replaced, by ``functional_call``.
        path: Its qualified name, empty for the whole.
        tensors: What derivatives are taken of, by name; inputs are called ``input 0`` and so on.
        fixed: The other parameters and buffers, cast.
        leaves: Flat arguments, cast.
        spec: How to rebuild them.
        places: Flat index of each input among ``tensors``.
        seed: Every run starts from it.
    """

    module: nn.Module
    path: str
    tensors: Mapping[str, Tensor]
    fixed: Mapping[str, Tensor]
    leaves: tuple[Any, ...]
    spec: Any
    places: Mapping[str, int]
    seed: int

    def run(self, tensors: Mapping[str, Tensor]) -> list[Tensor]:
        """Call the module with these values and return its floating outputs."""
        leaves = [v.clone() if isinstance(v, Tensor) else v for v in self.leaves]
        for name, index in self.places.items():
            leaves[index] = tensors[name].clone()
        state = {n: t for n, t in tensors.items() if n not in self.places}
        state.update({n: t.clone() for n, t in self.fixed.items()})
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        seed_generators(self.seed)
        result = functional_call(self.module, state, args, kwargs)
        return [out for out in tensors_of(result) if is_float(out)]


def make_subject(module: nn.Module, path: str, args: Any, kwargs: Any, seed: int) -> Subject:
    """Cast a module and its arguments to float64, without changing either."""
    leaves, spec = pytree.tree_flatten((tuple(args), dict(kwargs)))
    leaves = [_double(v) if isinstance(v, Tensor) else v for v in leaves]
    places = {
        f"input {i}": i for i, v in enumerate(leaves) if isinstance(v, Tensor) and is_float(v)
    }
    parameters = {n: _double(p) for n, p in module.named_parameters()}
    trained = {
        n: t for n, t in parameters.items() if is_float(t) and module.get_parameter(n).requires_grad
    }
    fixed = {n: t for n, t in parameters.items() if n not in trained}
    fixed.update({n: _double(b) for n, b in module.named_buffers()})
    return Subject(
        module=module,
        path=path,
        tensors={**trained, **{n: leaves[i] for n, i in places.items()}},
        fixed=fixed,
        leaves=tuple(leaves),
        spec=spec,
        places=places,
        seed=seed,
    )


def _double(tensor: Tensor) -> Tensor:
    tensor = tensor.detach()
    if tensor.is_complex():
        return tensor.to(torch.complex128)
    return tensor.to(torch.float64) if tensor.is_floating_point() else tensor.clone()


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Gradients and random directions at one point."""

    grads: Mapping[str, Tensor | None]
    directions: Mapping[str, Tensor]
    widths: Mapping[str, float]
    weights: Sequence[Tensor]
    size: float


def _point(subject: Subject, draw: int) -> Point | str:
    with torch.enable_grad():
        leaves = {n: t.clone().requires_grad_() for n, t in subject.tensors.items()}
        outputs = [o for o in subject.run(leaves) if o.requires_grad]
        if not outputs:
            return "no output requires a gradient"
        generator = torch.Generator().manual_seed(0xD1CE + draw)
        weights = [random_like(o, generator) for o in outputs]
        parts = [(_real(o) * _real(w)).sum() for o, w in zip(outputs, weights, strict=True)]
        total = torch.stack([part.to(torch.float64) for part in parts]).sum()
        grads = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
    directions, widths = {}, {}
    found = dict(zip(leaves, grads, strict=True))
    for name, tensor in subject.tensors.items():
        direction = random_like(tensor, generator)
        direction /= direction.norm().clamp_min(1e-300)
        grad = found[name]
        if grad is not None and bool(grad.isfinite().all()) and bool(grad.any()):
            direction = direction + grad / grad.norm()  # along the gradient a factor shows at once
        directions[name] = direction / direction.norm().clamp_min(1e-300)
        widths[name] = 1e-6 * min(max(float(tensor.norm()), 1e-3), 1e3)
    size = sum(
        float((as_real(o) * as_real(w)).abs().sum()) for o, w in zip(outputs, weights, strict=True)
    )
    return Point(
        grads=found,
        directions=directions,
        widths=_even(found, directions, widths),
        weights=weights,
        size=size,
    )


def _real(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _even(
    grads: Mapping[str, Tensor | None],
    directions: Mapping[str, Tensor],
    widths: Mapping[str, float],
) -> dict[str, float]:
    """Scale the steps so that each tensor moves the output about as much as the others."""
    moves = {n: widths[n] * abs(_slope(grads[n], directions[n])) for n in widths}
    alive = sorted(m for m in moves.values() if m > 0)
    if not alive:
        return dict(widths)
    middle = alive[len(alive) // 2]
    return {
        n: width * min(max(middle / moves[n], 0.1), 10.0) if moves[n] > 0 else width
        for n, width in widths.items()
    }


def _slope(grad: Tensor | None, direction: Tensor) -> float:
    return 0.0 if grad is None else float(as_real(grad) @ as_real(direction))


def _difference(subject: Subject, point: Point, names: Sequence[str], shrink: float = 1.0) -> float:
    """Return the central difference of the weighted outputs when these tensors move together."""
    values = []
    with torch.no_grad():
        for sign in (1.0, -1.0):
            moved = dict(subject.tensors)
            for name in names:
                moved[name] = (
                    moved[name] + sign * shrink * point.widths[name] * point.directions[name]
                )
            values.append(_weighted(subject.run(moved), point.weights))
    return (values[0] - values[1]) / (2 * shrink)


def _weighted(outputs: Sequence[Tensor], weights: Sequence[Tensor]) -> float:
    return sum(float(as_real(o) @ as_real(w)) for o, w in zip(outputs, weights, strict=False))


def screen(subject: Subject) -> tuple[Point, list[str]] | str:
    """Move the tensors together, in groups, and return those of the groups that differ."""
    point = _point(subject, 0)
    if isinstance(point, str):
        return point
    suspects: list[str] = []
    for group in _groups(list(subject.tensors)):
        expected = [point.widths[n] * _slope(point.grads[n], point.directions[n]) for n in group]
        found = _difference(subject, point, group)
        limit = _SCREEN * sum(abs(e) for e in expected) + _noise(point)
        if not abs(sum(expected) - found) <= limit:  # also for NaN
            suspects += group
    return point, suspects


def _groups(names: Sequence[str]) -> Iterator[list[str]]:
    for start in range(0, len(names), _GROUP):
        yield list(names[start : start + _GROUP])


def _noise(point: Point) -> float:
    return 256 * torch.finfo(torch.float64).eps * point.size


def confirmed(
    subject: Subject, suspects: Sequence[str], first: Point
) -> dict[str, tuple[float, float]]:
    """Keep the tensors that differ one by one at every draw: kinks differ at some only."""
    wrong: dict[str, tuple[float, float]] = {}
    left = list(suspects)
    for draw in range(_DRAWS):
        if not left:
            break
        point = first if draw == 0 else _point(subject, draw)
        if isinstance(point, str):
            return {}
        for name in list(left):
            width = point.widths[name]
            expected = width * _slope(point.grads[name], point.directions[name])
            shrink = 0.3**draw
            found = _difference(subject, point, [name], shrink)
            limit = _CONFIRM * max(abs(expected), abs(found)) + _noise(point) / shrink
            agrees = abs(expected - found) <= limit
            if not agrees and draw == _DRAWS - 1:
                agrees = _kinked(subject, point, name, found, expected)
            if agrees:
                left.remove(name)
                wrong.pop(name, None)
            elif draw == 0:
                wrong[name] = (expected / width, found / width)
    return {n: wrong[n] for n in left if n in wrong}


def _kinked(subject: Subject, point: Point, name: str, found: float, expected: float) -> bool:
    """See whether the one-sided differences disagree as much as the two slopes do: a tie, or a kink."""
    values = []
    with torch.no_grad():
        for sign in (1.0, 0.0, -1.0):
            moved = dict(subject.tensors)
            moved[name] = moved[name] + sign * point.widths[name] * point.directions[name]
            values.append(_weighted(subject.run(moved), point.weights))
    above, below = values[0] - values[1], values[1] - values[2]
    return abs(above - below) > 0.2 * abs(found - expected) + _noise(point)
