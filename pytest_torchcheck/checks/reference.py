"""A model beside another version of it, and checkpoints of released ones: with the same weights the same comes out."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from .. import promises
from ..batches.batch import split_inputs
from ..change.running import Way, batch_for, prepared
from ..codes import behaviour as explain
from ..objects import trees
from ..objects.kinds import shape_of
from ..probes.recorded.bisection import apart, first_parting, module_calls, paired
from ..probes.recorded.divergence import record
from ..probes.recorded.operations import narrow
from ..state import isolated, seed_everything
from ..storage.stored import StoredError, read_state, read_tree
from ..subject.building import wrapped_tensor
from ..subject.errors import SubjectError
from ..text.printable import message_of
from ..verdicts import inconclusive, passed
from .batching import EXACT, ROUNDING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..batches import Batch
    from ..findings import Finding
    from ..probes.recorded.bisection import ModuleCall
    from ..subject import Subject


def reference_match(subject: Subject) -> Iterator[Finding]:
    """Load the model's weights into the reference, run both in eval mode and compare, submodule by submodule.

    The submodule that is named was given the same in both versions and gave something else, while
    all that it calls itself agrees. Submodules are matched by their names.
    """
    for promise in subject.contract.promised("Matches"):
        assert isinstance(promise, promises.Matches)
        yield _compare(subject, promise)


def _compare(subject: Subject, promise: promises.Matches) -> Finding:
    with isolated():
        seed_everything(subject.seed)
        other = promise.reference
        other = copy.deepcopy(other) if isinstance(other, nn.Module) else other()
    if not isinstance(other, nn.Module):
        return inconclusive(
            f"the reference is not a module: its factory returned {type(other).__name__}",
            code="no-reference",
        )
    if (wrapping := wrapped_tensor(subject.model)) is not None:
        return inconclusive(f"{wrapping} is not loaded into the reference", code="no-reference")
    state = {name: value.detach().clone() for name, value in subject.model.state_dict().items()}
    state = state if promise.rename is None else promise.rename(state)
    unlike = explain.unlike(subject, state, dict(other.state_dict()))
    if unlike is not None:
        return unlike
    subject.convert(other)
    other.load_state_dict(state)
    try:
        with subject.in_double() as model:
            subject.convert(other, torch.float64)
            ours, theirs = (_calls(subject, one, torch.float64) for one in (model, other))
            allowed = EXACT
    except SubjectError:
        subject.convert(other, next(iter(subject.model.parameters()), torch.zeros(1)).dtype)
        other.load_state_dict(state)
        with subject.pristine() as model:
            ours, theirs = (_calls(subject, one, None) for one in (model, other))
            allowed = ROUNDING
    gap = apart(ours[-1].gave, theirs[-1].gave)
    if allowed == EXACT < gap <= ROUNDING and _rounds(subject, other):
        allowed = ROUNDING
    if gap <= allowed:
        return passed(
            f"{len(ours[-1].gave)} outputs equal those of {type(other).__name__} with the same "
            "weights"
        )
    pairs = paired(ours, theirs)
    return explain.differs(subject, other, pairs, first_parting(pairs, allowed), allowed)


def _rounds(subject: Subject, other: nn.Module) -> bool:
    """Say whether one of two versions in float64 computes in a narrower dtype in between, and rounds to that."""
    batch = subject.batch()
    if explain.computes_narrow(subject, batch):
        return True
    wide = batch.to(dtype=torch.float64).clone()
    with torch.no_grad():
        return narrow(record(lambda: subject.call(other, wide), other))


def _calls(subject: Subject, model: nn.Module, dtype: torch.dtype | None) -> tuple[ModuleCall, ...]:
    batch = subject.batch()
    batch = (batch if dtype is None else batch.to(dtype=dtype)).clone()

    def run() -> Any:
        seed_everything(subject.seed)
        return subject.call(model, batch)

    model.eval()
    with torch.no_grad():
        return module_calls(run, model)


_WIDER = 64  # times the rounding of the model's own precision: other processors and libraries


def old_checkpoints(subject: Subject) -> Iterator[Finding]:
    """Load each checkpoint with ``strict=True``, run the model in evaluation mode, and compare with what it gave.

    The recorded output may differ from that of a run in float64 by 64 times what the model's own precision
    differs from it here.
    """
    for promise in subject.contract.promised("Loads"):
        assert isinstance(promise, promises.Loads)
        try:
            yield _checked(subject, promise)
        except StoredError as error:
            yield explain.old_checkpoint_unreadable(subject, promise, str(error))


def _folder(subject: Subject) -> Path:
    """Return the folder from which the paths of a contract count: that of the file that declares it."""
    place = subject.contract.location
    return Path.cwd() if place is None else Path(place.file).parent


def _checked(subject: Subject, promise: promises.Loads) -> Finding:
    folder = _folder(subject)
    state = read_state(promise.checkpoint, promise.key, folder)

    def load(model: nn.Module) -> None:
        model.load_state_dict({k: _copy(v) for k, v in state.items()}, strict=True)

    with subject.pristine(steps=True) as model, torch.no_grad():
        try:
            load(model)
        except Exception as error:  # a model's own hooks may raise anything
            return explain.old_checkpoint_not_loaded(subject, promise, state, message_of(error))
    if promise.output is None:
        return passed(f"{promise.shown} loads strictly: {len(state)} entries")
    wanted = trees.tensors(read_tree(promise.output, folder))
    batch = subject.batch()
    if promise.inputs is not None:
        args, kwargs = split_inputs(read_tree(promise.inputs, folder))
        batch = subject.place(replace(batch, args=args, kwargs=kwargs, origin="real"))
    own, wide = _outputs(subject, batch, load)
    if list(wanted) != list(own):
        return explain.old_checkpoint_differs(
            subject, promise, math.inf, 0.0, (list(wanted), list(own))
        )
    for path, then in wanted.items():
        shapes = (list(shape_of(then)), list(shape_of(own[path])))
        if shapes[0] != shapes[1]:
            return explain.old_checkpoint_differs(subject, promise, math.inf, 0.0, shapes)
    if not wanted:
        return inconclusive(f"the output of {promise.shown} holds no tensor", code="no-output")
    epsilon = max(_epsilon(tensor) for tensor in (*wanted.values(), *own.values()))
    rounding = max((_gap(own[p], wide[p]) for p in wide), default=0.0)
    reference, allowed = wide or own, _WIDER * max(rounding, epsilon)
    gap = max(_gap(then, reference[path]) for path, then in wanted.items())
    if not gap <= allowed:
        return explain.old_checkpoint_differs(subject, promise, gap, allowed, None)
    return passed(
        f"{promise.shown} loads strictly, and gives what it gave to {gap:.1e} ({allowed:.1e} is rounding)"
    )


def _outputs(
    subject: Subject, batch: Batch, load: Any
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Return the outputs in the model's own precision, and in float64 where it runs in that."""
    found = []
    for double in (False, True):
        way = Way(double=double)
        try:
            with prepared(subject, load, way, subject.seed) as model, torch.no_grad():
                output = subject.call(model, batch_for(batch, way))
                found.append({p: trees.dense(t).cpu() for p, t in trees.tensors(output).items()})
        except SubjectError:
            if not double:
                raise
            found.append({})
    return found[0], found[1]


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


def _gap(one: torch.Tensor, two: torch.Tensor) -> float:
    first, second = trees.dense(one).cpu(), trees.dense(two).cpu()
    if not (first.is_floating_point() or first.is_complex()):
        return 0.0 if torch.equal(first, second.to(first.dtype)) else math.inf
    scale = max(trees.scale(first), trees.scale(second))
    distance = trees.worst(first.double(), second.double())
    return distance / scale if scale else distance


def _epsilon(tensor: torch.Tensor) -> float:
    floating = tensor.is_floating_point() or tensor.is_complex()
    return torch.finfo(tensor.dtype).eps if floating else 0.0
