"""Whether the loss takes the spread of a draw for what the draw takes it for: deviation, variance, or its square."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from ...lean import dataclass
from ...objects import trees
from ...objects.weak import ByTensor
from ...probes.loss.slopes import LossOfOutput
from ...probes.recorded.watch import Watch, name_of
from ...state import seed_everything
from ...subject.errors import SubjectError
from ..training.observation import observe
from .consumption import evidence

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...probes.recorded.watch import Op
    from ...subject import Subject

_NORMAL: Final = frozenset({"randn", "randn_like", "normal", "normal_"})
_PRODUCTS: Final = frozenset({"mul", "__mul__", "__rmul__", "multiply", "mul_"})
_POWERS: Final = (1, 4)
"""Of a deviation ``s``, what a loss may be lowest for in place of the variance ``s ** 2``."""
_NARROW: Final = 0.01  # of the mean deviation: of deviations this alike nothing can be told
_FITS: Final = 1e-3
_MISFITS: Final = 20.0
_LEAST: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A deviation that a draw scales its noise by, and a loss that is that of another one; plain data.

    Attributes:
        path: The output that the deviation is computed from, and the loss reads.
        power: The loss is that of a normal distribution whose variance is this power of the deviation.
        made: The call that computed the deviation.
        drawn: The call that scaled the noise by it.
    """

    path: str
    power: int
    made: Op | None
    drawn: Op


class _Scaled(Watch):
    """Notes by what normal noise is multiplied, and which calls computed that."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__(model)
        self.found: list[tuple[Tensor, Op | None, Op]] = []
        self._noise: ByTensor[bool] = ByTensor()
        self._made: ByTensor[Op] = ByTensor()

    def after(
        self, func: Callable[..., Any], args: Any, kwargs: Any, result: Any, token: Any
    ) -> None:
        """See one call."""
        if not isinstance(result, Tensor):
            return
        bare = getattr(func, "__name__", "")
        if bare in _NORMAL and not result.requires_grad:
            self._noise[result] = True
        elif bare in _PRODUCTS and len(args) > 1:
            for noise, scale in (args[:2], args[1::-1]):
                drawn = self._noise.get(noise)
                if drawn and isinstance(scale, Tensor) and scale.requires_grad:
                    self.found.append((scale, self._made.get(scale), self.op(name_of(func))))
        if result.requires_grad:
            self._made[result] = self.op(name_of(func))


def spread_mistaken(subject: Subject) -> Spread | None:
    """Return a deviation that the loss takes for a variance, or for the root of one; None where it does not.

    The divergence of a normal distribution of deviation ``s`` from another of its kind has, by ``s``, the slope
    ``a * s - b / s`` (Kingma and Welling, Auto-Encoding Variational Bayes, 2014, appendix B), so that the slope
    times ``s`` is affine in ``s ** 2``, whatever weight it has. Affine in ``s`` it is where the loss takes
    the deviation for the variance.

    Cost: 1 F and the loss, where the model draws normal numbers and returns several outputs.
    """
    loss = subject.contract.loss
    try:
        if not callable(loss) or not observe(subject).signals.drawn & _NORMAL:
            return None
        if len(evidence(subject).outputs) < 2:
            return None
        batch = subject.batch().clone()
        with subject.pristine(train=True) as model, torch.enable_grad():
            seed_everything(subject.seed)
            with _Scaled(model) as watch:
                output = subject.call(model, batch)
            slopes = LossOfOutput(subject, output, batch).slopes() if watch.found else None
            known = {} if slopes is None else slopes.by_output
            for path, given in trees.floats(output).items():
                for scale, made, drawn in watch.found if path in known else ():
                    alike = given.shape == scale.shape
                    if alike and (power := _mistaken(given, scale, known[path])):
                        return Spread(path=path, power=power, made=made, drawn=drawn)
    except (SubjectError, RuntimeError):
        pass  # others explain what raises; a value may be overwritten in place
    return None


def _mistaken(given: Tensor, scale: Tensor, slope: Tensor) -> int:
    """Return the power of a deviation that the loss takes for its variance; 0 for the right one, or none."""
    by = torch.autograd.grad(scale.sum(), given, retain_graph=True, allow_unused=True)[0]
    size = scale.detach().double().flatten()
    if by is None or size.numel() < _LEAST or bool((by == 0).any()) or bool((size <= 0).any()):
        return 0
    if float(size.std()) < _NARROW * float(size.mean()):
        return 0
    along = size * slope.double().flatten() / by.double().flatten()
    right, *_ = _misfit(along, size**2)
    for power in _POWERS:
        wrong, a, b = _misfit(along, size**power)
        # a penalty on the deviation alone has no b
        if wrong < _FITS and right > max(_MISFITS * wrong, _FITS) and a > 0 and b < -_NARROW * a:
            return power
    return 0


def _misfit(values: Tensor, by: Tensor) -> tuple[float, float, float]:
    """Return the largest distance of values from the straight line through them, as a share of their range, and the line."""
    table = torch.stack([by / by.mean(), torch.ones_like(by)], 1)
    line = torch.linalg.lstsq(table, values[:, None]).solution
    spread = float(values.max() - values.min())
    far = float((table @ line - values[:, None]).abs().max()) / max(spread, 1e-30)
    return far, float(line[0]), float(line[1])
