"""A function that explains a finding, known by its name until it is needed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ..findings import Finding
from ..late import resolve

Answer = TypeVar("Answer")


@dataclass(frozen=True)  # slots do not go with a generic class
class Explainer(Generic[Answer]):
    """A function that explains, by name.

    Attributes:
        target: ``"module:function"``, relative to this package.
        codes: The codes that it can give, separated by spaces; empty where it answers a question of an explanation,
            or where torch's own message decides.
    """

    target: str
    codes: str = ""

    def __call__(self, *args: Any, **options: Any) -> Answer:
        """Import the function and call it."""
        answer: Answer = resolve(self.target)(*args, **options)
        return answer


One = Explainer[Finding]
"""Gives one finding."""
Each = Explainer[Iterator[Finding]]
"""Gives a finding for each place at fault."""
Maybe = Explainer[Finding | None]
"""Gives a finding, or None where what was seen has another reason."""
