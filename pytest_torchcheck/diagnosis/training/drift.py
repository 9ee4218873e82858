"""Why buffers or frozen parameters change in a training step, and what changes in the first step only."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from ... import sources
from ...explanation import counted, on_line, parameter
from ...findings import Culprit, Finding, Location
from ...loop.closures import functions_of
from ...loop.replay import last_written
from ...probes.recorded.watch import Watch, name_of, tensors_in
from ...record.tracing import find_line, line_of
from ...runs.training.stale_copies import STEPS, moving_without
from ...subject.errors import SubjectError
from ...text.wording import names_text
from ...verdicts import suspicious, violated
from ..gradient import freezing
from ..gradient.zero import zero_at_step
from ..lines.overwritten import dropped_detach, dropped_result
from ..loss.target_origins import helper_returns
from ..outputs.eval_lines import keeping_lines
from .optimizers import optimizer_line

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import FrameType

    import torch

    from ...runs.training.steps import Trajectory
    from ...subject import Subject


def drifted(subject: Subject, names: list[str], made: Trajectory) -> Finding:
    """Explain frozen parameters that a step moves."""
    parameters = subject.named_parameters()
    name = names[0]
    trainable = parameters[name].requires_grad
    place = optimizer_line(subject, name) or sources.of_parameter(subject.model, name)
    held = name in made.coverage.held
    entry = _entry(subject, name)
    writes = entry is not None and entry.kind == "call" and entry.detail == "writes to it"
    if writes and entry is not None:
        place = entry.location or place
    thawed = freezing.switched_on(subject, name) if held and not writes else None
    cause = (
        "it still requires a gradient, and the optimizer changes it"
        if trainable
        else "the step writes to it"
    )
    if writes:
        cause = "the step writes to it"
    elif name in made.coverage.frozen:
        cause = "the optimizer holds it, and changes it through weight decay or momentum"
    shared = [
        other
        for other in subject.aliases()[id(parameters[name])]
        if other != name and subject.is_promised("Frozen", other)
    ]
    if shared and not subject.is_promised("Frozen", name):
        cause = f"{shared[0]} and {name} are the same tensor: training one changes the other"
        place = sources.of_parameter(subject.model, shared[0]) or place
    because = f"requires_grad is {trainable}, and {'an' if held else 'no'} optimizer holds it"
    fix = f"call requires_grad_(False) on it and keep it out of the optimizer, or drop {name!r} from Frozen(...)"
    further = [] if entry is None else [entry]
    if thawed is not None:
        place = thawed
        cause = "requires_grad is set to True again, and the optimizer changes it"
        because = (
            f"requires_grad was False before line {thawed.line}, and is True as the optimizer steps"
        )
        fix = f"exclude it on line {thawed.line}, or drop {name!r} from Frozen(...)"
        further = [Culprit("call", "requires_grad", "enabled again here", thawed)]
    zeroed = zero_at_step(subject, names) if trainable and not writes and held else None
    if zeroed is not None:
        cause = "its gradient is zero when the optimizer steps, not None: " + (
            "weight decay still changes it" if zeroed.decay else "the optimizer still changes it"
        )
        because = f"the gradient of {name} is all zeros in each of {zeroed.steps} steps" + (
            f"; with weight_decay=0 instead of {zeroed.decay:g} it does not change"
            if zeroed.decay
            else ""
        )
        fix = (
            f"set the gradient to None{_on(zeroed.location)}, which optimizers skip, or call "
            "requires_grad_(False)"
        )
        if (hook := freezing.hook_line(subject, name)) is not None and zeroed.location is None:
            because += f"; it has a hook, set on line {hook.line}"
            fix = f"call requires_grad_(False) on it on line {hook.line} instead: a hook cannot make the gradient None"
        place = zeroed.location or hook or place
        further = [
            Culprit("optimizer", "weight_decay", f"{zeroed.decay:g}", optimizer_line(subject, name))
        ]
    elif trainable and not writes and thawed is None and (whole := whole_module(subject, names)):
        made_at = sources.of_parameter(subject.model, whole)
        further.append(
            Culprit("module", whole, "all of its parameters require a gradient", made_at)
        )
        further += [
            Culprit("call", function, "creates it", at)
            for function, at in (helper_returns(made_at) if made_at is not None else ())
        ]
        fix = f"call requires_grad_(False) on {whole} and keep it out of the optimizer, or drop it from Frozen(...)"
        if (taken := _eval_line(subject, whole)) is not None:
            place = taken
            cause = f"eval() switches dropout and statistics of {whole} only; its parameters still train"
            because = f"{because}; every module of {whole} is in eval mode"
            fix = f"call requires_grad_(False) on {whole} on line {taken.line} too"
    elif trainable and not writes and thawed is None:
        further += [parameter(subject, n, "is created here, trainable") for n in names[:3]]
        if (created := further[-1].location) is not None and "Parameter(" in created.text:
            fix = f"pass requires_grad=False on line {created.line}, or drop {name!r} from Frozen(...)"
    plain = trainable and not writes and not thawed
    idle = dropped_result(subject.model, name) if plain else None
    undetached = dropped_detach(_functions(subject)) if plain and idle is None else None
    if undetached is not None:
        place, because = undetached.location, f"{because}; {undetached.why}"
        further.append(Culprit("call", undetached.method, "its result is discarded", place))
        cause = f"the result of {undetached.method} is discarded, so the loss trains {name} too"
        fix = f"assign what detach() returns on line {place.line}"
    if idle is not None:
        place, because = idle.location, f"{because}; {idle.why}"
        cause = f"the result of {idle.method} is discarded, so {name} is unchanged"
        fix = f"assign its return value on line {place.line}"
    return violated(
        "frozen-moved",
        (
            f"{names_text(names)} {'is' if len(names) == 1 else 'are'} promised to be frozen "
            f"but {'changes' if len(names) == 1 else 'change'}"
        ),
        culprits=[
            Culprit("parameter", n, f"changed by up to {made.moved[n]:.3g}", place) for n in names
        ]
        + [
            Culprit("parameter", other, f"is {name}", sources.of_parameter(subject.model, other))
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


def _functions(subject: Subject) -> list[Callable[..., Any]]:
    """Return the user's functions that a training step runs: the step, the loss, and the modules' forwards."""
    contract = subject.contract
    modules = [*subject.model.modules()]
    modules += [contract.loss] if isinstance(contract.loss, nn.Module) else []
    classes = dict.fromkeys(type(module) for module in modules)
    plain = None if isinstance(contract.loss, nn.Module) else contract.loss
    return [*functions_of(contract.train_step, plain), *(cls.forward for cls in classes)]


def _eval_line(subject: Subject, name: str) -> Location | None:
    """Return the line that puts a module into eval mode as its owner is built, where it is in that mode."""
    module = subject.model.get_submodule(name)
    if any(part.training for part in module.modules()):
        return None
    owner, _, leaf = name.rpartition(".")
    made = type(subject.model.get_submodule(owner)).__init__
    return sources.search(made, rf"\b{leaf}\b.*\.eval\(")


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
            return Culprit("call", name_of(func), detail, line)

    with subject.pristine(steps=True, train=True, seeded=True) as model:
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
    place = _mode_line(subject, owner_name)
    overridden = place is not None
    place = place or sources.of_parameter(subject.model, owner_name or names[0])
    return violated(
        "frozen-statistics",
        f"{names_text(names)} of a frozen part {'drifts' if len(names) == 1 else 'drift'} during training",
        culprits=[
            *(Culprit("buffer", name, "changed by training steps", place) for name in names),
            *(Culprit("call", "train", "switches the frozen part", place),) * overridden,
        ],
        observed=f"{len(names)} buffers differ after a few training steps",
        cause=f"{type(owner).__name__} {owner_name} runs in training mode, so it updates its "
        "statistics",
        because=f"{owner_name}.training is True after model.train(); freezing weights does not "
        "freeze statistics",
        fix="keep the frozen part in eval mode: override train() to call .eval() on it",
        evidence={"buffers": list(names)},
    )


def taken_back(subject: Subject, shares: Mapping[str, float]) -> Finding:
    """Explain weights of whose updates a step leaves a small part."""
    name, share = next(iter(shares.items()))
    place = last_written(subject, name)
    return violated(
        "update-taken-back",
        f"the step undoes {1 - share:.0%} of its optimizer's update",
        culprits=[
            Culprit("parameter", each, "is written to after the step", place)
            for each in list(shares)[:3]
        ],
        location=place,
        observed=f"in 2 steps, {share:.3g} of the update of {counted(len(shares), 'parameter')} is left at the end",
        cause="the step writes to the weights after the optimizer, and does not put back what the optimizer wrote",
        because="each weight ends on the way between what it was before the optimizer's step and what it was after it, "
        "the same part of the way for all",
        fix=f"restore what the optimizer wrote before the step ends, or write to a copy of the model{on_line(place)}",
    )


def _mode_line(subject: Subject, qualified: str) -> Location | None:
    """Return the last line of an overridden ``train`` that puts a module in training mode, or None."""
    last: list[Location] = []
    with subject.pristine() as model:
        module = model.get_submodule(qualified)

        def watcher(frame: FrameType, event: str, line: int) -> bool:
            if module.training and event != "call":
                last.append(line_of(frame.f_code, line))
            module.training = False  # so that a later line which sets it again is seen
            return False

        find_line(model.train, watcher)
    return last[-1] if last else None


_CALLS_TRAIN = r"(?<!super\(\))\.train\("


def stops(subject: Subject, names: list[str]) -> Finding:
    """Explain parameters that move in the first step only."""
    kept = keeping_lines(subject, train=True)[:4]
    guilty = next((c for c in kept if moving_without(subject, names, c.name)), None)
    step = subject.contract.train_step
    place = sources.of_parameter(subject.model, names[0])
    if step is not None:
        place = sources.of_object(step) or place
    one = len(names) == 1
    return violated(
        "weight-stops",
        f"{names_text(names)} {'changes' if one else 'change'} only in the first training step",
        culprits=[
            *([guilty] if guilty is not None else []),
            *(parameter(subject, name, "changes once") for name in names[:8]),
        ],
        location=guilty.location if guilty is not None else place,
        observed=f"bit-equal after each of the steps 2 to {STEPS}, at a learning rate above 0",
        cause=f"{guilty.name} is computed in the first forward and used in all later ones, so its "
        "inputs are trained only once"
        if guilty is not None
        else "the first step changes the model, the optimizer or the step itself",
        because=f"with {guilty.name} restored after each step, "
        f"{'it changes' if one else 'they change'} in later steps too"
        if guilty is not None
        else (
            f"the first step changes {'it' if one else 'them'}; each later one on the same batch "
            "does not"
        ),
        fix=f"compute {guilty.name} in each forward, or freeze the parameters that it is computed "
        "from"
        if guilty is not None
        else (
            "do the same in each step: look for values cached, compiled or reassigned in the "
            "first one"
        ),
        evidence={"parameters": list(names)},
    )


def frozen_by_train(subject: Subject, names: list[str]) -> Finding:
    """Explain what is frozen by an overridden ``train()``, and moves in steps before which nobody calls it."""
    setters = [
        place
        for cls in {type(module): None for module in subject.model.modules()}
        if (own := vars(cls).get("train")) is not None
        and (place := sources.of_user_object(own)) is not None
    ]
    step = subject.contract.train_step
    called = step is None or _calls_train(step)
    made = suspicious if called else violated
    return made(
        "frozen-by-train",
        f"{names_text(names)} {'is' if len(names) == 1 else 'are'} frozen only when train() is "
        "called, and the step does not call it",
        culprits=[
            *(parameter(subject, name, "changes as built") for name in names[:8]),
            *_built(subject, names[0]),
        ],
        location=setters[0] if setters else sources.of_own_class(subject.model),
        observed="changed by two steps on the model as the factory returns it; unchanged after "
        "model.train()",
        cause="an overridden train() freezes it, but the constructor does not",
        because="a new module is already in training mode, so a loop need not call train()",
        fix="freeze it in __init__ too, or call model.train() before the first step",
        evidence={"tensors": list(names)},
    )


def _built(subject: Subject, name: str) -> list[Culprit]:
    """Return the line that builds the module whose ``train()`` freezes a tensor: there it can be frozen too."""
    parts = name.split(".")
    paths = [".".join(parts[:depth]) for depth in range(1, len(parts))]
    owner = next((p for p in paths if "train" in vars(type(subject.model.get_submodule(p)))), None)
    place = sources.of_parameter(subject.model, owner) if owner else None
    made = Culprit("module", owner or "", "is built here", place)
    return [made] if place is not None else []


def _calls_train(step: Callable[..., object]) -> bool:
    """Say whether the file of a step calls ``train()`` somewhere, or is one of tests, whose loop stands elsewhere."""
    place = sources.of_object(step)
    if place is None or re.match(r"(test_|conftest)", Path(place.file).name):
        return True
    return any("def " not in line.text for line in sources.file_matches(place.file, _CALLS_TRAIN))
