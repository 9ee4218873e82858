"""Whether what a step computes of rewards before the end of an episode takes in rewards that come after it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

import torch
from torch import Tensor, nn

from ... import sources
from ...lean import dataclass
from ...objects.weak import ByTensor
from ...probes.recorded.watch import Watch, name_of, operands, tensors_in
from ...state import seed_everything
from ...subject.errors import SubjectError
from ...subject.remembered import remembered
from .ends import is_ends, is_rewards, is_spelled, key_of, named, pairs_of, shape_of, timed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ...batches import Batch
    from ...findings import Location
    from ...subject import Subject
    from .ends import Pair

_MOST: Final = 4_000_000
"""Numbers that are kept of one run; a step that makes more before its first backward pass is not asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AcrossEnd:
    """What was computed of rewards on both sides of the end of an episode; plain data.

    Attributes:
        ends: The name of the flags.
        rewards: The name of the rewards.
        step: The step of the end, counted from 0.
        written: How the user's code writes a step of its column, with ``{}`` for the step.
        early: The step before or at the end whose result holds a reward of the step after it.
        way: ``shifted`` where flags do cut, one step too early; ``inverted`` where they cut everywhere but at ends;
            else ``uncut``.
        goes_on: How the user's code would write that a step ends no episode, such as ``1 - dones``.
        carried: The name that the carried value is assigned to; may be empty.
        location: The line that first holds both rewards.
        read: The line that reads the flags; where it is known.
    """

    ends: str
    rewards: str
    step: int
    written: str
    early: int
    way: Literal["uncut", "shifted", "inverted"]
    goes_on: str
    carried: str
    location: Location | None
    read: Location | None = None


@remembered("across-ends")
def across_ends(subject: Subject) -> AcrossEnd | None:
    """Return where a reward of one episode reaches what is computed of the episode before it.

    One reward of the batch at a time is changed: one after a declared end, one before it, and all that are in other
    columns, or earlier. A number that stands in the place of the step before the end, and follows the first
    two and none of the others, has carried a reward backwards across the end. What is
    normalised, averaged or sorted follows the others too, and what is summed over a part of a column is
    the same for all of its steps.

    Cost: nothing without such flags beside rewards in the user's own batch; else 5 steps for each of their dimensions.
    """
    batch = subject.batch()
    step = subject.contract.train_step
    found = named(batch, is_spelled(step)) if step is not None and batch.origin == "real" else None
    if found is None:
        return None
    try:
        base = _run(subject, batch, max(t.numel() for t in found.values()), found)
        for pair in pairs_of(batch, base.names):
            for time in range(pair.dims):
                if (one := _asked(subject, batch, base, pair, time)) is not None:
                    return one
    except SubjectError:
        return None  # weights-update tells of it
    return None


# -- runs of the step ---------------------------------------------------------------------------------


class _Numbers(Watch):
    """Keeps what a step computes outside of modules before its first backward pass, where it is no larger than rewards.

    Args:
        module: Names are qualified relative to it.
        wanted: Tensors of the batch, by path, of which the names in the user's code are looked for.
        most: How many numbers a tensor may have that is kept.
    """

    def __init__(self, module: nn.Module, wanted: Mapping[str, Tensor], most: int) -> None:
        super().__init__(module)
        self.made: list[tuple[str, Tensor]] = []
        self.places: list[Location | None] = []
        self.outputs: list[float] = []
        self.names = {p: k for p in wanted if is_ends(k := key_of(p)) or is_rewards(k)}
        self.open = True
        self._known: ByTensor[bool] = ByTensor()
        self._unnamed = {id(t): path for path, t in wanted.items() if path not in self.names}
        self._most, self._size, self._locates = most, 0, bool(wanted)

    def after(
        self, func: Callable[..., Any], args: Any, kwargs: Any, result: Any, token: Any
    ) -> None:
        """Keep the result of a call, or what it wrote to."""
        if not self.open or self.scopes:
            return
        if self._unnamed:
            self._look_for_names()
        name = name_of(func)
        for tensor in operands(args, kwargs):
            if not self._known.get(tensor) and not isinstance(tensor, nn.Parameter):
                self._keep("", tensor)  # it comes from elsewhere, as from an array
        for tensor in tensors_in(args[:1] if name == "Tensor.__setitem__" else result):
            self._keep(name, tensor)
        self.open = self._size <= _MOST

    def _keep(self, name: str, tensor: Tensor) -> None:
        self._known[tensor] = True
        if tensor.is_floating_point() and 0 < tensor.numel() <= self._most:
            self._size += tensor.numel()
            self.made.append((name, tensor.detach().clone()))
            if self._locates:
                self.places.append(self.locate())

    def _look_for_names(self) -> None:
        for frame in self.frames():
            if sources.rank(frame.f_code.co_filename):
                for name, value in frame.f_locals.items():
                    path = self._unnamed.get(id(value)) if isinstance(value, Tensor) else None
                    if path is not None and (is_ends(name) or is_rewards(name)):
                        self.names[path] = name
                        del self._unnamed[id(value)]

    def module_left(self, module: nn.Module, args: Any, result: Any) -> None:
        """Keep a sum of what a module returns."""
        if self.open and len(self.scopes) == 1:
            floats = (t for t in tensors_in(result) if t.is_floating_point())
            self.outputs += [float(t.detach().double().square().sum()) for t in floats]

    def backward_called(self, root: Tensor) -> None:
        """End: what comes later depends on all that came before."""
        self.open = False


