"""Run the user's training step a few times and write down what it calls."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..probes.gradient.switched_off import gradients_off_line
from ..probes.recorded.watch import in_backward
from ..subject.errors import SubjectError
from ..subject.optimizers import step_schedulers
from ..subject.remembered import remembered
from .checkpoints import is_torchs
from .gradient_calls import GradientCalls
from .naming import frames_within
from .patches import listening
from .steps import begun, take_steps
from .trace import Convert, Forward, LoadState, Mode, OptimizerStep, SchedulerStep, Trace
from .traces.copied_onto_itself import calling_frame, is_same
from .traces.kept_states import states_held
from .traces.rates_ahead import rates_ahead
from .traces.reseeding import generator_states

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..adapters import Scheduled
    from ..subject import Subject

STEPS = 4


def record(
    subject: Subject,
    *,
    steps: int = STEPS,
    amplify: float = 1.0,
    pairs: Sequence[tuple[str, str]] = (),
    after_step: Callable[[int, nn.Module], None] | None = None,
    after_backward: Callable[[nn.Module], None] | None = None,
) -> Trace:
    """Run the contract's training step from the pristine state on the base batch; everything is put back.

    Args:
        subject: Whose step; the declared one, or the plain one.
        steps: How often.
        amplify: Factor on every gradient, so that a clipping has something to clip.
        pairs: Parameters whose difference is measured after every step.
        after_step: Called after every step with its number and the model.
        after_backward: Called after every backward pass with the model.

    Returns:
        The trace; an error of the step is in it, and ends it.
    """
    contract = subject.contract
    with begun(subject) as (model, made):
        recorder = _Recorder(model, made, amplify, record.__code__)
        recorder.pairs_of = pairs
        recorder.after_step = after_step
        recorder.after_backward = after_backward
        recorder.steps_schedulers = contract.train_step is None and contract.loop is None
        before = list(states_held(subject, model).values())
        with recorder.listening():
            try:
                take_steps(subject, model, made, steps, recorder)
            except SubjectError as error:
                recorder.error = error
        held = states_held(subject, model).items()
        kept = (path for path, one in held if not any(one is other for other in before))
        return replace(recorder.trace(), states=tuple(kept))


@remembered("loop-trace")
def trace_of(subject: Subject) -> Trace:
    """Return the trace of the declared step, recorded once per subject."""
    return record(subject)


class _Recorder(GradientCalls):
    def before(self, step: int) -> None:
        """Note which step the calls to come belong to."""
        self.step = step
        self.stepping.clear()

    def after(self, step: int, value: Any) -> bool:
        """Note what a step returned and left behind; there is no other where gradients are off."""
        self.generators.append(generator_states())
        self.settle_rounding()
        self._finish(value)
        if self.steps_schedulers:
            step_schedulers(self.keep[0], self.losses[-1])
        if self.after_step is not None:
            self.after_step(step, self.model)
        return self.grad_left_off is not None

    def scheduled(self, found: Sequence[Scheduled]) -> None:
        """Keep what a trainer does to its schedulers, as numbers."""
        with self.deeper("scheduler-step"):  # these calls are no events of the training
            self.schedules = tuple(rates_ahead(one) for one in found)

    def _finish(self, value: Any) -> None:
        self.roots.clear()
        if isinstance(value, torch.Tensor):
            self.losses.append(float(value.detach().float().mean()) if value.numel() else math.nan)
        else:
            self.losses.append(float(value) if isinstance(value, int | float) else math.nan)
        if not torch.is_grad_enabled():
            self.grad_left_off = self.step
        named = dict(self.model.named_parameters(remove_duplicate=False)) | dict(
            self.model.named_buffers()
        )
        self.pairs.append(
            {
                (a, b): float((named[a].detach() - named[b].detach()).abs().max())
                if named[a].numel()
                else 0.0
                for a, b in self.pairs_of
            }
        )

    # -- listening ----------------------------------------------------------------------------------

    def listening(self) -> Any:
        """Return the context in which everything is noted."""
        return listening(
            {
                "backward": self._backward,
                "zero-grad": self._zero_grad,
                "scheduler-step": self._scheduler_step,
                "scale": self._scale,
                "unscale": self._unscale,
                "scaler-step": self._scaler_step,
                "scaler-update": self.plain("scaler-update", "update"),
                "clip-norm": self._clip_norm,
                "clip-value": self._clip_value,
                "mode": self._mode,
                "load-state": self._load_state,
                "convert": self._convert,
                "copy": self._copy,
            },
            before_step=self._before_step,
            after_step=self._after_step,
            before_forward=self._before_forward,
            after_forward=self._after_forward,
        )

    def _before_step(
        self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Note a step; one that evaluates its closure once is noted when the closure has run.

        Where a class overrides the step of torch's that it calls, both tell of one step.
        """
        running = self.stepping.setdefault(id(optimizer), [])
        running.append(len(self.events))
        if len(running) > 1:
            return None
        closures = [one for one in (*args[1:], *kwargs.values()) if callable(one)]
        if len(closures) != 1 or not _evaluates_once(optimizer):
            self._note_step(optimizer, closure=bool(closures))
            return None
        common = self.common("optimizer-step", optimizer, "step", "optimizer")

        def closure(*given: Any) -> Any:
            value = closures[0](*given)
            self._note_step(optimizer, closure=False, common=common)
            return value

        return (
            tuple(closure if one is closures[0] else one for one in args),
            {name: closure if one is closures[0] else one for name, one in kwargs.items()},
        )

    def _note_step(
        self,
        optimizer: torch.optim.Optimizer,
        *,
        closure: bool,
        common: dict[str, Any] | None = None,
    ) -> None:
        closure = closure or in_backward()  # a hook takes it as soon as the gradient is there
        key = self.known(optimizer)
        self.settle_rounding()
        self.ledger.settle()
        accounts = self.ledger.of(self.parameters(optimizer))
        found: dict[int, set[str]] = {}
        stale, cleared = set(), None
        fresh: set[int] = set()
        for account in accounts:
            applied = account.applied.get(key, set())
            for place in account.sources:
                found.setdefault(place, set()).add(account.name)
            if applied & set(account.sources):
                stale.add(account.name)
            fresh |= set(account.sources) - applied
            cleared = account.cleared if account.cleared is not None else cleared
        self.events.append(
            OptimizerStep(
                **(common or self.common("optimizer-step", optimizer, "step", "optimizer")),
                rates=_rates(optimizer),
                norm=self.ledger.norm(self.parameters(optimizer)),
                empty=all(account.is_empty for account in accounts),
                fresh=tuple(sorted(fresh)),
                sources={place: frozenset(names) for place, names in found.items()},
                stale=frozenset(stale),
                cleared=cleared,
                scaled=not self.depth["scaler-step"]
                and any(account.scale != 1.0 for account in accounts),
                closure=closure,
            )
        )
        for account in accounts:
            account.applied.setdefault(key, set()).update(account.sources)
            account.cleared = None
            if not closure or is_torchs(optimizer):  # else what it calls is looked at
                account.passed = None

    def _after_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Note the rates that an optimizer's step has set itself, without a scheduler."""
        running = self.stepping.get(id(optimizer), [])
        begun = running.pop() if running else len(self.events)
        if running:
            return
        events = self.events[begun:]
        place = next((n for n, e in enumerate(events) if isinstance(e, OptimizerStep)), None)
        if place is None or any(e.kind == "scheduler-step" for e in events[place:]):
            return
        event, rates = events[place], _rates(optimizer)
        assert isinstance(event, OptimizerStep)
        if (
            event.owner == id(optimizer)
            and rates != event.rates
            and not any(map(math.isnan, rates))
        ):
            self.events[begun + place] = replace(event, set_rates=rates)

    def _scheduler_step(self, original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        scheduler = args[0]
        # schedulers step once when they are made, and call each other; one of others counts no steps of its own
        made = hasattr(scheduler, "_step_count") or hasattr(scheduler, "_last_lr")
        building = not made or getattr(scheduler, "_is_initial", False)
        if self.depth["scheduler-step"] == 0 and not building:
            self.classes[id(scheduler)] = type(scheduler).__name__
            self.keep.append(scheduler)
            self.events.append(self._scheduled(scheduler))
        with self.deeper("scheduler-step"):
            return original(*args, **kwargs)

    def _scheduled(self, scheduler: Any) -> SchedulerStep:
        """Describe a step of a scheduler, beside the optimizers that have stepped."""
        common = self.common("scheduler-step", scheduler, "step", "scheduler")
        made, epoch = (getattr(scheduler, name, None) for name in ("optimizer", "last_epoch"))
        if not isinstance(made, torch.optim.Optimizer):
            return SchedulerStep(**common)
        stepped = list(self.optimizers.values())
        groups = {id(group) for one in stepped for group in one.param_groups}
        held = {id(p) for one in stepped for p in self.parameters(one)}
        return SchedulerStep(
            **common,
            rates=_rates(made),
            drives=any(id(group) in groups for group in made.param_groups),
            shares=any(id(p) in held for p in self.parameters(made)),
            epoch=epoch if isinstance(epoch, int) else -1,
        )

    def _mode(self, original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        module, training = args[0], bool(args[1] if len(args) > 1 else kwargs.get("mode", True))
        if self.depth["mode"] == 0 and id(module) in self.names:
            name = self.names[id(module)]
            method = "train" if training else "eval"
            shown, place = self.call(module, method, f"model.{name}" if name else "model")
            self.events.append(
                Mode(
                    kind="mode", step=self.step, name=shown, owner=id(module), place=place,
                    module=name, training=training,
                )
            )  # fmt: skip
        with self.deeper("mode"):
            return original(*args, **kwargs)

    def _load_state(self, original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        module, state = args[0], args[1] if len(args) > 1 else kwargs["state_dict"]
        given = {k: t for k, t in dict(state).items() if isinstance(t, torch.Tensor) and t.numel()}
        held: dict[str, torch.Tensor] = dict(module.named_parameters(remove_duplicate=False))
        held |= dict(module.named_buffers(remove_duplicate=False))
        self.keep.append(module)
        self.events.append(
            LoadState(
                **self.common("load-state", module, "load_state_dict", type(module).__name__),
                tensors=len(given),
                own=sum(key in held and is_same(t, held[key]) for key, t in given.items()),
            )
        )
        return original(*args, **kwargs)

    def _convert(self, original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        module = args[0]
        if self.depth["convert"] or id(module) not in self.names:
            return original(*args, **kwargs)
        common = self.common("convert", module, getattr(original, "__name__", "to"), "model")
        with self.deeper("convert"):
            result, names, dtype = self.rounding.converting(lambda: original(*args, **kwargs))
        if dtype is not None:
            self.rounding.follow(names, len(self.events), dtype)
            name = self.names[id(module)]
            self.events.append(
                Convert(**common, module=name, dtype=str(dtype).removeprefix("torch."))
            )
        return result

    def _copy(self, original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.copies.note(calling_frame(), args)
        return original(*args, **kwargs)

    def _before_forward(self, module: nn.Module) -> None:
        self.depth["forward"] += 1
        if self.depth["forward"] > 1 or id(module) not in self.names:
            return
        name = self.names[id(module)]
        prefix = f"{name}." if name else ""
        event = Forward(
            **self.common("forward", module, "", f"model.{name}" if name else "model"),
            module=name,
            grad=torch.is_grad_enabled(),
            frozen=frozenset(
                prefix + n if n else name for n, m in module.named_modules() if not m.training
            ),
            off=None if torch.is_grad_enabled() else gradients_off_line(frames_within(self.within)),
        )
        statistics = (
            {} if event.grad else {n: b.detach().clone() for n, b in module.named_buffers()}
        )
        self._forward = (event, statistics)

    def _after_forward(self, module: nn.Module, output: Any) -> None:
        self.depth["forward"] -= 1
        if self.depth["forward"] or self._forward is None:
            return
        event, statistics = self._forward
        self._forward = None
        moved = tuple(
            name
            for name, buffer in module.named_buffers()
            if name in statistics and not torch.equal(buffer, statistics[name])
        )
        if event.grad:
            self.follow_graph(output)
        self.events.append(replace(event, statistics=moved))


def _rates(optimizer: torch.optim.Optimizer) -> tuple[float, ...]:
    return tuple(float(group.get("lr", math.nan)) for group in optimizer.param_groups)


def _evaluates_once(optimizer: torch.optim.Optimizer) -> bool:
    """Say whether a step evaluates its closure once, before it writes: torch's own do, but LBFGS."""
    cls = type(optimizer)
    return cls.__module__.startswith("torch.optim.") and cls.__name__ != "LBFGS"
