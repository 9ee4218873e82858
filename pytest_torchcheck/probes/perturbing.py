"""Which random draws of a forward only disturb a value: dropout, dropout by hand, and layers that add noise."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

from ..lean import dataclass
from ..objects.trees import tensors
from .randomness import DrawWatch
from .recorded.watch import name_of, tensors_in

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..findings import Location

_DROPPING = ("dropout", "rrelu", "attention")
_LAYER_DRAWS = 64
"""How often a layer of noise runs on one input, so that its mean can be told from what it is given."""
_SIGMAS = 5.0
_FEW = 4
_MANY = 32
"""From how many factors on their mean says whether they are 1 on average."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Perturbation:
    """A draw that leaves the expected value of what it disturbs as it was.

    Attributes:
        kind: ``dropout`` by one of torch's functions; ``mask`` a product with a random mask whose kept
            entries are scaled up, as dropout does; ``jitter`` a product with random factors that are
            1 on average; ``noise`` a module without parameters whose output is its input on average.
        op: The function that draws.
        location: The user's line that draws, or that multiplies with the mask.
        module: Qualified name of the module in which it happened.
        scale: What the kept entries of a mask are multiplied by, else 1.
    """

    kind: Literal["dropout", "mask", "jitter", "noise"]
    op: str
    location: Location | None
    module: str
    scale: float = 1.0


def find_perturbations(run: Callable[[], object], module: nn.Module) -> tuple[Perturbation, ...]:
    """List the draws of a run that only disturb values, in order; nothing is undone here.

    A draw whose size is computed from the input or from parameters (the latent of a variational
    autoencoder), that chooses (a sampled token, a Gumbel softmax), or that hides values without a
    correction (a masked autoencoder) is not one of them: such models mean what they draw.

    Args:
        run: Any call of ``module``.
        module: The model; layers of noise are run some times more.
    """
    with PerturbationWatch(module) as watch:
        run()
    return tuple(watch.found)


