"""What a dataset's labels are: dtype, range, how often each occurs, and which stored column they are."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch

from ..lean import dataclass
from .contents import Contents, Held, is_array
from .describing import Leaf, is_under, leaves
from .snapshot import put_back
from .validity import Survey, read

if TYPE_CHECKING:
    from collections.abc import Sequence

_NAMES = ("label", "labels", "target", "targets", "y", "class_id", "category_id")
_MAPS = 32  # how many label maps (segmentation masks, token rows) are counted value by value


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """Evidence on the labels of one dataset.

    Attributes:
        path: Where they stand in a sample.
        dtype: As the sample holds them, such as ``int``, ``int64``, ``float64``.
        shape: Of one label; ``()`` for a scalar.
        count: How many samples were looked at.
        values: How often each value occurs; empty for floats that are not whole.
        low, high: Over all labels looked at.
        whole: Whether all are whole numbers.
        column: The dataset's own array or list of labels, which the samples agree with, or None.
        shifted: Path of a stored column that the samples agree with only when it is moved by
            ``shift`` places; empty where there is none.
        shift: See there.
        boxed: Whether each label is that of a box beside it: detection models keep class 0 for the background.
        ignored: Path of a stored column with several values of which every sample returns the same
            one; empty where there is none.
    """

    path: str
    dtype: str
    shape: tuple[int, ...]
    count: int
    values: dict[int, int]
    low: float | None
    high: float | None
    whole: bool
    column: Held | None = field(default=None, repr=False)
    shifted: Held | None = field(default=None, repr=False)
    shift: int = 0
    ignored: Held | None = field(default=None, repr=False)
    boxed: bool = False

    @property
    def collated(self) -> torch.dtype | None:
        """The dtype of a batch of float labels by torch's own collate function; None of others."""
        if not self.is_floating:
            return None
        # Python's floats become float64, as torch.utils.data.default_collate says
        found = getattr(torch, "float64" if self.dtype == "float" else self.dtype, None)
        return found if isinstance(found, torch.dtype) else None

    @property
    def is_floating(self) -> bool:
        """Say whether they are floats."""
        return self.dtype.startswith(("float", "bfloat"))


def measure(survey: Survey) -> Labels | None:
    """Describe the labels of the samples read, or return None where no label can be told apart.

    Where the dataset keeps its labels in a column that the samples agree with, all of them are counted.
    """
    path = label_path(survey)
    if path is None:
        return None
    found = [
        (sample.index, leaf)
        for sample in survey.samples
        for leaf in sample.leaves
        if leaf.path == path
    ]
    if not found or found[0][1].kind not in ("number", "tensor", "array"):
        return None
    leaf = found[0][1]
    if all(one.shape in ((), (1,)) for _, one in found):
        return _scalars(survey, path, found)
    values = _count_maps(survey, path) if not leaf.is_floating else Counter[int]()
    return Labels(
        path=path,
        dtype=leaf.dtype,
        shape=leaf.shape,
        count=len(found),
        values=dict(values),
        low=min((one.low for _, one in found if one.low is not None), default=None),
        high=max((one.high for _, one in found if one.high is not None), default=None),
        whole=all(one.whole for _, one in found),
        boxed=_are_boxed(survey, path),
    )


def _are_boxed(survey: Survey, path: str) -> bool:
    """Say whether floats of shape ``(n, 4)`` stand in the same dict as the ``n`` labels of each sample."""
    beside, _, name = path.rpartition(".")

    def boxed(leaves: Sequence[Leaf]) -> bool:
        counts = {(*leaf.shape[:1], 4) for leaf in leaves if leaf.path == path}
        return any(
            leaf.is_floating and leaf.path.rpartition(".")[0] == beside and leaf.shape in counts
            for leaf in leaves
        )

    return not name.isdigit() and all(boxed(sample.leaves) for sample in survey.samples)


def label_path(survey: Survey) -> str | None:
    """Return where the labels stand in a sample, or None where they cannot be told apart."""
    if not survey.samples:
        return None
    sample = survey.samples[0]
    targets = [leaf.path for leaf in sample.targets]
    if len(targets) == 1:
        return targets[0]
    named = [path for path in targets if path.rpartition(".")[2] in _NAMES]
    return named[0] if len(named) == 1 else None


