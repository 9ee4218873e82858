"""Samples keep to themselves, among whichever others, at whichever place."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import torch
from torch import nn

from ..batches.groups import groups_in, moved, shortened
from ..batches.rows import choose_rows
from ..codes import behaviour as explain
from ..objects import trees
from ..runs.facts import copied, forward_facts, outputs
from ..runs.outputs import (
    Rows,
    floating_from,
    gaps_between,
    other_batch_dim,
    output_rows,
    outputs_of,
    undetermined,
)
from ..runs.variants.orders import another_first, louder
from ..runs.variants.woken import also_woken
from ..state import seed_everything
from ..subject.errors import SubjectError
from ..verdicts import inconclusive, not_applicable, passed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..batches import Batch
    from ..batches.groups import Groups
    from ..findings import Finding
    from ..subject import Subject


EXACT = 1e-9
"""Largest relative difference in float64 that reordering of sums explains (CHECKS R2)."""

ROUNDING = 3e-4
"""The same in float32, for models that do not run in float64."""

ROUNDED = 1e-5
"""Difference in float32 between kernels for other sizes: 1.4e-6 was measured (CHECKS E2), more in
deep models."""

_SLIGHT = 1e-5
"""Relative influence of other groups below which it may be a tolerance."""

_FEW = 4  # samples that are mixed with each other and put in another order

_APART_FROM = "of {} samples, the first do not depend on the others or on their places"
_TOGETHER = "at other places among other samples outputs differ, and neither alone shows why"
UNDETERMINED = "two equal runs in eval mode differ, so that other ones cannot be compared"

_QUANTIZED = ("quantized", "ao.nn")


def is_quantized(model: nn.Module) -> bool:
    """Say whether a module is quantized: its scales follow the whole batch by design."""
    return any(any(word in type(m).__module__ for word in _QUANTIZED) for m in model.modules())


def is_stochastic(subject: Subject) -> bool:
    """Say whether the contract declares randomness in eval mode."""
    return bool(subject.contract.promised("Stochastic"))


def batch_independence(subject: Subject) -> Iterator[Finding]:
    """Replace the neighbours of the first sample, and change the order of the samples."""
    yield from also_woken(subject, independence)


def independence(subject: Subject) -> Iterator[Finding]:
    """Do what :func:`batch_independence` does, at the weights as they are."""
    subject.batch()  # where it cannot be made, that is what is told
    if subject.contract.batch_dim is None or subject.source.batch_symbol is None:
        yield from _groups(subject)
        return
    if is_quantized(subject.model):
        yield not_applicable("the activations of quantized modules share one scale over the batch")
        return
    symbol = subject.source.batch_symbol
    if subject.batch().sizes.get(symbol, 0) < 2:
        yield inconclusive("the batch holds only one sample")
        return
    rows = output_rows(subject)
    if rows is None or not rows.dims:
        asks = "; dimension 1 behaves like the batch dimension: is batch_dim=1?"
        yield inconclusive(
            "no output can be split into samples" + (asks if other_batch_dim(subject) else "")
        )
        return
    batch, known = _some(subject)
    size = batch.sizes[symbol]
    keep, fresh = torch.arange(size) == 0, subject.batch(1)
    if batch is not subject.batch():
        fresh = subject.source.rows(fresh, torch.arange(size))
    loud = louder(fresh) if subject.device.type == "cpu" else fresh
    kept = _keep_themselves(subject, batch, loud, rows, known)
    if kept:
        yield passed(f"{len(rows.dims)} outputs: {_APART_FROM.format(size)}")
        return
    fresh = fresh if kept is None else loud
    refused, others = "", None
    try:
        mixed = _replace(subject, batch, fresh, keep)
        others = outputs(subject, mixed)
    except SubjectError as error:  # sizes or an order among the samples that the model relies on
        refused = (
            f"with those of another batch the {error.phase} raises {type(error.error).__name__}"
        )
        mixed = _replace(subject, batch, floating_from(batch, fresh), keep)
    if not _differs(batch, mixed):
        yield inconclusive(
            f"the inputs of the other samples could not be changed: {refused or 'all samples are equal'}"
        )
        return
    first = torch.zeros(1, dtype=torch.int64)
    leaks = compare(subject, batch, mixed, rows, first, first, known=(known, others))
    if leaks is not None and undetermined(subject):
        yield inconclusive(UNDETERMINED)
        return
    if leaks is not None:
        dim = other_batch_dim(subject)
        yield (
            explain.mixed(subject, batch, mixed, rows, leaks)
            if dim is None
            else (explain.other_dim(subject, dim, leaks))
        )
        return
    yield from _keeps_places(size, subject, batch, rows, known, doubtful=kept is False)


def _keep_themselves(
    subject: Subject, batch: Batch, fresh: Batch, rows: Rows, known: dict[str, torch.Tensor]
) -> bool | None:
    """Say whether the first two samples keep their outputs apart from each other, at other places, among others.

    One run asks for all of it: the first sample stands last, the second one first, and the rest are replaced by others
    with larger numbers, so that a largest one is among them. Of two samples one is kept. None where that does not run.
    """
    size = batch.sizes[subject.source.batch_symbol or ""]
    kept = torch.arange(min(2, size - 1))
    order = torch.arange(size).roll(-1)
    try:
        mixed = _replace(subject, batch, fresh, torch.arange(size) < len(kept))
        turned = subject.source.rows(mixed, order)
        if not _differs(batch, mixed):
            return None
        places = (kept - 1) % size
        return compare(subject, batch, turned, rows, kept, places, known=(known, None)) is None
    except SubjectError:
        return None


def _groups(subject: Subject) -> Iterator[Finding]:
    """Move the features of every second group, such as a graph's nodes, and look at the others; then shorten one.

    That is for samples which an index of a real batch tells apart, where the inputs have no batch dimension.
    """
    batch = subject.batch()
    groups = groups_in(batch) if batch.origin == "real" else None
    rows = Rows(dims={}, others=()) if groups is None else _rows_of(outputs(subject), groups.count)
    if groups is None or not rows.dims:
        yield not_applicable("the inputs have no batch dimension")
        return
    reached = False
    for first in (1, 0):
        which = range(first, groups.count, 2)
        of = torch.arange(1 - first, groups.count, 2)
        if (other := moved(batch, groups, which)) is None:
            continue
        if leaks := _beyond_tolerance(compare(subject, batch, other, rows, of, of)):
            yield _told(subject, groups, leaks)
            return
        own = torch.tensor(which)
        made = gaps_between(outputs(subject), outputs(subject, other), rows, own, own)
        reached = reached or any(made.values())
    of = torch.arange(groups.count - 1)
    fewer = shortened(batch, groups)
    if fewer is not None and not forward_facts(subject).consumed:
        with contextlib.suppress(SubjectError):  # numbers of entries that the model relies on
            leaks = _beyond_tolerance(compare(subject, batch, fewer, rows, of, of))
            if leaks and not draws_in_eval(subject):
                yield _told(subject, groups, leaks, fewer)
                return
    if not reached:
        yield inconclusive(f"other entries of a group of {groups.path} change none of its outputs")
        return
    yield passed(
        f"{len(rows.dims)} outputs: a group of {groups.path} does not depend on the other "
        f"{groups.count - 1}"
    )


def _rows_of(made: dict[str, torch.Tensor], count: int) -> Rows:
    """Return the outputs that have one row for each group; one for each pair of groups compares them."""
    return Rows(
        dims={
            path: 0
            for path, t in made.items()
            if t.dim() and t.is_floating_point() and "{" not in path and not t.is_nested
            if t.shape[0] == count and count not in t.shape[1:]
        },
        others=(),
    )  # fmt: skip


def _beyond_tolerance(leaks: dict[str, float] | None) -> dict[str, float]:
    """Leave out what a small constant beside a sum makes, as one that keeps a division by zero away does."""
    return {path: gap for path, gap in (leaks or {}).items() if gap >= _SLIGHT}


def _told(
    subject: Subject, groups: Groups, leaks: dict[str, float], fewer: Batch | None = None
) -> Finding:
    """Report groups that depend on each other."""
    if undetermined(subject):
        return inconclusive(UNDETERMINED)
    return explain.groups_mixed(subject, groups, leaks, fewer)


def _some(subject: Subject) -> tuple[Batch, dict[str, torch.Tensor]]:
    """Return a few samples, all where the model refuses so few, and their outputs.

    Pairs and halves of four samples can still be mixed; what takes groups of another size refuses them.
    """
    if (few := subject.few(subject.batch(), _FEW)) is not None:
        with contextlib.suppress(SubjectError):
            return few, outputs(subject, few)
    return subject.batch(), outputs(subject)


def _keeps_places(
    size: int,
    subject: Subject,
    batch: Batch,
    rows: Rows,
    known: dict[str, torch.Tensor],
    *,
    doubtful: bool,
) -> Iterator[Finding]:
    """Compare the samples with themselves in another order; ``doubtful`` where others at other places moved some."""
    order = another_first(subject, batch, size)
    turned = subject.source.rows(batch, order)
    try:
        leaks = compare(
            subject, batch, turned, rows, order, torch.arange(size), known=(known, None)
        )
    except SubjectError as error:
        yield passed(
            f"the first of {size} samples does not depend on the others; in another order the "
            f"forward raises {type(error.error).__name__}, as if it needs samples sorted by length"
        )
        return
    if leaks is not None and (forward_facts(subject).consumed or draws_in_eval(subject)):
        yield passed(
            f"the first of {size} samples does not depend on the others; the output is random "
            "in eval mode, so another order gives samples other random numbers"
        )
        return
    if leaks is not None:
        dim = other_batch_dim(subject)
        yield (
            explain.placed(subject, batch, turned, rows, order, leaks)
            if dim is None
            else (explain.other_dim(subject, dim, leaks))
        )
        return
    if doubtful:
        yield inconclusive(_TOGETHER)
        return
    yield passed(
        f"{len(rows.dims)} outputs: the first of {size} samples does not depend on the others, "
        "and samples keep their outputs in another order"
    )


def draws_in_eval(subject: Subject) -> bool:
    """Say whether the output in eval mode follows the seed, whichever generator draws: torch's, one made in forward."""
    first, other = outputs(subject), outputs(subject, seed=1)
    return any(path not in other or not trees.same(t, other[path]) for path, t in first.items())


