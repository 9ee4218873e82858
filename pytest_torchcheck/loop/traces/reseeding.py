"""A step that seeds a generator of the process, so that later steps draw the same numbers again."""

from __future__ import annotations

import contextlib
from itertools import combinations
from typing import TYPE_CHECKING, Any

import torch

from ...findings import Culprit, Finding
from ...lean import dataclass
from ...probes.randomness import DrawWatch, generators
from ...state import seed_everything
from ...subject.errors import SubjectError
from ...verdicts import suspicious, violated
from ..steps import StepWatch, begun, take_steps
from .wording import at

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ...probes.randomness import Draw
    from ...subject import Subject
    from ..trace import Trace

_STEPS = 6
_WORDS = {"torch": "torch's generator", "numpy": "np.random", "random": "random"}
_OWN = {
    "numpy": "draw from a separate generator: np.random.default_rng(seed)",
    "random": "draw from a separate generator: random.Random(seed)",
}


def generator_states() -> dict[str, int]:
    """Return a digest of the state of every generator of the process, by name."""
    return {name: _digest(read()) for name, read in generators().items()}


def _digest(state: object) -> int:
    return hash(state.numpy().tobytes() if isinstance(state, torch.Tensor) else state)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Again:
    """Numbers that are drawn again in every step.

    Attributes:
        seed: What seeds the generator.
        draw: What draws from it next, with gradients on.
        leaks: Whether the seed was set for something else: an earlier step, or a draw without gradients.
        step: The step of the draw.
    """

    seed: Draw
    draw: Draw
    leaks: bool
    step: int


def reseeding_findings(subject: Subject, trace: Trace) -> Iterator[Finding]:
    """Yield a generator that steps leave in one state though they began in different ones, and that trains.

    Every recorded step begins with a seed of its own. Where two of them end in the same state,
    something in them has set it. That is a fault only where training draws from this state before
    anything sets it again.
    """
    left = _left_alike(trace.generators)
    if left and subject.contract.loop is None:
        left &= _left_alike(_after_other_batches(subject) or trace.generators)
    if not left:
        return
    steps = _draws(subject)
    for name in sorted(left):
        found = _drawn_again(name, steps)
        leaks = [one for one in found if one.leaks]
        if len({one.step for one in leaks}) > 1:
            yield _finding(name, leaks[0], trace)
            return
        if len({one.step for one in found}) > 1:
            yield _finding(name, found[0], trace)
            return


def _left_alike(states: Sequence[dict[str, int]]) -> set[str]:
    return {
        name
        for a, b in combinations(states, 2)
        for name, state in a.items()
        if b.get(name) == state
    }


def _after_other_batches(subject: Subject) -> list[dict[str, int]]:
    """Return the states that steps on different batches leave: a seed may be made from the batch on purpose.

    Empty where the step refuses another batch.
    """
    found: list[dict[str, int]] = []
    with begun(subject) as (model, made):
        for step in range(_STEPS):
            try:
                batch = subject.batch(step).clone()
                seed_everything(subject.seed + step)
                subject.train_step(model, made, batch)
            except SubjectError:
                return []
            found.append(generator_states())
    return found


def _draws(subject: Subject) -> list[list[Draw]]:
    """Return what each of some steps draws and seeds, in order."""
    with begun(subject) as (model, made):
        starts: list[int] = []

        class Starts(StepWatch):
            def before(self, step: int) -> None:
                starts.append(len(watch.draws))

        # the check that met an error of the step reports it
        with DrawWatch(model) as watch, contextlib.suppress(SubjectError):
            take_steps(subject, model, made, _STEPS, Starts())
        ends = [*starts[1:], len(watch.draws)]
        return [watch.draws[a:b] for a, b in zip(starts, ends, strict=True)]


def _drawn_again(name: str, steps: list[list[Draw]]) -> list[_Again]:
    """Return the first training draws after each seed, in its step and in a later one, before it is set anew."""
    found: list[_Again] = []
    seed: tuple[int, Draw] | None = None
    evaluated = pinned = False
    for number, draws in enumerate(steps):
        for draw in draws:
            if draw.generator != name:
                continue
            if draw.kind != "draw":
                seed = (number, draw) if draw.kind == "reseed" else None
                evaluated = pinned = False
            elif seed is not None and not draw.grad:
                evaluated = True
            elif seed is not None:
                leaks = (evaluated and not pinned) or seed[0] < number
                if leaks or not pinned:
                    found.append(_Again(seed=seed[1], draw=draw, leaks=leaks, step=number))
                pinned, seed = not leaks, None if leaks else seed
    return found


def _finding(name: str, again: _Again, trace: Trace) -> Finding:
    seed, draw = again.seed, again.draw
    word = _WORDS.get(name, f"the generator {name}")
    caller = seed.caller if seed.caller != seed.location else None
    function = seed.location.function.rpartition("<locals>.")[2] if seed.location else ""
    culprits: list[Any] = [
        Culprit("call", seed.op, "sets the same state in every step", seed.location),
    ]  # fmt: skip
    if caller is not None:
        culprits.append(Culprit("call", function, "is called here", caller))
    culprits.append(
        Culprit("call", draw.op or "a draw", "draws the same numbers again", draw.location)
    )
    alike = max(
        sum(one.get(name) == other.get(name) for other in trace.generators)
        for one in trace.generators
    )
    make = violated if again.leaks else suspicious
    return make(
        "step-reseeds",
        f"because of {seed.op} in the step, training draws the same random numbers again in "
        "later steps",
        culprits=tuple(culprits),
        location=seed.location,
        observed=f"{alike} of {len(trace.generators)} steps, which began with different seeds, left "
            f"{word} in the same state",
        cause=(f"{function or 'the step'} seeds {word}, and all later random numbers follow from "
            "that seed")
        if again.leaks
        else f"every step seeds {word} with the same value before it trains",
        because=f"after {at(seed.location)}, {at(draw.location)} draws from it with gradients "
            "enabled before it is set again",
        fix=_OWN.get(name, "draw from a separate generator (generator=torch.Generator().manual_seed(...))")
        + (
            ", or seed within `with torch.random.fork_rng():`"
            if name not in _OWN
            else ", or restore its state"
        ),
    )  # fmt: skip
