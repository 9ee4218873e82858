"""An output that is fitted to a target stays there, whatever another term of the loss reads of it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.scores, self.value = nn.Linear(5, 12), nn.Linear(12, 3), nn.Linear(12, 1)

    def forward(self, x):
        h = self.body(x).tanh()
        return self.scores(h), self.value(h)[:, 0]


def nll(scores, labels):
    return F.cross_entropy(scores, labels, reduction="none")


def baseline_with_gradient(output, target):
    (scores, value), (labels, returns) = output, target
    fit = F.smooth_l1_loss(value, returns)
    return fit - ((value - returns) * nll(scores, labels)).mean()


def baseline_cut(output, target):
    (scores, value), (labels, returns) = output, target
    fit = F.smooth_l1_loss(value, returns)
    return fit - ((value.detach() - returns) * nll(scores, labels)).mean()


def apart(output, target):
    (scores, value), (labels, depth) = output, target
    return F.cross_entropy(scores, labels) + F.mse_loss(value, depth)


def by_uncertainty(output, target):
    (scores, value), (labels, depth) = output, target
    return (torch.exp(-value) * nll(scores, labels) + 0.5 * value).mean() + 0.01 * depth.mean()


def confident(output, target):
    """Scales the scores by a confidence that has a target of its own."""
    (scores, value), (labels, confidence) = output, target
    sure = torch.sigmoid(value)[:, None]
    mixed = sure * scores.softmax(-1) + (1 - sure) * F.one_hot(labels, 3)
    return F.nll_loss(mixed.log(), labels) + F.mse_loss(value, confidence)


def of_the_right_class(output, target):
    """Fits a value for the samples of one class only."""
    (scores, value), (labels, size) = output, target
    there = (labels > 0).float()
    return F.cross_entropy(scores, labels) + (there * (value - size).abs()).mean()


def to_what_labels_shift(output, target):
    """Fits a value to returns that labels decide with, as the ends of episodes do."""
    (scores, value), (labels, rewards) = output, target
    returns = rewards + 5.0 * (labels > 0).float()
    return F.cross_entropy(scores, labels) + F.mse_loss(value, returns)


def to_what_follows(output, target):
    """Fits a value to a cost and to what another head expects after it, where the labels say that anything follows."""
    (scores, value), (labels, costs) = output, target
    wanted = costs + 0.9 * (labels > 0).float() * scores[:, 0].detach()
    return F.mse_loss(value, wanted) + 0.1 * scores.pow(2).mean()


def told(loss, *checks):
    g = torch.Generator().manual_seed(1)
    x, returns = torch.randn(9, 5, generator=g), torch.randn(9, generator=g) + 0.5
    torch.manual_seed(0)
    made = Contract(model=TwoHeads(), loss=loss, batch=(x, (torch.arange(9) % 3, returns)))
    return made.check(list(checks or ["loss-sign"])).findings


def test_an_advantage_with_the_gradient_of_its_baseline():
    (found,) = [f for f in told(baseline_with_gradient) if f.status == "violated"]
    assert found.code == "fit-pulled-off"
    assert "(value - returns)" in found.location.text


@pytest.mark.parametrize(
    "loss",
    [
        baseline_cut,
        apart,
        by_uncertainty,
        confident,
        of_the_right_class,
        to_what_labels_shift,
        to_what_follows,
    ],
)
def test_sound_losses_of_two_heads(loss):
    assert [f.code for f in told(loss) if f.status == "violated"] == []


def test_a_baseline_that_is_cut_on_purpose_is_no_partial_gradient():
    (found,) = told(baseline_cut, "descent")
    assert found.status == "not-applicable"
    assert "would pull it off" in found.summary


@pytest.mark.parametrize(("sign", "status"), [(1, "suspicious"), (-1, "passed")])
def test_a_log_likelihood_that_a_target_weighs_has_the_sign_of_the_target(sign, status):
    """Costs and rewards are weights of opposite signs; nothing in the program tells which they are."""

    def loss(output, target):
        labels, weights = target
        return -sign * (weights.abs() * nll(output[0], labels)).mean()

    def signed(output, target):
        labels, weights = target
        return -sign * ((weights + 2) * nll(output[0], labels)).mean()

    (found,) = told(signed)
    assert found.status == status
    if sign > 0:
        (found,) = told(loss)
        assert found.status == "violated"  # its absolute values weigh one way only


def test_a_target_that_is_one_number_is_no_label_to_exchange():
    def loss(output, target):
        count, *others = target
        return baseline_with_gradient(output, others) / count

    batch = torch.randn(9, 5), (torch.tensor(3), torch.arange(9) % 3, torch.randn(9) + 0.5)
    (found,) = Contract(model=TwoHeads(), loss=loss, batch=batch).check(["loss-sign"]).causes
    assert found.code == "fit-pulled-off"


def test_a_wrong_sign_beside_a_fit_of_another_output_is_a_violation():
    def loss(output, target):
        (scores, value), (labels, depth) = output, target
        return F.mse_loss(value, depth) - F.cross_entropy(scores, labels)

    (found,) = told(loss)
    assert (found.status, found.code) == ("violated", "loss-sign")


@pytest.mark.parametrize(("cut", "codes"), [(False, ["fit-pulled-off"]), (True, [])])
def test_labels_and_returns_in_columns_of_one_target(cut, codes):
    def loss(output, target):
        apart = (output[0], output[1].detach() if cut else output[1])
        labels, returns = target[:, 1].long(), target[:, 0]
        pulled = ((apart[1] - returns) * nll(apart[0], labels)).mean()
        return F.mse_loss(output[1], returns) - pulled

    g = torch.Generator().manual_seed(1)
    columns = torch.stack([torch.randn(9, generator=g), torch.arange(9.0) % 3], 1)
    torch.manual_seed(0)
    made = Contract(
        model=TwoHeads(), loss=loss, batch=(torch.randn(9, 5, generator=g), columns)
    ).check(["loss-sign"])
    assert [f.code for f in made.causes] == codes
