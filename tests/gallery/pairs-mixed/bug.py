"""A contrastive loss in which the first text is the right one for every image."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import contract

CHECKS = ('backward', 'in-batch-pairs')


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.image, self.text = nn.Linear(8, 16), nn.Linear(6, 16)

    def forward(self, image, text):
        return F.normalize(self.image(image), dim=-1), F.normalize(self.text(text), dim=-1)


def loss(output, targets):
    image, text = output
    logits = 10 * image @ text.t()
    labels = torch.zeros(len(logits), dtype=torch.long)
    return F.cross_entropy(logits, labels)


def batch(seed):
    draw = torch.Generator().manual_seed(seed)
    return (torch.randn(8, 8, generator=draw), torch.randn(8, 6, generator=draw)), None


@contract(batch=batch, loss=loss)
def net():
    return Net()
