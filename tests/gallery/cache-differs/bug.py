"""A decoder whose positions start at zero again in each step with a cache."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, Tokens, contract
from pytest_torchcheck.promises import Causal

CHECKS = ("cached-steps",)


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(20, 8), nn.Embedding(32, 8)
        self.query, self.key, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 20)

    def forward(self, ids, past=None):
        before = 0 if past is None else past.shape[1]
        places = torch.arange(ids.shape[1], device=ids.device)
        x = self.tokens(ids) + self.places(places)
        whole = x if past is None else torch.cat([past, x], dim=1)
        scores = self.query(x) @ self.key(whole).mT
        future = torch.ones_like(scores).triu(1 + before) > 0
        mixed = scores.masked_fill(future, -1e9).softmax(-1) @ whole
        return self.head(x + mixed), whole


@contract(
    inputs=Tokens("B T", vocab=20),
    targets=Labels("B T", classes=20),
    sizes={"T": 8},
    promises=[Causal(output=0)],
    loss=lambda output, targets: F.cross_entropy(output[0].flatten(0, 1), targets.flatten()),
)
def net():
    return Decoder()
