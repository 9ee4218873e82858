"""Does a batch of mixed samples weigh labels as it weighs inputs?"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.utils.data import default_collate

from ... import sources
from ...findings import Culprit, Finding
from ...lean import dataclass
from ...objects import trees
from ...verdicts import violated
from ..describing import is_under, leaves, target_path
from ..wording import called, line_ref
from .making import making_lines
from .pairing import collated

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ...findings import Location
    from ..plan import Part
    from ..validity import Survey

_MOST: Final = 8
_DRAWS: Final = 6
_EXACT: Final = 1e-3
"""Departure from a weighted sum, relative to what is summed, that rounding explains with a margin."""
_SPREAD: Final = 1e-3
"""Least singular value of the samples, relative to the largest: below it their weights are not told."""
_APART: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixed:
    """A batch whose rows are sums of two samples, with labels of their weights, or of each other's.

    Attributes:
        inputs, labels: The two fields of the batch.
        row: Of the batch, which shows it best.
        weights: Those of the two samples in the input of this row, the larger first.
        crossed: Whether the labels of the same two samples have these weights in the other order.
        count: How many rows mix samples of two classes.
        mixed: The lines that make the inputs and the labels.
    """

    inputs: str
    labels: str
    row: int
    weights: tuple[float, float]
    crossed: bool
    count: int
    mixed: tuple[Location | None, Location | None]


def mixed(survey: Survey) -> Mixed | None:
    """Collate the same samples some times; None where inputs are no sums of two samples each, or labels are others.

    Cost: one batch where its labels are no shares of classes; six at most.
    """
    part = survey.part
    chosen = [sample.index for sample in survey.samples][:_MOST]
    for draw in range(_DRAWS if len(chosen) > 1 else 0):
        made = _collated(part, chosen, survey.seed, draw)
        shares = None if made is None else _shares(made[1], len(chosen))
        if made is None or shares is None:
            return None
        plain, batch = made
        kinds = _kinds(plain, batch[shares].shape[1])
        if kinds is None:
            return None
        for name in batch:
            weights = None if name == shares else _weights(batch[name], plain)
            found = None if weights is None else _compared(weights, kinds, batch[shares])
            if found is not None:
                made_at: list[Location | None] = [None, None]
                if found["crossed"]:
                    fields = (batch[name], batch[shares])
                    made_at = making_lines(part, chosen, survey.seed, fields, batch=draw)
                lines = (made_at[0], made_at[1])
                return Mixed(inputs=name, labels=shares, mixed=lines, **found)
            if weights is not None and _rows(weights, kinds):
                return None  # one such batch is enough
    return None


def _collated(
    part: Part, chosen: Sequence[int], seed: int, draw: int
) -> tuple[list[Any], dict[str, torch.Tensor]] | None:
    """Return samples as they were read, and their batch; None where the collate function raises."""
    plain: list[Any] = []

    def run(collate: Callable[[Any], Any], samples: Any) -> Any:
        plain.extend(copy.deepcopy(samples))
        return collate(samples)

    try:
        return plain, collated(part, chosen, seed, run, batch=draw)
    except Exception:  # samples-valid and worker-delivery explain what a collate function raises
        return None


def _shares(batch: dict[str, torch.Tensor], size: int) -> str | None:
    """Return the one field whose rows are shares of classes: numbers of at least 0 that sum up to 1."""
    found = [
        name
        for name, field in batch.items()
        if field.is_floating_point() and field.dim() == 2 and len(field) == size
        and field.shape[1] > 1 and bool((field >= 0).all())
        and bool(((field.double().sum(1) - 1).abs() < _EXACT).all())
    ]  # fmt: skip
    return found[0] if len(found) == 1 else None


def _kinds(samples: list[Any], classes: int) -> torch.Tensor | None:
    """Return each sample's label as shares of the classes, float64 ``[B, C]``; None where it has no such label."""
    found = []
    for sample in samples:
        target = target_path(sample)
        held = [v for p, v in leaves(sample) if is_under(p, target)]
        label = held[0] if len(held) == 1 else None
        row = torch.as_tensor(label).double() if isinstance(label, int | torch.Tensor) else None
        if row is not None and row.dim() == 0 and 0 <= float(row) < classes:
            row = torch.nn.functional.one_hot(row.long(), classes).double()
        if row is None or row.shape != (classes,):
            return None
        found.append(row)
    return torch.stack(found)


