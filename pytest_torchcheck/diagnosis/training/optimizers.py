"""What an optimizer leaves out, holds twice or moves by mistake, explained."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Any

from ... import sources
from ...culprits import parameter
from ...findings import Culprit, Finding, Location
from ...loop.traces.rebound_parameters import where_rebound
from ...probes.recorded.watch import Watch, name_of, tensors_in
from ...runs.training.steps import lost
from ...state import seed_everything
from ...subject import SubjectError, optimizers_of
from ...text.wording import have, names_text
from ...verdicts import inconclusive, violated
from ..gradient import freezing
from ..gradient.zero_gradients import zero_at_step
from ..lines.dropped_results import dropped_result
from .given_parameters import left_out, spent_of
from .making import Making, making

if TYPE_CHECKING:
    import torch

    from ...runs.training.steps import Coverage, Trajectory
    from ...subject import Subject


def optimizer_line(subject: Subject, name: str = "") -> Location | None:
    """Return the line that concerns a parameter as the user's optimizer is made, or the line that makes it."""
    function = subject.contract.optimizer
    if function is None:
        return None
    made = making(subject)
    tail = name.rpartition(".")[2]
    patterns = (rf"(?<!\w){re.escape(name)}\b", rf"[\"'.]{re.escape(tail)}\b") if name else ()
    for pattern in patterns:
        if found := made.matches(pattern):
            return found[0]
    if made.optimizers:
        return made.optimizers[-1]
    return sources.search(function, r"return") or sources.of_object(function)


def missing(subject: Subject, names: list[str], coverage: Coverage) -> Finding:
    """Explain trainable parameters that no optimizer holds."""
    parameters = subject.named_parameters()
    stale = [
        name
        for name in names
        if tuple(parameters[name].shape[1:]) in {s[1:] for s in coverage.foreign}
    ]
    place = optimizer_line(subject, names[0])
    made = making(subject)
    trainable = [p for p in parameters.values() if p.requires_grad]
    copied = len(names) == len(trainable) and sorted(coverage.foreign) == sorted(
        tuple(p.shape) for p in trainable
    )
    thawed = made.thawed.get(names[0])
    whole = copied or stale or thawed or coverage.foreign or names[0] in made.replaced
    out = None if whole else left_out(subject, names[0])
    given = out.culprits if out is not None else ()
    named = {(p.file, p.line) for p in made.matches(rf"(?<!\w){re.escape(names[0])}\b")}
    if out is not None and (place is None or (place.file, place.line) not in named):
        place = out.location
    foreign = (
        f"; it holds {len(coverage.foreign)} tensors that are not the model's, of shapes "
        f"{', '.join(str(list(shape)) for shape in coverage.foreign[:3])}"
        if coverage.foreign
        else ""
    )
    return violated(
        "optimizer-missing",
        (
            f"{names_text(names)} {have(names, 'is') if len(names) == 1 else 'are'} in no "
            "optimizer and will never be trained"
        ),
        culprits=[
            *(
                Culprit(kind="parameter", name=name, detail="in no optimizer", location=place)
                for name in names
            ),
            *given,
            *(c for c in _choices(made) if c.location not in {g.location for g in given}),
            *(_copies(made) if coverage.foreign else ()),
            *(
                Culprit(kind="call", name=names[0], detail="is replaced here", location=line)
                for line in made.replaced.get(names[0], ())
            ),
            *(
                [
                    Culprit(
                        kind="call",
                        name=f"requires_grad of {names[0]}",
                        detail="on only from here",
                        location=thawed,
                    )
                ]
                if thawed
                else []
            ),
        ],
        location=place,
        observed=f"{len(names)} trainable parameters are missing from {', '.join(coverage.optimizers)}{foreign}",
        cause="the optimizer was built over another instance of the model: a copy of it, or one made anew"
        if copied
        else "the parameter was replaced after the optimizer got its list, or an old one was put into it"
        if stale
        else "it was frozen when the optimizer chose its parameters, and was unfrozen later"
        if thawed
        else "the optimizer was given a part of the parameters"
        + (
            f"; {out.words}"
            if out is not None and place == out.location != optimizer_line(subject)
            else ""
        ),
        because=f"{names[0]} requires a gradient, and no param_group holds this very tensor",
        fix="build the optimizer from model.parameters() after the model is final"
        if stale
        else out.fix
        if out is not None and out.fix
        else f"add {names[0]} to the optimizer, or freeze it with requires_grad_(False)",
        evidence={
            "parameters": list(names),
            "foreign": [list(shape) for shape in coverage.foreign],
        },
    )


