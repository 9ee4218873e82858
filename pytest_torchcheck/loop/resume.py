"""Is a training run that is saved and resumed the same as one that was not interrupted?

The checkpoint holds what everybody saves: ``state_dict`` of the model, of the optimizers and of the
schedulers that came with them, and of whatever else the training step, or the declared loss, keeps that
has one: a gradient scaler, a sampler, an average, weights of terms; and the states of its random
generators. What the run depends on besides is the missing piece.
"""

from __future__ import annotations

import contextlib
import copy
import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..data.generators import generator_state, is_generator, set_generator_state
from ..lean import dataclass
from ..objects import trees
from ..runs.training.few import later_batch, seed_of
from ..runs.training.observation import checksums
from ..runs.training.steps import trajectory
from ..state import seed_everything
from ..subject.errors import SubjectError
from ..subject.gradients import clear_gradients
from ..subject.optimizers import step_schedulers
from .checkpoints import (
    CHECKPOINT,
    copied,
    counterparts,
    is_torchs,
    kept_module,
    noting_steps,
    pieces_of,
    strangers_of,
)
from .closures import ClosureState, kept
from .unsaved import Carried, Missing, give, plain_values, shared, taken, unsaved

if TYPE_CHECKING:
    from ..subject import Subject

STEPS = 2
LATER = 6
"""Steps after a checkpoint that lacks something: what happens in every fifth or sixth step is among them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumption:
    """A resumed run beside an uninterrupted one.

    Attributes:
        steps: Steps before the checkpoint.
        further: Steps after it.
        differing: Parameters and buffers that differ at the end.
        largest: Largest difference of one element.
        rounding: Whether all of them differ in their last bits only.
        missing: What changed before the checkpoint and is not in it.
        repeatable: Whether the uninterrupted run is the same when run again.
        evaluates: Whether the restored model evaluates a batch as the saved one did.
        carries: Whether the resumed run is the uninterrupted one once it is given ``missing`` too, but for
            what may be meant to start anew.
        fills: Whether it is that once it is given what modules beside the model keep alone, such as the
            memory bank of a loss.
        left: Whether it is that once it is given the gradients that the last step before the checkpoint left.
        closures: What the step's functions keep of their own, which no state_dict holds.
        decides: Whether the resumed run is the uninterrupted one once that is put back too.
        iterators: What the step reads its data from, whose place no checkpoint holds.
        pieces: What the checkpoint held.
        strangers: Optimizers, schedulers and scalers that the step stepped and no state was saved of.
    """

    steps: int
    further: int
    differing: tuple[str, ...]
    largest: float
    rounding: bool
    missing: tuple[Missing, ...]
    repeatable: bool
    evaluates: bool
    carries: bool
    fills: bool
    left: bool
    closures: tuple[str, ...]
    decides: bool
    iterators: tuple[str, ...]
    pieces: tuple[str, ...]
    strangers: tuple[str, ...]


def is_resumed(subject: Subject) -> tuple[str, ...] | None:
    """Say whether a run resumed after one step ends as the steps that were run anyway do, bit by bit.

    One step up to the checkpoint, the rest of them behind it: what a piece does every second or
    third step differs if it has forgotten the first one. Equal checksums are the promise itself;
    anything else, such as steps that no checkpoint can continue, only says that :func:`measure` has
    to look.

    Returns:
        What the checkpoint held; None where the run ends elsewhere. Cost: the steps behind the
        checkpoint, and the one before it where
        :func:`~pytest_torchcheck.loop.checkpoints.keep_checkpoint` did not take it from the steps
        that run anyway.
    """
    known = trajectory(subject)
    # what is loaded from it is written to: it serves once
    states = subject.cache.pop(CHECKPOINT, None)
    if known.end is None or known.error is not None:
        return None
    if states is None and (states := _first_step(subject)) is None:
        return None
    held = tuple(states)
    with subject.pristine(steps=True) as model, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with subject.phase("build"):
            model.load_state_dict(states.pop("model"))
        model.train()
        seed_everything(subject.seed)
        made = subject.make_optimizer(model)
        with subject.phase("step"):
            for name, thing in pieces_of(made).items():
                thing.load_state_dict(states.pop(name))
        # what an optimizer of the user's keeps elsewhere may matter later than in these steps
        own = {name: thing for name, thing in pieces_of(made).items() if not is_torchs(thing)}
        plain = {name: plain_values(thing) for name, thing in own.items()}
        _run(subject, model, made, 1, known.end_after - 1, few=known.few)
        if states or checksums(model) != known.end:
            return None  # what the step made by itself has no counterpart before it runs
        if any(unsaved(n, own[n], plain[n], set()) for n in own):
            return None
        return held


def _first_step(subject: Subject) -> dict[str, Any] | None:
    """Do one step and return the states after it; None where its functions keep more than these."""
    with subject.pristine(steps=True) as model, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.train()
        seed_everything(subject.seed)
        made = subject.make_optimizer(model)
        pieces = pieces_of(made)
        held = ClosureState(
            subject.contract.train_step, without=(model, *pieces.values()), given=made
        )
        _run(subject, model, made, 0, 1)
        if held.changed():
            return None
        clear_gradients(model)  # their memory serves the copy
        states: dict[str, Any] = {"model": copied(model.state_dict())}
        # these pieces do no further step, so that what their states hold need not be copied
        return states | {name: thing.state_dict() for name, thing in pieces_of(made).items()}


def measure(subject: Subject) -> Resumption:
    """Run ``2 * STEPS`` steps through, and again with a checkpoint in the middle; ``STEPS + LATER`` where it lacks something.

    Cost: four such runs at most.
    """
    with kept(step := _calls(subject), without=(subject.model,)):
        return _measured(subject, step)


def _calls(subject: Subject) -> Any:
    """Return what is called beside model and optimizer: the user's step, or the loss, which may have parameters."""
    loss = subject.contract.loss
    return subject.contract.train_step or (None if isinstance(loss, str) else loss)


