"""Try candidates: on fake tensors first, which cost nothing, then for real at a few sizes."""

from __future__ import annotations

import contextlib
import copy
import math
import time
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)

from ..batches import Batch, BatchSource
from ..lean import dataclass
from ..objects import trees
from ..probes.memory.fake import fake_mode
from ..specs import SpecError
from ..state import is_lazy, isolated, seed_everything

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from .options import Candidate

SECONDS: Final = 60.0
"""Time for all candidates of one model."""
_UNDECIDED: Final = (
    DataDependentOutputException, DynamicOutputShapeException, UnsupportedFakeTensorException,
    UnsupportedOperatorException, NotImplementedError,
)  # fmt: skip
_LARGEST: Final = 1 << 25
_MIXING: Final = 4
"""Candidates that run but mix samples: after so many no other is looked for."""
_BATCH: Final = 3
_ROWS: Final = (3, 2)  # two sizes of a batch: what differs between outputs is the batch's axis
_FACTORS: Final = (1.0, 3.0, 10.0, 30.0) * 2
"""Sizes of weights drawn at random, relative to those that the model was built with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One forward in eval mode.

    Attributes:
        sizes: Of the batch's symbols.
        inputs: Shape of every input by its path.
        outputs: Every output tensor by its path, such as ``output.logits``; without a graph.
    """

    sizes: Mapping[str, int]
    inputs: Mapping[str, tuple[int, ...]]
    outputs: Mapping[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """A candidate that ran.

    Attributes:
        candidate: Its specs.
        sizes: Ranges of symbols that were seen to work.
        source: Draws its batches.
        runs: What was run, the first one at the default sizes.
        mixes: Whether a sample's output depends on the other samples of its batch, in eval mode.
        trains: Tensors of the output in train mode that carry a gradient, by their path.
        drawn: Outputs at weights drawn at random, where those of the runs leave their range open.
    """

    candidate: Candidate
    sizes: Mapping[str, tuple[int, int]]
    source: BatchSource
    runs: tuple[Run, ...]
    mixes: bool
    trains: tuple[str, ...]
    drawn: tuple[Mapping[str, Tensor], ...] = ()

    def values(self, path: str) -> list[Tensor]:
        """Return an output at all weights that were tried: what all share is the model's doing."""
        found = (*(run.outputs for run in self.runs), *self.drawn)
        return [
            leaf for outputs in found if (leaf := outputs.get(path)) is not None and leaf.numel()
        ]


class Probe:
    """A copy of a model to try batches on; what a forward may keep goes with it.

    Args:
        make: Builds the model anew, or copies it.
    """

    def __init__(self, make: Callable[[], nn.Module]) -> None:
        self._make = make
        self._lazy = any(is_lazy(p) for p in self._built().parameters())
        self._models: dict[str, nn.Module] = {}
        self.error = ""

    def _built(self) -> nn.Module:
        """Build the model with the same weights each time: the choice of a loss reads its values."""
        seed_everything(0)
        return self._make()

    def _model(self, use: str) -> nn.Module:
        if self._lazy:
            return self._built()
        if use not in self._models:
            self._models[use] = self._built()
        return self._models[use]

    def runs_fake(self, batch: Batch) -> bool | None:
        """Say whether a forward works on fake tensors; None where fake tensors cannot tell."""
        if self._lazy:
            return None
        model = self._model("fake").eval()
        try:
            with fake_mode(model.forward) as mode, torch.no_grad(), _quiet():
                faked = batch.map(
                    lambda _, leaf: mode.from_tensor(leaf) if isinstance(leaf, Tensor) else leaf
                )
                model(*faked.args, **faked.kwargs)
        except _UNDECIDED:
            return None
        except Exception as error:  # a model may raise anything for a wrong input
            self._note(error)
            return None if "fake" in str(error).lower() else False
        return True

    def run(self, batch: Batch, *, train: bool = False, model: nn.Module | None = None) -> Any:
        """Return the output of a forward, or None where it raises."""
        model = (model or self._model("real")).train(train)
        try:
            with torch.set_grad_enabled(train), _quiet():
                seed_everything(0)
                return model(*batch.args, **batch.kwargs)
        except Exception as error:  # as above
            self._note(error)
            return None

    def at_random_weights(self, batch: Batch) -> Iterator[Any]:
        """Yield outputs at other weights; the model is of no further use then."""
        model = self._model("real")
        self.run(batch, model=model)  # a lazy module has no weights before
        weights = [p.data for p in model.parameters() if p.is_floating_point()]
        sizes = [float(weight.square().mean().sqrt()) or 1.0 for weight in weights]
        generator = torch.Generator().manual_seed(0)
        for factor in _FACTORS:
            for weight, size in zip(weights, sizes, strict=True):
                drawn = torch.randn(weight.shape, generator=generator, device="cpu")
                weight.copy_(drawn * factor * size)
            yield self.run(batch, model=model)

    def _note(self, error: Exception) -> None:
        """Keep the first error: that of the likeliest candidate."""
        self.error = self.error or _first_line(error)


@contextlib.contextmanager
def _quiet() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:160]}"


