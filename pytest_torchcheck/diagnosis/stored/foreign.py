"""Parameters that a forward or a loss reads and that neither the model nor an optimizer has, explained."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from ...explanation import listed, on_line
from ...findings import Culprit, Finding
from ...probes.holding.held_by_models import owned
from ...probes.recorded.watch import Watch, name_of, tensors_in
from ...runs.again import forward_and_loss
from ...text.wording import counted, names_text
from ...verdicts import suspicious

if TYPE_CHECKING:
    from ...probes.recorded.watch import Op
    from ...runs.training.observation import Foreign
    from ...subject import Subject


def foreign_weights(subject: Subject, foreign: list[Foreign]) -> Finding:
    """Explain parameters that the forward reads, and that no attribute of the model leads to."""
    shapes = listed([str(list(one.shape)) for one in foreign])
    place = None if (found := readers_outside(subject)) is None else found.location
    return suspicious(
        "parameter-hidden",
        f"the forward reads {counted(len(foreign), 'parameter')} that the model does not have: {shapes}",
        culprits=[
            Culprit("parameter", f"a parameter {list(one.shape)}", "is not the model's", place)
            for one in foreign
        ],
        location=place,
        observed=f"{counted(len(foreign), 'parameter')}, {shapes}, in neither parameters() nor any attribute",
        cause="it is held by a global, a default argument, a cached function or a closure",
        because="the graph of the output leads there, and not from model.parameters(): no state_dict() holds it"
        + ("" if all(one.held for one in foreign) else ", and no optimizer of the contract"),
        fix="make it an attribute in __init__: self.... = nn.Parameter(...), and read that",
    )


def readers_outside(subject: Subject) -> Op | None:
    """Return the first operation of forward and loss that is given a parameter which the model does not have."""
    found: list[Op] = []
    with subject.pristine() as model:
        known = owned(model)

        class Reading(Watch):
            def after(self, func: Any, args: Any, kwargs: Any, result: Any, token: Any) -> None:
                given = (t for t in tensors_in((args, kwargs)) if isinstance(t, nn.Parameter))
                if not found and any(id(t) not in known for t in given):
                    op = self.op(name_of(func))
                    found.extend([op] if op.location is not None else [])

        with Reading(model):
            forward_and_loss(subject)()
    return found[0] if found else None


def weights_of_loss(subject: Subject, foreign: list[Foreign]) -> Finding:
    """Warn of parameters of the loss that get a gradient, and that no optimizer of the contract holds."""
    place = None if (found := readers_outside(subject)) is None else found.location
    names = [f"loss.{one.name}" for one in foreign]
    return suspicious(
        "optimizer-missing",
        f"{names_text(names)}, of the loss itself, {'is' if len(names) == 1 else 'are'} in no optimizer",
        culprits=[Culprit("parameter", name, "in no optimizer", place) for name in names],
        location=place,
        observed=f"the loss registers {counted(len(names), 'parameter')} that the backward pass "
        f"reaches{on_line(place)}",
        cause="the optimizer function gives its optimizers parameters of the model alone",
        because="the graph of the loss leads there, and no param_group of the declared optimizer holds it",
        fix="add the loss's parameters() to the optimizer, or call requires_grad_(False) on what it shall not train",
    )
