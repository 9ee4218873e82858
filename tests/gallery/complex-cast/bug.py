"""A complex table in a buffer, in a model that is to run in float64."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import contract


class Turned(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(8, 8)
        table = torch.polar(torch.ones(4), torch.arange(4.0))
        self.register_buffer("table", table)

    def forward(self, x):
        pairs = torch.view_as_complex(self.lin(x).unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(pairs * self.table).flatten(-2)


@contract(inputs="B 8", targets="B 8", loss=F.mse_loss, dtypes=("float32", "float64"))
def turned():
    return Turned()
