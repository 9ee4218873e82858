"""Why steps are in vain: an optimizer goes back to where it began, targets meet the inputs of another call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ... import sources
from ...culprits import parameter
from ...findings import Culprit
from ...runs.training.returning import own_optimizers
from ...text.wording import names_text
from ...verdicts import violated
from .optimizers import optimizer_line

if TYPE_CHECKING:
    from ...findings import Finding
    from ...subject import Subject


def undone(subject: Subject, names: list[str], after: int) -> Finding:
    """Explain an optimizer that undoes its own steps."""
    with subject.pristine(steps=True) as model:
        kinds = [type(one) for one in own_optimizers(subject.make_optimizer(model))]
    own = [kind for kind in kinds if sources.is_own_class(kind)]
    what = (own or kinds)[0].__name__
    return violated(
        "weight-put-back",
        f"every {after} steps {what} sets {names_text(names)} back to the first values",
        culprits=[parameter(subject, name, "set back by the optimizer") for name in names[:8]],
        location=sources.of_object(own[0].step) if own else optimizer_line(subject, names[0]),
        observed=f"after {after} training steps {names[0]} is bit-equal to its first values; after fewer it differs",
        cause="the optimizer writes values that it kept over what its steps have learned",
        because=f"{after} steps of the optimizer alone, with one gradient that is nowhere zero, end where they began",
        fix="let the kept values move first, and copy them into the parameters afterwards",
        evidence={"parameters": names, "steps": after},
    )


def late_inputs(subject: Subject) -> Finding:
    """Explain a step that trains the targets of one batch on the inputs of an earlier one."""
    step = subject.contract.train_step
    place = None if step is None else sources.of_object(step)
    return violated(
        "batch-unused",
        "from its second call on, the training step puts its targets beside inputs of an earlier batch",
        culprits=[Culprit("call", "train_step", "keeps inputs for a later call", place)],
        location=place,
        observed="other inputs alone leave every gradient of that call bit-equal; other targets alone do not",
        cause="the step holds inputs of a batch back, and not the targets that belong to them",
        because="in the first call other inputs change the gradients; after a call the step holds its inputs",
        fix="hold inputs and targets of a batch back together, or use both at once",
    )
