"""Deep copies and pickles of a model: whether they are complete, and whether they are copies."""

from __future__ import annotations

import copy
import functools
import io
import re
import types
import weakref
from typing import TYPE_CHECKING

from .. import sources
from ..findings import Culprit, Finding
from ..objects.peek import closed_over
from ..probes.holding.held_by_models import closure_of, holdings
from ..record.tracing import line_of, returns
from ..runs.copying import (
    COPIED,
    OTHER_DRAWS,
    PICKLED,
    LightPickler,
    copies_itself,
    pickled,
    shared_with,
)
from ..runs.outputs import Outputs, gap, outputs_of
from ..runs.saving import perturb, registered
from ..runs.training.steps import trajectory
from ..state import seed_everything
from ..subject.errors import SubjectError
from ..text.printable import message_of
from ..verdicts import inconclusive, passed, violated

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

    from ..findings import Location
    from ..subject import Subject


def check_pickle(subject: Subject, expected: Outputs) -> Iterator[Finding]:
    """Pickle the model and run what comes back; that it cannot be pickled matters only to spawned ranks."""
    with subject.pristine() as model:
        try:
            seed_everything(subject.seed + OTHER_DRAWS, own=False)
            twin = subject.convert(pickled(model))
        except Exception as error:  # any object may refuse, in its own words
            yield _unpicklable(subject, model, error)
            return
        try:
            difference = gap(outputs_of(subject, twin), expected)
        except SubjectError as error:
            yield _raising(subject, twin, error, "pickle-differs", "an unpickled copy")
            return
    if difference is not None:
        yield violated(
            "pickle-differs",
            f"{type(subject.model).__name__} gives different outputs after pickling",
            culprits=[Culprit("module", type(subject.model).__name__)],
            location=_reducer(subject.model),
            observed=f"{difference[0]} differs by {difference[1]:.3g}, with identical parameters",
            cause="pickling drops or changes an attribute that the forward uses",
            because="the unpickled model has the same tensors and runs the same code",
            fix="keep every attribute that forward needs in __getstate__ and __setstate__",
        )
        return
    yield passed(PICKLED)


def _reducer(model: nn.Module) -> Location | None:
    for module in model.modules():
        for name in ("__getstate__", "__setstate__", "__reduce__", "__reduce_ex__"):
            own = vars(type(module)).get(name)
            if (
                own is not None
                and (place := sources.of_object(own)) is not None
                and sources.rank(place.file)
            ):
                return place
    return sources.of_object(type(model))


def _unpicklable(subject: Subject, model: nn.Module, error: Exception) -> Finding:
    message = (message_of(error).splitlines() or [type(error).__name__])[0]
    name, place = _culprit(model)
    ranks = subject.contract.ranks
    if ranks is None or ranks < 2 or not name:
        return passed(
            f"the model cannot be pickled ({name + ': ' if name else ''}{message}); only "
            "torch.save(model) and spawned processes need that",
            evidence={"pickle": message, "attribute": name},
        )
    return violated(
        "not-picklable",
        f"{name} cannot be pickled, so the model cannot be sent to a spawned rank",
        culprits=[Culprit("module", name, location=place)],
        observed=message,
        cause=f"{name} holds a lambda, a local function, a lock or an open file",
        because=f"pickling this attribute alone raises {type(error).__name__}; the contract "
        f"declares {ranks} ranks",
        fix=f"use a function of the module's file for {name}, or remove it in __getstate__",
    )


def _culprit(model: nn.Module) -> tuple[str, Location | None]:
    """Return the attribute that cannot be pickled by itself, and its line."""
    for prefix, module in model.named_modules():
        for key, value in vars(module).items():
            if key in ("_parameters", "_buffers", "_modules"):
                continue
            try:
                LightPickler(io.BytesIO()).dump(value)
            except Exception:  # any object may refuse, in its own words
                return f"{prefix}.{key}" if prefix else key, sources.of_assignment(module, key)
    return "", None


def check_copy(subject: Subject, expected: Outputs) -> Iterator[Finding]:
    """Deep-copy the model, change every parameter and buffer of the original, and run the copy."""
    with subject.pristine(steps=True) as model:
        try:
            seed_everything(subject.seed + OTHER_DRAWS, own=False)
            twin = subject.convert(copy.deepcopy(model))
        except Exception as error:  # locks and computed tensors refuse to be copied
            message = (message_of(error).splitlines() or [type(error).__name__])[0]
            yield inconclusive(
                f"the model cannot be deep-copied: {type(error).__name__}: {message[:160]}",
                code="not-copied",
            )
            return
        shared = shared_with(model, twin)
        changed = perturb(registered(model))
        try:
            difference = gap(outputs_of(subject, twin), expected)
        except SubjectError as error:
            yield _raising(subject, twin, error, "copy-differs", "a deep copy")
            return
    if not changed:
        yield inconclusive("the model has no floating-point state that a copy could share")
        return
    if difference is None and not shared:
        yield passed(COPIED.format(changed))
        return
    if difference is None:
        if not any(
            "__deepcopy__" in vars(cls) for m in model.modules() for cls in type(m).__mro__[:-1]
        ):
            yield _sharing(subject, shared)
        else:
            yield passed(
                f"a deep copy gives the same outputs; {shared[0]} is shared by its own __deepcopy__"
            )
        return
    with subject.pristine() as model:
        seed_everything(subject.seed + OTHER_DRAWS, own=False)
        twin = subject.convert(copy.deepcopy(model))
        unchanged = gap(outputs_of(subject, twin), expected)
    if unchanged is not None:
        yield _different(subject, unchanged, _bound_to_original(subject.model, twin))
    elif shared:
        yield _holding(subject, difference, shared)
    else:
        yield _dependent(subject, difference, twin)


