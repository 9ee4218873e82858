"""Second derivatives that hold mixed derivatives, explained."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ... import sources
from ...explanation import on_line
from ...findings import Culprit
from ...verdicts import violated

if TYPE_CHECKING:
    from ...findings import Finding
    from ...probes.gradient.row_sums import RowSum


def mixed_into(found: RowSum, off: float, size: float) -> Finding:
    """Explain a second derivative of all components of a gradient at once, whose columns are used.

    Args:
        found: The derivative.
        off: By how much a column differs from the second derivative by that component.
        size: The largest second derivative.
    """
    place, used = found.location, found.used.location
    name = (sources.assigned_name(place) if place is not None else "") or "autograd.grad"
    function = (place.function if place is not None else "").rpartition(".")[2]
    owner = (
        [Culprit("function", function, "takes the second derivative", place)] if function else []
    )
    line = on_line(place)
    return violated(
        "derivatives-mixed",
        f"{name}{line} holds mixed derivatives: it differentiates {found.columns} components of a gradient at once",
        culprits=[
            Culprit("tensor", name, "is a sum over the rows of the Hessian", place),
            *owner,
            Culprit("call", found.used.name, "takes it for unmixed second derivatives", used),
        ],
        location=place,
        observed=f"column k of the result is off by up to {off:.3g} from the derivative of component k by "
        f"input k alone (the largest is {size:.3g})",
        cause="autograd.grad with the same weight for all components adds their derivatives: column k is the sum of "
        "d2u / dx_i dx_k over all i, not d2u / dx_k dx_k",
        because="component by component, the other columns are not zero; "
        f"{found.used.name.rpartition('.')[2]}{on_line(used)} takes columns of the sum",
        fix="differentiate each component by itself: torch.autograd.grad(first[:, k].sum(), x, "
        f"create_graph=True)[0][:, k] for each k{line}",
        evidence={"off": off, "size": size},
    )
