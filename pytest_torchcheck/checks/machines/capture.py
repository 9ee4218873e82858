"""A captured forward, replayed with other inputs, gives what eager mode gives."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ... import sources
from ...findings import Culprit, Finding
from ...hardware import accelerator
from ...measure import parity
from ...objects import trees
from ...state import seed_everything
from ...text.printable import message_of
from ...verdicts import inconclusive, passed, violated
from .cuda import FLOOR

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...findings import Location
    from ...subject import Subject


def graph_capture(subject: Subject) -> Iterator[Finding]:
    """Capture the forward in eval mode, copy another batch into its inputs, replay, and compare with eager."""
    layer = accelerator.current()
    with subject.pristine() as model, torch.no_grad():
        model.eval()
        static = subject.batch().clone()
        other = subject.batch(1)
        seed_everything(subject.seed)
        expected = [
            _kept(subject.call(model, each.clone())) for each in (other, subject.batch())
        ]  # fmt: skip
        held: dict[str, torch.Tensor] = {}

        def once() -> None:
            held.update(trees.tensors(subject.call(model, static)))

        # a capture that fails leaves the allocator and the generators of the process as they were
        # then: what waits is found before
        once()
        with layer.host_syncs() as waits:
            once()
        if waits:
            place = next((sync.location for sync in waits if sync.location is not None), None)
            yield _not_captured(subject, waits[0].message, place, f"{len(waits)} operations wait")
            return
        try:
            replay = layer.capture(once)
        except (RuntimeError, parity.SubjectError) as error:
            cause = _first_cause(error)
            first = (message_of(cause).splitlines() or [""])[0]
            raised = f"{type(cause).__name__} during capture"
            yield _not_captured(subject, first, sources.of_error(cause), raised)
            return
        for path, tensor in static.tensors().items():
            tensor.copy_(other.tensors()[path])
        replay()
        found = {path: tensor.clone() for path, tensor in held.items()}
    yield from _replayed(expected, found, subject)


def _replayed(
    expected: list[dict[str, torch.Tensor]], found: dict[str, torch.Tensor], subject: Subject
) -> Iterator[Finding]:
    """Compare what a captured graph gives for new inputs with eager."""
    wrong = {path: _apart(found.get(path), t) for path, t in expected[0].items()}
    if all(torch.equal(expected[0][p], expected[1][p]) for p in expected[0] if p in expected[1]):
        yield inconclusive(
            "two batches give the same outputs: a graph that ignores its inputs would pass",
            code="constant-output",
        )
        return
    path = max(wrong, key=lambda key: wrong[key])
    limit = FLOOR * torch.finfo(subject.dtype or torch.float32).eps
    if wrong[path] <= limit:
        yield passed(
            "replayed with new inputs, the captured forward agrees with eager mode to "
            f"{wrong[path]:.1e} (relative)"
        )
        return
    stale = all(
        path in expected[1] and _apart(found.get(path), expected[1][path]) <= limit
        for path in wrong
    )
    yield violated(
        "graph-stale",
        f"replayed with new inputs, {path} is "
        + ("that of the inputs at capture" if stale else "different from eager mode"),
        culprits=[Culprit("output", path, f"{wrong[path]:.2g} away")],
        location=sources.of_object(type(subject.model).forward),
        observed=f"relative difference {wrong[path]:.3g} to eager mode on the same inputs",
        cause="a part of the forward ran on the host at capture and is not replayed (a branch, a "
            "copy of an input, a random number)",
        because="the captured outputs were replayed" + (", and did not change" if stale else ""),
        fix="compute directly from the input tensors on the device, in every call",
    )  # fmt: skip


def _not_captured(subject: Subject, said: str, place: Location | None, observed: str) -> Finding:
    return violated(
        "graph-not-captured",
        f"the forward cannot be captured: {said:.120}",
        culprits=[Culprit("call", place.text if place else "forward", location=place)],
        location=place or sources.of_object(type(subject.model).forward),
        observed=observed,
        cause="capture allows no synchronisation, no allocation outside its pool and no copy to the host",
        because=f"it happened at line {place.line}: {place.text}"
        if place
        else "the same forward runs eagerly",
        fix="keep values on the device, and make shapes independent of them",
    )


def _first_cause(error: BaseException) -> BaseException:
    """Return what the forward raised: the end of a broken capture raises once more."""
    current: BaseException | None = error
    while current is not None:
        if isinstance(current, parity.SubjectError):
            return current.error
        current = current.__cause__ or current.__context__
    return error


def _kept(output: object) -> dict[str, torch.Tensor]:
    return {path: tensor.clone() for path, tensor in trees.tensors(output).items()}


def _apart(found: torch.Tensor | None, wanted: torch.Tensor) -> float:
    if found is None or found.shape != wanted.shape:
        return float("inf")
    return trees.apart(found, wanted, zero=1.0)
