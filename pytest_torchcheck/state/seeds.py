"""Seeds of every generator that a model may draw from; runs after which all of them are as before."""

from __future__ import annotations

import contextlib
import random
import sys
from typing import TYPE_CHECKING, Any

import torch
import torch.utils.deterministic

from ..objects.held import random_state, set_random_state
from .devices import device_loss_told
from .scripts import scripts_answer
from .settings import settings_kept

if TYPE_CHECKING:
    from collections.abc import Iterator

_own: list[tuple[int, Any, Any]] = []
"""Generators that the model of the run holds: the run's seed, the generator, its state then."""


def seed_torch(seed: int) -> None:
    """Do what ``torch.manual_seed`` does, but for its note of a seed for each kind of device that is not there."""
    # 6 us instead of 400, and no list of notes that grows for ever
    torch.default_generator.manual_seed(seed)
    if torch.accelerator.is_available():
        with device_loss_told():
            torch.manual_seed(seed)


def random_states() -> list[torch.Tensor]:
    """Return the states of torch's generators: of the CPU, and of every GPU once CUDA has started."""
    states = [torch.get_rng_state()]
    if torch.cuda.is_initialized():
        with device_loss_told():
            states += torch.cuda.get_rng_state_all()
    return states


def has_drawn(since: list[torch.Tensor]) -> bool:
    """Say whether anything has drawn from torch's generators since their states were taken."""
    return not all(map(torch.equal, since, random_states()))


def seed_process(seed: int) -> None:
    """Seed the CPU generators of the process: torch, random, and numpy where it is loaded.

    CUDA's is left alone: a seed there would queue a call per read on machines where CUDA sleeps.
    """
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)


def seed_everything(seed: int, *, own: bool = True) -> None:
    """Seed torch on every device, random, numpy where it is loaded, and the model's own generators within a run.

    Args:
        seed: The seed.
        own: Those of the model too; without them a copy of the model has them as they were found.
    """
    seed_torch(seed)
    seed_process(seed)
    for place, (base, generator, state) in enumerate(_own if own else ()):
        set_random_state(generator, state if seed == base else _seeded(generator, seed + place))


@contextlib.contextmanager
def own_generators(seed: int, held: list[tuple[Any, Any]]) -> Iterator[None]:
    """Let the generators that a model holds follow :func:`seed_everything`, as those of the process do.

    Two calls after the same seed draw the same, and one after another seed draws something else.

    Args:
        seed: With this one they begin as they were found.
        held: Each of them, and its state as it was found.
    """
    before = list(_own)
    _own[:] = [(seed, generator, state) for generator, state in held]
    try:
        yield
    finally:
        _own[:] = before


def _seeded(generator: Any, seed: int) -> Any:
    """Return the state that a new generator of the same kind has."""
    if isinstance(generator, torch.Generator):
        return torch.Generator(generator.device).manual_seed(seed).get_state()
    if isinstance(generator, random.Random):
        return random.Random(seed).getstate()
    if hasattr(generator, "bit_generator"):
        return type(generator.bit_generator)(seed).state
    return random_state(type(generator)(seed % 2**32))


_RECOMPILED = 128  # times that a compiled model may be compiled anew
_BETWEEN = 2**31 + 271828  # a seed that no run has
_isolated = 0  # blocks that are open
_kept = 0  # those that put random states back


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
    with settings_kept(), _reseeded() if seeds and _kept else randomness_kept(), outermost:
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
        torch.set_grad_enabled(True)  # settings_kept() puts it back
        stack.enter_context(scripts_answer())
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
    global _kept
    rng, cuda = torch.get_rng_state(), None
    if torch.cuda.is_initialized():
        with device_loss_told():
            cuda = torch.cuda.get_rng_state_all()
    python = random.getstate()
    numpy = sys.modules.get("numpy")
    numpy_state = numpy.random.get_state() if numpy is not None else None
    _kept += 1
    try:
        yield
    finally:
        _kept -= 1
        torch.set_rng_state(rng)
        if cuda is not None:
            with device_loss_told():
                torch.cuda.set_rng_state_all(cuda)
        random.setstate(python)
        if numpy is not None and numpy_state is not None:
            numpy.random.set_state(numpy_state)
