"""Losses that fall without end along one output are found; critics, entropies, policies, flows and densities are sound."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Categorical, Normal

from pytest_torchcheck import Contract, Finding, Labels

SIZE, WIDTH = 12, 3


class Heads(nn.Module):
    """Some heads on one body; ``samples`` adds a draw with the first as mean and the second as log deviation."""

    def __init__(self, *widths: int, samples: bool = False) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 16), nn.Tanh())
        self.heads = nn.ModuleList(nn.Linear(16, width) for width in widths)
        self.samples = samples

    def forward(self, x: Tensor) -> Any:
        h = self.body(x)
        made = [head(h) for head in self.heads]
        if self.samples:
            made.append(made[0] + made[1].exp() * torch.randn_like(made[0]))
        return tuple(made) if len(made) > 1 else made[0]


def judged(model: nn.Module, targets: Any, loss: Any) -> Finding:
    generator = torch.Generator().manual_seed(0)
    batch = ((torch.randn(SIZE, 6, generator=generator),), targets)
    (found,) = Contract(model=model, batch=batch, loss=loss).check(["loss-bounded"]).findings
    return found


VALUES = torch.randn(SIZE, WIDTH, generator=torch.Generator().manual_seed(1))
CLASSES = torch.arange(SIZE) % WIDTH
GAINS = torch.randn(SIZE, generator=torch.Generator().manual_seed(2))


def divergence(o: Any, t: Tensor) -> Tensor:
    kl = 0.5 * (o[1].exp() + o[0] ** 2 - 1 - o[1])
    return F.mse_loss(o[0], t) + kl.sum(1).mean()


def wrong_divergence(o: Any, t: Tensor) -> Tensor:
    kl = 0.5 * (o[1].exp() + o[0] ** 2 - 1 + o[1])
    return F.mse_loss(o[0], t) + kl.sum(1).mean()


def subtracted_divergence(o: Any, t: Tensor) -> Tensor:
    kl = 0.5 * (o[1].exp() + o[0] ** 2 - 1 - o[1])
    return F.mse_loss(o[0], t) - kl.sum(1).mean()


def likelihood(o: Any, t: Tensor) -> Tensor:
    return (0.5 * ((t - o[0]) ** 2 * (-o[1]).exp() + o[1])).mean()


def wrong_likelihood(o: Any, t: Tensor) -> Tensor:
    return (0.5 * ((t - o[0]) ** 2 * (-o[1]).exp() - o[1])).mean()


def policy(o: Any, t: Any) -> Tensor:
    actions, gains = t
    density = Normal(o[0], o[1].exp())
    gains = (gains - gains.mean()) / gains.std()
    reward = (density.log_prob(actions).sum(1) * gains).mean()
    return -reward - 0.01 * density.entropy().sum(1).mean()


def clipped_policy(o: Any, t: Any) -> Tensor:
    actions, gains = t
    density = Normal(o[0], o[1].exp())
    gains = (gains - gains.mean()) / gains.std()
    ratio = (density.log_prob(actions).sum(1) + 3).exp()
    clipped = torch.min(ratio * gains, ratio.clamp(0.8, 1.2) * gains)
    return -clipped.mean() - 0.01 * density.entropy().sum(1).mean()


def punished(o: Tensor, t: Any) -> Tensor:
    return (Categorical(logits=o).log_prob(t[0]) * t[1].abs()).mean()


def sampled_divergence(o: Any, t: Tensor) -> Tensor:
    mean, deviation, z = o
    ratio = Normal(mean, deviation.exp()).log_prob(z) - Normal(0, 1).log_prob(z)
    return F.mse_loss(z, t) + ratio.sum(1).mean()


def flow(o: Any, t: Tensor) -> Tensor:
    return (0.5 * ((o[0] - t) ** 2).sum(1) - o[1][:, 0]).mean()


def critic(o: Tensor, t: Tensor) -> Tensor:
    return -(o * t).mean()


def repelled(o: Any, t: Tensor) -> Tensor:
    return F.cross_entropy(o[0], t) - 0.1 * ((o[1][:, None] - o[1][None]) ** 2).mean()


def confused(o: Any, t: Tensor) -> Tensor:
    return F.cross_entropy(o[0], t) - F.log_softmax(o[1], 1).mean()


@pytest.mark.parametrize("loss", [wrong_divergence, wrong_likelihood])
def test_a_wrong_sign_is_found_with_its_line(loss: Any) -> None:
    found = judged(Heads(WIDTH, WIDTH), VALUES, loss)
    assert (found.status, found.code) == ("violated", "loss-unbounded")
    assert found.location is not None
    assert "0.5 * (" in found.location.text
    assert found.culprits[0].name == "output[1]"


def test_a_loss_that_falls_on_both_sides_is_found_and_the_weights_are_as_before() -> None:
    model = Heads(WIDTH, WIDTH)
    before = [p.detach().clone() for p in model.parameters()]
    found = judged(model, VALUES, subtracted_divergence)
    assert (found.status, found.code) == ("violated", "loss-unbounded")
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_a_shift_of_a_bias_is_undone_before_the_next_one() -> None:
    model = Heads(WIDTH, WIDTH)
    contract = Contract(
        model=model, batch=((torch.randn(SIZE, 6),), VALUES), loss=subtracted_divergence
    )
    found = {f.check: f for f in contract.check(["loss-bounded"]).findings}
    lowest = float(found["loss-bounded"].observed.rpartition(" ")[2])
    # with a mean of 1000, the error is 1e6 and the divergence 0.5e6 for each of three entries
    assert -5.1e5 < lowest < -4.9e5


def test_heads_that_are_halves_of_one_layer_are_found() -> None:
    class Halves(Heads):
        def forward(self, x: Tensor) -> Any:
            return tuple(super().forward(x).chunk(2, -1))

    assert judged(Halves(2 * WIDTH), VALUES, wrong_divergence).status == "violated"


class Maps(nn.Module):
    """Two maps that a convolution gives; the second one is limited in some way."""

    def __init__(self, limit: Any, packed: bool = False) -> None:
        super().__init__()
        self.body, self.head = nn.Conv1d(6, 8, 1), nn.Conv1d(8, 2 * WIDTH, 1)
        self.limit, self.packed = limit, packed

    def forward(self, x: Tensor) -> Any:
        made = self.head(torch.tanh(self.body(x[..., None])))
        mean, wide = made.chunk(2, 1)
        wide = self.limit(wide)
        return made if self.packed else (mean + (0.5 * wide).exp() * torch.randn_like(mean), wide)


def at_work(wide: Tensor) -> Tensor:
    return wide.clamp(0.0, 0.1)


def guard(wide: Tensor) -> Tensor:
    return wide.clamp(-30.0, 20.0)


def halves(wrong: bool) -> Any:
    def loss(o: Tensor, t: Tensor) -> Tensor:
        return (wrong_divergence if wrong else divergence)(o.chunk(2, 1), t)

    return loss


def test_a_clamp_that_does_nothing_and_a_convolution_are_seen_through() -> None:
    found = judged(Maps(guard), VALUES[..., None], wrong_divergence)
    assert (found.status, found.culprits[0].name) == ("violated", "output[1]")
    assert "without the clamp on line" in found.observed
    assert found.location is not None
    assert "o[1].exp()" in found.location.text


def test_two_quantities_in_one_output_are_told_apart() -> None:
    found = judged(Maps(guard, packed=True), VALUES[..., None], halves(wrong=True))
    assert (found.status, found.culprits[0].name) == ("violated", f"output[:, {2 * WIDTH - 1}]")
    assert found.location is not None
    assert "o[1].exp()" in found.location.text


def test_what_a_clamp_or_a_squashing_function_makes_is_not_blamed() -> None:
    assert judged(Maps(at_work), VALUES[..., None], wrong_divergence).status == "passed"
    assert judged(Maps(torch.tanh), VALUES[..., None], wrong_divergence).status == "passed"
    assert judged(Maps(guard), VALUES[..., None], divergence).status == "passed"
    assert (
        judged(Maps(guard, packed=True), VALUES[..., None], halves(wrong=False)).status == "passed"
    )


@pytest.mark.parametrize(
    ("model", "targets", "loss"),
    [
        (Heads(WIDTH, WIDTH), VALUES, divergence),
        (Heads(WIDTH, WIDTH), VALUES, likelihood),
        (Heads(WIDTH, WIDTH), (VALUES, GAINS), policy),
        (Heads(WIDTH, WIDTH), (VALUES, GAINS), clipped_policy),
        (Heads(WIDTH), (CLASSES, GAINS), punished),
        (Heads(WIDTH, WIDTH, samples=True), VALUES, sampled_divergence),
        (Heads(WIDTH, 1), VALUES, flow),
        (Heads(WIDTH), VALUES.sign(), critic),
        (Heads(WIDTH, WIDTH), CLASSES, repelled),
        (Heads(WIDTH, 2), CLASSES, confused),
        (Heads(WIDTH), CLASSES, F.cross_entropy),
        (Heads(WIDTH), VALUES, F.smooth_l1_loss),
        (Heads(WIDTH), VALUES.abs().round(), F.poisson_nll_loss),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_losses_that_are_meant_are_not_blamed(model: nn.Module, targets: Any, loss: Any) -> None:
    assert judged(model, targets, loss).status == "passed"


def margins(o: Tensor, t: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(o, t.sign())


def test_a_lowest_value_is_told_only_where_the_criterion_has_one() -> None:
    beyond = judged(Heads(WIDTH), VALUES, margins)
    assert (beyond.status, "from -1 to 1" in beyond.summary) == ("inconclusive", True)
    within = judged(Heads(WIDTH), (VALUES > 0).float(), F.binary_cross_entropy_with_logits)
    assert "has a lowest value" in within.summary
    assert "falls without end" in judged(Heads(WIDTH), CLASSES, F.nll_loss).summary


def by_factory():
    built = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    nn.init.normal_(built[2].weight, std=4.0)  # the line
    return built


def by_list():
    built = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    for one in built.parameters():
        one.data.mul_(20)
    return built


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(16, 3)
        with torch.no_grad():
            self.out.weight.mul_(40)  # the line


class Body(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(6, 16), Head()

    def forward(self, x):
        return self.head.out(torch.relu(self.layer(x)))


@pytest.mark.parametrize(
    ("model", "code", "at"),
    [(by_factory, "built[2].weight", True), (by_list, "...", False), (Body, "...", True)],
)
def test_a_weight_is_named_as_its_line_can_name_it(model, code, at):
    made = Contract(model=model, inputs="B 6", targets=Labels("B", classes=3), loss=F.cross_entropy)
    (found,) = made.check(["loss-at-start"]).findings
    assert found.code == "loss-at-start", str(found)
    assert f"nn.init.normal_({code}, std=0.02)" in found.fix
    assert ("# the line" in found.location.text) is at


def test_a_loss_of_the_other_sign_is_one_cause() -> None:
    """The fix names a formula where the loss computes such a one."""
    labels = torch.arange(SIZE) % WIDTH
    batch = ((torch.randn(SIZE, 6),), labels)
    turned = Contract(
        model=lambda: Heads(WIDTH), batch=batch, loss=lambda o, t: -F.cross_entropy(o, t)
    )
    report = turned.check(["loss-sign", "loss-bounded"])
    assert [finding.code for finding in report.causes] == ["loss-sign"]
    follower = next(f for f in report.findings if f.code == "loss-unbounded")
    assert "KL divergence" not in follower.fix
    squared = judged(
        Heads(1, 1), torch.randn(SIZE, 1), lambda o, t: ((o[0] - t) ** 2 / o[1].exp() - o[1]).mean()
    )
    assert "KL divergence" in squared.fix
