"""Why samples depend on their batch."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from ... import sources
from ...findings import Culprit, Finding
from ...runs.facts import outputs
from ...runs.outputs import gaps_between, outputs_of
from ...runs.unrounded import apart_by_rounding
from ...subject.errors import SubjectError
from ...verdicts import suspicious, violated
from ..mixing.branches import parting_line
from ..mixing.rewritten import rewritten
from . import places

if TYPE_CHECKING:
    from ...batches import Batch
    from ...runs.outputs import Rows
    from ...subject import Subject
    from ..crashes.place import Place


def forward_line(subject: Subject) -> Any:
    """Return where the model's own ``forward`` begins."""
    return sources.of_object(type(subject.model).forward)


SLIGHT = 1e-5
"""Relative influence of other samples below which it may be a tolerance, as of a solver's shared
step size."""


def may_be_meant(subject: Subject, rows: Rows, gaps: dict[str, float]) -> bool:
    """Say whether the influence is slight, or one number of the batch that stands for each sample, as a loss does.

    The latter only beside outputs of the samples that keep to themselves.
    """
    made = outputs(subject)
    shared = all(made[p].dim() == 1 and bool((made[p] == made[p][0]).all()) for p in gaps)
    return max(gaps.values()) < SLIGHT or (shared and bool(rows.dims.keys() - gaps.keys()))


def mixed(
    subject: Subject, batch: Batch, other: Batch, rows: Rows, gaps: dict[str, float]
) -> Finding:
    """Explain an output that changes when only other samples change."""
    size = batch.sizes[subject.source.batch_symbol or ""]
    place = parting_line(subject, batch, other) or places.mixing_line(subject)
    path, gap = max(gaps.items(), key=lambda item: item[1])
    first = torch.zeros(1, dtype=torch.int64)
    if only_batch_statistics(subject, batch, other, rows, first, first):
        return of_statistics("batch-statistics", path, gap, place)
    if apart_by_rounding(subject, batch, other, rows, first, first):
        return one_grid("samples-mixed", path, gap, place)
    place = rewritten(subject, batch, other, rows, first, first) or place
    place = decided(place)
    return places.finding_at(
        place,
        subject,
        "samples-mixed",
        f"{path} of one sample depends on the other samples of the batch",
        made=suspicious if may_be_meant(subject, rows, gaps) else violated,
        instead=Culprit("output", path, "mixed"),
        observed=f"only the other samples of {size} changed, yet {path} of the first one moved by "
        f"{gap:.3g} (relative)",
        cause="an operation mixes the batch dimension with another one",
        because="same shapes, same seed, eval mode: only the other samples differed",
        fix="operate per sample on this line: check the dim argument, and reshape or view across the batch",
        evidence={"gaps": dict(gaps)},
    )


def decided(place: Place | None) -> Place | None:
    """Return a place with the condition around its line, and what gave that its values: it may be what is wrong."""
    if place is None or place.location is None:
        return place
    lines = sources.deciding_lines(place.location)
    known = {c.location for c in place.settings}
    found = [Culprit("call", "if", "decides that it runs", at) for at in lines if at not in known]
    return replace(place, settings=(*place.settings, *found[:3]))


def one_grid(code: str, path: str, gap: float, place: Place | None) -> Finding:
    """Explain samples that are rounded on a grid which all samples of their batch decide."""
    return suspicious(
        code,
        f"{path} of a sample is rounded on a grid that the other samples of its batch decide",
        culprits=[] if place is None else place.culprits(),
        location=None if place is None else place.location,
        observed=f"{path} of one sample moved by {gap:.3g} (relative) with the other samples",
        cause="a quantisation scale is computed over the whole batch: per tensor, and from the values "
        "at hand",
        because="where nothing is rounded, the sample gives the same output in both batches",
        fix="compute the scale per sample or per token (amax over the other dimensions), or keep the "
        "one of a calibration in eval mode; if it is meant so, skip the check with this reason",
    )


