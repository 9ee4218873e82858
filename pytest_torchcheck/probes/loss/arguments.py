"""What the values and options of one call of a loss function tell: labels of a CTC loss, rates, log-probabilities."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ...objects import trees
from .consumption import POSITIVE

if TYPE_CHECKING:
    from .consumption import LossCall, Producer


@dataclass(frozen=True, slots=True, kw_only=True)
class Alignable:
    """The labels of a CTC loss, those beyond ``target_lengths`` left out; plain data.

    Attributes:
        classes: Size of the class dimension, the blank included.
        blank: Its index.
        low, top: Smallest and largest label.
        counted: How many labels count.
        blanks: How many of them are the blank.
        trailing: Whether every blank stands behind the last other label of its row, as padding does.
    """

    classes: int
    blank: int
    low: int
    top: int
    counted: int
    blanks: int
    trailing: bool


def alignable(call: LossCall) -> Alignable | None:
    """Return the labels of a call of ``F.ctc_loss``; None of another, and where no label counts."""
    if call.op.name != "F.ctc_loss" or call.target is None or len(call.arguments) < 4:
        return None
    lengths = torch.as_tensor(call.arguments[3]).flatten().tolist()
    target = call.target.detach()
    if target.dim() == 2 and len(target) == len(lengths):
        rows = [row[:n].tolist() for row, n in zip(target, lengths, strict=True)]
    else:
        flat, rows = target.flatten().tolist(), []
        for n in lengths:
            rows.append(flat[:n])
            flat = flat[n:]
    labels = [int(label) for row in rows for label in row]
    if not labels:
        return None
    blank = int(call.options.get("blank", 0))
    return Alignable(
        classes=call.input.shape[-1],
        blank=blank,
        low=min(labels),
        top=max(labels),
        counted=len(labels),
        blanks=labels.count(blank),
        trailing=all(blank not in row[: _last_other(row, blank)] for row in rows),
    )


def _last_other(row: list[int], blank: int) -> int:
    return max((i for i, label in enumerate(row) if label != blank), default=len(row) - 1) + 1


def misfit(call: LossCall, values: torch.Tensor, grad: torch.Tensor | None) -> str:
    """Return the code of what is wrong with the input of a loss of rates or of log-probabilities; empty for nothing.

    Args:
        call: The call.
        values: Its input, dense and finite.
        grad: The loss's gradient to it.
    """
    if call.op.name == "F.poisson_nll_loss":
        return _rate(bool(call.options.get("log_input", True)), values, call.producer)
    if call.op.name == "F.kl_div" and not call.options.get("log_target", False):
        return _divergence(call.target, values, grad, call.producer)
    return ""


def _rate(logged: bool, values: torch.Tensor, producer: Producer | None) -> str:
    if not logged:
        return "log-as-rate" if float(values.min()) < 0 else ""
    made = producer is not None and producer.kind in POSITIVE
    return "rate-as-log" if made and float(values.min()) >= 0 else ""


def _divergence(
    target: Any, values: torch.Tensor, grad: torch.Tensor | None, producer: Producer | None
) -> str:
    """Tell logits from log-probabilities: some are positive, and to raise all of a row lowers the loss for ever."""
    if target is None or grad is None or target.shape != values.shape or values.dim() < 2:
        return ""
    if float(values.max()) <= 0 or producer is None or "log" in producer.kind:
        return ""
    goal, slope = trees.dense(target.detach()).float(), trees.dense(grad).float()
    for dim in (-1, 1):
        if values.shape[dim] < 2 or not bool(((goal.sum(dim) - 1).abs() < 1e-3).all()):
            continue
        rows, size = slope.sum(dim), slope.abs().sum(dim)
        if bool((goal >= 0).all()) and bool(((rows < -0.01 * size) & (size > 0)).all()):
            return "kl-of-logits"
    return ""
