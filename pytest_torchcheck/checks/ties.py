"""Tied weights: which names share one tensor, and after which operation they no longer do."""

from __future__ import annotations

import copy
import re
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from .. import sources
from ..explanation import listed
from ..findings import Culprit, Finding, Location
from ..lean import dataclass
from ..objects import trees
from ..probes.recorded.watch import storage_of
from ..runs.saving import CheckpointError, through_file
from ..subject.building import wrapped_tensor
from ..verdicts import not_applicable, passed, suspicious, violated

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..subject import Subject

    State = dict[str, Any] | None
    """What a checkpoint of the model gives when it is read; None where it cannot be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tie:
    """Two names for one tensor.

    Attributes:
        a, b: Qualified names of parameters, buffers or modules.
        declared: Whether the contract promises it.
        by_memory: Whether two parameters share memory without being one object.
    """

    a: str
    b: str
    declared: bool
    by_memory: bool = False


def find(model: nn.Module, name: str) -> Any:
    """Return what a qualified name stands for, or None."""
    thing: Any = model
    for part in name.split("."):
        if isinstance(thing, nn.Module) and part in thing._modules:
            thing = thing._modules[part]
        elif hasattr(thing, part):
            thing = getattr(thing, part)
        else:
            return None
    return thing


def tensors_of(thing: Any) -> list[torch.Tensor]:
    """Return a tensor itself, or a module's parameters in order."""
    if isinstance(thing, nn.Module):
        return list(thing.parameters())
    return [thing] if isinstance(thing, torch.Tensor) else []


def is_tied(model: nn.Module, tie: Tie, *, by_object: bool = False) -> bool:
    """Say whether both names share memory, or are one object."""
    ours, theirs = tensors_of(find(model, tie.a)), tensors_of(find(model, tie.b))
    if not ours or len(ours) != len(theirs):
        return False
    return all(
        a is b or (not by_object and _same_memory(a, b)) for a, b in zip(ours, theirs, strict=True)
    )


