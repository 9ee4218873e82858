"""Which of the user's lines switch gradients off, or choose what is frozen, read from the source."""

from __future__ import annotations

import ast
import inspect
import linecache
import re
import sys
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ... import sources
from ...explanation import parameter
from ...findings import Culprit, Finding, Location
from ...loop.closures import functions_of
from ...probes.recorded.recording import SWITCHES
from ...probes.recorded.watch import name_of
from ...record.modes import Observer
from ...state import isolated, seed_everything
from ...subject.errors import SubjectError
from ...subject.optimizers import optimizers_of
from ...subject.remembered import remembered
from ...text.wording import names_text
from ...verdicts import suspicious, violated
from ..lines.conditions import deciding
from ..training.name_tests import keeps_on
from .heads import frozen_through, named

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ...subject import Subject
    from .heads import Alias

_SWITCH = r"\.requires_grad\s*=(?!=)|\brequires_grad_\("
_ON = re.compile(
    r"\.requires_grad\s*=\s*True\s*(#.*)?$|requires_grad_\((\s*|True|requires_grad=True)\)"
)
_LITERAL = re.compile(r"""["']([\w.]+)["']""")
_CONDITION = re.compile(r"^\s*(if|elif|for|while|with)\b")
_CHOOSES = re.compile(r"""["'][\w.]+["']|\.(named_)?(parameters|modules|children)\(""")
_MOST = 3