def _weights(field: torch.Tensor, samples: list[Any]) -> torch.Tensor | None:
    """Return the weights of the samples in each row of a field, float64 ``[B, B]``; None where it is no such sum."""
    if not field.is_floating_point() or len(field) != len(samples):
        return None
    try:
        whole = trees.tensors(default_collate(samples), "batch").values()
    except Exception:  # samples that do not stack
        return None
    for own in whole:
        if own.shape != field.shape or not own.is_floating_point():
            continue
        rows, sums = (t.detach().double().flatten(1) for t in (own, field))
        sizes = torch.linalg.svdvals(rows)
        if rows.shape[1] < len(rows) or not float(sizes[-1]) > _SPREAD * float(sizes[0]):
            continue
        weights: torch.Tensor = torch.linalg.lstsq(rows.T, sums.T).solution.T
        off = float((weights @ rows - sums).norm()) > _EXACT * float(sums.norm())
        total = (weights.sum(1) - 1).abs().max() < _APART
        if not off and bool(total) and bool((weights > -_APART).all()):
            return weights
    return None


def _rows(weights: torch.Tensor, kinds: torch.Tensor) -> list[tuple[int, int, int]]:
    """Return the rows that mix two samples of unlike labels with unlike weights, and the two, the heavier first."""
    found = []
    for row, mine in enumerate(weights):
        first, second = (int(n) for n in mine.topk(2).indices)
        two = float(mine[[first, second]].sum()) > 1 - _APART
        unlike = not torch.equal(kinds[first], kinds[second])
        if two and unlike and _APART < float(mine[second]) < 0.5 - _APART:
            found.append((row, first, second))
    return found


def _compared(
    weights: torch.Tensor, kinds: torch.Tensor, labels: torch.Tensor
) -> dict[str, Any] | None:
    """Return the clearest row, where labels have the weights of their inputs, or of the partners', in all that tell."""
    rows = _rows(weights, kinds)
    ways = set()
    for row, first, second in rows:
        heavy, light = float(weights[row, first]), float(weights[row, second])
        for crossed, (one, other) in enumerate(((heavy, light), (light, heavy))):
            wanted = one * kinds[first] + other * kinds[second]
            if float((labels[row].double() - wanted).abs().max()) < 10 * _EXACT:
                ways.add(bool(crossed))
                break
        else:
            return None
    if len(ways) != 1:
        return None
    row, first, second = min(rows, key=lambda one: float(weights[one[0], one[2]]))
    shown = float(weights[row, first]), float(weights[row, second])
    return {"row": row, "weights": shown, "crossed": ways.pop(), "count": len(rows)}


def weights_exchanged(part: Part, found: Mixed) -> Finding:
    """Explain labels that are mixed with the weights of each other's inputs."""
    collate: Any = part.plan.collate_fn
    name = called(collate)
    made, labelled = found.mixed
    place = made or labelled or sources.of_object(collate)
    heavy, light = found.weights
    lines = " and ".join(dict.fromkeys(line_ref(at) for at in found.mixed if at is not None))
    return violated(
        "mixed-weights-exchanged",
        f"{part.prefix}{name} mixes {found.inputs} and {found.labels} with exchanged weights",
        culprits=(
            Culprit("dataset", f"{part.prefix}{found.inputs}", "mixed with one weight", made or place),
            Culprit("dataset", f"{part.prefix}{found.labels}", "mixed with the other", labelled or place),
            Culprit("function", name, "collate function", sources.of_object(collate)),
        ),
        location=place,
        observed=f"row {found.row}: {heavy:.3g} of one sample and {light:.3g} of another in {found.inputs}, "
        f"{light:.3g} and {heavy:.3g} of their classes in {found.labels}",
        cause="a sample's label is given the weight of the sample that it is mixed with"
        + (f"; see {lines}" if lines else ""),
        because=f"all {found.count} rows that mix samples of two classes show it, and {found.inputs} are exact sums of "
        "the samples that were read",
        fix=f"give inputs and labels of one sample the same weight{' at ' + line_ref(place) if place else ''}: "
        "lam * x + (1 - lam) * x.roll(1, 0) goes with lam * y + (1 - lam) * y.roll(1, 0)",
        evidence={"weights": list(found.weights), "rows": found.count},
    )  # fmt: skip
