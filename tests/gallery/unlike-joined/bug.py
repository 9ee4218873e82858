"""A contrastive loss that treats unlike samples as it treats like ones."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract


def contrastive(embedded, labels, margin=1.0):
    similarity = F.normalize(embedded, dim=1) @ F.normalize(embedded, dim=1).T
    alike = labels[:, None] == labels
    pull = F.relu(margin - similarity)
    push = F.relu(margin - similarity)
    return pull[alike].mean() + push[~alike].mean()


CHECKS = ("backward", "loss-sign")


@contract(inputs="B 6", sizes={"B": (12, 12)}, targets=Labels("B", classes=3), loss=contrastive)
def embedder():
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 8))