def _run(
    subject: Subject, batch: Batch, most: int, wanted: Mapping[str, Tensor] | None = None
) -> _Numbers:
    """Take one step with a batch; ``wanted`` are tensors of it whose names and lines are looked for."""
    given = batch.clone()
    tensors = given.tensors()
    with subject.pristine(steps=True, train=True) as model:
        watch = _Numbers(model, {p: tensors[p] for p in wanted or ()}, most)
        seed_everything(subject.seed)
        made = subject.make_optimizer(model)
        with watch:
            subject.train_step(model, made, given)
    return watch


# -- the question -------------------------------------------------------------------------------------


class _Changes:
    """Which numbers of a step change with some of the rewards, or of the flags.

    Args:
        subject: Whose step.
        batch: Its batch.
        base: The run with nothing changed.
        pair: Flags and rewards.
        time: The dimension of steps.
    """

    def __init__(
        self, subject: Subject, batch: Batch, base: _Numbers, pair: Pair, time: int
    ) -> None:
        self._subject, self._batch, self._base = subject, batch, base
        self._pair, self._time = pair, time
        generator = torch.Generator().manual_seed(0)
        scale = float(pair.values.double().std()) or 1.0
        noise = 0.5 + torch.rand(pair.values.shape, generator=generator)
        self._noise = (noise * scale).to(pair.values)

    def at(self, step: int | slice, column: int) -> Tensor:
        """Return a mask of steps of a column, steps first."""
        mask = torch.zeros_like(timed(self._pair.values, self._time), dtype=torch.bool)
        mask[step, column] = True
        return mask

    def of_rewards(self, where: Tensor) -> list[Tensor | None]:
        """Return of each number of the base run whether it changes with some rewards; None for what the run lacks.

        Args:
            where: A mask, steps first.
        """
        chosen = self._untimed(where)
        values = torch.where(chosen, self._pair.values + self._noise, self._pair.values)
        return self._compared(self._with(self._pair.rewards[0], values))

    def of_flag(self, where: Tensor) -> list[Tensor | None] | None:
        """Return the same for a flag that is turned; None where a module returns something else then."""
        chosen, path = self._untimed(where), self._pair.ends[0]
        flags = self._batch.tensors()[path].reshape(chosen.shape)
        other = self._with(path, torch.where(chosen, 1 - flags.long(), flags.long()))
        return self._compared(other) if other.outputs == self._base.outputs else None

    def _untimed(self, where: Tensor) -> Tensor:
        shape = self._pair.values.movedim(self._time, 0).shape
        return where.reshape(shape).movedim(0, self._time)

    def _with(self, path: str, values: Tensor) -> _Numbers:
        def change(one: str, leaf: Any) -> Any:
            return values.reshape(leaf.shape).to(leaf) if one == path else leaf

        return _run(self._subject, self._batch.map(change), self._pair.values.numel())

    def _compared(self, other: _Numbers) -> list[Tensor | None]:
        found: list[Tensor | None] = []
        for (name, a), (called, b) in zip(self._base.made, other.made, strict=False):
            if name != called or a.shape != b.shape:
                break  # another way through the step
            found.append(~((a == b) | (a.isnan() & b.isnan())))
        return found + [None] * (len(self._base.made) - len(found))


