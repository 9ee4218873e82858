"""The model at sizes that tell: what fails beyond a size, or where two sizes are equal, is not seen at typical ones."""

from __future__ import annotations

import contextlib
import copy
import itertools
from typing import TYPE_CHECKING

import torch

from ...late import Late
from ...subject.errors import SubjectError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ...batches import Batch
    from ...findings import Finding
    from ...subject import Subject

_ALONE = 4
"""So many sizes are changed one by one."""

largest = Late("strategies.sequence:largest")
"""It reads the sizes; a run that draws none does not import it."""


def also_at_largest(
    subject: Subject,
    found: Iterator[Finding],
    check: Callable[[Subject], Finding],
    *,
    room: int = 0,
) -> Iterator[Finding]:
    """Iterate over what a check found at typical sizes; where it passed, over what is violated at the largest ones.

    A table, a window or a chunk of a fixed length is longer than a typical sequence: what a longer one does
    is decided elsewhere. What cannot be run or told there is not told.

    Args:
        subject: The model.
        found: The findings at typical sizes.
        check: Asked of a subject of which the base batch is one sample of the largest sizes; once.
        room: How far below the largest sizes to stay.
    """
    first = list(found)
    other = _at_largest(subject, room) if all(f.status == "passed" for f in first) else None
    more: Finding | None = None
    with contextlib.suppress(SubjectError):  # that sizes do not run is told by batch-sizes
        more = check(other) if other is not None else None
    if other is None or more is None or more.status != "violated":
        yield from first
        return
    sizes = sizes_of(other.batch())
    yield more.replace(because=f"{more.because}; seen at {sizes}, not at typical sizes")


def _at_largest(subject: Subject, room: int) -> Subject | None:
    """Return the subject with another base batch; None where no size may be larger, or it costs too much."""
    batch = largest(subject.source, subject.batch(), room)
    return None if batch is None else at_batch(subject, batch)


def at_batch(subject: Subject, batch: Batch) -> Subject:
    """Return the subject with another base batch: the same model and state; what is known of the other batch is not."""
    other = copy.copy(subject)
    other.cache = {
        ("batch", 0): subject.place(batch),
        ("batch", 1): subject.place(subject.source.distinct(batch, subject.seed + 1)),
    }
    return other


def exchanged(subject: Subject) -> Iterator[Batch]:
    """Yield batches in which two different sizes of the base batch have changed places, then one a step smaller.

    After them those in which one of several sizes is another: what is kept under the name of the others is then
    found again, and is not what was asked for. A step smaller, a downsampled grid mostly has the size that it has
    at the base batch's sizes. There may be no targets in them.
    """
    sizes, spans = subject.batch().sizes, subject.source.symbols
    free = [name for name in sizes if name != subject.source.batch_symbol]
    pairs = [(a, b) for a, b in itertools.combinations(free, 2) if sizes[a] != sizes[b]]
    wanted = [{one: sizes[two], two: sizes[one]} for one, two in pairs]
    wanted.append({n: sizes[n] - 1 for n in free if n in spans and sizes[n] > spans[n].low})
    if len(free) > 1:
        other = {
            n: spans[n].low if sizes[n] > spans[n].low else sizes[n] + 1 for n in free if n in spans
        }
        wanted += [{n: size} for n, size in other.items() if size <= spans[n].high][:_ALONE]
    made = (_at(subject, {**sizes, **changed}) for changed in filter(None, wanted))
    yield from (batch for batch in made if batch is not None)


def crossed(subject: Subject) -> Iterator[tuple[Batch, Batch]]:
    """Yield pairs of batches, where two sizes are equal in the base batch: unlike ones, and they changed places.

    What is kept by one of two sizes alone shows where the one is what the other was.
    """
    sizes, spans = subject.batch().sizes, subject.source.symbols
    free = [n for n in sizes if n != subject.source.batch_symbol and n in spans]
    for one, two in itertools.combinations(free, 2):
        if sizes[one] != sizes[two]:
            continue
        less = sizes[two] - 1 if sizes[two] > max(spans[one].low, spans[two].low) else None
        if less is not None:
            pair = [_at(subject, {**sizes, name: less}) for name in (one, two)]
            if pair[0] is not None and pair[1] is not None:
                yield pair[0], pair[1]


def _at(subject: Subject, sizes: dict[str, int]) -> Batch | None:
    """Return a batch of some sizes, perhaps without targets; None where there is none."""
    with contextlib.suppress(SubjectError, ValueError):
        batch = subject.source.at(subject.seed, **sizes)
        batch = subject.source.of_inputs.at(subject.seed, **sizes) if batch is None else batch
        return None if batch is None else subject.place(batch)
    return None


def sizes_of(batch: Batch) -> str:
    """Return the sizes of a batch as they are told, such as ``B=1, T=24``."""
    return ", ".join(f"{name}={size}" for name, size in batch.sizes.items())


def entries_apart(tensor: torch.Tensor, dim: int, generator: torch.Generator) -> torch.Tensor:
    """Return floating entries of which equal ones differ by a hundredth: no sorting has an order for equal ones."""
    if not tensor.is_floating_point():
        return tensor
    noise = torch.randn(tensor.shape, generator=generator).to(tensor)
    rows = tensor.movedim(dim, 0).flatten(1)
    repeated = torch.ones(len(rows), dtype=torch.bool, device=tensor.device)
    _, inverse = torch.unique(rows, dim=0, return_inverse=True)
    repeated[[inverse.tolist().index(value) for value in set(inverse.tolist())]] = False
    shape = [-1 if axis == dim else 1 for axis in range(tensor.dim())]
    return torch.where(repeated.view(shape), tensor * (1 + 0.01 * noise), tensor)


def told_apart(subject: Subject, drawn: Sequence[Batch]) -> list[Batch]:
    """Return the few of some drawn batches at which samples are most likely to be mixed.

    They are the largest of an odd size, where groups of samples leave a rest; the first two that have
    as many samples as another dimension has entries; and the first with several samples in which another
    dimension is at its smallest.
    """
    symbol = subject.source.batch_symbol or ""
    base, spans = subject.batch().sizes.get(symbol, 0), subject.source.symbols

    def size(batch: Batch) -> int:
        return batch.sizes.get(symbol, 0)

    many = max(drawn, key=lambda one: size(one) * (size(one) % 2), default=None)
    found = [] if many is None or size(many) <= base else [many]
    several = [batch for batch in drawn if size(batch) > 1 and batch is not many]
    found += [b for b in several if size(b) in _others(b, subject)][:2]
    found += [
        b
        for b in several
        if any(n != symbol and s == spans[n].low for n, s in b.sizes.items() if n in spans)
        and not any(b is one for one in found)
    ][:1]
    return found


def _others(batch: Batch, subject: Subject) -> set[int]:
    """Return the sizes of all dimensions of the inputs but that of the samples."""
    dim = subject.contract.batch_dim or 0
    leaves = (leaf for _, leaf in batch.input_leaves() if isinstance(leaf, torch.Tensor))
    return {n for leaf in leaves for at, n in enumerate(leaf.shape) if at != dim}
