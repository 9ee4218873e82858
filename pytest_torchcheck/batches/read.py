"""Real data as batches: a tuple, a callable, a Dataset or a DataLoader."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from ..specs.shapes import SpecError
from ..state import isolated, seed_everything
from .batch import Batch, split_inputs

if TYPE_CHECKING:
    from collections.abc import Iterable

DATASET_ROWS = 4
"""Items of a Dataset that make one batch."""


def is_fixed(source: Any) -> bool:
    """Whether real data is one batch, rather than something that has to be run to give one."""
    return not (callable(source) or isinstance(source, (DataLoader, Dataset)))


def read(source: Any, seed: int) -> Batch:
    """Make one batch of real data.

    Args:
        source: ``(inputs, targets)``, the inputs alone, a callable ``(seed) -> (inputs, targets)``,
            a Dataset of such items, or a DataLoader of such batches. Inputs are a tuple
            (positional), a dict (keywords), or one argument.
        seed: Handed to a callable; which items of a Dataset, and which batch of a DataLoader.

    Raises:
        SpecError: There is no data.
    """
    if is_fixed(source):
        return pair(source)
    with isolated():  # the user's code may use, and may seed, the global random states
        seed_everything(seed)
        if isinstance(source, DataLoader):
            return pair(_nth(source, seed))
        if isinstance(source, Dataset):
            return pair(default_collate(_items(source, seed)))
        return pair(source(seed))


def pair(batch: Any) -> Batch:
    """Tell inputs from targets: a pair is both, anything else is inputs."""
    if isinstance(batch, Batch):
        return batch
    inputs, targets = batch, None
    if isinstance(batch, (tuple, list)) and not hasattr(batch, "_fields"):
        if len(batch) == 2:
            inputs, targets = batch
        elif len(batch) == 1:
            (inputs,) = batch
        elif isinstance(batch, list):
            inputs = tuple(batch)  # what a DataLoader makes of items of three or more parts
    args, kwargs = split_inputs(inputs)
    made = Batch(args=args, kwargs=kwargs, targets=targets, origin="real")
    places = {tensor.device.type for tensor in made.tensors().values()}
    return made.to(device="cpu") if places - {"cpu", "meta"} else made  # placed once it is complete


def _nth(loader: Iterable[Any], seed: int) -> Any:
    first = list(islice(loader, seed % 4 + 1))
    if not first:
        raise SpecError("batch: the DataLoader gives no batch")
    return first[-1]


def _items(dataset: Dataset[Any], seed: int) -> list[Any]:
    if isinstance(dataset, IterableDataset):
        items = list(islice(dataset, DATASET_ROWS))
    else:
        count = len(dataset)  # type: ignore[arg-type]
        items = [
            dataset[(seed * DATASET_ROWS + i) % count] for i in range(min(DATASET_ROWS, count))
        ]
    if not items:
        raise SpecError("batch: the Dataset has no items")
    return items


def is_dense(value: Any) -> bool:
    """Whether a leaf is a plain tensor, which can be indexed along any axis."""
    return isinstance(value, torch.Tensor) and value.layout == torch.strided and not value.is_nested
