"""The operation that merges positions which are to be left out with the others, by the gradient at its operand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from ..recorded.watch import Watch, name_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..recorded.watch import Op


class Merging(Watch):
    """Notes the operations whose operand has one row for each position, and whose result has none.

    Args:
        marks: bool, of the shape of the positions: True where they are to be left out.

    Attributes:
        counted: The operations whose operand got a gradient at marked positions, in the order in which the
            backward pass met them: the last of the forward first.
    """

    def __init__(self, marks: Tensor) -> None:
        super().__init__()
        self.counted: list[Op] = []
        self._shapes = {marks.shape: marks, (marks.numel(),): marks.flatten()}

    def after(
        self, func: Callable[..., Any], args: Any, kwargs: Any, result: Any, token: Any
    ) -> None:
        """Listen to the operands of a call that takes the positions together."""
        if (
            not isinstance(result, Tensor)
            or not result.requires_grad
            or self._of(result) is not None
        ):
            return
        for tensor in args:
            if isinstance(tensor, Tensor) and tensor.requires_grad:
                marks = self._of(tensor)
                if marks is not None and result.numel() * marks.numel() <= tensor.numel():
                    self._listen(tensor, marks, self.op(name_of(func)))

    def _of(self, tensor: Tensor) -> Tensor | None:
        """Return the marks in the shape in which a tensor has the positions first, or None."""
        found = (m for shape, m in self._shapes.items() if tensor.shape[: len(shape)] == shape)
        return next(found, None)

    def _listen(self, tensor: Tensor, marks: Tensor, op: Op) -> None:
        def arrived(gradient: Tensor) -> None:
            if bool(gradient[marks].any()):
                self.counted.append(op)

        tensor.register_hook(arrived)
