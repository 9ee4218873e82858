"""A function that explains a finding, known by its name until it is needed."""

from __future__ import annotations

import contextlib
import os
import traceback
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

from ..deadline import Budget, TooLongError, running
from ..findings import Finding, Status
from ..interrupts import UserCodeError
from ..late import resolve
from ..lean import dataclass
from ..text.printable import message_of

Answer = TypeVar("Answer")

INTERNAL = "internal-error"
UNEXPLAINED = "unexplained"
"""Code of a finding whose explanation ran out of time, where it could have been one of several."""


@dataclass(frozen=True)  # slots do not go with a generic class
class Explainer(Generic[Answer]):
    """A function that explains, by name.

    Attributes:
        target: ``"module:function"``, relative to this package.
        codes: The codes that it can give, separated by spaces; empty where it answers a question of
            an explanation, or where torch's own message decides.
        doubtful: Whether it can find that what was seen is no more than ``suspicious``.
        seen: Whether it is asked only where something was seen that does not hold. What looks for itself
            says nothing of what holds where it fails.
    """

    target: str
    codes: str = ""
    doubtful: bool = False
    seen: bool = False

    def __call__(self, *args: Any, **options: Any) -> Answer:
        """Import the function and call it."""
        answer: Answer = resolve(self.target)(*args, **options)
        return answer

    def unexplained(self, budget: Budget) -> Finding:
        """Return what is left to say where the explanation took too long."""
        if not self.seen:
            return out_of_time(budget, "inconclusive", UNEXPLAINED)
        return out_of_time(budget, self._status, self._code)

    def failed(self, failure: Exception) -> Finding:
        """Return what is left to say where the explanation raised: a defect of it, not of the finding."""
        told = f"explaining it failed with {type(failure).__name__}"
        said = message_of(failure).partition("\n")[0]
        return Finding(
            status=self._status if self.seen else "error",
            code=self._code if self.seen else INTERNAL,
            summary=told,
            observed=f"{told}: {said[:140]}",
            cause="not known: the code that explains it failed, which is a defect of "
            "pytest-torchcheck; the finding itself holds"
            if self.seen
            else "a defect of pytest-torchcheck, not of your model: the check gave no result",
            fix="report it to pytest-torchcheck with the traceback (-vv and --torchcheck-json show it)",
            evidence={
                "not explained": told,
                "traceback of the explanation": list(traceback.format_exception(failure)),
            },
        )

    @property
    def _status(self) -> Status:
        return "suspicious" if self.doubtful else "violated"

    @property
    def _code(self) -> str:
        codes = self.codes.split()
        return codes[0] if len(codes) == 1 else UNEXPLAINED

    @contextlib.contextmanager
    def _guarded(self, budget: Budget, instead: list[Finding]) -> Iterator[None]:
        """Run a part of the explanation; where that raises or takes too long, put in what is left to say."""
        nested = running()
        try:
            with budget.spent():
                yield
        except TooLongError:
            if nested:  # the time is that of the explanation around this one
                raise
            instead.append(self.unexplained(budget))
        except UserCodeError:  # told as what it is
            raise
        except Exception as failure:  # the finding stands
            if not self.codes or os.environ.get("TORCHCHECK_DEBUG"):
                raise
            instead.append(self.failed(failure))


class One(Explainer[Finding]):
    """Gives one finding, of what was seen."""

    def __init__(self, target: str, codes: str = "", doubtful: bool = False) -> None:
        super().__init__(target, codes, doubtful, seen=True)

    def __call__(self, *args: Any, **options: Any) -> Finding:
        """Explain; where that fails or takes too long, give the finding as it is."""
        instead: list[Finding] = []
        with self._guarded(Budget(), instead):
            return super().__call__(*args, **options)
        return instead[0]


class Each(Explainer[Iterator[Finding]]):
    """Gives a finding for each place at fault."""

    def __call__(self, *args: Any, **options: Any) -> Iterator[Finding]:
        """Explain one by one; where that fails or takes too long, give what remains as one finding."""
        budget, instead = Budget(), list[Finding]()
        with self._guarded(budget, instead):
            return self._rest(iter(super().__call__(*args, **options)), budget)
        return iter(instead)

    def _rest(self, found: Iterator[Finding], budget: Budget) -> Iterator[Finding]:
        while True:
            instead: list[Finding] = []
            one: Finding | None = None
            with self._guarded(budget, instead):
                one = next(found, None)
            if one is None:
                yield from instead
                return
            yield one


class Maybe(Explainer[Finding | None]):
    """Gives a finding, or None where what was seen has another reason."""

    def __call__(self, *args: Any, **options: Any) -> Finding | None:
        """Explain; where that fails or takes too long, say so."""
        instead: list[Finding] = []
        with self._guarded(Budget(), instead):
            return super().__call__(*args, **options)
        return instead[0]


def out_of_time(budget: Budget, status: Status, code: str) -> Finding:
    """Return a finding whose explanation took too long; the runner says what it is that does not hold."""
    told = f"explaining it took more than {budget.seconds:g} s"
    return Finding(
        status=status,
        code=code,
        summary=told,
        cause="not known: the explanation runs the model again, and it ran out of time",
        fix="run this check alone on a smaller model or batch: it fails in the same way and is "
        "then explained",
        evidence={"out of time": told},
    )
