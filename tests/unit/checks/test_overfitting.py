"""One batch is memorised within a budget; what cannot be is known early; nothing correct is blamed."""

from __future__ import annotations

import collections

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, Labels, Overfit

BUDGET = 40


def check(seed=0, **fields):
    torch.manual_seed(seed)
    made = {key: value() if key == "batch" else value for key, value in fields.items()}
    (found,) = Contract(**made).check(["overfit"]).findings
    return found


COUNTS: collections.Counter[str] = collections.Counter()


class Counted(nn.Module):
    """Counts what a plain step is made of: forwards, and backwards through its output."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, *args):
        COUNTS["forwards"] += 1
        out = self.inner(*args)
        if out.requires_grad:
            out.register_hook(self._seen)
        return out

    @staticmethod
    def _seen(gradient):
        COUNTS["backwards"] += 1
        return gradient


@pytest.fixture(autouse=True)
def _nothing_counted():
    COUNTS.clear()


def plain_steps():
    """A forward is a third of a plain step, its backward two thirds."""
    return COUNTS["forwards"] / 3 + 2 * COUNTS["backwards"] / 3


# what is learnt, and how soon


class Attends(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(40, 32)
        self.mix = nn.MultiheadAttention(32, 4, batch_first=True)
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 40)

    def forward(self, ids):
        h = self.embed(ids)
        h = self.norm(h + self.mix(h, h, h, need_weights=False)[0])
        return self.head(h).transpose(1, 2)


def pooled():
    return nn.Sequential(
        nn.Conv2d(3, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(), nn.Dropout(0.3),
        nn.Conv2d(12, 24, 3, stride=2), nn.BatchNorm2d(24), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(24, 5),
    )  # fmt: skip


LEARNT = {
    "tanh-mlp": (
        lambda: nn.Sequential(nn.Linear(12, 48), nn.Tanh(), nn.Linear(48, 7)),
        lambda: ((torch.randn(8, 12),), torch.randint(0, 7, (8,))),
        F.cross_entropy,
    ),
    "conv": (
        pooled, lambda: ((torch.randn(6, 3, 12, 12),), torch.arange(6) % 5), F.cross_entropy,
    ),
    "language": (
        Attends,
        lambda: ((torch.randint(0, 40, (2, 9)),), torch.randint(0, 40, (2, 9))),
        F.cross_entropy,
    ),
    "regression": (
        lambda: nn.Sequential(nn.Linear(9, 40), nn.GELU(), nn.Linear(40, 3)),
        lambda: ((torch.randn(5, 9),), torch.randn(5, 3)),
        F.mse_loss,
    ),
    "smoothed": (
        lambda: nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, 6)),
        lambda: ((torch.randn(6, 12),), torch.arange(6)),
        nn.CrossEntropyLoss(label_smoothing=0.2),
    ),
    "soft": (
        lambda: nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, 4)),
        lambda: ((torch.randn(6, 12),), (2 * torch.randn(6, 4)).softmax(1)),
        F.cross_entropy,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LEARNT)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_it_is_learnt_early(name, seed):
    model, batch, loss = LEARNT[name]
    found = check(seed, model=lambda: Counted(model()), batch=batch, loss=loss)
    assert found.status == "passed", found.summary
    assert plain_steps() <= 24


@pytest.mark.parametrize("rate", [3e-3, 1e-12])
def test_a_few_samples_do_where_the_declared_optimizer_is_seen_to_learn(rate):
    model, batch, loss = LEARNT["tanh-mlp"]
    seen = []

    class Sized(Counted):
        def forward(self, *args):
            seen.append(len(args[0]))
            return super().forward(*args)

    found = check(model=lambda: Sized(model()), batch=batch, loss=loss,
                  optimizer=lambda m: torch.optim.Adam(m.parameters(), lr=rate))  # fmt: skip
    assert found.status == ("passed" if rate > 1e-6 else "suspicious"), found.summary
    if rate > 1e-6:
        assert (
            seen.count(8) == 2
        )  # the first of the steps that run anyway, and an evaluation that many checks ask for
        assert seen.count(3) >= 2
    else:
        assert seen.count(8) > 20
        assert found.code == "optimizer-crawls"


def test_the_few_samples_have_different_targets():
    model = lambda: nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 3))  # noqa: E731
    seen = []

    def loss(output, target):
        seen.append(target.tolist())
        return F.cross_entropy(output, target)

    batch = lambda: ((torch.randn(8, 6),), torch.tensor([2, 2, 2, 2, 2, 0, 2, 2]))  # noqa: E731
    found = check(model=model, batch=batch, loss=loss)
    assert found.status == "passed", found.summary
    assert seen[-1] == [2, 0, 2]


class Positions(nn.Module):
    """Classifies each position of a sequence, by its own features or by those of the whole."""

    def __init__(self, whole=False):
        super().__init__()
        self.body, self.head, self.whole = nn.Linear(6, 32), nn.Linear(32, 2), whole

    def forward(self, x):
        x = x.mean(1, keepdim=True).expand_as(x) if self.whole else x
        return self.head(torch.relu(self.body(x))).transpose(1, 2)


@pytest.mark.parametrize("whole", [False, True])
def test_scores_that_follow_the_inputs_as_labels_ask_are_learnt_unless_equal_where_labels_differ(
    whole,
):
    labels = torch.tensor([[0, 0, 0, 0, 0, 1], [1, 1, 1, 1, 1, 0], [0, 0, 0, 0, 1, 0]])
    batch = lambda: ((torch.randn(3, 6, 6),), labels)  # noqa: E731
    left = []
    for seed in range(4):
        found = check(seed, model=lambda: Positions(whole), batch=batch, loss=F.cross_entropy)
        assert (found.status == "passed") is not whole, found.summary
        left.append(found.evidence["losses"][-1] / found.evidence["losses"][0])
    assert whole or max(left) > 0.25  # enough to say that they follow


def test_samples_that_have_no_pair_among_a_few_are_learnt_with_all():
    def loss(output, target):
        """Draw the samples of one class together, and those of two apart."""
        same = (target[:, None] == target) & ~torch.eye(len(target), dtype=torch.bool)
        gaps = (output[:, None] - output).square().sum(-1)
        return (
            gaps[same].mean()
            + F.relu(4 - gaps[~same & ~torch.eye(len(target), dtype=torch.bool)]).mean()
        )

    model = lambda: nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 4))  # noqa: E731
    found = check(model=model, batch=lambda: ((torch.randn(8, 6),), torch.arange(8) % 4), loss=loss)
    assert found.status == "passed", found.summary


def test_a_schedule_with_a_fixed_number_of_steps_ends_the_run():
    def optimizer(model):
        made = torch.optim.SGD(model.parameters(), lr=1e-3)
        return made, torch.optim.lr_scheduler.OneCycleLR(made, max_lr=1e-2, total_steps=6)

    model, batch, loss = LEARNT["tanh-mlp"]
    found = check(model=model, batch=batch, loss=loss, optimizer=optimizer)
    assert (found.status, found.code) == ("passed", "held"), found.summary


def test_a_schedule_within_the_declared_step_ends_the_run():
    def optimizer(model):
        made = torch.optim.SGD(model.parameters(), lr=1e-3)
        model.schedule = torch.optim.lr_scheduler.OneCycleLR(made, max_lr=1e-2, total_steps=5)
        return made

    def step(model, optimizer, inputs, targets):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(*inputs), targets)
        loss.backward()
        optimizer.step()
        model.schedule.step()
        return loss.detach()

    model, batch, loss = LEARNT["tanh-mlp"]
    found = check(model=model, batch=batch, loss=loss, optimizer=optimizer, train_step=step)
    assert found.status == "passed", found.summary


def test_a_schedule_that_asks_for_the_loss_gets_it():
    def optimizer(model):
        made = torch.optim.Adam(model.parameters(), lr=2e-2)
        return made, torch.optim.lr_scheduler.ReduceLROnPlateau(made)

    model, batch, loss = LEARNT["tanh-mlp"]
    assert check(model=model, batch=batch, loss=loss, optimizer=optimizer).status == "passed"
    torch.manual_seed(0)
    report = Contract(model=model, batch=batch(), loss=loss, optimizer=optimizer).check()
    assert not [str(f) for f in report.findings if f.status == "error"]


# what no correct model could learn, and is not blamed


class Unit(nn.Module):
    """Rows of length 1: cross entropy over 12 classes stays above 1.4."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 12))

    def forward(self, x):
        return F.normalize(self.net(x), dim=-1)