class _Switches(Observer):
    """Notes the user's line that last switched each tensor's gradient off, and the one that switched it on again."""

    def __init__(self) -> None:
        self.off: dict[int, tuple[torch.Tensor, Location | None]] = {}
        self.on: dict[int, tuple[torch.Tensor, Location | None]] = {}

    def around(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run one torch function, and note the line where it switches a gradient."""
        if name_of(func) not in SWITCHES or not isinstance(args[0], torch.Tensor):
            return func(*args, **kwargs)
        before = args[0].requires_grad
        result = func(*args, **kwargs)
        # the tensor is kept, so that no other one gets its id
        if not args[0].requires_grad:
            self.off[id(args[0])] = args[0], sources.of_frame(sys._getframe(1))
            self.on.pop(id(args[0]), None)
        else:
            self.off.pop(id(args[0]), None)
            if not before:
                self.on[id(args[0])] = args[0], sources.of_frame(sys._getframe(1))
        return result


def seen_off(subject: Subject) -> dict[str, Location]:
    """Return, by parameter, the line that switches its gradient off as the model is built; cached.

    Empty where the contract was given a finished model: nobody saw how that was built.
    """
    return _seen(subject)[0]


@remembered("switches seen")
def _seen(subject: Subject) -> tuple[dict[str, Location], dict[str, Location]]:
    """Return, by parameter, the lines that switch gradients off, and on again, as the model is built; cached."""
    found: tuple[dict[str, Location], dict[str, Location]] = {}, {}
    if subject.contract.is_factory:
        with isolated(), _Switches() as watch:
            model = subject.build()
        for name, parameter_ in model.named_parameters():
            for switched, lines in zip((watch.off, watch.on), found, strict=True):
                place = switched.get(id(parameter_), (None, None))[1]
                if place is not None and sources.rank(place.file):
                    lines[name] = place
    return found


def switched_on(subject: Subject, name: str) -> Location | None:
    """Return the user's line that switches a parameter's gradient on again, so that an optimizer steps with it on.

    This is seen as the model is built, as the optimizer is made, or in a step; None where it is not.
    """
    if subject.named_parameters()[name].requires_grad:
        return _seen(subject)[1].get(name)
    places: list[Location | None] = []
    hooks: list[Any] = []
    with subject.pristine(steps=True) as model:
        wanted = dict(model.named_parameters(remove_duplicate=False))[name]
        watch = _Switches()

        def stepping(optimizer: Any, args: Any, kwargs: Any) -> None:
            held = any(p is wanted for group in optimizer.param_groups for p in group["params"])
            if held and wanted.requires_grad and wanted.grad is not None:
                places.append(watch.on.get(id(wanted), (None, None))[1])

        seed_everything(subject.seed)
        try:
            with watch:
                model.train()
                made = subject.make_optimizer(model)
                hooks += [o.register_step_pre_hook(stepping) for o in optimizers_of(made)]
                subject.train_step(model, made, subject.batch().clone())
        except SubjectError:
            return None
        finally:
            for hook in hooks:
                hook.remove()
    return next((p for p in places if p is not None and sources.rank(p.file)), None)


def switched_off(subject: Subject, name: str) -> list[Location]:
    """Return the lines that may switch a parameter's gradient off, the likeliest first.

    Where a function freezes whatever it is given, the call that gives it this part comes before its own line.
    The line that was seen to do it is the only one. Else a line of a class that owns the parameter comes
    first; then those of the user's files that hold the model's classes and the contract's functions,
    first of all those with a text that stands in the name, and none that leaves it on by what it
    says of the name.

    Args:
        subject: Whose model.
        name: Qualified name of the parameter.
    """
    found = _switching(subject, name)
    return [*(call for place in found[:1] for call in _given_to(place, name)), *found]


def _given_to(place: Location, name: str) -> Iterator[Location]:
    """Yield the call that gives a part with a parameter to the function in which a line stands, if there is one."""
    function = sources.function_around(place.file, place.line)
    given = [] if function is None else sources.parameters(function)
    if function is None or not set(given) - {"self"} or function.name == "__init__":
        return
    calls = {
        node.lineno
        for node in sources.nodes(place.file)
        if isinstance(node, ast.Call) and sources.called(node) == function.name
        for argument in node.args
        if ast.unparse(argument).rpartition(".")[2] in name.split(".")
    }
    if len(calls) == 1:
        yield sources.of_line(place.file, calls.pop())


def _switching(subject: Subject, name: str) -> list[Location]:
    if (seen := seen_off(subject).get(name)) is not None:
        return [seen]
    parts = name.split(".")
    for depth in range(len(parts) - 1, -1, -1):
        owner = subject.model.get_submodule(".".join(parts[:depth]))
        for cls in type(owner).__mro__:
            if not sources.is_no_tools_class(cls):
                continue
            found = sources.search(
                cls,
                r"requires_grad\s*=\s*(?!=|True\b)|requires_grad_\((?!\)|True\b|requires_grad=True\b)",
            )
            if found is not None:
                return [found]
    lines = switches(subject)
    lines = [place for place in lines if not keeps_on(place, name)] or lines
    fitting = [place for place in lines if _names(place, name)]
    fitting = fitting or [place for place in lines if any(_given_to(place, name))]
    return (fitting or lines)[:_MOST]


def switches(subject: Subject) -> list[Location]:
    """Return the lines of the user's files that switch gradients off, or on by a condition."""
    return [
        place
        for file in sorted(files_of_model(subject))
        for place in sources.file_matches(file, _SWITCH)
        if not _ON.search(place.text)
    ]


def culprits_of(places: list[Location]) -> list[Culprit]:
    """Return lines that switch gradients as culprits, each with what decides whether it runs."""
    found = [*places]
    for place in places:
        above = _condition(place)
        found += [at for at in (above, *deciding(place)) if at is not None and at not in found]
    return [Culprit("call", "requires_grad", "selects what is frozen", place) for place in found]


def files_of_model(subject: Subject) -> set[str]:
    """Return the user's files that hold the model's classes and the contract's functions."""
    contract = subject.contract
    things: list[object] = [type(module) for module in subject.model.modules()]
    model = contract.model if not isinstance(contract.model, nn.Module) else None
    things += functions_of(contract.optimizer, contract.train_step, model)
    return set(_own_files(things))


def _own_files(things: list[object]) -> Iterator[str]:
    for thing in things:
        try:
            file = inspect.getsourcefile(thing)  # type: ignore[arg-type]
        except (TypeError, OSError):
            continue
        if file is not None and sources.rank(file) == 2:
            yield file


def _names(place: Location, name: str) -> bool:
    """Say whether a line, or the condition above it, holds a text that stands in a parameter's name."""
    above = _condition(place)
    text = place.text + (above.text if above is not None else "")
    text += " ".join(at.text for at in deciding(place))
    return any(literal in name for literal in _LITERAL.findall(text))


def _condition(place: Location) -> Location | None:
    """Return the nearest line above that opens the block a line stands in, where it names something."""
    indent = len(linecache.getline(place.file, place.line)) - len(
        linecache.getline(place.file, place.line).lstrip()
    )
    for number in range(place.line - 1, max(0, place.line - 6), -1):
        text = linecache.getline(place.file, number)
        depth = len(text) - len(text.lstrip())
        if text.strip() and depth < indent:
            if _CONDITION.match(text) and _CHOOSES.search(text):
                return sources.of_line(place.file, number)
            return None
    return None


_HOOKS = r"\.register_(post_accumulate_grad_)?hook\("


def hook_line(subject: Subject, name: str) -> Location | None:
    """Return the one line that gives a parameter the hook it has; None where it has none, or several lines may have."""
    held = subject.named_parameters()[name]
    later = getattr(held, "_post_accumulate_grad_hooks", None)
    hooks = [*(held._backward_hooks or {}).values(), *(later or {}).values()]
    parts = name.split(".")
    owners = [subject.model.get_submodule(".".join(parts[:depth])) for depth in range(len(parts))]
    classes = {cls for owner in owners for cls in type(owner).__mro__ if sources.is_own_class(cls)}
    contract = subject.contract
    model = None if isinstance(contract.model, nn.Module) else contract.model
    makers = functions_of(contract.optimizer, contract.train_step, model)
    written: tuple[Callable[..., Any] | type, ...] = (*classes, *makers)
    found = {
        (place.file, place.line): place
        for thing in written
        for place in sources.matches(thing, _HOOKS)
        if any(_sets(place, hook) for hook in hooks)
    }
    return next(iter(found.values())) if len(found) == 1 else None


def _sets(place: Location, hook: Any) -> bool:
    """Say whether a line that sets a hook sets this one: it names the function, or holds it written out."""
    name = getattr(hook, "__name__", "")
    if name != "<lambda>":
        return bool(name) and named(name, place.text)
    statement = sources.statement(place.file, place.line)
    return statement is not None and sources.holds(statement, hook.__code__.co_firstlineno)


def off(subject: Subject, names: Iterable[str]) -> Iterator[Finding]:
    """Explain parameters that are promised to be trainable and are frozen, one finding for each cause."""
    groups: dict[tuple[Alias | None, tuple[Location, ...]], list[str]] = defaultdict(list)
    for name in names:
        places = switched_off(subject, name)
        texts = [p.text for at in places[:1] for p in (at, _condition(at)) if p is not None]
        groups[frozen_through(subject, name, texts), tuple(places)].append(name)
    for (alias, found), group in groups.items():
        places = list(found)
        one = len(group) == 1
        first = group[0]
        cause = "the parameter is frozen" if one else "the parameters are frozen"
        because = f"{first}.requires_grad is False in the newly built model"
        chosen = sorted({at.line for place in places[:1] for at in deciding(place)})
        if chosen:
            because += f", decided on line{'s' * (len(chosen) > 1)} {', '.join(map(str, chosen))}"
        fix = (
            f"call requires_grad_(True) on {first if one else 'them'}, or drop "
            f"{'it' if one else 'them'} from Trainable(...)"
        )
        location = places[0] if places else sources.of_parameter(subject.model, first)
        owner = subject.model.get_submodule(first.rpartition(".")[0])
        if (
            isinstance(owner, nn.Embedding | nn.EmbeddingBag)
            and location is not None
            and "from_pretrained(" in location.text
            and "freeze=" not in location.text
        ):
            cause = "from_pretrained freezes its weights by default"
            fix = (
                f"pass freeze=False to from_pretrained on line {location.line}, or drop "
                f"{'it' if one else 'them'} from Trainable(...)"
            )
        culprits = [parameter(subject, name, "requires_grad=False") for name in group]
        if alias is not None:
            what = "are the same module" if alias.is_module else "hold the same parameters"
            cause = f"{alias.name} and {alias.other} {what}: freezing one freezes both"
            because = f"model.{alias.own} is model.{alias.shared}; {first}.requires_grad is False"
            fix = f"make {alias.other} a copy: copy.deepcopy of {alias.name}"
            location = alias.location or location
            detail = (
                f"is {alias.name}" if alias.is_module else f"holds the parameters of {alias.name}"
            )
            culprits.insert(0, Culprit("module", alias.other, detail, alias.location))
        yield violated(
            "grad-off",
            f"{names_text(group)} {'is' if one else 'are'} promised to be trainable but "
            f"{'does' if one else 'do'} not require a gradient",
            culprits=[*culprits, *culprits_of(places)],
            observed="requires_grad is False" + ("" if one else f" for {len(group)} parameters"),
            cause=cause,
            because=because,
            location=location,
            fix=fix,
            evidence={"parameters": list(group)},
        )


def nothing_trainable(subject: Subject) -> Finding:
    """Explain a model of which every parameter is frozen though its contract trains it."""
    names = [name for name, _ in subject.model.named_parameters()]
    promised = [name for name in names if subject.is_promised("Trainable", name)]
    open_ones = promised or [n for n in names if not subject.is_promised("Frozen", n)] or names
    places = switched_off(subject, open_ones[0])
    contract = subject.contract
    declared = {
        "an optimizer": contract.optimizer is not None,
        "a training step": contract.train_step is not None,
        "trainable parameters": bool(promised),
    }
    said = next((what for what, given in declared.items() if given), "a loss")
    made = violated if any(declared.values()) else suspicious
    return made(
        "nothing-trainable",
        f"no parameter of the model requires a gradient: {names_text(open_ones)} are frozen too",
        culprits=[
            *(parameter(subject, name, "requires_grad=False") for name in open_ones[:8]),
            *culprits_of(places),
        ],
        location=places[0] if places else sources.of_parameter(subject.model, open_ones[0]),
        observed=f"requires_grad is False for all {len(names)} parameters; the contract declares "
        f"{said}",
        cause="every parameter is frozen, so the loss has no graph and no step can train the model",
        because=f"{open_ones[0]}.requires_grad is False in the newly built model",
        fix="freeze only the parameters that must not train, or call requires_grad_(True) on the "
        "others afterwards",
        evidence={"parameters": list(names)},
    )
