"""What the loaders of a loop deliver on one rank: which samples, in which order, in batches of which sizes."""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import field
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from .. import sources
from ..lean import dataclass
from ..objects import trees
from ..state import seed_everything

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..findings import Location

_PROBED = 4
_HASHED_BYTES = 1 << 16


@dataclass(slots=True)
class Pass:
    """One time through a loader.

    Attributes:
        dataset: Number of the dataset, in the order in which datasets were first read.
        location: The user's line that started it.
        sampler: Class of what decides the order.
        renewable: Whether it has ``set_epoch``.
        epoch: Its epoch at the start, where it tells.
        indices: Of the samples, in the order drawn; empty for streams.
        sizes: Samples in each batch delivered.
        contents: A digest of each batch delivered.
        steps: How often an optimizer stepped meanwhile.
    """

    dataset: int
    location: Location | None
    sampler: str
    renewable: bool
    epoch: int | None
    indices: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    contents: list[str] = field(default_factory=list)
    steps: int = 0

    @property
    def is_shuffled(self) -> bool:
        """Say whether the order is another one than that of the dataset."""
        return self.indices != sorted(self.indices)


class Recorder:
    """Watches every DataLoader of this process while active.

    Args:
        changed: Called whenever something was noted.
    """

    def __init__(self, changed: Callable[[], None]) -> None:
        self.passes: list[Pass] = []
        self._changed = changed
        self._datasets: list[
            Any
        ] = []  # kept alive, so that no other dataset takes its place in memory
        self._open: dict[int, Pass] = {}
        self._loaders: list[Any] = []
        self._delivering: Pass | None = None

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Patch the loader's own iteration; private names of torch are only read here."""
        recorder = self
        start, following = DataLoader.__iter__, _BaseDataLoaderIter.__next__
        index = DataLoader._index_sampler.fget  # type: ignore[attr-defined]

        def begin(loader: Any) -> Any:
            noted = recorder._begin(loader)
            made = start(loader)
            made._torchcheck_pass = noted  # type: ignore[attr-defined]
            return made

        def deliver(iterator: Any) -> Any:
            batch = following(iterator)
            noted = getattr(iterator, "_torchcheck_pass", None)
            if noted is not None:
                noted.sizes.append(_size(batch))
                noted.contents.append(_digest(batch))
                recorder._delivering = noted
                recorder._changed()
            return batch

        handle = register_optimizer_step_pre_hook(lambda *_: self._stepped())
        with (
            handle,
            mock.patch.object(DataLoader, "__iter__", begin),
            mock.patch.object(_BaseDataLoaderIter, "__next__", deliver),
            mock.patch.object(
                DataLoader, "_index_sampler", property(lambda loader: _Noted(recorder, loader, index(loader)))
            ),
        ):  # fmt: skip
            yield

    def _begin(self, loader: Any) -> Pass:
        if not any(known is loader.dataset for known in self._datasets):
            self._datasets.append(loader.dataset)
        number = next(i for i, known in enumerate(self._datasets) if known is loader.dataset)
        candidates = [
            loader.batch_sampler,
            getattr(loader.batch_sampler, "sampler", None),
            loader.sampler,
            loader.dataset,
        ]
        renewable = next((c for c in candidates if hasattr(c, "set_epoch")), None)
        epoch = getattr(renewable, "epoch", None)
        noted = Pass(
            dataset=number,
            location=sources.of_frame(skip=2),
            sampler=type(renewable if renewable is not None else loader.sampler).__name__,
            renewable=renewable is not None,
            epoch=epoch if isinstance(epoch, int) else None,
        )
        self.passes.append(noted)
        self._loaders.append(loader)
        self._open[id(loader)] = noted
        self._changed()
        return noted

    def drawn(self, loader: Any, index: Any) -> None:
        """Note indices that a sampler gave."""
        noted = self._open.get(id(loader))
        if noted is not None:
            parts = index if isinstance(index, list | tuple) else [index]
            noted.indices += [int(part) for part in parts if isinstance(part, int | torch.Tensor)]

    def _stepped(self) -> None:
        # an evaluation in the middle of an epoch is not what the next step trains on
        if self._delivering is not None:
            self._delivering.steps += 1
            self._changed()

    def probes(self, seed: int) -> list[list[str]]:
        """Return digests of the first samples of every dataset, to tell one dataset from its parts."""
        return [_probe(dataset, seed) for dataset in self._datasets]


class _Noted:
    """A sampler that tells the recorder what it gives."""

    def __init__(self, recorder: Recorder, loader: Any, inner: Any) -> None:
        self._recorder, self._loader, self._inner = recorder, loader, inner

    def __iter__(self) -> Iterator[Any]:
        for index in self._inner:
            if not isinstance(self._loader.dataset, torch.utils.data.IterableDataset):
                self._recorder.drawn(self._loader, index)
            yield index

    def __len__(self) -> int:
        return len(self._inner)


def _size(batch: Any) -> int:
    for tensor in trees.tensors(batch).values():
        return len(tensor) if tensor.dim() else 1
    return 1


def _digest(value: Any) -> str:
    made = hashlib.sha256()
    for path, tensor in trees.tensors(value).items():
        flat = trees.dense(tensor.detach()).cpu().contiguous().reshape(-1)
        data = flat.view(torch.uint8)[:_HASHED_BYTES] if flat.numel() else flat
        made.update(f"{path}{tensor.dtype}{tuple(tensor.shape)}".encode() + data.numpy().tobytes())
    return made.hexdigest()[:16]


def _probe(dataset: Any, seed: int) -> list[str]:
    if isinstance(dataset, torch.utils.data.IterableDataset) or not hasattr(dataset, "__len__"):
        return []
    found = []
    for index in range(min(_PROBED, len(dataset))):
        seed_everything(seed)
        try:
            found.append(_digest(dataset[index]))
        except Exception:  # a dataset may refuse any index; then nothing is known of it
            return []
    return found
