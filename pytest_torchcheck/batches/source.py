"""Where batches come from: specs, a real batch, or both."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..specs.shapes import Expr, SpecError
from ..specs.walk import spec_leaves
from .batch import Batch, clone_tensor, relayout
from .declared import Declared
from .describe import describe_tensor
from .filling import last_part
from .read import is_dense, is_fixed, read
from .recipe import Recipe
from .resample import IGNORED, Resizing, Rows, counted, row_indices
from .rows import take_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


_OTHER = 7919
"""Distance of the seeds of a batch and of another one of the same sizes."""


class BatchSource(Declared):
    """Batches of one contract.

    Args:
        inputs: Specs of the inputs: one spec, a tuple (positional) or a dict (keywords).
        targets: Specs of the targets, or None.
        sizes: Ranges of the symbols, see `parse_sizes`.
        batch: Real data: ``(inputs, targets)``, the inputs alone, a callable ``(seed) -> (inputs,
            targets)``, a Dataset of such items or a DataLoader of such batches.
        batch_dim: Where the batch's axis stands; None where there is none, as for graphs.
        output: Spec of the output; it helps to tell the axes of targets without a spec.

    Raises:
        SpecError: A declaration is wrong.
        ShapeMismatch: The real batch is not what the specs say.
    """

    # What may vary

    @cached_property
    def of_inputs(self) -> BatchSource:
        """The same inputs without targets, whose shapes at other sizes may be unknown in a real batch."""
        if not is_fixed(self._batch) or not self.has_real or self._real_zero.targets is None:
            return self
        names = {name for spec in spec_leaves(self.inputs, "x").values() for name in spec.symbols()}
        stems = {name.partition("[")[0].lstrip("*") for name in names}
        sizes: dict[str, Any] = {
            k: span for k, span in self._declared.items() if k in names or k in stems
        }
        inputs = replace(self._real_zero, targets=None)
        try:
            return BatchSource(self.inputs, None, sizes, inputs, self.batch_dim, names=self._names)
        except SpecError:  # a size of the inputs follows from one that only targets have
            return self

    def axes(self, symbol: str) -> dict[str, int]:
        """The axis of each tensor (inputs and targets, by path) whose size is exactly this symbol."""
        base = self._real_zero if self.has_real else self.base()
        dims = {path: self._dims_at(path, base.sizes) or () for path in base.tensors()}
        wanted = Expr("symbol", name=symbol)
        return {path: found.index(wanted) for path, found in dims.items() if wanted in found}

    def describe(self) -> str:
        """What was declared and what was inferred, one tensor a line."""
        base = self.base()
        lines = []
        for path, leaf in base.leaves(packed=False):
            if not isinstance(leaf, Tensor):
                continue
            dims = self._dims_at(path, base.sizes) or ()
            shape = " ".join(
                "_" if dim is None else f"({dim})" if dim.args else str(dim) for dim in dims
            )
            origin = (
                "declared"
                if path in self._specs and self._specs[path].shape is not None
                else "inferred"
            )
            lines.append(f"{path}: {shape!r} ({origin}), {describe_tensor(leaf, path)}")
        if self.symbols:
            lines.append(
                "sizes: " + ", ".join(f"{name} = {span}" for name, span in self.symbols.items())
            )
        return "\n".join(lines)

    # Batches

    def real(self, seed: int = 0) -> Batch:
        """The user's own batch, with fresh tensors.

        Raises:
            SpecError: There is none.
        """
        if not self.has_real:
            raise SpecError("there is no real batch")
        if is_fixed(self._batch):
            return replace(self._real_zero.clone(), seed=seed)
        return replace(self._measured(read(self._batch, seed)).clone(), seed=seed)

    def base(self, seed: int = 0) -> Batch:
        """The default batch: the real one, or one drawn at sizes that are typical and cheap.

        Raises:
            SpecError: No input of it holds anything: every check would pass without a look.
        """
        made = self.real(seed) if self.has_real else self.make(Recipe(seed=seed))
        tensors = {path: t for path, t in made.input_leaves() if isinstance(t, Tensor)}
        if tensors and not any(t.numel() for t in tensors.values()):
            told = ", ".join(f"{path} is {describe_tensor(t)}" for path, t in tensors.items())
            raise SpecError(
                f"{'batch' if self.has_real else 'sizes'}: the batch holds nothing ({told}); it must "
                "have at least one sample, with sizes above 0"
            )
        return made

    def draw(self, seed: int, sizes: Mapping[str, int] | None = None) -> Batch:
        """Draw a batch.

        Args:
            seed: Decides the sizes that are not given, and the values.
            sizes: Sizes of symbols.
        """
        chosen = {**self._random_sizes(seed), **(sizes or {})}
        made = self.at(seed, **chosen)
        if made is None:  # the targets' shape is not known at these sizes: keep to the real ones
            made = self.at(
                seed, **{name: size for name, size in chosen.items() if name == self.batch_symbol}
            )
        return made if made is not None else self.real(seed)

    def at(self, seed: int = 0, **sizes: int) -> Batch | None:
        """A batch at these sizes, the others as in `base`.

        Args:
            seed: Decides the values; of a real batch, which rows come first.
            sizes: Sizes of symbols.

        Returns:
            The batch; None if the shape of a real tensor without a spec cannot be told at these sizes.

        Raises:
            SpecError: A symbol is unknown.
        """
        for name in sizes:
            if name not in self.symbols and not any(
                name.startswith(f"{s.lstrip('*')}[") for s in self.symbols
            ):
                raise SpecError(
                    f"no symbol {name!r}; there are: {', '.join(self.symbols) or 'none'}"
                )
        if not self.has_real:
            return self.make(Recipe(seed=seed, sizes=sizes))
        real = self.real(seed)
        new = self._follow(real.sizes, sizes)
        return self._resized(real, new, seed, "seeded") if self._knows(real.sizes, new) else None

    def crop(
        self, batch: Batch, sizes: Mapping[str, int], *, last: bool = False, seed: int | None = None
    ) -> Batch | None:
        """Cut a batch of this source to smaller sizes, or wrap it around to larger ones, keeping its values.

        Args:
            batch: What to cut.
            sizes: The new sizes; the others stay.
            last: Whether to keep the last rows rather than the first ones.
            seed: Of the values that are drawn anew: those of a tensor of which a piece does not
                belong to its domain.

        Returns:
            The batch; None if the shape of a real tensor without a spec cannot be told at these sizes.
        """
        new = self._follow(batch.sizes, sizes)
        if batch.origin == "real" and not self._knows(batch.sizes, new):
            return None
        seed = batch.seed if seed is None else seed
        return self._resized(batch, new, seed, "last" if last else "first")

    def distinct(self, batch: Batch, seed: int) -> Batch:
        """Another batch with the same sizes and other values.

        Drawn batches are drawn from another seed. Of real data that is made by the seed, another
        batch is taken; else the rows change places, labels with them, and values with a declared
        domain are drawn anew.
        """
        if batch.origin == "drawn":
            return self.make(Recipe(seed=batch.seed + _OTHER * (seed + 1), sizes=batch.sizes))
        if not is_fixed(self._batch):
            other = self.real(batch.seed + seed + 1)
            if other.sizes == batch.sizes:
                return other
        symbol = self._mixed_symbol(batch)
        order = (
            _derangement(batch.sizes[symbol], seed) if symbol else torch.zeros(0, dtype=torch.int64)
        )

        def change(path: str, leaf: Any, made: Mapping[str, Any]) -> Any:
            if not is_dense(leaf):
                return leaf
            spec = self._specs.get(path)
            if spec is not None and spec.own_values:
                context = self._filling.context(path, seed, batch.sizes, made)
                changed = spec.fill(tuple(leaf.shape), context, leaf.dtype)
            else:
                changed = clone_tensor(leaf.detach())
                for axis, dim in enumerate(self._dims_at(path, batch.sizes) or ()):
                    if dim is not None and dim.op == "symbol" and dim.name == symbol:
                        changed = changed.index_select(axis, order.to(changed.device))
            return changed.requires_grad_(leaf.requires_grad)

        return replace(self._in_order(batch, change), seed=seed)

    def has_domain(self, path: str) -> bool:
        """Say whether the spec of a tensor declares what its values may be."""
        spec = self._specs.get(path)
        return spec is not None and spec.own_values

    def rows(self, batch: Batch, index: Tensor) -> Batch:
        """Take samples out of a batch, in this order, along the batch's axis.

        Args:
            batch: A batch of this source.
            index: int64, which samples.

        Raises:
            SpecError: The batch has no batch axis.
        """
        symbol = self.leading_symbol
        if symbol is None:
            raise SpecError("there is no batch axis to take samples from")
        axes = self.axes(symbol)

        def take(path: str, leaf: Any) -> Any:
            if not isinstance(leaf, Tensor) or path not in axes:
                return leaf
            return take_rows(leaf, axes[path], index).requires_grad_(leaf.requires_grad)

        return replace(batch.map(take), sizes={**batch.sizes, symbol: len(index)})

    def make(self, recipe: Recipe) -> Batch:
        """Follow a recipe."""
        if self.has_real:
            batch = self.at(recipe.seed, **recipe.sizes)
            batch = self.real(recipe.seed) if batch is None else batch
            batch = (
                self._filling.spice(batch, recipe)
                if recipe.edge != "plain" or recipe.keep
                else batch
            )
        else:
            sizes = self.complete(recipe.sizes) if recipe.sizes else dict(self._typical)
            batch = self._filling.fill(recipe, sizes)
        if recipe.dtype is not None or recipe.device != "cpu":
            batch = batch.to(device=recipe.device, dtype=recipe.dtype)
        if recipe.layout != "contiguous":  # last: a cast makes memory dense
            batch = relayout(batch, recipe.layout)
        if recipe.requires_grad is not None:
            wanted = recipe.requires_grad

            def ask(_path: str, leaf: Any) -> Any:
                floating = isinstance(leaf, Tensor) and (
                    leaf.is_floating_point() or leaf.is_complex()
                )
                return leaf.detach().requires_grad_(wanted) if floating else leaf

            batch = batch.map(ask, targets=False)
        return batch

    # How they are made

    def simplest(self, batch: Batch, path: str) -> Tensor | None:
        """The simplest tensor that may stand at a path of a batch; None where only the drawn one may."""
        return self._filling.simplest(batch, path)

    def consistent(self, batch: Batch) -> Batch:
        """The batch with those tensors made again that follow from others, such as the mask of token ids."""
        return self._filling.consistent(batch)

    # The real batch

    def _resized(self, batch: Batch, new: dict[str, int], seed: int, rows: Rows) -> Batch:
        old = batch.sizes
        if all(old.get(name) == size for name, size in new.items()):
            return batch
        index = row_indices(old, new, rows, self.batch_symbol, seed)
        for path, leaf in batch.leaves(packed=False):
            dims = self._dims_at(path, old)
            if dims is not None and is_dense(leaf) and not leaf.is_meta:
                ignored = getattr(self._specs.get(path), "ignore_index", None)
                index |= counted(
                    leaf, dims, old, new, index, IGNORED if ignored is None else ignored
                )

        def change(path: str, leaf: Any, made: Mapping[str, Any]) -> Any:
            resizing = Resizing(
                old=old,
                new=new,
                rows=rows if path in inputs else "first",  # targets stay with their rows
                index=index,
                dims=self._dims_at,
                context=lambda path: self._filling.context(path, seed, new, made),
            )
            return resizing.of(path, leaf, self._specs.get(path))

        inputs = {path for path, _ in batch.input_leaves(packed=False)}
        return replace(self._in_order(batch, change), sizes=new, seed=seed)

    def _in_order(
        self, batch: Batch, change: Callable[[str, Any, Mapping[str, Any]], Any]
    ) -> Batch:
        """The batch with other leaves; those that follow from others get to see them."""
        made: dict[str, Any] = {}
        leaves = dict(batch.leaves(packed=False))
        order = {path: place for place, (path, _) in enumerate(self._filling.order)}
        for path in sorted(leaves, key=lambda path: order.get(path, -1)):
            made[path] = made[last_part(path)] = change(path, leaves[path], made)
        return batch.map(lambda path, leaf: made.get(path, leaf), packed=False)

    def _mixed_symbol(self, batch: Batch) -> str | None:
        """The symbol along which rows change places: the batch's, or the first with two rows."""
        symbol = self.batch_symbol
        if symbol is not None and batch.sizes.get(symbol, 0) > 1:
            return symbol
        return next(
            (name for name, size in batch.sizes.items() if size > 1 and name[0].isalpha()), None
        )


def _derangement(size: int, seed: int) -> Tensor:
    """An order of rows in which no row stays where it was."""
    order = torch.randperm(size, generator=torch.Generator("cpu").manual_seed(seed))
    moved = torch.empty_like(order)
    moved[order] = order.roll(1)
    return moved
