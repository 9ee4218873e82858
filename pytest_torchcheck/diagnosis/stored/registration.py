"""What is not registered, registered late or listed many times, under one name twice, or never called, explained."""

from __future__ import annotations

import ast
import inspect
import re
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from torch import nn

from ... import sources
from ...explanation import listed, on_line
from ...findings import Culprit, Finding, Location
from ...lean import dataclass
from ...probes.holding.held_by_models import CONTAINERS
from ...runs.training.observation import observe
from ...text.wording import names_text
from ...verdicts import suspicious, violated
from ..lines.unread import target_of
from ..loss.target_origins import helper_returns
from .foreign import foreign_weights
from .structure import find_repetition, speaks_of_sharing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...probes.holding.held_by_models import Holding
    from ...runs.liveness.backward_methods import Uncalled
    from ...subject import Subject


def unregistered(attribute: str, group: list[Holding]) -> Finding:
    """Explain modules, parameters or tensors that train and that a plain attribute holds."""
    first = group[0]
    names = [h.path for h in group]
    count = sum(1 for h in group for _, t in h.tensors() if t.requires_grad)
    place = first.location
    if first.kind == "module":
        held = f"holds {len(group)} modules that train but are not registered"
        held = held if len(group) > 1 else "holds a module that trains but is not registered"
        value = getattr(first.owner, first.name, None)
        kinds = {"list": "nn.ModuleList", "tuple": "nn.ModuleList", "dict": "nn.ModuleDict"}
        fix = f"make {attribute} an {kinds.get(type(value).__name__, 'attribute of its own, assigned to self')}"
    elif first.kind == "parameter":
        held = f"holds {len(group)} parameters that are not registered"
        held = held if len(group) > 1 else "holds a parameter that is not registered"
        fix = f"make {attribute} an nn.ParameterList, nn.ParameterDict or attributes of their own"
    else:
        held = "is a tensor that trains but not a parameter"
        fix = f"write self.{first.word} = nn.Parameter(...)"
    line = on_line(place)
    if (same := same_name(group)) is not None:
        return _replaced(attribute, group, held, same)
    code = "module-hidden" if first.kind == "module" else "parameter-hidden"
    return violated(
        code,
        f"{attribute} {held}",
        culprits=[
            Culprit("module" if h.kind == "module" else "tensor", h.path, location=place)
            for h in group
        ]
        + [
            Culprit("call", name, "creates it", at)
            for name, at in (helper_returns(place) if place else ())
        ],
        observed=f"{listed(names)}: {count} tensors receive a gradient; parameters() and "
        "state_dict() hold none of them",
        cause=f"nn.Module does not look into a {first.via}, so optimizers, .to(), eval() and "
        "checkpoints miss its contents"
        if first.via != "attribute"
        else "only an nn.Parameter is registered as a parameter; this is a plain tensor",
        because=f"after backward {names[0]} has a gradient, and model.parameters() does not contain it",
        fix=f"{fix}{line}",
        evidence={"paths": list(names), "tensors": count},
    )


def _replaced(attribute: str, group: list[Holding], held: str, same: SameName) -> Finding:
    """Explain modules that were registered, and replaced by a later one of the same name."""
    names = [h.path for h in group]
    at = same.made.line
    culprits = [Culprit("module", name, location=same.made) for name in names]
    if same.registered != same.made:
        detail = "registers under that name"
        culprits.append(Culprit("call", "register", detail, same.registered))
    told = f": only {same.name} is left" if same.name else ""
    return violated(
        "module-hidden",
        f"{attribute} {held}",
        culprits=culprits,
        location=same.made,
        observed=f"{listed(names)} train; parameters() and state_dict() hold none of their tensors",
        cause=f"line {same.registered.line} registers each of them, and line {at} gives several "
        f"the same name{told}; a later module replaces the earlier one of that name",
        because="every iteration of the loop registers the module that it appends, and modules() "
        f"does not contain {names[0]}",
        fix=f"use a different name in each iteration on line {at} (number the modules), or keep "
        "them in an nn.ModuleList",
        evidence={"paths": names},
    )