def _replace(subject: Subject, batch: Batch, other: Batch, keep: torch.Tensor) -> Batch:
    """Return the batch with the samples not in ``keep`` taken from another one."""
    axes = subject.source.axes(subject.source.batch_symbol or "")
    others = other.tensors()

    def change(path: str, leaf: object) -> object:
        if not isinstance(leaf, torch.Tensor) or path not in axes:
            return leaf
        return choose_rows(keep, leaf, others[path], axes[path])

    return batch.map(change)


def _differs(a: Batch, b: Batch) -> bool:
    theirs = dict(b.input_leaves())
    return any(
        isinstance(leaf, torch.Tensor) and not trees.same(leaf, theirs[path])
        for path, leaf in a.input_leaves()
    )


def compare(
    subject: Subject,
    a: Batch,
    b: Batch,
    rows: Rows,
    of_a: torch.Tensor,
    of_b: torch.Tensor,
    small: Batch | None = None,
    known: tuple[dict[str, torch.Tensor] | None, dict[str, torch.Tensor] | None] = (None, None),
) -> dict[str, float] | None:
    """Compare samples ``of_a`` of one run with samples ``of_b`` of another: None where they agree.

    Bits first; where those differ, float64 decides, and rounding in the subject's own dtype where the
    model does not run in float64.

    Args:
        small: Fewer samples of ``a``, ``of_a`` among them, which float64 runs instead where the
            difference is as small as rounding makes it.
        known: The outputs of ``a`` and of ``b`` where they are there.
    """
    mine, theirs = known[0] or outputs(subject, a), known[1] or outputs(subject, b)
    gaps = gaps_between(mine, theirs, rows, of_a, of_b)
    if all(gap == 0.0 for gap in gaps.values()):
        return None
    narrow = all(t.dtype != torch.float64 for t in mine.values())
    if small is not None and narrow and all(gap <= ROUNDED for gap in gaps.values()):
        a = small  # at the full size rounding explains it; float64 has to confirm the principle
    bound = ROUNDING
    try:
        first, second = _wide_outputs(subject, a, b)
        gaps, bound = gaps_between(first, second, rows, of_a, of_b), EXACT
    except SubjectError:
        pass  # hard-wired float32: judged by rounding in the model's own dtype
    wrong = {path: gap for path, gap in gaps.items() if beyond_rounding(subject, a, gap, bound)}
    seen = forward_facts(subject)
    if wrong and (seen.keeps or not seen.repeats):
        after = _once_initialised(subject, a, b, rows, of_a, of_b)
        wrong = {path: gap for path, gap in wrong.items() if after.get(path, gap) > ROUNDED}
    return wrong or None


