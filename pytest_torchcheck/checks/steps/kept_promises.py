"""One promise, held with the weights as built, with others where they start at zero, and after training steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...codes import behaviour as explain
from ...runs.variants.trained import trained
from ...runs.variants.woken import promise_woken
from ...subject.errors import SubjectError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ...findings import Finding
    from ...subject import Subject


def held_to(subject: Subject, check: Callable[..., Finding], *declared: Any) -> Iterator[Finding]:
    """Yield what a subject makes of one promise, with zeros that training fills as well.

    What holds by zeros in a weight must hold after the steps that fill them.

    Args:
        subject: The model as built.
        check: Called with a subject and what is declared.
        declared: The promise.
    """
    found = list(promise_woken(subject, check, *declared))
    holds = all(f.status in ("passed", "inconclusive") for f in found)
    if not holds or (steps := trained(subject)) is None:
        yield from found
        return
    try:
        later = check(steps.subject, *declared)
        if later.status == "violated" and check(steps.cleared, *declared).status == "passed":
            found = [explain.zeros_filled(subject, later, steps)]
    except SubjectError:
        pass  # the model as built runs: other weights are ours
    yield from found