def _measured(subject: Subject, step: Any) -> Resumption:
    run = _through(subject, step)
    evaluated, resumed, unloaded = _resume(subject, run)
    closures = (*run.closures, *unloaded)
    differing = {name: _distance(run.values[name], resumed[name]) for name in run.values}
    wrong = tuple(name for name, distance in differing.items() if distance > 0.0)
    rounding = all(differing[name] <= _last_bits(run.values[name]) for name in wrong)
    repeatable, decides, carries, fills, left = True, False, False, False, False
    if wrong and run.closures:
        with contextlib.suppress(SubjectError):  # it may be of the first run's objects
            _, whole, _ = _resume(subject, run, closures=True)
            decides = _alike(run.values, whole)
    if wrong and not decides:
        again = _through(subject, step).values
        repeatable = _alike(run.values, again)
    if wrong and repeatable and any(run.carried.values()):
        _, whole, _ = _resume(subject, run, carried=run.carried)
        carries = _alike(run.values, whole)
    if carries and (beside := {m.beside for m in run.missing} - {""}):
        banks = {name: run.carried[name] for name in beside}
        fills = _alike(run.values, _resume(subject, run, carried=banks)[1])
    if wrong and repeatable and not decides and not carries and (grads := _gradients_left(subject)):
        _, whole, _ = _resume(subject, run, gradients=grads)
        left = _alike(run.values, whole)
    return Resumption(
        steps=STEPS,
        further=run.further,
        differing=wrong,
        largest=max(differing.values(), default=0.0),
        rounding=rounding,
        missing=tuple(m for m in run.missing if not m.restarts) if carries else run.missing,
        repeatable=repeatable,
        evaluates=_alike(evaluated, run.evaluated),
        carries=carries,
        fills=fills,
        left=left,
        closures=closures,
        decides=decides,
        iterators=run.iterators,
        pieces=tuple(run.states),
        strangers=run.strangers,
    )


def _resume(
    subject: Subject,
    run: _Through,
    *,
    closures: bool = False,
    carried: dict[str, Carried] | None = None,
    gradients: dict[str, torch.Tensor] | None = None,
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor], tuple[str, ...]]:
    """Go on from the checkpoint in the middle of a run.

    Args:
        subject: Whose run.
        run: The uninterrupted one.
        closures: Whether to put back as well what the step's functions keep and no state_dict holds.
        carried: What to carry over as well of what the saved objects keep and their states do not hold.
        gradients: Those of the parameters, by name, to carry over as well.

    Returns:
        What the restored model evaluates, the values at the end, and what has a state in the checkpoint
        but no counterpart to load it.
    """
    with subject.pristine(steps=True) as model:
        with subject.phase("build"):
            model.load_state_dict(run.states["model"])
        evaluated = _evaluate(subject, model)
        model.train()
        seed_everything(subject.seed)
        parameters = list(model.parameters())
        made = subject.make_optimizer(model)
        if any(a is not b for a, b in zip(parameters, model.parameters(), strict=False)):
            # the optimizer function finishes the model: its parameters are loaded when they are there
            model.load_state_dict(run.states["model"])
        if closures:
            run.middle.restore()
        held = ClosureState(_calls(subject), without=(model,))
        with subject.phase("step"):
            live = {**pieces_of(made), **held.savable()}
            pairs = counterparts([name for name in run.states if name != "model"], list(live))
            for saved, name in pairs.items():
                _load(live[name], run.states[saved])
        unloaded = tuple(name for name in run.states if name != "model" and name not in pairs)
        things = {"model": model, **live}
        for name, values in (carried or {}).items():
            give(things.get(pairs.get(name, name)), values, shared(things))
        for name, parameter in model.named_parameters() if gradients else ():
            parameter.grad = (gradients or {}).get(name)
        _run(subject, model, made, STEPS, run.further)
        return evaluated, _values(model), unloaded


def _state(thing: Any) -> Any:
    return copy.deepcopy(generator_state(thing) if is_generator(thing) else thing.state_dict())


