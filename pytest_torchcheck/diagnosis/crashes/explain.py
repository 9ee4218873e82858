"""Explain an exception of the user's code: what is at fault, on which line, why, and what to change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ... import deadline
from ...explanation import PHASE_WORDS, Explanation, clipped
from .fitting import with_other_inputs
from .layers import with_squeeze
from .scene import Scene
from .table import entries

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...explanation import Phase

__all__ = ["Explanation", "explain_error"]

SEARCHED = 10_000
"""Characters of a message that patterns search: torch's own words come first, the rest is data, such as printed tensors."""


def explain_error(
    error: BaseException,
    *,
    phase: Phase,
    model: Any = None,
    batch: Any = None,
    rerun: Callable[..., object] | None = None,
    device: str = "cpu",
) -> Explanation:
    """Explain an exception that the user's code raised.

    What can be told from the message, the traceback and the live objects in its frames is told without
    running anything. Where that is not enough, ``rerun`` is called: at most three times.

    Args:
        error: What was raised, with its traceback.
        phase: Where in a training step: ``build``, ``batch``, ``data``, ``forward``, ``loss``,
            ``backward`` or ``step``.
        model: The model, for the names of its modules, parameters and buffers.
        batch: What it was called with: an object with ``args``, ``kwargs`` and ``targets``.
        rerun: Does again what failed. If it takes an argument named ``device``, it is called with
            ``device="cpu"`` where the device cannot be used any more (after a device-side assert).
        device: Where it ran.

    Returns:
        The explanation; ``code`` is ``crash`` for an error that the table does not know, or whose
        explanation takes longer than :mod:`pytest_torchcheck.deadline` allows.
    """
    # what was tried on the CPU first has a model of its own there
    model, device = getattr(rerun, "model", None) or model, getattr(rerun, "device", device)
    scene = Scene(error, phase=phase, model=model, batch=batch, rerun=rerun, device=device)
    budget = deadline.Budget()
    nested = deadline.running()
    try:
        with budget.spent():
            return _explained(scene)
    except deadline.TooLongError:
        if nested:
            raise
        return _out_of_time(scene, budget.seconds)


def _explained(first: Scene) -> Explanation:
    """Ask the table about an error, then about those that it was raised from."""
    current: BaseException | None = first.error
    seen: set[int] = set()
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        scene = first if current is first.error else first.of(current)
        if (found := explain_scene(scene)) is not None:
            return with_squeeze(scene, with_other_inputs(scene, found))
        # the user's code may have wrapped torch's error in one of its own
        current = current.__cause__ or (
            None if current.__suppress_context__ else current.__context__
        )
    return with_squeeze(first, _unknown(first))


def explain_scene(scene: Scene) -> Explanation | None:
    """Ask the table; None where no entry knows the error."""
    names = {cls.__name__ for cls in type(scene.error).__mro__}
    searched = scene.message[:SEARCHED]
    for entry in entries():
        deadline.keep()
        if entry.types and not names.intersection(entry.types):
            continue
        if entry.phases and scene.phase not in entry.phases:
            continue
        if (match := entry.pattern.search(searched)) is None:
            continue
        if (found := entry.explain(scene, match)) is not None:
            return found
    return None


def _out_of_time(scene: Scene, seconds: float) -> Explanation:
    """Say what is certain of an error where explaining it took too long; nothing is run."""
    name, message = type(scene.error).__name__, scene.first_line or "(no message)"
    return scene.explain(
        code="crash",
        summary=f"{PHASE_WORDS[scene.phase]} raises {name}: {clipped(message, 140)}",
        observed=f"explaining it took more than {seconds:g} s and was stopped",
        because=f"the message is {message!r}",
        fix="see the traceback in the report",
    )


def _line_values(scene: Scene) -> str:
    found = scene.values()
    return f"; {found}" if found and found != scene.first_line else ""


def _unknown(scene: Scene) -> Explanation:
    """Say what is certain of an error that the table does not know."""
    name = type(scene.error).__name__
    where = PHASE_WORDS[scene.phase]
    running = [scene.name_of(module) for module in scene.running]
    path = " > ".join(dict.fromkeys(running))
    message = scene.first_line or "(no message)"
    at = f" in {running[-1]}" if running else ""
    op = scene.failing_op
    called = ""
    if op is not None and op.inputs:
        called = f"; {op.name} was given " + ", ".join(
            f"{fact.name + ' ' if fact.name else ''}{fact.dtype} {list(fact.shape)}"
            for fact in op.inputs[:4]
        )
    place = scene.location
    refuses = place is not None and place.text.startswith(("raise ", "assert "))
    called_by = op.name if op is not None else "the call"
    return scene.explain(
        code="crash",
        summary=f"{where} raises {name}{at}: {clipped(message, 140)}",
        observed=(f"running: {path}" if path else f"phase: {scene.phase}")
        + (called or _line_values(scene)),
        cause=f"your own code rejects its input: line {place.line} raises {name}"
        if place and refuses
        else f"{called_by} on line {place.line} raises {name}; its message gives the reason"
        if place
        else f"{name} was raised outside your own code",
        because=f"the message is {scene.first_line!r}" if scene.first_line else "it has no message",
        fix=f"pass what the message asks for, or correct the condition before line {place.line}"
        if place and refuses
        else f"fix the call on line {place.line}; see the message above"
        if place
        else "see the traceback in the report",
    )
