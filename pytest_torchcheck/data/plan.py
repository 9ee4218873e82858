"""How a dataset is read: the declared DataLoader, or its arguments, as one value."""

from __future__ import annotations

import contextlib
import operator
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    default_collate,
)

from .. import sources
from ..lean import dataclass
from ..objects.peek import attribute, signature_of
from ..state import isolated, seed_process
from .contents import Contents
from .snapshot import Snapshot, put_back

if TYPE_CHECKING:
    from ..findings import Location

EVALUATION_ROLES = ("eval", "evaluation", "val", "valid", "validation", "test")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderPlan:
    """What a DataLoader was told; fields are those of :class:`torch.utils.data.DataLoader`.

    Attributes:
        declared: False where the contract says nothing of a loader; the rest are then torch's defaults.
        start_method: ``spawn``, ``forkserver``, ``fork``, or None where the platform decides.
        collate_fn: None for torch's own.
        sampler: None for sequential order, or random order where ``shuffle`` is set.
        batch_size: None where the dataset or a batch sampler makes the batches.
    """

    declared: bool
    batch_size: int | None = 1
    shuffle: bool = False
    sampler: Any = None
    batch_sampler: Any = None
    num_workers: int = 0
    collate_fn: Callable[..., Any] | None = None
    drop_last: bool = False
    worker_init_fn: Callable[[int], None] | None = None
    start_method: str | None = None
    generator: Any = None
    persistent_workers: bool = False
    loader: DataLoader[Any] | None = None

    @classmethod
    def of(cls, loader: Any) -> LoaderPlan:
        """Read a DataLoader, a mapping of its arguments, or None."""
        if loader is None:
            return cls(declared=False)
        if isinstance(loader, DataLoader):
            return cls._of_loader(loader)
        arguments = dict(loader)
        context = arguments.get("multiprocessing_context")
        collate = arguments.get("collate_fn")
        return cls(
            declared=True,
            batch_size=arguments.get("batch_size", 1)
            if arguments.get("batch_sampler") is None
            else None,
            shuffle=bool(arguments.get("shuffle")),
            sampler=arguments.get("sampler"),
            batch_sampler=arguments.get("batch_sampler"),
            num_workers=int(arguments.get("num_workers", 0) or 0),
            collate_fn=None if collate is default_collate else collate,
            drop_last=bool(arguments.get("drop_last")),
            worker_init_fn=arguments.get("worker_init_fn"),
            start_method=context if isinstance(context, str) else _start_method(context),
            generator=arguments.get("generator"),
            persistent_workers=bool(arguments.get("persistent_workers")),
        )

    @classmethod
    def _of_loader(cls, loader: DataLoader[Any]) -> LoaderPlan:
        sampler = attribute(loader, "sampler")
        batch_sampler = loader.batch_sampler
        own_batches = batch_sampler is not None and type(batch_sampler) is not BatchSampler
        return cls(
            declared=True,
            batch_size=None if own_batches else loader.batch_size,
            shuffle=isinstance(sampler, RandomSampler),
            sampler=None
            if type(sampler) in (RandomSampler, SequentialSampler)
            else _real_sampler(sampler),
            batch_sampler=batch_sampler if own_batches else None,
            num_workers=loader.num_workers,
            collate_fn=None if _is_default(loader.collate_fn) else loader.collate_fn,
            drop_last=loader.drop_last,
            worker_init_fn=loader.worker_init_fn,
            start_method=_start_method(loader.multiprocessing_context),
            generator=loader.generator,
            persistent_workers=loader.persistent_workers,
            loader=loader,
        )

    @property
    def collate(self) -> Callable[[list[Any]], Any]:
        """The function that makes a batch of samples."""
        return self.collate_fn if self.collate_fn is not None else default_collate

    @property
    def makes_batches(self) -> bool:
        """Say whether the loader collates samples (and the dataset does not return whole batches)."""
        return self.batch_size is not None or self.batch_sampler is not None


def _is_default(collate: Any) -> bool:
    return getattr(collate, "__module__", "") == "torch.utils.data._utils.collate"


def _start_method(context: Any) -> str | None:
    return None if context is None else str(context.get_start_method())


def _real_sampler(sampler: Any) -> Any:
    return sampler if isinstance(sampler, Sampler) or hasattr(sampler, "__iter__") else None