def made_in_forward(subject: Subject) -> Iterator[Finding]:
    """Report layers and parameters that the forward itself makes: no optimizer built before it holds them."""
    seen = observe(subject)
    if seen.late:
        places = {name: sources.of_parameter(subject.model, name) for name in seen.late}
        model = subject.model
        yield violated(
            "parameter-late",
            f"the first forward registers {listed(list(seen.late))}",
            culprits=[
                Culprit("parameter", n, location=p or _assigned_in_forward(model, n))
                for n, p in places.items()
            ],
            location=_assigned_in_forward(model, seen.late[0]),
            observed=f"{len(seen.late)} parameters exist after a forward that did not exist before",
            cause="a layer or parameter is created in forward, not in __init__",
            because="an optimizer built before the first forward does not hold them, and a "
            "checkpoint saved after it does not fit a new model",
            fix="create them in __init__, or use a lazy layer such as nn.LazyLinear",
        )
    for stranger in seen.strangers:
        made = violated if stranger.fleeting else suspicious
        line = on_line(stranger.location)
        place = (stranger.made if stranger.fleeting else None) or stranger.location
        edit = f" of line {place.line}" if place else ""
        yield made(
            "module-made-in-forward" if stranger.fleeting else "module-foreign",
            f"every forward creates a new {stranger.kind} with new weights"
            if stranger.fleeting
            else f"the forward trains a {stranger.kind} that the model does not register",
            culprits=[Culprit("module", stranger.kind, location=stranger.location)],
            location=place,
            observed=f"{stranger.kind} ran{line}; it is in neither modules() nor any attribute",
            cause="the layer is created in forward, so its weights are random in every call and "
            "never trained"
            if stranger.fleeting
            else "the layer is held by a global or a closure",
            because="it no longer existed after the step"
            if stranger.fleeting
            else "its weights received a gradient, and model.parameters() does not contain them",
            fix=f"create it in __init__ as an attribute, instead{edit}"
            if stranger.fleeting
            else "create it in __init__ as an attribute, and call that" + line,
        )

    foreign = [one for one in seen.foreign if one.in_output]
    if foreign:
        yield foreign_weights(subject, foreign)


def _assigned_in_forward(model: nn.Module, name: str) -> Location | None:
    """Return the line of a forward that assigns what leads to a parameter."""
    parts = name.split(".")
    owner: nn.Module = model
    for part in parts:
        word = re.escape(part)
        patterns = (
            rf"self\.{word}\s*=[^=]",
            rf"(add_module|register_\w+|setattr)\(.*[\"']{word}[\"']",
        )
        found = (sources.search(type(owner).forward, pattern) for pattern in patterns)
        place = next(filter(None, found), None)
        if place is not None and sources.rank(place.file):
            return place
        following = owner._modules.get(part)
        if following is None:
            return None
        owner = following
    return None


def repeated(subject: Subject, name: str, container: nn.Module, keys: list[str]) -> Finding | None:
    """Say whether one instance under several keys is shared by mistake, by how it is written and how it runs."""
    owner, attribute = _owner(subject, name)
    if owner is None:
        return None
    written = find_repetition(owner, attribute)
    order = list(container._modules)
    places = [order.index(key) for key in keys]
    adjacent = any(b == a + 1 for a, b in pairwise(places))
    if written is None and not adjacent:
        return None
    entry = f"{name}.{keys[0]}" if name else keys[0]
    chained = entry in observe(subject).signals.chained
    kind = written.kind if written is not None else "attribute"
    strict = kind in ("inline", "copied")
    meant = speaks_of_sharing(owner, loosely=not strict) or _is_tied(subject, name)
    if meant or (kind == "attribute" and not (chained and adjacent)):
        return None
    certain = strict or (kind == "named" and chained and adjacent)
    module = container._modules[keys[0]]
    assert module is not None
    count = sum(1 for _ in module.parameters())
    distinct = len({id(container._modules[key]) for key in keys})
    where = name or attribute or "the model"
    fields: dict[str, Any] = {
        "culprits": [
            Culprit(
                "module",
                where,
                (
                    f"entries {', '.join(keys[:6])} are the same {type(module).__name__}"
                    if distinct == 1
                    else f"entries {', '.join(keys[:6])} share their parameters"
                ),
                written.location if written else None,
            )
        ],
        "location": written.location if written else sources.of_assignment(owner, attribute),
        "observed": f"{len(keys)} of {len(order)} entries hold the same {count} parameters; separate layers would hold "
        f"{count * len(keys)}",
        "because": f"{entry} and {name + '.' if name else ''}{keys[1]} have the same parameters"
        + (", and each receives the other's output" if chained else ""),
        "fix": f"write {written.fix}"
        if written
        else "construct each entry separately, or use copy.deepcopy",
        "evidence": {"entries": list(keys), "parameters": count, "chained": chained},
    }
    cause = {
        "inline": "the list is multiplied, which repeats its only module",
        "copied": "copy.copy creates a new module that shares the old one's parameters",
        "named": "the list repeats one module instead of copying it",
    }.get(kind, "one module is added to the container many times")
    summary = f"{where} lists one {type(module).__name__} {len(keys)} times: the layers share their weights"
    if certain:
        return violated("module-repeated", summary, cause=cause, **fields)
    return suspicious("module-repeated", summary, cause=f"{cause}; this may be intended", **fields)


