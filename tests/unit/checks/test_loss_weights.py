"""What each sample and each element counts in a loss: sound losses beside those in which one kind of terms outgrows the other."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract

B, T, D = 7, 5, 4


class Two(nn.Module):
    """Returns a decoded input and what it was decoded from."""

    def __init__(self):
        super().__init__()
        self.encode = nn.Linear(6, D)
        self.decode = nn.Linear(D, 6)

    def forward(self, x):
        code = self.encode(x)
        return self.decode(code), code


class Frames(nn.Module):
    """Returns a vector for each frame."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, D)

    def forward(self, x):
        return self.layer(x)


def of_two(loss):
    x = torch.randn(B, 6, generator=torch.Generator().manual_seed(1))
    return Contract(model=Two, batch=((x,), x.clone()), loss=loss).check(["loss-weights"]).findings


def of_frames(loss, dtype=torch.bool):
    g = torch.Generator().manual_seed(2)
    mask = (torch.rand(B, T, generator=g) < 0.5).to(dtype)
    batch = ((torch.randn(B, T, 6, generator=g),), (torch.randn(B, T, D, generator=g), mask))
    return Contract(model=Frames, batch=batch, loss=loss).check(["loss-weights"]).findings


def other_views(code):
    scores = (code @ code.T).masked_fill(torch.eye(len(code), dtype=torch.bool), -1e4)
    return F.cross_entropy(scores, (torch.arange(len(code)) + 1) % len(code))


SOUND = {
    "averaged": lambda o, y: F.mse_loss(o[0], y) + o[1].pow(2).sum(1).mean(),
    "summed": lambda o, y: F.mse_loss(o[0], y, reduction="sum") + o[1].pow(2).sum(),
    "a share of the batch": lambda o, y: (
        (F.mse_loss(o[0], y, reduction="sum") + o[1].abs().sum()) / len(y)
    ),
    "balance of use": lambda o, y: F.mse_loss(o[0], y) + o[1].softmax(1).mean(0).pow(2).sum(),
    "contrast with the batch": lambda o, y: (
        F.mse_loss(o[0], y) + F.cross_entropy(o[1] @ o[1].T, torch.arange(len(y)))
    ),
}
RELATED = {
    "a norm over the batch": lambda o, y: (o[0] - y).norm() + o[1].pow(2).mean(),
    "other samples as negatives": lambda o, y: F.mse_loss(o[0], y) + other_views(o[1]),
    "a sample's spread": lambda o, y: F.mse_loss(o[0], y) + (1 - o[1].std(0)).relu().mean(),
    "covariances": lambda o, y: F.mse_loss(o[0], y) + torch.cov(o[1].T).pow(2).sum(),
}


@pytest.mark.parametrize("loss", SOUND.values(), ids=SOUND)
def test_terms_of_one_reduction_pass(loss):
    (finding,) = of_two(loss)
    assert finding.status == "passed"


@pytest.mark.parametrize("loss", RELATED.values(), ids=RELATED)
def test_losses_that_relate_samples_are_not_judged(loss):
    (finding,) = of_two(loss)
    assert finding.status == "not-applicable"


class Views(nn.Module):
    """Returns two views of each sample."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 8)

    def forward(self, x):
        return self.layer(x), self.layer(x + 0.1)


def summed_contrasts(output, target):
    views = F.normalize(torch.cat(output), dim=1)
    scores, count = views @ views.T / 4, len(views)
    others = scores[~torch.eye(count, dtype=torch.bool)].view(count, -1)
    return (others.logsumexp(1) - scores.roll(count // 2, 1).diagonal()).sum()


def test_contrasts_that_are_all_summed_are_no_mixture():
    """Copies of a sample leave its own out of what it is compared with: that is nearly a second term."""
    x = torch.randn(B, 6, generator=torch.Generator().manual_seed(1))
    torch.manual_seed(0)
    made = Contract(model=Views(), batch=((x,), x.clone()), loss=summed_contrasts)
    (finding,) = made.check(["loss-weights"]).findings
    assert finding.status == "not-applicable"


def test_a_sum_beside_a_mean_is_found_with_its_line():
    def loss(output, y):
        error = F.mse_loss(output[0], y)
        sparsity = output[1].abs().sum()
        return error + 0.1 * sparsity

    (finding,) = of_two(loss)
    assert finding.code == "reductions-mixed"
    assert finding.location.text == "sparsity = output[1].abs().sum()"
    assert "doubles" in finding.observed
    assert "output[1]" in finding.observed


def test_both_reductions_of_one_output_are_found():
    (finding,) = of_two(lambda o, y: F.mse_loss(o[0], y) + 0.01 * (o[0] - y).pow(2).sum())
    assert finding.code == "reductions-mixed"


def ranked(output, _):
    better, worse = output[0].sum(-1), output[1].sum(-1)
    return -F.logsigmoid(better - worse).mean() / len(better)


def beside_a_mean(output, y):
    shrunk = output[1].pow(2).sum() / len(y) ** 2
    return F.mse_loss(output[0], y) + shrunk


@pytest.mark.parametrize("loss", [ranked, beside_a_mean])
def test_a_mean_that_is_divided_by_the_number_of_samples_again_is_found_with_its_line(loss):
    (finding,) = of_two(loss)
    assert finding.code == "mean-divided"
    assert "/ len(" in finding.location.text
    assert "twice" in finding.summary
    assert ("output[0]" in finding.summary) == (loss is ranked)


def standard_error(output, _):
    return (output[1].var(0, unbiased=False) / len(output[1])).sum()


def for_each_micro_batch(output, y):
    return F.mse_loss(output[0], y) / 4  # of an accumulation over four


@pytest.mark.parametrize("loss", [standard_error, for_each_micro_batch])
def test_what_samples_share_and_a_constant_may_divide_a_mean(loss):
    (finding,) = of_two(loss)
    assert finding.status in ("passed", "not-applicable")


class Pairs(nn.Module):
    """Returns a score for each sample, and its two codes, of which the samples are the second dimension."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, D)

    def forward(self, a, b):
        codes = torch.stack([self.layer(a), self.layer(b)])
        return codes.prod(0).sum(-1), codes


