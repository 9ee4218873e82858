"""A penalty on the norm of a gradient is on each sample's whole gradient, where a sample has one number."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pytest_torchcheck import Contract


class Judge(nn.Module):
    """Scores recordings of shape (B, T, C), each as a whole or each of their frames."""

    def __init__(self, *, frames: bool = False) -> None:
        super().__init__()
        self.frames = frames
        self.hidden, self.score = nn.Linear(4, 16), nn.Linear(16, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.score(self.hidden(x).tanh()).squeeze(-1)
        return scores if self.frames else (scores * scores.sigmoid()).mean(1)


def told(penalty, *, frames: bool = False, summed: bool = False):
    def train_step(model, optimizer, inputs, targets):
        x = inputs[0].clone().requires_grad_()
        score = model(x)
        given = (score.sum(), None) if summed else (score, torch.ones_like(score))
        (gradient,) = torch.autograd.grad(given[0], x, given[1], create_graph=True)
        loss = (score - targets).square().mean() + penalty(gradient)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    torch.manual_seed(2)
    contract = Contract(
        model=Judge(frames=frames), train_step=train_step,
        batch=((torch.randn(5, 6, 4),), torch.randn(5, 6) if frames else torch.randn(5)),
        optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=0.01),
    )  # fmt: skip
    (finding,) = contract.check(["step-losses"]).findings
    return finding


def each_frame(gradient):
    return 10 * ((gradient.norm(2, dim=-1) - 1) ** 2).mean()


def each_frame_at_most(gradient):
    return 10 * (gradient.square().sum(2).add(1e-12).sqrt() - 1).relu().square().mean()


def each_channel(gradient):
    return 10 * ((torch.linalg.vector_norm(gradient, dim=1) - 1) ** 2).mean()


@pytest.mark.parametrize("summed", [False, True])
@pytest.mark.parametrize(
    ("penalty", "over"), [(each_frame, 2), (each_frame_at_most, 2), (each_channel, 1)]
)
def test_norms_of_parts_of_a_sample(penalty, over, summed):
    finding = told(penalty, summed=summed)
    assert (finding.status, finding.code) == ("violated", "penalty-in-parts")
    assert f"over dimension {over}" in finding.cause
    assert penalty.__name__ in finding.summary


def whole(gradient):
    return 10 * ((gradient.flatten(1).norm(2, dim=1) - 1) ** 2).mean()


def whole_in_two_steps(gradient):
    return 10 * ((gradient.square().sum(2).sum(1).sqrt() - 1) ** 2).mean()


def of_squares(gradient):
    return gradient.square().sum(2).mean()


def sparse(gradient):
    return gradient.norm(dim=2).sum()


def known_forces(gradient):
    wanted = torch.linspace(-1, 1, gradient.numel()).reshape(gradient.shape)
    return (gradient - wanted).norm(dim=2).mean()


def one_direction(gradient):
    return (gradient[:, :, 0] - 1).square().mean()


@pytest.mark.parametrize(
    "penalty", [whole, whole_in_two_steps, of_squares, sparse, known_forces, one_direction]
)
def test_other_uses_of_a_gradient(penalty):
    assert told(penalty).status == "passed"


@pytest.mark.parametrize("summed", [False, True])
def test_a_function_with_a_number_for_each_frame_has_a_norm_for_each(summed):
    assert told(each_frame, frames=True, summed=summed).status == "passed"


class Grey(nn.Module):
    """Scores pictures of one channel."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.score = nn.Conv2d(1, 4, 3, padding=1), nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.score(self.conv(x).tanh().square().mean((2, 3))).squeeze(1)


@pytest.mark.parametrize("whole", [False, True])
def test_a_norm_over_one_channel_is_of_each_pixel(whole: bool) -> None:
    def train_step(model, optimizer, inputs, targets):
        x = inputs[0].clone().requires_grad_()
        (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        norms = gradient.flatten(1).norm(2, dim=1) if whole else gradient.norm(2, dim=1)
        loss = (model(x) - targets).square().mean() + ((norms - 1) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    torch.manual_seed(2)
    contract = Contract(
        model=Grey, train_step=train_step, batch=((torch.randn(5, 1, 6, 6),), torch.randn(5)),
        optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=0.01),
    )  # fmt: skip
    (finding,) = contract.check(["step-losses"]).findings
    assert finding.status == ("passed" if whole else "violated"), str(finding)
