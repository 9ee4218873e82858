"""Methods that are named as if torch called them, explained."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ... import sources
from ...explanation import on_line
from ...findings import Culprit, Finding
from ...text.wording import names_text
from ...verdicts import violated

if TYPE_CHECKING:
    from ...runs.liveness.backward_methods import Uncalled
    from ...subject import Subject


def uncalled_backward(subject: Subject, found: list[Uncalled]) -> Finding:
    """Explain a module whose own backward nobody calls."""
    one, names = found[0], [each.name for each in found]
    made, method = sources.of_parameter(subject.model, one.name), sources.of_object(one.method)
    kind = one.kind.__name__
    return violated(
        "backward-uncalled",
        f"{kind}.backward is never called: autograd differentiates the forward of {names_text(names)} instead",
        culprits=[
            *(
                Culprit("module", name, kind, sources.of_parameter(subject.model, name))
                for name in names
            ),
            Culprit("call", f"{kind}.backward", "is never called", method),
        ],
        location=made or method,
        observed=f"in one training step the forward of {one.name} ran, and its backward did not",
        cause=f"{kind} is a module, and autograd looks for a backward only in a torch.autograd.Function",
        because=f"{one.name}.backward was replaced by one that notes its calls, and noted none",
        fix=f"move it to a torch.autograd.Function, with backward(ctx, grad) as a static method{on_line(method)}, and "
        "apply that in the forward",
    )