def of_pairs(loss, size):
    g = torch.Generator().manual_seed(3)
    batch = ((torch.randn(size, 6, generator=g), torch.randn(size, 6, generator=g)), None)
    made = Contract(model=Pairs, batch=batch, loss=loss)
    return made.check(["loss-weights"]).findings


def over_pairs(again):
    def loss(output, _):
        score, codes = output
        near, small = -F.logsigmoid(score).mean(), codes.pow(2).sum() / len(score)
        return (near / len(score) if again else near) + 0.1 * small

    return loss


@pytest.mark.parametrize("size", [D, B])
def test_samples_may_stand_in_another_dimension_of_each_output(size):
    (finding,) = of_pairs(over_pairs(again=True), size)
    assert finding.code == "mean-divided"
    assert "output[0] is" in finding.summary
    (finding,) = of_pairs(over_pairs(again=False), size)
    assert finding.status == "passed"


def each(output, targets):
    return (output - targets[0]).pow(2).mean(-1)


MASKED = {
    "over all that count": lambda o, t: (each(o, t) * t[1]).sum() / t[1].sum(),
    "by sample": lambda o, t: ((each(o, t) * t[1]).sum(1) / t[1].sum(1).clamp(min=1)).mean(),
    "summed": lambda o, t: (each(o, t) * t[1]).sum(),
    "over everything": lambda o, t: (each(o, t) * t[1]).mean(),
    "labels": lambda o, t: F.binary_cross_entropy_with_logits(o.mean(-1), t[1].float()),
    "softmax over what counts": lambda o, t: (
        -(o.mean(-1).masked_fill(t[1] == 0, -1e9).log_softmax(1) * t[1]).sum() / t[1].sum()
    ),
}


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32, torch.int64])
@pytest.mark.parametrize("loss", MASKED.values(), ids=MASKED)
def test_masked_losses_pass(loss, dtype):
    (finding,) = of_frames(loss, dtype)
    assert finding.status == "passed"


@pytest.mark.parametrize("by_sample", [False, True])
def test_a_mean_over_the_others_is_found_with_its_line(by_sample):
    def loss(output, targets):
        error = each(output, targets) * ~targets[1]
        hidden = targets[1].sum(1) if by_sample else targets[1].sum()
        return (error.sum(1) / hidden.clamp(min=1)).mean() if by_sample else error.sum() / hidden

    (finding,) = of_frames(loss)
    assert finding.code == "mean-over-others"
    line = "return (error" if by_sample else "hidden ="
    assert finding.location.text.startswith(line)
    assert any(culprit.kind == "loss" for culprit in finding.culprits)
    selecting = [c for c in finding.culprits if c.detail == "selects the elements that count"]
    assert [c.location.text for c in selecting] == ["error = each(output, targets) * ~targets[1]"]
    assert "lets those count at which y[1] is 0" in finding.cause


def test_a_selection_on_the_line_of_the_division_is_not_told_twice():
    def loss(output, targets):
        hidden = targets[1]
        return each(output, targets).masked_fill(hidden, 0.0).sum() / hidden.sum()

    (finding,) = of_frames(loss)
    assert finding.code == "mean-over-others"
    assert finding.location.text.startswith("return each")
    assert "negate the mask" not in finding.fix


def test_elements_that_are_picked_out_are_selected_where_they_are_picked():
    def loss(output, targets):
        error = each(output, targets)[~targets[1]]  # picked
        return error.sum() / targets[1].sum()

    (finding,) = of_frames(loss)
    assert [c.location.text for c in finding.culprits if "selects" in c.detail] == [
        "error = each(output, targets)[~targets[1]]  # picked"
    ]


def of_pages(loss, seed):
    g = torch.Generator().manual_seed(seed)
    seen, bought = torch.rand(4, generator=g), (torch.rand(4, generator=g) < 0.5).long()
    batch = ((torch.randn(4, 6, generator=g),), (seen, bought))
    made = Contract(model=lambda: nn.Linear(6, 1), batch=batch, loss=loss)
    return made.check(["loss-weights"]).findings


def above_what_was_seen_later(output, targets):
    seen, bought = targets
    score = output.sum(-1)
    among = score.masked_fill(seen[:, None] > seen, -1e9).logsumexp(1)
    return ((among - score) * bought).sum() / bought.sum().clamp(min=1)


def over_what_was_left(output, targets):
    seen, bought = targets
    return ((output.sum(-1) - seen).abs() * bought).sum() / (1 - bought).sum().clamp(min=1)


@pytest.mark.parametrize("seed", [14, 27, 29])
def test_an_indicator_of_what_is_compared_is_no_mask(seed):
    (finding,) = of_pages(above_what_was_seen_later, seed)
    assert finding.status in ("passed", "not-applicable")


def test_an_indicator_of_what_counts_is_a_mask():
    (finding,) = of_pages(over_what_was_left, 14)
    assert finding.code == "mean-over-others"
