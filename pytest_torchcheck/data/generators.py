"""Random generators of any library: what they are, and their states."""

from __future__ import annotations

import pickle
import random
import sys
from typing import Any

import torch


def is_generator(value: Any) -> bool:
    """Say whether a value is a random generator with a state of its own."""
    if isinstance(value, torch.Generator):
        return True
    if isinstance(value, random.Random):
        return not isinstance(value, random.SystemRandom)
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(
        value, numpy.random.Generator | numpy.random.RandomState
    )


def generator_state(generator: Any) -> Any:
    """Return a generator's state, which :func:`set_generator_state` takes back."""
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, random.Random):
        return generator.getstate()
    if hasattr(generator, "bit_generator"):
        return generator.bit_generator.state
    return generator.get_state()


def set_generator_state(generator: Any, state: Any) -> None:
    """Put a generator's state back."""
    if isinstance(generator, torch.Generator):
        generator.set_state(state)
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    elif hasattr(generator, "bit_generator"):
        generator.bit_generator.state = state
    else:
        generator.set_state(state)


def fingerprint(generator: Any) -> bytes:
    """Return bytes that are equal exactly when two generators are in the same state."""
    state = generator_state(generator)
    return bytes(state.tolist()) if isinstance(state, torch.Tensor) else pickle.dumps(state)


def global_generators() -> dict[str, Any]:
    """Return the generators of the process by the name users know: torch, random, np.random."""
    found: dict[str, Any] = {"torch": torch.default_generator, "random": random._inst}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        found["np.random"] = numpy.random.mtrand._rand
    return found
