"""A training step reads every sample of every batch, and keeps each with its own targets."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, Labels


class Regressor(nn.Module):
    """Two layers, a class and a value."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.kind, self.value = nn.Linear(5, 12), nn.Linear(12, 4), nn.Linear(12, 1)

    def forward(self, x):
        h = torch.tanh(self.body(x))
        return self.kind(h), self.value(h)[:, 0]


def check(compute, *, targets=None, sizes=None, **declared):
    def step(model, optimizer, inputs, targets):
        optimizer.zero_grad()
        loss = compute(model, *inputs, targets)
        loss.backward()
        optimizer.step()
        return loss.detach()

    declared.setdefault("inputs", "B 5")
    return (
        Contract(
            model=Regressor,
            targets=Labels("B", classes=4) if targets is None else targets,
            sizes={"B": (8, 24)} if sizes is None else sizes,
            optimizer=lambda m: torch.optim.Adam(m.parameters(), lr=0.01),
            train_step=step,
            **declared,
        )
        .check(["step-losses"])
        .findings
    )


def told(found):
    return [(f.status, f.code) for f in found if f.status in ("violated", "suspicious", "error")]


def plain(model, x, y):
    return F.cross_entropy(model(x)[0], y)


def without_the_first(model, x, y):
    return plain(model, x[1:], y[1:])


def of_every_other(model, x, y):
    kind = model(x)[0]
    return torch.stack(
        [F.cross_entropy(kind[i : i + 1], y[i : i + 1]) for i in range(1, len(x), 2)]
    ).mean()


def parts_without_the_last(model, x, y):
    parts = list(zip(x.tensor_split(3), y.tensor_split(3), strict=True))
    return torch.stack([plain(model, a, b) for a, b in parts[:2]]).sum() / 3


def reversed_inputs(model, x, y):
    return plain(model, x.flip(0), y)


def sorted_by_their_first_feature(model, x, y):
    return plain(model, x[x[:, 0].argsort()], y)


@pytest.mark.parametrize(
    ("compute", "code"),
    [
        (without_the_first, "target-unread"),
        (of_every_other, "target-unread"),
        (parts_without_the_last, "target-unread"),
        (reversed_inputs, "target-of-another-sample"),
        (sorted_by_their_first_feature, "target-of-another-sample"),
    ],
)
def test_a_step_that_loses_samples_is_found(compute, code):
    found = check(compute)
    assert told(found) == [("violated", code)], found


class KeptFirst:
    """Keeps the features' mean and deviation of the first batch, and its labels by mistake."""

    def __init__(self) -> None:
        self.first = None

    def __call__(self, model, x, y):
        self.first = self.first or (x, y)
        return plain(model, *self.first)


def test_a_step_that_keeps_its_first_batch_is_found():
    (found,) = [f for f in check(KeptFirst()) if f.status == "violated"]
    assert found.code == "targets-ignored"
    assert found.summary == "the training step reads its first batch alone"


class KeptLabels(KeptFirst):
    """Keeps the labels of the first batch alone."""

    def __call__(self, model, x, y):
        self.first = y if self.first is None else self.first
        return plain(model, x, self.first)


def test_a_step_that_keeps_its_first_targets_is_found():
    (found,) = [f for f in check(KeptLabels()) if f.status == "violated"]
    assert found.code == "targets-ignored"
    assert found.summary == "the training step reads the targets of its first batch alone"


class Delayed(KeptFirst):
    """Learns the labels of the batch before beside its own, as a queue does."""

    def __call__(self, model, x, y):
        before, self.first = self.first, y
        loss = plain(model, x, y)
        return loss if before is None else loss + 0.1 * plain(model, x, before)


def test_a_step_may_keep_targets_and_read_its_own():
    assert not told(check(Delayed()))


def hardest(model, x, y):
    return F.cross_entropy(model(x)[0], y, reduction="none").topk(2).values.mean()


def masked(model, x, y):
    loss = F.cross_entropy(model(x)[0], y["kind"], reduction="none")
    return (loss * y["counts"]).sum() / y["counts"].sum().clamp(min=1)


def chosen_by_mask(model, x, y):
    rows = y["counts"].bool()
    return plain(model, x[rows], y["kind"][rows]) + 0 * model(x)[1].sum()


def shuffled_alike(model, x, y):
    order = torch.randperm(len(x))
    return plain(model, x[order], y[order])


def mixed_up(model, x, y):
    order = torch.randperm(len(x))
    kind = model(0.7 * x + 0.3 * x[order])[0]
    return 0.7 * F.cross_entropy(kind, y) + 0.3 * F.cross_entropy(kind, y[order])


