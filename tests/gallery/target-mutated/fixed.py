"""A detector's loss that scales boxes to pixels in a new tensor."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import contract

CHECKS = ('backward', 'target-alignment', 'loss-arguments')


def loss(output, targets):
    boxes = targets['boxes']
    boxes = boxes * 32
    return F.smooth_l1_loss(output, boxes)


def batch(seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(6, 8, generator=generator), {'boxes': torch.rand(6, 4, generator=generator)}


@contract(batch=batch, loss=loss)
def net():
    return nn.Linear(8, 4)
