"""What a step freezes and does not thaw in time, in words: the call that chose it, and later calls without it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...findings import Culprit
from ...lean import dataclass
from ...probes.gradient.frozen_in_step import Frozen, frozen_in_step
from ...subject.errors import SubjectError
from ...subject.remembered import remembered
from ...text.wording import names_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ...findings import Location
    from ...probes.gradient.frozen_in_step import Switch
    from ...subject import Subject


@dataclass(frozen=True, slots=True, kw_only=True)
class Freezing:
    """The call of a step that freezes a parameter, as a clause, with what to change and the calls like it."""

    location: Location
    fact: str
    fix: str
    culprits: tuple[Culprit, ...]


@remembered("frozen in a step")
def seen_in_step(subject: Subject) -> Frozen | None:
    """Run the declared step once more and note what it freezes and thaws; None where it raises. Cached."""
    batch = subject.batch().clone()
    with subject.pristine(steps=True, train=True, seeded=True) as model:
        try:
            made = subject.make_optimizer(model)
            return frozen_in_step(lambda: subject.train_step(model, made, batch), model)
        except SubjectError:
            return None  # the check that met the error reports it


def freezing(subject: Subject, name: str) -> Freezing | None:
    """Return the one call of the step that freezes a parameter which required a gradient; None where it is not sure.

    Args:
        subject: Whose step.
        name: Of the parameter.
    """
    if not subject.named_parameters()[name].requires_grad:
        return None
    seen = seen_in_step(subject)
    if seen is None or (off := seen.freezing(name)) is None:
        return None
    line, by = off.location.line, f" by {off.helper}" * bool(off.helper)
    later = seen.switches[seen.switches.index(off) + 1 :]
    thawed = next((one for one in later if one.on and name in one.names), None)
    others = [one for one in seen.again(off) if name not in one.names]
    fact = f"line {line} switches it off{by}"
    fix = "switch it on again before the pass that is to train it"
    if thawed is not None:
        fact += f", and line {thawed.location.line} switches it on again only later"
    else:
        fact += ", and the step does not switch it on again"
    if others and thawed is None and others[0].on:
        reached = names_text(modules_of(subject, map(owner_of, others[0].names)))
        fact += f"; line {others[0].location.line} does so for {reached} alone"
        fix += f", as line {others[0].location.line} does for {reached}"
    return Freezing(
        location=off.location,
        fact=fact,
        fix=f"{fix}, or do not freeze it on line {line}",
        culprits=(
            Culprit("call", off.helper or "requires_grad", "switches it off", off.location),
            *(_other(one) for one in others),
        ),
    )


def _other(one: Switch) -> Culprit:
    detail = f"switches {names_text(list(one.names))} {'on' if one.on else 'off'}"
    return Culprit("call", one.helper, detail, one.location)


def owner_of(name: str) -> str:
    """Return the module that computes with a parameter: the parametrised one, of the original of its weight."""
    return name.rpartition(".")[0].partition(".parametrizations.")[0]


def modules_of(subject: Subject, names: Iterable[str]) -> list[str]:
    """Return as few modules as hold the parameters of some modules and no others, by name."""
    given = list(dict.fromkeys(names))
    holding = set(map(owner_of, subject.named_parameters()))
    found = []
    for name in given:
        path = name
        while outer := path.rpartition(".")[0]:
            if not {n for n in holding if f"{n}.".startswith(f"{outer}.")} <= set(given):
                break
            path = outer
        found.append(path)
    return list(dict.fromkeys(found))
