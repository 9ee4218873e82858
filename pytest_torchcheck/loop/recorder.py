"""Run the user's training step a few times and write down what it calls."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from pytest_torchcheck import sources
from pytest_torchcheck.probes.watch import gradients_off_line, version_of
from pytest_torchcheck.state import seed_everything
from pytest_torchcheck.subject import Subject, SubjectError, optimizers_of, schedulers_of

from .gradients import Ledger
from .naming import frames_within, is_spent, iterator_lines, name_in, user_frame
from .patches import listening
from .steps import StepWatch, take_steps
from .trace import (
    Backward,
    Clip,
    Convert,
    Event,
    Forward,
    Kind,
    LoadState,
    Mode,
    OptimizerStep,
    Trace,
)
from .traces.copied_onto_itself import Copies, calling_frame, is_same
from .traces.rates_ahead import Ahead, rates_ahead
from .traces.reseeding import generator_states
from .traces.rounded_weights import Rounded

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType

    from pytest_torchcheck.adapters import Scheduled
    from pytest_torchcheck.findings import Location

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
    with (
        subject.pristine(steps=True) as model,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # torch warns of some of what is recorded here
        for parameter in model.parameters():
            parameter.grad = None
        model.train()
        seed_everything(subject.seed)
        made = None if contract.loop is not None else subject.make_optimizer(model)
        recorder = _Recorder(model, made, amplify)
        recorder.pairs_of = pairs
        recorder.after_step = after_step
        recorder.after_backward = after_backward
        recorder.steps_schedulers = contract.train_step is None and contract.loop is None
        with recorder.listening():
            try:
                take_steps(subject, model, made, steps, recorder)
            except SubjectError as error:
                recorder.error = error
        return recorder.trace()


def trace_of(subject: Subject) -> Trace:
    """Return the trace of the declared step, recorded once per subject."""
    if "loop-trace" not in subject.cache:
        subject.cache["loop-trace"] = record(subject)
    found: Trace = subject.cache["loop-trace"]
    return found


class _Recorder(StepWatch):
    def __init__(self, model: nn.Module, made: Any, amplify: float) -> None:
        self.model = model
        self.amplify = amplify
        self.names = {id(module): name for name, module in model.named_modules()}
        self.ledger = Ledger((name, p) for name, p in model.named_parameters())
        self.optimizers: dict[int, torch.optim.Optimizer] = {}
        self.owner_names: dict[int, str] = {}
        self.classes: dict[int, str] = {}
        self.scaled: dict[int, float] = {}
        self.keep: list[Any] = [made]
        self.iterators: dict[int, Any] = {}  # that gave parameters to a clipping
        self.events: list[Event] = []
        self.step = 0
        self.error: SubjectError | None = None
        self.grad_left_off: int | None = None
        self.losses: list[float] = []
        self.roots: list[tuple[int, Any]] = []
        self.gone_through: dict[int, list[Any]] = {}  # by place of a pass that kept its graph
        self.pairs: list[dict[tuple[str, str], float]] = []
        self.pairs_of: Sequence[tuple[str, str]] = ()
        self.after_step: Callable[[int, nn.Module], None] | None = None
        self.after_backward: Callable[[nn.Module], None] | None = None
        self.steps_schedulers = False
        self.schedules: tuple[Ahead, ...] = ()
        self.generators: list[dict[str, int]] = []
        self.copies = Copies(model)
        self.rounding = Rounded(model)
        self._depth = {
            "forward": 0,
            "scheduler-step": 0,
            "mode": 0,
            "scaler-step": 0,
            "scale": 0,
            "convert": 0,
        }
        self._forward: tuple[Forward, dict[str, Any]] | None = None
        for optimizer in optimizers_of(made):
            self._known(optimizer)

    # -- what is known ------------------------------------------------------------------------------

    def _known(self, optimizer: torch.optim.Optimizer) -> int:
        key = id(optimizer)
        if key not in self.optimizers:
            self.optimizers[key] = optimizer
            self.classes[key] = type(optimizer).__name__
        return key

    def _parameters(self, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
        return [p for group in optimizer.param_groups for p in group["params"]]

    def _call(self, thing: Any, method: str, kind: str) -> tuple[str, Location | None]:
        """Return the call as the user writes it, and the line."""
        frame: FrameType | None = user_frame(within=record.__code__)
        name = name_in(frame, thing)
        known = self.owner_names.get(id(thing))
        if name and (known is None or known == kind):
            self.owner_names[id(thing)] = name
        shown = name or known or kind
        return f"{shown}.{method}" if method else shown, (
            None if frame is None else sources.of_frame(frame)
        )

    def trace(self) -> Trace:
        """Return what was recorded, without any tensor."""
        for place in [place for place, ran in self.gone_through.items() if ran]:
            event = self.events[place]
            assert isinstance(event, Backward)
            self.events[place] = replace(event, again=True)
        for place, names in self.rounding.by_place.items():
            conversion = self.events[place]
            assert isinstance(conversion, Convert)
            self.events[place] = replace(conversion, rounded=tuple(names))
        return Trace(
            events=tuple(self.events),
            steps=len(self.losses),
            losses=tuple(self.losses),
            parameters={
                key: tuple(account.name for account in self.ledger.of(self._parameters(optimizer)))
                for key, optimizer in self.optimizers.items()
            },
            names={key: self.owner_names.get(key, "optimizer") for key in self.optimizers},
            classes=dict(self.classes),
            error=self.error,
            grad_left_off=self.grad_left_off,
            pairs=tuple(self.pairs),
            schedules=self.schedules,
            generators=tuple(self.generators),
            copied_onto_themselves=self.copies.onto_themselves(),
        )

    def before(self, step: int) -> None:
        """Note which step the calls to come belong to."""
        self.step = step

    def after(self, step: int, value: Any) -> bool:
        """Note what a step returned and left behind; there is no other where gradients are off."""
        self.generators.append(generator_states())
        self._settle_rounding()
        self._finish(value)
        if self.steps_schedulers:
            self.step_schedulers(self.keep[0])
        if self.after_step is not None:
            self.after_step(step, self.model)
        return self.grad_left_off is not None

    def scheduled(self, found: Sequence[Scheduled]) -> None:
        """Keep what a trainer does to its schedulers, as numbers."""
        with self._deeper("scheduler-step"):  # these calls are no events of the training
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

    def step_schedulers(self, made: Any) -> None:
        """Step the schedulers that came with the optimizer, as a loop around the plain step would."""
        for scheduler in schedulers_of(made):
            scheduler.step()

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
                "scaler-update": self._plain("scaler-update", "update"),
                "clip-norm": self._clip_norm,
                "clip-value": self._clip_value,
                "mode": self._mode,
                "load-state": self._load_state,
                "convert": self._convert,
                "copy": self._copy,
            },
            before_step=self._before_step,
            before_forward=self._before_forward,
            after_forward=self._after_forward,
        )

    def _common(self, kind: Kind, thing: Any, method: str, fallback: str) -> dict[str, Any]:
        name, place = self._call(thing, method, fallback)
        return {"kind": kind, "step": self.step, "name": name, "owner": id(thing), "place": place}

    def _plain(self, kind: Kind, method: str) -> Any:
        def around(original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            self.keep.append(args[0])
            self.events.append(Event(**self._common(kind, args[0], method, "scaler")))
            return original(*args, **kwargs)

        return around

    def _backward(self, original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tensors = args[0] if args else kwargs["tensors"]
        roots = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        common = self._common("backward", roots[0], "backward", "loss")
        self.ledger.settle()
        before = {key: account.signature() for key, account in self.ledger.accounts.items()}
        stale = {
            key
            for key, account in self.ledger.accounts.items()
            if account.sources and not account.pending()
        }
        scale = self.scaled.get(id(roots[0]), 1.0)
        repeats = _within(roots, self.roots)
        args, kwargs = _amplified(roots, args, kwargs, self.amplify)
        result = original(*args, **kwargs)
        place = len(self.events)
        create = bool(kwargs.get("create_graph") or (len(args) > 3 and args[3]))
        retained = bool(kwargs.get("retain_graph") or (len(args) > 2 and args[2])) and not create
        if retained:
            self.gone_through[place] = _listen_to(roots)
        if not create:
            # one that differentiates its own gradient may go through its root again, for its saved result
            self.roots += [(place, root.grad_fn) for root in roots if root.grad_fn is not None]
        touched = [
            key
            for key, account in self.ledger.accounts.items()
            if account.signature() != before[key]
        ]
        moved: set[str] = set()
        for key in touched:
            account = self.ledger.accounts[key]
            if account.sources and account.version != version_of(account.tensor):
                moved.add(account.name)
            account.version = version_of(account.tensor)
            account.sources.append(place)
            account.scale = scale if scale != 1.0 else account.scale
        names = {key: account.name for key, account in self.ledger.accounts.items()}
        self.events.append(
            Backward(
                **common,
                leaf=all(root.grad_fn is None for root in roots),
                touched=frozenset(names[key] for key in touched),
                stale=frozenset(names[key] for key in touched if key in stale),
                norm=self.ledger.norm(),
                scale=scale,
                repeats=repeats,
                retained=retained,
                moved=frozenset(moved),
            )
        )
        if self.after_backward is not None:
            self.after_backward(self.model)
        return result

    def _zero_grad(self, original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        thing = args[0]
        if isinstance(thing, torch.optim.Optimizer):
            self._known(thing)
        common = self._common("zero-grad", thing, "zero_grad", _fallback(thing))
        self.ledger.settle()
        before = {
            key: account.pending()
            for key, account in self.ledger.accounts.items()
            if account.sources
        }
        result = original(*args, **kwargs)
        self.ledger.clear(len(self.events), before)
        self.events.append(Event(**common))
        return result

    def _before_step(
        self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Note a step; one that evaluates its closure once is noted when the closure has run."""
        closures = [one for one in (*args[1:], *kwargs.values()) if callable(one)]
        if len(closures) != 1 or not _evaluates_once(optimizer):
            self._note_step(optimizer, closure=bool(closures))
            return None
        common = self._common("optimizer-step", optimizer, "step", "optimizer")

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
        key = self._known(optimizer)
        self._settle_rounding()
        self.ledger.settle()
        accounts = self.ledger.of(self._parameters(optimizer))
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
                **(common or self._common("optimizer-step", optimizer, "step", "optimizer")),
                rates=tuple(float(group.get("lr", math.nan)) for group in optimizer.param_groups),
                norm=self.ledger.norm(self._parameters(optimizer)),
                empty=all(account.is_empty for account in accounts),
                fresh=tuple(sorted(fresh)),
                sources={place: frozenset(names) for place, names in found.items()},
                stale=frozenset(stale),
                cleared=cleared,
                scaled=not self._depth["scaler-step"]
                and any(account.scale != 1.0 for account in accounts),
                closure=closure,
            )
        )
        for account in accounts:
            account.applied.setdefault(key, set()).update(account.sources)
            account.cleared = None

    def _scheduler_step(self, original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        scheduler = args[0]
        # schedulers step once when they are made, and call each other
        building = not hasattr(scheduler, "_step_count") or getattr(scheduler, "_is_initial", False)
        if self._depth["scheduler-step"] == 0 and not building:
            self.classes[id(scheduler)] = type(scheduler).__name__
            self.keep.append(scheduler)
            self.events.append(
                Event(**self._common("scheduler-step", scheduler, "step", "scheduler"))
            )
        with self._deeper("scheduler-step"):
            return original(*args, **kwargs)

    def _scale(self, original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._depth["scale"] == 0:
            self.events.append(Event(**self._common("scale", args[0], "scale", "scaler")))
        with self._deeper("scale"):
            result = original(*args, **kwargs)
        if isinstance(result, torch.Tensor):
            self.keep += [args[0], result]
            self.scaled[id(result)] = float(args[0].get_scale())
        return result

    def _unscale(self, original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.events.append(Event(**self._common("unscale", args[0], "unscale_", "scaler")))
        result = original(*args, **kwargs)
        for account in self.ledger.of(self._parameters(args[1])):
            account.scale = 1.0
        return result

    def _scaler_step(self, original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.keep.append(args[0])
        self.events.append(Event(**self._common("scaler-step", args[0], "step", "scaler")))
        with self._deeper("scaler-step"):
            return original(*args, **kwargs)

    def _clip_norm(self, original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        limit = args[1] if len(args) > 1 else kwargs["max_norm"]
        return self._clip(original, args, kwargs, limit, "norm")

    def _clip_value(self, original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        limit = args[1] if len(args) > 1 else kwargs["clip_value"]
        return self._clip(original, args, kwargs, limit, "value")

    def _clip(
        self, original: Any, args: tuple[Any, ...], kwargs: dict[str, Any], limit: Any, by: Any
    ) -> Any:
        given = args[0] if args else kwargs["parameters"]
        spent = is_spent(given)
        parameters = [given] if isinstance(given, torch.Tensor) else list(given)
        if parameters and isinstance(given, Iterator):
            self.iterators[id(given)] = given
        accounts = self.ledger.of(parameters)
        self.ledger.settle()
        _, place = self._call(None, "", "")
        self.events.append(
            Clip(
                kind="clip", step=self.step, name=f"clip_grad_{by}_", owner=0, place=place,
                by=by, limit=float(limit), parameters=frozenset(account.name for account in accounts),
                pending=any(account.pending() for account in accounts),
                scaled=any(account.scale != 1.0 for account in accounts), norm=self.ledger.norm(),
                own=self.ledger.norm(parameters), **({} if parameters else self._nothing(given, place, spent)),
            )
        )  # fmt: skip
        if args:
            return original(parameters, *args[1:], **kwargs)
        return original(**{**kwargs, "parameters": parameters})

    def _nothing(self, given: Any, place: Location | None, spent: bool | None) -> dict[str, Any]:
        """Say what a clipping was given that holds no parameter, and whether something has used it up."""
        frame = user_frame(within=record.__code__)
        name = name_in(frame, given)
        found: dict[str, Any] = {"given": name or type(given).__name__}
        if not isinstance(given, Iterator):
            return found
        if id(given) in self.iterators:  # an earlier call has clipped what it gave
            found |= {"used_up": True, "reader": place}
        if frame is not None:
            made, reader = iterator_lines(frame.f_code.co_filename, name, given)
            found["made"] = made
            if spent is not False and reader is not None and not _same_line(reader, place):
                found |= {"used_up": True, "reader": reader}
        return found

    def _mode(self, original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        module, training = args[0], bool(args[1] if len(args) > 1 else kwargs.get("mode", True))
        if self._depth["mode"] == 0 and id(module) in self.names:
            name = self.names[id(module)]
            method = "train" if training else "eval"
            shown, place = self._call(module, method, f"model.{name}" if name else "model")
            self.events.append(
                Mode(
                    kind="mode", step=self.step, name=shown, owner=id(module), place=place,
                    module=name, training=training,
                )
            )  # fmt: skip
        with self._deeper("mode"):
            return original(*args, **kwargs)

    def _load_state(self, original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        module, state = args[0], args[1] if len(args) > 1 else kwargs["state_dict"]
        given = {k: t for k, t in dict(state).items() if isinstance(t, torch.Tensor) and t.numel()}
        held: dict[str, torch.Tensor] = dict(module.named_parameters(remove_duplicate=False))
        held |= dict(module.named_buffers(remove_duplicate=False))
        self.keep.append(module)
        self.events.append(
            LoadState(
                **self._common("load-state", module, "load_state_dict", type(module).__name__),
                tensors=len(given),
                own=sum(key in held and is_same(t, held[key]) for key, t in given.items()),
            )
        )
        return original(*args, **kwargs)

    def _convert(self, original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        module = args[0]
        if self._depth["convert"] or id(module) not in self.names:
            return original(*args, **kwargs)
        common = self._common("convert", module, getattr(original, "__name__", "to"), "model")
        with self._deeper("convert"):
            result, names, dtype = self.rounding.converting(lambda: original(*args, **kwargs))
        if dtype is not None:
            self.rounding.follow(names, len(self.events), dtype)
            name = self.names[id(module)]
            self.events.append(
                Convert(**common, module=name, dtype=str(dtype).removeprefix("torch."))
            )
        return result

    def _settle_rounding(self) -> None:
        self.rounding.settle(
            {id(p) for one in self.optimizers.values() for p in self._parameters(one)}
        )

    def _copy(self, original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.copies.note(calling_frame(), args)
        return original(*args, **kwargs)

    def _before_forward(self, module: nn.Module) -> None:
        self._depth["forward"] += 1
        if self._depth["forward"] > 1 or id(module) not in self.names:
            return
        name = self.names[id(module)]
        prefix = f"{name}." if name else ""
        event = Forward(
            **self._common("forward", module, "", f"model.{name}" if name else "model"),
            module=name,
            grad=torch.is_grad_enabled(),
            frozen=frozenset(
                prefix + n if n else name for n, m in module.named_modules() if not m.training
            ),
            off=None
            if torch.is_grad_enabled()
            else gradients_off_line(frames_within(record.__code__)),
        )
        statistics = (
            {} if event.grad else {n: b.detach().clone() for n, b in module.named_buffers()}
        )
        self._forward = (event, statistics)

    def _after_forward(self, module: nn.Module) -> None:
        self._depth["forward"] -= 1
        if self._depth["forward"] or self._forward is None:
            return
        event, statistics = self._forward
        self._forward = None
        moved = tuple(
            name
            for name, buffer in module.named_buffers()
            if name in statistics and not torch.equal(buffer, statistics[name])
        )
        self.events.append(
            Forward(
                kind="forward", step=event.step, name=event.name, owner=event.owner, place=event.place,
                module=event.module, grad=event.grad, frozen=event.frozen, statistics=moved, off=event.off,
            )
        )  # fmt: skip

    def _deeper(self, kind: str) -> Any:
        return _Deeper(self._depth, kind)


class _Deeper:
    def __init__(self, depth: dict[str, int], kind: str) -> None:
        self.depth, self.kind = depth, kind

    def __enter__(self) -> None:
        self.depth[self.kind] += 1

    def __exit__(self, *exc: object) -> None:
        self.depth[self.kind] -= 1


def _amplified(
    roots: list[torch.Tensor], args: tuple[Any, ...], kwargs: dict[str, Any], factor: float
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a backward pass with its gradient multiplied by a factor."""
    if factor == 1.0 or len(roots) != 1:
        return args, kwargs
    given = args[1] if len(args) > 1 else kwargs.get("grad_tensors")
    given = given[0] if isinstance(given, tuple | list) and given else given
    grad = (
        torch.full_like(roots[0], factor) if given is None else cast("torch.Tensor", given) * factor
    )
    rest = {key: value for key, value in kwargs.items() if key not in ("tensors", "grad_tensors")}
    return (roots[0], grad, *args[2:]), rest


def _listen_to(roots: list[torch.Tensor], most: int = 20_000) -> list[Any]:
    """Return a list that gets an entry whenever a node of these graphs runs again; leaves belong to every graph."""
    ran: list[Any] = []
    seen: set[Any] = set()
    stack = [root.grad_fn for root in roots]
    while stack and len(seen) < most:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if node.name() != "torch::autograd::AccumulateGrad":
            node.register_prehook(lambda gradients: ran.append(None))
        stack += [following for following, _ in node.next_functions]
    return ran


def _within(roots: list[torch.Tensor], earlier: list[tuple[int, Any]]) -> int | None:
    """Return the place of an earlier pass whose root's graph is a part of the one to come, or None."""
    if not earlier:
        return None
    seen: set[Any] = set()
    stack = [root.grad_fn for root in roots]
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        stack += [following for following, _ in node.next_functions]
    # one that stands at the top is the same pass again, as a double backward with retain_graph makes it
    return next((place for place, node in earlier if node in seen), None)


def _evaluates_once(optimizer: torch.optim.Optimizer) -> bool:
    """Say whether a step evaluates its closure once, before it writes: torch's own do, but LBFGS."""
    cls = type(optimizer)
    return cls.__module__.startswith("torch.optim.") and cls.__name__ != "LBFGS"


def _same_line(one: Location, other: Location | None) -> bool:
    return other is not None and (one.file, one.line) == (other.file, other.line)


def _fallback(thing: Any) -> str:
    return "optimizer" if isinstance(thing, torch.optim.Optimizer) else "model"
