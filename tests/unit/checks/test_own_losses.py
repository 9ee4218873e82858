"""Losses that a model or a training step computes for itself are held to what declared ones are."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, Floats, Labels, promises

CLASSES = Labels("B T", classes=5, ignore_index=-1)


class Tagger(nn.Module):
    """Returns its loss and its scores."""

    def __init__(self, loss, width=5):
        super().__init__()
        self.layer, self.loss = nn.Linear(4, width), loss

    def forward(self, x, y):
        scores = self.layer(x)
        return {"loss": self.loss(scores, y), "scores": scores}


def kept(scores, y):
    return F.cross_entropy(scores.flatten(0, 1), y.flatten(), ignore_index=-1)


def counted(scores, y):
    return F.cross_entropy(scores.flatten(0, 1), y.clamp(min=0).flatten())


def tagger(loss):
    inputs = {"x": Floats("B T 4"), "y": CLASSES}
    return Contract(model=lambda: Tagger(loss), inputs=inputs, loss="output")


def codes(contract, check):
    return [
        (f.status, f.code if f.status in ("violated", "suspicious") else "")
        for f in contract.check([check]).findings
    ]


def test_labels_among_the_inputs_that_do_not_count():
    assert codes(tagger(counted), "ignored-targets") == [("violated", "ignored-counted")]
    assert codes(tagger(kept), "ignored-targets") == [("passed", "")]


def regression(loss):
    inputs = {"x": Floats("B 4"), "y": Floats("B")}
    return Contract(model=lambda: Tagger(loss, 1), inputs=inputs, loss="output")


def test_shapes_in_a_loss_of_the_models_own():
    apart = regression(F.smooth_l1_loss)
    with pytest.warns(UserWarning, match="Using a target size"):
        assert codes(apart, "loss-shapes") == [("violated", "loss-broadcast")]
    assert codes(regression(lambda p, y: F.smooth_l1_loss(p[:, 0], y)), "loss-shapes") == [
        ("passed", "")
    ]
    hidden = regression(lambda p, y: (p[:, 0] - y).pow(2).mean())
    assert codes(hidden, "loss-shapes") == [("not-applicable", "")]
    (finding,) = regression(lambda p, y: (p - 2 * y).abs().mean()).check(["loss-shapes"]).findings
    assert (finding.status, finding.code) == ("violated", "loss-broadcast")
    assert "(p - 2 * y)" in finding.location.text


@pytest.mark.parametrize(
    "loss",
    [
        lambda p, y: (p - y[:, None]).abs().mean(),
        lambda p, y: ((p - p[:, 0]) * (y[:, None] - y)).square().mean(),  # pairs, on purpose
        lambda p, y: (p - y.mean()).square().mean() + (y[:, None] - y).square().mean(),
        lambda p, y: (p[:, 0] * y).sum() / (1 + y.square().sum()),
    ],
    ids=["column", "pairs", "statistics", "products"],
)
def test_arithmetic_of_a_loss_of_the_models_own_that_is_meant(loss):
    assert codes(regression(loss), "loss-shapes") == [("not-applicable", "")]


class Penalised(nn.Module):
    """Adds a term to the declared loss, within its forward."""

    def __init__(self, keepdim):
        super().__init__()
        self.layer, self.keepdim = nn.Linear(4, 3), keepdim

    def forward(self, x):
        scores = self.layer(x)
        return scores, F.mse_loss(scores.mean(1, keepdim=self.keepdim), x.norm(dim=1))


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize(("keepdim", "code"), [(True, "loss-broadcast"), (False, "")])
def test_shapes_in_a_term_of_the_models_own(keepdim, code):
    contract = Contract(
        model=lambda: Penalised(keepdim),
        inputs="B 4",
        targets=Labels("B", classes=3),
        loss=lambda out, y: F.cross_entropy(out[0], y) + 0.1 * out[1],
    )
    assert [c for _, c in codes(contract, "loss-shapes")] == [code]


def stepping(loss, width, targets):
    def step(model, optimizer, inputs, targets):
        optimizer.zero_grad()
        value = loss(model(*inputs), targets)
        value.backward()
        optimizer.step()
        return value.detach()

    return Contract(
        model=lambda: nn.Linear(4, width),
        inputs="B 4",
        sizes={"B": (12, 12)},
        targets=targets,
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        train_step=step,
    )


@pytest.mark.parametrize(
    ("loss", "width", "targets", "expected"),
    [
        (lambda p, y: (p - y).abs().mean(), 1, Floats("B"), ("violated", "loss-broadcast")),
        (lambda p, y: (p[:, 0] - y).abs().mean(), 1, Floats("B"), ("passed", "")),
        (lambda p, y: p.square().mean(), 1, Floats("B"), ("violated", "targets-ignored")),
        (lambda p, y: p.square().mean(), 1, None, ("not-applicable", "")),
        (
            lambda p, y: F.nll_loss(p.softmax(1).log(), y),
            3,
            Labels("B", classes=3),
            ("suspicious", "log-of-probabilities"),
        ),
        (
            lambda p, y: F.nll_loss(p.log_softmax(1), y),
            3,
            Labels("B", classes=3),
            ("passed", ""),
        ),
        (
            lambda p, y: F.binary_cross_entropy_with_logits(y.float(), p[:, 0]),
            1,
            Labels("B", classes=2),
            ("violated", "loss-arguments-swapped"),
        ),
    ],
)
def test_losses_of_a_step(loss, width, targets, expected):
    assert codes(stepping(loss, width, targets), "step-losses") == [expected]


def unread(out, y):
    return out.relu().mean()


@pytest.mark.parametrize(
    ("given", "status"),
    [
        ({"inputs": "B 4", "targets": Floats("B 2")}, "violated"),
        ({"batch": ((torch.randn(6, 4),), torch.tensor([0, 1, 2, 0, 1, 2]))}, "violated"),
        # images and a critic's scores: no criterion compares the two
        ({"batch": ((torch.randn(6, 4),), torch.randn(6, 2, 5, 5))}, "suspicious"),
        # what a loader gives beside the inputs
        (
            {"batch": torch.utils.data.TensorDataset(torch.randn(12, 4), torch.arange(12) % 3)},
            "suspicious",
        ),
    ],
)
def test_targets_that_a_loss_does_not_read(given, status):
    contract = Contract(model=lambda: nn.Linear(4, 3), loss=unread, **given)
    assert codes(contract, "target-ownership") == [(status, "targets-ignored")]


class Scorer(nn.Module):
    """Computes its loss from scores and labels, with terms by a function."""

    def __init__(self, loss):
        super().__init__()
        self.embed, self.head, self.loss = nn.Embedding(9, 6), nn.Linear(6, 4), loss

    def forward(self, x, labels):
        made = self.embed(x).mean(1) if not x.is_floating_point() else x
        return self.loss(self.head(made.tanh()), labels)


def picked(p, y):
    return -p.log_softmax(1)[torch.arange(len(y)), y]


def triplets(p, y):
    apart, same = torch.cdist(p, p), y[:, None] == y
    return (apart * same - apart * ~same).amax(1).relu().mean()


def prototypes(p, y):
    one = F.one_hot(y, 4).to(p.dtype)
    return F.cross_entropy(-torch.cdist(p, one.T @ p / one.sum(0).clamp(min=1)[:, None]), y)


def standardised(p, y):
    goal = (y - y.double().mean()) / (y.double().std() + 0.1)
    return (p - goal[:, None] * torch.arange(4)).square().mean()


LABELLED = [
    (lambda p, y: picked(p, y.roll(1)).mean(), "violated", "target-of-another-sample"),
    (lambda p, y: picked(p.flip(0), y).mean(), "violated", "target-of-another-sample"),
    (lambda p, y: -p.log_softmax(1)[:, y].mean(), "violated", "samples-share-targets"),
    (lambda p, y: picked(p, y)[:1].mean(), "violated", "target-unread"),
    (lambda p, y: picked(p, y)[1:].sum(), "violated", "target-unread"),
    (lambda p, y: picked(p, y).mean(), "passed", ""),
    (lambda p, y: picked(p, y).sum() / (y > 0).sum().clamp(min=1), "passed", ""),
    (lambda p, y: picked(p, y)[y > 0].sum(), "passed", ""),
    (standardised, "passed", ""),
    # samples meet in the loss on purpose
    (lambda p, y: picked(p, y).topk(2)[0].mean(), "sound", ""),
    (triplets, "sound", ""),
    (prototypes, "sound", ""),
    (lambda p, y: p.square().mean(), "sound", ""),
    (lambda p, y: picked(p, y)[torch.randperm(len(y))[:2]].mean(), "sound", ""),
]


LABELLED_NAMES = (
    "rolled", "flipped", "indexed over the batch", "first only", "first left out", "each",
    "normalised", "filtered", "standardised", "hardest", "triplets", "prototypes", "unread", "random",
)  # fmt: skip


@pytest.mark.parametrize("tokens", [False, True], ids=["floats", "tokens"])
@pytest.mark.parametrize(("loss", "status", "code"), LABELLED, ids=LABELLED_NAMES)
def test_labels_of_a_models_own_loss_belong_to_their_sample(loss, status, code, tokens):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(7, 6, generator=generator)
    if tokens:
        x = torch.randint(0, 9, (7, 5), generator=generator)
    batch = {"x": x, "labels": torch.tensor([0, 1, 2, 3, 1, 2, 3])}
    contract = Contract(model=lambda: Scorer(loss), batch=batch, loss="output")
    ((found, told),) = codes(contract, "target-ownership")
    assert told == code
    assert found == status or (status == "sound" and found in ("passed", "not-applicable"))


def test_a_models_own_loss_over_its_labels_is_told_in_its_own_words():
    contract = Contract(
        model=lambda: Scorer(lambda p, y: -p.log_softmax(1)[:, y].mean()),
        batch={"x": torch.randn(6, 6), "labels": torch.tensor([0, 1, 2, 3, 1, 2])},
        loss="output",
    )
    (finding,) = contract.check(["target-ownership"]).findings
    assert "changes the gradient of the inputs of 2 other samples" in finding.observed
    assert "the labels in another order give the same loss" in finding.because


class Decoder(nn.Module):
    """A causal convolution over tokens that computes the cross entropy of each head, ``ahead`` of its labels."""

    def __init__(self, *ahead: int) -> None:
        super().__init__()
        self.ahead = ahead
        self.words, self.mixed = nn.Embedding(17, 12), nn.Conv1d(12, 24, 3)
        self.heads = nn.ModuleList(nn.Linear(24, 17) for _ in ahead)

    def forward(self, tokens, labels):
        x = F.pad(self.words(tokens).transpose(1, 2), (2, 0))
        hidden = self.mixed(x).tanh().transpose(1, 2)
        scores = [head(hidden) for head in self.heads]
        loss = sum(
            F.cross_entropy(s[:, : s.shape[1] - k].flatten(0, 1), labels[:, k:].flatten())
            for s, k in zip(scores, self.ahead, strict=True)
        )
        return {"loss": loss, "scores": scores}


def told_of_shift(by_data, *ahead, **declared):
    text = torch.randint(0, 17, (5, 14), generator=torch.Generator().manual_seed(3))
    tokens, labels = text[:, :12], text[:, by_data : 12 + by_data].contiguous()
    contract = Contract(
        model=Decoder(*ahead), batch=({"tokens": tokens, "labels": labels}, None),
        loss=lambda out, _: out["loss"], **declared,
    )  # fmt: skip
    (finding,) = contract.check(["label-shift"]).findings
    return finding


@pytest.mark.parametrize(("by_data", "ahead"), [(1, 1), (0, 2), (2, 0)])
def test_labels_of_a_models_own_loss_are_shifted_once(by_data, ahead):
    finding = told_of_shift(by_data, ahead)
    assert (finding.status, finding.code) == ("violated", "label-shift")
    assert "token 2 positions ahead" in finding.summary
    assert finding.culprits[0].name == "labels"


@pytest.mark.parametrize(
    ("by_data", "ahead", "status"),
    [
        (1, (0,), "passed"),
        (0, (1,), "passed"),
        (1, (0, 1), "passed"),  # a second head learns the token after the next, as drafts do
        (0, (0,), "not-applicable"),  # to repeat what it is given may be its task
    ],
)
def test_shifts_of_labels_that_may_be_meant(by_data, ahead, status):
    assert told_of_shift(by_data, *ahead).status == status


def test_a_promised_causal_model_of_its_own_loss_must_not_repeat_its_input():
    finding = told_of_shift(0, 0, promises=(promises.Causal(input="tokens", output="scores.0"),))
    assert (finding.status, finding.code) == ("violated", "label-shift")


def distilled(teacher_dim, student_dim=-1, product=lambda p, q: -(p * q).sum(-1).mean()):
    """A contract whose loss weighs a student's log-probabilities with a teacher's probabilities."""

    def loss(out, _):
        student, teacher = out
        weights = (teacher.detach() / 0.1).softmax(teacher_dim)
        return product(weights, F.log_softmax(student, student_dim))

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.student, self.teacher = nn.Linear(4, 6), nn.Linear(4, 6).requires_grad_(False)

        def forward(self, x):
            return self.student(x), self.teacher(x)

    return Contract(model=Two, batch=((torch.randn(5, 4),), None), loss=loss)


@pytest.mark.parametrize(
    "product",
    [lambda p, q: -(p * q).sum(-1).mean(), lambda p, q: F.kl_div(q, p, reduction="batchmean")],
    ids=["by hand", "kl_div"],
)
def test_probabilities_over_samples_weigh_no_classes(product):
    (finding,) = distilled(0, product=product).check(["loss-input"]).findings
    assert (finding.status, finding.code) == ("violated", "distribution-axes")
    assert "softmax(teacher_dim)" in finding.location.text
    assert codes(distilled(-1, product=product), "loss-input")[0][0] in ("passed", "not-applicable")


@pytest.mark.parametrize(
    "contract",
    [
        distilled(0, 0, lambda p, q: -(p * q).sum(0).mean()),  # both over the samples
        distilled(0, -1, lambda p, q: (p.log() - q).square().mean()),  # compares, weighs nothing
        distilled(0, -1, lambda p, q: -(p.mean(1, keepdim=True) * q).sum(-1).mean()),
        distilled(0, -1, lambda p, q: -(p * q.exp()).sum(-1).mean()),  # a match both ways
    ],
    ids=["samples", "compared", "weights of samples", "dual softmax"],
)
def test_two_distributions_that_may_meet(contract):
    assert all(status != "violated" for status, _ in codes(contract, "loss-input"))


def weighed_by_time(keep):
    """A denoiser whose loss is weighed by a table at the time steps, which are inputs and targets."""
    table, times = torch.linspace(0.1, 1.0, 50), torch.tensor([3, 9, 20, 31, 48])

    class Denoiser(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(5, 4)

        def forward(self, x, t):
            return self.layer(torch.cat([x, t[:, None] / 50], 1))

    def loss(out, targets):
        wanted, t = targets
        errors = (out - wanted).square().mean(1, keepdim=keep)
        return (errors * table[t][:, None]).mean()

    x = torch.randn(5, 4)
    return Contract(model=Denoiser, batch=((x, times), (torch.randn(5, 4), times)), loss=loss)


def test_weights_by_an_input_meet_the_loss_of_their_sample():
    (finding,) = weighed_by_time(False).check(["loss-shapes"]).findings
    assert (finding.status, finding.code) == ("violated", "loss-broadcast")
    assert "combined with what belongs to all samples" in finding.cause
    assert codes(weighed_by_time(True), "loss-shapes") == [("passed", "")]


class Matched(nn.Module):
    """Scores each sample of one kind against each of the other."""

    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(4, 6), nn.Linear(4, 6)

    def forward(self, x, y):
        return self.one(x) @ self.other(y).T


def balanced(score, _):
    score = score - score.logsumexp(1, keepdim=True)
    return -(score - score.logsumexp(0)).diagonal().mean()


def divided(score, _):
    share = score.exp()
    total = share.sum(1)
    return -(share / total).diagonal().log().mean()


SHIFTS = {
    "maximum": lambda s, _: (s - s.detach().max(1).values).exp().mean(),
    "kept": lambda s, _: (s - s.amax(1, keepdim=True)).exp().mean(),
    "indexed": lambda s, _: (s - s.amax(1)[:, None]).exp().mean(),
    "columns": lambda s, _: (s - s.amax(0)).exp().mean(),
    "symmetric": lambda s, _: ((s + s.T) - (s + s.T).mean(1)).square().mean(),
    "transposed": lambda s, _: (s.T - s.mean(1)).square().mean(),
    "balanced": balanced,
    "divided": divided,
}


@pytest.mark.parametrize("kind", SHIFTS)
def test_columns_that_are_given_the_numbers_of_rows_are_found(kind):
    torch.manual_seed(0)
    batch = ((torch.randn(5, 4), torch.randn(5, 4)), None)
    (finding,) = (
        Contract(model=Matched, batch=batch, loss=SHIFTS[kind]).check(["loss-input"]).findings
    )
    if kind not in ("maximum", "divided"):
        assert finding.status in ("passed", "not-applicable")
        return
    status = "suspicious" if kind == "divided" else "violated"
    assert (finding.status, finding.code) == (status, "distribution-axes")
    assert ("share / total" if kind == "divided" else "max(1)") in finding.location.text
