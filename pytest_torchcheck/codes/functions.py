"""Custom Functions and operators."""

from __future__ import annotations

from .rule import rule

ENTAILS = (
    rule(
        "gradcheck/*",
        "double-backward/* gradcheck-module/* custom-ops/*",
        "overlap",
        "a wrong first derivative makes wrong second ones",
    ),
)
"""What follows from findings of this family."""

NEVER = "never checked"
"""Status of a Function that no contract applied."""
