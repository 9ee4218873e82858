"""Seeds of every generator that a model may draw from."""

from __future__ import annotations

import random
import sys

import torch
import torch.utils.deterministic


def seed_torch(seed: int) -> None:
    """Do what ``torch.manual_seed`` does, but for its note of a seed for each kind of device that is not there."""
    if torch.accelerator.is_available():
        torch.manual_seed(seed)
    else:  # 6 us instead of 400, and no list of notes that grows for ever
        torch.default_generator.manual_seed(seed)


def seed_process(seed: int) -> None:
    """Seed the CPU generators of the process: torch, random, and numpy where it is loaded.

    CUDA's is left alone: a seed there would queue a call per read on machines where CUDA sleeps.
    """
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)


def seed_everything(seed: int) -> None:
    """Seed torch on every device, random, and numpy where it is loaded."""
    seed_torch(seed)
    seed_process(seed)
