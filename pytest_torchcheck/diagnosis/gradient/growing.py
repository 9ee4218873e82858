"""A gradient that grows from layer to layer, whatever the outputs do."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ...findings import Culprit, Finding
from ...verdicts import violated
from ..loss.bounds import initialisation_line

if TYPE_CHECKING:
    from ...probes.numbers.signal_facts import Tap
    from ...subject import Subject


def _weight_of(subject: Subject, tap: Tap) -> str:
    """Return the name of the first weight matrix that a layer holds itself."""
    layer = dict(subject.model.named_modules()).get(tap.name)
    own = layer._parameters.items() if layer is not None else ()
    named = (name for name, p in own if p is not None and p.dim() > 1)
    return f"{tap.name}.{next(named, 'weight')}"


def growing(subject: Subject, chain: list[Tap], *, evidence: dict[str, Any]) -> Finding:
    """Explain a gradient that grows from each of some layers to the one before it, whatever the outputs do."""
    first, last = chain[0], chain[-1]
    sizes = ", ".join(f"{tap.gradient:.3g}" for tap in reversed(chain))
    least = min((a.gradient or 0.0) / (b.gradient or 1.0) for a, b in pairwise(chain))
    weights = [_weight_of(subject, tap) for tap in chain[1:]]
    lines = [initialisation_line(subject, name) for name in weights]
    return violated(
        "signal-explodes",
        f"the gradient explodes over {len(chain)} layers, from {last.name} back to {first.name}",
        culprits=[
            Culprit("parameter", name, "magnifies the gradient", line)
            for name, line in zip(weights, lines, strict=True)
        ],
        location=next((line for line in lines if line is not None), None),
        observed=f"root mean squares of the gradient at the outputs, from the last of them back: {sizes}",
        cause=f"the initialisation of {weights[0]} does not suit what follows: its product with the slope of the "
        "nonlinearity is too large",
        because=f"from each of these {first.kind} layers to the one before it the gradient grows {least:.3g}-fold or more, "
        "with nothing normalised in between",
        fix="initialise these weights with a smaller std: divide it by the factor that the nonlinearity gives its input, "
        "such as the frequency of a sine",
        evidence=evidence,
    )
