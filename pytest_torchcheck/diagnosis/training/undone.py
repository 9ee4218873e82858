"""Why an optimizer brings parameters back to where they began."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ... import sources
from ...culprits import parameter
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
