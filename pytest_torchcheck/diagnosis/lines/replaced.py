"""Loops of which a later turn replaces what an earlier one has computed: a variable, or elements of a tensor."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from ... import sources
from ...findings import Culprit
from ...verdicts import violated

if TYPE_CHECKING:
    from ...findings import Finding
    from ...probes.recorded.overwriting import Overwriting
    from ...runs.liveness.replaced import Replaced
    from ...subject import Subject


def replaced_sum(_subject: Subject, found: Replaced) -> Finding:
    """Explain a sum of which a loop leaves the last term."""
    line, begun = found.location.line, found.begun.line
    return violated(
        "result-unread",
        f"of the {found.turns} values that {found.name} takes in a loop only the last one counts",
        culprits=[
            Culprit("tensor", found.name, "is bound anew in each turn", found.location),
            Culprit("tensor", found.name, "begins at zero, which nothing reads", found.begun),
            Culprit("call", found.term.text, "its earlier results are not read", found.term),
        ],
        location=found.location,
        observed=f"line {found.term.line} computes {found.turns} values in one forward; no operation uses the first "
        f"{found.turns - 1}",
        cause=f"{found.name} begins at zero on line {begun}, and line {line} replaces it in place of adding to it",
        because=f"the loop never reads {found.name}, which is read behind it",
        fix=f"add to it on line {line}: {found.name} = {found.name} + ...",
    )


def overwriting(_subject: Subject, found: Overwriting) -> Finding:
    """Explain an indexed assignment in a loop that replaces what its earlier turns have written."""
    place, line = found.location, found.location.line
    statement = sources.statement(place.file, line)
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    name = next(
        (ast.unparse(t.value) for t in targets if isinstance(t, ast.Subscript)), "the tensor"
    )
    return violated(
        "result-unread",
        f"{found.lost} of the {found.written} elements that line {line} writes are lost: a later turn writes over them",
        culprits=[
            Culprit("tensor", name, "is overwritten", place),
            *(Culprit("module", found.module, "computes what is lost", place),)
            * bool(found.module),
        ],
        location=place,
        observed=f"in one forward the line ran {found.turns} times on one tensor of shape {list(found.shape)}",
        cause=f"several turns write to the same elements of {name}, and each replaces the earlier values in place of "
        "adding to them",
        because="the values have a gradient, and between the turns no operation was given this tensor's memory",
        fix=f"add to {name} on line {line}, as index_add and index_put(accumulate=True) do",
    )