class Coarse(Unit):
    """Outputs of a grid, learnt by a straight-through estimator."""

    def forward(self, x):
        out = self.net(x)
        return out + (torch.round(out * 2) / 2 - out).detach()


class Binary(Unit):
    def forward(self, x):
        out = torch.tanh(self.net(x))
        return out + (out.sign() - out).detach()


class Bounded(Unit):
    def forward(self, x):
        return self.net(x).clamp(-1, 1)


class Squashed(Unit):
    def forward(self, x):
        return torch.sigmoid(self.net(x))


class Faint(Unit):
    """What distinguishes the samples is smaller than the rounding of the last bias."""

    def forward(self, x):
        first, _, last = self.net
        return last(1e-12 * torch.tanh(1e-12 * first(x)))


def labelled(classes=12, rows=8):
    return lambda: ((torch.randn(rows, 10),), torch.randint(0, classes, (rows,)))


class Noisy(Unit):
    """The objective is different in each call: its generator is its own."""

    def __init__(self):
        super().__init__()
        self.generator = torch.Generator().manual_seed(0)

    def forward(self, x):
        order = torch.randperm(12, generator=self.generator)
        return self.net(x)[:, order]


UNLEARNABLE = {
    "normalised": (Unit, labelled(), F.cross_entropy),
    "quantised": (Coarse, lambda: ((torch.randn(8, 10),), torch.randn(8, 12)), F.mse_loss),
    "signs": (Binary, labelled(), F.cross_entropy),
    "bounded": (Bounded, labelled(), F.cross_entropy),
    "squashed": (
        Squashed, lambda: ((torch.randn(8, 10),), torch.randn(8, 12)), F.mse_loss,
    ),
    "faint": (Faint, labelled(), F.cross_entropy),
    "few-parameters": (
        lambda: nn.Linear(5, 1),
        lambda: ((torch.randn(30, 5),), torch.randn(30, 1)),
        F.mse_loss,
    ),
    "a-constant": (
        lambda: nn.Embedding(1, 12),
        lambda: ((torch.zeros(9, dtype=torch.long),), torch.arange(9)),
        F.cross_entropy,
    ),
    "noise-to-noise": (
        lambda: nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 1, 3, padding=1)),
        lambda: ((torch.rand(4, 1, 12, 12),), torch.rand(4, 1, 12, 12)),
        F.mse_loss,
    ),
    "dense-labels": (
        lambda: nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 4, 1)),
        lambda: ((torch.randn(2, 3, 14, 14),), torch.randint(0, 4, (2, 14, 14))),
        F.cross_entropy,
    ),
    "same-inputs": (
        lambda: nn.Linear(4, 3), lambda: ((torch.ones(6, 4),), torch.arange(6) % 3), F.cross_entropy,
    ),
    "resampled": (Noisy, labelled(), F.cross_entropy),
    "learnt-already": (
        lambda: nn.Linear(6, 6), lambda: ((torch.zeros(4, 6),), torch.zeros(4, 6)),
        lambda output, target: F.mse_loss(output * 0 + target, target) + 0 * output.sum(),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", UNLEARNABLE)
@pytest.mark.parametrize("seed", [0, 1])
def test_a_correct_model_is_not_blamed(name, seed):
    model, batch, loss = UNLEARNABLE[name]
    found = check(seed, model=lambda: Counted(model()), batch=batch, loss=loss)
    assert found.status in ("inconclusive", "passed"), str(found)
    assert plain_steps() <= BUDGET


@pytest.mark.parametrize("name", ["few-parameters", "a-constant", "same-inputs", "noise-to-noise"])
def test_what_cannot_be_learnt_is_known_before_training(name):
    model, batch, loss = UNLEARNABLE[name]
    found = check(model=lambda: Counted(model()), batch=batch, loss=loss)
    assert (found.status, COUNTS["backwards"]) == ("inconclusive", 0)
    assert "nothing was trained" in found.summary


def test_drawn_targets_of_an_image_are_not_trained_on():
    found = check(
        model=lambda: Counted(nn.Sequential(nn.Conv2d(1, 64, 5, padding=2), nn.Conv2d(64, 1, 1))),
        inputs="B 1 16 16", targets="B 1 16 16", loss=F.mse_loss,
    )  # fmt: skip
    assert (found.status, COUNTS["backwards"]) == ("inconclusive", 0)
    assert "random target values were drawn" in found.summary


# what may be spent


@pytest.mark.parametrize("fields", [{"overfit": None, "skip": {"overfit": "it is a metric"}},
                                    {"skip": {"overfit": "it takes too long"}}])  # fmt: skip
def test_a_skip_runs_nothing(fields):
    model, batch, loss = LEARNT["tanh-mlp"]
    found = check(model=lambda: Counted(model()), batch=batch, loss=loss, **fields)
    assert (found.status, COUNTS["forwards"]) == ("not-applicable", 0)


def test_declared_steps_are_spent_where_they_help():
    model = lambda: nn.Sequential(nn.Linear(10, 24), nn.ReLU(), nn.Linear(24, 4))  # noqa: E731
    fields = {"model": lambda: Counted(model()), "batch": labelled(4), "loss": F.cross_entropy,
              "optimizer": lambda m: torch.optim.SGD(m.parameters(), lr=0.15)}  # fmt: skip
    short = check(**fields)
    assert plain_steps() <= BUDGET
    COUNTS.clear()
    long = check(**fields, overfit=Overfit(steps=400))
    assert "Adam from a rate of" in short.summary
    assert long.summary.startswith("the loss fell")
    assert "Adam" not in long.summary
    assert BUDGET < plain_steps() <= 400


def test_a_few_steps_are_enough_to_say_that_they_were_few():
    model, batch, loss = LEARNT["conv"]
    found = check(model=lambda: Counted(model()), batch=batch, loss=loss, overfit=Overfit(steps=4))
    assert found.status == "inconclusive"
    assert plain_steps() <= 4


# what is wrong, with the evidence


class Bag(nn.Module):
    """Orders of the same words, which a sum of embeddings cannot tell apart."""

    def __init__(self, positions):
        super().__init__()
        self.embed = nn.Embedding(9, 24)
        self.place = nn.Parameter(torch.randn(5, 24)) if positions else None
        self.layers = nn.Sequential(nn.Linear(24, 48), nn.ReLU())
        self.head = nn.Linear(48, 3)

    def forward(self, ids):
        h = self.embed(ids)
        if self.place is not None:
            h = h + self.place
        return self.head(self.layers(h).mean(1))


def orders():
    words = torch.randint(0, 9, (5,))
    words[:2] = torch.tensor([7, 8])
    rows = torch.stack([words.roll(shift) for shift in range(5)])
    return (rows,), torch.tensor([0, 1, 2, 0, 1])


@pytest.mark.parametrize("positions", [True, False])
def test_samples_that_are_not_told_apart(positions):
    found = check(model=lambda: Bag(positions), batch=orders, loss=F.cross_entropy)
    assert (found.status, found.code) == (
        ("passed", "held") if positions else ("violated", "overfit-stuck")
    ), found.summary
    if not positions:
        assert found.cause == "the model gives different samples the same output"
        assert "all 5 samples" in found.because


class Reads(nn.Module):
    """Computes from weights that it has copied when it was built."""

    def __init__(self, stale):
        super().__init__()
        self.layer = nn.Linear(8, 3)
        self.stale = stale
        self.register_buffer("copied", self.layer.weight.detach().clone())

    def forward(self, x):
        weight = self.layer.weight
        return F.linear(x, weight + (self.copied - weight).detach() if self.stale else weight)


@pytest.mark.parametrize("stale", [True, False])
def test_outputs_that_follow_no_parameter(stale):
    found = check(model=lambda: Reads(stale), loss=F.cross_entropy,
                  batch=lambda: ((torch.randn(5, 8),), torch.arange(5) % 3))  # fmt: skip
    if stale:
        assert (found.status, found.code) == ("violated", "overfit-stuck")
        assert found.cause == "the output does not depend on the model's parameters"
    else:
        assert found.status == "passed", found.summary


@pytest.mark.parametrize("classes", [Labels("B", classes=5), "B 5"])
def test_an_adequate_drawn_batch_is_learnt(classes):
    loss = F.cross_entropy if isinstance(classes, Labels) else F.mse_loss
    found = check(
        model=lambda: nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 5)),
        inputs="B 16", targets=classes, loss=loss, sizes={"B": 4},
    )  # fmt: skip
    assert found.status == "passed", found.summary