def _asked(
    subject: Subject, batch: Batch, base: _Numbers, pair: Pair, time: int
) -> AcrossEnd | None:
    """Ask for one end along one dimension."""
    place = pair.place(time)
    if place is None or not base.made:
        return None
    t, column = place
    changes = _Changes(subject, batch, base, pair, time)
    others = ~changes.at(slice(t - 1, None), column)
    after = changes.of_rewards(changes.at(t + 1, column))
    if not any(one is not None and bool(one.any()) for one in after):
        return None
    rest = changes.of_rewards(others)
    for early in (t - 1, t):
        before = changes.of_rewards(changes.at(early, column))
        whole = _carried(after, before, rest, (early, t + 1, column), pair, time)
        flags = None
        if early == t and whole:
            flags = _ending_last(changes, whole, pair, time, column)
        if not whole or (early == t and flags is None):
            continue
        first = _first(after, before, rest)
        line = base.places[first]
        read = next((n for n, one in enumerate(flags or ()) if one is not None and one.any()), None)
        return AcrossEnd(
            ends=pair.ends[1], rewards=pair.rewards[1], step=t, early=early,
            written=pair.written(time, column), goes_on=pair.goes_on,
            way="uncut" if flags is None else _way(changes, whole, pair, time, column),
            carried=sources.assigned_name(line) if line and base.made[first][0] else "", location=line,
            read=None if read is None else base.places[read],
        )  # fmt: skip
    return None


def _carried(
    after: list[Tensor | None],
    before: list[Tensor | None],
    rest: list[Tensor | None],
    places: tuple[int, int, int],
    pair: Pair,
    time: int,
) -> list[int]:
    """Return the results with a number for each reward of which that of an early step holds the later reward too.

    Args:
        after: What changes with the later reward.
        before: What changes with the earlier one.
        rest: What changes with rewards of other columns, or before both.
        places: The early step, the later one, and the column.
        pair: Flags and rewards.
        time: The dimension of steps.
    """
    early, late, column = places
    found = []
    for number, three in enumerate(zip(after, before, rest, strict=True)):
        views = [_in_place(one, pair, time) for one in three]
        if any(one is None for one in views):
            continue
        a, b, c = (one for one in views if one is not None)
        holds_both = bool(a[early, column] & b[early, column] & ~c[early, column])
        by_place = a[late, column] & ~b[late, column] & ~a[late + 1 :, column].any()
        if holds_both and bool(by_place):
            found.append(number)
    return found


def _in_place(changed: Tensor | None, pair: Pair, time: int) -> Tensor | None:
    """Return a result with a number for each reward with steps first; None for one of another shape."""
    shape = pair.values.shape
    if changed is None or changed.numel() != pair.values.numel():
        return None
    own = shape_of(changed)
    if own != tuple(shape) and own == tuple(shape)[::-1]:
        return timed(changed.reshape(own), 1 - time)
    return timed(changed.reshape(shape), time) if own in (tuple(shape), own[:1]) else None


def _ending_last(
    changes: _Changes, whole: list[int], pair: Pair, time: int, column: int
) -> list[Tensor | None] | None:
    """Return what changes with the last flag, where it decides what is computed for the last step.

    So flags end their own step, not the one before. Where they stand at the first step of an episode, the last step
    ends by a flag of its own. None, too, where modules read the flags.
    """
    last = changes.at(-1, column)
    turned = changes.of_flag(last)
    if turned is None:
        return None
    given = changes.of_rewards(last)
    for number in whole:
        flag, reward = (_in_place(one[number], pair, time) for one in (turned, given))
        if flag is not None and reward is not None and bool((flag & reward)[-1, column]):
            return turned
    return None


def _way(
    changes: _Changes, whole: list[int], pair: Pair, time: int, column: int
) -> Literal["uncut", "shifted", "inverted"]:
    """Say whether a step that ends nothing, before one that ends nothing, takes in the reward of that one."""
    ends = timed(pair.on, time)[:, column]
    inner = (~ends[:-1] & ~ends[1:]).nonzero().flatten().tolist()
    if not inner:
        return "uncut"
    given = changes.of_rewards(changes.at(inner[0] + 1, column))
    views = [_in_place(given[number], pair, time) for number in whole]
    held = any(one is not None and bool(one[inner[0], column]) for one in views)
    return "shifted" if held else "inverted"


def _first(
    after: list[Tensor | None], before: list[Tensor | None], rest: list[Tensor | None]
) -> int:
    """Return the first result with a number that follows both rewards and none of the others; there is one."""
    return next(
        number
        for number, (a, b, c) in enumerate(zip(after, before, rest, strict=True))
        if a is not None and b is not None and c is not None and bool((a & b & ~c).any())
    )