def _load(thing: Any, state: Any) -> None:
    if is_generator(thing):
        set_generator_state(thing, copy.deepcopy(state))
    else:
        thing.load_state_dict(copy.deepcopy(state))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Through:
    """An uninterrupted run: values at its end, states, evaluation and omissions in its middle."""

    values: dict[str, torch.Tensor]
    states: dict[str, Any]
    evaluated: dict[str, torch.Tensor]
    missing: tuple[Missing, ...]
    carried: dict[str, Carried]
    further: int
    closures: tuple[str, ...]
    iterators: tuple[str, ...]
    middle: ClosureState
    strangers: tuple[str, ...]


def _through(subject: Subject, step: Any) -> _Through:
    with subject.pristine(steps=True) as model, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        closures = ClosureState(step, subject.contract.optimizer, without=(model,))
        try:
            model.train()
            seed_everything(subject.seed)
            before = plain_values(model)
            made = subject.make_optimizer(model)
            pieces = pieces_of(made)
            plain = {name: plain_values(thing) for name, thing in pieces.items()}
            held = ClosureState(step, without=(model, *pieces.values()), given=made)
            savable = held.savable()
            inner = {name: plain_values(thing) for name, thing in savable.items()}
            with noting_steps() as stepped:
                _run(subject, model, made, 0, STEPS)
            own = tuple(
                path
                for path in held.changed()
                if not any(path == n or path.startswith((f"{n}.", f"{n}[")) for n in savable)
            )
            states = {"model": copy.deepcopy(model.state_dict())}
            later = pieces_of(made)  # the step may have hung a scheduler on the optimizer
            states |= {name: _state(thing) for name, thing in {**later, **savable}.items()}
            middle = ClosureState(step, without=(model, *pieces.values()))
            missing = unsaved("model", model, before, set(states["model"]))
            for name, thing in pieces.items():
                missing += unsaved(name, thing, plain[name], set())
            for name, thing in savable.items():
                if isinstance(states[name], dict):
                    named = {*states[name], *(f"_{key}" for key in states[name])}
                    missing += unsaved(name, thing, inner[name], named)
            with kept_module(model):
                evaluated = _evaluate(subject, model)
            carried = taken({"model": model, **pieces, **savable}, missing)
            further = LATER if any(carried.values()) else STEPS
            _run(subject, model, made, STEPS, further)
            return _Through(
                values=_values(model),
                states=states,
                evaluated=evaluated,
                missing=missing,
                carried=carried,
                further=further,
                closures=own,
                iterators=held.iterators(),
                middle=middle,
                strangers=strangers_of(stepped, [*pieces.values(), *savable.values()]),
            )
        finally:
            closures.restore()


def _gradients_left(subject: Subject) -> dict[str, torch.Tensor]:
    """Return the gradients that the steps before the checkpoint leave, by taking these steps again."""
    with subject.pristine(steps=True, train=True, seeded=True) as model:
        closures = ClosureState(_calls(subject), subject.contract.optimizer, without=(model,))
        try:
            _run(subject, model, subject.make_optimizer(model), 0, STEPS)
            held = ((n, p.grad) for n, p in model.named_parameters() if p.grad is not None)
            return {n: grad.detach().clone() for n, grad in held if bool(grad.any())}
        finally:
            closures.restore()


def _evaluate(subject: Subject, model: nn.Module) -> dict[str, torch.Tensor]:
    batch = subject.batch().clone()
    model.eval()
    seed_everything(subject.seed)
    with torch.no_grad():
        output = subject.call(model, batch)
    return {path: tensor.detach().clone() for path, tensor in trees.tensors(output).items()}


def _run(
    subject: Subject, model: nn.Module, made: Any, first: int, count: int, *, few: bool = False
) -> None:
    for step in range(first, first + count):
        batch = later_batch(subject, few=few and step > 0)
        seed_everything(seed_of(subject, step))
        loss = subject.train_step(model, made, batch.clone())
        if subject.contract.train_step is None:
            step_schedulers(made, loss)


def _values(model: nn.Module) -> dict[str, torch.Tensor]:
    return {
        name: t.detach().clone() for name, t in (*model.named_parameters(), *model.named_buffers())
    }


def _alike(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(_distance(a[path], b[path]) == 0.0 for path in a)


def _last_bits(tensor: torch.Tensor) -> float:
    """Return by how much rounding may move an element in a few steps."""
    if not tensor.is_floating_point() or not tensor.numel():
        return 0.0
    return 4 * torch.finfo(tensor.dtype).eps * float(tensor.double().abs().max())


def _distance(a: torch.Tensor, b: torch.Tensor) -> float:
    if a.shape != b.shape:
        return float("inf")
    if torch.equal(a, b):
        return 0.0
    distance = (a.double() - b.double()).abs().nan_to_num(0.0)
    return float(distance.max()) or (0.0 if torch.equal(a.isnan(), b.isnan()) else float("inf"))
