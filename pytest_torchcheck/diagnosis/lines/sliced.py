"""A line that slices a tensor into parts side by side, and takes one of them again in place of the next."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ...explanation import by_forward
from ...findings import Culprit, Finding
from ...text.wording import names_text
from ...verdicts import violated

if TYPE_CHECKING:
    from ...runs.liveness.sliced import UnreadPart
    from ...subject import Subject


def unread_part(subject: Subject, part: UnreadPart) -> Finding:
    """Explain entries of an input, or of a value, that nothing reads, since a line takes others of them again."""
    sliced, place = part.sliced, part.sliced.location
    dim, size = sliced.spans[0][0], sliced.shape[sliced.spans[0][0]]
    ranges = [f"{start}:{stop}" for start, stop in sliced.unread]
    name = by_forward(subject, part.path) if part.path else part.value
    what = f"entries {names_text(ranges)} of dimension {dim} of {name}"
    starts = Counter(start for _, start, _ in sliced.spans)
    start, times = starts.most_common(1)[0]
    begins = part.start or "the start of the slice"
    return violated(
        "features-unread",
        f"{what} have no influence on the output",
        culprits=[
            Culprit("call", part.text, f"begins at {start} {times} times", place),
            Culprit(
                "input" if part.path else "tensor",
                name,
                f"nothing reads {names_text(ranges)} ({part.path or part.text})",
                place,
            ),
        ],
        location=place,
        observed=f"{part.text} takes {names_text([f'{a}:{b}' for _, a, b in sliced.spans])}, "
        f"{size} entries in all, as many as dimension {dim} has",
        cause=f"{begins} is {start} in {times} of {len(sliced.spans)} turns: it does not move on by the length of "
        "each part",
        because="other values there leave every output bit-equal in either mode, and no other operation reads them",
        fix=f"advance {begins} by the length of the part in each turn",
    )
