"""Exceptions of the user's code: torch's messages decide the code."""

from __future__ import annotations

from ..explanation import Explanation
from ..findings import Finding, Location
from .explainer import Explainer

explain_error = Explainer[Explanation]("diagnosis.crashes.explain:explain_error")
own_loss_line = Explainer[Location | None]("diagnosis.loss.consumed:own_loss_line")
FURTHER = {
    "out-of-memory": Explainer[Finding](
        "diagnosis.stored.memory:with_live_tensors", "out-of-memory"
    )
}
"""By code, what is measured in the subject once the code of an exception is known."""
