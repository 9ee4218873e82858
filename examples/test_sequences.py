"""An LSTM on sequences of different lengths: digits read row by row, cut off at random, and padded.

Run with ``pytest --torchcheck examples``.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

from pytest_torchcheck import Floats, Ints, Labels, contract


class RowReader(nn.Module):
    """Reads the rows of an image with an LSTM and classifies from the last real one."""

    def __init__(self, width: int = 8, hidden: int = 48, classes: int = 10) -> None:
        super().__init__()
        self.hidden = hidden
        self.lstm = nn.LSTM(width, hidden, batch_first=True)
        self.head = nn.Linear(hidden, classes)

    def forward(self, rows: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        states, _ = self.lstm(rows)
        last = (lengths - 1).clamp(min=0).view(-1, 1, 1).expand(-1, 1, self.hidden)
        return self.head(states.gather(1, last).squeeze(1))


def ragged_batch(seed: int) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Eight digits of 5 to 8 rows, padded with zeros."""
    images, labels = load_digits(return_X_y=True)
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(len(labels), generator=generator)[:8]
    rows = torch.tensor(images, dtype=torch.float32)[chosen].view(8, 8, 8) / 16.0
    lengths = torch.randint(5, 9, (8,), generator=generator)
    rows = rows * (torch.arange(8)[None] < lengths[:, None])[:, :, None]
    return {"rows": rows, "lengths": lengths}, torch.tensor(labels)[chosen]


@contract(
    inputs={"rows": Floats("B 8 8", low=0.0, high=1.0), "lengths": Ints("B", low=1, high=9)},
    sizes={"B": (1, 16)},
    batch=ragged_batch,
    targets=Labels("B", classes=10),
    output="B 10",
    loss=F.cross_entropy,
    optimizer=lambda model: torch.optim.Adam(model.parameters(), lr=1e-2),
)
def row_reader() -> nn.Module:
    return RowReader()
