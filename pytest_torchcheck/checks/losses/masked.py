"""Whether the labels that count are those of the tokens that a masked model is given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from ...objects import trees
from ...probes.loss.consumption import LossWatch
from ...record.hooks import hooked
from ...subject.errors import SubjectError

if TYPE_CHECKING:
    from ...subject import Subject

    Wanted = tuple[torch.Tensor, torch.Tensor]

_COUNTED: Final = 20
"""Positions that count: of so many, masked ones that all keep their token by chance are out of the question."""
_HIDDEN: Final = 4
"""Times that the token stands which replaces others."""
_KEPT: Final = 2
"""Of those that are left out, tokens that count elsewhere: separators and padding are left out wherever they stand."""
_SPREAD: Final = 3
"""Columns in which the token stands: one that begins or ends each row stands in fewer."""
_SAME: Final = 0.8
"""Share of the tokens that two draws of one text have in common, where neither is hidden."""


def left_out(ids: torch.Tensor, wanted: Wanted, padding: torch.Tensor) -> int | None:
    """Return the token that may hide others, where none of these counts and all that are given do; None elsewhere.

    Args:
        ids: int64, ``[B, T]``, what the model is given.
        wanted: int64 and bool, ``[B, T]``: what the loss pulls each position to, and where it pulls at all.
        padding: bool, the ends of rows.
    """
    implied, counts = wanted
    left = ids[~counts & ~padding]
    if int(counts.sum()) < _COUNTED or not len(left) or bool((implied != ids)[counts].any()):
        return None
    values, times = left.unique(return_counts=True)
    token, most = int(values[times.argmax()]), int(times.max())
    columns = int(((ids == token) & ~counts).any(0).sum())
    hides = most >= _HIDDEN and 2 * most >= len(left) and columns >= _SPREAD
    return token if hides and not bool((ids[counts] == token).any()) else None


def hides_others(
    subject: Subject, ids: torch.Tensor, counts: torch.Tensor, left: torch.Tensor, token: int
) -> str:
    """Return what shows that a token stands for others, and is no separator; empty where nothing does.

    Of the tokens that a masked model is asked for, some are replaced by random ones, or kept: then tokens are left out
    that count elsewhere. And a step that draws the masks anew gives the model other tokens there.
    """
    if (kept := int(torch.isin(ids[left], ids[counts].unique()).sum())) >= _KEPT:
        return (
            f"{kept} of those that do not count hold tokens that count elsewhere, as a masked model "
            "keeps or draws some"
        )
    drawn = 0 if subject.contract.train_step is None else _drawn_anew(subject, ids, token)
    return f"a training step gives the model {token} at {drawn} other positions" if drawn else ""


def _drawn_anew(subject: Subject, ids: torch.Tensor, token: int) -> int:
    """Return at how many places a step hides a token of this batch and ignores its label; 0 if it differs otherwise."""
    seen: list[torch.Tensor] = []

    def hook(_: Any, args: Any, kwargs: Any) -> None:
        given = trees.tensors((args, kwargs)).values()
        seen.extend(t.clone() for t in given if t.shape == ids.shape and t.dtype == ids.dtype)

    watch = LossWatch()
    with subject.pristine(steps=True, train=True, seeded=True) as model:
        handle = model.register_forward_pre_hook(hook, with_kwargs=True)
        try:
            with hooked([handle]), watch:
                subject.train_step(model, subject.make_optimizer(model), subject.batch().clone())
        except SubjectError:
            return 0  # weights-update explains it
    calls = [call for call in watch.calls if call.op.name == "F.cross_entropy"]
    target = calls[0].target if len(calls) == 1 else None
    if (
        len(seen) != 1
        or target is None
        or target.numel() != ids.numel()
        or target.is_floating_point()
    ):
        return 0
    (given,), labels = seen, target.reshape(ids.shape)
    counts = labels != calls[0].options.get("ignore_index", -100)
    hidden = (given == token) & (ids != token) & ~counts
    both = (given != token) & (ids != token)
    same = float((given == ids)[both].float().mean()) if bool(both.any()) else 0.0
    copied = not bool((labels != given)[counts].any())
    return int(hidden.sum()) if copied and same >= _SAME and int(hidden.sum()) >= _HIDDEN else 0


def exchanged(ids: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Return tokens of which one that counts is another one of them, in the first row that holds any."""
    row = int(counts.any(1).nonzero()[0])
    place = int(counts[row].nonzero()[0])
    others = ids[counts & (ids != ids[row, place])]
    changed = ids.clone()
    changed[row, place] = others[0] if len(others) else ids[row, place]
    return changed