def test_the_model_is_put_back():
    torch.manual_seed(0)
    model = pooled()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    Contract(
        model=model, batch=((torch.randn(6, 3, 12, 12),), torch.arange(6) % 5), loss=F.cross_entropy
    ).check(["overfit"])
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


def _every(calls):
    """A step that adds up gradients and applies those of so many calls."""
    counted = []

    def step(model, optimizer, inputs, targets):
        counted.append(1)
        loss = F.cross_entropy(model(*inputs), targets)
        loss.backward()
        if calls and len(counted) % calls == 0:
            optimizer.step()
            optimizer.zero_grad()
        elif not calls:
            optimizer.zero_grad()
        return loss.detach()

    return step


@pytest.mark.parametrize(("calls", "code"), [(30, "held"), (0, "step-learns-nothing")])
def test_a_step_that_gathers_gradients_is_not_one_that_learns_nothing(calls, code):
    model, batch, loss = LEARNT["tanh-mlp"]
    found = check(
        model=model,
        batch=batch,
        loss=loss,
        train_step=_every(calls),
        optimizer=lambda model: torch.optim.Adam(model.parameters(), lr=1e-3),
    )
    assert found.code == code, str(found)


@pytest.mark.parametrize("maximize", [True, False])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_an_optimizer_that_climbs(kind, maximize):
    found = check(
        model=lambda: nn.Sequential(nn.Linear(10, 16), nn.Tanh(), nn.Linear(16, 8)),
        batch=labelled(6),
        loss=F.cross_entropy,
        optimizer=lambda m: kind(m.parameters(), lr=0.02, weight_decay=0.1, maximize=maximize),
    )
    assert (found.code == "optimizer-climbs") is maximize, found


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_a_step_of_the_users_that_climbs(sign):
    def smoothed(output, target):
        return F.cross_entropy(output, target, label_smoothing=0.1)

    def step(model, optimizer, inputs, targets):
        optimizer.zero_grad()
        loss = smoothed(model(*inputs), targets)
        (sign * loss).backward()  # which way
        optimizer.step()
        return loss.detach()

    found = check(
        model=lambda: nn.Sequential(nn.Linear(10, 16), nn.Tanh(), nn.Linear(16, 8)),
        batch=labelled(6),
        loss=smoothed,
        train_step=step,
        optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=0.1),
    )
    assert (found.code == "optimizer-climbs") is (sign < 0), found
    if sign < 0:
        assert found.location.text == "(sign * loss).backward()  # which way"


