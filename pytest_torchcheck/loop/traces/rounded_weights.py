"""Weights that lose digits because the model that is trained is converted to a narrower dtype and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ...findings import Culprit, Finding
from ...verdicts import suspicious, violated
from ..trace import Convert, Forward
from .wording import at, few

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from torch import nn

    from ..trace import Trace

_NARROW = (torch.bfloat16, torch.float16)


class Rounded:
    """Follows the float32 parameters of a model that are converted to a narrower dtype, until an optimizer uses them."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.by_place: dict[int, list[str]] = {}
        self._pending: dict[str, tuple[int, torch.dtype]] = {}

    def converting(self, convert: Callable[[], Any]) -> tuple[Any, list[str], torch.dtype | None]:
        """Run a conversion; return its result, the parameters that lost digits by it, and the dtype that they got."""
        before = {
            name: (parameter, parameter.data)
            for name, parameter in self.model.named_parameters()
            if parameter.dtype == torch.float32 and parameter.requires_grad
        }
        result = convert()
        found = [
            name
            for name, (parameter, then) in before.items()
            if parameter.dtype in _NARROW and not _fits(then, parameter.dtype)
        ]
        return result, found, before[found[0]][0].dtype if found else None

    def follow(self, names: list[str], place: int, dtype: torch.dtype) -> None:
        """Note what the conversion at a place of the events has narrowed."""
        self._pending |= dict.fromkeys(names, (place, dtype))

    def settle(self, held: Collection[int]) -> None:
        """See which of them are float32 again without their digits.

        Args:
            held: Identities of the tensors that optimizers hold.
        """
        if not self._pending:
            return
        named = dict(self.model.named_parameters())
        for name, (place, dtype) in list(self._pending.items()):
            parameter = named.get(name)
            if parameter is None or parameter.dtype != torch.float32:
                continue
            del self._pending[name]
            if id(parameter) in held and _fits(parameter.detach(), dtype):
                self.by_place.setdefault(place, []).append(name)


def _fits(tensor: torch.Tensor, dtype: torch.dtype) -> bool:
    """Say whether a narrower dtype holds every value exactly."""
    return torch.equal(tensor.to(dtype).to(tensor.dtype), tensor)


def rounding_findings(trace: Trace) -> Iterator[Finding]:
    """Yield a conversion that rounds trained weights; it may be meant where no evaluation runs in the narrow dtype."""
    for place, event in trace.each(Convert):
        if not event.rounded:
            continue
        later = trace.each(Forward, event.step)
        evaluates = any(i > place and not forward.grad for i, forward in later)
        make = violated if evaluates else suspicious
        yield make(
            "weights-rounded",
            f"{event.name} rounds the trained weights: {few(event.rounded)} "
            f"{'comes' if len(event.rounded) == 1 else 'come'} back with the digits of "
            f"{event.dtype}",
            culprits=(
                Culprit("call", event.name, f"makes them {event.dtype}", event.place),
                *(Culprit("parameter", name, "rounded") for name in event.rounded[:3]),
            ),
            observed=f"{len(event.rounded)} float32 parameters hold only values of {event.dtype} "
                "after conversion back to float32, and held others before",
            cause="a module is converted in place: the trained model loses the low digits of its "
                "weights, and with them the small updates of earlier steps",
            because=f"{at(event.place)} converts the parameters that the optimizer holds",
            fix=f"evaluate a copy, copy.deepcopy(model).to(torch.{event.dtype}), or under torch.autocast",
            evidence={"parameters": list(event.rounded)},
        )  # fmt: skip
        return
