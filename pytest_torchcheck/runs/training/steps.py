"""Some consecutive training steps of the subject, run once for all that ask what they moved."""

from __future__ import annotations

import math
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ... import compiler
from ...functions.discovery import is_compiled
from ...lean import dataclass
from ...loop.checkpoints import CHECKPOINT, STEPS, keep_checkpoint
from ...loop.closures import carried_graphs
from ...loop.traces.copied_onto_itself import Rebinding, is_trained
from ...objects import trees
from ...probes.holding.leaks import count_hooks
from ...probes.recorded.watch import version_of
from ...state import seed_everything
from ...subject.errors import SubjectError
from ...subject.gradients import OneLine, clear_gradients, gradient_stats
from ...subject.optimizers import (
    Coverage,
    aliases,
    cover,
    gradient_aliases,
    optimizers_of,
    schedulers_of,
    step_schedulers,
)
from ...subject.remembered import remembered
from .few import later_batch, seed_of
from .left import KeptBytes, Leaving, Left
from .observation import Watched, change_of, checksums, digests, first_drop, largest_of, number_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...batches import Batch
    from ...subject import Subject


_WARM_UP = 12  # further steps while every learning rate is still 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """Evidence of some consecutive training steps from the pristine state.

    Attributes:
        losses: Loss of every step that succeeded.
        error: What a later step raised, or None.
        moved: By parameter: ``max|after - before|``.
        sizes: By parameter: ``max|before|``.
        buffers: Buffers whose values changed.
        live: Parameters that had a nonzero gradient in some step, as seen after the step.
        seen: Parameters whose gradient could be seen at all after a step.
        rates: Largest learning rate of every step.
        warmed: True when rates were raised to ``initial_lr`` because a schedule began at 0.
        coverage: What the optimizer holds.
        modes: Modules whose training flag is not what it was before the steps.
        live_bytes: Live bytes that the steps after the first made, after each of them.
        hooks: Hooks on modules and parameters, after each of them.
        rebound: By parameter that a step puts another tensor in place of, which no optimizer holds:
            the first such step.
        carries: Whether tensors with a graph are held after the last step.
        end: By parameter and buffer: checksum of its bits after ``end_after`` steps. None where the
            contract declares no optimizer, or the steps were not those that a user's loop would do.
        end_after: How many steps ``end`` is of: fewer where a checkpoint is seen to hold everything.
        first_output: By path: digest of what the model returned in the first step, where that was
            the plain one.
        resting: Parameters that no step after the first wrote to, by torch's count of writes in place.
        reseeds: Whether torch was seeded anew within a step; None where that is not known.
        forgets: The first step after which an optimizer keeps state of fewer parameters than before it.
        one_line: Weights whose gradient lay along one line in every step, beside others.
        few: Whether the steps after the first took a few samples of the batch.
        aliases: Parameters whose own memory is an entry of an optimizer's state, with its key.
        of_gradients: Parameters whose gradient's memory is an entry of an optimizer's state, with its key.
        left: What else the steps left behind.
    """

    losses: tuple[float, ...]
    error: SubjectError | None
    moved: dict[str, float]
    sizes: dict[str, float]
    buffers: tuple[str, ...]
    live: frozenset[str]
    seen: frozenset[str]
    rates: tuple[float, ...]
    warmed: bool
    coverage: Coverage
    modes: tuple[str, ...]
    live_bytes: tuple[int, ...] = ()
    hooks: tuple[int, ...] = ()
    rebound: dict[str, int] = field(default_factory=dict)
    carries: bool = False
    end: dict[str, int] | None = None
    end_after: int = 0
    first_output: dict[str, int] | None = None
    reseeds: bool | None = None
    resting: frozenset[str] = frozenset()
    forgets: int | None = None
    one_line: frozenset[str] = frozenset()
    few: bool = False
    aliases: dict[str, str] = field(default_factory=dict)
    of_gradients: dict[str, str] = field(default_factory=dict)
    left: Left = field(default_factory=Left)

    @property
    def grows(self) -> bool:
        """Whether the last step left more bytes or hooks behind than the one before it."""
        return len(self.live_bytes) < STEPS - 1 or any(
            counts[-1] > counts[-2] for counts in (self.live_bytes, self.hooks)
        )


@remembered("trajectory")
def trajectory(subject: Subject) -> Trajectory:
    """Run the user's step (or the plain one) a few times on the base batch; cached.

    The first step gives what a plain backward gives: where it is the plain step,
    :meth:`Subject.gradients` need not run another one. It is watched then for what else asks about
    such a step, as long as it succeeds: what raises is told by steps that nobody watches. The
    further ones run under a count of live bytes, on a few samples: what they add (a graph, a hook or
    a tensor that stays, a state that a checkpoint lacks) does not depend on how many there are. Where
    these raise or give no finite loss, all steps take the whole batch.
    """
    with subject.ear.listening():
        if (batch := later_batch(subject, few=True)) is subject.batch():
            return _run(subject, batch)
        made = _run(subject, batch)
        if made.error is None and all(map(math.isfinite, made.losses)):
            return replace(made, few=True)
        if not made.losses:
            return made  # the first step takes the whole batch
        subject.cache.pop(CHECKPOINT, None)
        whole = _run(subject, subject.batch())
        if made.error is not None and whole.error is None and _run(subject, batch).error is None:
            return made  # it raised once, and it was not for being given a few samples
        return whole


def _run(subject: Subject, later: Batch) -> Trajectory:
    if subject.contract.train_step is not None:
        return _steps(subject, later)
    try:
        return _steps(subject, later, watched=True)
    except _NotWatched as why:
        first = why.__cause__
    made = _steps(subject, later)
    if isinstance(first, SubjectError) and made.error is None and _watchable(subject):
        raise first  # the user's own code raised, once, and it was not for being watched
    return made


def _watchable(subject: Subject) -> bool:
    """Say whether a watched step succeeds now."""
    try:
        _steps(subject, subject.batch(), watched=True)
    except _NotWatched:
        return False
    return True


class _NotWatched(Exception):
    """What a watch would see of the first step is not what it sees of a step of its own."""


@dataclass(frozen=True, slots=True)
class _Sight:
    """Watches the first step."""

    seen: Watched
    before: list[Any]

    @classmethod
    def of(cls, subject: Subject, model: nn.Module) -> _Sight:
        losses = subject.contract.loss is not None
        return cls(Watched(subject, model, losses=losses), _attributes(model))

    @property
    def unchanged(self) -> bool:
        """Whether the forward changed nothing that the model holds outside of its state dict."""
        return not self.seen.observation().changed

    def passes(self, model: nn.Module, batch: Batch) -> tuple[Any, torch.Tensor]:
        """Do what :meth:`Subject.passes` does."""
        if _attributes(model) != self.before:
            raise _NotWatched  # making the optimizer changed the model
        if is_compiled(model) or compiler.has_compiled():
            raise _NotWatched  # under a watch compiled code runs eagerly, which may give other bits
        try:
            output, loss = self.seen.passes(model, batch)
        except SubjectError as error:
            raise _NotWatched from error
        if loss is None or loss.dim():
            raise _NotWatched
        self.seen.keep()
        return output, loss


def untrainable(subject: Subject) -> bool:
    """Say whether nothing of the model requires a gradient, and no step writes to it or unfreezes any of it."""
    if any(parameter.requires_grad for parameter in subject.model.parameters()):
        return False
    if subject.contract.optimizer is None:
        return True  # the default one can hold nothing
    try:
        made = trajectory(subject)
    except SubjectError:
        return True  # an optimizer of nothing cannot be made
    return made.error is not None or not (any(made.moved.values()) or made.buffers)


@remembered("several-optimizers")
def trains_by_several(subject: Subject) -> bool:
    """Say whether the declared step has more than one optimizer; read off steps that were made; cached.

    Raises:
        SubjectError: The user's function raised.
    """
    made: Trajectory | None = subject.cache.get("trajectory")
    if made is not None:
        return len(made.coverage.optimizers) > 1
    with subject.pristine() as model:
        return len(optimizers_of(subject.make_optimizer(model))) > 1


def _attributes(model: nn.Module) -> list[Any]:
    """Return what a function that is given the model may change: attributes, flags, versions of parameters."""
    found: list[Any] = [(id(p), p.requires_grad, version_of(p)) for p in model.parameters()]
    for module in model.modules():
        own = vars(module)
        found.append({key: id(value) for key, value in own.items()})
        found += [
            {key: id(value) for key, value in own.get(name, {}).items()}
            for name in ("_parameters", "_buffers", "_modules")
        ]
    return found


def _steps(subject: Subject, later: Batch, *, watched: bool = False) -> Trajectory:
    with subject.pristine(steps=True, train=True) as model:
        sight = _Sight.of(subject, model) if watched else None
        seed_everything(subject.seed)
        made = subject.make_optimizer(model)
        clear_gradients(model)
        optimizers = optimizers_of(made)
        schedulers = schedulers_of(made)
        coverage = cover(model, optimizers)
        # what the optimizer function puts into the model is compared with what it put there
        put = {
            name: parameter.detach().clone()
            for name, parameter in model.named_parameters()
            if subject.state.original(parameter) is None
        }
        modes = {name: module.training for name, module in model.named_modules()}
        rebinding, leaving, lines = (
            Rebinding(model),
            Leaving(subject, model, optimizers),
            OneLine(model),
        )
        losses: list[float] = []
        rates: list[float] = []
        live: set[str] = set()
        writes: dict[str, tuple[int, int | None]] = {}  # after the first step
        seen: set[str] = set()
        error: SubjectError | None = None
        kept = KeptBytes()
        hooks: list[int] = []
        warmed, step = False, 0
        end, last = None, 0
        first_output: dict[str, int] = {}
        seeds: list[bool] = []
        states: list[tuple[int, ...]] = [()]

        def look(output: Any, loss: torch.Tensor) -> None:
            subject.keep_gradients(output, loss)
            first_output.update(digests(trees.tensors(output)))

        def later_look(_output: Any, _loss: torch.Tensor) -> None:
            leaving.within_step()

        exact = subject.kernel_exact and subject.contract.optimizer is not None
        while step < STEPS:
            groups = [g for o in optimizers for g in o.param_groups if g.get("lr") is not None]
            rate = max((float(g["lr"]) for g in groups), default=math.nan)
            if rate == 0.0 and not schedulers and (step or subject.contract.train_step is None):
                warmed = _raise_rates(optimizers) or warmed
            seed_everything(seed_of(subject, step))
            try:
                with kept.counting(step):
                    value = subject.train_step(
                        model,
                        made,
                        (later if step else subject.batch()).clone(),
                        look=later_look if step == 1 else None if step or losses else look,
                        passes=None if sight is None or step or losses else sight.passes,
                        apply=kept.apply(step),
                    )
            except SubjectError as raised:
                error = raised
                break
            losses.append(number_of(value))
            del value
            seeds.append(torch.initial_seed() == seed_of(subject, step))
            states.append(tuple(sum(map(bool, o.state.values())) for o in optimizers))
            rebinding.look()
            leaving.strides.look(model)
            if sight is not None and not step and sight.unchanged:
                kept.only_last()
            kept.look(step, trained_of(model, optimizers))
            hooks.append(count_hooks(model).total())
            rates.append(rate)
            writes = writes or {n: (id(p), version_of(p)) for n, p in model.named_parameters()}
            stats = gradient_stats(model)
            lines.look(stats)
            for name, stat in stats.items():
                if stat.kind != "none":
                    seen.add(name)
                if stat.kind == "live":
                    live.add(name)
            if subject.contract.train_step is None:
                step_schedulers(schedulers, losses[-1])
            if exact and not warmed:
                last = last or keep_checkpoint(subject, model, made)
                end = checksums(model) if len(losses) == last else end
            step += 1
            if step == STEPS and rates and max(rates) == 0.0 and len(rates) < STEPS + _WARM_UP:
                step -= 1  # still warming up: one step more
        resting = frozenset(
            n for n, p in model.named_parameters() if writes.get(n) == (id(p), version_of(p))
        )
        carries = bool(
            carried_graphs(subject.contract.train_step, subject.contract.optimizer, model=model)
        )
        moved, sizes = {}, {}
        for name, parameter in model.named_parameters():
            before = subject.state.original(rebinding.before(name, parameter))
            if before is None:
                before = put.get(name)
            if before is None or before.shape != parameter.shape:
                continue
            if parameter.is_meta:
                continue  # a shape alone: nothing that could move
            moved[name] = change_of(trees.dense(parameter), trees.dense(before))
            sizes[name] = largest_of(trees.dense(before))
        buffers = tuple(
            name
            for name, buffer in model.named_buffers()
            if (before := subject.state.original(buffer)) is not None
            and buffer.device.type != "meta"
            and not trees.same(before, buffer)
        )
        changed = tuple(
            name
            for name, module in model.named_modules()
            if modes.get(name, module.training) != module.training
        )
        rebound, aliased = rebinding.left_behind(optimizers), aliases(model, optimizers)
        kept_gradients = {n: str(k) for n, (_, k) in gradient_aliases(model, optimizers).items()}
        left = leaving.after(later) if error is None else Left()
        del made, optimizers, schedulers
    return Trajectory(
        losses=tuple(losses), error=error, moved=moved, sizes=sizes, buffers=buffers, live=frozenset(live),
        seen=frozenset(seen), rates=tuple(rates), warmed=warmed, coverage=coverage, modes=changed,
        live_bytes=tuple(kept.live), hooks=tuple(hooks), rebound=rebound, carries=carries, end=None if warmed else end, end_after=last, resting=resting, left=left,
        first_output=first_output or None, reseeds=not all(seeds) if subject.kernel_exact and seeds else None, forgets=first_drop(states), one_line=lines.names, aliases=aliased,
        of_gradients=kept_gradients,
    )  # fmt: skip


def trained_of(model: nn.Module, optimizers: list[torch.optim.Optimizer]) -> Iterator[torch.Tensor]:
    """Iterate over what a step may give a gradient: the parameters, and what else the optimizers hold."""
    yield from model.parameters()
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            yield from group["params"]


def _raise_rates(optimizers: list[torch.optim.Optimizer]) -> bool:
    """Set learning rates of 0 to the schedule's base, so that a warm-up does not look like a standstill."""
    raised = False
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            if group.get("lr") == 0.0 and group.get("initial_lr", 0.0) > 0.0:
                group["lr"] = group["initial_lr"]
                raised = True
    return raised


@remembered("lost-parameters")
def lost(subject: Subject) -> frozenset[str]:
    """Return the parameters that a step replaces and that nothing trains from then on; cached."""
    rebound = trajectory(subject).rebound
    return frozenset(
        name for name, since in rebound.items() if not is_trained(subject, name, since)
    )
