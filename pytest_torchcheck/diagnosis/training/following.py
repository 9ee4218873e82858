"""Tensors that must follow others, and do not: moving averages and their statistics, replicas, an optimizer's state."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import torch

from ... import sources
from ...explanation import counted, on_line
from ...findings import Culprit, Finding, Location
from ...loop.replay import lines_of_step, replay, where_changed
from ...loop.traces.wording import at
from ...record.tracing import line_of
from ...subject.optimizers import optimizers_of
from ...text.wording import names_text
from ...verdicts import suspicious, violated
from ..lines.conditions import deciding

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import FrameType

    from torch import nn

    from ...loop.trace import Trace
    from ...record.tracing import Watcher
    from ...subject import Subject

    _Drops = Callable[[FrameType, list[Any], int], bool]
    from types import FrameType


def walked(subject: Subject, place: Location) -> tuple[Culprit, ...]:
    """Return the lines of the step that choose what the statement on a line is applied to, the nearest first."""
    ran = lines_of_step(subject, place.file)
    return tuple(
        Culprit(
            "call", sources.assigned_name(line) or "loop", "chooses what it is applied to", line
        )
        for line in deciding(place)
        if line.line in ran
    )[:3]


def stale(subject: Subject, kept: Mapping[str, str], average: str) -> Finding:
    """Explain buffers of a moving average that keep their first values.

    Args:
        subject: Whose step.
        kept: By buffer of the average, the buffer of the trained module that it was copied from.
        average: A parameter of the average that the step does update.
    """
    name, source = next(iter(kept.items()))
    own = where_changed(subject, name, written=True)
    place = own or where_changed(subject, average)
    loops = walked(subject, place) if place is not None else ()
    chosen = [c.location for c in loops if c.location and "parameters(" in c.location.text]
    location = next(iter(sorted(chosen, key=lambda at: not at.text.startswith("for "))), place)
    cause = "the average is taken over parameters; running statistics are buffers"
    fix = "update the buffers too: copy them after each update, or walk over state_dict() in place of parameters()"
    if own is not None:
        location = own
        cause = f"each update writes to it{on_line(own)}, and writes the value that it has"
        fix = f"write the value of {source}{on_line(own)}"
    return violated(
        "average-statistics",
        f"{name} keeps its initial values, while {source}, from which it was copied, changes",
        culprits=[
            *(Culprit("buffer", each, "does not follow", location) for each in kept),
            *loops,
        ],
        location=location,
        observed=f"after 3 steps {len(kept)} buffers of the average are bit-equal to what they were; "
        f"{average} was updated in each",
        cause=cause,
        because=f"{source} changed, {name} did not, and the output changes with {name}",
        fix=fix,
        evidence={"buffers": dict(kept)},
    )


def frozen_average(subject: Subject, pairs: Mapping[str, str], moved: float) -> Finding:
    """Explain frozen parameters that the step keeps as averages of trained ones: promise and step disagree.

    Args:
        subject: Whose step.
        pairs: By parameter, the trained one that it started as a copy of.
        moved: How far the first steps moved them at most.
    """
    names, place = list(pairs), where_changed(subject, next(iter(pairs)))
    return suspicious(
        "frozen-moved",
        f"{names_text(names)} {'is' if len(names) == 1 else 'are'} promised to be frozen, but the step "
        f"averages trained parameters into {'it' if len(names) == 1 else 'them'}",
        culprits=[Culprit("parameter", n, f"moves towards {pairs[n]}", place) for n in names],
        observed=f"max|after - before| = {moved:.3g}; each update moves them a part of the way to the "
        "parameters that they started as copies of",
        cause="Frozen promises that a parameter stays as it is; what the step keeps here is a moving average",
        because="they require no gradient, and each update of the step points from them to those parameters",
        fix=f"if the average is intended, remove {names_text(names)} from Frozen(...) and declare "
        "promises.MovingAverage(...) instead; otherwise remove the update",
        evidence={"parameters": names},
    )


def shortened(subject: Subject, shrunk: Mapping[str, float], pairs: Mapping[str, str]) -> Finding:
    """Explain unit vectors that an average takes in, and that are no unit vectors then.

    Args:
        subject: Whose step.
        shrunk: By buffer of the average, how far its length departs from 1.
        pairs: By buffer of the average, the buffer of the trained module that it was copied from.
    """
    name = max(shrunk, key=lambda name: shrunk[name])
    place = where_changed(subject, name)
    return violated(
        "average-statistics",
        f"{name} is an average of unit vectors, and no unit vector itself",
        culprits=[Culprit("buffer", each, "is averaged", place) for each in shrunk],
        observed=f"its length departs from 1 by {shrunk[name]:.3g} within 3 steps, that of {pairs[name]} by rounding",
        cause="the mean of vectors of different directions is shorter than they are",
        because=f"each step keeps {pairs[name]} at length 1, and the output changes with the length of {name}",
        fix="copy such buffers after each update (spectral norm's vectors, for one), and average parameters only",
        evidence={"lengths": dict(shrunk)},
    )


def one_for_two(subject: Subject, follower: str, trained: str, name: str) -> Finding:
    """One module under two names, of which a step trains one and updates the other by hand."""
    parent, _, attribute = follower.rpartition(".")
    place = sources.of_assignment(subject.model.get_submodule(parent), attribute)
    method = re.search(
        r"\.(to|cpu|cuda|eval|train|requires_grad_|float|half)\(", place.text if place else ""
    )
    returned = f": .{method[1]}() returns the module that it is called on" if method else ""
    return violated(
        "average-shared",
        f"{follower} and {trained} are the same module: {follower} moves with every step of {trained}",
        culprits=[
            Culprit("module", follower, f"is {trained} itself", place),
            Culprit("parameter", f"{follower}.{name}", "shares its memory with the trained one"),
        ],
        observed=f"model.{follower} is model.{trained}, and the optimizer steps its parameters",
        cause=f"{follower} was assigned the module itself, not a copy{returned}",
        because=f"in a step with a copy in place of {follower}, the copy receives no gradient "
        f"and the step updates {follower}.{name} all the same: it is to follow {trained}",
        fix=f"assign a copy: self.{attribute} = copy.deepcopy(...)",
    )


def one_memory(subject: Subject, within: Mapping[str, str]) -> Finding:
    """A buffer that is the memory of a trained parameter."""
    name, other = next(iter(within.items()))
    parent, _, attribute = name.rpartition(".")
    place = _made(subject.model.get_submodule(parent), attribute)
    return violated(
        "average-shared",
        f"{name} is the memory of {other}: it moves with every step",
        culprits=[Culprit("buffer", each, f"is {within[each]} itself", place) for each in within],
        observed=f"{counted(len(within), 'buffer')} at the address of a trained parameter",
        cause="a buffer was registered that shares its memory with a parameter: detach() and .data copy nothing",
        because=f"both are at one address; what is written to {name} is written to {other}, and what the optimizer "
        "writes is in both",
        fix=f"register a copy{on_line(place)}: .detach().clone()",
    )


def own_memory(subject: Subject, aliased: Mapping[str, str]) -> Finding:
    """Explain an entry of an optimizer's state that is the parameter's own memory."""
    name, key = next(iter(aliased.items()))
    with subject.pristine(steps=True) as model:
        kinds = [type(optimizer) for optimizer in optimizers_of(subject.make_optimizer(model))]
    pattern = rf"['\"]{re.escape(key)}['\"]\]?\s*[=:,](?!=)"
    own = (sources.search(kind, pattern) for kind in kinds if sources.is_own_class(kind))
    place = next(filter(None, own), None)
    return violated(
        "average-shared",
        f"{key} in the optimizer's state is the memory of its parameter: it moves with every step",
        culprits=[
            Culprit("optimizer", key, "is the parameter's own memory", place),
            *(Culprit("parameter", each, f"is its {key}") for each in list(aliased)[:3]),
        ],
        location=place,
        observed=f"{counted(len(aliased), 'entry', 'entries')} of the state at the address of the parameter",
        cause="what is kept beside a parameter shares its memory: detach() and .data copy nothing",
        because=f"state[{name}][{key!r}] and {name} are at one address: what is written to one is written to the other",
        fix=f"keep a copy{on_line(place)}: .detach().clone()",
    )


def _made(module: nn.Module, attribute: str) -> Location | None:
    """Return the line that makes what is registered as a buffer, else the one that registers it."""
    place = sources.of_assignment(module, attribute)
    place = place or sources.search(type(module), r"register_buffer\(\s*[^'\"\s]")
    value = re.search(r"register_buffer\(.*?,\s*(\w+)\s*[,)]", place.text) if place else None
    if place is None or value is None:
        return place
    copied = r"(?!.*(clone|copy))"
    return sources.line_above(place, rf"^\s*{re.escape(value[1])}\s*={copied}[^=]") or place


def pushed_away(wrong: dict[str, float], source: str, name: str, place: Location | None) -> Finding:
    """A copy of the weights that every update moves away from them."""
    return violated(
        "average-pushed-away",
        f"{name} moves away from {source}, although it started as a copy of it",
        culprits=[Culprit("parameter", each, "moves away", place) for each in wrong],
        observed=f"each update moves it against the difference {source} - {name} (cosine {wrong[name]:.3f})",
        cause="the update of the average has the wrong sign",
        because="an average of the weights lies between its old value and theirs, for any decay",
        fix="move it towards the weights, as in average.lerp_(weight, 1 - decay)",
    )


def not_averaged(
    target: str,
    source: str,
    decay: float,
    name: str,
    measured: float | None,
    error: float,
    place: Location | None,
    *,
    same: bool,
) -> Finding:
    """A moving average that is something else."""
    if same:
        cause = f"{target} and {source} share a storage: the average is the trained model itself"
        because = f"{target}.{name} and {source}.{name} have the same data pointer"
        fix = f"copy the module: {target} = copy.deepcopy({source})"
    elif measured is not None and abs(measured - 1.0) < 1e-3:
        cause, fix = f"{target} is never updated", f"update {target} after every optimizer step"
        because = f"{target}.{name} keeps its value bit for bit"
    elif measured is not None and abs(measured - (1 - decay)) < 1e-3 and abs(1 - 2 * decay) > 1e-2:
        cause = "the decay and its complement are swapped"
        fix = f"keep {decay:g} of {target}, add {1 - decay:g} of {source}"
        because = f"{target}.{name} keeps {measured:.4g} of its value"
    else:
        cause = "the average follows another rule, or uses the weights of another step"
        because = f"{target}.{name} " + (
            f"keeps {measured:.4g} of its value"
            if measured is not None
            else "does not follow the average"
        )
        fix = f"{target} = {decay:g} * {target} + {1 - decay:g} * {source}, after the optimizer's step"
    return violated(
        "average-differs",
        f"{target}.{name} is not the moving average of {source}.{name} with decay {decay:g}",
        culprits=(
            Culprit("parameter", f"{target}.{name}", f"off by {error:.3g}", place),
            Culprit("parameter", f"{source}.{name}", "its source"),
        ),
        observed=f"after one step {target}.{name} is off by {error:.3g}",
        cause=cause,
        because=because,
        fix=fix,
    )


def parted(
    subject: Subject,
    pair: tuple[str, str],
    trace: Trace,
    step: int,
    distance: float,
    place: Location | None,
) -> Finding:
    """Two parameters that are promised to be equal are not."""
    a, b = pair
    stepped = trace.optimizer_steps()
    fallback = stepped[0].place if stepped else None
    loops = walked(subject, place) if place is not None else ()
    return violated(
        "replicas-differ",
        f"{a} and {b} differ by {distance:.3g} after step {step}",
        culprits=(
            Culprit("parameter", b, f"differs from {a}", sources.of_parameter(subject.model, b)),
            Culprit("parameter", a, "its replica", sources.of_parameter(subject.model, a)),
            *loops,
        ),
        location=place or fallback,
        observed=f"largest difference after each step: {', '.join(f'{p[pair]:.3g}' for p in trace.pairs[:6])}",
        cause="the replicas do not receive the same gradient or the same update",
        because=f"they were equal before, and their gradients differ after {at(place)}"
        if place
        else "they were equal before",
        fix=f"make the gradients of {a} and {b} equal (average both) before the step",
    )


def state_dropped(subject: Subject, step: int) -> Finding:
    """Explain an optimizer that holds state of fewer parameters after a step of the user's than before it."""
    place = _dropping_line(subject, step, _empties)
    made = _dropping_line(subject, step, _stateless)
    line = made or place or sources.of_object(subject.contract.train_step)
    return violated(
        "optimizer-state-lost",
        f"step {step + 1} removes what the optimizer has gathered",
        culprits=[
            Culprit("call", "state", "keeps the groups, and not the state", made),
            Culprit("optimizer", "exp_avg", "starts again here", place),
        ],
        location=line,
        observed=f"after step {step + 1} the optimizer holds state for fewer parameters than after "
        f"step {step}",
        cause="moments and step counts begin at zero again, as if training had just started"
        + (f": {sources.assigned_name(made) or 'what is loaded'} holds no state" if made else ""),
        because="the parameters are the same, and their entries in optimizer.state are gone",
        fix="save and load all of optimizer.state_dict(), and give it to the optimizer that goes on",
        evidence={"step": step},
    )


