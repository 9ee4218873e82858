"""A clipping of parameters that the optimizer has taken out of their iterator."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract, promises

CHECKS = ('step-protocol', 'gradient-clipping')


class Trainer:
    def optimizer(self, model):
        self.trained = filter(lambda p: p.requires_grad, model.parameters())
        return torch.optim.SGD(self.trained, lr=0.1)

    def train_step(self, model, optimizer, inputs, targets):
        optimizer.zero_grad()
        loss = 100 * F.cross_entropy(model(*inputs), targets)
        loss.backward()
        nn.utils.clip_grad_norm_(self.trained, 1.0)
        optimizer.step()
        return loss.detach()


trainer = Trainer()


@contract(inputs="B 8", targets=Labels("B", classes=3), loss=F.cross_entropy, sizes={"B": 6},
          train_step=trainer.train_step, optimizer=trainer.optimizer, promises=[promises.ClipsGradients(1.0)])
def net():
    return nn.Linear(8, 3)
