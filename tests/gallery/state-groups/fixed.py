"""The optimizer's state is that of a model with one layer more."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ('weights-update',)


class Trainer:
    def optimizer(self, model):
        old = nn.Linear(8, 3)
        saved = torch.optim.Adam(old.parameters()).state_dict()
        made = torch.optim.Adam(model.parameters())
        made.load_state_dict(saved)
        return made

    def train_step(self, model, optimizer, inputs, targets):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(*inputs), targets)
        loss.backward()
        optimizer.step()
        return loss.detach()


trainer = Trainer()


@contract(inputs="B 8", targets=Labels("B", classes=3), loss=F.cross_entropy, sizes={"B": 6},
          train_step=trainer.train_step, optimizer=trainer.optimizer)
def net():
    return nn.Linear(8, 3)
