"""What chooses among codes is trained by the targets of what is chosen, or it is named; other cuts and estimators are not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, Finding

X = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
Y = torch.tensor([0, 1, 2, 0, 1, 2])


class Coded(nn.Module):
    """An encoder, codes, and a decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))
        self.codes, self.decoder = nn.Embedding(6, 4), nn.Linear(4, 8)

    def forward(self, x: torch.Tensor) -> Any:
        z = self.encoder(x)
        chosen, extra = self.choose(z)
        return self.decoder(chosen), extra

    def index(self, z: torch.Tensor) -> torch.Tensor:
        return torch.cdist(z, self.codes.weight).argmin(-1)

    def choose(self, z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        raise NotImplementedError

    @staticmethod
    def loss(output: Any, target: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(output[0], target) + output[1].mean()


class OfCodes(Coded):
    def choose(self, z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        code = self.codes(self.index(z))  # HERE
        return code, (code - z.detach()).square() + 0.25 * (z - code.detach()).square()


class Rounded(Coded):
    def choose(self, z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        grid = torch.round(4 * z)  # HERE
        return grid / 4, z.square()


class OneHot(Coded):
    def choose(self, z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hard = F.one_hot(z.argmax(-1), 4).float()  # HERE
        return hard, -(z.softmax(-1) * z.log_softmax(-1)).sum(-1)


class Gated(Coded):
    def choose(self, z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        on = z.sigmoid() > 0.5
        kept = on.float()  # HERE
        return kept, z.sigmoid()


class Cancelled(OfCodes):
    """The value of an estimator, whose gradient comes to the encoder twice, with both signs."""

    def choose(self, z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        code, extra = super().choose(z)
        far = code - z
        return far + z, extra  # HERE


class Residual(Coded):
    """What is added was taken off before, and the encoder is reached by what replaces it."""

    def choose(self, z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        step = F.softmax(z, -1) @ self.codes.weight[:4] - z
        return z + step, step.square()


class StraightThrough(OfCodes):
    def choose(self, z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        code, extra = super().choose(z)
        return z + (code - z).detach(), extra


class RoundedThrough(Coded):
    def choose(self, z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return z + (z.round() - z).detach(), z.square()


class Soft(Coded):
    def choose(self, z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return F.gumbel_softmax(z, hard=True), z.square()


class Probe(Coded):
    """A head on detached features, as one that only measures them."""

    def choose(self, z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return z.detach(), z.square()


class Drawn(Coded):
    """A draw whose score the loss weighs with the error."""

    def choose(self, z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        drawn = torch.bernoulli(z.sigmoid().detach())
        return drawn, (drawn * F.logsigmoid(z) + (1 - drawn) * F.logsigmoid(-z)).sum(-1)

    @staticmethod
    def loss(output: Any, target: torch.Tensor) -> torch.Tensor:
        error = (output[0] - target).square().mean(-1)
        return (error + error.detach() * output[1]).mean()


class Towers(nn.Module):
    """Two inputs, each with its own encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.scale = nn.Linear(8, 4), nn.Linear(8, 4), nn.Parameter(X[0, 0])

    def forward(self, x: torch.Tensor) -> Any:
        return self.left(x), self.right(x.flip(1)), self.scale.exp()


def towers_loss(output: Any, target: torch.Tensor) -> torch.Tensor:
    left, right, scale = output
    return F.cross_entropy(scale * left * right, target)


def told(model: type[nn.Module], loss: Any, y: torch.Tensor = X) -> list[Finding]:
    """Return what sampling-paths finds."""
    torch.manual_seed(0)
    report = Contract(model=model, batch=((X,), y), loss=loss).check(["sampling-paths"])
    return [f for f in report.findings if f.status in ("violated", "suspicious", "error")]


@pytest.mark.parametrize("model", [OfCodes, Rounded, OneHot, Gated, Cancelled])
def test_a_choice_that_no_target_trains_is_named_with_the_line(model: type[Coded]) -> None:
    (finding,) = told(model, model.loss)
    assert (finding.status, finding.code) == ("violated", "choice-untrained")
    assert "encoder" in finding.summary
    assert finding.location is not None
    assert finding.location.text.endswith("HERE")


@pytest.mark.parametrize("model", [StraightThrough, RoundedThrough, Residual, Soft, Probe, Drawn])
def test_estimators_and_features_that_are_detached_on_purpose_are_silent(
    model: type[Coded],
) -> None:
    assert told(model, model.loss) == []


def test_outputs_of_parts_that_are_apart_are_silent() -> None:
    assert told(Towers, towers_loss, Y) == []


def test_a_step_that_ran_anyway_tells_that_there_is_one_output() -> None:
    calls = []

    class Plain(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            calls.append(len(x))
            return super().forward(x)

    contract = Contract(model=lambda: Plain(8, 8), batch=((X,), X), loss=F.mse_loss)
    contract.check(["sampling-paths"])
    assert 2 in calls
    calls.clear()
    contract.check(["backward", "sampling-paths"])
    assert 2 not in calls
    both = Contract(model=OfCodes, batch=((X,), X), loss=OfCodes.loss)
    report = both.check(["backward", "sampling-paths"])
    assert "choice-untrained" in [finding.code for finding in report.findings]
