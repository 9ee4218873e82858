"""Where batches come from: specs, a real batch, or both."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pytest_torchcheck.batches.axes import guess_sizes, plan_axes, read_sizes
from pytest_torchcheck.batches.batch import Batch, clone_tensor, relayout, split_inputs
from pytest_torchcheck.batches.describe import describe_tensor
from pytest_torchcheck.batches.filling import Filling, last_part
from pytest_torchcheck.batches.read import is_dense, is_fixed, read
from pytest_torchcheck.batches.recipe import Recipe
from pytest_torchcheck.batches.resizing import IGNORED, Resizing, Rows, counted, row_indices
from pytest_torchcheck.specs.same import shaped
from pytest_torchcheck.specs.shapes import Expr, SpecError
from pytest_torchcheck.specs.sizes import (
    DEFAULT_HIGH,
    Size,
    SizeRange,
    comfortable,
    parse_sizes,
    settle,
)
from pytest_torchcheck.specs.trees import as_spec_tree, spec_leaves

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pytest_torchcheck.batches.resample import Dims, Plan
    from pytest_torchcheck.specs.tensors import TensorSpec

BATCH_HIGH = 8
"""Largest size of the batch's symbol for which no range was declared."""
_OTHER = 7919
"""Distance of the seeds of a batch and of another one of the same sizes."""