class Keyed:
    """A dataset that its loader reads by keys of another kind than whole numbers, read by their places in an epoch.

    Args:
        dataset: The dataset.
        whole: Whether each key stands for a batch, which the dataset makes itself.
    """

    def __init__(self, dataset: Any, *, whole: bool) -> None:
        self.dataset, self.whole = dataset, whole
        self.keys: list[Any] = []
        self.places: dict[str, int] = {}
        self.count = 0

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, place: int) -> Any:
        return self.dataset[self.keys[place]]

    def place(self, key: Any) -> int:
        """Return the number of a key; one that was not seen before, such as a size that is drawn, gets the next."""
        found = self.places.setdefault(repr(key), len(self.keys))
        if found == len(self.keys):
            self.keys.append(key)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One dataset of a contract, with the loader that reads it.

    Attributes:
        role: Key under which it was declared (``train``, ``eval``), or empty for a single one.
        dataset: The dataset.
        plan: How it is read.
    """

    role: str
    dataset: Any
    plan: LoaderPlan

    @property
    def prefix(self) -> str:
        """What goes before a name in this part: ``train: `` or nothing."""
        return f"{self.role}: " if self.role else ""

    @property
    def name(self) -> str:
        """The dataset's class, as its user calls it."""
        keyed = isinstance(self.dataset, Keyed)
        return type(self.dataset.dataset if keyed else self.dataset).__name__

    @property
    def own(self) -> Any:
        """The dataset whose class the user wrote, where torch's Subset or ConcatDataset stands around it."""
        found = self.dataset
        for _ in range(8):
            if sources.of_user_object(type(found)) is not None:
                return found
            inner = getattr(found, "dataset", None)
            if inner is None:
                several = getattr(found, "datasets", None)
                inner = several[0] if isinstance(several, list | tuple) and several else None
            if inner is None:
                break
            found = inner
        return self.dataset

    @property
    def class_line(self) -> Location | None:
        """Where the class of the dataset is defined; None where torch has it."""
        return sources.of_user_object(type(self.own))

    @property
    def evaluates(self) -> bool:
        """Say whether this part is for evaluation by its role."""
        return self.role in EVALUATION_ROLES

    @property
    def reads_in_order(self) -> bool:
        """Say whether this part is for training by its role, and its loader is told to read it in the order it has."""
        plan = self.plan
        own = plan.sampler is not None or plan.batch_sampler is not None
        return plan.declared and self.role.startswith("train") and not (plan.shuffle or own)

    @property
    def is_map_style(self) -> bool:
        """Say whether samples are read by index."""
        return (
            hasattr(self.dataset, "__getitem__")
            and hasattr(self.dataset, "__len__")
            and not isinstance(self.dataset, IterableDataset)
        )

    @property
    def length(self) -> int:
        """How many samples a map-style dataset says it has."""
        return len(self.dataset)


def parts(dataset: Any, loader: Any) -> tuple[Part, ...]:
    """Pair the datasets of a contract with their loaders.

    Args:
        dataset: A dataset, or a mapping from role to one. None takes the loader's own.
        loader: A DataLoader, its arguments, or a mapping from role to either; arguments that stand
            beside roles count for every role.
    """
    loaders = loader if isinstance(loader, Mapping) else {}
    roles = {key for key, value in loaders.items() if isinstance(value, DataLoader | Mapping)}
    shared = {key: value for key, value in loaders.items() if key not in roles}
    if isinstance(dataset, Mapping) and not isinstance(dataset, Dataset):
        found = []
        for role, one in dataset.items():
            own = loaders.get(role) if role in roles else loader if not roles else shared or None
            if isinstance(own, Mapping):
                own = {**shared, **own} if role in roles else own
            elif isinstance(own, DataLoader) and role not in roles and own.dataset is not one:
                # one DataLoader reads one dataset: where there is no other, this one if it is its twin
                own = own if len(dataset) == 1 and _is_twin(own.dataset, one) else None
            found.append(Part(role=str(role), dataset=one, plan=LoaderPlan.of(own)))
        return tuple(found)
    if dataset is None:
        dataset = loader.dataset
    return (Part(role="", dataset=dataset, plan=LoaderPlan.of(loader)),)


def _is_twin(one: Any, other: Any) -> bool:
    """Say whether two datasets are of one class and length: one that is made twice, for the loader and the contract."""
    try:
        return type(one) is type(other) and len(one) == len(other)
    except Exception:  # one without a length, or of which the user's code raises
        return False