def drawn_part(model, x, y):
    rows = torch.randperm(len(x))[: len(x) // 2]
    return plain(model, x[rows], y[rows])


def own_points(model, x, y):
    kind, value = model(torch.rand(6, 5))
    return value.pow(2).mean() + kind.pow(2).mean()


COUNTED = {"kind": Labels("B", classes=4), "counts": Labels("B", classes=2)}


@pytest.mark.parametrize(
    ("compute", "targets"),
    [
        (plain, None), (hardest, None), (masked, COUNTED), (chosen_by_mask, COUNTED), (shuffled_alike, None),
        (mixed_up, None), (drawn_part, None),
    ],
)  # fmt: skip
def test_a_step_that_reads_what_it_means_to_passes(compute, targets):
    assert not told(check(compute, targets=targets))


def test_a_remainder_that_parts_leave_over_is_not_for_certain():
    def halves(model, x, y):
        half = len(x) // 2
        return plain(model, x[:half], y[:half]) + plain(
            model, x[half : 2 * half], y[half : 2 * half]
        )

    found = check(halves, sizes={"B": (9, 24)})
    assert told(found) in ([], [("suspicious", "target-unread")])


def test_a_step_that_makes_its_own_data_is_not_blamed_for_its_inputs():
    found = check(own_points, targets=())
    assert not told(found)


HEADS = {"kind": Labels("B", classes=4), "value": "B"}


def test_a_declared_target_that_alone_fits_an_output_is_missed():
    def one(model, x, y):
        kind, value = model(x)
        return F.cross_entropy(kind, y["kind"]) + value.abs().mean()

    def both(model, x, y):
        kind, value = model(x)
        return F.cross_entropy(kind, y["kind"]) + F.mse_loss(value, y["value"])

    assert told(check(one, targets=HEADS)) == [("violated", "targets-ignored")]
    assert not told(check(both, targets=HEADS))


@pytest.mark.parametrize(
    ("loss", "status"), [(None, "violated"), (lambda o, y: F.cross_entropy(o[0], y), "suspicious")]
)
def test_targets_that_a_loss_beside_the_step_reads_may_be_for_that_alone(loss, status):
    def step(model, optimizer, inputs, targets):
        optimizer.zero_grad()
        value = model(*inputs)[1].square().mean()
        value.backward()
        optimizer.step()
        return value.detach()

    contract = Contract(
        model=Regressor,
        inputs="B 5",
        targets=Labels("B", classes=4),
        loss=loss,
        sizes={"B": 8},
        optimizer=lambda m: torch.optim.Adam(m.parameters(), lr=0.01),
        train_step=step,
    )
    assert (status, "targets-ignored") in told(contract.check(["step-losses"]).findings)


@pytest.mark.parametrize(("extra", "status"), [("B 7", "suspicious"), ("B", "violated")])
def test_a_declared_target_of_a_loss_that_nothing_reads(extra, status):
    def loss(output, y):
        return F.cross_entropy(output[0], y["kind"]) + output[1].abs().mean()

    contract = Contract(
        model=Regressor, inputs="B 5", targets={"kind": HEADS["kind"], "more": extra}, loss=loss
    )
    found = contract.check(["target-ownership"]).findings
    assert told(found) == [(status, "targets-ignored")], found


def test_a_batch_by_hand_may_hold_more_than_is_used():
    def loss(output, y):
        return F.cross_entropy(output[0], y["kind"]) + output[1].abs().mean()

    generator = torch.Generator().manual_seed(0)
    x = torch.randn(6, 5, generator=generator)
    y = {"kind": torch.randint(4, (6,), generator=generator), "weight": torch.rand(6)}
    found = Contract(model=Regressor, batch=((x,), y), loss=loss).check(["target-ownership"])
    assert not told(found.findings)


@pytest.mark.parametrize(
    ("field", "status"),
    [
        (torch.randn(6, generator=torch.Generator().manual_seed(1)), "inconclusive"),  # a reward
        (torch.arange(6) % 4, "inconclusive"),  # labels of an output's classes
        (torch.arange(6) + 1000, "passed"),  # numbers of samples
        (torch.ones(6), "passed"),
        (torch.randn(3), "passed"),
    ],
)
def test_what_looks_like_a_target_by_hand_and_is_not_read_is_no_pass(field, status):
    def loss(output, y):
        return F.cross_entropy(output[0], y["kind"]) + output[1].abs().mean()

    def step(model, optimizer, inputs, targets):
        optimizer.zero_grad()
        value = loss(model(*inputs), targets)
        value.backward()
        optimizer.step()
        return value.detach()

    generator = torch.Generator().manual_seed(0)
    x = torch.randn(6, 5, generator=generator)
    batch = (x,), {"kind": torch.randint(4, (6,), generator=generator), "more": field}
    declared = (
        {"loss": loss},
        {"train_step": step, "optimizer": lambda m: torch.optim.SGD(m.parameters(), lr=0.1)},
    )
    for how, name in zip(declared, ("target-ownership", "step-losses"), strict=True):
        (found,) = Contract(model=Regressor, batch=batch, **how).check([name]).findings
        assert found.status == status
        assert status == "passed" or "more" in found.summary


class SparseRows(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows, self.head = nn.Embedding(30, 6, sparse=True), nn.Linear(6, 3)

    def forward(self, ids):
        return self.head(self.rows(ids).mean(1))


def test_a_step_with_sparse_gradients_is_measured():
    def step(model, optimizer, inputs, targets):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(*inputs), targets)
        loss.backward()
        optimizer.step()
        return loss

    report = Contract(
        model=SparseRows,
        batch=((torch.randint(0, 30, (6, 4)),), torch.tensor([0, 1, 2, 2, 1, 0])),
        loss=F.cross_entropy,
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        train_step=step,
    ).check(["step-losses"])
    assert [f.status for f in report.findings] == ["passed"]
