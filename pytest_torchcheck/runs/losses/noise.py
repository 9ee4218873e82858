"""Whether a prediction knows the random numbers that it is compared with: runs with other ones at single draws."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

import torch

from ... import sources
from ...objects import trees
from ...probes.loss.noise import NoiseTargets
from ...probes.recorded.watch import Watch, name_of
from ...state import seed_everything
from ...subject.errors import SubjectError
from ..variants.woken import woken

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from ...findings import Location
    from ...probes.loss.noise import NoiseTarget
    from ...probes.recorded.watch import Op
    from ...subject import Subject

_SEEDS: Final = (0, 1)
_MOST: Final = 4


class _Predictions(Watch):
    """Keeps what is compared with noise, where some draws give other numbers."""

    def __init__(self, module: torch.nn.Module, other: Collection[int]) -> None:
        super().__init__(module)
        self.noise = NoiseTargets(other)
        self.lines: dict[int, list[Location]] = {}

    def op(self, name: str, location: Location | None = None) -> Op:
        """Keep the user's lines that led to a draw or a comparison, the nearest first."""
        made = super().op(name, location)
        codes = ((frame.f_code, frame.f_lineno) for frame in self.frames())
        self.lines[made.index] = [
            sources.of_line(code.co_filename, line, code.co_qualname)
            for code, line in codes
            if sources.rank(code.co_filename) == 2
        ]
        return made

    def line(self, draw: int, beside: Location | None) -> Location | None:
        """Return the line of a draw, or the one in another line's function that leads to it."""
        op = self.noise.ops[draw][0]
        lines = self.lines[op.index]
        same = (one for one in lines if beside and one.function == beside.function)
        return next(same, op.location)

    def after(
        self, func: Callable[..., Any], args: Any, kwargs: Any, result: Any, token: Any
    ) -> None:
        """Look at a call."""
        name = name_of(func)
        bare = name.rpartition(".")[2]
        self.noise.see(name, bare, args, kwargs, result, lambda: self.op(name))


def unseen_noise(
    subject: Subject, found: Collection[NoiseTarget], *, step: bool = False
) -> Iterator[tuple[NoiseTarget, Op | None]]:
    """Yield the first noise that no prediction follows, with another draw of its shape that its prediction follows.

    The line of that draw is the one in the function of the comparison, where that leads to it.

    Weights that start at zero have other values here, behind which a prediction follows nothing.

    Args:
        subject: Whose loss, or whose step.
        found: What the run of it compared with noise.
        step: Whether it is the training step.
    """
    other = woken(subject) if found else None
    asked = subject if other is None else other[0]
    moved = [_moved(asked, index, one.draws, step) for index, one in enumerate(found)]
    if False not in moved:
        return
    index = moved.index(False)
    one, read = [*found][index], None
    if True not in moved:  # a term of other noise beside one that is right may be meant: to unlearn
        read = next((n for n in one.alike[-_MOST:] if _moved(asked, index, {n}, step)), None)
    watch = None if read is None else _run(asked, (), step, 0)
    if read is None or watch is None:
        yield one, None
        return
    yield (
        one,
        dataclasses.replace(watch.noise.ops[read][0], location=watch.line(read, one.op.location)),
    )


def _moved(subject: Subject, index: int, draws: Collection[int], step: bool) -> bool | None:
    """Say whether a prediction moves when draws give other numbers, with any seed; None where it cannot be told."""
    moved = False
    for seed in _SEEDS:
        runs = [_run(subject, other, step, seed) for other in ((), draws)]
        pair = [run.noise.predictions[index:][:1] for run in runs if run is not None]
        if len(pair) < 2 or not all(one and _tells(one[0]) for one in pair):
            return None
        moved = moved or not trees.same(pair[0][0], pair[1][0])
    return moved


def _tells(prediction: torch.Tensor) -> bool:
    """Say whether a prediction is finite, and not the same for all samples, as behind a head of zeros."""
    return bool(prediction.isfinite().all()) and bool((prediction != prediction[:1]).any())


def _run(subject: Subject, other: Collection[int], step: bool, seed: int) -> _Predictions | None:
    """Run forward and loss, or the step, with other numbers at some draws; None where that raises."""
    batch = subject.batch().clone()
    with subject.pristine(steps=step, train=True) as model, torch.enable_grad():
        seed_everything(subject.seed + seed)
        watch = _Predictions(model, other)
        try:
            optimizer = subject.make_optimizer(model) if step else None
            with watch:
                if step:
                    subject.train_step(model, optimizer, batch)
                else:
                    subject.compute_loss(subject.call(model, batch), batch)
        except SubjectError:
            return None
    return watch
