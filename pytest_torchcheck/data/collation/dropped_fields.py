"""Does a part of a sample still reach the batch where another part is long?

Each field of a sample is exchanged for that of another sample. A batch that stays the same does not
read it. Where the batch of most samples does, and that of a long one does again once another field of
it is cut short, it was cut off by the length of that field.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from ... import sources
from ...findings import Culprit, Finding
from ...lean import dataclass
from ...verdicts import suspicious, violated
from ..wording import called, line_ref, where
from .pairing import collated, label_path, lines_like

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...batches import Batch
    from ...findings import Location
    from ..describing import Leaf
    from ..labels import Labels
    from ..plan import Part
    from ..validity import Survey

_MOST = 8
"""How many samples are tried, from the shortest to the longest."""
_LEAST = 2
"""How many samples must lose the field, and how many must not."""
_DONORS = 2
_SEEDS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """A field of some samples that their batch does not read.

    Attributes:
        field: Its name.
        by: The field that is so long there.
        samples: Their indices.
        tried: How many samples were tried.
        length: Of the other field, in the first of them.
        unlabelled: How many of them have no label of 0 or above in the batch; None where it shows none.
        cut: The one line that the collate function runs which slices up to an end.
    """

    field: str
    by: str
    samples: tuple[int, ...]
    tried: int
    length: int
    unlabelled: int | None
    cut: Location | None


def dropped_of(survey: Survey) -> Dropped | None:
    """Exchange the fields of samples one by one; None where every field is read alike."""
    part = survey.part
    step = max(1, len(survey.samples) // (2 * _MOST))
    indices = [sample.index for sample in survey.samples[::step]][: 2 * _MOST]
    kept: dict[int, dict[str, Any]] = {}

    def keep(_: Any, samples: list[Any]) -> dict[str, torch.Tensor]:
        kept.update({i: dict(s) for i, s in zip(indices, samples, strict=True) if _fields(s)})
        return {}

    collated(part, indices, survey.seed, keep)
    names = set.intersection(*map(set, kept.values())) if len(kept) == len(indices) >= 4 else set()
    long = sorted(name for name in names if all(_length(s[name]) for s in kept.values()))
    if len(long) < 2:
        return None
    order = sorted(indices, key=lambda i: sum(_length(kept[i][n]) for n in long))
    last, count = len(order) - 1, min(_MOST, len(order))
    chosen = [order[place * last // (count - 1)] for place in range(count)]
    batches = _Batches(part, survey.seed)
    if _draws(part, survey.seed, kept[order[-1]]):
        return None
    for name in long:
        lost = [i for i in chosen if batches.reads(kept, i, name) is False]
        if len(lost) < _LEAST or len(chosen) - len(lost) < _LEAST:
            continue
        for other in (n for n in long if n != name):
            short = {i: {**kept[i], other: kept[i][other][:1]} for i in lost}
            if all(batches.reads({**kept, i: short[i]}, i, name) for i in lost):
                return Dropped(
                    field=name,
                    by=other,
                    samples=tuple(lost),
                    tried=len(chosen),
                    length=_length(kept[lost[0]][other]),
                    unlabelled=batches.unlabelled([kept[i] for i in lost]),
                    cut=lines_like(part, lost[:1], survey.seed, _cuts)[0],
                )
    return None


class _Batches:
    """Batches of one sample, as the collate function makes them."""

    def __init__(self, part: Part, seed: int) -> None:
        self._part, self._seed = part, seed

    def of(self, sample: Mapping[str, Any]) -> dict[str, torch.Tensor] | None:
        """Return the tensors of a batch; None where the collate function refuses the sample."""
        try:
            return collated(
                self._part,
                (),
                self._seed,
                lambda collate, _: collate([copy.deepcopy(dict(sample))]),
            )
        except Exception:  # an exchanged field may not fit the others
            return None

    def reads(self, samples: Mapping[int, dict[str, Any]], index: int, name: str) -> bool | None:
        """Say whether the batch of a sample changes with a field; None where no other value could be tried."""
        sample, base = samples[index], self.of(samples[index])
        again = self.of(sample)
        if base is None or again is None or not _same(base, again):
            return None
        tried = 0
        for other in samples.values():
            if tried == _DONORS:
                break
            if repr(other[name]) == repr(sample[name]):
                continue
            tried += 1
            made = self.of({**sample, name: other[name]})
            if made is None or not _same(base, made):
                return True
        return False if tried else None

    def unlabelled(self, samples: Sequence[dict[str, Any]]) -> int | None:
        """Return how many samples have no label that counts; None where their batches show no labels."""
        batches = [batch for sample in samples if (batch := self.of(sample)) is not None]
        paths = [label_path(batch) for batch in batches]
        if not paths or None in paths:
            return None
        return sum(bool((b[p] < 0).all()) for b, p in zip(batches, paths, strict=True) if p)


def _draws(part: Part, seed: int, sample: dict[str, Any]) -> bool:
    """Say whether the batch of a sample changes with the seed: a random crop loses a field now and then."""
    made = [_Batches(part, seed + n).of(sample) for n in range(_SEEDS)]
    first = made[0]
    return first is None or any(other is None or not _same(first, other) for other in made[1:])


def _fields(sample: Any) -> bool:
    return isinstance(sample, Mapping) and all(isinstance(name, str) for name in sample)


def _length(value: Any) -> int:
    """Return the length of a sequence: a list of numbers, a text, a tensor of one dimension; else 0."""
    if isinstance(value, torch.Tensor):
        return value.shape[0] if value.dim() == 1 else 0
    return len(value) if isinstance(value, list | tuple | str) else 0


def _same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return set(a) == set(b) and all(torch.equal(a[name], b[name]) for name in a)


def _cuts(node: ast.AST) -> bool:
    """Say whether an expression takes the first part of a sequence: ``values[:most]``."""
    part = node.slice if isinstance(node, ast.Subscript) else None
    if not isinstance(part, ast.Slice) or part.upper is None:
        return False
    return part.lower is None and not isinstance(part.upper, ast.UnaryOp)


def field_dropped(part: Part, found: Dropped) -> Finding:
    """A collate function cuts a field off where another one is long."""
    collate: Any = part.plan.collate_fn
    name = called(collate)
    place = found.cut or sources.of_object(collate)
    one = found.samples[0]
    empty = found.unlabelled == len(found.samples)
    make = violated if empty else suspicious
    rest = "; none of their labels counts" if empty else ""
    return make(
        "collate-drops-field",
        f"{part.prefix}{name} drops {found.field!r} of {len(found.samples)} of {found.tried} samples{rest}",
        culprits=(
            Culprit("dataset", found.field, "does not reach the batch", place),
            *([Culprit("dataset", "labels", "are all negative", place)] if empty else []),
            Culprit("function", name, "collate function", sources.of_object(collate)),
        ),
        location=place,
        observed=f"sample {one}, whose {found.by!r} has {found.length} entries, gives the same batch with "
        f"{found.field!r} of other samples",
        cause=f"what is left of a sample is chosen by its length alone, and {found.by!r} takes all of it",
        because=f"with {found.by!r} cut to its first entry, the batch changes with {found.field!r} again",
        fix=f"cut {found.by!r} at {line_ref(place)}, so that {found.field!r} fits, or leave such samples out",
        evidence={"samples": list(found.samples)},
    )


def why_no_label(
    found: Survey, labels: Labels, batch: Batch | None, wants_float: bool | None
) -> str | None:
    """Say why a field that stands where labels do is not what the contract's targets are; None where it may be.

    A data set may serve another purpose than the contract's targets: pairs of views, of sentences or of
    noisy and clean signals have no label. Their last field has other axes than the targets have, or is of
    the kind of the field beside it.

    Args:
        found: The samples.
        labels: What stands last in them.
        batch: The contract's own batch, where it has targets.
        wants_float: Whether the targets are floats, as far as declared.
    """
    shape = f"{where(labels.path)}, {labels.dtype} {list(labels.shape)},"
    twin = _twin(found, labels)
    due = _axes_due(found, batch)
    if (
        due is not None
        and _axes(labels.shape) not in due
        and ((labels.is_floating and found.part.plan.collate_fn is None) or twin is not None)
    ):
        return f"{shape} has other axes than the target of a sample in the contract's batch"
    if wants_float is None or labels.is_floating == wants_float:
        return None
    if not _axes(labels.shape):
        own = _class_beside(found) if labels.is_floating else None
        told = f"holds whole numbers, as the contract's targets are, and {shape} does not"
        return None if own is None else f"{where(own)} {told}"
    if labels.is_floating and not labels.whole:
        return f"the contract's targets are whole numbers, and {shape} holds fractions"
    if twin is not None:
        return f"{shape} is like {where(twin)}, and not of the dtype of the contract's targets"
    return None


def _twin(found: Survey, labels: Labels) -> str | None:
    """Return the path of an input of the first sample that is like the last field, or None."""
    sample = found.samples[0]
    leaves: tuple[Leaf, ...] = sample.inputs
    return next(
        (
            leaf.path
            for leaf in leaves
            if _axes(labels.shape)
            and _axes(leaf.shape) == _axes(labels.shape)
            and (leaf.dtype, leaf.whole) == (labels.dtype, labels.whole)
        ),
        None,
    )


def _class_beside(found: Survey) -> str | None:
    """Return the path of a whole number beside the last field, other than the sample's own index, or None.

    The last field may then be a weight, a score or another quantity of the sample.
    """
    for leaf in found.samples[0].inputs:
        if leaf.is_floating or leaf.dtype == "bool" or _axes(leaf.shape) or leaf.low is None:
            continue
        values = [
            (one.low, sample.index)
            for sample in found.samples
            for one in sample.inputs
            if one.path == leaf.path
        ]
        if len({low for low, _ in values}) > 1 and any(low != index for low, index in values):
            return leaf.path
    return None


def _axes_due(found: Survey, batch: Batch | None) -> set[int] | None:
    """Return how many axes longer than 1 the target of one sample may have, or None where that is unknown."""
    targets = None if batch is None else batch.targets
    if batch is None or not isinstance(targets, torch.Tensor) or not targets.dim():
        return None
    rows = {
        leaf.shape[0]
        for _, leaf in batch.input_leaves()
        if isinstance(leaf, torch.Tensor) and leaf.dim()
    }
    if rows != {targets.shape[0]}:
        return None  # targets of several positions may be flattened with the batch
    whole_batches = not found.part.plan.makes_batches
    return {_axes(targets.shape[1:]), *([_axes(targets.shape)] if whole_batches else [])}


def _axes(shape: tuple[int, ...] | torch.Size) -> int:
    return sum(1 for size in shape if size != 1)
