"""Which line writes to the inputs of a forward."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ... import sources
from ...explanation import counted
from ...findings import Culprit, Finding
from ...probes.holding.aliasing import find_alias
from ...probes.recorded.watch import Watch, name_of
from ...state import seed_everything
from ...subject.errors import SubjectError
from ...text.wording import have, names_text
from ...verdicts import violated
from ..crashes.place import Place

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...probes.holding.aliasing import Alias
    from ...subject import Subject


def changed_inputs(subject: Subject, changed: list[str], *, train: bool) -> Iterator[Finding]:
    """Explain inputs that the forward writes to."""
    writer = _writer(subject, changed[0], train=train)
    location = writer.location
    alias = _alias(subject, changed[0], location, train=train)
    yield violated(
        "input-mutated",
        f"the forward changes its input {names_text(changed)} in place",
        culprits=[Culprit("input", name, "changed", location) for name in changed]
        + ([alias.culprit(changed[0])] if alias is not None else []),
        location=location or sources.of_object(type(subject.model).forward),
        observed=f"{counted(len(changed), 'input')} {have(changed, 'differs')} after a forward in "
        f"{'train' if train else 'eval'} mode",
        cause="an operation writes to a tensor that the caller passed"
        + (f" ({writer.ran})" if writer.op else ""),
        because="the values before and after the call are not bit-equal",
        fix=alias.fix
        if alias is not None
        else "write to a new tensor: x = x + y instead of x += y, or clone the input first",
    )


def _alias(subject: Subject, path: str, write: Any, *, train: bool) -> Alias | None:
    """Find the line by which an input gets the name that is written to."""
    batch = subject.batch().clone()
    with subject.pristine() as model, torch.no_grad():
        model.train(train)
        seed_everything(subject.seed)
        return find_alias(lambda: subject.call(model, batch), dict(batch.tensors())[path], write)


def _writer(subject: Subject, path: str, *, train: bool) -> Place:
    """Find the line that first changes an input, by watching its values after every operation."""
    batch = subject.batch().clone()
    target = dict(batch.tensors())[path]
    version = target._version
    found: list[Place] = []

    class Writer(Watch):
        def after(self, func: Any, args: Any, kwargs: Any, result: Any, token: Any) -> None:
            if not found and target._version != version:
                op = self.op(name_of(func))
                found.append(
                    Place(
                        op=op.name,
                        location=op.location,
                        module=op.module,
                        module_class=op.module_class,
                    )
                )

    with subject.pristine() as model, torch.no_grad(), Writer(model):
        model.train(train)
        seed_everything(subject.seed)
        try:
            subject.call(model, batch)
        except SubjectError:
            return Place()
    return found[0] if found else Place()
