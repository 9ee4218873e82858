"""A gradient penalty whose norm is taken over the colours of each pixel, not over the whole image."""

import torch
from torch import nn

from pytest_torchcheck import contract

CHECKS = ('step-losses',)


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Tanh(), nn.Flatten(), nn.Linear(8 * 4 * 4, 1))

    def forward(self, images):
        return self.layers(images)


def penalty(critic, real, fake):
    share = torch.rand(len(real), 1, 1, 1)
    mixed = (share * real + (1 - share) * fake).requires_grad_()
    gradient, = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)
    return (gradient.norm(2, dim=1) - 1).square().mean()


def train_step(critic, optimizer, inputs, fake):
    real, = inputs
    optimizer.zero_grad()
    loss = critic(fake).mean() - critic(real).mean() + 10 * penalty(critic, real, fake)
    loss.backward()
    optimizer.step()


def images(seed):
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(4, 3, 6, 6, generator=generator),), torch.rand(4, 3, 6, 6, generator=generator)


@contract(batch=images, train_step=train_step, optimizer=lambda critic: torch.optim.Adam(critic.parameters(), lr=1e-3))
def critic():
    return Critic()