def try_all(
    make: Callable[[], nn.Module], found: Iterable[Candidate]
) -> tuple[Accepted | None, str]:
    """Return the first candidate that runs and keeps samples apart, else the first one that runs.

    Returns:
        The candidate, and the error of the likeliest candidate that did not run.
    """
    with isolated():
        probe, mixing = Probe(make), list[Accepted]()
        ends = time.monotonic() + SECONDS
        for candidate in found:
            if time.monotonic() > ends or len(mixing) == _MIXING:
                break
            accepted = _try(probe, candidate)
            if accepted is not None and not accepted.mixes:
                return _drawn(probe, accepted), probe.error
            mixing += [] if accepted is None else [accepted]
        return (_drawn(probe, mixing[0]) if mixing else None), probe.error


def _drawn(probe: Probe, found: Accepted) -> Accepted:
    """Add outputs at random weights, where those of the runs may keep to a range by chance."""
    floats = trees.floats(found.runs[0].outputs).values()
    if all(leaf.numel() and leaf.min() < -1 and leaf.max() > 1 for leaf in floats):
        return found
    made = map(trees.tensors, probe.at_random_weights(found.source.base(0)))
    finite = (
        {path: leaf for path, leaf in outputs.items() if bool(leaf.isfinite().all())}
        for outputs in made
    )
    return replace(found, drawn=tuple(finite))


def _source(candidate: Candidate, sizes: Mapping[str, Any]) -> BatchSource:
    return BatchSource(inputs=candidate.inputs, sizes=sizes or None, batch_dim=candidate.batch_dim)


def _try(probe: Probe, candidate: Candidate) -> Accepted | None:
    try:
        source = _source(candidate, candidate.sizes)
        if _elements(source) > _LARGEST:
            return None
        first = source.at(0, **_at(source, _ROWS[0]))
    except SpecError:
        return None
    if first is None or probe.runs_fake(first) is False:
        return None
    runs = [run for rows in _ROWS if (run := _run(probe, source, _at(source, rows)))]
    if len(runs) < (len(_ROWS) if source.batch_symbol else 1) or not runs[0].outputs:
        return None
    if source.batch_symbol and not _has_batch(runs):
        return None
    sizes = _free(source, candidate)
    for symbol, (low, high) in tuple(sizes.items()):
        worked, more = _range(probe, source, symbol, low, high)
        sizes[symbol] = worked
        runs += more
    if source.batch_symbol and probe.run(source.at(0, B=1) or first, train=True) is None:
        sizes["B"] = (2, 8)  # such as batch statistics over one value
    source = _source(candidate, sizes)
    trained = probe.run(source.base(0), train=True)
    if trained is None:
        return None
    trains = tuple(path for path, leaf in trees.tensors(trained).items() if leaf.requires_grad)
    mixes = _mixes(probe, source)
    return Accepted(
        candidate=candidate,
        sizes=sizes,
        source=source,
        runs=tuple(runs),
        mixes=mixes,
        trains=trains,
    )


