"""A sampler that never draws some samples, whatever the epoch, or that draws one alone."""

from __future__ import annotations

import ast
import copy
from itertools import islice
from typing import TYPE_CHECKING, Any

from ... import sources
from ...lean import dataclass
from ...objects.peek import attribute
from ...record.tracing import find_line
from ...state import isolated, seed_process
from ...verdicts import suspicious, violated
from ..explaining.making_lines import loader_told
from ..plan import MOST_INDICES, Keyed, kept_samplers, number_of, sampler_of
from ..wording import dataset_culprit, few, line_ref

if TYPE_CHECKING:
    from types import FrameType

    from ...findings import Finding, Location
    from ..order import Order
    from ..plan import Part

_EPOCHS = 12
_SHARDS = ("num_replicas", "world_size", "rank")


@dataclass(frozen=True, slots=True, kw_only=True)
class NeverDrawn:
    """Samples that no epoch reads.

    Attributes:
        indices: Of the samples.
        epochs: How many epochs were drawn.
        sampler: Which sampler draws them.
        attribute: Its attribute that says how large a batch is; with batches of one, all samples are drawn.
        size: What it is.
    """

    indices: tuple[int, ...]
    epochs: int
    sampler: Any
    attribute: str
    size: int


def never_drawn(part: Part, *, seed: int = 0) -> NeverDrawn | None:
    """Draw epochs until all samples came; where some never do, ask whether batches of one would bring them.

    A sampler that is given a part of the data, or leaves out samples for what they are, leaves them out in
    batches of one too. One that shards or says that it drops is not judged.

    Raises:
        Exception: Whatever a sampler raises.
    """
    plan = part.plan
    if isinstance(part.dataset, Keyed):
        return None  # its samples are those that are drawn
    for own in (plan.batch_sampler, sampler_of(part)):
        if own is None or sources.of_user_object(type(own)) is None:
            continue
        held = vars(own) if hasattr(own, "__dict__") else {}
        drops = any(value is True for name, value in held.items() if "drop" in name)
        if drops or any(hasattr(own, name) for name in _SHARDS):
            return None
        with isolated(), kept_samplers(part):
            seed_process(seed)
            missing, largest = _missing(own, part.length, _EPOCHS)
            if not missing or largest < 2:
                return None
            for name, value in held.items():
                if value != largest or type(value) is not int:
                    continue
                single = copy.copy(own)
                setattr(single, name, 1)
                if not _missing(single, part.length, 1)[0]:
                    return NeverDrawn(
                        indices=tuple(sorted(missing)), epochs=_EPOCHS, sampler=own,
                        attribute=name, size=value,
                    )  # fmt: skip
        return None
    return None


def _missing(sampler: Any, length: int, epochs: int) -> tuple[set[int], int]:
    """Return the indices that no epoch brings, and the size of the largest batch."""
    missing, largest = set(range(length)), 0
    if length > MOST_INDICES:
        return set(), 0
    for number in range(epochs):
        if attribute(sampler, "set_epoch") is not None:
            sampler.set_epoch(number)
        for drawn in islice(sampler, MOST_INDICES):
            batch = list(drawn) if isinstance(drawn, list | tuple) else [drawn]
            missing.difference_update(map(number_of, batch))
            largest = max(largest, len(batch))
        if not missing:
            break
    return missing, largest


def samples_never_drawn(part: Part, found: NeverDrawn) -> Finding:
    """Tell which samples are lost, and the line that counts whole batches only."""
    name = type(found.sampler).__name__
    place = _counting_line(part, found)
    iterates = sources.search(type(found.sampler), r"def __iter__")
    lost = len(found.indices)
    return violated(
        "samples-never-drawn",
        f"{part.prefix}{name} never draws {lost} of {part.length} samples: it drops batches of fewer than {found.size}",
        culprits=(
            dataset_culprit(
                part,
                "batch_sampler" if found.sampler is part.plan.batch_sampler else "sampler",
                f"{name} leaves out samples {few(found.indices)}",
                place or iterates,
            ),
        ),
        location=place or iterates,
        observed=f"{found.epochs} epochs brought {part.length - lost} of {part.length} samples",
        cause="the last batch of a group is dropped where it is not full, and a group smaller than "
        "a batch has no other",
        because=f"with {found.attribute} = 1 instead of {found.size}, the sampler draws every sample",
        fix=f"keep the batch that is not full{f', on {line_ref(place)}' if place else ''}",
        evidence={"never drawn": list(found.indices[:64])},
    )


def drawn_alone(part: Part, found: Order, declared: Location | None) -> Finding:
    """Warn of a sampler that draws one sample for every place of its epochs; a test of overfitting may mean that."""
    name = found.sampler
    own = sources.search(type(sampler_of(part)), r"def __iter__")
    if (
        own is None or sources.rank(own.file) < 2
    ):  # a list, or torch's own: what it was told is the user's
        own = loader_told(part, declared, ("sampler", "batch_sampler"))
    return suspicious(
        "samples-never-drawn",
        f"{part.prefix}{name} draws sample {found.alone} alone, and never the other {part.length - 1}",
        culprits=(dataset_culprit(part, "sampler", f"every index is {found.alone}", own),),
        location=own,
        observed=f"two epochs of {found.count} indices: each is {found.alone}",
        cause=f"the sampler gives the same index again and again, and {part.name} has {part.length} samples",
        because="both epochs were drawn one after the other, with nothing put back between them",
        fix="draw from range(len(dataset)); where training on one sample is meant, declare "
        f"Subset(dataset, [{found.alone}]) as the dataset",
    )


def _counting_line(part: Part, found: NeverDrawn) -> Location | None:
    """Return the only line of an epoch that subtracts, divides by or compares with the size of a batch."""
    ran: set[tuple[str, int]] = set()

    def watcher(frame: FrameType, event: str, line: int) -> bool:
        ran.add((frame.f_code.co_filename, line))
        return False

    with isolated(), kept_samplers(part):
        find_line(lambda: _missing(found.sampler, part.length, 1), watcher)
    ranked: dict[int, list[tuple[str, int]]] = {}
    for file, line in ran:
        statement = sources.statement(file, line)
        if statement is None or statement.lineno != line:
            continue
        if (rank := _counts(statement, found.attribute)) is not None:
            ranked.setdefault(rank, []).append((file, line))
    best = ranked[min(ranked)] if ranked else []
    return sources.of_line(*best[0]) if len(best) == 1 else None


def _counts(statement: ast.stmt, name: str) -> int | None:
    """Return how surely a statement counts whole batches: 0 by arithmetic, 1 by a comparison, None where not at all."""
    heads = [n for n in ast.iter_child_nodes(statement) if not isinstance(n, ast.stmt)]
    ranks = []
    for node in (inner for head in heads for inner in ast.walk(head)):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub | ast.FloorDiv | ast.Mod):
            up = isinstance(node.left, ast.UnaryOp) or any(
                _names(n, name) for n in ast.walk(node.left)
            )
            if (
                _names(node.right, name) and not up
            ):  # -(-n // size) and (n + size - 1) // size round up
                ranks.append(0)
        elif isinstance(node, ast.Compare) and any(_names(one, name) for one in ast.walk(node)):
            ranks.append(1)
    return min(ranks, default=None)


def _names(node: ast.AST, name: str) -> bool:
    return (isinstance(node, ast.Attribute) and node.attr == name) or (
        isinstance(node, ast.Name) and node.id == name
    )
