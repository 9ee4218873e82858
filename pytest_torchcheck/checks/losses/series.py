"""Models that are trained on the next token, or on later values of a series, and read what a position is to predict."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from ...codes import labels as explain
from ...lean import dataclass
from ...objects import trees
from ...probes.loss.arguments import targets_of
from ...runs.facts import forward_facts
from ...runs.variants.orders import with_inputs
from ...subject.errors import SubjectError
from ...verdicts import passed
from ..batching import beyond_rounding
from ..causal import reads_ahead
from ..promised import find_input, run_wide
from .targets import loss_of_output

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ...batches import Batch
    from ...findings import Finding
    from ...probes.loss.slopes import LossOfOutput
    from ...subject import Subject

_FEWEST: Final = 4
_STEP: Final = 0.05
"""In deviations of the series: by how much a value is changed, so little that a quantiser mostly gives the same."""


@dataclass(frozen=True, slots=True)
class _Copy:
    """A target that has ``length`` values of an input, bit for bit, ``shift`` positions before their place there."""

    path: str
    target: str
    shift: int
    length: int

    @property
    def answers(self) -> list[int]:
        """Some positions of the target."""
        return sorted({self.length // 2, 3 * self.length // 4, self.length - 1})


@dataclass(frozen=True, slots=True)
class _Trained:
    """An output that the loss pulls to the target: its position ``first`` along ``dim`` to the first of the answers."""

    path: str
    dim: int
    first: int
    alone: bool


def own_answer(subject: Subject) -> Finding | None:
    """Change the values of a series that positions are trained to predict; say what is wrong where their outputs move.

    None where no target is a shifted copy of one input, or where each position is trained on what stands in its
    place: an autoencoder is. A model that promises to be causal in another input predicts, and is told.
    A value may be read where later ones are read too, or where the model cannot copy it: it has several
    features, which a code may hold less of, or training draws noise. The end of a shifted series cannot be copied.
    """
    batch = subject.batch()
    own = batch.origin != "drawn" and subject.contract.batch_dim == 0
    copies = [*_copies(batch)] if own else []
    loss = loss_of_output(subject) if len(copies) == 1 else ""  # of two copies one may be read
    trained = None if isinstance(loss, str) else _trained(loss, copies[0])
    if isinstance(loss, str) or trained is None:
        return None
    copy, series, output = copies[0], batch.tensors()[copies[0].path], loss.outputs[trained.path]
    ahead, size = copy.answers[0] + copy.shift - trained.first, output.shape[trained.dim]
    if size + ahead < series.shape[1] or not (
        ahead >= 1 or (ahead == 0 and _predicts(subject, copy))
    ):
        return None  # in the middle of a window, or what stands in its place
    read, later = _reads(subject, copy, trained)
    if ahead == 0 and read and later:
        return None
    if not read:
        return passed(
            f"{trained.path} is trained on {copy.path}[{f't{ahead:+d}' if ahead else 't'}], and "
            "does not read it at each t"
        )
    beyond = size + ahead - series.shape[1]
    train = forward_facts(subject, train=True)
    scalar = series.dim() == 2 or series.shape[2] == 1
    drawn = train.consumed or train.others_moved
    copyable = trained.alone and (scalar or ahead == 0) and not drawn
    sure = not later and (beyond == 1 or (beyond == 0 and copyable))
    return explain.own_answer(subject, copy.path, trained.path, ahead, read, later=later, sure=sure)


def _predicts(subject: Subject, copy: _Copy) -> bool:
    """Say whether a model promises to be causal, in other inputs than the one that its target repeats."""
    promised: tuple[Any, ...] = subject.promised("Causal")
    found = [find_input(subject.batch(), promise.input) for promise in promised]
    return bool(found) and all(one is not None and one[0] != copy.path for one in found)


def _copies(batch: Batch) -> Iterator[_Copy]:
    """Find the targets that are parts of a series: at one place only, for series that repeat say nothing."""
    for name, target in targets_of(batch).items():
        for path, leaf in batch.input_leaves():
            if not isinstance(leaf, torch.Tensor) or not leaf.is_floating_point():
                continue
            values, wanted = _with_features(leaf), _with_features(target)
            if values is None or wanted is None or len(values) != len(wanted):
                continue
            if values.shape[2] != wanted.shape[2] or values.dtype != wanted.dtype:
                continue
            total, found = values.shape[1], []
            starts = (values[0, :, 0] == wanted[0, 0, 0]).nonzero().flatten().tolist()
            for shift in starts if values.device == wanted.device else []:
                length = min(wanted.shape[1], total - shift)
                if 2 * length > wanted.shape[1] and torch.equal(
                    values[:, shift : shift + length], wanted[:, :length]
                ):
                    found.append(_Copy(path, name, shift, length))
            if len(found) == 1 and found[0].length >= _FEWEST:
                yield found[0]


def _with_features(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return a series as ``[B, T, F]``; None for what is no series."""
    if tensor.dim() not in (2, 3) or not tensor.numel() or not trees.computable(tensor):
        return None
    return tensor[:, :, None] if tensor.dim() == 2 else tensor


