"""A training step of one's own, run under watch: clipping, a warm-up schedule, gradient order.

Run with ``pytest --torchcheck examples``.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

from pytest_torchcheck import Labels, contract, promises

WARM_UP = 5


def make_optimizer(model: nn.Module) -> tuple[torch.optim.Optimizer, Any]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / WARM_UP)
    )
    return optimizer, schedule


def train_step(
    model: nn.Module, optimizers: Any, inputs: Any, targets: torch.Tensor
) -> torch.Tensor:
    optimizer, schedule = optimizers
    model.train()
    optimizer.zero_grad()
    loss = F.cross_entropy(model(*inputs), targets, label_smoothing=0.05)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
    optimizer.step()
    schedule.step()
    return loss.detach()


def digits(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    images, labels = load_digits(return_X_y=True)
    chosen = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))[:16]
    return torch.tensor(images, dtype=torch.float32)[chosen] / 16.0, torch.tensor(labels)[chosen]


@contract(
    inputs="B 64",
    sizes={"B": (1, 16)},
    batch=digits,
    targets=Labels("B", classes=10),
    loss=lambda logits, targets: F.cross_entropy(logits, targets, label_smoothing=0.05),
    optimizer=make_optimizer,
    train_step=train_step,
    promises=(
        promises.ClipsGradients(1.0),
        promises.Schedule(lambda step: 1e-2 * min(1.0, (step + 1) / WARM_UP)),
    ),
)
def classifier() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 48), nn.LayerNorm(48), nn.GELU(), nn.Linear(48, 10))
