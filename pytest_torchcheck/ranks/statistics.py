"""Batch normalisation whose statistics are gathered over ranks, held to one process with the whole batch."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

from ..objects import trees
from .comparing import compare, gradients_of, sample_mean
from .rank import plain

if TYPE_CHECKING:
    from .rank import Rank


def synchronised(model: nn.Module) -> list[str]:
    """Return the names of modules that gather their statistics over ranks."""
    return [name for name, m in model.named_modules() if isinstance(m, nn.SyncBatchNorm)]


def runs_on(model: nn.Module, device: str) -> bool:
    """Say whether all of them can run: torch's own one needs a GPU."""
    return device == "cuda" or all(
        type(m).forward is not nn.SyncBatchNorm.forward
        for m in model.modules()
        if isinstance(m, nn.SyncBatchNorm)
    )


def applies(rank: Rank) -> bool:
    """Say whether this program has something to measure here."""
    model = rank.build(synchronised=True)
    return bool(synchronised(model)) and runs_on(model, rank.program.device)


def stage(rank: Rank) -> None:
    """One training step on the shards, statistics live; rank 0 does it alone on the whole batch.

    Gradients are those of a mean over samples, so that the ranks' average is the whole batch's.
    """
    program = rank.program

    def once(model: nn.Module, called: nn.Module, batch: Any) -> Any:
        moved = rank.batch(batch)
        output = called(*moved.args, **moved.kwargs)
        sample_mean(output, program.seed).backward()
        return output

    model = _without_dropout(rank.build(synchronised=True))
    alone = plain(copy.deepcopy(model))
    if (
        program.device == "cpu"
    ):  # the wrapper refuses these modules on a CPU, whatever their forward does
        output = once(model, model, program.shards[rank.rank])
        _average(model, rank.world)
    else:
        output = once(model, rank.wrap(model, unused=True), program.shards[rank.rank])
    found: dict[str, Any] = {"modules": synchronised(model)}
    if rank.rank == 0:
        whole = once(alone, alone, program.full)
        gradients, expected = gradients_of(model), gradients_of(alone)
        found["error"], found["ratio"], _ = compare(gradients, expected)
        found["output"] = _first_rows(output, whole)
        found["buffers"] = {
            name: _relative(buffer, dict(alone.named_buffers())[name])
            for name, buffer in model.named_buffers()
            if buffer.is_floating_point()
        }
    rank.leave(**found)


def _average(model: nn.Module, world: int) -> None:
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= world


def _without_dropout(model: nn.Module) -> nn.Module:
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
    return model


def _relative(a: torch.Tensor, b: torch.Tensor) -> float:
    return trees.apart(a.detach(), b.detach(), zero=1.0)


def _first_rows(part: Any, whole: Any) -> float:
    """Return how far rank 0's outputs are from the first rows of the whole batch's; NaN where unknown."""
    worst = float("nan")
    expected = trees.floats(whole)
    for path, tensor in trees.floats(part).items():
        other = expected.get(path)
        if other is None or tensor.dim() == 0 or len(tensor) > len(other):
            continue
        gap = _relative(tensor, other[: len(tensor)])
        worst = gap if worst != worst else max(worst, gap)
    return worst