def _copies(made: Making) -> list[Culprit]:
    """Return the lines that ran as the optimizer was made and that copy a model or a tensor."""
    return [
        Culprit(kind="optimizer", name="optimizer", detail="a copy", location=line)
        for line in made.matches(r"\b(deep)?copy\(|\.clone\(")[:4]
    ]


_CHOICE = re.compile(
    r"(parameters|modules|children)\(.*\bif\b|\bif (not )?isinstance\(|\bfilter\(|requires_grad|(starts|ends)with\(|\bif\b.*\bin\b|\bin\b.*\bname\b"
)


def _choices(made: Making) -> list[Culprit]:
    """Return the lines that ran as the optimizer was made and that choose parameters by a condition."""
    lines = [place for place in made.lines if _CHOICE.search(place.text)]
    return [
        Culprit(kind="call", name="parameters", detail="a condition chooses", location=line)
        for line in lines[:4]
    ]


def twice(subject: Subject, names: list[str], coverage: Coverage) -> Finding:
    """Explain parameters that one optimizer holds more than once, or two that apply the same gradient."""
    spent = spent_of(subject, names[0])
    spent = spent if spent is not None and spent.tested else None
    place = spent.made if spent is not None else optimizer_line(subject)
    used = spent.culprits if spent is not None else ()
    why = f"; {spent.cause}" if spent is not None else ""
    if len(coverage.optimizers) > 1:
        return violated(
            "optimizer-twice",
            (
                f"{names_text(names)} {'stands' if len(names) == 1 else 'stand'} in two "
                "optimizers that apply the same gradient"
            ),
            culprits=[
                *used,
                *(
                    Culprit(kind="parameter", name=name, detail="in two optimizers", location=place)
                    for name in names
                ),
            ],
            location=place,
            observed=f"{len(names)} parameters are held by more than one of {', '.join(coverage.optimizers)}",
            cause="both optimizers step along the gradient of one backward pass, so that it is applied twice"
            + why,
            because="in one step, the same pass was in their gradients when either optimizer stepped",
            fix=spent.fix if spent is not None else "give each parameter to one optimizer only",
        )
    return violated(
        "optimizer-twice",
        f"{names_text(names)} {'stands' if len(names) == 1 else 'stand'} in the optimizer more than once",
        culprits=[
            *used,
            *(
                Culprit(kind="parameter", name=name, detail="held twice", location=place)
                for name in names
            ),
        ],
        location=place,
        observed=f"{len(names)} parameters are held twice by {', '.join(coverage.optimizers)}",
        cause="two parameter groups overlap, so that the step and the decay are applied twice"
        + why,
        because="the same tensor stands in more than one place of param_groups",
        fix=spent.fix if spent is not None else "give each parameter to one group only",
    )


