"""A scheduler that looks at a measure is stepped without one."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ('weights-update',)


class Trainer:
    def optimizer(self, model):
        made = torch.optim.SGD(model.parameters(), lr=0.1)
        self.scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(made)
        return made

    def train_step(self, model, optimizer, inputs, targets):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(*inputs), targets)
        loss.backward()
        optimizer.step()
        self.scheduler.step(loss.detach())
        return loss.detach()


trainer = Trainer()


@contract(inputs="B 8", targets=Labels("B", classes=3), loss=F.cross_entropy, sizes={"B": 6},
          train_step=trainer.train_step, optimizer=trainer.optimizer)
def net():
    return nn.Linear(8, 3)
