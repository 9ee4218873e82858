"""Run something so that random states and global settings are as before afterwards."""

from __future__ import annotations

import contextlib
import random
import sys
from typing import TYPE_CHECKING

import torch
import torch.utils.deterministic

if TYPE_CHECKING:
    from collections.abc import Iterator
from .devices import device_loss_told
from .seeds import seed_everything
from .settings import settings_kept

_RECOMPILED = 128  # times that a compiled model may be compiled anew
_BETWEEN = 2**31 + 271828  # a seed that no run has
_isolated = 0  # blocks that are open


@contextlib.contextmanager
def isolated(*, seeds: bool = False) -> Iterator[None]:
    """Put back, on every way out, all that a run may change of the process.

    Random states of torch (CPU and every initialised CUDA device), numpy and random; default dtype and
    device; grad mode; deterministic, TF32, cuDNN and anomaly flags; thread count; warning filters.

    The outermost block also switches off what the caller may have on: ``no_grad``,
        ``inference_mode``, autocast.

    Args:
        seeds: Every run inside seeds first. Then the random states are left to the block around
            this one, if there is one (to take and put them back costs more than a small model's
            step), and are no run's afterwards: what draws without a seed must not draw what a run
            drew.
    """
    global _isolated
    outermost = contextlib.nullcontext() if _isolated else _undisturbed()
    with settings_kept(), _reseeded() if seeds and _isolated else randomness_kept(), outermost:
        _isolated += 1
        try:
            yield
        finally:
            _isolated -= 1


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Record gradients and compute in the tensors' own dtypes, whatever block the caller is in."""
    with contextlib.ExitStack() as stack:
        if torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        if (compiler := sys.modules.get("torch._dynamo")) is not None:
            # checks run one model in more modes, dtypes and layouts than a program does
            most = max(_RECOMPILED, compiler.config.recompile_limit)
            stack.enter_context(compiler.config.patch(recompile_limit=most))
        yield


@contextlib.contextmanager
def _reseeded() -> Iterator[None]:
    try:
        yield
    finally:
        seed_everything(_BETWEEN)


@contextlib.contextmanager
def randomness_kept() -> Iterator[None]:
    """Put back the random states of torch, numpy and random on every way out."""
    rng, cuda = torch.get_rng_state(), None
    if torch.cuda.is_initialized():
        with device_loss_told():
            cuda = torch.cuda.get_rng_state_all()
    python = random.getstate()
    numpy = sys.modules.get("numpy")
    numpy_state = numpy.random.get_state() if numpy is not None else None
    try:
        yield
    finally:
        torch.set_rng_state(rng)
        if cuda is not None:
            with device_loss_told():
                torch.cuda.set_rng_state_all(cuda)
        random.setstate(python)
        if numpy is not None and numpy_state is not None:
            numpy.random.set_state(numpy_state)
