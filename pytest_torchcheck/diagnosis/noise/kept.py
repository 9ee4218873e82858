"""Noise that the first training forward draws, and all later ones read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...findings import Culprit
from ...verdicts import violated

if TYPE_CHECKING:
    from ...findings import Finding
    from ...runs.variants.kept_noise import KeptNoise
    from ...subject import Subject


def kept(subject: Subject, found: KeptNoise) -> Finding:
    """Explain a dropout mask, or other noise, that is drawn once.

    Args:
        subject: Whose model.
        found: The noise.
    """
    piece = found.piece
    name, kind = piece.name, type(piece.owner).__name__
    mask = found.dropped is not None
    what = "dropout mask" if mask else "noise"
    shape = list(piece.value.shape)  # type: ignore[union-attr]
    detail = f"{found.dropped:.0%} of it are zeros" if mask else "drawn once"
    return violated(
        "noise-kept",
        f"every training forward reads the same {what}: the first one draws {name}, no later one does",
        culprits=[
            Culprit("buffer" if piece.kind == "buffer" else "tensor", name, detail, piece.location),
            Culprit("module", name.rpartition(".")[0] or kind, f"{kind} keeps it", found.location),
        ],
        location=found.location or piece.location,
        observed=f"{name} {shape} is as the first of {found.calls} training forwards drew it after all of "
        f"them, though each had "
        "another seed; evaluation does not read it",
        cause=f"{kind} draws it only where it has none, and nothing takes it away again"
        + (": the same values are dropped in every batch" if mask else ""),
        because=f"with another draw in {name} the training output changes, and that of evaluation does not",
        fix=f"draw it in each training forward, or set {name.rpartition('.')[2]} to None at its start; "
        f"where it is to be the "
        "same for all time steps of one forward, draw it before the first step",
        evidence={"shape": shape, "dropped": found.dropped},
    )  # fmt: skip