class PerturbationWatch(DrawWatch):
    """Follows what was computed from random draws alone, and the values that it is multiplied with."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self.found: list[Perturbation] = []
        self._pure: dict[int, torch.Tensor] = {}  # computed from draws and numbers alone
        self._masked: dict[int, tuple[torch.Tensor, float, float, Perturbation]] = {}
        self._entered_at: list[tuple[int, int]] = []

    def after(
        self, func: Callable[..., Any], args: Any, kwargs: Any, result: Any, token: Any
    ) -> None:
        """Follow a call that drew, or that took what was drawn."""
        before = len(self.draws)
        super().after(func, args, kwargs, result, token)
        drew = len(self.draws) > before
        name = name_of(func)
        with torch._C.DisableTorchFunction():
            if drew and any(word in name for word in _DROPPING):
                self._add(Perturbation(**self._here(name), kind="dropout"))
            elif isinstance(result, torch.Tensor):
                self._follow(name, drew, list(tensors_in((args, kwargs))), args, result)

    def _follow(
        self, name: str, drew: bool, given: list[torch.Tensor], args: Any, result: torch.Tensor
    ) -> None:
        random = [t for t in given if self._is_pure(t)]
        if drew and ("like" in name or not given or result is given[0]):
            self._pure[id(result)] = result  # what it was before does not matter: it is overwritten
            return
        if random and all(self._is_pure(t) or _is_number(t) for t in given):
            self._pure[id(result)] = result
            return
        short = name.rpartition(".")[2].strip("_")
        if short in ("mul", "multiply", "imul", "rmul") and len(given) == 2 and len(random) == 1:
            values = random[0].detach().float()
            top, share = float(values.max()), float((values == 0).float().mean())
            if values.numel() >= _FEW and bool(((values == 0) | (values == top)).all()) and top > 0:
                drawn = next((d.op for d in reversed(self.draws) if d.op), name)
                made = Perturbation(**self._here(drawn), kind="mask")
                self._judge(result, top, share, values.numel(), made)
            elif around_one(values):
                drawn = next((d.op for d in reversed(self.draws) if d.op), name)
                self._add(Perturbation(**self._here(drawn), kind="jitter"))
            return
        self._rescale(short, given, args, result)

    def _rescale(
        self, short: str, given: list[torch.Tensor], args: Any, result: torch.Tensor
    ) -> None:
        """Follow a masked value that is scaled afterwards: ``h * keep / 0.8``."""
        source = next((t for t in given if id(t) in self._masked), None)
        factor = next((float(a) for a in args if isinstance(a, (int, float))), None)
        if source is None or factor is None or factor <= 0:
            return
        _, scale, share, made = self._masked[id(source)]
        if short in ("div", "true_divide", "truediv", "itruediv"):
            self._judge(result, scale / factor, share, source.numel(), made)
        elif short in ("mul", "multiply", "imul", "rmul"):
            self._judge(result, scale * factor, share, source.numel(), made)

    def _judge(
        self, result: torch.Tensor, scale: float, share: float, size: int, made: Perturbation
    ) -> None:
        """Note a masked value; it is dropout where what is kept is scaled by one over its share."""
        self._masked[id(result)] = (result, scale, share, made)
        spread = math.sqrt(max(share * (1 - share), 1e-3) / size)
        if scale > 1 + 1e-6 and abs(share - (1 - 1 / scale)) <= _SIGMAS * spread:
            self._add(
                Perturbation(
                    kind="mask",
                    op=made.op,
                    location=made.location,
                    module=made.module,
                    scale=scale,
                )
            )

    def module_entered(self, module: nn.Module, args: Any) -> None:
        """Remember how much was drawn before a module."""
        self._entered_at.append((len(self.draws), len(self.found)))

    def module_left(self, module: nn.Module, args: Any, result: Any) -> None:
        """Run a small module that drew some times more, and compare its mean with its input."""
        start, known = self._entered_at.pop()
        if len(self.draws) == start or len(self.found) > known or module is self._root:
            return
        if len(args) != 1 or next(iter(module.parameters()), None) is not None:
            return
        (given,) = args
        if not (isinstance(given, torch.Tensor) and isinstance(result, torch.Tensor)):
            return
        drawn = self.draws[start]
        if given.shape != result.shape or not given.is_floating_point():
            return
        if torch.equal(given, result) or not _centred(module, given.detach()):
            return
        self._add(
            Perturbation(
                kind="noise", op=drawn.op, location=drawn.location, module=self.scopes[-1].name
            )
        )

    def _is_pure(self, tensor: torch.Tensor) -> bool:
        return self._pure.get(id(tensor)) is tensor

    def _here(self, name: str) -> dict[str, Any]:
        scope = self.module_name
        return {"op": name, "location": self.locate(), "module": scope}

    def _add(self, made: Perturbation) -> None:
        if all(p.location != made.location or p.kind != made.kind for p in self.found):
            self.found.append(made)


def around_one(values: torch.Tensor, least: int = _MANY) -> bool:
    """Say whether random factors are 1 on average, and near enough to it to keep the sign of most values."""
    if values.numel() < least:
        return False
    mean, spread = float(values.mean()), float(values.std())
    return 0 < spread < 0.5 and abs(mean - 1) <= _SIGMAS * spread / math.sqrt(values.numel())


def _is_number(tensor: torch.Tensor) -> bool:
    """Say whether a tensor is one number that needs no gradient: a rate kept in a buffer."""
    return tensor.dim() == 0 and not tensor.requires_grad


@torch.no_grad()
def _centred(module: nn.Module, given: torch.Tensor) -> bool:
    """Say whether the outputs of a module are its input on average, over many draws."""
    state = torch.get_rng_state()
    try:
        forward = type(module).forward
        made = torch.stack(
            [
                next(iter(tensors(forward(module, given.clone())).values())).double()
                for _ in range(_LAYER_DRAWS)
            ]
        )
    except Exception:  # a layer that runs once in a forward may refuse to run again
        return False
    finally:
        torch.set_rng_state(state)
    gaps = made - given.double()
    error = gaps.std() / math.sqrt(gaps.numel()) + 1e-12
    return bool(gaps.std() > 0) and bool(gaps.mean().abs() <= _SIGMAS * error)