def standstill(subject: Subject, names: list[str], made: Trajectory, total: int) -> Finding:
    """Explain trainable parameters that a training step does not move."""
    first = subject.gradients()
    uncovered = [name for name in names if name in made.coverage.missing]
    gradless = [name for name in names if first.stats[name].kind == "none"]
    zero = [name for name in names if first.stats[name].kind == "zero"]
    own = subject.contract.train_step is not None
    rate = max((r for r in made.rates if r == r), default=None)
    own_rate = _rate_of(subject, names) if rate else rate
    place: Location | None = None
    given: tuple[Culprit, ...] = ()
    rebound = [name for name in names if name in lost(subject, made)]
    line = where_rebound(subject, rebound[0]) if rebound else None
    if line is not None:
        cause = f"the step puts a new Parameter in the place of {rebound[0]}, and the optimizer keeps the old one"
        because = (
            f"after line {line.line} no param_group holds the tensor that the model uses, "
            "and the next step gives it the "
            "same values when its gradient is turned round"
        )
        fix = "write to the parameter in place, under torch.no_grad(): .copy_(), .clamp_(), .mul_()"
        place = line
    elif len(gradless) + len(zero) == len(names):
        word = "no gradient" if gradless else "a gradient of zero"
        cause, because = (
            f"it has {word}, so that no optimizer can move it",
            f"its gradient is {'None' if gradless else 'zero'}",
        )
        fix = "give it a gradient first: let the loss depend on it (gradients-exist tells what cuts it off)"
        place = sources.of_parameter(subject.model, names[0])
    elif rate == 0.0:
        cause, because = (
            "the learning rate is 0",
            f"the learning rate was 0 in {len(made.rates)} steps",
        )
        fix = "give the optimizer a learning rate above 0"
        place = optimizer_line(subject)
    elif own_rate == 0.0:
        cause = "the learning rate of its parameter group is 0"
        because = f"the group that holds {names[0]} has lr=0, another one has {rate:g}"
        fix = f"give the group of {names[0]} a learning rate above 0"
        place = optimizer_line(subject, names[0])
    elif uncovered and len(uncovered) == len(names):
        cause, because = "the optimizer does not hold it", "no param_group holds this very tensor"
        fix = "add it to the optimizer"
        place = optimizer_line(subject, names[0])
        if not made.coverage.foreign and (out := left_out(subject, names[0])) is not None:
            place, given, fix = out.location, out.culprits, out.fix or fix
    elif own:
        step = subject.contract.train_step
        place = _suspect(subject)
        cleared = all(name not in made.live for name in names)
        cause = (
            "the gradients are cleared between backward and step"
            if cleared and place is not None and "zero_grad" in place.text
            else "the declared training step does not apply the gradients"
        )
        because = (
            f"a plain forward, loss and backward gives {names[0]} a gradient of norm {first.stats[names[0]].norm:.3g}, "
            f"and the step leaves it bit-equal"
        )
        fix = "order the step as zero_grad, forward, backward, step"
        place = place or sources.of_object(step)
    else:
        size, norm = made.sizes.get(names[0], 0.0), first.stats[names[0]].norm
        cause = "the update is smaller than half a unit in the last place of the weight"
        because = f"gradient norm {norm:.3g}, largest weight {size:.3g}, learning rate {own_rate}"
        fix = "raise the learning rate, or keep the weights in a wider dtype"
        place = optimizer_line(subject) or sources.of_parameter(subject.model, names[0])
    culprits = [parameter(subject, name, "unchanged") for name in names]
    culprits += given
    if line is not None:
        culprits.append(
            Culprit(kind="call", name=rebound[0], detail="is replaced here", location=line)
        )
    if 0.0 in (rate, own_rate):
        culprits += [
            Culprit(kind="optimizer", name="lr", detail="is made 0 here", location=line)
            for line in making(subject).zero_rates()[:2]
        ]
    if own and place is not None and "zero_grad" in place.text:
        culprits.insert(
            0,
            Culprit(
                kind="call", name="zero_grad", detail="between backward and step", location=place
            ),
        )
    return violated(
        "weight-static",
        f"{names_text(names)} {'does' if len(names) == 1 else 'do'} not "
        f"{'learn once a step replaces it' if line is not None else f'move in {len(made.losses)} training steps'} "
        f"({len(names)} of {total} parameters)",
        culprits=culprits,
        location=place,
        observed=f"max|after - before| = 0 over {len(made.losses)} steps"
        if line is None
        else f"{rebound[0]} is another tensor after {'the first step' if not made.rebound[rebound[0]] else 'a step'}",
        cause=cause,
        because=because,
        fix=fix,
        evidence={
            "parameters": list(names),
            "losses": list(made.losses),
            "rates": list(made.rates),
        },
    )


def _rate_of(subject: Subject, names: list[str]) -> float | None:
    """Return the largest learning rate of the groups that hold these parameters, as the optimizer is made."""
    with subject.pristine(steps=True) as model:
        known = dict(model.named_parameters())
        wanted = {id(known[name]) for name in names if name in known}
        rates = [
            float(group["lr"])
            for optimizer in optimizers_of(subject.make_optimizer(model))
            for group in optimizer.param_groups
            if "lr" in group and wanted.intersection(map(id, group["params"]))
        ]
    return max(rates, default=None)


def _suspect(subject: Subject) -> Location | None:
    """Return the zero_grad of a user's step that stands after its backward and before its step."""
    step = subject.contract.train_step
    if step is None:
        return None
    found = {
        word: sources.search(step, pattern)
        for word, pattern in (
            ("zero", r"zero_grad\("),
            ("backward", r"\.backward\("),
            ("step", r"\.step\("),
        )
    }
    zero, backward = found["zero"], found["backward"]
    if zero is not None and backward is not None and zero.line > backward.line:
        return zero
    return found["step"] or backward


