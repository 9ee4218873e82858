"""The norm of a clipping meets square roots of negative numbers."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ('weights-update',)


class Trainer:
    def optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=0.1)

    def train_step(self, model, optimizer, inputs, targets):
        optimizer.zero_grad()
        loss = F.softplus(model(*inputs)).sqrt().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
        optimizer.step()
        return loss.detach()


trainer = Trainer()


@contract(inputs="B 8", targets=Labels("B", classes=3), loss=F.cross_entropy, sizes={"B": 6},
          train_step=trainer.train_step, optimizer=trainer.optimizer)
def net():
    return nn.Linear(8, 3)