def check_trained(subject: Subject) -> Iterator[Finding]:
    """Report a copy of the trained model that computes something else, where one of the model as built does not."""
    if not copies_itself(subject.model) or not any(
        p.requires_grad for p in subject.model.parameters()
    ):
        return
    try:
        code = trajectory(subject).left.uncopied
    except SubjectError:
        return  # the checks of training explain it
    if not code:
        return
    kind, what = type(subject.model).__name__, "pickling" if code[0] == "p" else "a deep copy"
    yield violated(
        code,
        f"{kind} gives different outputs after {what}, once it is trained",
        culprits=[Culprit("module", kind)],
        location=_reducer(subject.model),
        observed="after a few training steps the copy computes something else; right after building it does not",
        cause="what training changes is not copied: the copy has it as a new model does",
        because="both were given the same batch and seed, in eval mode",
        fix="keep parameters, buffers and what else training writes in __getstate__",
    )


def _sharing(subject: Subject, shared: list[str]) -> Finding:
    return violated(
        "copy-shares",
        f"a deep copy shares {shared[0]} with the original",
        culprits=[
            Culprit("parameter", n, location=sources.of_parameter(subject.model, n))
            for n in shared[:4]
        ],
        observed=f"{len(shared)} of the copy's tensors share the original's memory, {shared[0]} "
        "first",
        cause=f"the __deepcopy__ of {shared[0]} returns it uncopied",
        because="both have the same address in memory; the outputs are equal until either changes",
        fix=f"return a copy from the __deepcopy__ of {shared[0]}",
    )


def _holding(subject: Subject, difference: tuple[str, float], shared: list[str]) -> Finding:
    """Explain a copy that holds tensors of the original."""
    name = shared[0]
    copying = [
        vars(cls)["__deepcopy__"]
        for module in subject.model.modules()
        for cls in type(module).__mro__[:-1]
        if "__deepcopy__" in vars(cls)
    ]
    leaf = name.rpartition(".")[2]
    place = next(
        (
            found
            for function in copying
            if (found := sources.search(function, rf"\b{re.escape(leaf)}\b")) is not None
        ),
        sources.of_object(copying[0]) if copying else sources.of_parameter(subject.model, name),
    )
    given = _returned_itself(subject) if copying else None
    return violated(
        "copy-depends",
        f"a deep copy of {type(subject.model).__name__} uses {name} of the original",
        culprits=[
            *(
                [Culprit("call", f"{given[0]}.__deepcopy__", "returns self", given[1])]
                if given
                else []
            ),
            *(Culprit("parameter", n, "shared with the copy", place) for n in shared[:4]),
        ],
        location=given[1] if given else place,
        observed=f"{difference[0]} of the copy differs by {difference[1]:.3g} after only the "
        "original's parameters changed",
        cause=f"{given[0]}.__deepcopy__ returns the module that it is to copy"
        if given
        else f"the copy receives the original's {name} instead of a copy of it",
        because=f"{name} of the copy and of the original have the same address in memory",
        fix=f"return a new {given[0]} from it, or delete it: torch copies modules by itself"
        if given
        else f"copy {name} too: .detach().clone() in a new nn.Parameter",
    )


def _returned_itself(subject: Subject) -> tuple[str, Location] | None:
    """Return the class of a module of which ``__deepcopy__`` returns that module, and the line that does."""
    with subject.pristine() as model:
        for one in returns(lambda: copy.deepcopy(model)):
            code = one.frame.f_code
            itself = any(
                one.value is m and one.frame.f_locals.get("self") is m for m in model.modules()
            )
            if code.co_name == "__deepcopy__" and itself:
                return type(one.value).__name__, line_of(code, one.line)
    return None


def _dependent(subject: Subject, difference: tuple[str, float], twin: nn.Module) -> Finding:
    name, place = _kept_by(subject.model, twin) or _bound_to(subject.model)
    what = f" through {name}" if name else ""
    return violated(
        "copy-depends",
        f"a deep copy of {type(subject.model).__name__} still reads the original{what}",
        culprits=[Culprit("module", name or type(subject.model).__name__, location=place)],
        observed=f"{difference[0]} of the copy differs by {difference[1]:.3g} after only the "
        "original's parameters changed",
        cause=f"{name} is a function that holds the original"
        if name
        else "a function or global holds the original",
        because="the copy gives the correct outputs until the original's parameters change",
        fix=f"make {name} a method, or pass the module to it"
        if name
        else "pass the module to the function that uses it",
    )


