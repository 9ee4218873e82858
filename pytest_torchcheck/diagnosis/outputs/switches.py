"""Forwards that depend on whether a graph is recorded, and forwards that set their own mode."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ... import sources
from ...explanation import on_line
from ...findings import Culprit
from ...text.wording import names_text
from ...verdicts import suspicious, violated

if TYPE_CHECKING:
    from ...findings import Finding
    from ...subject import Subject

_LARGE = 0.01
"""Relative difference above which no iteration to a tolerance explains two results."""


def needs_graph(subject: Subject) -> Finding:
    """Explain a forward that raises under ``torch.no_grad()``."""
    needed = subject.graphs.needed
    place = next(iter(needed.values()))
    both = (
        "train and eval mode"
        if len(needed) > 1
        else "train mode"
        if True in needed
        else "eval mode"
    )
    return suspicious(
        "needs-gradients",
        f"the forward raises under torch.no_grad() in {both}",
        culprits=[Culprit("call", place.text[:80], "needs a graph", place)] if place else [],
        location=place,
        observed="the same forward runs where gradients are recorded; the other checks ran it so",
        cause=f"the operation{on_line(place)} needs a graph, which torch.no_grad() does not record",
        because="torch raised an error about gradients, and raised none with torch.enable_grad()",
        fix=f"run what needs a graph{on_line(place)} under torch.enable_grad(), or skip it where "
        "torch.is_grad_enabled() is False",
    )


def differs_by_graph(subject: Subject, distance: float) -> Finding:
    """Explain outputs that differ between a forward that records a graph and one that does not."""
    place = next(
        (
            found
            for module in subject.model.modules()
            if (found := sources.search(type(module), r"is_grad_enabled|is_inference")) is not None
            and sources.rank(found.file)
        ),
        None,
    )
    return (violated if distance > _LARGE else suspicious)(
        "graph-decides",
        "the forward gives another output under torch.no_grad()",
        culprits=[Culprit("call", place.text[:80], "depends on the gradient mode", place)]
        if place
        else [],
        location=place,
        observed=f"in train mode, with one seed, the outputs differ by {distance:.3g} (relative)",
        cause="the forward asks whether gradients are recorded, and computes something else",
        because="batch, weights, seed and mode were the same; only torch.no_grad() differed, and each "
        "of the two repeats",
        fix="compute the same with and without gradients: an evaluation under torch.no_grad() does "
        "not measure what was trained",
    )


def flips_mode(subject: Subject, flipped: tuple[str, ...], *, train: bool) -> Finding:
    """Explain a forward that leaves modules in another mode than it found them in."""
    mode = "eval" if train else "train"
    owner = subject.model.get_submodule(flipped[0].rpartition(".")[0])
    pattern = rf"\.{'eval' if train else 'train'}\("
    place = sources.search(type(owner), pattern) or sources.search(type(subject.model), pattern)
    root = "" in flipped
    named = "the model" if root else names_text(list(flipped))
    return (violated if root else suspicious)(
        "mode-flipped",
        f"a forward in {'train' if train else 'eval'} mode puts {named} into {mode} mode",
        culprits=[
            Culprit("module", n or "the model itself", f"{mode} mode", place) for n in flipped[:6]
        ],
        location=place,
        observed=f"{len(flipped)} of {sum(1 for _ in subject.model.modules())} modules change their mode",
        cause=f"the forward calls {mode}(){on_line(place)}",
        because="module.training differs before and after one forward",
        fix="leave the mode to whoever calls the model; freeze a part in an overridden train()",
    )
