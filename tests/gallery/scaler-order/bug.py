"""Gradients are unscaled although the loss was never scaled."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ('backward',)


class Trainer:
    def optimizer(self, model):
        self.scaler = torch.amp.GradScaler("cpu")
        return torch.optim.SGD(model.parameters(), lr=0.1)

    def train_step(self, model, optimizer, inputs, targets):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(*inputs), targets)
        loss.backward()
        self.scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        self.scaler.step(optimizer)
        self.scaler.update()
        return loss.detach()


trainer = Trainer()


@contract(inputs="B 8", targets=Labels("B", classes=3), loss=F.cross_entropy, sizes={"B": 6},
          train_step=trainer.train_step, optimizer=trainer.optimizer)
def net():
    return nn.Linear(8, 3)
