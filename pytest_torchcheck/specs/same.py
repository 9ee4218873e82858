"""Targets that are an input of the same batch: what is to be reconstructed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..lean import dataclass
from .domains import Context, Domain, Unit
from .shapes import SpecError
from .tensors import TensorSpec
from .walk import rebuild

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    import torch
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class SameAs(Domain):
    """The values of another tensor of the batch.

    Attributes:
        of: Its name.
    """

    of: str

    @property
    def unit(self) -> Unit:
        """See `Domain`."""
        return "whole"

    def allows_cut(self, *, row: bool, changed: Collection[str]) -> bool:
        """See `Domain`: the other tensor is cut in the same way."""
        return True

    def fill(self, shape: tuple[int, ...], dtype: torch.dtype, context: Context) -> Tensor:
        """See `Domain`."""
        made: Tensor = context.sibling(self.of).detach().clone()
        return made.to(dtype) if made.dtype != dtype else made

    def simplest(self, shape: tuple[int, ...], dtype: torch.dtype, context: Context) -> Tensor:
        """See `Domain`."""
        return self.fill(shape, dtype, context)


class Same(TensorSpec):
    """Targets that equal an input, for models that reconstruct it.

    Shape, dtype and values are the input's.

    Args:
        of: Name of the input: that of the argument of ``forward``, or the keyword.
    """

    __slots__ = ()

    def __init__(self, of: str) -> None:
        if not isinstance(of, str) or not of:
            raise SpecError(f"Same: of = {of!r}: name the input, as in Same('x')")
        super().__init__(None, values=SameAs(of))

    def __repr__(self) -> str:
        return f"Same({getattr(self.values, 'of', '')!r})"


def shaped(targets: Any, inputs: Mapping[str, Any], names: Mapping[str, str]) -> Any:
    """Return targets in which every ``Same`` has the shape and dtype of the input that it names.

    Args:
        targets: A tree of specs.
        inputs: The leaves of the inputs by their path.
        names: The paths of positional inputs by the argument's name in ``forward``.

    Raises:
        SpecError: No input has that name, or none is declared by a spec.
    """

    def tie(path: str, leaf: Any) -> Any:
        if not isinstance(leaf, Same) or leaf.shape is not None:
            return leaf
        of = getattr(leaf.values, "of", "")
        place = of if of in inputs else names.get(of, of)
        spec = inputs.get(place)
        if not isinstance(spec, TensorSpec) or spec.shape is None:
            known = [*names, *(n for n in inputs if n not in names.values())]
            raise SpecError(
                f"{path} = {leaf!r}: no input with a spec is named {of!r}; "
                f"there are: {', '.join(known) or 'none'}"
            )
        restore, (kind, attributes) = leaf.__reduce__()
        tied = {name: getattr(spec, name) for name in ("shape", "dtypes", "explicit_dtype")}
        return restore(kind, {**attributes, **tied, "values": SameAs(place)})

    return rebuild("targets", targets, tie) if targets is not None else None
