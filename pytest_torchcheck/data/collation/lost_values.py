"""Does each field of each sample reach the batch?

A field of one sample is exchanged for that of a sample outside of the batch. A batch that stays the same does not
read it: where it is read at some places of a batch and not at others, whichever samples stand there, or where no
field but the labels is read, values are lost. So are fractions that whole numbers of the batch cut off.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import torch

from ... import sources
from ...explanation import listed
from ...findings import Culprit, Finding
from ...lean import dataclass
from ...objects import trees
from ...state import seed_process
from ...verdicts import suspicious, violated
from ..wording import called
from .pairing import LABELS, collated

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..plan import Part
    from ..validity import Survey

_PLAIN = (str, bytes, int, float, bool, type(None))
_FEW, _MOST, _DONORS = 4, 32, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """What of the samples does not reach their batch; plain data.

    Attributes:
        how: Fields of all samples, fields at some places of a batch, or fractions.
        fields: Their names.
        places: In a batch of ``size`` samples, where they are not read.
        size: How many samples were collated.
        own, got: A value of a sample, and what the batch holds for it.
    """

    how: Literal["unread", "places", "fractions"]
    fields: tuple[str, ...]
    places: tuple[int, ...] = ()
    size: int
    own: str = ""
    got: str = ""


def lost_of(survey: Survey) -> Lost | None:
    """Exchange fields of single samples; None where all reach the batch, and where nothing can be said."""
    part = survey.part
    size = min(part.plan.batch_size or 0, len(survey.samples) - _DONORS)
    found: list[Lost | None] = []

    def run(collate: Callable[[Any], Any], samples: Sequence[Any]) -> dict[str, torch.Tensor]:
        def made(chosen: Sequence[Any], seed: int) -> dict[str, Any] | None:
            seed_process(survey.seed + seed)
            try:
                batch = dict(trees.leaves(collate(copy.deepcopy(list(chosen))), "batch"))
            except Exception:  # an exchanged field may not fit the others
                return None
            known = all(trees.is_tensor(leaf) or type(leaf) in _PLAIN for leaf in batch.values())
            return batch if known else None  # what an image of another library holds is not seen

        own, donors = samples[:-_DONORS], samples[-_DONORS:]
        found.append(_fractions(own, made(own, 0)) or _unread(own, donors, made))
        return {}

    for count in dict.fromkeys((min(size, _FEW), min(size, _MOST))):
        indices = [sample.index for sample in survey.samples[: count + _DONORS]]
        if count < 2:
            return None
        try:
            collated(part, indices, survey.seed, run)
        except Exception:  # samples-valid says what a sample raises
            return None
        if not found or found[-1] is None:
            return None
    return found[-1]


def _unread(samples: Sequence[Any], donors: Sequence[Any], made: Any) -> Lost | None:
    """Exchange each field at each place; where some are not read, again in another order and with another seed."""
    fields = [_fields(sample) for sample in (*samples, *donors)]
    if any(own.keys() != fields[0].keys() for own in fields):
        return None
    first = _read(samples, donors, made, 0, list(fields[0]))
    keys = [key for key, own in (first or {}).items() if False in own]
    if first is None or not keys:
        return None
    turned = [*samples[1:], samples[0]]
    for again in (_read(turned, donors, made, 0, keys), _read(samples, donors, made, 1, keys)):
        keys = [key for key in keys if again is not None and _agree(first[key], again[key])]
    size = len(samples)
    for key in keys:
        if True in first[key]:
            places = [place for place, read in enumerate(first[key]) if read is False]
            return Lost(how="places", fields=(_name(key),), places=tuple(places), size=size)
    inputs = [key for key in first if not _is_label(key, list(first))] or list(first)
    if all(key in keys for key in inputs):
        return Lost(how="unread", fields=tuple(map(_name, inputs)), size=size)
    return None  # a field that no batch reads, such as an identifier


def _agree(one: list[bool | None], other: list[bool | None]) -> bool:
    return all(None in pair or len(set(pair)) == 1 for pair in zip(one, other, strict=True))


def _read(
    samples: Sequence[Any], donors: Sequence[Any], made: Any, seed: int, keys: Sequence[Any]
) -> dict[Any, list[bool | None]] | None:
    """Return, by field and place, whether the batch reads it; None for what cannot be told."""
    base, again = made(samples, seed), made(samples, seed)
    if not base or again is None or not _same(base, again):
        return None
    found: dict[Any, list[bool | None]] = {}
    for key in keys:
        found[key] = []
        for place, sample in enumerate(samples):
            own = _fields(sample)[key]
            others = [o for d in donors if repr(o := _fields(d)[key]) != repr(own)]
            batches = [
                made([*samples[:place], _with(sample, key, other), *samples[place + 1 :]], seed)
                for other in others
            ]
            changed = any(batch is None or not _same(base, batch) for batch in batches)
            found[key].append(changed if batches else None)
    return found


def _fractions(samples: Sequence[Any], batch: dict[str, Any] | None) -> Lost | None:
    """Look for whole numbers of the batch that are a field of its samples with the fractions cut off."""
    for key in _fields(samples[0]) if batch else ():
        try:
            own = torch.stack([torch.as_tensor(_fields(sample)[key]) for sample in samples])
        except (TypeError, ValueError, RuntimeError, KeyError):
            continue
        tensors = trees.tensors(batch).values()
        like = [t.detach().cpu() for t in tensors if t.shape == own.shape]
        whole = own.is_floating_point() and 2 * int((own.frac() != 0).sum()) > own.numel()
        if not whole or any(t.is_floating_point() for t in like):
            continue
        for cut in like:
            rounded = any(torch.equal(cut.to(own), by(own)) for by in (torch.trunc, torch.round))
            if rounded and len(cut.unique()) > 1 and cut.dtype != torch.bool:
                return Lost(
                    how="fractions", fields=(_name(key),), size=len(samples),
                    own=f"{float(own.flatten()[0]):.4g}", got=str(int(cut.flatten()[0])),
                )  # fmt: skip
    return None


def _fields(sample: Any) -> dict[Any, Any]:
    if isinstance(sample, Mapping):
        return dict(sample)
    return dict(enumerate(sample)) if isinstance(sample, tuple | list) else {None: sample}


def _with(sample: Any, key: Any, value: Any) -> Any:
    if isinstance(sample, Mapping):
        return {**sample, key: value}
    if not isinstance(sample, tuple | list):
        return value
    made = [*sample[:key], value, *sample[key + 1 :]]
    return type(sample)(*made) if hasattr(sample, "_fields") else type(sample)(made)


def _is_label(key: Any, keys: Sequence[Any]) -> bool:
    if isinstance(key, str):
        return any(word in key.lower() for word in LABELS)
    return len(keys) > 1 and key == keys[-1]


def _name(key: Any) -> str:
    return "its only field" if key is None else f"field {key!r}"


def _same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return a.keys() == b.keys() and all(
        trees.same(one, b[path]) if trees.is_tensor(one) else repr(one) == repr(b[path])
        for path, one in a.items()
    )


def values_lost(part: Part, found: Lost) -> Finding:
    """A collate function that leaves out values of its samples."""
    collate: Any = part.plan.collate_fn
    name = called(collate)
    place, what = sources.of_object(collate), listed(list(found.fields))
    make = suspicious if found.how == "fractions" else violated
    summary, observed, cause, fix = {
        "unread": (
            f"{name} does not read {what} of any sample",
            f"the batch stays the same with {what} of other samples, at every place",
            "what it returns is made of the labels, or of nothing, alone",
            "stack the values of the samples",
        ),
        "places": (
            f"{name} does not read {what} of {len(found.places)} of {found.size} samples",
            f"the batch stays the same with {what} of other samples at places {list(found.places)[:6]}",
            "the same places are left out whichever samples stand there",
            "take the values of each sample of the list, once",
        ),
        "fractions": (
            f"{name} cuts the fractions off {what}",
            f"the first sample has {found.own}, its batch {found.got}",
            "floating-point values are cast to an integer dtype",
            "keep a floating-point dtype; where they are put into bins on purpose, skip this check",
        ),
    }[found.how]
    return make(
        "collate-loses-values",
        f"{part.prefix}{summary}",
        culprits=(
            *(Culprit("dataset", one, "does not reach the batch", place) for one in found.fields),
            Culprit("function", name, "collate function", place),
        ),
        location=place,
        observed=observed,
        cause=cause,
        because="values were exchanged one at a time, in two orders and with two seeds"
        if found.how != "fractions"
        else f"all {found.size} values that were collated are the samples' own, as whole numbers",
        fix=fix,
    )
