"""What a tensor is, kept and put back in place."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ..lean import dataclass
from ..objects.trees import address


def is_lazy(tensor: Any) -> bool:
    """Say whether a parameter or buffer has no shape yet."""
    return isinstance(
        tensor, torch.nn.parameter.UninitializedParameter | torch.nn.parameter.UninitializedBuffer
    )


_DENSE = (torch.Tensor, nn.Parameter)


@dataclass(slots=True)
class TensorState:
    """A tensor, and what is needed to put it back in place.

    Attributes:
        tensor: The object itself.
        cls: Its class then.
        alias: Shares the storage that it had.
        copy: Its values then, where they were copied.
        requires_grad: Its flag then.
        grad: The state of its gradient, where it had one.
        version: How often it had been written in place, where that is counted.
    """

    tensor: torch.Tensor
    cls: type
    alias: torch.Tensor
    copy: torch.Tensor | None
    requires_grad: bool
    grad: TensorState | None
    version: int | None = None

    @classmethod
    def of(cls, tensor: torch.Tensor, *, copy: bool) -> TensorState:
        """Take the state of a tensor, and of its gradient; with its values where ``copy`` says so."""
        lazy = is_lazy(tensor)
        grad = tensor.grad if tensor.is_leaf else None
        return cls(
            tensor=tensor,
            cls=type(tensor),
            alias=tensor.data,
            copy=None if lazy or not copy else tensor.detach().clone(),
            requires_grad=tensor.requires_grad,
            grad=None if grad is None else cls.of(grad, copy=True),
            version=None if lazy else _version(tensor),
        )

    def ensure_copy(self) -> None:
        """Copy the values, where that has not been done."""
        if self.copy is None and not is_lazy(self.tensor):
            self.copy = self.tensor.detach().clone()

    def moved(self) -> bool:
        """Say whether the tensor now has another storage, shape, dtype or device."""
        now, then = self.tensor.data, self.alias
        return (
            type(self.tensor) is not self.cls
            or now.dtype != then.dtype
            or now.device != then.device
            or now.shape != then.shape
            or address(now) != address(then)
        )

    def written(self) -> bool:
        """Say whether the tensor was written in place since, or may have been."""
        return self.version is None or self.moved() or self.version != _version(self.tensor)

    def untouched(self) -> bool:
        """Say whether nothing but the values can differ from then: the quick answer for most parameters."""
        tensor, alias = self.tensor, self.alias
        if self.cls not in _DENSE or type(tensor) is not self.cls:
            return False  # lazy ones among them
        if tensor.layout != torch.strided or alias.layout != torch.strided:
            return False
        return (
            tensor.data_ptr() == alias.data_ptr() != 0
            and tensor.shape == alias.shape
            and tensor.dtype == alias.dtype
            and tensor.requires_grad == self.requires_grad
            and tensor.is_leaf
            and tensor.grad is None is self.grad
        )

    def restore(self, *, values: bool, gradients: bool = True) -> None:
        """Put the tensor back without a graph; its values and those of its gradient where the arguments say so."""
        if self.untouched():
            if values and self.copy is not None:
                _copy_back(self.alias, self.copy)
            return
        if self.moved():
            if type(self.tensor) is not self.cls:
                self.tensor.__class__ = self.cls
            self.tensor.data = self.alias
        plain = self.alias.layout == torch.strided and self.alias.device.type != "meta"
        if values and self.copy is not None and plain:
            _copy_back(self.alias, self.copy)
        if not self.tensor.is_leaf:
            return
        if self.tensor.requires_grad != self.requires_grad:
            self.tensor.requires_grad_(self.requires_grad)
        if self.grad is not None:
            self.grad.restore(values=gradients or self.grad.written())
            self.grad.version = _version(self.grad.tensor)
            self.tensor.grad = self.grad.tensor
        elif self.tensor.grad is not None:
            self.tensor.grad = None

    def restore_version(self) -> None:
        """Let a graph that was built before run backward: the values are those that it has seen.

        torch refuses a backward whose saved tensors were written to since, by their counts of writes.
        """
        if self.version is None:
            return  # not counted, or a buffer without a shape yet
        kept = self.copy is not None or self.alias.numel() == 0
        if not kept or _version(self.tensor) in (None, self.version):
            return
        torch._C._autograd._unsafe_set_version_counter((self.tensor,), (self.version,))


def refuses(tensor: torch.Tensor) -> bool:
    """Say whether a tensor of a class of the user's raises for whatever is asked of it: nothing can be known of it."""
    if type(tensor) in _DENSE:
        return False
    try:
        return tensor.is_leaf is None or (not is_lazy(tensor) and tensor.detach() is None)
    except Exception:  # a __torch_function__ of the user's may raise what it likes
        return True


def _version(tensor: torch.Tensor) -> int | None:
    return None if tensor.is_inference() else tensor._version


def _copy_back(target: torch.Tensor, copy: torch.Tensor) -> None:
    """Write to the alias, which counts by itself: putting values back must not look like a change."""
    if target.is_contiguous():
        target.copy_(copy)
        return
    strides = zip(target.stride(), target.shape, strict=True)
    if target.numel() and any(stride == 0 and size > 1 for stride, size in strides):
        if not torch.equal(target, copy):
            raise RuntimeError("an expanded tensor was changed in place and cannot be put back")
        return
    target.copy_(copy)


def named_tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return parameters and buffers by their names."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def saved_state(model: nn.Module) -> dict[str, Any]:
    """Return what ``state_dict()`` holds, not detached; nothing where a hook or an override of the user's raises."""
    try:
        return dict(model.state_dict(keep_vars=True))
    except Exception:  # state-dict-roundtrip reports it
        return {}
