"""Under deterministic algorithms a step runs, gives the same each time, and reads no memory that nobody wrote."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import torch

from ... import sources
from ...codes import behaviour as explain
from ...findings import Culprit, Finding
from ...measure import parity
from ...record.modes import Kernels
from ...subject.errors import SubjectError
from ...verdicts import inconclusive, passed, violated

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...measure.parity import Gap
    from ...subject import Subject

_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
_REFUSED = re.compile(r"^(?P<op>[\w:.]+) does not have a deterministic implementation", re.M)


def deterministic_algorithms(subject: Subject) -> Iterator[Finding]:
    """Run a pass twice from one seed with deterministic algorithms enabled, and compare all bits.

    torch then also fills new memory with NaN, so that a pass that reads uninitialised memory gives
    NaN where an ordinary one does not.
    """
    subject.require_values()
    with Kernels(_zeroed):
        plain = _once(subject)
    before = torch.are_deterministic_algorithms_enabled()
    warned = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        try:
            first, second = _once(subject), _once(subject)
        except SubjectError as error:
            refused = _REFUSED.search(str(error.error))
            if refused is None:
                if _WORKSPACE not in str(error.error):
                    raise
                yield inconclusive(
                    f"cuBLAS is deterministic only where {_WORKSPACE}=:4096:8 is set before the run",
                    code="needs-workspace",
                )
                return
            yield _refused(subject, error, refused["op"])  # still demanded: it is run again
            return
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warned)
    unwritten = [name for name in _broken(first) if name not in _broken(plain)]
    if unwritten:
        yield _unwritten(subject, unwritten)
        return
    apart = [gap for gap in parity.gaps(second, first).values() if gap.value != 0.0]
    yield from _bit_equal(apart, subject)


def _bit_equal(apart: list[Gap], subject: Subject) -> Iterator[Finding]:
    """Compare two passes bit by bit."""
    if apart:
        worst = max(apart, key=lambda gap: gap.value)
        yield violated(
            "not-deterministic",
            f"{worst.label} differs each time, in spite of deterministic algorithms",
            culprits=[
                Culprit(
                    "output" if worst.part == "output" else "parameter",
                    worst.name,
                    f"off by {worst.value:.2g}",
                )
            ],
            location=sources.search(
                type(subject.model), r"random|time\(|torch\.empty|set\(|os\.urandom"
            )
            or sources.of_object(type(subject.model).forward),
            observed=f"relative difference {worst.value:.3g} between two passes from one seed",
            cause="a random number that torch's seed does not determine, or a custom kernel that "
            "adds in no fixed order",
            because="weights, inputs, seed and algorithm settings were the same",
            fix="draw from torch's generator, or sum in a fixed order",
        )
        return
    yield passed(
        f"two passes on {subject.device.type} are bit-equal, with deterministic algorithms enabled"
    )


def _zeroed(func: Any, types: Any, args: Any, kwargs: Any) -> Any:
    """Fill new memory with zeros: what it holds otherwise may be NaN by chance."""
    out = func(*args, **kwargs)
    if "empty" in func.__name__ and isinstance(out, torch.Tensor) and not out.is_meta:
        out.zero_()
    return out


def _once(subject: Subject) -> parity.Run:
    with subject.pristine() as model:
        return parity.run(subject, model, subject.batch())


def _broken(run: parity.Run) -> list[str]:
    return [
        name
        for part in (run.output, run.gradient, run.buffer)
        for name, tensor in part.items()
        if bool(torch.isnan(tensor).any())
    ]


def _refused(subject: Subject, error: SubjectError, op: str) -> Finding:
    place = sources.of_error(error.error)
    if error.phase == "backward":  # anomaly mode knows the forward line
        with subject.pristine() as model:
            again = explain.replay(
                lambda: parity.run(subject, model, subject.batch()), model=model, anomaly=True
            )
        place = (again.saved_at if again is not None else None) or place
    said = str(error.error).partition(", but")[0]
    return violated(
        "nondeterministic-op",
        f"{op} has no deterministic implementation on {subject.device.type}",
        culprits=[Culprit("call", op, f"in the {error.phase}", place)],
        observed=f"the {error.phase} raises under torch.use_deterministic_algorithms(True)",
        cause=f"{op} may add or write in no fixed order",
        because=f"torch refused: {said}",
        fix=f"use an operation with a fixed order in place of {op} (sort and segment, "
        "index_put_ with accumulate), or withdraw the promise",
    )


def _unwritten(subject: Subject, names: list[str]) -> Finding:
    place = sources.search(type(subject.model), r"\bempty(_like|_strided)?\(|new_empty\(")
    return violated(
        "memory-unwritten",
        f"{names[0]} depends on uninitialised memory",
        culprits=[Culprit("tensor", name) for name in names[:4]],
        location=place or sources.of_object(type(subject.model).forward),
        observed=f"{len(names)} tensors of the pass hold NaN once new memory is filled with NaN, none with zeros",
        cause="torch.empty (or a view of it) is read before every element is written",
        because="under deterministic algorithms torch fills new memory with NaN; nothing else was changed",
        fix="use torch.zeros or torch.full, or write every element before it is read",
    )