def drifted(subject: Subject, names: list[str], made: Trajectory) -> Finding:
    """Explain frozen parameters that a step moves."""
    parameters = subject.named_parameters()
    name = names[0]
    trainable = parameters[name].requires_grad
    place = optimizer_line(subject, name) or sources.of_parameter(subject.model, name)
    held = name in made.coverage.frozen or name not in made.coverage.missing
    entry = _entry(subject, name)
    writes = entry is not None and entry.kind == "call" and entry.detail == "writes to it"
    if writes and entry is not None:
        place = entry.location or place
    thawed = freezing.switched_on(subject, name) if held and not writes else None
    cause = (
        "it still requires a gradient, and the optimizer moves it"
        if trainable
        else "the step writes to it"
    )
    if writes:
        cause = "the step writes to it"
    elif name in made.coverage.frozen:
        cause = "the optimizer holds it, and moves it by decay or momentum"
    shared = [
        other
        for other in subject.aliases()[id(parameters[name])]
        if other != name and subject.is_promised("Frozen", other)
    ]
    if shared and not subject.is_promised("Frozen", name):
        cause = f"{shared[0]} and {name} are one tensor: to train the one is to move the other"
        place = sources.of_parameter(subject.model, shared[0]) or place
    because = f"requires_grad is {trainable}, and {'an' if held else 'no'} optimizer holds it"
    fix = f"call requires_grad_(False) on it and keep it out of the optimizer, or drop {name!r} from Frozen(...)"
    further = [] if entry is None else [entry]
    if thawed is not None:
        place = thawed
        cause = "its gradient is switched on again, and the optimizer moves it"
        because = (
            f"requires_grad was False before line {thawed.line}, and is True as the optimizer steps"
        )
        fix = f"leave it out at line {thawed.line}, or drop {name!r} from Frozen(...)"
        further = [
            Culprit(
                kind="call", name="requires_grad", detail="switched on again here", location=thawed
            )
        ]
    zeroed = zero_at_step(subject, names) if trainable and not writes and held else None
    if zeroed is not None:
        cause = "its gradient is zero when the optimizer steps, not None: " + (
            "weight decay moves it all the same"
            if zeroed.decay
            else "the optimizer moves it all the same"
        )
        because = f"the gradient of {name} is all zeros in each of {zeroed.steps} steps" + (
            f"; with weight_decay=0 instead of {zeroed.decay:g} it stays" if zeroed.decay else ""
        )
        fix = f"set the gradient to None{_on(zeroed.location)}: an optimizer skips that; or requires_grad_(False)"
        place = zeroed.location or place
        further = [
            Culprit(
                kind="optimizer",
                name="weight_decay",
                detail=f"{zeroed.decay:g}",
                location=optimizer_line(subject, name),
            )
        ]
    elif trainable and not writes and thawed is None and (whole := whole_module(subject, names)):
        further.append(
            Culprit(
                kind="module",
                name=whole,
                detail="all of its parameters require a gradient",
                location=sources.of_parameter(subject.model, whole),
            )
        )
        fix = f"call requires_grad_(False) on {whole} and keep it out of the optimizer, or drop it from Frozen(...)"
    idle = dropped_result(subject.model, name) if trainable and not writes and not thawed else None
    if idle is not None:
        place, because = idle.location, f"{because}; {idle.why}"
        cause = f"the result of {idle.method} is dropped, so that {name} is as it was before"
        fix = f"assign what it returns on line {place.line}"
    return violated(
        "frozen-moved",
        (
            f"{names_text(names)} {'is' if len(names) == 1 else 'are'} promised to be frozen "
            f"but {'moves' if len(names) == 1 else 'move'}"
        ),
        culprits=[
            Culprit(
                kind="parameter",
                name=n,
                detail=f"moved by up to {made.moved[n]:.3g}",
                location=place,
            )
            for n in names
        ]
        + [
            Culprit(
                kind="parameter",
                name=other,
                detail=f"is {name}",
                location=sources.of_parameter(subject.model, other),
            )
            for other in shared
        ]
        + further
        + (
            freezing.culprits_of(freezing.switches(subject)[:2]) if trainable and not writes else []
        ),
        location=place,
        observed=f"max|after - before| = {made.moved[name]:.3g} after {len(made.losses)} steps",
        cause=cause,
        because=because,
        fix=fix,
        evidence={"parameters": list(names)},
    )


