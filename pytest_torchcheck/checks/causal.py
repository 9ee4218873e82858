"""Causal models: nothing of the future, all of the past, and step by step with a cache what one call gives."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from .. import promises
from ..codes import behaviour as explain
from ..codes.undecided import BLOCKED
from ..declared.names import UnknownNameError
from ..late import Late
from ..lean import dataclass
from ..objects import trees
from ..runs.facts import forward_facts
from ..runs.variants.cached import arguments, calls, run, ways_of
from ..runs.variants.largest import also_at_largest
from ..runs.variants.orders import with_inputs
from ..runs.variants.settling import asking_for_mode, settled
from ..runs.variants.woken import promise_woken
from ..subject.errors import SubjectError
from ..verdicts import inconclusive, not_applicable, passed
from .batching import EXACT, ROUNDING, beyond_rounding
from .promised import find_input, perturbed, run_wide
from .steps.kept_promises import held_to

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..batches import Batch
    from ..findings import Finding
    from ..runs.variants.cached import Way
    from ..subject import Subject

uncarried = Late("runs.liveness.carried:uncarried")
"""It is asked where nothing of the past is read."""

_FEWEST = 4
_SAME, _OTHER = 1e-4, 1e-3
"""Relative difference of single values up to which rounding, and from which something else, parts two modes."""
_ROUNDED = 1e-5
"""What a norm or softmax that casts to float32 in between makes of it."""


@dataclass(frozen=True, slots=True)
class _After:
    """What other values after a position changed.

    Attributes:
        kept: Whether the outputs up to the position kept their bits.
        same: Whether all outputs did.
        last: The output of the last position.
    """

    kept: bool
    same: bool
    last: torch.Tensor


@dataclass(frozen=True, slots=True)
class _Futures:
    """What the promised output is after changes of the promised input.

    Attributes:
        batch: The unchanged batch.
        path: Path of the input.
        tensor: The input, with ``length`` positions along the promise's dimension.
        fresh: Other values of its kind, of the same shape.
        base: The output of the unchanged batch.
        after: By position, what all later positions of the input changed.
    """

    batch: Batch
    path: str
    tensor: torch.Tensor
    fresh: torch.Tensor
    base: torch.Tensor
    after: dict[int, _After]

    def changed(self, where: torch.Tensor) -> Batch:
        """Return the batch with other values where ``where`` (bool, of the input's shape) is true."""
        return with_inputs(self.batch, {self.path: perturbed(self.tensor, self.fresh, where)})


def causality(subject: Subject) -> Iterator[Finding]:
    """Replace the input after a position by other finite values; the output up to there must be bit-equal.

    The check runs again on one sample of the largest declared sizes, which may be longer than a stored mask.
    """
    for promise in subject.promised("Causal"):
        assert isinstance(promise, promises.Causal)
        found = held_to(subject, _causal, promise)
        yield from also_at_largest(subject, found, functools.partial(_causal_long, promise=promise))


def _causal_long(subject: Subject, promise: promises.Causal) -> Finding:
    subject.cache["futures", promise] = _changed_futures(subject, promise, 2)
    return _causal(subject, promise)


def reads_ahead(subject: Subject, which: int | str, path: str, dim: int) -> Finding | None:
    """Return what is wrong where an output at a position depends on later ones of an input that has its answer.

    Args:
        subject: Whose model is trained on the next token, and promises nothing.
        which: The input, ``[B, T]`` tokens.
        path: Of the output.
        dim: Its dimension of time.
    """
    promise = promises.Causal(input=which, output=trees.steps_of(path), output_dim=dim)
    subject.cache["futures", promise] = _changed_futures(subject, promise, 1)
    found = _causal(subject, promise)
    if found.status != "violated":
        return None
    return dataclasses.replace(
        found, summary=f"the model is trained on the next token, and reads it: {found.summary}"
    )


def _futures(subject: Subject, promise: promises.Causal) -> _Futures | Finding:
    """Run the batch, and with other values after some positions; cached, as two checks compare the outputs."""
    key = ("futures", promise)
    if key not in subject.cache:
        subject.cache[key] = _changed_futures(subject, promise)
    found: _Futures | Finding = subject.cache[key]
    return found


def _changed_futures(
    subject: Subject, promise: promises.Causal, count: int = 3
) -> _Futures | Finding:
    batch, other = subject.batch(), subject.batch(1)
    found, fresh = find_input(batch, promise.input), find_input(other, promise.input)
    if found is None or fresh is None:
        return inconclusive(f"the batch has no tensor input {promise.input!r}", code="no-input")
    path, tensor = found
    if tensor.dim() <= promise.dim or tensor.shape[promise.dim] < 2:
        return inconclusive(
            f"{path} {list(tensor.shape)} has fewer than two positions along dimension {promise.dim}"
        )
    base = _picked(subject.forward(batch), promise)
    if not isinstance(base, torch.Tensor) or base.dim() <= promise.output_dim:
        return inconclusive(
            "the chosen output is not a tensor with that time dimension", code="no-output"
        )
    if bool(trees.dense(base).isnan().any()):
        return inconclusive("the output is NaN, so it cannot be seen what changes it", code=BLOCKED)
    steps, length = base.shape[promise.output_dim], tensor.shape[promise.dim]
    if steps != length:
        return inconclusive(
            f"the output has {steps} positions along dimension {promise.output_dim}, the input {length}",
            code="length-differs",
        )
    futures = _Futures(batch, path, tensor, _fresh(fresh[1], tensor), base, {})
    for position in sorted(
        {length // 2, length - 2, 0} if count > 2 else [length // 2, length - 2][:count]
    ):
        output = subject.forward(futures.changed(_after(tensor, promise.dim, position)))
        again, dim = trees.pick(output, promise.output), promise.output_dim
        futures.after[position] = _After(
            kept=trees.same(*(t.narrow(dim, 0, position + 1) for t in (base, again))),
            same=trees.same(base, again),
            last=again.narrow(dim, length - 1, 1).clone(),
        )
    return futures


def _causal(subject: Subject, promise: promises.Causal) -> Finding:
    futures = _futures(subject, promise)
    if not isinstance(futures, _Futures):
        return futures
    batch, path, dim = futures.batch, futures.path, promise.output_dim
    length = futures.tensor.shape[promise.dim]

    def change_after(position: int) -> Batch:
        return futures.changed(_after(futures.tensor, promise.dim, position))

    for position, again in futures.after.items():
        if again.kept:
            continue
        outputs, bound = run_wide(subject, [batch, change_after(position)])
        keep, then = (
            trees.pick(output, promise.output).narrow(dim, 0, position + 1) for output in outputs
        )
        gap = trees.apart(then, keep)
        if beyond_rounding(subject, batch, gap, bound):
            runs = {kept + 1: change_after(kept) for kept in {position, length // 2, length - 2}}
            return explain.future(subject, promise, path, position, batch, runs, gap)
    if all(again.same for again in futures.after.values()):
        return inconclusive("changing the input changed no output, so a leak cannot be observed")
    return passed(
        f"outputs up to t are bit-equal when {path} changes after t, for t in {[*futures.after]}"
    )


def _picked(output: Any, promise: promises.Causal) -> Any:
    """Return the output that the promise names."""
    try:
        base = trees.pick(output, promise.output)
    except KeyError:
        given = f"Causal(output={promise.output!r})"
        names = output if isinstance(output, Mapping) else trees.tensors(output)
        raise SubjectError(
            "build", UnknownNameError(given, "output", promise.output, names)
        ) from None
    return base


def _after(tensor: torch.Tensor, dim: int, position: int) -> torch.Tensor:
    index = torch.arange(tensor.shape[dim], device=tensor.device) > position
    shape = [1] * tensor.dim()
    shape[dim] = -1
    return index.view(shape).expand(tensor.shape)


def _fresh(candidate: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """Return other values of the same kind: another batch's, or the same ones turned around."""
    if not trees.same(candidate, tensor):
        return candidate
    return tensor.flip(tuple(range(tensor.dim())))


def past_influence(subject: Subject) -> Iterator[Finding]:
    """Change one position at a time; each must move outputs of later positions, as the first ones do."""
    for promise in subject.promised("Causal"):
        assert isinstance(promise, promises.Causal)
        yield from promise_woken(subject, _past, promise)


_SHORTEST = 8
"""Positions below which there are not several in the middle that have others before and after them."""
_ADJACENT = 3
"""Positions in a row that no later output reads: the last one of a block of local attention may be alone so."""


def _past(subject: Subject, promise: promises.Causal) -> Finding:
    futures = _futures(subject, promise)
    if not isinstance(futures, _Futures):
        return futures
    length = futures.tensor.shape[promise.dim]
    if length < _SHORTEST:
        return inconclusive(f"{futures.path} has fewer than {_SHORTEST} positions")
    middle, last = length // 2, length - 2
    # the two runs differ in the positions between, so the last output differs if it reads them
    if not trees.same(futures.after[middle].last, futures.after[last].last):
        return passed(f"the last output changes with {futures.path} at {middle + 1} to {last}")
    reached = _reached(subject, promise, futures, 0)
    if not reached:
        steps = uncarried(subject, length)
        if steps is not None and not any(
            _reached(subject, promise, futures, p) for p in (1, middle)
        ):
            return explain.state_not_carried(steps, futures.path)
        return inconclusive(f"{futures.path} at position 0 changes no later output")
    lag = reached[0]
    lost = [p for p in range(length - lag - _ADJACENT, length - lag) if p > lag]
    if len(lost) < _ADJACENT or any(_reached(subject, promise, futures, p) for p in lost):
        return passed(f"later outputs change with {futures.path} before {middle + 1}")
    changed = {
        p: futures.changed(_only(futures.tensor, promise.dim, p)) for p in (0, 1, *lost[-2:])
    }
    return explain.past_unread(subject, promise, futures.path, lag, lost, futures.batch, changed)


def _reached(
    subject: Subject, promise: promises.Causal, futures: _Futures, position: int
) -> list[int]:
    """Return how far after a position the outputs stand that change with it, nearest first."""
    changed = futures.changed(_only(futures.tensor, promise.dim, position))
    again, dim = trees.pick(subject.forward(changed), promise.output), promise.output_dim
    later = range(position + 1, futures.base.shape[dim])
    return [
        t - position
        for t in later
        if not trees.same(futures.base.narrow(dim, t, 1), again.narrow(dim, t, 1))
    ]


def _only(tensor: torch.Tensor, dim: int, position: int) -> torch.Tensor:
    return _after(tensor, dim, position - 1) & ~_after(tensor, dim, position)


def cached_steps(subject: Subject) -> Iterator[Finding]:
    """Give the last two positions one by one, with the cache of the call before, and compare with one call.

    A model that takes its steps by itself in eval mode is compared with its one call in train mode.
    """
    for promise in subject.promised("Causal"):
        assert isinstance(promise, promises.Causal)
        yield _cached(subject, promise)


def _cached(subject: Subject, promise: promises.Causal) -> Finding:
    names = arguments(subject.model)
    if not names:
        return _own_steps(subject, promise) or not_applicable(
            "no optional argument of the forward takes a cache, and eval mode takes no other steps "
            "than train mode"
        )
    batch = subject.batch()
    found = find_input(batch, promise.input)
    if found is None or found[1].dim() <= promise.dim or found[1].shape[promise.dim] < _FEWEST:
        return inconclusive(f"the input has fewer than {_FEWEST} positions")
    path = found[0]
    gaps: dict[Way, float] = {}
    for way in ways_of(subject, batch, path, promise.dim):
        try:
            with subject.in_double():
                wide = batch.to(dtype=torch.float64)
                bound, gap = EXACT, _gap(subject, promise, wide, path, way)
        except SubjectError:
            bound, gap = ROUNDING, _gap(subject, promise, batch, path, way)
        if gap is not None:
            gaps[way] = gap if gap > max(bound, _ROUNDED) else 0.0
    if not gaps:
        return inconclusive(
            f"no output of a forward could be given back as {', '.join(names)}", code="no-cache"
        )
    way = min(gaps, key=lambda way: gaps[way])
    if gaps[way]:
        return explain.cache_differs(subject, promise, batch, path, way, gaps[way])
    return passed(f"two steps with {way.name} give what one call gives")


def _own_steps(subject: Subject, promise: promises.Causal) -> Finding | None:
    """Compare the steps that a model takes by itself in eval mode with its one call in train mode.

    Where both read the past, the first position is the same in both and later ones are not, and where
    a module that train mode calls once is called for each position, the steps are what differs.
    """
    if not (subject.has_modes and asking_for_mode(subject.model)):
        return None
    seen, facts, futures = settled(subject), forward_facts(subject), _futures(subject, promise)
    if seen.random or seen.moving or seen.written or not isinstance(futures, _Futures):
        return None
    base, dim = futures.base, promise.output_dim
    path = next((p for p, t in facts.outputs.items() if trees.same(t, base)), "")
    whole, length = seen.quiet.get(path, base), base.shape[dim]
    if whole.shape != base.shape or not facts.steady or futures.after[0].same or length < _FEWEST:
        return None
    first, last = (
        trees.worst(whole.narrow(dim, t, 1), base.narrow(dim, t, 1)) / (trees.scale(whole) or 1e-30)
        for t in (0, length - 1)
    )
    if first > _SAME or last <= _OTHER:
        return None
    once, often = (calls(subject, train=train) for train in (True, False))
    stepped = [name for name, count in once.items() if count == 1 and often[name] >= length]
    return explain.steps_differ(subject, promise, stepped[0], last) if stepped else None


def _gap(
    subject: Subject, promise: promises.Causal, batch: Any, path: str, way: Way
) -> float | None:
    """Return how far the last position's output is from that of one call, relative to its scale."""
    last = trees.pick(run(subject, batch, path, promise.dim, way), promise.output)
    whole = trees.pick(subject.forward(batch), promise.output)
    if not isinstance(last, torch.Tensor) or last.dim() != whole.dim():
        return None
    dim = promise.output_dim
    last, whole = last.narrow(dim, last.shape[dim] - 1, 1), whole.narrow(dim, whole.shape[dim] - 1, 1)  # fmt: skip
    if last.shape != whole.shape:
        return None
    return trees.apart(last, whole)
