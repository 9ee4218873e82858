"""A second derivative by each input is not that of all components of a gradient at once."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pytest_torchcheck import Contract


class Field(nn.Module):
    """A scalar field over points; ``apart`` adds up functions of one coordinate each."""

    def __init__(self, coordinates: int = 2, *, apart: bool = False) -> None:
        super().__init__()
        self.apart = apart
        self.first, self.last = nn.Linear(1 if apart else coordinates, 16), nn.Linear(16, 1)

    def forward(self, points):
        if self.apart:
            return self.last(self.first(points[..., None]).tanh()).sum((-1, -2))
        return self.last(self.first(points).tanh()).squeeze(-1)


class Columns(Field):
    """Takes each coordinate by itself."""

    def forward(self, x, y=None):
        return super().forward(x if y is None else torch.cat([x, y], 1))


def grad(values, points, weights=None):
    weights = torch.ones_like(values) if weights is None else weights
    return torch.autograd.grad(values, points, weights, create_graph=True)[0]


def told(term, model=Field, coordinates=2):
    def train_step(model, optimizer, inputs, targets):
        points = inputs[0].clone().requires_grad_()
        loss = (model(points) - targets).square().mean() + term(model, points)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    torch.manual_seed(3)
    contract = Contract(
        model=lambda: model(coordinates), train_step=train_step,
        batch=((torch.randn(7, coordinates),), torch.randn(7)),
        optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=0.01),
    )  # fmt: skip
    return next(iter(contract.check(["step-losses"]).findings))


def summed_columns(model, points):
    second = grad(grad(model(points), points), points)
    return second.sum(1).square().mean()


def of_a_total(model, points):
    first = torch.autograd.grad(model(points).sum(), points, create_graph=True)[0]
    second = torch.autograd.grad(first.sum(), points, create_graph=True)[0]
    return second.sum(-1).square().mean()


def picked_columns(model, points):
    second = grad(grad(model(points), points), points)
    return (second[:, [0]] + second[:, [1]]).square().mean()


def unbound(model, points):
    xx, yy = grad(grad(model(points), points), points).unbind(1)
    return (xx + yy).square().mean()


@pytest.mark.parametrize("coordinates", [2, 3])
@pytest.mark.parametrize("term", [summed_columns, of_a_total, picked_columns])
def test_row_sums_of_a_hessian(term, coordinates):
    finding = told(term, coordinates=coordinates)
    assert (finding.status, finding.code) == ("violated", "derivatives-mixed"), str(finding)
    assert "second" in [culprit.name for culprit in finding.culprits]
    assert f"{coordinates} components" in finding.summary


def test_columns_that_are_unbound():
    assert told(unbound).code == "derivatives-mixed"


def component_by_component(model, points):
    first = grad(model(points), points)
    second = [grad(first[:, k], points)[:, k] for k in range(points.shape[1])]
    return torch.stack(second).sum(0).square().mean()


def slices(model, points):
    first = grad(model(points), points)
    return grad(first[:, 0:1], points)[:, 0:1].square().mean()


def along_a_vector(model, points):
    vector = torch.linspace(-1, 1, points.numel()).reshape(points.shape)
    return (grad(grad(model(points), points), points, vector) * vector).sum(1).mean()


def along_random_vectors(model, points):
    vector = torch.randn_like(points)
    product = grad((grad(model(points), points) * vector).sum(), points, torch.tensor(1.0))
    return (product * vector).sum(1).mean() + grad(model(points), points).square().sum(1).mean()


def along_ones_as_a_vector(model, points):
    product = grad(grad(model(points), points), points)
    return product.norm(dim=1).mean()


def penalty(model, points):
    return (grad(model(points), points).norm(dim=1) - 1).square().mean()


def gradient_of_a_penalty(model, points):
    return grad(grad(model(points), points).square().sum(1), points).sum(1).square().mean()


@pytest.mark.parametrize(
    "term",
    [component_by_component, slices, along_a_vector, along_random_vectors, along_ones_as_a_vector, penalty,
     gradient_of_a_penalty],
)  # fmt: skip
def test_sound_second_derivatives(term):
    assert told(term).status == "passed"


@pytest.mark.parametrize("term", [summed_columns, picked_columns, of_a_total])
def test_a_hessian_without_mixed_derivatives(term):
    finding = told(term, model=lambda coordinates: Field(coordinates, apart=True))
    assert finding.status == "passed", str(finding)


def test_one_coordinate():
    assert told(summed_columns, coordinates=1).status == "passed"


def test_coordinates_in_tensors_of_their_own():
    def laplacian(model, points):
        x, y = points[:, :1].detach().requires_grad_(), points[:, 1:].detach().requires_grad_()
        u = model(x, y)
        xx, yy = (grad(grad(u, each), each).sum(1) for each in (x, y))
        return (xx + yy).square().mean()

    assert told(laplacian, model=Columns).status == "passed"
