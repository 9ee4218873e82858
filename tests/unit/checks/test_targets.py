"""The loss at the edge of its targets, and whose output each target decides."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, Labels

B, CLASSES = 7, 5


def check(loss, *, name, y=None, model=None, **declared):
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(B, 6, generator=generator)
    if y is None:
        y = torch.randint(0, CLASSES, (B,), generator=generator)
    declared.setdefault("batch", ((x,), y))
    contract = Contract(model=model or (lambda: nn.Linear(6, CLASSES)), loss=loss, **declared)
    return contract.check(checks=[name]).findings


def codes(found):
    return [f.code for f in found if f.status in ("violated", "suspicious")]


def real(seed=1):
    return torch.randn(B, CLASSES, generator=torch.Generator().manual_seed(seed))


def soft_dice(o, y):
    p, h = o.softmax(1), F.one_hot(y, CLASSES).float()
    return 1 - ((2 * (p * h).sum(0) + 1) / (p.sum(0) + h.sum(0) + 1)).mean()


def supervised_contrastive(o, y):
    z = F.normalize(o, dim=1)
    scores = (z @ z.T / 0.3).fill_diagonal_(-1e4)
    same = (y[:, None] == y[None]).float().fill_diagonal_(0)
    return -(same * scores.log_softmax(1)).sum() / same.sum().clamp(min=1)


OWN = {
    "cross entropy": F.cross_entropy,
    "class weights": lambda o, y: F.cross_entropy(o, y, weight=torch.arange(1.0, 6.0)),
    "weights by frequency in the batch": lambda o, y: F.cross_entropy(
        o, y, weight=1 / (1 + torch.bincount(y, minlength=CLASSES))
    ),
    "label smoothing": lambda o, y: F.cross_entropy(o, y, label_smoothing=0.2),
    "hardest samples": lambda o, y: F.cross_entropy(o, y, reduction="none").topk(2)[0].mean(),
    "dice and cross entropy": lambda o, y: soft_dice(o, y) + F.cross_entropy(o, y),
    "supervised contrastive": supervised_contrastive,
    "margin": F.multi_margin_loss,
    "normalised by the positives": lambda o, y: (
        F.cross_entropy(o, y, reduction="none").sum() / (y > 0).sum().clamp(min=1)
    ),
}


@pytest.mark.parametrize("name", OWN)
def test_a_correct_loss_is_not_blamed(name: str) -> None:
    assert not codes(check(OWN[name], name="target-ownership"))
    assert not codes(check(OWN[name], name="target-alignment"))


@pytest.mark.parametrize(
    ("loss", "code"),
    [
        (lambda o, y: F.cross_entropy(o[1:], y[1:]), "target-unread"),
        (lambda o, y: F.cross_entropy(o[::2], y[::2]), "target-unread"),
        (lambda o, y: F.cross_entropy(o, y.flip(0)), "target-of-another-sample"),
        (lambda o, y: F.cross_entropy(o.roll(2, 0), y), "target-of-another-sample"),
        (lambda o, y: F.nll_loss(o.log_softmax(0), y), "samples-share-targets"),
        (lambda o, y: F.cross_entropy(o - o.mean(0), y), "samples-share-targets"),
    ],
    ids=["first left out", "every other", "flipped", "rolled", "softmax over samples", "centred"],
)
def test_a_loss_of_other_samples(loss, code: str) -> None:
    assert codes(check(loss, name="target-ownership")) == [code]


@pytest.mark.parametrize(
    ("loss", "code"),
    [
        (F.mse_loss, None),
        (F.huber_loss, None),
        (lambda o, y: F.mse_loss(o, y.mean(0).expand_as(o)), "samples-share-targets"),
        (lambda o, y: F.l1_loss(o[:-2], y[:-2]), "target-unread"),
    ],
)
def test_regression(loss, code: str | None) -> None:
    assert codes(check(loss, name="target-ownership", y=real())) == ([code] if code else [])


def moments(o, y):
    """First and second moments of a batch, by hand: no sample has a partner."""
    return (o.mean(0) - y.mean(0)).abs().sum() + (o.square().mean(0) - y.square().mean(0)).pow(
        2
    ).sum()


@pytest.mark.parametrize(
    ("loss", "code"),
    [
        (moments, "samples-share-targets"),
        (lambda o, y: (o - y).sum(0).logsumexp(0), "samples-share-targets"),
        (lambda o, y: (o.sort(0)[0] - y.sort(0)[0]).abs().mean(), "samples-share-targets"),
        (lambda o, y: moments(o, y) + F.mse_loss(o, y), None),
        (lambda o, y: (o - y).pow(2).mean().sqrt(), None),
    ],
    ids=["moments", "sum of errors", "sorted over samples", "moments beside a fit", "root"],
)
def test_targets_that_may_change_places_belong_to_no_sample(loss, code: str | None) -> None:
    found = check(loss, name="target-ownership", y=real())
    assert [(f.status, f.code) for f in found if f.status != "passed"] == (
        [("suspicious", code)] if code else []
    )


def test_a_loss_that_relates_samples_is_not_said_to_keep_them_apart() -> None:
    (found,) = check(
        lambda o, y: moments(o, y) + F.mse_loss(o, y), name="target-ownership", y=real()
    )
    assert "of others too" in found.summary


class Pairs(nn.Module):
    """Scores each sample against the keys of all."""

    def __init__(self) -> None:
        super().__init__()
        self.ask, self.key = nn.Linear(4, 6), nn.Embedding(9, 6)

    def forward(self, x, number):
        return self.ask(x) @ self.key(number).T


def test_samples_that_are_ranked_against_each_other_share_what_tells_their_equals() -> None:
    def loss(scores, number):
        same = number[:, None] == number[None, :]
        hidden = scores.masked_fill(same.fill_diagonal_(False), float("-inf"))
        return F.cross_entropy(hidden, torch.arange(len(number)))

    number = torch.tensor([0, 3, 3, 5, 8, 0, 2])
    x = torch.randn(7, 4, generator=torch.Generator().manual_seed(2))
    batch = {"x": x, "number": number}, number.clone()
    found = Contract(model=Pairs, loss=loss, batch=batch).check(["target-ownership"]).findings
    assert not codes(found)


def test_samples_that_a_mask_leaves_out_are_no_finding() -> None:
    mask = torch.ones(B)
    mask[[1, 4]] = 0
    y = torch.randint(0, CLASSES, (B,), generator=torch.Generator().manual_seed(0))

    def masked(o, targets):
        return (F.cross_entropy(o, targets["y"], reduction="none") * targets["mask"]).mean()

    assert not codes(check(masked, name="target-ownership", y={"y": y, "mask": mask}))


def test_ignored_samples_are_no_finding() -> None:
    y = torch.tensor([0, -100, 2, 3, -100, 1, 4])
    assert not codes(check(F.cross_entropy, name="target-ownership", y=y))


@pytest.mark.parametrize("classes", [2, 3, 4])
@pytest.mark.parametrize("size", [(7, 7), (6, 5), (8, 8), (5, 5)])
def test_classes_that_are_reshaped_instead_of_moved(classes: int, size: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 2, *size, generator=generator)
    y = torch.randint(0, classes, (3, *size), generator=generator)

    def run(loss):
        contract = Contract(model=lambda: nn.Conv2d(2, classes, 1), loss=loss, batch=((x,), y))
        return codes(contract.check(checks=["target-alignment"]).findings)

    def wrong(o, y):
        return F.cross_entropy(o.reshape(-1, classes), y.reshape(-1))

    def right(o, y):
        return F.cross_entropy(o.movedim(1, -1).reshape(-1, classes), y.reshape(-1))

    assert run(wrong) == ["target-misplaced"]
    assert run(right) == []


def per_positive(o, y):
    found = (y > 1).sum()
    return F.cross_entropy(o, y, reduction="none").sum() / found


def declared(low: int) -> dict:
    return {"inputs": "B 6", "sizes": {"B": (low, 8)}}


def test_a_sample_alone_is_violated_where_a_batch_of_one_is_declared() -> None:
    y = torch.tensor([2, 3, 0, 4, 2, 1, 3])
    (found,) = check(per_positive, name="edge-targets", y=y, **declared(1))
    assert (found.status, found.code) == ("violated", "edge-targets-non-finite")
    assert found.culprits[0].name == "found"
    assert found.location is not None
    assert found.location.text == "found = (y > 1).sum()"


def test_a_sample_alone_is_suspicious_where_no_batch_of_one_is_declared() -> None:
    y = torch.tensor([2, 3, 0, 4, 2, 1, 3])
    (found,) = check(per_positive, name="edge-targets", y=y, **declared(2))
    assert found.status == "suspicious"


def test_one_class_is_violated_where_labels_declare_it() -> None:
    def balanced(o, y):
        share = torch.bincount(y, minlength=CLASSES) / len(y)
        return F.cross_entropy(o, y) + (share.max() / share.min()).log()

    def guarded(o, y):
        return F.cross_entropy(o, y, weight=1 / (1 + torch.bincount(y, minlength=CLASSES)))

    specs = {
        "batch": None,
        "inputs": "B 6",
        "targets": Labels("B", classes=CLASSES),
        "sizes": {"B": (40, 40)},
    }
    assert codes(check(balanced, name="edge-targets", **specs)) == ["edge-targets-non-finite"]
    assert codes(check(guarded, name="edge-targets", **specs)) == []


class Levels(nn.Module):
    """Deep supervision: a prediction for each level in training, the last one in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv2d(2, 4, 3, padding=1)
        self.heads = nn.ModuleList(nn.Conv2d(4, 3, 1) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        levels = torch.stack([head(self.body(x).relu()) for head in self.heads], 1)
        return levels if self.training else levels[:, -1]


def test_a_loss_is_given_what_the_model_returns_in_training() -> None:
    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return sum(
            F.cross_entropy(level, target) / 2**i for i, level in enumerate(output.unbind(1))
        )

    found = Contract(
        model=Levels, batch=((torch.randn(4, 2, 6, 6),), torch.arange(144).view(4, 6, 6) % 3), loss=loss
    ).check(["edge-targets"])  # fmt: skip
    assert [f.status for f in found.findings] == ["passed"], [str(f) for f in found.findings]


class Filters(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 8, dtype=torch.complex64)
        self.last = nn.Linear(8, 2, dtype=torch.complex64)

    def forward(self, z):
        h = self.first(z)
        return self.last(h * torch.sigmoid(h.abs()))


def test_complex_targets_are_no_labels():
    report = Contract(
        model=Filters,
        batch=(
            (torch.randn(5, 6, dtype=torch.complex64),),
            torch.randn(5, 2, dtype=torch.complex64),
        ),
        loss=lambda out, y: (out - y).abs().square().mean(),
    ).check(["edge-targets"])
    assert "internal-error" not in [f.code for f in report.findings]
    assert report.ok


class Frames(nn.Module):
    """One output for each frame, and as many of them as frames."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv1d(4, 5, 3, padding=1)

    def forward(self, x):
        return self.body(x)


def mirrored(o, y):
    return F.smooth_l1_loss(o, torch.stack(y.unbind(2)[::-1], 2))


@pytest.mark.parametrize(
    ("loss", "symmetric", "status"),
    [
        (mirrored, False, "suspicious"),
        (lambda o, y: F.mse_loss(o * 2, y.mT), False, "suspicious"),
        (lambda o, y: F.mse_loss(o, y.mT), True, "passed"),
        (lambda o, y: F.mse_loss(o[..., 1:], y[..., :-1]), False, "passed"),
    ],
    ids=["mirrored", "transposed", "transposed distances", "next frame"],
)
def test_targets_in_reverse_or_with_axes_exchanged(loss, symmetric: bool, status: str) -> None:
    x, y = (torch.randn(3, n, 5, generator=torch.Generator().manual_seed(n)) for n in (4, 5))
    y = y + y.mT if symmetric else y
    (found,) = check(loss, name="target-alignment", model=Frames, batch=((x,), y))
    assert found.status == status


def test_sets_are_not_said_to_lie_at_one_offset() -> None:
    def in_order(o, y):
        return F.mse_loss(o.sort(1).values, y.sort(1).values)

    (found,) = check(in_order, name="target-alignment", y=real())
    assert found.status == "passed"
    assert "finds for them" in found.summary
