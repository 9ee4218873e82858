"""How the signal goes through a model: what each module gave, and the gradient that came back to it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ...lean import dataclass
from ..recorded.operations import gradients_kept
from ..recorded.watch import Watch, in_backward, readable, tensors_in

if TYPE_CHECKING:
    from collections.abc import Callable


_BINS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Activation:
    """One output of one call of a module.

    Attributes:
        module: Qualified name, ``""`` for the model itself.
        module_class: Its class.
        leaf: Whether it has no submodules.
        call: Which call of this module, from 0.
        output: Which of its outputs, from 0.
        shape: Of the output.
        dtype: Such as ``float32``.
        rms, low, high, mean, std: Of the finite elements; NaN where none is.
        histogram: How many finite elements lie in each eighth from ``low`` to ``high``; empty where
            none is.
        zeros: Share of the elements that are exactly 0, from 0 to 1.
        nonfinite: How many elements are not finite.
        gradient_rms: Root mean square of the loss's gradient to this output; None where none came.
    """

    module: str
    module_class: str
    leaf: bool
    call: int
    output: int
    shape: tuple[int, ...]
    dtype: str
    rms: float
    low: float
    high: float
    mean: float
    std: float
    histogram: tuple[int, ...]
    zeros: float
    nonfinite: int
    gradient_rms: float | None


def watch_activations(run: Callable[[], object], module: nn.Module) -> tuple[Activation, ...]:
    """Measure every floating output of every module in one run.

    Args:
        run: Forward, or forward and backward; where it runs no backward, one is run from what it
            returns.
        module: The model; its gradients are put back.

    Returns:
        The outputs in the order in which the modules returned: a block comes after its parts.
        Outputs are measured as they were then, before anything writes to them. Modules that are
        not part of ``module`` (losses) are left out.
    """
    watch = _ActivationWatch(module)
    with gradients_kept(module.parameters()), watch:
        live = [t for t in tensors_in(run()) if t.requires_grad]
        if live and not watch.backward_ran:
            torch.autograd.backward(live, [torch.ones_like(t) for t in live])
    return tuple(
        Activation(**fields, gradient_rms=watch.gradients.get(place))
        for place, fields in enumerate(watch.rows)
    )


class _ActivationWatch(Watch):
    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self.rows: list[dict[str, Any]] = []
        self.gradients: dict[int, float] = {}
        self.backward_ran = False
        self._calls: dict[str, int] = {}

    def backward_called(self, root: Tensor) -> None:
        """Note that the run does its own backward."""
        self.backward_ran = True

    def module_left(self, module: nn.Module, args: Any, result: Any) -> None:
        """Measure the outputs, and their gradients later."""
        if in_backward() or id(module) not in self._names:
            return
        name = self.scopes[-1].name
        call = self._calls.get(name, 0)
        self._calls[name] = call + 1
        for index, tensor in enumerate(tensors_in(result)):
            if not tensor.is_floating_point() or not readable(tensor):
                continue
            if tensor.requires_grad:
                tensor.register_hook(self._hook(len(self.rows)))
            self.rows.append(
                {
                    "module": name,
                    "module_class": type(module).__name__,
                    "leaf": not any(True for _ in module.children()),
                    "call": call,
                    "output": index,
                    "shape": tuple(tensor.shape),
                    "dtype": str(tensor.dtype).removeprefix("torch."),
                    **_statistics(tensor.detach()),
                }
            )

    def _hook(self, place: int) -> Callable[[Tensor | None], None]:
        def measure(gradient: Tensor | None) -> None:
            if gradient is not None and gradient.numel():
                self.gradients[place] = _rms(gradient.detach())

        return measure


def _rms(tensor: Tensor) -> float:
    return float(tensor.double().square().mean().sqrt())


def _statistics(tensor: Tensor) -> dict[str, Any]:
    finite = tensor[tensor.isfinite()].double()
    count = finite.numel()
    return {
        "rms": _rms(finite) if count else math.nan,
        "low": float(finite.min()) if count else math.nan,
        "high": float(finite.max()) if count else math.nan,
        "mean": float(finite.mean()) if count else math.nan,
        "std": float(finite.std(correction=0)) if count else math.nan,
        "histogram": tuple(map(int, torch.histc(finite, _BINS).tolist())) if count else (),
        "zeros": float((tensor == 0).double().mean()) if tensor.numel() else 0.0,
        "nonfinite": tensor.numel() - count,
    }
