"""Modules that are the identity in eval mode and drop values in training: how they scale what they keep."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import torch

from ...lean import dataclass
from ...objects import trees
from ...state import has_drawn, random_states, seed_everything
from ...subject.errors import SubjectError
from .settling import asks_for_mode

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from ...subject import Subject

_DRAWS: Final = 128
_EACH: Final = 2
"""Modules of one class that are asked: those of a deep net differ in their rate alone."""
_SAME: Final = 1e-3
_LESS, _MORE = 0.05, 0.25
"""How far the mean may be below that of the input, and above it, where the dropped share may be estimated."""
_SIGMAS: Final = 6.0
_ENOUGH, _LONGEST = 8192, 16
"""Numbers of an input that is taken as it is, and of each dimension of a sample of a larger one."""


@dataclass(frozen=True, slots=True)
class Dropping:
    """A module that drops values in training, over several draws for one input.

    Attributes:
        name: Of the module.
        module: Itself.
        call: Calls it with that input, which has no zeros.
        given: The input.
        scale: What kept values are multiplied by, in the draw that kept the share nearest to the usual one.
        share: The mean share of values that are kept.
        mean: The mean of output over input.
        error: The standard error of that mean.
        follows: Whether the scale is the kept share itself.
    """

    name: str
    module: nn.Module
    call: Callable[[], Any]
    given: torch.Tensor
    scale: float
    share: float
    mean: float
    error: float
    follows: bool

    @property
    def keeps_mean(self) -> bool:
        """Say whether kept values are not scaled, or such that the mean stays."""
        if abs(self.scale - 1) <= _SAME and not self.follows:
            return True
        off = self.mean - 1
        if abs(off) <= _SIGMAS * self.error:
            return True
        return -_LESS <= off <= _MORE


def dropping(subject: Subject) -> list[Dropping]:
    """Return the modules of classes that ask for their mode, draw, and multiply their input by zeros and one number.

    Cost: a training forward of a few samples; 128 calls of each module that is returned, two of each class at most.
    """
    asked = [
        (name, module)
        for name, module in subject.model.named_modules()
        if type(module).__module__.partition(".")[0] != "torch" and asks_for_mode(type(module))
    ]
    found = []
    with subject.pristine(train=True, seeded=True) as model, torch.no_grad():
        seen = _Seen(dict(asked))
        batch = subject.few(subject.batch()) or subject.batch()
        try:
            with seen:
                subject.call(model, batch.clone())
        except SubjectError:
            return []  # other checks tell what raises
        for name, (args, kwargs) in seen.given.items():
            one = _draw(subject, name, model.get_submodule(name), args, kwargs)
            if one is not None:
                found.append(one)
    return found


class _Seen:
    """Keeps what modules were given that drew and gave back their input, times zeros and one number at most."""

    def __init__(self, modules: dict[str, nn.Module]) -> None:
        self._modules = modules
        self._before: dict[str, tuple[Any, torch.Tensor]] = {}
        self._kinds: dict[type, int] = {}
        self.given: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {}

    def __enter__(self) -> None:
        self._handles = []
        for name, module in self._modules.items():
            self._handles += [
                module.register_forward_pre_hook(self._entering(name)),
                module.register_forward_hook(self._leaving(name), with_kwargs=True),
            ]

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    def _entering(self, name: str) -> Callable[[nn.Module, Any], None]:
        def hook(_module: nn.Module, args: Any) -> None:
            if args and isinstance(args[0], torch.Tensor) and trees.computable(args[0]):
                self._before[name] = random_states(), args[0].detach().clone()

        return hook

    def _leaving(self, name: str) -> Callable[[nn.Module, Any, Any, Any], None]:
        def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            if (before := self._before.pop(name, None)) is None or name in self.given:
                return
            (states, given), count = before, self._kinds.get(type(module), 0)
            if count >= _EACH or not has_drawn(states):
                return
            if _factor(given, output) is not None:
                self._kinds[type(module)] = count + 1
                self.given[name] = (given, *args[1:]), kwargs

        return hook


def _factor(given: torch.Tensor, output: Any) -> tuple[float, float] | None:
    """Return the share of values that are kept and what they are multiplied by; None where it is not so."""
    if not isinstance(output, torch.Tensor) or output.shape != given.shape or not given.numel():
        return None
    if not (given.is_floating_point() and output.is_floating_point()):
        return None
    there = given != 0
    ratio = (output[there] / given[there]).double()
    if not ratio.numel() or bool((output[~there] != 0).any()) or not bool(ratio.isfinite().all()):
        return None
    kept = ratio[ratio != 0]
    if not kept.numel():
        return 0.0, math.nan
    scale = float(kept.median())
    if float((kept / scale - 1).abs().max()) > _SAME:
        return None
    return kept.numel() / ratio.numel(), scale


def _cut(given: torch.Tensor) -> torch.Tensor:
    """Return a part of a large tensor: what is drawn for some positions of a sample shows how it is scaled."""
    if given.numel() <= _ENOUGH:
        return given
    return given[(slice(None), *(slice(0, _LONGEST) for _ in given.shape[1:]))].contiguous()


def _draw(
    subject: Subject, name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Dropping | None:
    """Call a module many times with one input; None where it is not the identity in eval mode, or keeps everything."""
    given = torch.where(args[0] == 0, 1, args[0])
    if (less := _cut(given)) is not given:
        try:
            with subject.phase("forward"):
                module(less.clone(), *args[1:], **kwargs)
            given = less
        except SubjectError:
            pass  # it is made for this size

    def call() -> Any:
        with subject.phase("forward"):
            return module(given.clone(), *args[1:], **kwargs)

    seen = []
    try:
        module.eval()
        again = call()
        if not (isinstance(again, torch.Tensor) and trees.same(again, given)):
            return None
        module.train()
        for number in range(_DRAWS):
            seed_everything(subject.seed + number)
            if (one := _factor(given, call())) is None:
                return None
            seen.append(one)
    except SubjectError:  # a module that raises is explained by others
        return None
    finally:
        module.train()
    scaled = [(share, scale) for share, scale in seen if share]
    if not scaled or all(share == 1 for share, _ in seen):
        return None
    shares = torch.tensor([share for share, _ in seen], dtype=torch.float64)
    means = torch.tensor([share * scale if share else 0.0 for share, scale in seen]).double()
    usual = float(torch.tensor([share for share, _ in scaled]).median())
    near = min(scaled, key=lambda one: abs(one[0] - usual))
    constant = max(s for _, s in scaled) - min(s for _, s in scaled) <= _SAME * abs(near[1])
    follows = all(abs(scale / share - 1) <= _SAME for share, scale in scaled)
    inverse = all(abs(scale * share - 1) <= _SAME for share, scale in scaled)
    if not (constant or follows or inverse):
        return None  # a gain that is drawn too
    return Dropping(
        name, module, call, given, near[1], float(shares.mean()), float(means.mean()),
        float(means.std()) / math.sqrt(_DRAWS), follows and not constant,
    )  # fmt: skip