def _dropping_line(subject: Subject, step: int, drops: _Drops) -> Location | None:
    """Return the first line of a step after which something says that the optimizer's state is gone."""

    def watch(_: nn.Module, made: Any) -> Watcher:
        optimizers = optimizers_of(made)
        first = sum(len(o.state) for o in optimizers)

        def watcher(frame: FrameType, event: str, line: int) -> bool:
            return event != "call" and drops(frame, optimizers, first)

        return watcher

    return replay(subject, watch, before=step)


def _empties(_: FrameType, optimizers: list[Any], first: int) -> bool:
    return sum(len(o.state) for o in optimizers) < first


def _stateless(frame: FrameType, optimizers: list[Any], first: int) -> bool:
    """Say whether a variable holds an optimizer's ``state_dict`` without the state, while the optimizer has one."""
    held = (v for v in frame.f_locals.values() if isinstance(v, dict))
    stripped = any("param_groups" in v and not v.get("state") for v in held)
    return stripped and not _empties(frame, optimizers, first)


def pulled_back(subject: Subject, pairs: dict[str, str], share: float) -> Finding:
    """Trained weights that each step moves to a copy that stays as it is."""
    copy, source = next(iter(pairs.items()))
    owner = copy.partition(".")[0]
    inner, call = _lines(subject, source, owner)
    place = call or inner
    return violated(
        "average-swapped",
        f"{owner} never moves, and each step moves the trained weights back to it",
        culprits=[
            Culprit("parameter", copy, "stays as it is", place),
            Culprit("parameter", source, "is moved to it after the optimizer's step", inner),
        ],
        location=place,
        observed=f"after the optimizer's step, {names_text(list(pairs.values()))} went {share:.3g} of the way to "
        f"{names_text(list(pairs))}",
        cause="the update of the average writes to its source: the two are swapped",
        because=f"the copies are bit-equal after the steps, and the moves differ from {share:.3g} * (copy - weight) "
        "by rounding alone",
        fix=f"swap the two on line {place.line}" if place is not None else "swap the two",
        evidence={"copies": dict(pairs), "share": share},
    )


def _lines(subject: Subject, name: str, attribute: str) -> tuple[Location | None, Location | None]:
    """Return the line that moves a parameter after the optimizer's step, and the line that called its function."""
    calls: list[Location] = []

    def watcher(model: nn.Module, made: Any) -> Watcher:
        parameter = dict(model.named_parameters())[name]
        known: list[torch.Tensor] = []

        def stepped(*_: Any) -> None:
            known[:] = [parameter.detach().clone()]

        for optimizer in optimizers_of(made):
            optimizer.register_step_post_hook(stepped)

        def moved(frame: FrameType, event: str, line: int) -> bool:
            if event == "call" or not known or torch.equal(known[0], parameter):
                return False
            outer: FrameType | None = frame
            while outer is not None:
                if sources.rank(outer.f_code.co_filename) == 2:
                    named = attribute in (*outer.f_code.co_names, *outer.f_code.co_varnames)
                    if named:  # the function that knows which of the two is the copy
                        if outer is not frame:
                            calls.append(line_of(outer.f_code, outer.f_lineno))
                        return True
                outer = outer.f_back
            return True

        return moved

    inner = replay(subject, watcher)
    return inner, calls[0] if calls else None
