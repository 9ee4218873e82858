"""Convolution and norm are folded once for evaluation, and the folded kernel survives a load."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, TensorSpec, contract

CHECKS = ("state-dict-roundtrip",)


class Folded(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 3)
        self.kernel = None

    def forget(self):
        self.kernel = None

    def train(self, mode=True):
        self.forget()
        return super().train(mode)

    def features(self, x):
        if self.training:
            return self.norm(self.conv(x))
        scale = self.norm.weight / (self.norm.running_var + self.norm.eps).sqrt()
        if self.kernel is None:
            self.kernel = (self.conv.weight * scale[:, None, None, None]).detach()
        bias = (self.conv.bias - self.norm.running_mean) * scale + self.norm.bias
        return F.conv2d(x, self.kernel, bias, padding=1)

    def forward(self, x):
        return self.head(self.features(x).relu().mean((2, 3)))


@contract(inputs=TensorSpec("B 3 8 8"), targets=Labels("B", classes=3), loss=F.cross_entropy)
def folded():
    torch.manual_seed(0)
    return Folded()
