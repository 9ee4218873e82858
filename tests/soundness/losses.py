"""Correct losses that pair targets and samples in ways of their own: other orders, indices, sets, the future."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, promises
from tests.soundness.models import sound


class Steps(nn.Module):
    """One output per position, ``[B, T, classes]``, or time first."""

    def __init__(self, classes: int, *, time_first: bool = False) -> None:
        super().__init__()
        self.time_first = time_first
        self.body = nn.GRU(6, 16, batch_first=True)
        self.head = nn.Linear(16, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.body(x)[0])
        return out.transpose(0, 1) if self.time_first else out


class Encoder(nn.Module):
    """A normalised vector per sample."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.normalize(self.layers(x), dim=-1)


def mlp(out: int) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, out))


@sound
def time_first_logits_in_a_square_batch() -> Contract:
    def loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits.permute(1, 2, 0), labels)

    return Contract(
        model=lambda: Steps(5, time_first=True),
        batch=((torch.randn(6, 6, 6),), torch.randint(0, 5, (6, 6))),
        loss=loss,
    )


@sound
def targets_that_list_indices() -> Contract:
    labels = torch.tensor([[3, 0, -1, 1, 2], [1, 4, 2, -1, 0], [2, -1, 1, 3, 4], [0, 2, 4, -1, 3]])
    return Contract(
        model=lambda: mlp(5), batch=((torch.randn(4, 6),), labels), loss=F.multilabel_margin_loss
    )


