"""A change, judged: a contract's model as it is beside what it was, at a git reference or in a record."""

from __future__ import annotations

from typing import Final

CHANGES: Final = ("state", "outputs", "init", "cost")
"""What may change between two versions, and may be expected or allowed to."""
