"""A NaN within the loss that is replaced by a number, and takes entries of the output with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...explanation import on_line
from ...findings import Culprit, Finding
from ...verdicts import suspicious, violated

if TYPE_CHECKING:
    from ...probes.loss.lost import Lost
    from ...probes.loss.undefined import Undefined


def hidden_nan(found: Undefined, lost: Lost | None) -> Finding:
    """Explain entries of an output that no longer count, since a function is not defined for them.

    Args:
        found: The function.
        lost: The entries; None in a step of the user's, where it was not tried whether they count elsewhere.
    """
    place = found.op.location
    numbers = f"{found.count} of {found.total} finite numbers"
    culprits = [Culprit("call", found.op.name, f"NaN for {numbers}", place)]
    if lost is not None:
        culprits.append(Culprit("output", lost.path, "entries without a gradient", place))
        summary = f"{lost.count} of {lost.total} entries of {lost.path} are left out of the loss: NaN is replaced there"
        because = "the gradient of the loss by these entries is 0 here, and not 0 for other outputs"
    else:
        summary = f"{found.op.name} gives NaN for {numbers}, which the loss replaces"
        because = "the gradient that backward sent to these numbers is 0"
    return (suspicious if lost is None else violated)(
        "nan-hidden",
        summary,
        culprits=culprits,
        location=place,
        observed=f"{found.op.name} gives NaN for {numbers} (as far as {found.extreme:.3g}), and the loss is finite",
        cause=f"{found.op.name} is not defined for these numbers, and what replaces the NaN has no gradient",
        because=because,
        fix=f"make the argument{on_line(place)} one for which {found.op.name} is defined (softplus, exp, or a "
        "prediction of the logarithm itself), and do not replace NaN",
    )
