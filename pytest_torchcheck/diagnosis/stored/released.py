"""Why a checkpoint of a released version is no longer good."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from ... import sources
from ...change import snapshot
from ...change.state import compare_state
from ...findings import Culprit, Finding
from ...verdicts import violated

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...promises import Loads
    from ...subject import Subject

_MOST = 4


def old_checkpoint_unreadable(subject: Subject, promise: Loads, told: str) -> Finding:
    """Explain a file that cannot be used."""
    return violated(
        "old-checkpoint-unreadable",
        f"the checkpoint {promise.shown} cannot be used: {told}",
        culprits=[Culprit("promise", "Loads")],
        location=subject.contract.location,
        observed=told,
        cause="the path or key is another one, or the file was not fetched or not written by torch.save",
        because="it was opened from the folder of the file that declares the contract",
        fix="give Loads the path of the released file, and key= where it holds more than the state dict",
    )


def old_checkpoint_not_loaded(
    subject: Subject, promise: Loads, state: Mapping[str, Any], error: str
) -> Finding:
    """Explain a checkpoint that does not load strictly by the entries that do not fit."""
    old = {
        name: {
            "shape": list(value.shape), "dtype": str(value.dtype).removeprefix("torch."),
            "digest": f"of {name}",
        }
        for name, value in state.items()
        if isinstance(value, torch.Tensor)
    }  # fmt: skip
    change = compare_state(old, snapshot.state_of(subject.model))
    lines = change.lines() or [error.strip().splitlines()[-1].strip()]
    names = [*change.renames.values(), *change.added, *change.reshaped, *change.removed]
    place = next(filter(None, (sources.of_parameter(subject.model, n) for n in names)), None)
    more = f" and {len(lines) - _MOST} more" if len(lines) > _MOST else ""
    fix = "map the old entries in _load_from_state_dict, or give the layers their old names and shapes"
    if change.complete:
        fix = f"map the old names in load_state_dict: {dict(list(change.renames.items())[:_MOST])}"
    return violated(
        "old-checkpoint-not-loaded",
        f"the checkpoint {promise.shown} does not load strictly: {lines[0]}",
        culprits=[Culprit("parameter", n, location=place) for n in dict.fromkeys(names[:_MOST])],
        location=place,
        observed=f"{'; '.join(lines[:_MOST])}{more}",
        cause="the layers were renamed, added, removed or resized since it was written",
        because=f"load_state_dict raised; {len(old) - len(change.removed)} of {len(old)} entries are still there",
        fix=fix,
        evidence={"torch said": error, "renames": dict(change.renames)},
    )


def old_checkpoint_differs(
    subject: Subject,
    promise: Loads,
    gap: float,
    allowed: float,
    unlike: tuple[list[Any], list[Any]] | None,
) -> Finding:
    """Explain an output that is not the recorded one."""
    observed = f"it differs by {gap:.2g} of its largest magnitude; rounding explains {allowed:.1g}"
    if unlike is not None:
        observed = f"recorded is {unlike[0]}, the model gives {unlike[1]}"
    elif not math.isfinite(gap):
        observed = "whole numbers differ, or one output is not finite where the other is"
    return violated(
        "old-checkpoint-differs",
        f"with the checkpoint {promise.shown} the model no longer gives what it gave",
        culprits=[Culprit("output", "output")],
        location=sources.of_own_class(subject.model),
        observed=observed,
        cause="the forward computes something else than the version that wrote the checkpoint",
        because="the checkpoint loads strictly, so that the weights are the same",
        fix="restore the old computation, or make the new one a choice that old checkpoints do not take",
        evidence={"largest relative difference": gap, "allowed": allowed},
    )