class Policy(nn.Module):
    """A mean for each sample beside one spread for all, or a constant beside what the loss never reads."""

    def __init__(self, mean):
        super().__init__()
        self.mean, self.log_std = mean, nn.Parameter(torch.zeros(2))

    def forward(self, x):
        made = self.mean(x)
        return made, self.log_std.exp().expand_as(made)


@pytest.mark.parametrize("reads", [True, False])
def test_one_of_two_outputs_may_be_the_same_for_all_samples(reads):
    generator = torch.Generator().manual_seed(4)
    x, y = torch.randn(8, 6, generator=generator), 5 * torch.randn(8, 2, generator=generator)

    def likelihood(output, targets):
        mean, std = output
        error = (targets - (mean if reads else 0)) / std
        return (error.square() / 2 + std.log()).mean()

    found = check(model=lambda: Policy(nn.Linear(6, 2)), batch=lambda: ((x,), y), loss=likelihood)
    assert (found.code == "overfit-stuck") == (not reads)


def test_few_parameters_for_drawn_targets_are_said_as_they_were_counted():
    found = check(model=lambda: nn.Linear(5, 1), inputs="B 5", targets="B 1", loss=F.mse_loss)
    assert "4 target values are more than half of the 6 trainable parameters" in found.summary


def test_the_loss_that_ends_an_attempt_needs_no_gradient() -> None:
    calls = {"forward": 0, "backward": 0}

    class Counted(torch.autograd.Function):
        @staticmethod
        def forward(_ctx, x: torch.Tensor) -> torch.Tensor:
            calls["forward"] += torch.is_grad_enabled() or x.requires_grad
            return x.clone()

        @staticmethod
        def backward(_ctx, grad: torch.Tensor) -> torch.Tensor:
            calls["backward"] += 1
            return grad

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            made: torch.Tensor = Counted.apply(self.layers(x))
            return made

    batch = (torch.randn(8, 6),), torch.randint(0, 3, (8,))
    (found,) = Contract(model=Model, batch=batch, loss=F.cross_entropy).check(["overfit"]).findings
    assert found.status == "passed"
    assert calls["forward"] == calls["backward"] + 1 > 2
