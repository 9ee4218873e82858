"""The model with activations that leave what they are given as it is, where they work in place."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

import torch

from ...objects import trees
from ...probes.recorded.overwriting import ACTIVATIONS
from ...probes.recorded.watch import Watch, in_backward
from ...state import seed_everything
from ...subject.errors import SubjectError
from ..facts import copied, forward_facts
from ..training.observation import observe

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from torch import nn

    from ...findings import Location
    from ...probes.recorded.overwriting import InPlace
    from ...subject import Subject


class _Apart(Watch):
    """Gives the activations on some lines a copy of their input."""

    def __init__(self, module: nn.Module, lines: Collection[Location]) -> None:
        super().__init__(module)
        self._lines = lines

    def around(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Run one torch function, on a copy where it is one of those."""
        name = getattr(func, "__name__", "").rstrip("_")
        first = isinstance(args[0], torch.Tensor) if args else False
        if name in ACTIVATIONS and first and not in_backward() and self.locate() in self._lines:
            with torch._C.DisableTorchFunction():
                args = (args[0].clone(), *args[1:])
        return super().around(func, types, args, kwargs)


def overwritten_inputs(subject: Subject) -> InPlace | None:
    """Return an activation in place of what a block was given, where something reads that afterwards.

    What a block is given belongs to others as well: a skip connection, or its caller. Where a line binds
    the result to the name that it was given, everybody reads what the activation gave, on purpose, and a copy
    changes nothing; nor is a line asked whose result nobody takes. Cost: 1 F for each such line, of at most
    three, where there are any.
    """
    try:
        written = [
            one for one in observe(subject).signals.of_inputs if not _for_effect(one.location)
        ]
        seen = forward_facts(subject)
    except SubjectError:
        return None  # which other checks explain
    for one in written[:3] if seen.repeats else ():
        with subject.pristine() as model, torch.no_grad():
            model.eval()
            seed_everything(subject.seed)
            try:
                with _Apart(model, [one.location]):
                    found = copied(subject.call(model, subject.batch().clone()))
            except SubjectError:
                continue  # a copy is not what this model can take
        if found.keys() == seen.outputs.keys() and not all(
            trees.same(tensor, seen.outputs[path]) for path, tensor in found.items()
        ):
            return one
    return None


def _for_effect(line: Location) -> bool:
    """Say whether a line is a call whose result nobody takes: it is there for what it writes."""
    try:
        statement = ast.parse(line.text).body
    except SyntaxError:
        return False
    return bool(statement) and isinstance(statement[0], ast.Expr)
