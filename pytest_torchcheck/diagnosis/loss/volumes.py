"""Why a log-determinant that a module returns is not that of its map, or has the wrong sign in the loss."""

from __future__ import annotations

import inspect
from functools import partial
from typing import TYPE_CHECKING

from ... import sources
from ...explanation import on_line
from ...findings import Culprit, Finding
from ...record.tracing import line_giving
from ...runs.losses.volumes import NAMED
from ...verdicts import violated

if TYPE_CHECKING:
    from ...findings import Location
    from ...runs.losses.volumes import Volume
    from ...subject import Subject


def log_determinant(subject: Subject, found: Volume) -> Finding:
    """Explain a log-determinant that is not that of the map, or that the loss takes with the wrong sign."""
    place, kind = _given(subject, found), type(subject.model.get_submodule(found.name)).__name__
    detail = "returns another log-determinant"
    turned = found.kind == "opposite" or (found.kind == "equal" and found.slope > 0)
    if found.kind == "opposite":
        cause = "it is that of the inverse map: its sign is the wrong one"
        fix = f"return the negative of it{on_line(place)}"
    elif turned:
        detail = "its log-determinant has the wrong sign in the loss"
        cause = "the loss rises with it: its sign in the loss is the wrong one"
        fix = "change the sign with which it enters the loss"
    elif found.kind == "partial":
        cause = "it is that of the last part alone: those of the parts before it are lost"
        fix = f"add up what the parts return{on_line(place)}"
    elif found.times:
        cause = f"it lacks the factor {found.times}: each of the places that share it adds to it"
        fix = f"multiply it by the number of places{on_line(place)}"
    else:
        cause = "a term of it is wrong or missing"
        fix = f"compare it{on_line(place)} with torch.linalg.slogdet of the Jacobian of the map, for one sample"
    return violated(
        "log-determinant",
        f"{kind} {found.name} returns {found.told:.4g} where the log-determinant of its map is {found.is_:.4g}"
        if found.kind != "equal"
        else f"the loss rises with the log-determinant of {kind} {found.name}",
        culprits=[Culprit("module", found.name, detail, place)],
        location=place,
        observed=f"log|det| of its Jacobian for one sample is {found.is_:.6g}, it returns {found.told:.6g}; the "
        f"slope of the loss to it is {found.slope:.3g}",
        cause=cause,
        because="its Jacobian was computed by a backward for each element, with weights that were moved a little; "
        "a density follows the map by the change of variables, so that its loss falls with the log-determinant",
        fix=fix,
    )


def _given(subject: Subject, found: Volume) -> Location | None:
    """Return the line of a module's class that gives what it returns beside its output a value."""
    kind = type(subject.model.get_submodule(found.name))
    own = [one for one in vars(kind).values() if inspect.isfunction(one)]
    if found.kind == "partial":
        over = rf"^\s*\w+ = \w*(?:{NAMED.pattern})\w*\s*(?:#|$)"
        if at := next(filter(None, (sources.search(one, over) for one in own)), None):
            return at
    codes = [one.__code__ for one in own if any(map(NAMED.search, one.__code__.co_varnames))]
    codes.sort(key=lambda code: code.co_name == found.method)
    with subject.pristine(train=True, seeded=True) as model:
        run = partial(subject.call, model, subject.batch().clone())
        lines = [
            line_giving(run, code, name)
            for code in codes
            for name in code.co_varnames
            if NAMED.search(name)
        ]
    given = [line for line in lines if line is not None]
    return given[-1] if given else sources.search(getattr(kind, found.method), NAMED.pattern)
