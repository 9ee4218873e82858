"""The lowest value of a loss, read from its graph, beside what free outputs reach."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from pytest_torchcheck.probes.loss.floors import Floor

G = torch.Generator().manual_seed(3)
OUTPUT = torch.randn(6, 4, generator=G)
LABELS = torch.tensor([0, 1, 2, 3, 0, 2])
IGNORED = torch.tensor([0, 1, -100, 3, 0, -100])
SOFT = torch.rand(6, 4, generator=G).softmax(1)
SHARES = torch.rand(6, 4, generator=G)
GOALS = torch.randn(6, 4, generator=G)
WEIGHTS = torch.tensor([0.5, 1.0, 2.0, 3.0])


def floor_of(loss_of):
    output = OUTPUT.clone().requires_grad_(True)
    loss = loss_of(output)
    floor = Floor(loss)
    loss.backward()
    floor.release()
    return floor.value


def reached(loss_of):
    """What free outputs reach by Newton-like steps in float64."""
    output = OUTPUT.double().requires_grad_(True)
    optimizer = torch.optim.LBFGS(
        [output], max_iter=400, line_search_fn="strong_wolfe", tolerance_change=1e-14
    )

    def closure():
        optimizer.zero_grad()
        loss = loss_of(output)
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)
    return float(loss_of(output).detach())


KNOWN = {
    "hard": lambda o: F.cross_entropy(o, LABELS),
    "ignored": lambda o: F.cross_entropy(o, IGNORED),
    "weighted": lambda o: F.cross_entropy(o, LABELS, weight=WEIGHTS.to(o)),
    "sum": lambda o: F.cross_entropy(o, LABELS, reduction="sum"),
    "smoothed": lambda o: F.cross_entropy(o, LABELS, label_smoothing=0.2),
    "smoothed-weighted": lambda o: F.cross_entropy(
        o, LABELS, weight=WEIGHTS.to(o), label_smoothing=0.1
    ),
    "soft": lambda o: F.cross_entropy(o, SOFT.to(o)),
    "soft-by-hand": lambda o: -(SOFT.to(o) * o.log_softmax(-1)).sum(-1).mean(),
    "hard-by-hand": lambda o: -o.log_softmax(1).gather(1, LABELS[:, None]).mean(),
    "sequence": lambda o: F.cross_entropy(o.view(2, 3, 4).mT, LABELS.view(2, 3)),
    "divergence": lambda o: F.kl_div(o.log_softmax(1), SOFT.to(o), reduction="batchmean"),
    "constant": lambda o: F.cross_entropy(o, LABELS) + 3,
    "squares": lambda o: F.mse_loss(o, GOALS.to(o)),
    "squares-by-hand": lambda o: ((o - GOALS.to(o)) ** 2).sum(1).mean(),
    "huber": lambda o: 2 * F.smooth_l1_loss(o, GOALS.to(o)),
    "binary": lambda o: F.binary_cross_entropy_with_logits(o, (SHARES > 0.5).to(o)),
    "binary-soft": lambda o: F.binary_cross_entropy_with_logits(o, SHARES.to(o)),
    "binary-soft-weighted": lambda o: F.binary_cross_entropy_with_logits(
        o, SHARES.to(o), pos_weight=WEIGHTS.to(o)
    ),
    "two": lambda o: F.cross_entropy(o[:, :2], LABELS % 2) + 0.1 * F.mse_loss(o[:, 2:], GOALS[:, 2:].to(o)),
}  # fmt: skip


@pytest.mark.parametrize("name", KNOWN)
def test_the_floor_is_what_free_outputs_reach(name):
    value = floor_of(KNOWN[name])
    assert value is not None
    assert value == pytest.approx(reached(KNOWN[name]), abs=2e-4)


UNKNOWN = {
    "added to squares": lambda o: F.mse_loss(o, GOALS) + 1,
    "negated": lambda o: -F.mse_loss(o, GOALS),
    "of logits": lambda o: F.nll_loss(o, LABELS),
    "contrast": lambda o: -(o.log_softmax(1) * GOALS).sum(),
    "product": lambda o: (o[:, 0] * o[:, 1]).mean(),
    "not a share": lambda o: F.binary_cross_entropy_with_logits(o, SHARES + 1),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_no_floor_is_claimed_where_the_graph_does_not_tell(name):
    assert floor_of(UNKNOWN[name]) is None


def test_a_lower_bound_holds_where_terms_compete():
    """Both terms pull on the same outputs: what is reached lies above the sum of their floors."""

    def loss(output):
        return F.cross_entropy(output, SOFT.to(output)) + 0.1 * F.mse_loss(output, GOALS.to(output))

    value = floor_of(loss)
    assert value is not None
    assert value < reached(loss)
    assert math.isfinite(value)
