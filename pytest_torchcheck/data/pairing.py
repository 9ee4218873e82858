"""Does a collate function keep every label with its sample?

Samples are collated together and each by itself. The row of the batch that holds a sample's inputs must hold its label;
padding may follow either, and rows may stand in another order.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from pytest_torchcheck import sources, trees
from pytest_torchcheck.checks.registry import violated
from pytest_torchcheck.findings import Culprit, Finding
from pytest_torchcheck.state import isolated

from .contents import Contents
from .explain import line_ref
from .reading import read, seed_process
from .snapshot import Snapshot

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .plan import Part
    from .reading import Survey

MOST_SAMPLES = 16
_LABELS = ("label", "target")
_ROOT = "batch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairing:
    """How labels of a batch stand to those of its samples.

    Attributes:
        path: Of the labels in a batch.
        count: How many samples were found again in the batch.
        mixed: Indices of those whose row holds another label.
        own, got: Labels of the first of them: by itself, and in the batch.
    """

    path: str
    count: int
    mixed: tuple[int, ...] = ()
    own: str = ""
    got: str = ""


def pairing_of(survey: Survey) -> Pairing | None:
    """Collate samples together and alone; None where that tells nothing (random, no labels, inputs that mix)."""
    part = survey.part
    chosen = [
        sample.index for sample in survey.samples[:: max(1, len(survey.samples) // MOST_SAMPLES)]
    ]
    chosen = chosen[:MOST_SAMPLES]
    if part.plan.collate_fn is None or len(chosen) < 4:
        return None
    try:
        whole, again = (_collated(part, chosen, survey.seed) for _ in range(2))
        alone = [_collated(part, [index], survey.seed) for index in chosen]
    except Exception:  # samples-valid and worker-delivery tell what a collate function raises
        return None
    path = _label_path(whole)
    if path is None or any(set(one) != set(whole) for one in alone):
        return None
    if any(not torch.equal(whole[name], again[name]) for name in whole):
        return None
    inputs = [name for name, value in whole.items() if name != path and len(value) == len(chosen)]
    labels = [one[path][0] for one in alone]
    if not inputs or len(whole[path]) != len(chosen) or all(_same(labels[0], x) for x in labels):
        return None  # labels that are made of the batch, such as places in it, are alike in batches of one
    mixed: list[tuple[int, int]] = []
    for place, one in enumerate(alone):
        rows = [
            row
            for row in range(len(chosen))
            if all(_holds(whole[name][row], one[name][0]) for name in inputs)
        ]
        if not rows:
            return None
        if not any(_holds(whole[path][row], labels[place]) for row in rows):
            mixed.append((place, rows[0]))
    if not mixed:
        return Pairing(path=path, count=len(chosen))
    place, row = mixed[0]
    return Pairing(
        path=path,
        count=len(chosen),
        mixed=tuple(chosen[one] for one, _ in mixed),
        own=_shown(labels[place]),
        got=_shown(whole[path][row]),
    )


def labels_mixed(part: Part, found: Pairing) -> Finding:
    """A collate function gives samples the labels of others."""
    collate: Any = part.plan.collate_fn
    collate = getattr(collate, "data_collator", collate)  # a Trainer wraps what it is given
    name = getattr(collate, "__name__", type(collate).__name__)
    place = sources.of_object(collate)
    first = found.mixed[0]
    return violated(
        "collate-mixes-labels",
        f"{part.prefix}{name} gives {len(found.mixed)} of {found.count} samples another label than they have",
        culprits=(
            Culprit(kind="function", name=name, detail="collate function", location=place),
            Culprit(kind="dataset", name=f"{part.prefix}{found.path}", detail="labels"),
        ),
        location=place,
        observed=f"sample {first} by itself has the label {found.own}; its row in a batch of {found.count} has {found.got}",
        cause="the labels are put in another order than the inputs, or are moved against them",
        because="rows were found again by their inputs, and the same samples were collated one by one",
        fix=f"build inputs and labels from one list of samples at {line_ref(place)}",
        evidence={"samples": list(found.mixed)},
    )  # fmt: skip


def _collated(part: Part, indices: Sequence[int], seed: int) -> dict[str, torch.Tensor]:
    """Return the tensors of a batch of these samples by their path."""
    snapshot = Snapshot(Contents(part.dataset, tuple(indices)))
    with isolated():
        try:
            samples = [read(part.dataset, index, seed + index) for index in indices]
            seed_process(seed)
            made = part.plan.collate(samples)
            found = trees.tensors(made, _ROOT)
            return {name: t.detach().clone() for name, t in found.items() if t.dim()}
        finally:
            snapshot.restore()


def _label_path(batch: dict[str, torch.Tensor]) -> str | None:
    """Return where the labels of a batch are: under a name that says so, or its last element."""
    whole = {n: t for n, t in batch.items() if not t.is_floating_point() and not t.is_complex()}
    named = [name for name in whole if any(word in name.lower() for word in _LABELS)]
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
