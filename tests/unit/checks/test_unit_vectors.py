"""Vectors of length one over another dimension than a product's are found; cosines and what is none are not."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, Finding

X = torch.randn(4, 6, 5, generator=torch.Generator().manual_seed(0))
Y = torch.tensor([0, 1, 2, 0])


class Prototypes(nn.Module):
    """Scores of classes: the best cosine of any token of a sequence with the vector of a class."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.vectors = nn.Linear(5, 8), nn.Parameter(torch.randn(3, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 5 * self.cosines(self.embed(x)).amax(1)

    def cosines(self, tokens: torch.Tensor) -> torch.Tensor:
        return F.normalize(tokens, dim=-1) @ F.normalize(self.vectors, dim=-1).T


class DefaultDim(Prototypes):
    def cosines(self, tokens: torch.Tensor) -> torch.Tensor:
        units = F.normalize(tokens)  # HERE
        return units @ F.normalize(self.vectors).T


class ByHand(Prototypes):
    def cosines(self, tokens: torch.Tensor) -> torch.Tensor:
        lengths = self.vectors.norm(dim=0, keepdim=True).clamp(min=1e-6)
        vectors = self.vectors / lengths  # HERE
        return torch.einsum("btd,kd->btk", F.normalize(tokens, dim=2), vectors)


class Transposed(Prototypes):
    def cosines(self, tokens: torch.Tensor) -> torch.Tensor:
        vectors = F.normalize(self.vectors.T, dim=1)  # HERE
        return F.linear(F.normalize(tokens, dim=-1), vectors.T)


class Written(Prototypes):
    def cosines(self, tokens: torch.Tensor) -> torch.Tensor:
        vectors = self.vectors / self.vectors.norm(dim=1, keepdim=True)
        return torch.einsum("btd,kd->btk", F.normalize(tokens, dim=2), vectors)


class Gated(Prototypes):
    """Lengths over the tokens share each feature out among them; the vectors of the classes are free."""

    def cosines(self, tokens: torch.Tensor) -> torch.Tensor:
        return F.normalize(tokens, dim=1) @ self.vectors.T


class Correlated(Prototypes):
    """The correlation of features over the tokens, as between the channels of two views."""

    def cosines(self, tokens: torch.Tensor) -> torch.Tensor:
        channels = F.normalize(tokens, dim=1)
        return (channels.mT @ F.normalize(tokens.flip(1), dim=1))[:, :, :3]


def found_in(model: type[nn.Module]) -> list[Finding]:
    torch.manual_seed(0)
    contract = Contract(model=model, batch=((X,), Y), loss=F.cross_entropy)
    return [f for f in contract.check(["loss-input"]).findings if f.status != "passed"]


@pytest.mark.parametrize("model", [DefaultDim, ByHand, Transposed])
def test_a_product_over_another_dimension_than_the_lengths(model: type[nn.Module]) -> None:
    (finding,) = found_in(model)
    assert (finding.status, finding.code) == ("violated", "cosine-axis")
    assert finding.location is not None
    assert finding.location.text.endswith("# HERE")


def test_the_fix_of_a_default_dimension() -> None:
    (finding,) = found_in(DefaultDim)
    assert finding.fix.startswith("give F.normalize dim=-1 on line")


@pytest.mark.parametrize("model", [Prototypes, Written, Gated, Correlated])
def test_cosines_and_other_products(model: type[nn.Module]) -> None:
    assert found_in(model) == []


def test_a_loss_of_its_own_and_a_step() -> None:
    """Two views of each sample, and the temperature of their cosines."""

    def loss(output: torch.Tensor, _: object) -> torch.Tensor:
        one, other = output.chunk(2, dim=1)
        scores = F.normalize(one, dim=1) @ F.normalize(other, dim=0).T / 0.1
        return F.cross_entropy(scores, torch.arange(len(scores)))

    def step(
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        inputs: tuple[torch.Tensor],
        targets: object,
    ) -> torch.Tensor:
        optimizer.zero_grad()
        value = loss(model(*inputs), targets)
        value.backward()
        optimizer.step()
        return value.detach()

    def net() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(30, 12))

    torch.manual_seed(0)
    declared = Contract(model=net, batch=((X,), None), loss=loss)
    own = Contract(
        model=net,
        batch=((X,), None),
        train_step=step,
        optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=0.1),
    )
    for contract, check in ((declared, "loss-input"), (own, "step-losses")):
        codes = [f.code for f in contract.check([check]).with_status("violated")]
        assert codes == ["cosine-axis"], (check, codes)