def _on(place: Location | None) -> str:
    return "" if place is None else f" on line {place.line}"


def whole_module(subject: Subject, names: list[str]) -> str:
    """Return the largest module of which these are all the parameters, or empty; the model itself does not count."""
    found = ""
    parts = names[0].split(".")
    for depth in range(1, len(parts)):
        path = ".".join(parts[:depth])
        inside = subject.model.get_submodule(path).named_parameters()
        if len(names) > 1 and {f"{path}.{name}" for name, _ in inside} == set(names):
            found = found or path
    return found


def _entry(subject: Subject, name: str) -> Culprit | None:
    """Return the line of the user's step that writes to a parameter, or through which it gets its gradient."""
    step = subject.contract.train_step
    if step is not None and not inspect.isfunction(step):
        return None
    code = step.__code__ if step is not None else None
    found: dict[str, Culprit] = {}

    class Entry(Watch):
        """Follows one parameter through a step."""

        target: torch.Tensor
        version: int

        def after(self, func: Any, args: Any, kwargs: Any, result: Any, token: Any) -> None:
            frames = [f for f in self.frames() if f.f_code is code]
            if code is not None and not frames:
                return
            line = (
                sources.of_line(code.co_filename, frames[-1].f_lineno, code.co_qualname)
                if code is not None
                else self.locate()
            )
            if self.target._version != self.version:
                self.version = self.target._version
                found.setdefault("writes to it", self._culprit("writes to it", func, line))
            elif any(t is self.target for t in tensors_in((args, kwargs))):
                culprit = self._culprit("its gradient comes from here", func, line)
                for made in tensors_in(result):
                    if made.requires_grad and not made.is_leaf:
                        # a use that is detached later passes nothing back
                        made.register_hook(
                            lambda _, c=culprit: found.setdefault(c.detail, c) and None
                        )

        def _culprit(self, detail: str, func: Any, line: Location | None) -> Culprit:
            return Culprit(kind="call", name=name_of(func), detail=detail, location=line)

    with subject.pristine(steps=True) as model:
        model.train()
        seed_everything(subject.seed)
        made = subject.make_optimizer(model)
        watch = Entry(model)
        watch.target = dict(model.named_parameters(remove_duplicate=False))[name]
        watch.version = watch.target._version
        try:
            with watch:
                subject.train_step(model, made, subject.batch().clone())
        except SubjectError:
            return None
    return found.get("its gradient comes from here") or found.get("writes to it")


def statistics(subject: Subject, names: list[str]) -> Finding:
    """Explain buffers of frozen modules that training steps change."""
    owner_name = names[0].rpartition(".")[0]
    owner = subject.model.get_submodule(owner_name)
    place = _mode_line(subject, owner_name) or sources.of_parameter(
        subject.model, owner_name or names[0]
    )
    return violated(
        "frozen-statistics",
        f"{names_text(names)} of a frozen part {'drifts' if len(names) == 1 else 'drift'} during training",
        culprits=[
            Culprit(kind="buffer", name=name, detail="changed by training steps", location=place)
            for name in names
        ],
        location=place,
        observed=f"{len(names)} buffers differ after a few training steps",
        cause=f"{type(owner).__name__} {owner_name} runs in training mode, so that it updates its statistics",
        because=f"{owner_name}.training is True after model.train(); freezing weights does not freeze statistics",
        fix="keep the frozen part in eval mode: override train() to call .eval() on it",
        evidence={"buffers": list(names)},
    )


def _mode_line(subject: Subject, qualified: str) -> Location | None:
    """Return the line of an overridden ``train`` that switches a module, from the nearest owner up."""
    parts = qualified.split(".") if qualified else []
    for depth in range(len(parts), -1, -1):
        owner = subject.model.get_submodule(".".join(parts[:depth]))
        method = type(owner).train
        place = sources.of_object(method)
        if place is not None and sources.rank(place.file):
            return sources.search(method, r"super\(\)\.train|\.train\(") or place
    return None


def no_match(subject: Subject, promise: str, globs: list[str]) -> Finding:
    """Say that globs of a promise match nothing."""
    names = [name for name, _ in subject.model.named_parameters()]
    return inconclusive(
        f"{promise}({', '.join(map(repr, globs))}) matches no parameter or buffer; there are: {names_text(names, 6)}",
        code="no-match",
    )
