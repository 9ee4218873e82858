"""Six healthy small models, held to the whole catalogue from many seeds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tests.soundness import models

if TYPE_CHECKING:
    from pytest_torchcheck import Finding

HEALTHY = {
    "mlp": models.mlp,
    "conv-pool": models.conv_global_pool,
    "lstm": models.lstm,
    "transformer": models.transformer_encoder,
    "vae": models.vae,
    "gan": models.gan_pair,
}


def alarms(name: str, seed: int) -> tuple[list[Finding], int]:
    """Check one model from one seed: data, weights, drawn sizes and steps all follow it.

    Returns:
        What was violated or failed in itself, and how many checks passed.
    """
    torch.manual_seed(seed)
    report = HEALTHY[name]().check(seed=seed, devices=["cpu"])
    wrong = [f for f in report.findings if f.status == "violated" or f.code == "internal-error"]
    return wrong, sum(f.status == "passed" for f in report.findings)
