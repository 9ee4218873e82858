"""The operation that merges positions which are to be left out with the others, by the gradient at its operand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from torch import Tensor
from torch.nn.functional import cosine_similarity

from ...objects import trees
from ..recorded.watch import Watch, name_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ..recorded.watch import Op

_PARALLEL: Final = 0.99


class Merging(Watch):
    """Notes the operations whose operand has one row for each position, and whose result has none.

    Args:
        marks: bool, of the shape of the positions: True where they are to be left out.

    Attributes:
        counted: The operations whose operand got a gradient at marked positions, in the order in which the
            backward pass met them: the last of the forward first. With each, what made its operand.
    """

    def __init__(self, marks: Tensor) -> None:
        super().__init__()
        self.counted: list[tuple[Op, Op | None]] = []
        self._made: dict[int, tuple[Tensor, Op, int]] = {}
        self._positions = marks.numel()
        laid = (marks, marks.flatten(), *([marks.flatten(1)] if marks.dim() > 2 else []))
        self._shapes = {one.shape: one for one in laid}

    def after(
        self, func: Callable[..., Any], args: Any, kwargs: Any, result: Any, token: Any
    ) -> None:
        """Listen to the operands of a call that takes the positions together."""
        if not isinstance(result, Tensor) or not result.requires_grad:
            return
        if self._of(result) is not None:
            known = (id(t) for t in args if isinstance(t, Tensor) and id(t) in self._made)
            self._made[id(result)] = (result, self.op(name_of(func)), next(known, 0))
            return
        for tensor in args:
            if isinstance(tensor, Tensor) and tensor.requires_grad:
                marks = self._of(tensor)
                if marks is not None and result.numel() * self._positions <= tensor.numel():
                    self._listen(tensor, marks, self.op(name_of(func)))

    def _of(self, tensor: Tensor) -> Tensor | None:
        """Return the marks in the shape of a tensor that has the positions first, or one dimension among them."""
        for shape, marks in self._shapes.items():
            if tensor.shape[: len(shape)] == shape:
                return marks
            for dim in range(min(tensor.dim(), len(shape))):
                if tensor.shape[:dim] + tensor.shape[dim + 1 :] == shape:
                    return marks.unsqueeze(dim).expand(tensor.shape)
        return None

    def _listen(self, tensor: Tensor, marks: Tensor, op: Op) -> None:
        if not bool(tensor.detach()[marks].any()):
            return  # set to 0 there: left out
        _, made, before = self._made.get(id(tensor), (None, None, 0))
        while made is not None and made.location == op.location and before:
            _, made, before = self._made[before]

        def arrived(gradient: Tensor) -> None:
            if bool(gradient[marks].any()):
                self.counted.append((op, made))

        tensor.register_hook(arrived)


def pulled_apart(ignored: Tensor, as_labels: Iterable[Tensor], marks: Tensor) -> bool:
    """Say whether what pulls on ignored positions is another term than the one that reads the labels.

    Where the loss counts an ignored target, it counts it as some label, or does not read it at all:
    with that label instead, the gradient keeps its direction. A term of consistency between two
    outputs, beside a criterion that leaves the positions out, has a direction of its own.

    Args:
        ignored: The gradient to an output, with one dimension more than ``marks``, of the classes.
        as_labels: The same with a label in place of the ignored targets, for several labels.
        marks: bool, where targets are ignored.
    """
    rows = _by_class(ignored, marks)
    others = [_by_class(one, marks) for one in as_labels]
    if rows is None or not others:
        return False
    return not any(
        other is not None and bool((cosine_similarity(rows, other) > _PARALLEL).all())
        for other in others
    )


def _by_class(gradient: Tensor, marks: Tensor) -> Tensor | None:
    """Return the gradients at marked positions, ``[positions, classes]``; None without classes."""
    values = trees.dense(gradient).float()
    for dim in range(values.dim()):
        if values.shape[:dim] + values.shape[dim + 1 :] == marks.shape and values.shape[dim] > 1:
            return values.movedim(dim, -1)[marks]
    return None
