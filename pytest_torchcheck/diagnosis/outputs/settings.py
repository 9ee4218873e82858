"""Global settings that a forward changes, or a model's file: which, and the line after which they stay so."""

from __future__ import annotations

import functools
import inspect
import itertools
from typing import TYPE_CHECKING

import torch

from ... import sources
from ...explanation import on_line
from ...findings import Culprit, Finding
from ...record.tracing import find_line, line_of
from ...runs.facts import forward_facts, settings
from ...state import seed_everything, settings_kept
from ...verdicts import suspicious, violated
from .eval_lines import seeding_line
from .samples import forward_line

if TYPE_CHECKING:
    from types import FrameType

    from torch import nn

    from ...batches import Batch
    from ...findings import Location
    from ...subject import Subject


def global_state(
    subject: Subject, changed: list[str], before: dict[str, object], after: dict[str, object]
) -> Finding:
    """Explain a forward that changes a global setting."""
    name = changed[0]
    seen = _settings_left(subject, name)
    found = seen[0] if seen else (before[name], after[name], "", forward_line(subject))
    first, then, mode, place = found
    return violated(
        "global-state",
        f"the forward changes {name} from {first} to {then}{mode}",
        culprits=[
            Culprit("call", name, f"{value}{mode}", line)
            for _, value, mode, line in seen or (found,)
        ],
        location=place,
        observed="; ".join(f"{n}: {before[n]} -> {after[n]}" for n in changed)
        if len(seen) < 2
        else "; ".join(f"{one} -> {two}{mode}" for one, two, mode, _ in seen),
        cause="a global setting is changed and not restored",
        because="it differs before and after one forward",
        fix="use the context manager of this setting instead",
    )


def _settings_left(
    subject: Subject, name: str
) -> list[tuple[object, object, str, Location | None]]:
    """Return a setting before and after forwards that change it, in which mode, and the line after which it stays so.

    Gradients that a forward switches off are missed where they are on, as around no step of a user's loop.
    """
    found: dict[Location | None, tuple[object, object, str, Location | None]] = {}
    grads = (True, False) if name == "torch.is_grad_enabled()" else (False,)
    for train, grad in itertools.product((False, True), grads):
        with settings_kept(), subject.pristine() as model, torch.set_grad_enabled(grad):
            if train:
                model.train()
            seed_everything(subject.seed)
            batch = subject.batch().clone()
            values = [settings()[name]]
            places: list[Location | None] = [None]

            def watcher(
                frame: FrameType,
                event: str,
                line: int,
                values: list[object] = values,
                places: list[Location | None] = places,
            ) -> bool:
                if event != "call" and (now := settings()[name]) != values[-1]:
                    values.append(now)
                    places.append(line_of(frame.f_code, line))
                return False

            find_line(functools.partial(_called, subject, model, batch, train=train), watcher)
        if values[-1] != values[0]:
            mode = f" in {'training' if train else 'evaluation'} mode" if len(grads) > 1 else ""
            place = places[-1] or forward_line(subject)
            found.setdefault(place, (values[0], values[-1], mode, place))
    return list(found.values())


def _called(subject: Subject, model: nn.Module, batch: Batch, *, train: bool) -> object:
    """Call the model as a loop does: ``eval()`` may be overridden."""
    if not train:
        model.eval()
    return subject.call(model, batch)


_WORDS = {"torch": "torch's generator", "numpy": "np.random", "random": "random"}
_OWN = "a generator of its own: torch.Generator(), np.random.default_rng() or random.Random()"


def reseeded_by_evaluation(subject: Subject, names: tuple[str, ...]) -> Finding:
    """Explain an evaluation after which a generator of the process is in one state, whatever was drawn before.

    It is suspicious where training draws nothing, and in a library's code.
    """
    found = seeding_line(subject, train=False)
    place = forward_line(subject) if found is None else found.location
    own = found is not None and place is not None and sources.rank(place.file) == 2
    drawn = forward_facts(subject, train=True)
    word = _WORDS.get(names[0], names[0])
    return (violated if own and (drawn.consumed or drawn.others_moved) else suspicious)(
        "reseeds",
        f"an evaluation seeds {word}: training draws the same numbers again after each one",
        culprits=[Culprit("call", (found and found.op) or "seed", "in eval mode", place)],
        location=place,
        observed=f"after two evaluations that began from different seeds, {word} is in the same state",
        cause="the forward sets a seed in eval mode, for the whole process",
        because="nothing but the seed before the evaluation differed",
        fix=f"draw from {_OWN}; or seed within torch.random.fork_rng()",
    )


def reseeded_by_building(kind: type, names: tuple[str, ...]) -> Finding:
    """Warn of a constructor that seeds a generator of the process for all that comes after it."""
    place = sources.search(kind, r"seed\w*\(")
    word = _WORDS.get(names[0], names[0])
    return suspicious(
        "reseeds",
        f"the constructor of {kind.__name__} seeds {word}: every instance has the same weights",
        culprits=[Culprit("call", "seed", f"in {kind.__name__}.__init__", place)],
        location=place,
        observed=f"building the model leaves {word} in one state, whichever seed was set before",
        cause="a seed is set where a model is made, for the whole process",
        because="two builds under different seeds left the same state",
        fix="set the seed once, in the script or in the factory, not in the class",
    )


def anomaly_left_on(subject: Subject, *, by_build: bool) -> Finding:
    """Warn of autograd's anomaly mode, which was for debugging."""
    made = subject.contract.model
    places = (
        sources.search(thing, r"detect_anomaly")
        for thing in (made, type(subject.model), inspect.getmodule(made), inspect.getmodule(type(subject.model)))
        if thing is not None
    )  # fmt: skip
    place = next((one for one in places if one is not None), None)
    line = on_line(place)
    return suspicious(
        "anomaly-left-on",
        "anomaly mode is on" + (" after the model is built" if by_build else ""),
        culprits=[Culprit("call", "torch.autograd.set_detect_anomaly", location=place)],
        observed="torch.is_anomaly_enabled() is True"
        + (", and was False before the factory ran" if by_build else " before the contract runs"),
        cause=("it was enabled to find a NaN, and is still on: every backward checks all its "
            "results"),
        because="nothing disabled it: set_detect_anomaly applies to the whole process",
        fix=(f"delete it{line}, or use `with torch.autograd.detect_anomaly():` around the code "
            "under investigation"),
    )  # fmt: skip
