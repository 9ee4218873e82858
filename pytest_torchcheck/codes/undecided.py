"""Codes of what could not be decided, for reasons that lie outside of any check."""

from __future__ import annotations

from typing import Final

BLOCKED: Final = "blocked"
"""What it needs has been lost, or raised, in an earlier check."""
LOOP_UNAVAILABLE: Final = "loop-unavailable"
"""The trainer's loop cannot be run here."""
NO_DEVICE: Final = "no-device"
"""The contract declares a device that this machine lacks."""
NO_VALUES: Final = "no-values"
"""A part of the model is on the meta device."""
NOT_MEASURABLE: Final = "not-measurable"
"""What the check measures cannot be had of this model."""
NOT_PUT_BACK: Final = "not-put-back"
"""A run changes what no check can put back."""
OVER_BUDGET: Final = "over-budget"
"""The contract's checks have used up their time."""
