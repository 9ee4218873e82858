"""Diffusion steps are cast to the dtype of the images before their sine is taken: in bfloat16, 500 and 501 are one step."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, Ints, TensorSpec

CHECKS = ('low-precision', 'backward')


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter, self.time, self.leave = nn.Linear(4, 16), nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x, step):
        rate = 10.0 ** -torch.arange(4)
        angle = step.to(x.dtype)[:, None] * rate
        waves = torch.cat([angle.sin(), angle.cos()], 1).to(x.dtype)
        return self.leave(torch.tanh(self.enter(x) + self.time(waves)))


G = torch.Generator().manual_seed(0)
X, STEP = torch.randn(16, 4, generator=G), torch.randint(0, 1000, (16,), generator=G)

contract = Contract(
    model=Denoiser,
    inputs={"x": TensorSpec("B 4"), "step": Ints("B", low=0, high=1000)},
    batch=({"x": X, "step": STEP}, torch.randn(16, 4, generator=G)),
    loss=F.mse_loss,
    dtypes=("float32", "bfloat16"),
    name="denoiser",
)
