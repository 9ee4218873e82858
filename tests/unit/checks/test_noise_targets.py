"""Noise that a prediction is compared with and cannot know is found; what knows it, or is meant so, is not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pytest_torchcheck import Contract, Finding

IMAGES = torch.randn(6, 1, 8, 8, generator=torch.Generator().manual_seed(1))


class Diffusion(nn.Module):
    """Predicts noise; ``given`` says whether the noise that it is compared with is the one that was added."""

    def __init__(self, *, given: bool, kind: str = "mse", zero: bool = False) -> None:
        super().__init__()
        self.given, self.kind = given, kind
        self.first, self.head = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 1, 3, padding=1)
        if zero:
            nn.init.zeros_(self.head.weight)
            nn.init.zeros_(self.head.bias)
        self.register_buffer("kept", torch.linspace(0.95, 0.05, 50))

    def noisy(self, x: Tensor, t: Tensor, noise: Tensor | None = None) -> Tensor:
        if noise is None:
            noise = torch.randn_like(x)
        kept = self.kept[t][:, None, None, None]
        return kept.sqrt() * x + (1 - kept).sqrt() * noise

    def forward(self, x: Tensor) -> Tensor:
        t = torch.randint(0, 50, (len(x),))
        noise = torch.randn_like(x) + 0.1 * torch.randn(len(x), 1, 1, 1)
        if not self.given:
            noise = torch.randn_like(x)
        seen = self.noisy(x, t, noise) if self.given else self.noisy(x, t)
        guess = self.head(F.silu(self.first(seen)))
        if self.kind == "mse":
            return F.mse_loss(guess, noise)
        error = noise - guess
        return (error**2).mean() if self.kind == "square" else error.abs().mean()


def judged(model: Any, loss: Any = "output", check: str = "loss-input", **declared: Any) -> Finding:
    declared.setdefault("batch", ((IMAGES,), None))
    contract = Contract(model=model, **({"loss": loss} if loss else {}), **declared)
    return contract.check([check]).findings[0]


@pytest.mark.parametrize("kind", ["mse", "square", "abs"])
@pytest.mark.parametrize("zero", [False, True])
def test_noise_that_was_added_is_known_and_another_is_not(kind: str, zero: bool) -> None:
    found = judged(lambda: Diffusion(given=False, kind=kind, zero=zero))
    assert (found.status, found.code) == ("violated", "noise-unseen"), str(found)
    assert found.location is not None
    assert "self.noisy(x, t)" in found.location.text
    found = judged(lambda: Diffusion(given=True, kind=kind, zero=zero))
    assert found.status in ("passed", "not-applicable"), str(found)


def test_a_step_of_your_own_is_asked_too() -> None:
    def step(model: nn.Module, optimizer: Any, inputs: Any, targets: Any) -> Tensor:
        loss = model(*inputs)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    for given, status in ((False, "violated"), (True, "not-applicable")):
        found = judged(
            lambda given=given: Diffusion(given=given),
            None,
            "step-losses",
            train_step=step,
            optimizer=lambda m: torch.optim.Adam(m.parameters()),
        )
        assert found.status == status or (given and found.status == "passed"), str(found)


def net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 8))


def regression(loss: Any) -> Finding:
    return judged(net, loss, batch=((IMAGES,), torch.linspace(-1, 1, 48).view(6, 8)))


def test_noise_alone_may_stand_in_for_a_target() -> None:
    assert regression(lambda o, _: F.mse_loss(o, torch.randn_like(o))).status == "suspicious"


class Unlearns(Diffusion):
    """Keeps what it knows of some images, and is to predict any noise for others."""

    def forward(self, x: Tensor) -> Tensor:
        noise, other = torch.randn_like(x), torch.randn_like(x)
        guess = self.head(F.silu(self.first(x + noise)))
        return F.mse_loss(guess, noise) + 0.1 * F.mse_loss(guess, other)


def test_other_noise_beside_the_right_one_may_be_meant() -> None:
    assert judged(lambda: Unlearns(given=True)).status == "suspicious"


class RandomTarget(nn.Module):
    """Predicts what a network that is not trained makes of its input."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.target = net(), net().requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return F.mse_loss(self.net(x), self.target(x))


class Latents(nn.Module):
    """Finds again the noise that it made its samples of."""

    def __init__(self) -> None:
        super().__init__()
        self.make, self.find = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        z = torch.randn(len(x), 8)
        return F.mse_loss(self.find(self.make(z).tanh()), z)


class SlicedPrior(nn.Module):
    """Compares sorted projections of codes with those of a prior."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = net()

    def forward(self, x: Tensor) -> Tensor:
        z = self.encode(x)
        along = F.normalize(torch.randn(8, 20), dim=0)
        prior = torch.randn_like(z) @ along
        return F.mse_loss((z @ along).sort(0).values, prior.sort(0).values)


@pytest.mark.parametrize("model", [RandomTarget, Latents, SlicedPrior])
def test_noise_that_is_known_or_ordered_is_a_target(model: Any) -> None:
    assert judged(model).status in ("passed", "not-applicable")


@pytest.mark.parametrize(
    "target",
    ids=["noisy", "smooth", "around one", "zero", "in place"],
    argvalues=[
        lambda o, y: y + 0.1 * torch.randn_like(y),
        lambda o, y: 0.9 + 0.1 * torch.rand_like(o),
        lambda o, y: 1 + 0.05 * torch.randn_like(o),
        lambda o, y: torch.zeros_like(o),
        lambda o, y: torch.randn_like(o).add_(y),
    ],
)
def test_labels_with_noise_are_targets(target: Any) -> None:
    assert regression(lambda o, y: F.mse_loss(o, target(o, y))).status == "passed"
