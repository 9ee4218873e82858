"""Local attention whose window is counted from the first position in place of each query's own."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, Tokens, contract
from pytest_torchcheck.promises import Causal

CHECKS = ("causality", "past-influence")


class LocalDecoder(nn.Module):
    def __init__(self, window=4):
        super().__init__()
        self.window = window
        self.tokens, self.qkv, self.head = nn.Embedding(20, 8), nn.Linear(8, 24), nn.Linear(8, 20)

    def forward(self, ids):
        x = self.tokens(ids)
        query, key, value = self.qkv(x).chunk(3, dim=-1)
        places = torch.arange(ids.shape[1], device=ids.device)
        future = places[None] > places[:, None]
        far = places[:, None] - places[None] >= self.window
        scores = query @ key.mT / 8**0.5
        scores = scores.masked_fill(future | far, float("-inf"))
        return self.head(x + scores.softmax(-1) @ value)


@contract(
    inputs=Tokens("B T", vocab=20),
    targets=Labels("B T", classes=20),
    sizes={"T": 12},
    promises=[Causal()],
    loss=lambda output, targets: F.cross_entropy(output.flatten(0, 1), targets.flatten()),
)
def net():
    return LocalDecoder()
