"""A function that explains a finding, known by its name until it is needed."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ..deadline import Budget, TooLongError, running
from ..findings import Finding, Status
from ..interrupts import UserCodeError
from ..late import resolve
from ..text.printable import message_of

Answer = TypeVar("Answer")

UNEXPLAINED = "unexplained"
"""Code of a finding whose explanation ran out of time, where it could have been one of several."""


@dataclass(frozen=True)  # slots do not go with a generic class
class Explainer(Generic[Answer]):
    """A function that explains, by name.

    Attributes:
        target: ``"module:function"``, relative to this package.
        codes: The codes that it can give, separated by spaces; empty where it answers a question of
            an explanation,
            or where torch's own message decides.
        doubtful: Whether it can find that what was seen is no more than ``suspicious``.
    """

    target: str
    codes: str = ""
    doubtful: bool = False

    def __call__(self, *args: Any, **options: Any) -> Answer:
        """Import the function and call it."""
        answer: Answer = resolve(self.target)(*args, **options)
        return answer

    def unexplained(self, budget: Budget) -> Finding:
        """Return the finding without an explanation, which took too long."""
        codes = self.codes.split()
        status: Status = "suspicious" if self.doubtful else "violated"
        return out_of_time(budget, status, codes[0] if len(codes) == 1 else UNEXPLAINED)

    def failed(self, failure: Exception) -> Finding:
        """Return the finding without an explanation, which raised: a defect of the explainer, not of the finding."""
        codes = self.codes.split()
        told = f"explaining it failed with {type(failure).__name__}"
        said = message_of(failure).partition("\n")[0]
        return Finding(
            status="suspicious" if self.doubtful else "violated",
            code=codes[0] if len(codes) == 1 else UNEXPLAINED,
            summary=told,
            observed=f"{told}: {said[:140]}",
            cause="not known: what explains it has a defect of pytest-torchcheck, what was found is none",
            fix="report it to pytest-torchcheck with the traceback (-vv and --torchcheck-json show it)",
            evidence={
                "not explained": told,
                "traceback of the explanation": list(traceback.format_exception(failure)),
            },
        )


class One(Explainer[Finding]):
    """Gives one finding."""

    def __call__(self, *args: Any, **options: Any) -> Finding:
        """Explain; where that takes too long, give the finding as it is."""
        budget = Budget()
        nested = running()
        try:
            with budget.spent():
                return super().__call__(*args, **options)
        except TooLongError:
            if nested:
                raise
            return self.unexplained(budget)
        except UserCodeError:  # told as what it is
            raise
        except Exception as failure:  # the finding stands
            if nested or not self.codes or os.environ.get("TORCHCHECK_DEBUG"):
                raise
            return self.failed(failure)


class Each(Explainer[Iterator[Finding]]):
    """Gives a finding for each place at fault."""

    def __call__(self, *args: Any, **options: Any) -> Iterator[Finding]:
        """Explain one by one; where that takes too long, give what remains as one finding.

        It looks for what it explains, so that an error of its own, or of the model, says nothing of
        what holds.
        """
        budget = Budget()
        nested = running()
        try:
            with budget.spent():
                found = iter(super().__call__(*args, **options))
        except TooLongError:
            if nested:
                raise
            return iter((self.unexplained(budget),))
        return self._rest(found, budget)

    def _rest(self, found: Iterator[Finding], budget: Budget) -> Iterator[Finding]:
        while True:
            nested = running()
            try:
                with budget.spent():
                    one = next(found, None)
            except TooLongError:
                if nested:
                    raise
                yield self.unexplained(budget)
                return
            if one is None:
                return
            yield one


class Maybe(Explainer[Finding | None]):
    """Gives a finding, or None where what was seen has another reason."""

    def __call__(self, *args: Any, **options: Any) -> Finding | None:
        """Explain; where that takes too long, it cannot be said whether there is something to find."""
        budget = Budget()
        nested = running()
        try:
            with budget.spent():
                return super().__call__(*args, **options)
        except TooLongError:
            if nested:
                raise
            return out_of_time(budget, "inconclusive", UNEXPLAINED)


def out_of_time(budget: Budget, status: Status, code: str) -> Finding:
    """Return a finding whose explanation took too long; the runner says what it is that does not hold."""
    told = f"explaining it took more than {budget.seconds:g} s"
    return Finding(
        status=status,
        code=code,
        summary=told,
        cause="not known: the explanation runs the model again, and its time was over",
        fix="run this check alone on a smaller model or batch: it fails in the same way, and is explained",
        evidence={"out of time": told},
    )
