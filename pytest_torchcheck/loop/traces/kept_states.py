"""States that a step keeps or loads and that are the module's own tensors: nothing of the past is in them."""

from __future__ import annotations

import itertools
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from ... import sources
from ...explanation import on_line
from ...findings import Culprit, Finding
from ...objects.peek import PLAIN, attributes, entries, opaque, pairs
from ...objects.trees import address
from ...verdicts import suspicious, violated
from ..closures import held_between_calls
from ..replay import replay
from ..trace import LoadState
from .copied_onto_itself import is_same
from .kept_weights import kept_as_it_is
from .wording import at, call

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import FrameType

    from ...record.tracing import Watcher
    from ...subject import Subject
    from ..trace import Trace

_DEPTH: Final = 3
_WIDEST: Final = 64
FAR: Final = 64
"""Steps within which a kept state that is the best one is loaded again, where the loss has stopped falling."""


def states_held(subject: Subject, model: nn.Module) -> dict[str, Mapping[str, Any]]:
    """Return, by their paths, the mappings of the model's own tensors that the declared step keeps between calls.

    Their keys are names of the tensors, or how these end, as in the ``state_dict()`` of a part; parameters themselves
    are no state. Empty where no step is declared.
    """
    step = subject.contract.train_step
    if step is None:
        return {}
    held = {
        name: state
        for path, value in held_between_calls(step, subject.contract.optimizer, model=model)
        for name, state in _mappings(value, path, _DEPTH)
        if state and all(map(_names_a_tensor, pairs(state)))
    }
    if not held:
        return {}
    own = {
        where: (name, tensor)
        for name, tensor in (*model.named_buffers(), *model.named_parameters())
        if (where := address(tensor)) is not None
    }
    return {name: state for name, state in held.items() if _is_own(state, own)}


def _mappings(value: Any, path: str, depth: int) -> Iterator[tuple[str, dict[Any, Any]]]:
    """Iterate over a mapping and those within it, within containers, and within objects of the user's."""
    if opaque(value) or isinstance(value, torch.Tensor | nn.Module) or type(value) in PLAIN:
        return
    parts: Iterator[tuple[str, Any]] = iter(())
    if isinstance(value, dict):
        yield path, value
        parts = ((f"{path}[{key!r}]", item) for key, item in pairs(value))
    elif isinstance(value, list | tuple | deque):
        parts = ((f"{path}[{i}]", item) for i, item in enumerate(entries(value)))
    elif sources.is_own_class(type(value)):
        parts = ((f"{path}.{key}", item) for key, item in list(attributes(value).items()))
    for name, item in itertools.islice(parts, _WIDEST) if depth else ():
        yield from _mappings(item, name, depth - 1)


def _names_a_tensor(item: tuple[Any, Any]) -> bool:
    key, value = item
    return (
        isinstance(key, str)
        and isinstance(value, torch.Tensor)
        and not isinstance(value, nn.Parameter)
    )


def _is_own(state: Mapping[str, torch.Tensor], own: Mapping[int, tuple[str, torch.Tensor]]) -> bool:
    """Say whether all tensors of a mapping are those of the model under their names, and any is trained."""
    trained = False
    for key, value in pairs(state):
        name, tensor = own.get(address(value) or 0, ("", None))
        if tensor is None and value.numel():
            return False
        if tensor is not None:
            if not f".{name}".endswith(f".{key}") or not is_same(value, tensor):
                return False
            trained |= tensor.requires_grad
    return trained


def loads_itself(trace: Trace) -> Iterator[Finding]:
    """A network is given its own state: a target that never follows, or a best state that was never copied."""
    for _, event in trace.each(LoadState):
        if not 0 < event.own == event.tensors:
            continue
        kept, line = ("", None) if event.place is None else kept_as_it_is(event.place)
        keeps = Culprit("tensor", kept, "is kept without a copy", line)
        yield violated(
            "state-loaded-itself",
            f"{event.name} receives the module's own tensors: it changes nothing",
            culprits=(call(event, "its own state"), *([] if line is None else [keeps])),
            location=line or event.place,
            observed=f"{event.own} of the {event.tensors} tensors passed are the module's own, in "
            "the same memory",
            cause="state_dict() returns the tensors themselves, not copies: this is the module's "
            "own state, current or kept from earlier",
            because=f"each tensor passed at {at(event.place)} has the address of the one that it "
            "should replace",
            fix="pass the other network's state_dict(); to keep a state for later, use "
            "copy.deepcopy(module.state_dict())"
            if line is None
            else f"keep a copy{on_line(line)}: copy.deepcopy(module.state_dict())",
        )
        return


def kept_state_findings(
    subject: Subject, further: Trace, held: tuple[str, ...]
) -> Iterator[Finding]:
    """Judge a state that a step keeps without a copy by the steps after those that kept it.

    Args:
        subject: Whose step.
        further: More of its calls.
        held: What it keeps.
    """
    loaded = next(loads_itself(further), None)
    if loaded is not None:
        yield loaded
        return
    path = held[0]
    names: list[str] = []

    def watch(model: nn.Module, _: Any) -> Watcher:
        before = states_held(subject, model)

        def watcher(frame: FrameType, event: str, line: int) -> bool:
            if event == "call":
                return False
            state = states_held(subject, model).get(path)
            names[:] = tuple(state or ()) if hasattr(state, "_metadata") else ()
            return state is not None and state is not before.get(path)

        return watcher

    place = replay(subject, watch, steps=max(1, further.steps))
    if place is None or ".cpu(" in place.text or ".to(" in place.text or not names:
        return  # none that state_dict() gave, such as what weights are exchanged for; or a copy on another device
    yield suspicious(
        "state-kept-uncopied",
        f"{path} keeps the model's own tensors, which every later step changes",
        culprits=[Culprit("tensor", path, "is kept without a copy", place)],
        location=place,
        observed=f"after a call of the step the {len(names)} tensors of {path} are still the model's own, in the same "
        "memory",
        cause="state_dict() returns the tensors themselves, not copies: each later step changes what is kept",
        because=f"their addresses are those of the weights; no load_state_dict was given them in {further.steps} "
        "calls, so what they are kept for is not known",
        fix=f"keep a copy{on_line(place)}: copy.deepcopy(module.state_dict())",
    )
