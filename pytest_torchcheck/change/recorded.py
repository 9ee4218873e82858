"""A contract's model beside its record: the weights of the record, the same batch, in float64 and as it is."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from typing import TYPE_CHECKING, Any, Final

import torch

from .. import verdicts
from ..probes.recorded.operations import narrow
from ..subject import Subject
from . import record, report, snapshot
from .judge import Judgement, judge_costs, judge_initial
from .lines import Edits
from .little import kind_of, line_of, little, sketch_of, weights
from .running import Way, run
from .state import compare_state, find_loading
from .traces import ALLOWED, Difference, Verdict, differences, of_noise, trace

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from ..batches import Batch
    from ..findings import Finding
    from .running import Outcome

WIDER: Final = 64
"""Times the recorded rounding that other processors, threads and versions of torch may differ by."""
_SAME_INPUT: Final = 1e-5
"""Relative difference up to which drawn inputs are the recorded ones, drawn by another processor."""
_FREE: Final = 1e-4
"""Allowed where the model cannot run in float64, so that no reference tells its rounding."""


def against_record(subject: Subject, path: Path, name: str, *, writes: bool) -> Iterator[Finding]:
    """Compare a model with its record, or write the record.

    Args:
        subject: The model as it is.
        path: The record's file.
        name: What the contract is called.
        writes: Whether to write the record whatever the file holds.

    Raises:
        SubjectError: The model as it is cannot be built or run.
    """
    shown = os.path.relpath(path)
    try:
        found = None if writes else record.read(path)
        if found is None:
            record.write(path, record.make(subject, name))
            if writes:
                yield verdicts.passed(f"wrote {shown}")
                return
            yield verdicts.inconclusive(
                f"there was no record to compare with; wrote {shown}: look at it and commit it",
                code="record-new",
            )
            return
        made = found["made"]
        seed = int(made["seed"])
        with contextlib.closing(
            Subject(subject.contract, device=str(subject.device), dtype=made["dtype"], seed=seed)
        ) as own:
            yield from _compared(own, found, shown)
    except record.RecordError as error:
        yield _unreadable(str(error), shown)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, KeyError):
            error = ValueError(f"lacks {error}")
        yield _unreadable(f"{shown} is damaged: {error}", shown)
    except OSError as error:
        yield _unreadable(f"{shown} cannot be written: {error.strerror or error}", shown)


def _unreadable(told: str, shown: str) -> Finding:
    return verdicts.violated(
        "record-unreadable",
        told,
        observed=told,
        cause="the file was edited, merged or cut off, or the folder cannot be used",
        because="it was opened where the record of this contract belongs",
        fix=f"restore {shown} from version control, or write it again with --torchcheck-write-record",
    )


def _compared(subject: Subject, then: Mapping[str, Any], shown: str) -> Iterator[Finding]:
    other = _other_inputs(subject.batch(), then["inputs"])
    if other is None:
        yield verdicts.inconclusive(
            f"not compared with {shown}: the contract's batch is no longer the recorded one; write the "
            "record again with --torchcheck-write-record",
            code="record-other-batch",
        )
        return
    found = judge_record(subject, then, exact=other)
    beside = report.Beside(shown=shown, edits=Edits(None), old=None, meant=_meant)
    yield from report.findings(subject, beside, found, declared={})


def _meant(category: str) -> str:
    return "restore it; or, if it is meant, write the record again with --torchcheck-write-record"


def _other_inputs(batch: Batch, then: Mapping[str, Any]) -> bool | None:
    """Return whether a batch is the recorded one bit by bit; None where it is another."""
    leaves = dict(batch.leaves())
    if list(leaves) != list(then):
        return None
    exact = True
    for path, leaf in leaves.items():
        if not isinstance(leaf, torch.Tensor):
            if then[path] != type(leaf).__name__:
                return None
            continue
        same = _same(little(leaf), then[path])
        if same is None:
            return None
        exact = exact and same
    return exact


def _same(now: Any, line: Any) -> bool | None:
    """Return whether a tensor is the recorded one bit by bit; None where it is another."""
    was = sketch_of(line) if isinstance(line, list) else None
    if was is None or was.dtype != now.dtype or was.shape != now.shape:
        return None
    if was.digest == now.digest:
        return True
    return False if was.gap(now) <= _SAME_INPUT else None


def judge_record(subject: Subject, then: Mapping[str, Any], *, exact: bool) -> Judgement:
    """Compare a model with a record.

    Args:
        subject: The model, under the record's seed and dtype.
        then: The record.
        exact: Whether the batch is the recorded one bit by bit.
    """
    entries = {name: _entry(name, text) for name, text in then["state"].items()}
    state = compare_state(entries, snapshot.state_of(subject.model))
    old = weights(then["state"], then["start"], subject.model)
    mapping = subject.contract.changes.get("state")
    tensors = {name: value for name, value in old.items() if value is not None}
    loading = find_loading(subject, tensors, state, mapping if callable(mapping) else None)
    found = Judgement(state=state, loading=loading)
    initial = {
        name: {"shape": entries[name]["shape"], "mean": mean, "std": std, "digest": ""}
        for name, (mean, std) in then["start"].items()
        if name in entries
    }
    judge_initial(found, subject, initial)
    _judge_costs(found, subject, then)
    found.batches = snapshot.batches(subject)
    if loading.load is None:
        found.undecided["outputs"] = "the recorded weights do not fit the model as it is"
        return found
    buffers = {name: line_of(little(b)) for name, b in subject.model.named_buffers()}
    exact = exact and all(buffers.get(n, line) == line for n, line in then["buffers"].items())
    found.verdicts.append(_evaluation(subject, found, then, exact=exact))
    if then["training"] is not None:
        found.verdicts.append(_training(subject, found, then, exact=exact))
    for index, batch in enumerate(found.batches[1:], 1):
        drawn = then["drawn"].get(str(index))
        same = None if drawn is None else _other_inputs(batch, drawn["inputs"])
        if same is None:
            found.notes[f"drawn batch {index} is not the recorded one, and was not compared"] = None
        elif not drawn["error"]:
            way = Way(batch=index, double=then["rounding"] is not None)
            here = run(subject, batch, loading.load, way, seed=subject.seed, describe=little)
            was = record.outcome_of(drawn)
            found.verdicts.append(
                _standing(subject, found, way, was, here, then, exact=exact and same)
            )
    return found


def _judge_costs(found: Judgement, subject: Subject, then: Mapping[str, Any]) -> None:
    """Compare costs, where another version of torch measured them the parameters alone."""
    now, error, known = snapshot.costs(subject), "", {**then["costs"]}
    growth = then["growth"]
    if then["made"]["torch"] != record.surroundings(subject)["torch"]:
        found.notes[f"torch {then['made']['torch']} measured the recorded FLOPs and bytes"] = None
        now = {**now, "error": ""}
        known, growth = {"parameters": known["parameters"]}, {}
    elif "peak bytes" not in known:
        error = "not in the record"
    judge_costs(found, now, {"counts": known, "growth": growth, "lines": (), "error": error})


def _entry(name: str, text: str) -> dict[str, Any]:
    kind, _, _ = text.partition(" = ")
    if " " not in kind:
        return {"shape": None, "dtype": kind, "digest": "", "line": None}
    dtype, shape = kind_of(kind)
    return {"shape": list(shape), "dtype": dtype, "digest": f"of {name}", "line": None}


def _evaluation(
    subject: Subject, found: Judgement, then: Mapping[str, Any], *, exact: bool
) -> Verdict:
    """Compare evaluation mode in float64, then in the model's own precision on a device of the same kind."""
    batch, load = found.batches[0], found.loading.load
    assert load is not None
    was, way = record.outcome_of(then["evaluation"]), Way(double=then["rounding"] is not None)
    now = record.observe(subject, batch, load, way)
    verdict = _standing(subject, found, way, was, now, then, exact=exact)
    if verdict.standing == "changed" or not way.double:
        return verdict
    own = record.observe(subject, batch, load, Way())
    left = _recast(then["evaluation"]["dtypes"], own)
    if then["made"]["device"] == subject.device.type:
        left += _own_differences(was, own, _allowed(subject, then, exact=False))
    return Verdict(way=Way(), standing="changed", differences=left) if left else verdict