def _kept_by(model: nn.Module, twin: nn.Module) -> tuple[str, Location | None] | None:
    """Return the attribute of a copy through which it still has a module of the original, and the line that sets it."""
    originals = {id(module) for module in model.modules()}
    for path, module in twin.named_modules():
        for key, value in vars(module).items():
            found = list(_behind(value))
            if key.startswith("_") or not any(id(thing) in originals for thing in found):
                continue
            place = sources.of_assignment(module, key) or _set_from_outside(key, found)
            return f"{path}.{key}" if path else key, place
    return None


def _behind(value: object, depth: int = 4) -> Iterator[object]:
    """Yield a function, and what it is bound to: a closure, arguments of a partial, what a weak reference leads to."""
    yield value
    inner: list[object] = []
    if isinstance(value, types.FunctionType):
        inner = list(closed_over(value).values())
    elif isinstance(value, functools.partial):
        inner = [value.func, *value.args, *value.keywords.values()]
    elif isinstance(value, types.MethodType):
        inner = [value.__func__, value.__self__]
    elif isinstance(value, weakref.ref):
        inner = [value()]
    for each in inner if depth else ():
        yield from _behind(each, depth - 1)


def _set_from_outside(key: str, found: list[object]) -> Location | None:
    """Return the one line, in the file of a function, that sets an attribute to something made with that function."""
    for function in found:
        if isinstance(function, types.FunctionType) and sources.rank(function.__code__.co_filename):
            written = rf"\.{re.escape(key)}\s*=[^=].*\b{re.escape(function.__name__)}\b"
            lines = sources.file_matches(function.__code__.co_filename, written)
            if len(lines) == 1:
                return lines[0]
    return None


def _bound_to(model: nn.Module) -> tuple[str, Location | None]:
    """Return the attribute whose function closes over a module or parameter of the model."""
    parts: set[int] = {id(m) for m in model.modules()} | {id(t) for t in registered(model)}
    for prefix, module in model.named_modules():
        for key, value in vars(module).items():
            if isinstance(value, types.FunctionType) and any(
                id(cell) in parts for cell in closure_of(value)
            ):
                return f"{prefix}.{key}" if prefix else key, sources.of_assignment(module, key)
    held = next((h for h in holdings(model) if h.via in ("closure", "method", "partial")), None)
    return (held.path, held.location) if held is not None else ("", None)


def _different(
    subject: Subject, difference: tuple[str, float], bound: tuple[str, Location | None] | None
) -> Finding:
    name, place = bound or ("", None)
    return violated(
        "copy-differs",
        f"a deep copy of {type(subject.model).__name__} gives different outputs",
        culprits=[Culprit("module", name or type(subject.model).__name__, location=place)],
        location=place or _reducer(subject.model),
        observed=f"{difference[0]} differs by {difference[1]:.3g}, right after copying",
        cause=_OWN_SELF.format(name)
        if bound
        else "copying drops or changes an attribute that the forward uses",
        because="the copy has equal parameters and buffers, and runs the same code on equal "
        "inputs and seeds",
        fix=_TAKE_ARGUMENT if bound else "copy every attribute that forward needs",
    )


def _raising(
    subject: Subject, twin: nn.Module, error: SubjectError, code: str, what: str
) -> Finding:
    """Explain a copy that raises where the model itself runs."""
    name, place = bound = _bound_to_original(subject.model, twin) or ("", None)
    said = message_of(error.error).splitlines() or [""]
    return violated(
        code,
        f"{what} of {type(subject.model).__name__} raises {type(error.error).__name__}: {said[0][:100]}",
        culprits=[Culprit("module", name or type(subject.model).__name__, location=place)],
        location=place or _reducer(subject.model),
        observed=f"the model itself runs; {what} of it raises in the {error.phase}",
        cause=_OWN_SELF.format(name)
        if bound[0]
        else "copying drops or changes an attribute that the forward uses",
        because="both were given the same batch and seed, in eval mode",
        fix=_TAKE_ARGUMENT if bound[0] else "copy every attribute that forward needs",
    )


_OWN_SELF = "{} of the copy still refers to the original: deepcopy does not copy what a function closes over"
_TAKE_ARGUMENT = "use the module that a hook is given instead of self, or register a method: deepcopy binds it anew"


def _bound_to_original(model: nn.Module, twin: nn.Module) -> tuple[str, Location | None] | None:
    """Return a hook or function of a copy that closes over a module of the original, and its line."""
    originals = {id(module) for module in model.modules()}
    for path, module in twin.named_modules():
        for key, value in vars(module).items():
            for function in value.values() if isinstance(value, dict) else (value,):
                if not isinstance(function, types.FunctionType):
                    continue
                if any(id(held) in originals for held in closed_over(function).values()):
                    kind = "a hook" if key.endswith("_hooks") else key
                    return f"{kind} of {path}" if path else kind, sources.of_object(function)
    return None