def in_runs(survey: Survey) -> tuple[int, int] | None:
    """Return how many labels were read, and of how many classes, where those of a class stand one after the other.

    None where classes are mixed, where there is one alone, or where too few labels were read to tell.
    """
    path = label_path(survey)
    found = sorted(
        (sample.index, leaf.low)
        for sample in survey.samples
        for leaf in sample.leaves
        if leaf.path == path and leaf.shape in ((), (1,)) and leaf.low is not None and leaf.whole
        and not leaf.is_floating
    )  # fmt: skip
    values = [low for _, low in found]
    classes = len(set(values))
    runs = 1 + sum(a != b for a, b in pairwise(values))
    few = len(values) < max(_RUN * classes, 4 * _RUN)
    return None if few or classes < 2 or runs != classes else (len(values), classes)


_RUN = 4
"""Labels of each class, on average, below which their order may be chance."""


def _scalars(survey: Survey, path: str, found: list[tuple[int, Leaf]]) -> Labels:
    read_values = {index: leaf.low for index, leaf in found if leaf.low is not None}
    leaf = next((one for _, one in found if one.low is not None), found[0][1])
    whole = all(value.is_integer() for value in read_values.values())
    column, shifted, shift, ignored = (
        _columns(survey, read_values) if whole else (None, None, 0, None)
    )
    counted: Sequence[Any] = (
        _as_list(column.value) if column is not None else list(read_values.values())
    )
    return Labels(
        path=path,
        dtype=leaf.dtype,
        shape=leaf.shape,
        count=len(counted),
        values=dict(Counter(int(value) for value in counted)) if whole else {},
        low=float(min(counted)) if counted else None,
        high=float(max(counted)) if counted else None,
        whole=whole,
        column=column,
        shifted=shifted,
        shift=shift,
        ignored=ignored,
        boxed=_are_boxed(survey, path),
    )


def _columns(
    survey: Survey, values: dict[int, float]
) -> tuple[Held | None, Held | None, int, Held | None]:
    """Find the stored column that the labels are, or that they would be if they were not shifted."""
    count = survey.count
    if count is None or not values or not survey.part.is_map_style:
        return None, None, 0, None
    shifted: tuple[Held, int] | None = None
    ignored: Held | None = None
    for held in _candidates(survey):
        stored = _as_list(held.value)
        if all(stored[index] == value for index, value in values.items()):
            return held, None, 0, None
        if len(set(values.values())) == 1 and len(values) >= 8:
            # the first element, whatever the index: only then is it this column that was misread
            if (
                len(set(stored)) > 1
                and next(iter(values.values())) == stored[0]
                and ignored is None
            ):
                ignored = held
            continue
        for shift in (-1, 1):
            if len(set(stored)) > 1 and all(
                stored[(index + shift) % count] == value for index, value in values.items()
            ):
                shifted = shifted or (held, shift)
    return None, shifted[0] if shifted else None, shifted[1] if shifted else 0, ignored


def _candidates(survey: Survey) -> list[Held]:
    contents = Contents(survey.part.dataset, tuple(sample.index for sample in survey.samples))
    return [
        held
        for held in (*contents.arrays, *contents.containers)
        if _is_column(held.value) and len(held.value) == survey.count
    ]


def _is_column(value: Any) -> bool:
    if is_array(value):
        return len(value.shape) == 1 or (len(value.shape) == 2 and value.shape[1] == 1)
    return isinstance(value, list | tuple) and all(
        issubclass(kind, int | float) and kind is not bool for kind in set(map(type, value))
    )


def _as_list(value: Any) -> list[Any]:
    if isinstance(value, torch.Tensor):
        flat: list[Any] = value.detach().reshape(-1).tolist()
        return flat
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray):
        return list(value.reshape(-1).tolist())
    return list(value)


def _count_maps(survey: Survey, path: str) -> Counter[int]:
    """Count the values of labels that are not scalars, in the first samples."""
    found: Counter[int] = Counter()
    part = survey.part
    if not part.is_map_style:
        return found
    places = tuple(sample.index for sample in survey.samples[:_MAPS])
    with put_back(part.dataset, places):
        for index in places:
            for one, value in leaves(read(part.dataset, index, survey.seed + index)):
                if is_under(one, path):
                    values, counts = torch.unique(torch.as_tensor(value), return_counts=True)
                    found.update(dict(zip(values.tolist(), counts.tolist(), strict=True)))
    return found