def by_keys(part: Part) -> Part:
    """Return the part with a dataset of as many samples as its sampler draws keys, where only these are read.

    Keys are what is no whole number, such as a name, and lists of numbers that the dataset takes at once. A sampler
    is asked only where the dataset does not take 0: its first epoch may use it up.
    """
    own = part.plan.sampler if part.plan.sampler is not None else part.plan.batch_sampler
    if own is None or not hasattr(part.dataset, "__getitem__") or _reads(part, 0):
        return part
    keyed = Keyed(part.dataset, whole=not part.plan.makes_batches)
    with isolated(), kept_samplers(part):
        seed_process(0)
        try:
            for batch in islice(_drawn(part, whole=keyed.whole), MOST_INDICES):
                if not keyed.keys and _takes_numbers(part, batch[0]):
                    return part
                for key in batch:
                    keyed.place(key)
        except Exception:  # a sampler may raise anything; the check of the order reports it
            return part
    keyed.count = len(keyed.keys)
    return replace(part, dataset=keyed) if keyed.keys else part


def _takes_numbers(part: Part, key: Any) -> bool:
    """Say whether a dataset is read by whole numbers, of which a key is one, or a list."""
    if isinstance(key, list | tuple) and not part.plan.makes_batches:
        return all(map(_is_number, key)) and (
            _reads(part, key[0] if key else 0) or not _reads(part, key)
        )
    return _is_number(key)


def _is_number(key: Any) -> bool:
    try:
        return bool(operator.index(key) == key)
    except (TypeError, ValueError, RuntimeError):
        return False


def number_of(key: Any) -> int:
    """Return an index as a number; of a key that is none, the same one for the same key."""
    return operator.index(key) if _is_number(key) else zlib.crc32(repr(key).encode())


def _reads(part: Part, key: Any) -> bool:
    with put_back(part.dataset):
        try:
            part.dataset[key]
        except Exception:  # the user's dataset may raise anything
            return False
    return True


def indices(part: Part) -> Iterator[list[int]]:
    """Yield the batches of indices of one epoch, as the declared loader would draw them.

    Draws from the global generators as the loader does: seed them first.
    """
    if isinstance(keyed := part.dataset, Keyed):
        for batch in _drawn(part, whole=keyed.whole):
            yield list(map(keyed.place, batch))
    else:
        yield from _drawn(part, whole=False)


def _drawn(part: Part, *, whole: bool) -> Iterator[list[Any]]:
    """Yield what the samplers draw; each by itself where ``whole``, though it is a list."""
    plan = part.plan
    if plan.loader is not None:
        source = plan.loader._index_sampler
        listed = (list, tuple) if not whole else ()
        yield from (list(one) if isinstance(one, listed) else [one] for one in source)
        return
    if plan.batch_sampler is not None:
        yield from (list(one) for one in plan.batch_sampler)
        return
    sampler = plan.sampler
    if sampler is None:
        sampler = (
            RandomSampler(part.dataset, generator=plan.generator)
            if plan.shuffle
            else SequentialSampler(part.dataset)
        )
    if plan.batch_size is None:
        yield from ([one] for one in sampler)
    else:
        yield from BatchSampler(sampler, plan.batch_size, plan.drop_last)


def accepts(function: Callable[..., Any], count: int) -> bool:
    """Say whether a callable takes so many positional arguments, as far as its signature tells."""
    signature = signature_of(function)
    try:
        return signature is None or bool(signature.bind(*range(count)))
    except TypeError:
        return False


MOST_INDICES = 20_000
"""How many indices, or batches of them, are drawn of one epoch at most."""


@contextlib.contextmanager
def kept_samplers(part: Part) -> Iterator[None]:
    """Put back, on every way out, the loader of a dataset, its samplers and its generator."""
    plan = part.plan
    held = [one for one in (plan.loader, plan.sampler, plan.batch_sampler) if one is not None]
    snapshots = [Snapshot(Contents(one)) for one in held]
    state = plan.generator.get_state() if plan.generator is not None else None
    try:
        yield
    finally:
        for snapshot in snapshots:
            snapshot.restore()
        if plan.generator is not None:
            plan.generator.set_state(state)


def sampler_of(part: Part) -> Any:
    """Return the object that decides the order by the user's code, or None for torch's own."""
    plan = part.plan
    own = plan.batch_sampler if plan.batch_sampler is not None else plan.sampler
    inner = getattr(own, "sampler", None)
    return (
        inner
        if inner is not None and (type(own) is BatchSampler or hasattr(inner, "set_epoch"))
        else own
    )