@sound
def a_list_of_ranks() -> Contract:
    def loss(scores: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
        """ListMLE: the likelihood of an order."""
        sorted_scores = scores.gather(1, order)
        left = sorted_scores.flip(1).logcumsumexp(1).flip(1)
        return (left - sorted_scores).mean()

    order = torch.stack([torch.randperm(5) for _ in range(4)])
    return Contract(model=lambda: mlp(5), batch=((torch.randn(4, 6),), order), loss=loss)


@sound
def distance_of_sorted_values() -> Contract:
    def loss(out: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (out.sort(1).values - target.sort(1).values).abs().mean()

    return Contract(
        model=lambda: mlp(5), batch=((torch.randn(4, 6),), torch.randn(4, 5)), loss=loss
    )


@sound
def values_of_rewards_to_go() -> Contract:
    def loss(values: torch.Tensor, rewards: torch.Tensor) -> torch.Tensor:
        returns = rewards.flip(1).cumsum(1).flip(1)
        return F.mse_loss(values.squeeze(-1), returns)

    return Contract(
        model=lambda: Steps(1), batch=((torch.randn(4, 7, 6),), torch.randn(4, 7)), loss=loss
    )


@sound
def survival_times_and_their_risk_sets() -> Contract:
    def loss(risk: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
        """Cox's partial likelihood."""
        later = times[None, :] >= times[:, None]
        score = risk.squeeze(-1)
        return (score.expand_as(later).masked_fill(~later, -1e9).logsumexp(1) - score).mean()

    return Contract(
        model=lambda: mlp(1), batch=((torch.randn(8, 6),), torch.rand(8) * 9), loss=loss
    )


@sound
def views_that_agree_for_a_while() -> Contract:
    def loss(z: torch.Tensor, _: Any) -> torch.Tensor:
        logits = z @ z.detach().t() / 0.5
        return F.cross_entropy(logits, torch.arange(len(z), device=z.device))

    return Contract(model=Encoder, inputs="B 6", sizes={"B": (6, 8)}, targets="B", loss=loss)


@sound
def supervised_contrast() -> Contract:
    def loss(z: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        alike = (labels[:, None] == labels[None, :]).fill_diagonal_(False)
        scores = (z @ z.t() / 0.5).masked_fill(
            torch.eye(len(z), dtype=torch.bool, device=z.device), -1e9
        )
        likely = scores.log_softmax(1)
        return -(likely * alike).sum(1).div(alike.sum(1).clamp(min=1)).mean()

    return Contract(
        model=Encoder,
        batch=((torch.randn(8, 6),), torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])),
        loss=loss,
    )


@sound
def neighbours_as_two_views() -> Contract:
    def loss(z: torch.Tensor, _: Any) -> torch.Tensor:
        scores = (z @ z.t() / 0.5).masked_fill(
            torch.eye(len(z), dtype=torch.bool, device=z.device), -1e9
        )
        partner = torch.arange(len(z), device=z.device) ^ 1
        return F.cross_entropy(scores, partner)

    return Contract(model=Encoder, batch=((torch.randn(8, 6),), torch.zeros(8)), loss=loss)


@sound
def a_future_that_is_told_from_others() -> Contract:
    class Predictive(nn.Module):
        """CPC: which of the batch's next steps is this sample's."""

        def __init__(self) -> None:
            super().__init__()
            self.encode, self.context = nn.Linear(6, 8), nn.GRU(8, 8, batch_first=True)
            self.guess = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            z = self.encode(x)
            return self.guess(self.context(z[:, :-1])[0][:, -1]), z[:, -1]

    def loss(out: tuple[torch.Tensor, torch.Tensor], _: Any) -> torch.Tensor:
        guess, following = out
        return F.cross_entropy(guess @ following.t(), torch.arange(len(guess), device=guess.device))

    return Contract(
        model=Predictive, inputs="B T 6", sizes={"B": (6, 8), "T": (5, 7)}, targets="B", loss=loss
    )


@sound
def returns_that_are_summed_over_time() -> Contract:
    """Generalised advantages add up what follows, until an episode ends: a reward reaches every output before it."""

    class ActorCritic(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.value = nn.Linear(6, 16), nn.Linear(16, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.value(torch.tanh(self.body(x))).squeeze(-1)

    def loss(values: torch.Tensor, rollout: dict[str, torch.Tensor]) -> torch.Tensor:
        running, kept = torch.zeros_like(rollout["old"][0]), []
        following = torch.zeros_like(running)
        for reward, old, done in reversed(list(zip(*rollout.values(), strict=True))):
            delta = reward + 0.99 * following * (1 - done) - old
            running = delta + 0.99 * 0.95 * (1 - done) * running
            following = old
            kept.append(running + old)
        return (values - torch.stack(kept[::-1])).square().mean()

    steps, environments = 16, 4
    generator = torch.Generator().manual_seed(3)
    rollout = {
        "rewards": 1 + torch.rand(steps, environments, generator=generator),
        "old": torch.rand(steps, environments, generator=generator),
        "dones": (torch.rand(steps, environments, generator=generator) < 0.2).float(),
    }
    x = torch.randn(steps, environments, 6, generator=generator)
    return Contract(model=ActorCritic, batch=((x,), rollout), loss=loss)


@sound
def scores_beside_those_of_images_that_the_loss_scores_itself() -> Contract:
    """The loss calls the critic on its targets: they direct the weights, not the scores that are handed to it."""
    critic = nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1), nn.Flatten(0))

    def loss(scores: torch.Tensor, fake: torch.Tensor) -> torch.Tensor:
        return critic(fake).mean() - scores.mean()

    def train_step(model: nn.Module, optimizer: Any, inputs: Any, targets: torch.Tensor) -> Any:
        optimizer.zero_grad()
        value = loss(model(*inputs), targets)
        value.backward()
        optimizer.step()
        return value.detach()

    x, fake = torch.randn(2, 6, 8, generator=torch.Generator().manual_seed(1))
    return Contract(
        model=critic, batch=((x,), fake), loss=loss, train_step=train_step,
        optimizer=lambda model: torch.optim.Adam(model.parameters(), lr=1e-3),
    )  # fmt: skip


@sound
def forecaster_with_lags() -> Contract:
    class Lags(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1))

        def forward(self, series: torch.Tensor) -> torch.Tensor:
            steps = series.shape[1] - 7
            lags = [series[:, 7 - lag : 7 - lag + steps] for lag in (1, 2, 7)]
            return self.head(torch.stack(lags, -1)).squeeze(-1)

    series = torch.randn(8, 31, generator=torch.Generator().manual_seed(5)).cumsum(1) / 3
    return Contract(model=Lags, batch=((series,), series[:, 7:].clone()), loss=F.mse_loss)


@sound
def codes_held_to_a_prior_by_sorted_projections() -> Contract:
    class Coder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encode, self.decode = nn.Linear(8, 4), nn.Linear(4, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            code = self.encode(x)
            along = F.normalize(torch.randn(4, 12, device=x.device, dtype=x.dtype), dim=0)
            prior = torch.randn_like(code) @ along
            apart = F.mse_loss((code @ along).sort(0).values, prior.sort(0).values)
            return F.mse_loss(self.decode(code.tanh()), x) + 0.1 * apart

    return Contract(
        model=Coder, inputs="B 8", sizes={"B": (6, 12)}, loss="output",
        promises=(promises.Stochastic(reason="a prior is drawn"),),
    )  # fmt: skip