def _trained(loss: LossOfOutput, copy: _Copy) -> _Trained | None:
    """Return which output at which position the loss pulls up for high answers, and down for low ones."""
    target = loss.targets()[copy.target]
    far = 1 + 2 * max(map(trees.scale, (target, *loss.outputs.values())))
    found: set[_Trained] = set()
    for answer in copy.answers:
        ways = []
        for value in (far, -far):
            other = target.clone()
            other[:, answer] = value
            try:
                ways.append(loss.slopes(loss.with_targets(target, other)))
            except SubjectError:
                return None  # the loss refuses other targets
        high, low = ways
        if high is None or low is None:
            return None
        for path in high.by_output.keys() & low.by_output.keys():
            up, down = high.by_output[path], low.by_output[path]
            moved = up != down
            if not moved.any() or not ((up < 0) & (down > 0))[moved].all():
                continue
            where = moved.nonzero()
            for dim in range(1, up.dim()):
                places = where[:, dim].unique()
                if len(places) == 1 and up.shape[dim] >= _FEWEST:
                    first = int(places) - answer + copy.answers[0]
                    found.add(_Trained(path, dim, first, len(high.by_output) == 1))
                    break
    return found.pop() if len(found) == 1 else None


def _reads(subject: Subject, copy: _Copy, trained: _Trained) -> tuple[Batch | None, bool]:
    """Return a batch with another first answer, where all outputs read theirs, and whether some read later values.

    Each output must move in most samples.
    """
    batch, answers = subject.batch(), copy.answers
    ends = [answer + copy.shift for answer in answers]
    own = [_moved(batch, copy.path, _STEP, end, end + 1) for end in ends]
    later = [_moved(batch, copy.path, 1.0, end + 1, None) for end in ends[:-1]]
    outputs, bound = run_wide(subject, [batch, *own, *later])
    base, *runs = (trees.floats(output)[trained.path] for output in outputs)

    def moved(run: torch.Tensor, answer: int) -> torch.Tensor:
        at = answer - answers[0] + trained.first
        gap = (run - base).abs().select(trained.dim, at).reshape(len(base), -1).amax(1)
        return gap / (trees.scale(base) or 1.0)

    gaps = [moved(run, answer) for run, answer in zip(runs, answers + answers[:-1], strict=True)]
    medians = [float(gap.median()) for gap in gaps[: len(own)]]
    read = all(beyond_rounding(subject, batch, gap, bound) for gap in medians)
    ahead = any(
        beyond_rounding(subject, batch, float(gap.max()), bound) for gap in gaps[len(own) :]
    )
    return own[0] if read else None, ahead


def _moved(batch: Batch, path: str, by: float, start: int, end: int | None) -> Batch:
    """Return the batch with some values of an input increased, by so many deviations of it."""
    series = batch.tensors()[path].clone()
    series[:, start:end] += by * series.std()
    return with_inputs(batch, {path: series})


_MANY: Final = 0.5
"""Share of tokens from which on another input that has them may be what is to be repeated."""
_NEAR: Final = 3


def answer_seen(subject: Subject, ids: torch.Tensor, trained: Mapping[str, int]) -> Finding | None:
    """Return what is wrong where an output at a position depends on later tokens, or None.

    Not where another input repeats the tokens, as that of a model that copies or corrects them; a
    prefix that is read in both directions is not trained, so its model is not asked.

    Args:
        subject: Whose model promises nothing of time.
        ids: int64, ``[B, T]``, the input whose next tokens are the labels.
        trained: By path, the dimension of time of the outputs that each position trains.
    """
    batch = subject.batch()
    inputs = [leaf for _, leaf in batch.input_leaves() if isinstance(leaf, torch.Tensor)]
    if any(_repeats(leaf, ids) for leaf in inputs if leaf is not ids):
        return None
    names: list[int | str] = [*range(len(inputs)), *batch.kwargs]
    found = ((name, find_input(batch, name)) for name in names)
    which = next((name for name, one in found if one is not None and one[1] is ids), None)
    if which is None:
        return None
    asked = (reads_ahead(subject, which, path, dim) for path, dim in trained.items())
    return next((finding for finding in asked if finding is not None), None)


def _repeats(other: torch.Tensor, ids: torch.Tensor) -> bool:
    """Say whether another input has most of the tokens, in their places or near them."""
    length = min(other.shape[-1], ids.shape[1]) - _NEAR + 1 if other.dim() == ids.dim() else 0
    if length < 1 or other.is_floating_point() or other.shape[0] != ids.shape[0]:
        return False
    near = range(_NEAR)
    shares = [
        float((other[:, a : a + length] == ids[:, b : b + length]).float().mean())
        for a in near
        for b in near
    ]
    return max(shares) > _MANY
