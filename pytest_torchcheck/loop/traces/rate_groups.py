"""A parameter group that a schedule leaves behind: the first one follows it, this one keeps the optimizer's default rate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_torchcheck import sources
from pytest_torchcheck.codes.training import optimizer_line
from pytest_torchcheck.findings import Culprit
from pytest_torchcheck.subject.optimizers import optimizers_of

from ...verdicts import violated
from ..closures import functions_of

if TYPE_CHECKING:
    from pytest_torchcheck.findings import Finding
    from pytest_torchcheck.subject import Subject

    from ..trace import Trace

_FIRST_ONLY = r"param_groups\[0\]\[.lr.\]\s*=[^=]"


def left_behind(subject: Subject, trace: Trace) -> Finding | None:
    """Find the group whose rate stands still at the default of its optimizer while that of the first group moves.

    A group that was made with a rate of its own may be meant to keep it.
    """
    steps = trace.optimizer_steps()
    steps = [e for e in steps if e.owner == steps[0].owner and len(e.rates) == len(steps[0].rates)]
    groups = list(zip(*(e.rates for e in steps), strict=True))
    if len(steps) < 2 or len(groups) < 2 or len(set(groups[0])) < 2:
        return None
    with subject.pristine() as model:
        made = optimizers_of(subject.make_optimizer(model))
        default = float(made[0].defaults.get("lr", 0.0)) if made else 0.0
        names = {id(p): name for name, p in model.named_parameters()}
        held = [
            [names.get(id(p), "") for p in g["params"]]
            for g in (made[0].param_groups if made else ())
        ]
    still = [n for n, rates in enumerate(groups) if set(rates) == {default}]
    if not still or still[0] >= len(held):
        return None
    number = still[0]
    functions = functions_of(subject.contract.train_step, subject.contract.optimizer)
    place = next(
        (
            line
            for function in functions
            if (line := sources.search(function, _FIRST_ONLY)) is not None
        ),
        None,
    )
    first = [name for name in held[number] if name][:3]
    where = place or optimizer_line(subject)
    return violated(
        "schedule-differs",
        f"group {number} of the optimizer keeps the learning rate {default:g} while the first one follows the schedule",
        culprits=(
            Culprit(
                kind="optimizer",
                name="param_groups",
                detail=f"group {number} is left out",
                location=where,
            ),
            *(Culprit(kind="parameter", name=name, detail=f"in group {number}") for name in first),
        ),
        location=where,
        observed=(
            f"over {len(steps)} steps group 0 goes from {groups[0][0]:g} to {groups[0][-1]:g}; "
            f"group {number} stays at {default:g}"
        ),
        cause="the rate of the first group alone is set",
        because=(
            f"group {number} holds {len(held[number])} parameters and has no rate of its own: "
            f"{default:g} is the optimizer's lr"
        ),
        fix=(f"on line {place.line} loop" if place is not None else "loop")
        + " over optimizer.param_groups and set the rate of each",
        evidence={"rates": [list(rates) for rates in groups]},
    )