def _training(
    subject: Subject, found: Judgement, then: Mapping[str, Any], *, exact: bool
) -> Verdict:
    """Compare training mode: what random numbers decide by its distance from evaluation mode alone."""
    batch, load = found.batches[0], found.loading.load
    assert load is not None
    was = record.outcome_of(then["training"])
    way = Way(train=True, double=then["rounding"] is not None)
    now, spread = record.steady(subject, batch, load, way)
    if not now.error and (left := of_noise(then["training"]["noise"], spread)):
        return Verdict(way=way, standing="changed", differences=left)
    steady = set(was.outputs) & set(now.outputs)
    was, now = (
        dataclasses.replace(one, outputs={p: one.outputs[p] for p in steady}) for one in (was, now)
    )
    return _standing(subject, found, way, was, now, then, exact=exact)


def _allowed(subject: Subject, then: Mapping[str, Any], *, exact: bool) -> float:
    """Return the relative difference that is rounding, in a run on the recorded inputs or on nearly these."""
    if then["rounding"] is None:
        return _FREE
    return ALLOWED if exact else WIDER * max(float(then["rounding"]), _epsilon(subject))


def _standing(
    subject: Subject,
    found: Judgement,
    way: Way,
    was: Outcome,
    now: Outcome,
    then: Mapping[str, Any],
    *,
    exact: bool,
) -> Verdict:
    """Compare a run with the recorded one; one that computes in a narrower dtype inside has that dtype's rounding."""
    batch, load, renames = found.batches[way.batch], found.loading.load, found.state.renames
    assert load is not None
    left = differences(was, now, renames, _allowed(subject, then, exact=exact))
    if left and way.double and narrow(trace(subject, batch, load, way, seed=subject.seed)):
        left = differences(was, now, renames, _allowed(subject, then, exact=False))
    if left:
        return Verdict(way=way, standing="changed", differences=left)
    left = differences(was, now, renames)
    return Verdict(way=way, standing="rounding" if left else "bits", differences=left)


def _recast(then: Mapping[str, str], own: Outcome) -> tuple[Difference, ...]:
    """Return the outputs that have another dtype in the model's own precision."""
    return tuple(
        Difference(
            kind="structure", name=path, gap=float("inf"), fact=f"is {one.dtype}, was {then[path]}"
        )
        for path, one in own.outputs.items()
        if then.get(path, one.dtype) != one.dtype
    )


def _own_differences(was: Outcome, own: Outcome, allowed: float) -> tuple[Difference, ...]:
    """Compare outputs and loss in the model's own precision with the reference in float64.

    Gradients are left out: those that are zero but for rounding have no precision.
    """
    narrow = dataclasses.replace(
        own, gradients={}, buffers={}, updates={},
        outputs={p: record.as_wide(s, was.outputs.get(p, s)) for p, s in own.outputs.items()},
        loss=None if own.loss is None else record.as_wide(own.loss, was.loss or own.loss),
    )  # fmt: skip
    return differences(was, narrow, {}, allowed)


def _epsilon(subject: Subject) -> float:
    dtypes = {p.dtype for p in subject.model.parameters() if p.is_floating_point()}
    return max((torch.finfo(dtype).eps for dtype in dtypes), default=torch.finfo(torch.float32).eps)
