"""A regression whose loss leaves out what was not measured, by flags that are integers: they are taken for places."""

import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Ints, TensorSpec, contract


def loss(output, targets):
    value, measured = targets
    errors = F.smooth_l1_loss(output, value, reduction="none")
    return errors[measured].sum() / len(errors)


@contract(
    inputs="B 6",
    targets=(TensorSpec("B"), Ints("B", low=0, high=2)),
    sizes={"B": (1, 16)},
    loss=loss,
)
def regression():
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1), nn.Flatten(0))
