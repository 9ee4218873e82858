"""Whether each sample's output follows its own input in training mode, where a forward may mix or replace samples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

import torch

from ...batches.rows import choose_rows, flat_rows
from ...lean import dataclass
from ...objects import trees
from ...objects.kinds import shape_of
from ...probes.loss.arguments import targets_of
from ...state import seed_everything
from ...subject.errors import SubjectError
from ...subject.remembered import remembered
from ..facts import copied, forward_facts, outputs
from ..outputs import output_rows
from ..pieces import kept_since, marks
from .settling import Quiet, quiet

if TYPE_CHECKING:
    from ...batches import Batch
    from ...subject import Subject

_SAMPLES: Final = 6
"""How many samples a forward gets: a permutation that keeps a half of them in its places is rare."""
_ASKED: Final = 4
"""How many of them are changed one by one, in doubt."""
_SEEDS: Final = (1, 2, 3)
_MOVED: Final = 1e-4
"""Relative change of a row that rounding does not make."""
_MUCH: Final = 0.1
"""Of the change of the samples that were changed: what statistics of a batch hand on to others is less."""

Tensors = dict[str, torch.Tensor]
Kind = Literal["others", "mixed", "nothing"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Astray:
    """What the outputs follow in training mode where that is not their own samples.

    Attributes:
        kind: ``others`` where each row is that of another sample, ``mixed`` where it is of its own and of another
            one, ``nothing`` where no input has an influence.
        path: Of the output, empty for ``nothing``.
        sample, moved: A sample that was changed, and the rows that moved with it.
        told: Whether something beside these rows may say how they were mixed: another output, what the forward
            keeps, no targets in the batch.
        batches: The batch, and the same with one sample changed in each.
    """

    kind: Kind
    path: str = ""
    sample: int = 0
    moved: tuple[int, ...] = ()
    told: bool = False
    batches: tuple[Batch, ...] = ()


@remembered("training-rows")
def astray(subject: Subject) -> Astray | None:
    """Return what the outputs of a training forward follow in place of their own samples; None where they follow those.

    Torch's own dropout and norms are as in evaluation. Half of the samples are changed, under one seed: where rows of
    the other half move much, or none at all does, samples are changed one by one, and under other seeds.

    Cost: 2 forwards of six samples; more only in doubt.
    """
    rows, batch, other = output_rows(subject), subject.batch(), subject.batch(1)
    seen = forward_facts(subject)
    if rows is None or other.sizes != batch.sizes or seen.consumed:
        return None
    taken = torch.arange(_SAMPLES) % batch.sizes[subject.source.batch_symbol or ""]
    dims = {p: dim for p, dim in rows.dims.items() if seen.outputs[p].is_floating_point()}
    try:
        some, fresh = subject.source.rows(batch, taken), subject.source.rows(other, taken)
        half = torch.arange(_SAMPLES) < _SAMPLES // 2
        base, after = _trained(subject, [some, _changed(subject, some, fresh, half)])
        found = _moves(base, after, dims)
        if found is None or seen.outputs.keys() != base.keys():
            return None
        if not any(bool(m.any()) for m in found.values()):
            same = all(trees.same(base[p], t) for p, t in after.items())
            return Astray(kind="nothing") if same and _is_deaf(subject) else None
        if all(float(m[~half].max()) <= _MUCH * float(m[half].max()) for m in found.values()):
            return None
        return _one_by_one(subject, some, fresh, dims, whole=dims.keys() == seen.outputs.keys())
    except SubjectError:
        return None  # so many samples are refused, or other values of some


def _trained(subject: Subject, batches: list[Batch], seed: int = 0) -> list[Tensors]:
    """Return the outputs of batches in quiet training mode, each from one state and seed."""
    made = []
    for batch in batches:
        with subject.pristine() as model, torch.no_grad(), Quiet():
            quiet(model)
            seed_everything(subject.seed + seed)
            made.append(copied(subject.call(model, batch.clone())))
    return made


def _changed(subject: Subject, batch: Batch, other: Batch, which: torch.Tensor) -> Batch:
    """Return the batch with the inputs of some samples as they are in another one."""
    axes, others = subject.source.axes(subject.source.batch_symbol or ""), other.tensors()

    def change(path: str, leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or path not in axes:
            return leaf
        return choose_rows(~which, leaf, others[path], axes[path])

    return batch.map(change, targets=False)


def _moves(one: Tensors, two: Tensors, dims: dict[str, int]) -> dict[str, torch.Tensor] | None:
    """Return by how much each row of the outputs moved, ``[rows]`` by path; None where they are not alike in form."""
    found = {}
    for path, dim in dims.items():
        a, b = one.get(path), two.get(path)
        if a is None or b is None or shape_of(a) != shape_of(b) or a.shape[dim] != _SAMPLES:
            return None
        x, y = flat_rows(a, dim).double(), flat_rows(b, dim).double()
        moved = (x - y).norm(dim=1) / max(float(x.norm(dim=1).max()), 1e-30)
        if not bool(torch.isfinite(moved).all()):
            return None
        found[path] = torch.where(moved > _MOVED, moved, torch.zeros_like(moved)).cpu()
    return found or None


def _is_deaf(subject: Subject) -> bool:
    """Say whether other inputs change nothing in training, whatever the seed, though they do in evaluation."""
    batch, other = subject.batch(), subject.batch(1)
    if all(trees.same(t, outputs(subject)[p]) for p, t in outputs(subject, other).items()):
        return False
    if _keeps(subject, batch):
        return False
    for seed in _SEEDS:
        one, two = _trained(subject, [batch, other], seed)
        if one.keys() != two.keys() or not all(trees.same(one[p], two[p]) for p in one):
            return False
    return True


def _keeps(subject: Subject, batch: Batch) -> bool:
    """Say whether a training forward keeps something, as how it has mixed the samples."""
    with subject.pristine() as model, torch.no_grad(), Quiet():
        quiet(model)
        held, there = marks(model), {name for name, _ in model.named_modules()}
        seed_everything(subject.seed)
        subject.call(model, batch.clone())
        return bool(kept_since(model, held, there))


def _one_by_one(
    subject: Subject, some: Batch, fresh: Batch, dims: dict[str, int], *, whole: bool
) -> Astray | None:
    """Change one sample at a time, under a few seeds; all outputs must go astray in one way, most times.

    Rows of statistics, and of what experts have room for, follow many samples or none but their own.
    """
    numbers = torch.arange(_SAMPLES)
    singles = [_changed(subject, some, fresh, numbers == n) for n in range(_ASKED)]
    seen: dict[str, list[tuple[int, tuple[int, ...]]]] = {path: [] for path in dims}
    for seed in (0, _SEEDS[0]):
        base, *runs = _trained(subject, [some, *singles], seed)
        for sample, run in enumerate(runs):
            for path, moved in (_moves(base, run, dims) or {}).items():
                much = moved > _MUCH * moved.max() if bool(moved[sample]) else moved > 0
                if bool((moved > 0).all()):
                    return None  # each sample has an influence on every other
                if much.any():
                    seen[path].append((sample, tuple(much.nonzero().flatten().tolist())))
    kinds = {_kind_of(found) for found in seen.values() if found}
    if len(kinds) != 1 or (kind := kinds.pop()) is None:
        return None
    path, found = next((p, f) for p, f in seen.items() if f)
    sample, astray_rows = next((s, rows) for s, rows in found if rows != (s,))
    told = not whole or not targets_of(subject.batch()) or _keeps(subject, some)
    return Astray(
        kind=kind, path=path, sample=sample, moved=astray_rows, told=told, batches=(some, *singles)
    )


def _kind_of(found: list[tuple[int, tuple[int, ...]]]) -> Kind | None:
    """Judge which rows moved with which sample."""
    single = all(len(rows) == 1 for _, rows in found)
    elsewhere = sum(sample not in rows for sample, rows in found)
    if single and 2 * elsewhere >= len(found):
        return "others"
    several = sum(len(rows) > 1 for _, rows in found)
    return "mixed" if 2 * several >= len(found) else None
