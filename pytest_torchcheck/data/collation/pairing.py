"""Does a collate function keep what belongs to a sample together?

Samples are collated together and each by itself. One row of the batch must hold all fields of a sample, its label too;
padding may follow any of them, and rows may stand in another order.
"""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from ... import sources
from ...findings import Culprit, Finding
from ...lean import dataclass
from ...objects import trees
from ...record.tracing import find_line, line_of
from ...state import seed_process
from ...verdicts import violated
from ..snapshot import put_back
from ..validity import read
from ..wording import called, line_ref
from .collate_writes import (
    LongMask,
    Shifted,
    entry_watcher,
    making_watcher,
    shifts_watcher,
    too_long,
    wrongly_shifted,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import CodeType, FrameType

    from ...findings import Location
    from ...record.tracing import Watcher
    from ..plan import Part
    from ..validity import Survey

MOST_SAMPLES = 16
LABELS = ("label", "target")
"""Words of which a name of a field that holds labels has one."""
_ROOT = "batch"
_REORDERING = {"sorted", "sort", "argsort", "lexsort", "reversed", "reverse", "flip", "flipud", "roll", "shuffle", "randperm",
               "permutation", "sample", "multinomial"}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairing:
    """How the fields of a batch stand to those of its samples.

    Attributes:
        path: Of the labels in a batch, or of another field that stands in an order of its own; empty
            where there is none.
        count: How many samples were found again in the batch.
        beside: The field by which their rows were found; empty where all inputs agree on them.
        mixed: Indices of those whose row holds another value of ``path``.
        own, got: The value of the first of them: by itself, and in the batch.
        moved: The one line of the collate function, or of what it calls, that puts something in
            another order; None where there is none, or several.
        returned: The line by which the collate function returns the batch.
        kept: The line that makes ``path``, where this has stayed in the order of the samples.
        mask: A mask of the batch that is longer than its samples, or None.
        shifted: Indices of the batch that reach into other samples, or None.
    """

    path: str
    count: int
    beside: str = ""
    mixed: tuple[int, ...] = ()
    own: str = ""
    got: str = ""
    moved: Location | None = None
    returned: Location | None = None
    kept: Location | None = None
    mask: LongMask | None = None
    shifted: Shifted | None = None


def pairing_of(survey: Survey) -> Pairing | None:
    """Collate samples together and alone; None where that tells nothing (random, no labels, inputs that mix)."""
    part = survey.part
    chosen = [
        sample.index for sample in survey.samples[:: max(1, len(survey.samples) // MOST_SAMPLES)]
    ]
    chosen = chosen[:MOST_SAMPLES]
    if part.plan.collate_fn is None or len(chosen) < 4:
        return None
    collations = _collations(part, chosen, survey.seed)
    if collations is None:
        return None
    whole, alone = collations
    shifted = wrongly_shifted(whole, alone)
    if shifted is not None:
        made = _line_of(part, chosen, survey.seed, shifts_watcher(shifted.shifts))
        return Pairing(path="", count=len(chosen), shifted=replace(shifted, made=made))
    path = label_path(whole)
    inputs = [name for name, value in whole.items() if name != path and len(value) == len(chosen)]
    rows = [
        [
            row
            for row in range(len(chosen))
            if all(_holds(whole[name][row], one[name][0]) for name in inputs)
        ]
        for one in alone
    ]
    if not inputs:
        return None
    if not all(rows):
        return _apart(part, chosen, survey.seed, whole, alone)
    mask = _long_mask(part, chosen, survey.seed, whole, alone, [found[0] for found in rows])
    labels = [] if path is None else [one[path][0] for one in alone]
    # labels that are made of the batch, such as places in it, are alike in batches of one
    told = path is not None and len(whole[path]) == len(chosen) and not all(_same(labels[0], x) for x in labels)  # fmt: skip
    if path is None or not told:
        several = sum(_is_single(name, alone) for name in inputs) > 1
        told = several or mask is not None
        return Pairing(path="", count=len(chosen), mask=mask) if told else None
    mixed = [
        (place, found[0])
        for place, found in enumerate(rows)
        if not any(_holds(whole[path][row], labels[place]) for row in found)
    ]
    if not mixed:
        return Pairing(path=path, count=len(chosen), mask=mask)
    place, row = mixed[0]
    moved, returned = lines_like(part, chosen, survey.seed, _reorders)
    return Pairing(
        path=path,
        count=len(chosen),
        kept=_kept(part, chosen, survey.seed, whole[path], labels),
        mixed=tuple(chosen[one] for one, _ in mixed),
        own=_shown(labels[place]),
        got=_shown(whole[path][row]),
        moved=moved,
        returned=returned,
        mask=mask,
    )


def _kept(
    part: Part, chosen: Sequence[int], seed: int, field: torch.Tensor, own: Sequence[torch.Tensor]
) -> Location | None:
    """Return the line that makes a field, where its rows stand in the order of the samples."""
    if not all(_holds(field[n], one) for n, one in enumerate(own)):
        return None
    return _line_of(part, chosen, seed, entry_watcher(field))


def _collations(
    part: Part, chosen: Sequence[int], seed: int
) -> tuple[dict[str, torch.Tensor], list[dict[str, torch.Tensor]]] | None:
    """Return a batch of all samples and one of each, without what the collate function draws, other than an order.

    None where it raises.
    """
    try:
        whole, again = (collated(part, chosen, seed, batch=n) for n in range(2))
        alone = [collated(part, [index], seed) for index in chosen]
    except Exception:  # samples-valid and worker-delivery tell what a collate function raises
        return None
    if any(set(one) != set(whole) for one in alone):
        return None
    fixed = [name for name in whole if name in again and _same_rows(whole[name], again[name])]
    return {name: whole[name] for name in fixed}, [
        {name: one[name] for name in fixed} for one in alone
    ]


def _same_rows(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Say whether two tensors hold the same rows, in any order."""
    if one.shape != other.shape:
        return False
    return _same(one, other) or sorted(map(repr, one.tolist())) == sorted(map(repr, other.tolist()))


def _apart(
    part: Part,
    chosen: Sequence[int],
    seed: int,
    whole: dict[str, torch.Tensor],
    alone: Sequence[dict[str, torch.Tensor]],
) -> Pairing | None:
    """Return the field whose rows belong to other samples than those of the fields beside it, or None."""
    rows = {name: _rows_of(whole[name], [one[name] for one in alone]) for name in whole}
    found = {name: own for name, own in rows.items() if own and _is_single(name, alone)}
    others = {
        name: [
            path for path in found if not all(a & b for a, b in zip(found[path], own, strict=True))
        ]
        for name, own in found.items()
    }
    beside = min(others, key=lambda name: len(others[name]), default="")
    if not beside or not others[beside]:
        return None
    path = others[beside][0]
    mixed = [
        n for n, (a, b) in enumerate(zip(found[path], found[beside], strict=True)) if not a & b
    ]
    moved, returned = lines_like(part, chosen, seed, _reorders)
    return Pairing(
        path=path,
        count=len(chosen),
        beside=beside,
        mixed=tuple(chosen[n] for n in mixed),
        own=_shown(alone[mixed[0]][path][0]),
        got=_shown(whole[path][min(found[beside][mixed[0]])]),
        moved=moved,
        returned=returned,
    )


def _rows_of(whole: torch.Tensor, alone: Sequence[torch.Tensor]) -> list[set[int]]:
    """Return the rows of a batch that may hold each sample; empty where one of them is in none."""
    if len(whole) != len(alone) or any(len(one) != 1 for one in alone):
        return []
    rows = [{n for n, row in enumerate(whole) if _holds(row, one[0])} for one in alone]
    return rows if all(rows) else []


def _is_single(name: str, alone: Sequence[dict[str, torch.Tensor]]) -> bool:
    """Say whether a field differs between samples, and no other holds the same, as partners from others do."""
    values = [one[name] for one in alone]
    alike = all(_same(values[0], value) for value in values)
    copied = any(
        all(_same(one[name], one[path]) for one in alone) for path in alone[0] if path != name
    )
    return not alike and not copied


def _long_mask(
    part: Part,
    chosen: Sequence[int],
    seed: int,
    whole: dict[str, torch.Tensor],
    alone: Sequence[dict[str, torch.Tensor]],
    rows: Sequence[int],
) -> LongMask | None:
    """Return the mask that is longer than its samples, with the line that makes it."""
    found = too_long(whole, alone, rows)
    if found is None:
        return None
    return replace(found, made=_line_of(part, chosen, seed, making_watcher(whole[found.path])))


def fields_mixed(part: Part, found: Pairing) -> Finding:
    """A collate function gives samples the labels, or another field, of others."""
    collate: Any = part.plan.collate_fn
    collate = getattr(collate, "data_collator", collate)  # a Trainer wraps what it is given
    name = called(collate)
    place = sources.of_object(collate)
    first, moved = found.mixed[0], found.moved
    put = sources.assigned_name(moved) if moved is not None else ""
    left = sources.reads_old_name(moved) if moved is not None else None
    left = left or (found.kept if moved is not None and found.kept != moved else None)
    said = "field" if found.beside else "label"
    return violated(
        "collate-mixes-fields" if found.beside else "collate-mixes-labels",
        f"{part.prefix}{name} gives {len(found.mixed)} of {found.count} samples a wrong {said}"
        + (f": {found.path} of others" if found.beside else ""),
        culprits=(
            *((Culprit("call", put or moved.text, "reordered here", moved),) if moved else ()),
            *((Culprit("call", left.text, "reads the old order", left),) if left else ()),
            Culprit("function", name, "collate function", place),
            Culprit("dataset", f"{part.prefix}{found.path}", f"{said}s", found.returned),
        ),
        location=left or moved or place,
        observed=f"collated alone, sample {first} has the {said} {found.own}; its row in a batch of "
        f"{found.count} has {found.got}",
        cause=f"{found.beside or 'the inputs'} and {found.path or 'the labels'} stand in different orders"
        + (f": {put} is reordered" if put else "")
        + (f", and {line_ref(left)} reads what it was made of" if left else ""),
        because=f"rows were matched by {found.beside or 'their inputs'}, and the same samples were collated one by one"
        + (f"; the only line that changes an order is {line_ref(moved)}" if moved else ""),
        fix=f"take this field from {put}, too, at {line_ref(left)}"
        if left
        else (
            f"use one order for all fields at {line_ref(moved)}: sort the list of samples, then take "
            "every field from it"
        )
        if moved
        else f"build all fields from one list of samples at {line_ref(place)}",
        evidence={"samples": list(found.mixed)},
    )


def lines_like(
    part: Part, indices: Sequence[int], seed: int, wanted: Callable[[ast.expr], bool]
) -> tuple[Location | None, Location | None]:
    """Return the one line which the collate function runs with such an expression, and its return."""
    ran: dict[tuple[str, int], CodeType] = {}
    returned: list[Location] = []

    def watcher(frame: FrameType, event: str, line: int) -> bool:
        if event != "call":
            ran[frame.f_code.co_filename, line] = frame.f_code
        if event == "return":
            returned[:] = [line_of(frame.f_code, line)]
        return False

    collated(
        part, indices, seed, lambda collate, samples: find_line(lambda: collate(samples), watcher)
    )
    found: dict[tuple[str, int], Location] = {}
    for file in {file for file, _ in ran}:
        for node in sources.nodes(file):
            if isinstance(node, ast.expr) and wanted(node):
                lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
                code = next((ran[file, n] for n in lines if (file, n) in ran), None)
                if code is not None:
                    found[file, node.lineno] = line_of(code, node.lineno)
    return next(iter(found.values())) if len(found) == 1 else None, next(iter(returned), None)


def _line_of(part: Part, indices: Sequence[int], seed: int, watcher: Watcher) -> Location | None:
    """Return the first line of the collate function at which a watcher says True."""
    found: list[Location | None] = []

    def run(collate: Any, samples: Any) -> Any:
        found.append(find_line(lambda: collate(samples), watcher))
        return {}

    collated(part, indices, seed, run)
    return found[0] if found else None


def _reorders(node: ast.expr) -> bool:
    """Say whether an expression gives what it takes in another order: a call that does, or ``[::-1]``."""
    if isinstance(node, ast.Subscript):
        step = node.slice.step if isinstance(node.slice, ast.Slice) else None
        return step is not None and ast.unparse(step) == "-1"
    if not isinstance(node, ast.Call):
        return False
    return (getattr(node.func, "id", "") or getattr(node.func, "attr", "")) in _REORDERING


def collated(
    part: Part,
    indices: Sequence[int],
    seed: int,
    run: Callable[..., Any] | None = None,
    *,
    batch: int = 0,
) -> dict[str, torch.Tensor]:
    """Return the tensors of a batch of these samples by their path; ``run`` calls the collate function instead.

    The samples are the same for every number ``batch``; what the collate function draws is not.
    """
    with put_back(part.dataset, tuple(indices)):
        samples = [read(part.dataset, index, seed + index) for index in indices]
        seed_process(seed + batch)
        made = run(part.plan.collate, samples) if run else part.plan.collate(samples)
        found = trees.tensors(made, _ROOT)
        return {name: t.detach().clone() for name, t in found.items() if t.dim()}


def label_path(batch: dict[str, torch.Tensor]) -> str | None:
    """Return where the labels of a batch are: under a name that says so, or its last element."""
    whole = {n: t for n, t in batch.items() if not t.is_floating_point() and not t.is_complex()}
    named = [name for name in whole if any(word in name.lower() for word in LABELS)]
    if named:
        return named[0] if len(named) == 1 else None
    last = list(batch)[-1] if len(batch) > 1 else None
    placed = last is not None and re.fullmatch(rf"{_ROOT}\[\d+\]", last) is not None
    return last if placed and last in whole and whole[last].dim() == 1 else None


def _holds(row: torch.Tensor, one: torch.Tensor) -> bool:
    """Say whether a row of a batch begins, or ends, with a sample's own values."""
    if row.dim() != one.dim() or any(a < b for a, b in zip(row.shape, one.shape, strict=True)):
        return False
    first = tuple(slice(0, size) for size in one.shape)
    last = tuple(slice(have - size, have) for have, size in zip(row.shape, one.shape, strict=True))
    return _same(row[first], one) or _same(row[last], one)


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and torch.equal(a, b)


def _shown(labels: torch.Tensor) -> str:
    values = labels.flatten().tolist()
    return str(values[0]) if labels.dim() == 0 else str(values[:8])