def _once_initialised(
    subject: Subject, a: Batch, b: Batch, rows: Rows, of_a: torch.Tensor, of_b: torch.Tensor
) -> dict[str, float]:
    """Compare from the state that a first forward leaves: it may take it from its batch, as centres of clusters.

    Nothing is compared where a second forward leaves another state: then each follows its batch.
    """
    with subject.pristine(train=False) as model:
        outputs_of(subject, model, a)
        mine, theirs = outputs_of(subject, model, a), outputs_of(subject, model, b)
        again = outputs_of(subject, model, a)
    settled = mine.keys() == again.keys() and all(trees.same(t, again[p]) for p, t in mine.items())
    return gaps_between(mine, theirs, rows, of_a, of_b) if settled else {}


def _wide_outputs(subject: Subject, *batches: Batch) -> list[dict[str, torch.Tensor]]:
    """Return the outputs of batches in float64, each of a model that has kept nothing of another call."""
    seen = forward_facts(subject)
    if len(batches) > 1 and (seen.keeps or not seen.repeats):
        return [found for batch in batches for found in _wide_outputs(subject, batch)]
    found = []
    with subject.in_double() as model, torch.no_grad():
        for batch in batches:
            model.eval()
            seed_everything(subject.seed)
            output = subject.call(model, batch.to(dtype=torch.float64).clone())
            found.append(copied(output))
    return found


def beyond_rounding(subject: Subject, batch: Batch, gap: float, bound: float) -> bool:
    """Say whether a relative difference is more than rounding makes.

    A forward that casts to float32 in between (a softmax, a norm) rounds to that in float64 as
    well; it is looked at only where that decides.

    Args:
        subject: The model.
        batch: A batch that it runs.
        gap: The difference.
        bound: What rounding explains in the dtype in which it was measured.
    """
    if gap <= bound:
        return False
    if bound != EXACT or not gap <= ROUNDING:
        return True
    if "computes-narrow" not in subject.cache:
        subject.cache["computes-narrow"] = explain.computes_narrow(subject, batch)
    return not subject.cache["computes-narrow"]
