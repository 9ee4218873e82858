"""The loss falls along its gradient by what the gradient says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...codes import gradients as explain
from ...probes.gradient.places import gradient_by_place
from ...probes.loss.coupling import uncut, weight_cut
from ...runs.losses import slopes
from ...runs.losses.bootstrapped import bootstrapped
from ...runs.training.steps import trains_by_several
from ...verdicts import inconclusive, not_applicable, passed
from .targets import loss_of_output

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...findings import Finding
    from ...subject import Subject


_LARGE_BYTES = 64 * 2**20


def descent(subject: Subject) -> Iterator[Finding]:
    """Compare the loss at two points along the gradient with the gradient, in float64.

    A gradient that leaves out a part of the loss (a factor that was detached, a value that went
    through a Python number) says another slope than the loss has. Where a ``detach()`` or
    ``no_grad()`` on the way explains it, the finding is suspicious and names the line, since
    stop-gradients are often meant. A gradient whose forward is constant by pieces (a
    straight-through estimator) is a surrogate by design. A gradient that is cut for some places of the
    batch only is never meant: samples are moved, and each one's gradient must move with its output.
    """
    subject.require_trainable()
    size = sum(p.numel() * p.element_size() for p in subject.model.parameters())
    if size > _LARGE_BYTES and "float64" not in (subject.contract.dtypes or ()):
        yield not_applicable(
            f"the parameters take {size / 2**20:.0f} MiB: in float64 they and their gradients "
            "would take four times as much; declare float64 among the contract's dtypes to run "
            "this check"
        )
        return
    if trains_by_several(subject):
        yield not_applicable("several optimizers each minimise a part of the loss")
        return
    found = slopes.descent(subject)
    if found.refused:
        yield inconclusive(f"the slope of the loss was not compared: {found.refused}")
        return
    first = found.slopes[0]
    shown: dict[str, Any] = {
        "promised": found.promised,
        "slopes": {f"{s.step:g}": s.middle for s in found.slopes},
    }
    if found.holds:
        yield passed(
            f"the loss follows its gradient: {found.ratio(first):.4f} of the predicted slope at "
            f"a relative step of {first.step:g}",
            evidence=shown,
        )
    elif not found.steady:
        yield inconclusive("a second evaluation from the same state and seed gives another loss")
    elif found.measured is None:
        yield inconclusive(
            "the loss has no constant slope here, as with rounding or kinks: "
            + ", ".join(
                f"{found.ratio(s):.4g} of the predicted slope at {s.step:g}" for s in found.slopes
            )
        )
    elif (placed := gradient_by_place(subject)) is not None:
        yield explain.by_place(subject, placed)
    elif reason := _cut_for_good(subject):
        yield not_applicable(reason)
    else:
        yield explain.unlike_the_loss(subject, found, found.measured, shown)


def _cut_for_good(subject: Subject) -> str:
    """Return why the loss should cut what it cuts: with the gradient it would be another; empty where it need not."""
    own = loss_of_output(subject)
    if isinstance(own, str):
        return ""
    if cut := weight_cut(own):
        return (
            f"the loss cuts {cut.path} where it weighs the term of {cut.labels}, and fits it to {cut.target} by "
            "another: with its gradient in both, the former would pull it off"
        )
    with uncut():
        target = bootstrapped(subject, own)
    if target is None or bootstrapped(subject, own) is not None:
        return ""
    return (
        f"the loss cuts a target that it computes from {target.reward} and outputs, up to {target.end}: with its "
        "gradient, each step would move the target too"
    )
