"""A regression with a learned variance, whose likelihood subtracts the logarithm that it should add."""

from torch import nn

from pytest_torchcheck import contract

CHECKS = ("loss-bounded",)


class Regressor(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, 16), nn.Tanh())
        self.mean, self.log_var = nn.Linear(16, 2), nn.Linear(16, 2)

    def forward(self, x):
        h = self.body(x)
        return {"mean": self.mean(h), "log_var": self.log_var(h)}


def likelihood(output, targets):
    mean, log_var = output["mean"], output["log_var"]
    error = (targets - mean) ** 2 / log_var.exp()
    return (0.5 * (error + log_var)).mean()


@contract(inputs="B 5", targets="B 2", loss=likelihood)
def net():
    return Regressor()