def _same_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Say whether two tensors have their elements in one storage, perhaps in other order: a transposed or partial view."""
    place = storage_of(a)
    return a.numel() > 0 and b.numel() > 0 and place is not None and place == storage_of(b)


def ties_of(subject: Subject) -> list[Tie]:
    """Return the declared ties, then those that the model has besides."""
    declared = [Tie(a=p.a, b=p.b, declared=True) for p in subject.contract.promised("Tied")]  # type: ignore[attr-defined]
    known = {frozenset((tie.a, tie.b)) for tie in declared}
    found = []
    for names in subject.aliases().values():
        found += [Tie(a=names[0], b=name, declared=False) for name in names[1:]]
    places: dict[tuple[int, torch.Size], str] = {}
    for name, parameter in subject.model.named_parameters():
        place = trees.address(parameter)
        if place is not None and parameter.device.type != "meta" and parameter.numel():
            key = (place, parameter.shape)
            if key in places:
                found.append(Tie(a=places[key], b=name, declared=False, by_memory=True))
            places.setdefault(key, name)
    return declared + [tie for tie in found if frozenset((tie.a, tie.b)) not in known]


def check_ties(subject: Subject) -> Iterator[Finding]:
    """Hold every tie before and after each operation that can undo it."""
    ties = ties_of(subject)
    if not ties:
        yield not_applicable("no weights are tied, and none are promised to be")
        return
    broken = {
        tie: finding
        for tie in ties
        if tie.declared and (finding := _at_build(subject, tie)) is not None
    }
    yield from broken.values()
    ties = [tie for tie in ties if tie not in broken]
    if not ties:
        return
    undone: list[tuple[Tie, str]] = []
    loose: list[str] = []
    saved = _saved(subject)
    for what, operation in _OPERATIONS.items():
        held = _after(subject, ties, operation, saved)
        undone += [(tie, what) for tie, still in zip(ties, held, strict=True) if not still]
    for what, operation in _UNTYING.items():
        if not all(_after(subject, ties, operation, saved, by_object=True)):
            loose.append(what)
    reported: set[tuple[str, str]] = set()
    for tie, what in undone:
        if (tie.a, tie.b) not in reported:
            reported.add((tie.a, tie.b))
            yield _undone(subject, tie, what)
    if not undone:
        after = (
            f"; {listed(loose)} unties them, as in any module: tie them again afterwards"
            if loose
            else ""
        )
        yield passed(
            f"{listed([f'{tie.a} = {tie.b}' for tie in ties], 3)} remain tied after "
            f"{listed(list(_OPERATIONS))}{after}",
            evidence={"ties": [f"{tie.a} = {tie.b}" for tie in ties], "untied_by": list(loose)},
        )


def _at_build(subject: Subject, tie: Tie) -> Finding | None:
    model = subject.model
    if is_tied(model, tie):
        return None
    ours, theirs = tensors_of(find(model, tie.a))[0], tensors_of(find(model, tie.b))[0]
    equal = ours.shape == theirs.shape and torch.equal(ours, theirs)
    return violated(
        "tie-missing",
        f"{tie.a} and {tie.b} are two separate tensors",
        culprits=_culprits(subject, tie),
        observed=f"{list(ours.shape)} and {list(theirs.shape)}, "
        + ("with equal values" if equal else "with different values"),
        cause="the values were copied once instead of sharing the parameter"
        if equal
        else "nothing ties them, or one of them was replaced after the tie",
        because="they have different addresses in memory",
        fix=f"write self.{tie.b} = self.{tie.a} as the last assignment to either",
    )


def _culprits(subject: Subject, tie: Tie, *, by_memory: bool = False) -> list[Culprit]:
    untied = not is_tied(subject.model, tie)
    found = [
        Culprit(
            "parameter",
            name,
            location=(_given_data(subject, name) if by_memory else None)
            or _replaced(subject, name, untied=untied)
            or sources.of_parameter(subject.model, name),
        )
        for name in (tie.b, tie.a)
    ]
    if by_memory:  # the side whose memory was replaced is the one that ties
        found.sort(key=lambda culprit: _given_data(subject, culprit.name) is None)
    return found


def _given_data(subject: Subject, qualified: str) -> Location | None:
    """Return the last line that gives a parameter other memory: ``.data = ...`` or ``.set_(...)``.

    Lines of the classes that own it come first, then those of the functions that stand beside them.
    """
    parts = qualified.split(".")
    owners = [subject.model.get_submodule(".".join(parts[:n])) for n in range(len(parts))]
    for where in (sources.matches, sources.beside):
        for depth, owner in enumerate(owners):
            tail = r"\.".join(re.escape(part) for part in parts[depth:])
            for cls in type(owner).__mro__:
                if not sources.is_no_tools_class(cls):
                    continue
                found = where(cls, rf"^[^#\"']*\w\.{tail}(\.data\s*=[^=]|\.set_\()")
                if found:
                    return found[-1]
    return None


_SHARES = re.compile(r"=\s*(self(\.\w+)+|\w+(\.\w+)*\.weight)\s*(#.*)?$")


def _replaced(subject: Subject, qualified: str, *, untied: bool) -> Location | None:
    """Return the last line of the owners' classes that assigns a parameter or copies values into it.

    Where nothing is tied, a line that would tie did not run, or not last: others count first.
    """
    parts = qualified.split(".")
    for depth in range(len(parts) - 1):
        owner = subject.model.get_submodule(".".join(parts[:depth]))
        tail = r"\.".join(re.escape(part) for part in parts[depth:])
        for cls in type(owner).__mro__:
            if not sources.is_no_tools_class(cls):
                continue
            found = sources.matches(cls, rf"self\.{tail}(\.data)?(\s*=[^=]|\.copy_\()")
            if untied and found:  # the module that holds it may have been replaced since
                holder = r"\.".join(re.escape(part) for part in parts[depth:-1])
                found += sources.matches(cls, rf"self\.{holder}\s*=[^=]") if holder else []
                found.sort(key=lambda line: line.line)
            others = [line for line in found if not (untied and _SHARES.search(line.text))]
            if found:
                return (others or found)[-1]
    return None


def _after(
    subject: Subject, ties: list[Tie], operation: Any, saved: State, *, by_object: bool = False
) -> list[bool]:
    """Return which ties hold after an operation; all of them where it cannot be done."""
    with subject.pristine(steps=True) as model:
        done = operation(model, saved)
        return [done is None or is_tied(done, tie, by_object=by_object) for tie in ties]


def _copied(model: nn.Module, saved: State) -> nn.Module | None:
    try:
        return copy.deepcopy(model)
    except Exception:  # copy-and-pickle says so
        return None


def _converted(model: nn.Module, saved: State) -> nn.Module | None:
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), None)
    if dtype is None or wrapped_tensor(model) is not None:
        return None  # what shards the parameters keeps tensors of their old dtype
    return model.to(torch.float32 if dtype == torch.float64 else torch.float64)


def _saved(subject: Subject) -> State:
    """Save the model, and read that back."""
    try:
        with subject.pristine() as model:
            return through_file(model.state_dict())[0]
    except (*_REFUSED, CheckpointError):
        return None


def _loaded(model: nn.Module, saved: State, *, assign: bool = False) -> nn.Module | None:
    if saved is None:
        return None
    try:
        model.load_state_dict(copy.copy(saved), strict=False, assign=assign)
    except _REFUSED:
        return None
    return model


def _assigned(model: nn.Module, saved: State) -> nn.Module | None:
    if wrapped_tensor(model) is not None:
        return None  # what shards the parameters keeps the new ones when the old are put back
    return _loaded(model, saved, assign=True)


def _materialised(model: nn.Module, saved: State) -> nn.Module | None:
    home = next((p.device for p in model.parameters()), torch.device("cpu"))
    if wrapped_tensor(model) is not None:
        return None  # as above
    try:
        return model.to("meta").to_empty(device=home)
    except (RuntimeError, NotImplementedError):  # packed parameters cannot be moved
        return None


_REFUSED = (RuntimeError, TypeError, NotImplementedError)  # state-dict-roundtrip says so
_OPERATIONS = {"deepcopy": _copied, "to(dtype)": _converted, "load_state_dict": _loaded}
_UNTYING = {"load_state_dict(assign=True)": _assigned, "to_empty()": _materialised}


def _undone(subject: Subject, tie: Tie, what: str) -> Finding:
    made = violated if tie.declared or not tie.by_memory else suspicious
    shared = tie.by_memory or not is_tied(subject.model, tie, by_object=True)
    return made(
        "tie-undone",
        f"{what} unties {tie.a} and {tie.b}",
        culprits=_culprits(subject, tie, by_memory=shared),
        observed=f"one memory before {what}, two after",
        cause="they are two parameters that share memory (tied through .data), which conversions "
        "do not preserve"
        if shared
        else f"an overridden method makes {what} give each its own tensor",
        because=f"{tie.a} is {tie.b}: " + ("False" if shared else "True") + f" before {what}",
        fix=f"tie the parameters, not their data: self.{tie.b} = self.{tie.a}"
        if shared
        else f"tie them again after {what}",
    )
