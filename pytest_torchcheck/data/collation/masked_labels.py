"""Are the labels of masked tokens what was masked, or what was put in their place?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from ... import sources
from ...findings import Culprit, Finding
from ...lean import dataclass
from ...verdicts import violated
from ..wording import called, line_ref
from .making import making_lines
from .pairing import collated

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...findings import Location
    from ..plan import Part
    from ..validity import Survey

_MOST: Final = 8
_DRAWS: Final = 4
_FEWEST: Final = 8
"""How many labels of changed tokens must be seen."""
_KINDS: Final = 3
"""How many tokens must be seen in places that have a label in another draw: padding is one or two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Covered:
    """Labels that are the input itself, wherever a draw of the collate function has changed it.

    Attributes:
        inputs, labels: The two fields of the batch.
        scored: How many labels were seen, over all draws.
        changed: How many of these stand where another draw has left another token.
        made: The line that makes the labels.
    """

    inputs: str
    labels: str
    scored: int
    changed: int
    made: Location | None


def covered(survey: Survey) -> Covered | None:
    """Make batches of the same samples; None where labels are other than inputs, or stand at the same places always.

    What a masked token was must be predicted from its neighbours. Where its label is what the token was replaced by, it
    can be read off. Other losses have labels that are their inputs, too: of the next token, at the same places for
    every draw.

    Cost: one batch where labels are no such inputs; four at most.
    """
    part = survey.part
    chosen = [sample.index for sample in survey.samples][:_MOST]
    drawn: list[dict[str, torch.Tensor]] = []
    pair: tuple[str, str] | None = None
    for draw in range(_DRAWS if chosen else 0):
        try:
            drawn.append(collated(part, chosen, survey.seed, batch=draw))
        except (
            Exception
        ):  # samples-valid and worker-delivery explain what a collate function raises
            return None
        pair = pair or _same_fields(drawn[0])
        if pair is None or not _is_same(drawn[-1], *pair):
            return None
    if pair is None or (counts := _counts([(one[pair[0]], one[pair[1]]) for one in drawn])) is None:
        return None
    (made,) = making_lines(part, chosen, survey.seed, [drawn[0][pair[1]]])
    return Covered(inputs=pair[0], labels=pair[1], made=made, scored=counts[0], changed=counts[1])


def _same_fields(batch: dict[str, torch.Tensor]) -> tuple[str, str] | None:
    whole = [n for n, t in batch.items() if t.dtype in (torch.int64, torch.int32) and t.dim() > 1]
    pairs = ((a, b) for a in whole for b in whole if a != b and _is_same(batch, a, b))
    return next(pairs, None)


def _is_same(batch: dict[str, torch.Tensor], inputs: str, labels: str) -> bool:
    """Say whether labels are the inputs at some places, and negative at all others."""
    if inputs not in batch or labels not in batch or batch[inputs].shape != batch[labels].shape:
        return False
    scored = batch[labels] >= 0
    same = torch.equal(batch[labels][scored], batch[inputs][scored].to(batch[labels].dtype))
    return same and bool((batch[inputs] >= 0).all()) and 0 < int(scored.sum()) < scored.numel()


def _counts(drawn: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> tuple[int, int] | None:
    """Count labels, and those of tokens that a draw has changed; None where tokens change without labels, or never."""
    if len({tuple(ids.shape) for ids, _ in drawn}) != 1:
        return None
    tokens, scored = (torch.stack(t) for t in zip(*((i, y >= 0) for i, y in drawn), strict=True))
    # what stands there while it has no label is a token, and no padding behind samples of a drawn length
    flips = scored.any(0) & ~scored
    if len(tokens[flips].unique()) < _KINDS:
        return None
    for one in range(len(drawn)):
        differ = (tokens != tokens[one]) & ~scored & ~scored[one]
        if bool(differ.any()):
            return None
    changed = int(((tokens != tokens[:1]).any(0) & scored).sum())
    return (int(scored.sum()), changed) if changed >= _FEWEST else None


def labels_covered(part: Part, found: Covered) -> Finding:
    """Explain labels of masked tokens that were read after the tokens were masked."""
    collate: Any = part.plan.collate_fn
    name = called(collate)
    place = found.made or sources.of_object(collate)
    return violated(
        "labels-after-masking",
        f"{part.prefix}{found.labels} are what {name} puts into {found.inputs}, not what it replaces",
        culprits=(
            Culprit("dataset", f"{part.prefix}{found.labels}", "read after masking", place),
            Culprit("function", name, "collate function", sources.of_object(collate)),
        ),
        location=place,
        observed=f"all {found.scored} labels in {_DRAWS} batches of the same samples are the tokens that stand at "
        f"their places in {found.inputs}; {found.changed} of them are at places where another draw has another token",
        cause="the labels are taken from the tokens after these were replaced, or share their memory",
        because="tokens change from draw to draw where there are labels, and nowhere else: the model is to predict "
        "what was there before, and finds every label in its input",
        fix=f"keep a copy of the tokens before masking, and take the labels from it"
        f"{' at ' + line_ref(place) if place is not None else ''}",
        evidence={"labels": found.scored, "changed": found.changed},
    )
