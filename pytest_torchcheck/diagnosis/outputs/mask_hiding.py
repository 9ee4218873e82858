"""A mask of scores that does not hide the positions it should."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from ...explanation import on_line
from ...findings import Culprit
from ...probes.positions.hiding import find_hiding

if TYPE_CHECKING:
    from ...probes.recorded.operations import Trace
    from ...probes.recorded.watch import Op
    from ..crashes.place import Place


def not_hidden(
    trace: Trace, op: Op, place: Place, *, kept: int, length: int, side: Literal["right", "left"]
) -> Place | None:
    """Return the line of a mask that does not hide positions from an operation, where that is how they get in.

    Args:
        trace: The run.
        op: The operation at which they were first seen to count.
        place: It, as a place.
        kept: How many positions must not depend on the others.
        length: Number of positions.
        side: Where those others stand.
    """
    found = find_hiding(trace, op, kept=kept, length=length, side=side)
    if found is None or found.op.location is None:
        return None
    line, name = on_line(found.op.location), found.op.name
    share = f"{100 * found.weight:.2g} %"
    weighs = f"the softmax gives the masked positions {share} of the weight"
    others = f"the unmasked scores range from {found.low:.3g} to {found.high:.3g}"
    if found.kind == "weak":
        does = _DOING.get(name.rpartition(".")[2].strip("_"), "fills in")
        cause = f"{name}{line} does not mask: it {does} {found.value:.3g}"
        fact = f"{does} {found.value:.3g}, {others}: {weighs}"
        fix = f'fill the scores with float("-inf") or torch.finfo(dtype).min{line}'
    elif found.kind == "opposite":
        cause = f"{name}{line} masks the positions to be kept, and none of the others"
        fact = weighs
        fix = f"invert the mask of {name}{line}: it must be True at the positions to hide"
    else:
        cause = (
            f"{name}{line} is applied after the softmax, which has normalised over the masked "
            "positions"
        )
        fact = f"the softmax gives them up to {share} of the weight before they are set to 0"
        fix = 'mask the scores with float("-inf") before the softmax'
    settings = [
        Culprit("call", one.name, detail, one.location)
        for one, detail in ((found.mask, "the mask"), (op, "reads it"))
        if one is not None and one.location not in (None, found.op.location)
    ]
    return replace(
        place,
        op=name,
        location=found.op.location,
        module=found.op.module or place.module,
        module_class=found.op.module_class if found.op.module else place.module_class,
        built=None,
        fact=fact,
        cause=cause,
        fix=fix,
        settings=tuple(settings),
    )


_DOING = {
    "add": "adds",
    "iadd": "adds",
    "radd": "adds",
    "sub": "subtracts",
    "mul": "multiplies by",
    "imul": "multiplies by",
    "rmul": "multiplies by",
}
