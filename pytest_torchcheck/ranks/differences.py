"""What differs between ranks: names, culprits and the lines that change them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import sources
from ..findings import Culprit, Finding, Location
from ..loop.closures import functions_of
from ..verdicts import violated

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..subject import Subject


TIGHT = 1e-6


def differing(found: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the names whose digests are not the same on all ranks, in the first rank's order."""
    names = dict.fromkeys(name for each in found for name in each)
    return [name for name in names if len({each.get(name) for each in found}) > 1]


def listed(names: Sequence[str]) -> str:
    """Return the first names in words, and how many more there are."""
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def culprits_of(subject: Subject, names: Sequence[str], kind: Any, detail: str) -> list[Culprit]:
    """Return the first of these parameters or buffers as culprits, with the lines that make them."""
    return [
        Culprit(kind, name, detail, sources.of_parameter(subject.model, name.partition("[")[0]))
        for name in names[:8]
    ]


def line(thing: Any, *patterns: str) -> Location | None:
    """Return the first line, of a user's function or those it calls, that matches; its own otherwise."""
    if thing is None:
        return None
    functions = functions_of(thing)
    for pattern in patterns:
        for function in functions:
            if (found := sources.search(function, pattern)) is not None:
                return found
    return sources.of_object(thing)


def in_model(subject: Subject, pattern: str) -> Location | None:
    """Return the line of the model's own classes that matches a pattern, or None."""
    for module in subject.model.modules():
        place = sources.of_object(type(module))
        own = place is not None and sources.rank(place.file) == 2
        if own and (found := sources.search(type(module), pattern)) is not None:
            return found
    return None


def tie_split(
    subject: Subject,
    groups: Sequence[Sequence[tuple[str, ...]]],
    what: str,
    cause: str,
    place: Location | None,
    fix: str = "tie them again after every operation that creates new tensors, on every rank",
) -> Finding:
    """Name parameters that are one tensor here and two there; ``groups`` of names, as seen in turn."""
    names = next(
        (g for one in groups for g in sorted(one) if any(g not in other for other in groups)),
        ("parameters",),
    )
    return violated(
        "tie-split",
        f"{' and '.join(names[:3])} are {what}",
        culprits=culprits_of(subject, names, "parameter", "no longer tied"),
        location=place,
        observed="names that are one tensor: "
        + "; ".join(_groups(each) for each in dict.fromkeys(tuple(map(tuple, g)) for g in groups)),
        cause=cause,
        because="the parameters were compared by identity before and after, on every rank",
        fix=fix,
    )


def untied(init: Sequence[Mapping[str, Any]]) -> set[str]:
    """Return the names that are tied on some ranks and not, or to others, on other ranks."""
    groups: list[set[tuple[str, ...]]] = [{tuple(g) for g in each["ties"]} for each in init]
    apart = {group for one in groups for other in groups for group in one - other}
    return {name for group in apart for name in group}


def _groups(ties: Sequence[tuple[str, ...]]) -> str:
    return ", ".join(" = ".join(names) for names in ties[:4]) or "none"


def late_parameters(subject: Subject, late: list[str]) -> Finding:
    """Explain parameters that are created after wrapping."""
    owner = subject.model
    for part in late[0].split(".")[:-1]:
        owner = getattr(owner, part, owner)
    attribute = late[0].split(".")
    place = next(
        (p for name in reversed(attribute) if (p := sources.of_assignment(owner, name))), None
    ) or line(subject.contract.train_step, rf"\b{attribute[0]}\b")
    return violated(
        "late-parameter",
        f"{listed(late)} {'is' if len(late) == 1 else 'are'} created after wrapping, so the ranks never average "
        f"{'its gradient' if len(late) == 1 else 'their gradients'}",
        culprits=[Culprit("parameter", name, "not there when wrapped", place) for name in late[:8]],
        observed=f"{len(late)} parameters that did not exist when the model was wrapped exist after the first steps",
        cause="DistributedDataParallel knows only the parameters that the model has when it is wrapped",
        because="the names of all parameters were compared before and after the steps",
        fix="create the parameter in __init__ (or run one batch before wrapping)",
    )
