"""A batch: what a model is called with, what its loss is called with, and how to make it again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from ..lean import dataclass
from ..specs.walk import rebuild, walk
from .describe import LAYOUTS, Layout, describe_tensor, relayout_tensor

Origin = Literal["real", "drawn"]

_COMPLEX_OF = {
    torch.float16: torch.complex32,
    torch.bfloat16: torch.complex64,
    torch.float32: torch.complex64,
    torch.float64: torch.complex128,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One batch.

    Attributes:
        args: Positional arguments of the model.
        kwargs: Keyword arguments of the model.
        targets: What the loss gets besides the output; None if there is nothing.
        sizes: The size of every symbol.
        seed: The seed it was drawn from.
        origin: ``real`` if it is, or is resampled from, the user's own batch; ``drawn`` otherwise.
        names: Names of the positional arguments, where known.
        layout: How the inputs were laid out on purpose; ``contiguous`` says nothing of a real batch.

    Inputs are also attributes: ``batch.x`` is the argument named ``x``.
    """

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    targets: Any = None
    sizes: dict[str, int] = field(default_factory=dict)
    seed: int = 0
    origin: Origin = "drawn"
    names: tuple[str, ...] = ()
    layout: Layout = "contiguous"

    def __getattr__(self, name: str) -> Any:
        if (
            name.startswith("__") or name in type(self).__slots__
        ):  # a half-made copy has no fields yet
            raise AttributeError(name)
        if name in self.kwargs:
            return self.kwargs[name]
        names = self.arg_names()
        if name in names:
            return self.args[names.index(name)]
        if self.targets is not None and name == self.target_label():
            return self.targets
        raise AttributeError(
            f"no input named {name!r}; there are: {', '.join([*names, *self.kwargs]) or 'none'}"
        )

    @property
    def inputs(self) -> Any:
        """The inputs as they were declared: the dict, the tuple, or the only positional argument."""
        if self.kwargs and not self.args:
            return self.kwargs
        return self.args[0] if len(self.args) == 1 else self.args

    def arg_names(self) -> tuple[str, ...]:
        """What the positional arguments are called: their names, else ``x``, or ``x0``, ``x1`` ..."""
        if len(self.names) >= len(self.args):
            return self.names[: len(self.args)]
        return ("x",) if len(self.args) == 1 else tuple(f"x{i}" for i in range(len(self.args)))

    def target_label(self) -> str:
        """What the targets are called: ``y``, or ``targets`` where an input is named so."""
        return "targets" if "y" in self.kwargs or "y" in self.names else "y"

    def leaves(self, *, packed: bool = True) -> Iterator[tuple[str, Any]]:
        """Every leaf of inputs and targets with its path, such as ``x``, ``x['mask']`` or ``y.boxes``.

        Args:
            packed: Whether the data of a PackedSequence is a leaf, rather than the whole.
        """
        yield from self.input_leaves(packed=packed)
        if self.targets is not None:
            yield from walk(self.target_label(), self.targets, packed=packed)

    def input_leaves(self, *, packed: bool = True) -> Iterator[tuple[str, Any]]:
        """Every leaf of the inputs with its path."""
        for label, value in zip(self.arg_names(), self.args, strict=True):
            yield from walk(label, value, packed=packed)
        for label, value in self.kwargs.items():
            yield from walk(label, value, packed=packed)

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor of inputs and targets by its path."""
        return {path: leaf for path, leaf in self.leaves() if isinstance(leaf, Tensor)}

    def map(
        self, function: Callable[[str, Any], Any], *, targets: bool = True, packed: bool = True
    ) -> Batch:
        """The same batch with ``function(path, leaf)`` for every leaf; the trees keep their form.

        Args:
            function: What to put in place of a leaf.
            targets: Whether targets are changed as well.
            packed: As in `leaves`.
        """

        def build(label: str, value: Any) -> Any:
            return rebuild(label, value, function, packed=packed)

        args = tuple(
            build(label, value) for label, value in zip(self.arg_names(), self.args, strict=True)
        )
        kwargs = {label: build(label, value) for label, value in self.kwargs.items()}
        made = self.targets
        if targets and made is not None:
            made = build(self.target_label(), made)
        return replace(self, args=args, kwargs=kwargs, targets=made)

    def clone(self, *, inputs: bool = True) -> Batch:
        """Fresh tensors of the same values, strides and ``requires_grad``; other leaves are shared.

        Args:
            inputs: Whether inputs are copied as well; a loss is given the targets alone.
        """
        memo: dict[int, Tensor] = {}

        def copy(_path: str, leaf: Any) -> Any:
            if not isinstance(leaf, Tensor):
                return leaf
            if id(leaf) not in memo:  # one tensor that stands in two places stays one tensor
                memo[id(leaf)] = clone_tensor(leaf)
            return memo[id(leaf)]

        if inputs:
            return self.map(copy)
        made = self.targets
        made = None if made is None else rebuild(self.target_label(), made, copy)
        return replace(self, targets=made)

    def to(
        self, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Batch:
        """Move to a device and cast.

        Args:
            device: Where every tensor goes; None to stay.
            dtype: A floating dtype for floating tensors; complex ones get the matching complex dtype;
                integer and bool tensors keep theirs.
        """
        memo: dict[int, Tensor] = {}

        def move(_path: str, leaf: Any) -> Any:
            if not isinstance(leaf, Tensor):
                return leaf
            if id(leaf) not in memo:  # one tensor that stands in two places stays one tensor
                memo[id(leaf)] = move_tensor(leaf, device, dtype)
            return memo[id(leaf)]

        moved = self.map(move)
        if self.layout != "contiguous" and any(memo[key] is not leaf for key, leaf in _by_id(self)):
            return relayout(moved, self.layout)  # a cast or a move makes memory dense
        return moved

    def describe(self) -> str:
        """One line: every tensor's dtype, shape and values."""
        parts = []
        for path, leaf in self.leaves():
            if isinstance(leaf, Tensor):
                parts.append(f"{path}: {describe_tensor(leaf, path)}")
            elif leaf is not None:
                parts.append(f"{path}: {leaf!r}"[:80])
        return "; ".join(parts) or "an empty batch"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Show the description where Hypothesis prints a failing example, not every element."""
        printer.text("Batch(...)" if cycle else repr(self))

    def __repr__(self) -> str:
        return f"Batch({self.describe()})"


def identity_of(batch: Batch) -> tuple[Any, ...]:
    """Return what tells one batch of a source from another."""
    return batch.seed, tuple(sorted(batch.sizes.items())), batch.layout, batch.origin


def _by_id(batch: Batch) -> Iterator[tuple[int, Tensor]]:
    return ((id(leaf), leaf) for leaf in batch.tensors().values())


def move_tensor(
    tensor: Tensor, device: torch.device | str | None, dtype: torch.dtype | None
) -> Tensor:
    """Move and cast one tensor, see `Batch.to`; the same one comes back where nothing is to be done."""
    cast = tensor.dtype
    if dtype is not None and tensor.is_floating_point():
        cast = dtype
    elif dtype is not None and tensor.is_complex():
        cast = _COMPLEX_OF.get(dtype, tensor.dtype)
    if tensor.is_meta and device is not None and torch.device(device).type != "meta":
        device = None  # there are no values to move
    if cast == tensor.dtype and (device is None or tensor.device == torch.device(device)):
        return tensor
    moved = tensor.detach().to(device=device, dtype=cast)
    return moved.requires_grad_() if tensor.requires_grad else moved


def clone_tensor(tensor: Tensor) -> Tensor:
    """Copy a tensor with its strides, overlapping ones and a small storage offset included."""
    plain = tensor.detach()
    simple = plain.layout != torch.strided or plain.is_nested or type(plain) is not Tensor
    if not simple and plain.numel():
        start = plain.storage_offset()
        extent = 1 + sum((n - 1) * s for n, s in zip(plain.shape, plain.stride(), strict=True))
        simple = (plain.is_contiguous() and not start) or extent > 64 * plain.numel() + 4096
    if simple or not plain.numel():
        copy = plain.clone()
    else:
        offset = start if start < 4096 else start % 64
        storage = plain.new_empty(offset + extent)
        storage[offset:].copy_(plain.as_strided((extent,), (1,), start))
        copy = storage.as_strided(plain.shape, plain.stride(), offset)
    return copy.requires_grad_() if tensor.requires_grad else copy


def split_inputs(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Tell positional from keyword arguments: a plain tuple is positional, a dict is keywords, else one argument."""
    if isinstance(inputs, tuple) and not hasattr(inputs, "_fields"):
        return inputs, {}
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return (inputs,), {}


def relayout(batch: Batch, kind: Layout) -> Batch:
    """A copy of the batch whose inputs lie otherwise in memory; targets are left alone.

    Args:
        batch: Its tensors are not changed.
        kind: ``contiguous``; ``non_contiguous`` has gaps along the last axis; ``expanded`` repeats
            row 0 with stride 0 (the only kind that changes values); ``offset`` does not start at
            the beginning of its storage; ``channels_last`` concerns images and volumes, other
            tensors become contiguous.

    Raises:
        ValueError: There is no such layout.
    """
    if kind not in LAYOUTS:
        raise ValueError(f"layout {kind!r}; allowed: {', '.join(LAYOUTS)}")

    def change(_path: str, leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or leaf.layout != torch.strided or leaf.is_nested:
            return leaf
        changed = relayout_tensor(leaf.detach(), kind)
        return changed.requires_grad_() if leaf.requires_grad else changed

    return replace(batch.map(change, targets=False), layout=kind)
