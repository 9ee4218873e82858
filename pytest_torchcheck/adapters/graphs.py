"""Graphs as PyTorch Geometric holds them: an object with ``x``, ``edge_index``, and ``batch`` where there are several."""

from __future__ import annotations

import copy
import inspect
from typing import TYPE_CHECKING, Any, Final

from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from ..batches import Batch
from ..state import isolated
from .base import Adapted, AdapterError

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from .base import Declared

TARGETS: Final = "y"


class _Graphs:
    def recognises(self, declared: Declared) -> bool:
        return is_graph(_first(declared.batch))

    def adapt(self, declared: Declared) -> Adapted:
        example = _first(declared.batch)
        cls: Any = declared.cls
        if cls is None:
            return Adapted()
        taken = _taken(cls, example)
        call = _call_of(_single(cls), example) if taken is None else None
        batch = declared.batch
        if isinstance(batch, DataLoader):
            loader = batch

            def read(seed: int) -> Batch:
                graphs = [graph for _, graph in zip(range(seed % 4 + 1), loader, strict=False)]
                return as_batch(graphs[-1], taken)

            made: Any = read
        else:
            made = as_batch(example, taken)
        return Adapted(fields={"batch": made, "batch_dim": None}, call=call)


ADAPTER: Final = _Graphs()


def is_graph(value: Any) -> bool:
    """Say whether an object holds a graph: node features and the edges between them."""
    return isinstance(getattr(value, "edge_index", None), Tensor) and isinstance(
        getattr(value, "x", None), Tensor
    )


def _first(batch: Any) -> Any:
    """Return the graph that is given; of a loader of graphs, which collates none, the first."""
    if isinstance(batch, DataLoader):
        return next(iter(batch), None) if is_graph(_sample(batch.dataset)) else None
    if isinstance(batch, tuple | list) and len(batch) == 2 and batch[1] is None:
        return batch[0]
    return batch


def _sample(dataset: Any) -> Any:
    """Return a sample of a dataset; None where nothing but reading a stream gives one, or none can be read.

    What a dataset raises is reported by the checks that read it, not while tests are collected.
    """
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
        return None
    try:
        with isolated():
            return dataset[0]
    except Exception:  # the user's code
        return None


def tensors_of(graph: Any) -> dict[str, Tensor]:
    """Return the tensors of a graph by name."""
    names = graph.keys() if callable(getattr(graph, "keys", None)) else vars(graph)
    return {
        name: value
        for name in names
        if isinstance(name, str) and isinstance(value := getattr(graph, name, None), Tensor)
    }


def _taken(cls: Any, example: Any) -> tuple[str, ...] | None:
    """Return the tensors of a graph that a forward takes by name; None where it takes the graph itself.

    Raises:
        AdapterError: It takes something that the graph does not have.
    """
    parameters = _parameters(cls)
    known = tensors_of(example)
    names = tuple(p.name for p in parameters if p.name in known)
    lacking = [p.name for p in parameters if p.name not in known and p.default is p.empty]
    if not names and len(lacking) == 1:
        return None
    if lacking:
        raise AdapterError(
            f"batch: {cls.__name__}.forward takes {lacking[0]!r}, which the graph does not have; it has "
            f"{', '.join(known)}"
        )
    return names


def _parameters(cls: Any) -> list[inspect.Parameter]:
    _, *parameters = inspect.signature(cls.forward).parameters.values()
    return [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]


def _single(cls: Any) -> str:
    return next(p.name for p in _parameters(cls) if p.default is p.empty)


def as_batch(graph: Any, taken: tuple[str, ...] | None) -> Batch:
    """Return a graph as a batch: its tensors by name as inputs, ``y`` as the targets."""
    known = tensors_of(graph)
    names = taken if taken is not None else tuple(name for name in known if name != TARGETS)
    return Batch(
        kwargs={name: known[name] for name in names}, targets=known.get(TARGETS), origin="real"
    )


def _call_of(argument: str, example: Any) -> Callable[[nn.Module, Batch], Any]:
    """Return how to call a model that takes the graph itself: made anew of the batch's tensors."""

    def call(model: nn.Module, batch: Batch) -> Any:
        graph = copy.copy(example)
        for name, value in batch.kwargs.items():
            setattr(graph, name, value)
        if batch.targets is not None:
            setattr(graph, TARGETS, batch.targets)
        return model(**{argument: graph})

    return call
