"""Fill specs with values: from a seed, in the order in which tensors follow from each other."""

from __future__ import annotations

import zlib
from collections import ChainMap
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from ..specs.domains import Context, Unit
from ..specs.structures import StructureSpec
from ..specs.tensors import TensorSpec
from .batch import Batch
from .read import is_dense
from .recipe import Recipe, kept_by_bits, with_edge

Grids = Mapping[str, tuple[int, ...]]


class Filling:
    """Draws the tensors of one tree of specs.

    Args:
        form: The tree, as a batch whose leaves are specs.
        grids: Gives the largest shape of every tensor whose size varies.
    """

    def __init__(self, form: Batch, grids: Callable[[], Grids]) -> None:
        self.form = form
        self.grids = grids
        self.specs = {path: leaf for path, leaf in form.leaves() if isinstance(leaf, TensorSpec)}

    @staticmethod
    def context(
        path: str, seed: int, sizes: Mapping[str, int], siblings: Mapping[str, Any]
    ) -> Context:
        """Where the values of the tensor at a path come from: its own stream, whatever stands beside it."""
        mixed = (seed * 1_000_003 + zlib.crc32(path.encode())) % (1 << 63)
        return Context(mixed, sizes, siblings, path)

    def fill(self, recipe: Recipe, sizes: dict[str, int]) -> Batch:
        """Draw a batch at these sizes, complete ones, with all else as the recipe says."""
        made: dict[str, Any] = {}
        short: dict[
            str, Any
        ] = {}  # by the last part of a path, which a target and an input may share
        siblings = ChainMap(made, short)
        for path, spec in self.order:
            assert spec.shape is not None
            shape = spec.shape.resolve(sizes)
            context = self.context(path, recipe.seed, sizes, siblings)
            context.grid = self.grids().get(path)
            dtype = recipe.dtypes.get(path)
            value = spec.fill(shape, context, dtype)
            if recipe.edge != "plain" or path in recipe.keep:
                simplest = partial(spec.simplest, shape, context, dtype)
                value = self._simpler(path, spec, value, simplest, recipe)
            made[path] = short[last_part(path)] = value
        form = self.form
        if not self._is_flat:
            form = form.map(lambda path, leaf: made[path] if isinstance(leaf, TensorSpec) else leaf)
            return replace(form, sizes=sizes, seed=recipe.seed, origin="drawn")
        return Batch(  # the same without a walk, which would cost as much as filling
            args=tuple(map(made.__getitem__, form.arg_names())) if form.args else (),
            kwargs={name: made[name] for name in form.kwargs},
            targets=None if form.targets is None else made[form.target_label()],
            sizes=sizes,
            seed=recipe.seed,
            names=form.names,
        )

    @cached_property
    def _is_flat(self) -> bool:
        """Whether every argument, and the targets, are one tensor each."""
        parts = [*self.form.args, *self.form.kwargs.values()]
        parts += [] if self.form.targets is None else [self.form.targets]
        return all(isinstance(part, TensorSpec) for part in parts)

    @cached_property
    def order(self) -> list[tuple[str, TensorSpec]]:
        """Tensors that follow from others come after them."""
        ordered: dict[str, TensorSpec] = {}

        def add(path: str) -> None:
            if path not in ordered and path not in pending:
                pending.add(path)
                for name in followed(self.specs[path]):
                    for other in self.specs:
                        if name in (other, last_part(other)):
                            add(other)
                ordered[path] = self.specs[path]

        pending: set[str] = set()
        for path in self.specs:
            add(path)
        return list(ordered.items())

    def simplest(self, batch: Batch, path: str) -> Tensor | None:
        """The simplest tensor that may stand at a path of a batch; None where only the drawn one may.

        Of a real tensor without a domain that is zeros, and of integers and booleans, of which
        nothing is known, the first value everywhere.
        """
        leaf = batch.tensors().get(path)
        if leaf is None or not is_dense(leaf):
            return None
        spec = self.specs.get(path)
        if spec is None or (spec.values is None and batch.origin == "real"):
            if leaf.is_floating_point() or leaf.is_complex() or not leaf.numel():
                return torch.zeros_like(leaf, memory_format=torch.contiguous_format)
            return leaf.detach().reshape(-1)[0].expand(leaf.shape).clone()
        if spec.unit == "whole":
            return None
        found = batch.tensors()
        siblings = {**found, **{last_part(name): tensor for name, tensor in found.items()}}
        made = spec.simplest(
            tuple(leaf.shape), self.context(path, 0, batch.sizes, siblings), leaf.dtype
        )
        assert isinstance(made, Tensor)
        return made.detach().to(leaf.device)

    def consistent(self, batch: Batch) -> Batch:
        """The batch with those tensors made again that follow from others, such as the mask of token ids."""
        followers = {
            path: spec
            for path, spec in self.order
            if spec.unit == "whole"
            and not isinstance(spec, StructureSpec)
            and spec.values is not None
        }
        if not followers:
            return batch
        found = batch.tensors()
        siblings = {**found, **{last_part(name): tensor for name, tensor in found.items()}}

        def follow(path: str, leaf: Any) -> Any:
            if path not in followers or not is_dense(leaf):
                return leaf
            context = self.context(path, batch.seed, batch.sizes, siblings)
            return followers[path].fill(tuple(leaf.shape), context, leaf.dtype)

        return batch.map(follow)

    def spice(self, batch: Batch, recipe: Recipe) -> Batch:
        """Make the values of a batch special, and simpler, as the recipe says."""

        def change(path: str, leaf: Any) -> Any:
            simplest = self.simplest(batch, path)
            if simplest is None:
                return leaf
            plain = leaf.detach().contiguous().requires_grad_(leaf.requires_grad)
            return self._simpler(path, self.specs.get(path), plain, lambda: simplest, recipe)

        return batch.map(change)

    def _simpler(
        self,
        path: str,
        spec: TensorSpec | None,
        value: Any,
        simplest: Callable[[], Any],
        recipe: Recipe,
    ) -> Any:
        value = with_edge(recipe.edge, value, simplest, spec, recipe.seed)
        if path in recipe.keep and is_dense(value):
            unit: Unit = "element" if spec is None else spec.unit
            value = kept_by_bits(value, simplest(), recipe.keep[path], unit, self.grids().get(path))
        return value


def followed(spec: TensorSpec) -> tuple[str, ...]:
    """The names of the inputs that a spec refers to: those of lengths, or of the ids that it masks."""
    found = (
        getattr(part, field, None) for part in (spec, spec.values) for field in ("lengths", "of")
    )
    return tuple(name for name in found if isinstance(name, str))


def last_part(path: str) -> str:
    """The last part of a path: what a sibling is called."""
    return path.replace("'", "").replace("]", "").replace("[", ".").rpartition(".")[2]
