"""Calls of a model without gradients, also of one that needs them: a derivative in its forward, a hook on a result."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import torch

from .. import sources
from ..objects import trees

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from ..findings import Location

_NEEDS_GRAPH: Final = re.compile(r"requires?[_ ]grad|grad_fn|require gradient")


class Graphs:
    """Knows in which mode a model raises where no graph is recorded, and calls it with one there.

    Attributes:
        needed: By mode (True for training): the line that raised without a graph, and ran with one;
            absent where the model runs without.
    """

    def __init__(self) -> None:
        self.needed: dict[bool, Location | None] = {}
        self._free: set[bool] = set()

    def call(self, model: nn.Module, forward: Callable[[], Any]) -> Any:
        """Run a forward of the model; where gradients are off and it cannot do without, the output is cut off."""
        mode = model.training
        if torch.is_grad_enabled() or torch.is_inference_mode_enabled() or mode in self._free:
            return forward()
        if mode in self.needed:
            return _with_graph(forward)
        before = torch.default_generator.clone_state()  # no tensor: memory may be measured here
        try:
            made = forward()
        except RuntimeError as error:
            if not _NEEDS_GRAPH.search(str(error)):
                raise
            torch.set_rng_state(before.get_state())
            try:
                made = _with_graph(forward)
            except Exception:  # it fails for another reason, which the first error tells as well
                raise error from None
            self.needed[mode] = sources.of_error(error)
            return made
        self._free.add(mode)
        return made


def opened(output: Any) -> Any:
    """Take the nested tensors of an output apart, and return it as it was.

    Sizes that do not fit the values are a mistake of the forward, and raise only where somebody reads them.
    """
    many = isinstance(output, dict | list | tuple)
    for part in (output.values() if isinstance(output, dict) else output) if many else (output,):
        if isinstance(part, torch.Tensor) and part.is_nested:
            part.unbind()
    return output


def _with_graph(forward: Callable[[], Any]) -> Any:
    with torch.enable_grad():
        made = forward()
    return trees.substitute(made, {id(t): t.detach() for t in trees.tensors(made).values()})
