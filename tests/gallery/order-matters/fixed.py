"""Two crops of each image: the labels are repeated image by image, the embeddings crop by crop."""

import torch
from torch import nn

from pytest_torchcheck import Contract

CHECKS = ('in-batch-pairs',)


class Embedder(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5))

    def forward(self, crops):
        return self.body(crops)


def pull_together(embeddings, labels):
    points = torch.cat([embeddings[:, 0], embeddings[:, 1]])
    labels = labels.repeat(2)
    distances = torch.cdist(points, points)
    same = (labels[:, None] == labels).float()
    return (same * distances + (1 - same) * (1 - distances).clamp(min=0)).mean()


GENERATOR = torch.Generator().manual_seed(0)
contract = Contract(
    model=Embedder,
    loss=pull_together,
    batch=(torch.randn(6, 2, 6, generator=GENERATOR), torch.tensor([0, 1, 2, 0, 1, 1])),
    name="embedder",
)
