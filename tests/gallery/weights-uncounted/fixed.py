"""Windows over a long series, weighted towards their middle; the divisor counts windows."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ("backward", "weighted-means")
WINDOW, STRIDE = 6, 2


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv1d(4, 16, 1), nn.ReLU(), nn.Conv1d(16, 3, 1))
        self.register_buffer("weights", torch.hann_window(WINDOW + 2)[1:-1])

    def forward(self, x):
        if self.training:
            return self.net(x)
        total = x.new_zeros(len(x), 3, x.shape[2])
        count = x.new_zeros(x.shape[2])
        for start in range(0, x.shape[2] - WINDOW + 1, STRIDE):
            window = slice(start, start + WINDOW)
            total[:, :, window] += self.weights * self.net(x[:, :, window])
            count[window] += self.weights
        return total / count


@contract(
    inputs="B 4 12",
    targets=Labels("B 12", classes=3),
    loss=F.cross_entropy,
)
def net():
    return Net()
