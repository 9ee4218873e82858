"""A value network whose frames are numbers before they are subtracted."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Ints, Labels, contract

CHECKS = ("gradients-finite",)


class Motion(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(6 * 4, 16)
        self.head = nn.Linear(16, 3)

    def forward(self, frames):
        frames = frames.float()
        motion = frames[:, 1:] - frames[:, :-1]
        return self.head(torch.relu(self.body(motion.flatten(1) / 255)))


@contract(
    inputs=Ints("B 7 4", high=256, dtype="uint8"),
    targets=Labels("B", classes=3),
    loss=F.cross_entropy,
)
def motion():
    return Motion()