def _elements(source: BatchSource) -> int:
    """Return how many elements the largest input has at the largest sizes: what is tried must be small."""
    sizes = {name: span.top for name, span in source.symbols.items() if span.relation is None}
    shapes = [spec.shape.resolve(sizes) for spec in source.specs.values() if spec.shape is not None]
    return max((math.prod(shape) for shape in shapes), default=0)


def _free(source: BatchSource, candidate: Candidate) -> dict[str, tuple[int, int]]:
    """Return the ranges of the symbols beside the batch's, of those without a range the default."""
    return {
        name: candidate.sizes.get(name, (span.low, span.high))
        for name, span in source.symbols.items()
        if name.isidentifier() and name != source.batch_symbol and not span.fixed
    }


def _at(source: BatchSource, rows: int) -> dict[str, int]:
    return {} if source.batch_symbol is None else {source.batch_symbol: rows}


def _run(probe: Probe, source: BatchSource, sizes: Mapping[str, int]) -> Run | None:
    batch = source.at(0, **sizes)
    output = None if batch is None else probe.run(batch)
    if batch is None or output is None:
        return None
    outputs = trees.tensors(output)
    inputs = {
        path: tuple(leaf.shape) for path, leaf in batch.input_leaves() if isinstance(leaf, Tensor)
    }
    return Run(sizes=batch.sizes, inputs=inputs, outputs=outputs)


def _has_batch(runs: list[Run]) -> bool:
    """Say whether an output follows the size of the batch, or is one number alone."""
    first, second = runs[:2]
    if len(first.outputs) == 1 and all(leaf.ndim == 0 for leaf in first.outputs.values()):
        return True
    for path, leaf in first.outputs.items():
        other = second.outputs.get(path)
        if other is None or leaf.ndim != other.ndim:
            continue
        if any((a, b) == _ROWS for a, b in zip(leaf.shape, other.shape, strict=True)):
            return True
    return False


def _range(
    probe: Probe, source: BatchSource, symbol: str, low: int, high: int
) -> tuple[tuple[int, int], list[Run]]:
    """Return the range of a symbol that works, and the runs that show it."""
    runs: list[Run] = []
    smallest: int | None = None
    for size in sorted({low, (low + high) // 2, (low + high) // 2 + 1, high}):
        run = _run(probe, source, {symbol: size, **_at(source, _BATCH)})
        if run is None:
            runs, smallest = [], None  # the sizes that work must have no gap
            continue
        smallest = size if smallest is None else smallest
        runs.append(run)
    if smallest is None:
        base = source.base(0).sizes[symbol]
        return (base, base), []
    return (smallest, max(run.sizes[symbol] for run in runs)), runs


def _mixes(probe: Probe, source: BatchSource) -> bool:
    """Say whether the first samples' outputs change when the last sample is left out."""
    if source.batch_symbol is None:
        return False
    batch = source.at(0, **_at(source, _BATCH))
    part = None if batch is None else source.crop(batch, _at(source, _BATCH - 1))
    if batch is None or part is None:
        return False
    whole, cut = probe.run(batch), probe.run(part)
    if whole is None or cut is None:
        return False
    others = trees.tensors(cut)
    for path, leaf in trees.tensors(whole).items():
        other = others.get(path)
        if other is None or leaf.ndim != other.ndim:
            continue
        axis = next((i for i in range(leaf.ndim) if leaf.shape[i] != other.shape[i]), None)
        if axis is None or leaf.shape[axis] != _BATCH or not leaf.is_floating_point():
            continue
        kept = leaf.narrow(axis, 0, _BATCH - 1)
        if kept.shape == other.shape and not torch.allclose(kept, other, rtol=1e-3, atol=1e-4):
            return True
    return False


def copier(model: nn.Module) -> Callable[[], nn.Module]:
    """Return a function that copies a model which is built already."""
    return lambda: copy.deepcopy(model)
