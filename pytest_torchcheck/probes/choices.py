"""Which of several sibling modules ran because the data, or an argument, chose them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from .recorded.watch import Watch, name_of, tensors_in

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

_READS = frozenset(
    f"Tensor.{name}"
    for name in (
        "__bool__", "__int__", "__index__", "__float__", "__contains__", "item", "tolist", "numpy",
        "nonzero", "masked_select", "unique",
    )
) | {"torch.nonzero", "torch.masked_select", "torch.unique"}  # fmt: skip
"""Operations by which Python, or the shape of a result, follows from a tensor's values."""


class ChoiceWatch(Watch):
    """Notes in which module's forward values decide, and which modules that forward calls.

    Attributes:
        deciding: Names of the modules in whose own forward a tensor's values are read.
        callers: By name of a called module: the modules whose forwards call it.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self.deciding: set[str] = set()
        self.callers: dict[str, set[str]] = {}

    def before(self, func: Callable[..., Any], args: Any, kwargs: Any) -> None:
        """Note a call whose result depends on values in more than numbers."""
        name = name_of(func)
        by_mask = name == "Tensor.__getitem__" and any(
            t.dtype == torch.bool for t in tensors_in(args[1:])
        )
        where = name in ("torch.where", "Tensor.where") and len(args) == 1 and not kwargs
        if (name in _READS or by_mask or where) and self.scopes:
            self.deciding.add(self.scopes[-1].name)

    def module_entered(self, module: nn.Module, args: Any) -> None:
        """Note who called a module; with no samples at all it is as if nobody had."""
        given = list(tensors_in(args))
        if len(self.scopes) > 1 and (not given or any(t.numel() for t in given)):
            self.callers.setdefault(self.scopes[-1].name, set()).add(self.scopes[-2].name)


def left_out_by_choice(
    watch: ChoiceWatch,
    module: nn.Module,
    names: Collection[str],
    arguments: Iterable[object] = (),
) -> set[str]:
    """Name the parameters of modules that did not run although a sibling in the same container did, by choice.

    A choice is seen where the forward that calls the sibling reads values of a tensor (a router, a
    mask), or where an argument that is no tensor equals the key of the sibling that ran.

    Args:
        watch: What it saw of one forward of ``module``.
        module: The model.
        names: Qualified names of parameters.
        arguments: What the model was given beside tensors.
    """
    given = {str(value) for value in arguments if isinstance(value, (str, int))}
    found: set[str] = set()
    for name in names:
        parts = name.split(".")
        for depth in range(1, len(parts)):
            own, held = ".".join(parts[:depth]), ".".join(parts[: depth - 1])
            if not isinstance(module.get_submodule(held), (nn.ModuleList, nn.ModuleDict)):
                continue
            if _ran(own, watch.callers):
                continue
            others = [
                f"{held}.{key}" if held else key
                for key, _ in module.get_submodule(held).named_children()
                if key != parts[depth - 1]
            ]
            ran = [other for other in others if _ran(other, watch.callers)]
            chosen = any(_callers(other, watch.callers) & watch.deciding for other in ran)
            if chosen or any(other.rpartition(".")[2] in given for other in ran):
                found.add(name)
    return found


def _ran(name: str, callers: dict[str, set[str]]) -> bool:
    return any(called == name or called.startswith(f"{name}.") for called in callers)


def _callers(name: str, callers: dict[str, set[str]]) -> set[str]:
    """Return the modules outside of a module that call it or a part of it."""
    return {
        caller
        for called, found in callers.items()
        if called == name or called.startswith(f"{name}.")
        for caller in found
        if caller != name and not caller.startswith(f"{name}.")
    }