def of_statistics(code: str, path: str, gap: float, place: Place | None) -> Finding:
    """Explain samples that a normalisation without running statistics makes depend on their batch."""
    return suspicious(
        code,
        "samples are normalised over the batch in eval mode",
        culprits=[] if place is None else place.culprits(),
        location=None if place is None else place.location,
        observed=f"{path} of the first sample changes by {gap:.3g} (relative) with the other samples",
        cause="a normalisation without running statistics uses batch statistics in eval mode too",
        because="track_running_stats is False; where these modules return their input, the sample keeps its output",
        fix="drop track_running_stats=False, so that eval mode uses running statistics",
    )


def only_batch_statistics(
    subject: Subject, first: Batch, second: Batch, rows: Rows, of_first: torch.Tensor, of_second: torch.Tensor
) -> bool:  # fmt: skip
    """Say whether samples of two batches are the same once normalisations without running statistics are left out.

    Args:
        subject: The model; it runs once for each batch, where it has such modules.
        first, second: The batches.
        rows: Where the samples stand in the outputs.
        of_first, of_second: int64 ``[n]``, which samples of each are compared.
    """
    kinds = torch.nn.modules.batchnorm._BatchNorm
    found = [m for m in subject.model.modules() if isinstance(m, kinds) and m.running_mean is None]
    if not found:
        return False
    hooks = [m.register_forward_hook(lambda _module, given, _made: given[0]) for m in found]
    try:
        with subject.pristine() as model:
            made = [outputs_of(subject, model, batch) for batch in (first, second)]
    except SubjectError:
        return False
    finally:
        for hook in hooks:
            hook.remove()
    return max(gaps_between(made[0], made[1], rows, of_first, of_second).values()) < SLIGHT


def placed(
    subject: Subject,
    batch: Batch,
    turned: Batch,
    rows: Rows,
    order: torch.Tensor,
    gaps: dict[str, float],
) -> Finding:
    """Explain an output that depends on the place of its sample in the batch."""
    path, gap = max(gaps.items(), key=lambda item: item[1])
    place = parting_line(subject, batch, turned) or places.mixing_line(subject)
    if place is None or not place.cause:
        place = places.place_dependence(subject, batch, turned, order=order)
    count = torch.arange(len(order))
    if place is None and only_batch_statistics(subject, batch, turned, rows, order, count):
        return of_statistics("batch-statistics", path, gap, place)
    return places.finding_at(
        place,
        subject,
        "sample-order",
        f"{path} of a sample depends on its position in the batch",
        instead=Culprit("output", path, "order"),
        observed=f"the same samples in another order: {path} moved by {gap:.3g} (relative)",
        cause="something indexed by position is applied along the batch dimension",
        because="each sample kept its input; only the order differed",
        fix="index that dimension by sequence position, not by sample: check batch-first against time-first",
        evidence={"gaps": dict(gaps)},
    )


def other_dim(subject: Subject, dim: int, gaps: dict[str, float]) -> Finding:
    """Ask whether the batch lies along another dimension, where that one behaves as the batch does."""
    path, gap = max(gaps.items(), key=lambda item: item[1])
    place = places.mixing_line(subject)
    return suspicious(
        "batch-axis",
        f"dimension {dim} behaves like the batch dimension, and dimension "
        f"{subject.contract.batch_dim} does not: is batch_dim={dim}?",
        culprits=place.culprits() if place else [Culprit("output", path, "mixed")],
        location=place.location if place else forward_line(subject),
        observed=f"along dimension {subject.contract.batch_dim} {path} of an entry changes by "
        f"{gap:.3g} (relative) with the others; along dimension {dim} the entries keep "
        "their outputs",
        cause=f"the inputs are time-first, or a layer wrongly uses dimension {dim} as the batch",
        because=f"the outputs are permuted like the entries along dimension {dim}, and entry 0 keeps "
        "its output when all others are replaced",
        fix=f"declare batch_dim={dim}; or, if dimension {subject.contract.batch_dim} is the batch, check "
        "batch_first and the dim arguments",
    )