def _owner(subject: Subject, name: str) -> tuple[Any, str]:
    """Return the innermost module of the user's that holds a container and under which name, or the factory."""
    parts = name.split(".") if name else []
    owners: list[nn.Module] = [subject.model]
    for part in parts:
        owners.append(owners[-1].get_submodule(part))
    for depth in range(len(parts) - 1, -1, -1):
        owner = owners[depth]
        if not isinstance(owner, CONTAINERS) and _has_source(type(owner)):
            return owner, parts[depth]
    model = subject.contract.model
    return (model, "") if inspect.isroutine(model) else (None, "")


def _has_source(cls: type) -> bool:
    try:
        return sources.rank(inspect.getsourcefile(cls) or "<>") > 0
    except (TypeError, OSError):
        return False


def _is_tied(subject: Subject, name: str) -> bool:
    ties = (*subject.contract.promised("Tied"), *subject.contract.promised("Replicated"))
    return any(getattr(tie, side).startswith(f"{name}.") for tie in ties for side in ("a", "b"))


_NAMING = ("setattr", "add_module", "register_module")


@dataclass(frozen=True, slots=True, kw_only=True)
class SameName:
    """Where modules that one loop builds get a name.

    Attributes:
        made: The line that makes the name.
        registered: The line that registers under it.
        name: A name that was given twice, where only one is left; empty else.
    """

    made: Location
    registered: Location
    name: str


def same_name(group: list[Holding]) -> SameName | None:
    """Return the lines that gave one name to several modules of a list; None where that is not certain.

    It is where one loop registers every module that it appends, under a name that it computes, and
    yet only some of the list are registered: a name that is given again replaces what it stood for.
    """
    first = group[0]
    value = getattr(first.owner, first.name, None)
    if first.kind != "module" or not isinstance(value, list | tuple):
        return None
    hidden = {id(h.value) for h in group}
    own = {id(child): name for name, child in first.owner._modules.items()}
    kinds = {type(h.value) for h in group}
    left = [own[id(m)] for m in value if isinstance(m, nn.Module) and id(m) in own]
    known = [m for m in value if id(m) in own and type(m) in kinds]
    if not known or not all(id(m) in own or id(m) in hidden for m in value):
        return None
    found = _registering(type(first.owner))
    if found is None:
        return None
    made, registered = found
    return SameName(made=made, registered=registered, name=left[0] if len(left) == 1 else "")


def _registering(cls: type) -> tuple[Location, Location] | None:
    """Return the line that makes the name, and the one that registers, of a loop that does so with all that it appends."""
    place = sources.search(cls, rf"\b(?:{'|'.join(_NAMING)})\(")
    function = sources.function_around(place.file, place.line) if place is not None else None
    for loop in (n for n in ast.walk(function) if isinstance(n, ast.For)) if function else ():
        # only what the loop does in every turn
        calls = [s.value for s in loop.body if isinstance(s, ast.Expr)]
        added = {
            ast.unparse(c.args[0])
            for c in calls
            if isinstance(c, ast.Call) and sources.called(c) == "append" and c.args
        }
        for call in calls:
            if not isinstance(call, ast.Call) or sources.called(call) not in _NAMING:
                continue
            name, module = call.args[-2:] if len(call.args) > 1 else (None, None)
            if name is None or module is None or ast.unparse(module) not in added:
                continue
            if isinstance(name, ast.Constant) or place is None:
                continue
            at = sources.of_line(place.file, call.lineno, place.function)
            bound = _bound(loop, name) if isinstance(name, ast.Name) else []
            made = sources.of_line(place.file, bound[0].lineno, place.function) if len(bound) == 1 else at  # fmt: skip
            return made, at
    return None


def _bound(loop: ast.For, name: ast.Name) -> list[ast.Assign]:
    """Return the lines of a loop that make a name, without those that number it: these make another one in each turn."""
    number = ""
    if isinstance(loop.iter, ast.Call) and sources.called(loop.iter) in ("enumerate", "range"):
        target = loop.target.elts[0] if isinstance(loop.target, ast.Tuple) else loop.target
        number = getattr(target, "id", "")
    bound = [s for s in ast.walk(loop) if isinstance(s, ast.Assign) and target_of(s) == name.id]
    return [s for s in bound if not number or not _numbered(s.value, number)]


def _numbered(value: ast.expr, number: str) -> bool:
    parts = [n.value for n in ast.walk(value) if isinstance(n, ast.FormattedValue)]
    parts += [a for n in ast.walk(value) if isinstance(n, ast.Call) for a in n.args]
    return any(isinstance(part, ast.Name) and part.id == number for part in parts)


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
