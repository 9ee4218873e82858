"""A checkpoint that holds an object of a class of its own."""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ('state-dict-roundtrip',)


@dataclass
class Settings:
    temperature: float


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.settings = Settings(0.5)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(x) / self.settings.temperature

    def get_extra_state(self):
        return {"temperature": self.settings.temperature}

    def set_extra_state(self, state):
        self.settings = Settings(state["temperature"])


@contract(inputs="B 8", targets=Labels("B", classes=3), loss=F.cross_entropy)
def net():
    return Net()
