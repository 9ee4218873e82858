"""What a loss asks for beside a fit: an output that is pulled off its target."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...explanation import on_line
from ...findings import Culprit, Finding
from ...verdicts import violated

if TYPE_CHECKING:
    from ...probes.loss.coupling import PulledOff


def pulled_off(found: PulledOff) -> Finding:
    """Explain an output that a term of other labels pulls off what it is fitted to."""
    place = found.op.location if found.op is not None else None
    where = on_line(place)
    return violated(
        "fit-pulled-off",
        f"{found.path} is fitted to {found.target}, and the term of {found.labels} pulls it off",
        culprits=[Culprit("output", found.path, "is read with its gradient", place)],
        location=place,
        observed=f"the loss is lowest {found.by:.2g} standard deviations of {found.target} away from {found.target}",
        cause=f"a term that reads {found.labels} reads {found.path} with its gradient{where}, as a weight that the "
        "loss may change",
        because=f"where {found.path} equals {found.target} the fit has no slope; what is left is the same on both "
        f"sides, and another for other {found.labels}",
        fix=f"detach {found.path} where the weight is computed{where}",
    )