class BatchSource:
    """Batches of one contract.

    Args:
        inputs: Specs of the inputs: one spec, a tuple (positional) or a dict (keywords).
        targets: Specs of the targets, or None.
        sizes: Ranges of the symbols, see `parse_sizes`.
        batch: Real data: ``(inputs, targets)``, the inputs alone, a callable ``(seed) -> (inputs, targets)``, a Dataset of such items
            or a DataLoader of such batches.
        batch_dim: Where the batch's axis stands; None where there is none, as for graphs.
        output: Spec of the output; it helps to tell the axes of targets without a spec.

    Raises:
        SpecError: A declaration is wrong.
        ShapeMismatch: The real batch is not what the specs say.
    """

    def __init__(
        self,
        inputs: Any = None,
        targets: Any = None,
        sizes: Mapping[str, Size] | None = None,
        batch: Any = None,
        batch_dim: int | None = 0,
        *,
        output: Any = None,
        names: tuple[str, ...] = (),
    ) -> None:
        self._names = names
        self.inputs = as_spec_tree(_by_name(inputs, batch), "inputs")
        self.targets = as_spec_tree(targets, "targets")
        self.output = as_spec_tree(output, "output")
        self.batch_dim = batch_dim
        self._declared = parse_sizes(sizes)
        self._batch = batch
        args, kwargs = split_inputs(self.inputs) if self.inputs is not None else ((), {})
        form = Batch(args=args, kwargs=kwargs)
        places = dict(zip(names, form.arg_names(), strict=False))
        self.targets = shaped(self.targets, dict(form.input_leaves()), places)
        self._form = Batch(args=args, kwargs=kwargs, targets=self.targets)
        self._filling = Filling(self._form, lambda: self.grids)
        self._specs = self._filling.specs
        self._output_specs = list(spec_leaves(self.output, "output").values())
        if batch is None:
            for path, spec in self._specs.items():
                if spec.shape is None:
                    raise SpecError(
                        f"{path}: {spec!r} has no shape, and there is no real batch to take it from; "
                        "allowed: a shape such as 'B 3 H W' as its first argument"
                    )
            if self._specs:
                _ = settle(dict.fromkeys(self._free(), 1), self.symbols)  # no circles of relations
        elif is_fixed(batch):
            _ = self._plans  # a mismatch is reported where it is declared
        if (batch is None or is_fixed(batch)) and self.unused_sizes:
            name = self.unused_sizes[0]
            raise SpecError(
                f"sizes[{name!r}]: no spec has the symbol {name!r}; symbols are: {', '.join(self.symbols) or 'none'}"
            )

    # What may vary

    @property
    def has_real(self) -> bool:
        """Whether there is a real batch."""
        return self._batch is not None

    @property
    def declared_sizes(self) -> bool:
        """Whether other sizes are promised to work: specs have symbols with more than one size."""
        return bool(self._specs) and any(not span.fixed for span in self.symbols.values())

    @property
    def form(self) -> Batch | None:
        """A batch as far as it is known without running anything: its leaves may be specs."""
        if self._batch is None:
            return self._form
        return self._real_zero if is_fixed(self._batch) else None

    @property
    def specs(self) -> Mapping[str, TensorSpec]:
        """The spec of every tensor that has one, by its path in a batch."""
        return self._specs

    @property
    def unused_sizes(self) -> tuple[str, ...]:
        """The symbols in ``sizes`` that stand in no spec, neither of inputs, targets nor output."""
        used = {*self.symbols, *(name for spec in self._output_specs for name in spec.symbols())}
        stems = {name.partition("[")[0].lstrip("*") for name in used}
        return tuple(name for name in self._declared if name not in used and name not in stems)

    @cached_property
    def symbols(self) -> dict[str, SizeRange]:
        """Every symbol of the specs and what it may be.

        Besides names there are ``*batch`` and ``...`` (how many axes), ``batch[0]`` (their sizes), ``T?`` (whether the axis is
        there) and ``#T`` (whether it is 1).
        """
        names: dict[str, None] = {}
        for spec in self._specs.values():
            names.update(dict.fromkeys(spec.symbols()))
        real = self._real_sizes if self.has_real else {}
        if self.batch_symbol is not None:
            names.setdefault(self.batch_symbol)
        names.update(dict.fromkeys(name for name in real if "[" in name))
        for span in self._declared.values():
            if span.relation is not None:
                names.update(dict.fromkeys(span.relation.symbols()))
        return {name: self._range(name, real) for name in names}

    def _range(self, name: str, real: Mapping[str, int]) -> SizeRange:
        stem = name.partition("[")[0]  # every axis of *batch has the range of ``batch``
        for declared in (name, stem):
            if declared in self._declared:
                return self._declared[declared]
        if name in real:
            if name == self.batch_symbol:
                high = max(real[name], BATCH_HIGH) if self._specs else real[name]
                return SizeRange(low=min(1, real[name]), high=high, declared=False)
            return SizeRange(low=real[name], high=real[name], declared=False)
        if name.endswith("?") or name.startswith("#"):
            return SizeRange(low=0, high=1, declared=False)
        if _is_rank(name):
            return SizeRange(low=0, high=2, declared=False)
        return SizeRange(
            low=1, high=BATCH_HIGH if name == self.batch_symbol else DEFAULT_HIGH, declared=False
        )

    @cached_property
    def batch_symbol(self) -> str | None:
        """The symbol of the batch's axis, or None if there is none."""
        if self.batch_dim is None:
            return None
        inputs = dict(self._form.input_leaves())
        for path, spec in self._specs.items():
            if spec.shape is None or path not in inputs:
                continue
            axes = spec.shape.axes[: self.batch_dim + 1]
            if any(axis.kind != "plain" for axis in axes):
                return None
            if len(axes) > self.batch_dim:  # else a scalar beside the batch
                size = axes[-1].size
                return size.name if size.op == "symbol" else None
        if self.has_real and guess_sizes(self._real_zero, self.batch_dim):
            return "B"
        return None

    def axes(self, symbol: str) -> dict[str, int]:
        """The axis of each tensor (inputs and targets, by path) whose size is exactly this symbol."""
        base = self._real_zero if self.has_real else self.base()
        dims = {path: self._dims_at(path, base.sizes) or () for path in base.tensors()}
        wanted = Expr("symbol", name=symbol)
        return {path: found.index(wanted) for path, found in dims.items() if wanted in found}

    def widest(self) -> dict[str, SizeRange]:
        """The symbols, with one for every axis that a variadic one may stand for."""
        return self._spread(
            {name: span.top for name, span in self.symbols.items() if _is_rank(name)}
        )

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
        """The default batch: the real one, or one drawn at sizes that are typical and cheap."""
        return self.real(seed) if self.has_real else self.make(Recipe(seed=seed))

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
            seed: Of the values that are drawn anew: those of a tensor of which a piece does not belong to its domain.

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

        Drawn batches are drawn from another seed. Of real data that is made by the seed, another batch is taken; else the rows change
        places, labels with them, and values with a declared domain are drawn anew.
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
        symbol = self.batch_symbol
        if symbol is None:
            raise SpecError("there is no batch axis to take samples from")
        axes = self.axes(symbol)

        def take(path: str, leaf: Any) -> Any:
            if not isinstance(leaf, Tensor) or path not in axes:
                return leaf
            return (
                leaf.detach()
                .index_select(axes[path], index.to(leaf.device))
                .requires_grad_(leaf.requires_grad)
            )

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

    def _free(self) -> Iterator[str]:
        return (name for name, span in self.symbols.items() if span.relation is None)

    def complete(self, sizes: Mapping[str, int] | None = None) -> dict[str, int]:
        """Add comfortable sizes for the symbols that have none, and what follows from relations."""
        given = sizes or {}
        free: dict[str, int] = {}
        spread = self._spread(given)
        for name, span in spread.items():
            if name in given:
                free[name] = given[name]
            elif span.relation is None:
                taken = set(free.values())
                free[name] = comfortable(
                    span, batch=name == self.batch_symbol, taken=taken, rank=_is_rank(name)
                )
        return settle(free, {name: span for name, span in spread.items() if name not in free})

    @cached_property
    def _typical(self) -> dict[str, int]:
        return self.complete()

    def _spread(self, sizes: Mapping[str, int]) -> dict[str, SizeRange]:
        """The symbols, and one for every axis of the variadic ones at the rank in ``sizes``."""
        spread = dict(self.symbols)
        for name, span in self.symbols.items():
            if _is_rank(name):
                stem = name.lstrip("*")
                for i in range(sizes.get(name, comfortable(span, rank=True))):
                    spread.setdefault(f"{stem}[{i}]", self._range(f"{stem}[{i}]", {}))
        return spread

    def _random_sizes(self, seed: int) -> dict[str, int]:
        rng = random.Random(seed)
        sizes: dict[str, int] = {}
        for _ in range(2):  # the sizes of variadic axes once their number is known
            for name, span in self._spread(sizes).items():
                if name not in sizes and not span.fixed:
                    way = rng.random()
                    edge = span.low if way < 0.15 else span.top if way < 0.3 else None
                    sizes[name] = rng.choice(span.values) if edge is None else edge
        return sizes

    def simplest(self, batch: Batch, path: str) -> Tensor | None:
        """The simplest tensor that may stand at a path of a batch; None where only the drawn one may."""
        return self._filling.simplest(batch, path)

    def consistent(self, batch: Batch) -> Batch:
        """The batch with those tensors made again that follow from others, such as the mask of token ids."""
        return self._filling.consistent(batch)

    @cached_property
    def grids(self) -> dict[str, tuple[int, ...]]:
        """The largest shape of every tensor whose size varies."""
        tops = {name: span.top for name, span in self.widest().items() if span.relation is None}
        try:
            sizes = self.complete(tops)
            return {
                path: spec.shape.resolve(sizes)
                for path, spec in self._specs.items()
                if spec.shape is not None and any(not self.symbols[n].fixed for n in spec.symbols())
            }
        except SpecError:  # a relation has no value where all symbols are at their largest
            return {}

    # The real batch

    def _measured(self, made: Batch) -> Batch:
        if made.args and not made.kwargs and not made.names and self._form.kwargs:
            made = replace(made, names=self._positional(made))
        if self._specs:
            sizes = read_sizes(self._specs, made, self._declared)
            if not sizes:  # specs without shapes
                sizes = guess_sizes(made, self.batch_dim)
        else:
            sizes = guess_sizes(made, self.batch_dim)
        return replace(made, sizes=sizes, origin="real")

    def _positional(self, made: Batch) -> tuple[str, ...]:
        """Name the positional arguments of a real batch as the specs do, which go by the names of ``forward``."""
        count, named = len(made.args), tuple(self._form.kwargs)
        known = self._names[:count]
        if len(known) == count and set(named) <= set(known):
            return known
        return named if len(named) == count else ()

    @cached_property
    def _real_zero(self) -> Batch:
        return self._measured(read(self._batch, 0))

    @property
    def _real_sizes(self) -> dict[str, int]:
        return self._real_zero.sizes

    @cached_property
    def _plans(self) -> dict[str, Plan]:
        symbol = self.batch_symbol
        axis: tuple[Expr, int] | None = None
        if symbol is not None and self.batch_dim is not None and symbol in self._real_sizes:
            axis = (Expr("symbol", name=symbol), self.batch_dim)
        return plan_axes(self._specs, self._real_zero, axis, self._output_specs)

    def _follow(self, old: Mapping[str, int], sizes: Mapping[str, int]) -> dict[str, int]:
        """The sizes that result from changing some of the old ones."""
        related = {name for name, span in self.symbols.items() if span.relation is not None}
        free = {
            name: size
            for name, size in {**old, **sizes}.items()
            if name not in related or name in sizes
        }
        spread = self._spread(free)
        for name, span in spread.items():
            if name not in free and span.relation is None:
                free[name] = comfortable(span)
        return settle(free, {name: span for name, span in spread.items() if name not in free})

    def _knows(self, old: Mapping[str, int], new: Mapping[str, int]) -> bool:
        changed = {name for name, size in new.items() if old.get(name) != size}
        return all(plan.known(changed, self.batch_symbol) for plan in self._plans.values())

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

    def _dims_at(self, path: str, sizes: Mapping[str, int]) -> Dims | None:
        """The axes of the tensor at a path; None if nothing is known of it."""
        spec = self._specs.get(path)
        if spec is not None and spec.shape is not None:
            return spec.shape.dims(sizes)
        return self._plans[path].dims if self.has_real and path in self._plans else None

    def _mixed_symbol(self, batch: Batch) -> str | None:
        """The symbol along which rows change places: the batch's, or the first with two rows."""
        symbol = self.batch_symbol
        if symbol is not None and batch.sizes.get(symbol, 0) > 1:
            return symbol
        return next(
            (name for name, size in batch.sizes.items() if size > 1 and name[0].isalpha()), None
        )


def _by_name(inputs: Any, batch: Any) -> Any:
    """Return specs in a tuple under the names of a real batch whose inputs are a dict, in its order."""
    if not isinstance(inputs, tuple) or hasattr(inputs, "_fields") or not is_fixed(batch):
        return inputs
    given = read(batch, 0).kwargs if batch is not None else {}
    return dict(zip(given, inputs, strict=True)) if len(given) == len(inputs) > 0 else inputs


def _is_rank(name: str) -> bool:
    return name.startswith("*") or name == "..."


def _derangement(size: int, seed: int) -> Tensor:
    """An order of rows in which no row stays where it was."""
    order = torch.randperm(size, generator=torch.Generator("cpu").manual_seed(seed))
    moved = torch.empty_like(order)
    moved[order] = order.roll(1)
    return moved
