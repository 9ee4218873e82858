"""What the default catalogue costs: in plain training steps, and beside torchtest2's check_model.

``tox -e bench`` prints the ratios, each taken within one run.
"""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from timing import median
from torch import nn

from pytest_torchcheck import Contract
from pytest_torchcheck.catalogue import catalogue


def lean(contract: Contract) -> list[str]:
    """Every check that applies, but for overfit."""
    return [n for n, c in catalogue().items() if n != "overfit" and c.missing(contract) is None]


class Encoder(nn.Module):
    """An embedding, some transformer layers and a head."""

    def __init__(
        self, vocabulary: int, width: int, layers: int, heads: int, hidden: int, classes: int = 10
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(
            [
                nn.TransformerEncoderLayer(width, heads, hidden, dropout=0.1, batch_first=True)
                for _ in range(layers)
            ]
        )
        self.head = nn.Linear(width, classes)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return logits, shape (batch, classes)."""
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


def models() -> dict[str, tuple[nn.Module, torch.Tensor, torch.Tensor]]:
    """The three models on which the peers were measured, with a batch each."""
    torch.manual_seed(0)
    y = torch.randint(0, 10, (8,))
    mlp = nn.Sequential(
        nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)
    )
    conv = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
    )  # fmt: skip
    return {
        "mlp 8x32": (mlp, torch.randn(8, 32), y),
        "conv+bn 8x3x32x32": (conv, torch.randn(8, 3, 32, 32), y),
        "encoder d=128 T=64 B=8": (Encoder(100, 128, 2, 4, 256), torch.randint(0, 100, (8, 64)), y),
    }


@pytest.mark.parametrize("name", list(models()))
def test_beside_torchtest2(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Print the time of the default catalogue and of torchtest2's battery, on one model."""
    peer = pytest.importorskip("torchtest2")
    model, x, y = models()[name]
    torch.set_num_threads(1)
    contract = Contract(model=model, batch=((x,), y), loss=F.cross_entropy)
    names = lean(contract)
    ours = median(lambda: contract.check(names))
    theirs = median(lambda: peer.check_model(model, x, y, loss_fn=F.cross_entropy))
    with capsys.disabled():
        print(
            f"\n{name}: {len(names)} checks without overfit {ours:.3f} s, torchtest2 {theirs:.3f} s, ratio {ours / theirs:.2f}"
        )


def test_in_plain_steps(capsys: pytest.CaptureFixture[str]) -> None:
    """Print how many plain training steps the default catalogue costs on a model of 38 million parameters."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Encoder(8000, 512, 11, 8, 2048, classes=100)
    ids, y = torch.randint(0, 8000, (8, 32)), torch.randint(0, 100, (8,))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(ids), y).backward()
        optimizer.step()

    plain = median(step)
    contract = Contract(
        model=model,
        batch=((ids,), y),
        loss=F.cross_entropy,
        optimizer=lambda m: torch.optim.AdamW(m.parameters(), lr=1e-3),
    )
    start = time.process_time()
    report: Any = contract.check(lean(contract))
    ours = time.process_time() - start
    size = sum(p.numel() for p in model.parameters()) / 1e6
    with capsys.disabled():
        print(
            f"\n{size:.1f} M parameters: {len(report.findings)} findings in {ours:.1f} s = {ours / plain:.1f} plain steps of {plain:.2f} s"
        )
