"""A graph that leaves an eval forward though gradients are off, explained."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...explanation import on_line
from ...findings import Culprit, Finding
from ...probes.holding.step_leaks import grad_line
from ...text.units import format_bytes
from ...verdicts import suspicious, violated

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...probes.gradient.kept_graph import KeptGraph
    from ...subject import Subject


def inference_graph(subject: Subject, paths: Sequence[str], total: int, kept: KeptGraph) -> Finding:
    """Explain outputs that carry a graph under ``no_grad``.

    Where the forward or the loss differentiates them, gradients are on for a reason: then the graph
    costs memory, and the model is not wrong.

    Args:
        paths: Those outputs.
        total: How many outputs there are.
        kept: What was seen.
    """
    summary = f"{paths[0]} carries a graph under no_grad"
    observed = f"{len(paths)} of {total} outputs have a grad_fn; {format_bytes(kept.kept_bytes)} are saved for backward"
    culprits = [Culprit("output", path, "has a grad_fn") for path in paths]
    known = kept.derivatives.get(paths[0])
    if known is None:
        return violated(
            "inference-graph",
            summary,
            culprits=culprits,
            location=grad_line(subject),
            observed=observed,
            cause="the forward enables gradients itself, so inference retains activations",
            because="the call ran under torch.no_grad() and its output still has a grad_fn",
            fix="enable gradients only around the code that needs them, and return the output "
            "detached in eval mode",
        )
    line = on_line(known.location)
    who = "the forward" if known.within else "the loss"
    connected = known.within and known.connected
    return suspicious(
        "inference-graph",
        summary,
        culprits=[
            *culprits,
            Culprit(
                "call",
                "autograd.grad",
                (
                    "computes a derivative, with create_graph=True"
                    if connected
                    else "computes a derivative"
                ),
                known.location,
            ),
        ],
        location=known.location if known.within else grad_line(subject),
        observed=observed,
        cause=f"{who} computes a derivative{line}, which needs gradients enabled; in evaluation "
        "too, the output keeps its graph",
        because="the call ran under torch.no_grad() in eval mode, and its output still has a grad_fn",
        fix=("pass create_graph=self.training" + line + ", and " if connected else "")
        + "return the output detached (.detach()) when not self.training",
    )
