"""What is declared of a contract's batches: specs, symbols and the sizes that they may have."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ..specs.same import shaped
from ..specs.shapes import Expr, SpecError
from ..specs.sizes import (
    DEFAULT_HIGH,
    Size,
    SizeRange,
    comfortable,
    parse_sizes,
    settle,
)
from ..specs.walk import as_spec_tree, spec_leaves
from .axes import guess_sizes, plan_axes, read_sizes
from .batch import Batch, split_inputs
from .filling import Filling
from .read import is_fixed, read

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ..specs.tensors import TensorSpec
    from .resample import Dims, Plan

BATCH_HIGH = 8
"""Largest size of the batch's symbol for which no range was declared."""


class Declared:
    """The specs of a contract's batches, their symbols, and the real batch that the sizes are read from."""

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
        if batch_dim:
            self._require_batch_dim(batch_dim)
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
        self._relations_known()
        if (batch is None or is_fixed(batch)) and self.unused_sizes:
            name = self.unused_sizes[0]
            raise SpecError(
                f"sizes[{name!r}]: no spec has the symbol {name!r}; symbols are: {', '.join(self.symbols) or 'none'}"
            )

    def _require_batch_dim(self, dim: int) -> None:
        """Refuse a dimension of the batch that no input has, as far as their numbers of dimensions are known."""
        if dim < 0:
            raise SpecError(
                f"batch_dim = {dim}: dimensions are counted from the front; allowed: 0, 1, ..."
            )
        ranks: dict[str, int] = {}
        if self._batch is None:
            inputs = dict(self._form.input_leaves())
            for path, spec in self._specs.items():
                if path in inputs and spec.shape is not None:
                    plain = all(axis.kind == "plain" for axis in spec.shape.axes)
                    ranks[path] = len(spec.shape.axes) if plain else dim + 1
        elif is_fixed(self._batch):
            leaves = self._real_zero.input_leaves()
            ranks = {path: t.dim() for path, t in leaves if isinstance(t, Tensor)}
        if ranks and max(ranks.values()) <= dim:
            path, most = max(ranks.items(), key=lambda item: item[1])
            allowed = ", ".join(map(str, range(most))) or "None"
            raise SpecError(
                f"batch_dim = {dim}: no input has a dimension {dim}; {path} has {most}; allowed: {allowed}"
            )

    def _relations_known(self) -> None:
        """Refuse a relation to a symbol that no tensor and no other size has."""
        if self._batch is not None:
            return  # it may bring symbols of its own
        given = {name for spec in self._specs.values() for name in spec.symbols()}
        known = given | set(self._declared)
        for name, span in self._declared.items():
            wrong = () if span.relation is None else set(span.relation.symbols()) - known
            for symbol in sorted(wrong):
                raise SpecError(
                    f"sizes[{name!r}] = {str(span.relation)!r}: no spec has the symbol {symbol!r}; "
                    f"symbols are: {', '.join(sorted(given))}"
                )

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

    @cached_property
    def edges(self) -> tuple[str, str] | None:
        """The path of an input ``edge_index`` and the symbol of its edges; None where their number is fixed."""
        for path, spec in self._specs.items():
            if path.rpartition(".")[2] == "edge_index" and spec.shape is not None:
                sizes = [axis.size for axis in spec.shape.axes if axis.kind == "plain"]
                if len(spec.shape.axes) == len(sizes) == 2 and sizes[0].value == 2:
                    name = sizes[1].name
                    return (path, name) if name and not self.symbols[name].fixed else None
        return None

    @property
    def unused_sizes(self) -> tuple[str, ...]:
        """The symbols in ``sizes`` that stand in no spec, neither of inputs, targets nor output."""
        used = {*self.symbols, *(name for spec in self._output_specs for name in spec.symbols())}
        stems = {name.partition("[")[0].lstrip("*") for name in used}
        return tuple(name for name in self._declared if name not in used and name not in stems)

    @cached_property
    def symbols(self) -> dict[str, SizeRange]:
        """Every symbol of the specs and what it may be.

        Besides names there are ``*batch`` and ``...`` (how many axes), ``batch[0]`` (their sizes),
        ``T?`` (whether the axis is there) and ``#T`` (whether it is 1).
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
            low=1, high=BATCH_HIGH if name == self.leading_symbol else DEFAULT_HIGH, declared=False
        )

    @cached_property
    def batch_symbol(self) -> str | None:
        """The symbol of the batch's axis, or None if there is none.

        An axis that indices of an input are declared to lead into, as edges lead to nodes, counts no samples.
        """
        found = self.leading_symbol
        indexed = (s.values.indexes for s in self._specs.values() if s.values is not None)
        return None if found is not None and found in indexed else found

    @cached_property
    def leading_symbol(self) -> str | None:
        """The symbol at ``batch_dim`` of the first input: of samples, or of a graph's nodes; targets follow both."""
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

    def widest(self) -> dict[str, SizeRange]:
        """The symbols, with one for every axis that a variadic one may stand for."""
        return self._spread(
            {name: span.top for name, span in self.symbols.items() if _is_rank(name)}
        )

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

    def _dims_at(self, path: str, sizes: Mapping[str, int]) -> Dims | None:
        """The axes of the tensor at a path; None if nothing is known of it."""
        spec = self._specs.get(path)
        if spec is not None and spec.shape is not None:
            return spec.shape.dims(sizes)
        return self._plans[path].dims if self.has_real and path in self._plans else None


def _by_name(inputs: Any, batch: Any) -> Any:
    """Return specs in a tuple under the names of a real batch whose inputs are a dict, in its order."""
    if not isinstance(inputs, tuple) or hasattr(inputs, "_fields") or not is_fixed(batch):
        return inputs
    given = read(batch, 0).kwargs if batch is not None else {}
    return dict(zip(given, inputs, strict=True)) if len(given) == len(inputs) > 0 else inputs


def _is_rank(name: str) -> bool:
    return name.startswith("*") or name == "..."
