"""Why the gradient of a sample depends on its place in the batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ... import sources
from ...culprits import parameter
from ...text.wording import names_text
from ...verdicts import violated

if TYPE_CHECKING:
    from ...findings import Finding, Location
    from ...probes.gradient.places import GradientByPlace
    from ...subject import Subject


def by_place(subject: Subject, found: GradientByPlace) -> Finding:
    """Explain samples that train a parameter in some places of the batch only."""
    return violated(
        "gradient-by-place",
        f"whether a sample trains {names_text(list(found.names))} depends on its place in the batch",
        culprits=[parameter(subject, n, "trained from some places only") for n in found.names[:8]],
        location=_cut(subject),
        observed=f"sample {found.sample} has the same output in places {found.places[0]} and {found.places[1]}; "
        f"its gradient by {found.name} has a norm of {found.norms[0]:.4g} there and {found.norms[1]:.4g} here",
        cause="the gradient is cut, or scaled, for some places of the batch",
        because="all samples moved by one place and all outputs moved with them, so the model is the same function",
        fix="let gradients pass for every sample; what decides that some do not must belong to the sample",
        evidence={"parameters": list(found.names)},
    )


def _cut(subject: Subject) -> Location | None:
    """Return the first line of the user's forwards that cuts a gradient."""
    for module in subject.model.modules():
        kind = type(module)
        if sources.is_own_class(kind):
            pattern = r"\.detach\(|no_grad|\.data\b|register_hook|requires_grad"
            if (place := sources.search(kind, pattern)) is not None:
                return place
    return sources.of_own_class(subject.model)
