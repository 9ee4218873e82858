"""What training steps learn lasts: bugs unlike the gallery's, and sound models that come near them."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract

CHECKS = ["weights-update", "repeatable-steps", "step-losses"]


def batch(n=6):
    g = torch.Generator().manual_seed(3)
    return (torch.randn(n, 5, generator=g),), torch.randn(n, 2, generator=g)


def found(model, **options):
    step = options.pop("step", None)
    options.setdefault("loss", F.mse_loss)
    if step is not None:
        options["train_step"] = step
    contract = Contract(model=model, batch=batch(), **options)
    checks = CHECKS if step is not None else CHECKS[:2]
    findings = contract.check(checks).findings
    return {f.code: f.status for f in findings if f.status in ("violated", "suspicious", "error")}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(5, 12)
        self.head = nn.Linear(12, 2)

    def features(self, x):
        return self.body(x).tanh()

    def forward(self, x):
        return self.head(self.features(x))


def by(kind, **options):
    return lambda model: kind(model.parameters(), **options)


class Stepped(torch.optim.SGD):
    """Divides its rate by a hundred million from the third step on."""

    count = 0

    def step(self, closure=None):
        self.count += 1
        if self.count > 1:
            for group in self.param_groups:
                group["lr"] = 1e-10
        return super().step(closure)


def test_an_optimizer_that_loses_its_rate_is_found():
    assert found(Net, optimizer=by(Stepped, lr=0.1)) == {"weight-stops": "violated"}


def scheduled(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=1e-6)


class Started(Net):
    """Takes the scale of its first layer from its first batch, as data-dependent initialisation does."""

    def __init__(self):
        super().__init__()
        self.register_buffer("started", torch.tensor(False))

    def forward(self, x):
        if self.training and not self.started:
            with torch.no_grad():
                self.body.weight.div_(1e-3 * self.body(x).std())
            self.started.fill_(True)
        return super().forward(x)


@pytest.mark.parametrize(
    ("model", "optimizer"),
    [
        (Net, scheduled),
        (Net, by(torch.optim.LBFGS, line_search_fn="strong_wolfe")),
        (Net, by(torch.optim.AdamW, lr=1e-3, weight_decay=1.0)),
        (Net, by(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.5)),
        (Net, by(torch.optim.Rprop)),
        (Started, by(torch.optim.SGD, lr=1e-3)),
    ],
    ids=["schedule", "lbfgs", "decay", "momentum", "rprop", "from-data"],
)
def test_optimizers_that_move_less_for_a_reason_are_sound(model, optimizer):
    assert found(model, optimizer=optimizer) == {}


def hidden_group(model):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)

    def clear(optimizer, args, kwargs):
        model.body.weight.grad.zero_()

    optimizer.register_step_pre_hook(clear)
    return optimizer


def test_a_weight_that_only_decays_is_found():
    # the hook writes to the gradient itself: what is left after the step is zero, unlike that of backward
    assert "weight-only-decays" in found(Net, optimizer=hidden_group)


class Returns(Net):
    def __init__(self):
        super().__init__()
        self.kept = None

    def forward(self, x):
        if self.kept is None:
            self.kept = copy.deepcopy(self.head.state_dict())
        elif self.training:
            self.head.load_state_dict(self.kept)
        return super().forward(x)


def test_a_forward_that_loads_first_weights_is_found():
    assert "weight-put-back" in found(Returns)


class Standardised(Net):
    """Sets scale and shift of its inputs from the first batch, or, by a flag that stays down, from each."""

    raised = False

    def __init__(self):
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(5)), nn.Parameter(torch.zeros(5))
        self.set = False

    def forward(self, x):
        if self.training and not self.set:
            self.scale.data = 1 / x.detach().std(0)  # HERE
            self.shift.data = -x.detach().mean(0)
            self.set = self.raised
        return super().forward((x + self.shift) * self.scale)


class StandardisedOnce(Standardised):
    raised = True


def test_a_forward_that_sets_weights_from_each_batch_is_found_with_the_line():
    contract = Contract(model=Standardised, batch=batch(), loss=F.mse_loss)
    told = {f.code: f for f in contract.check(["repeatable-steps"]).findings}["weight-put-back"]
    assert told.status == "violated"
    assert told.location.text.endswith("HERE")


class Bounded(Net):
    """Keeps a temperature within its bounds, at one of which it begins."""

    def __init__(self):
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor([1.0]))

    def forward(self, x):
        self.temperature.data.clamp_(0.0, 1.0)
        return self.temperature.exp() * super().forward(x)


class MovedCodes(Net):
    """Keeps codes by moving averages in a parameter that no gradient reaches."""

    def __init__(self):
        super().__init__()
        self.codes = nn.Parameter(torch.randn(3, 5))

    def forward(self, x):
        index = torch.cdist(x, self.codes).argmin(1)
        if self.training:
            with torch.no_grad():
                one_hot = F.one_hot(index, 3).to(x.dtype)
                self.codes.data = one_hot.T @ x / one_hot.sum(0)[:, None].clamp(min=1)
        return super().forward(x + (self.codes[index] - x).detach())


class Unit(Net):
    def __init__(self):
        super().__init__()
        self.project()

    def project(self):
        with torch.no_grad():
            self.head.weight.copy_(F.normalize(self.head.weight, dim=1))

    def forward(self, x):
        self.project()
        return super().forward(x)


class Renormed(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = nn.Embedding(7, 4, max_norm=0.5)
        self.head = nn.Linear(9, 2)

    def forward(self, x):
        codes = (x[:, 0].abs() * 3).long().clamp(max=6)
        return self.head(torch.cat((x, self.rows(codes)), 1))


@pytest.mark.parametrize("model", [Unit, Renormed, StandardisedOnce, Bounded, MovedCodes])
def test_a_projection_in_the_forward_is_sound(model):
    assert "weight-put-back" not in found(model)


class Every(Net):
    def __init__(self, last):
        super().__init__()
        self.last, self.seen = last, {"calls": 0}

    def forward(self, x):
        h = self.features(x)
        if self.training:
            self.seen["calls"] += 1
            if self.last and self.seen["calls"] > self.last:
                h = torch.zeros_like(h) + h.detach()
        return self.head(h)


def test_a_part_that_is_trained_in_a_few_calls_only_is_found():
    calls = 0

    class Counts(Net):
        def forward(self, x):
            nonlocal calls
            calls += self.training
            h = self.features(x)
            return self.head(h if calls < 6 else h.detach())

    assert found(Counts) == {"weight-stops": "violated"}


def test_a_count_that_decides_nothing_is_sound():
    assert found(lambda: Every(0)) == {}


class Annealed(Net):
    def __init__(self):
        super().__init__()
        self.warmth = 2.0

    def forward(self, x):
        if self.training:
            self.warmth = max(0.5, self.warmth * 0.9)
        return self.head(self.features(x) / (self.warmth if self.training else 0.5))


class Relus(Net):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def features(self, x):
        self.calls += 1
        return self.body(x).relu()


@pytest.mark.parametrize("model", [Annealed, Relus])
def test_counts_of_schedules_are_sound(model):
    rate = by(torch.optim.SGD, lr=1.0)
    assert "weight-stops" not in found(model, optimizer=rate)


class Kept(Net):
    """Keeps the features of its last batch, and adds their mean to those in evaluation."""

    def __init__(self, used):
        super().__init__()
        self.last, self.used = [], used

    def forward(self, x):
        h = self.features(x)
        if self.training:
            self.last = [h.detach()]
        elif self.used and self.last:
            h = h + self.last[0].mean(0)
        return self.head(h)


def test_evaluation_with_what_training_kept_is_found():
    assert found(lambda: Kept(True)) == {"training-remembered": "violated"}


class Positions(Net):
    """Extends a table where inputs are longer than it."""

    def __init__(self):
        super().__init__()
        self.table = torch.zeros(0)

    def forward(self, x):
        if self.table.shape[0] < x.shape[0]:
            self.table = torch.arange(x.shape[0], dtype=torch.float32) * 0
        return super().forward(x) + self.table[: x.shape[0], None]


@pytest.mark.parametrize("model", [lambda: Kept(False), Positions])
def test_what_is_kept_for_training_or_made_again_is_sound(model):
    assert "training-remembered" not in found(model)


class Averaged(Net):
    def __init__(self, rate):
        super().__init__()
        self.rate = rate
        self.average = copy.deepcopy(self.head).requires_grad_(False)

    def forward(self, x):
        if self.training and self.rate:
            with torch.no_grad():
                for mine, other in zip(
                    self.average.parameters(), self.head.parameters(), strict=True
                ):
                    mine.lerp_(other, self.rate)
        return (self.head if self.training else self.average)(self.features(x))


class Called(Averaged):
    def update(self):
        self.average.load_state_dict(self.head.state_dict())


class Frozen(Net):
    """Compares with what it was in training, as a penalty on the distance does."""

    def __init__(self):
        super().__init__()
        self.register_buffer("first", self.head.weight.detach().clone())

    def forward(self, x):
        h = self.features(x)
        return self.head(h) + (0.1 * F.linear(h, self.first) if self.training else 0)


class Adapted(Net):
    """A frozen head, and a trained copy of it beside it that is joined by what is zero at first."""

    def __init__(self, join):
        super().__init__()
        self.adapter = copy.deepcopy(self.head)
        self.head.requires_grad_(False)
        self.mix = nn.Linear(2, 2, bias=False)
        nn.init.zeros_(self.mix.weight)
        self.scale = nn.Parameter(torch.zeros(()))
        self.gate, self.join = 0.0, join

    def forward(self, x):
        h = self.features(x)
        more = self.adapter(h)
        joined = {"layer": self.mix, "scale": self.scale.__mul__, "gate": self.gate.__mul__}
        return self.head(h) + joined[self.join](more)


class Shifted(Net):
    """Holds what its head began as in a buffer; the head shows through a layer that starts at zero."""

    def __init__(self, where):
        super().__init__()
        self.register_buffer("first", self.head.weight.detach().clone())
        self.mix = nn.Linear(2, 2, bias=False)
        nn.init.zeros_(self.mix.weight)
        self.where = where

    def forward(self, x):
        h = self.features(x)
        shown = self.head(h) if self.training or self.where == "both" else h[:, :2]
        return F.linear(h, self.first) + self.mix(shown)


def test_a_copy_that_no_step_updates_is_found():
    assert found(lambda: Averaged(0.0)) == {"copy-stale": "violated"}


def test_a_copy_that_no_step_updates_is_found_behind_a_layer_of_zeros():
    assert found(lambda: Shifted("training"))["copy-stale"] == "violated"


@pytest.mark.parametrize("join", ["layer", "scale", "gate"])
def test_a_trained_copy_beside_the_frozen_one_is_sound(join):
    model = Adapted(join)
    decay = by(torch.optim.AdamW, lr=0.01)  # moves a copy that a closed gate hides
    assert "copy-stale" not in found(lambda: model, optimizer=decay)


def test_what_a_layer_of_zeros_hides_is_measured_with_other_weights():
    assert "copy-stale" not in found(lambda: Shifted("both"))


def test_a_copy_that_a_loop_may_update_is_suspicious():
    assert found(lambda: Called(0.0)) == {"copy-stale": "suspicious"}


@pytest.mark.parametrize("model", [lambda: Averaged(0.1), Frozen, Net])
def test_copies_that_follow_or_are_for_training_are_sound(model):
    assert "copy-stale" not in found(model)


class Saves(Net):
    def __init__(self, first):
        super().__init__()
        self.first, self.saved = first, None
        self._register_state_dict_hook(type(self).saving)

    def saving(self, state, prefix, metadata):
        if self.saved is None or not self.first:
            self.saved = {k: v.clone() for k, v in state.items()}
        return dict(self.saved)


@pytest.mark.parametrize(("first", "wrong"), [(True, True), (False, False)])
def test_a_state_dict_follows_the_weights(first, wrong):
    assert ("state-stale" in found(lambda: Saves(first))) is wrong


def stepping(apply):
    count = [0]

    def step(model, optimizer, inputs, targets):
        count[0] += 1
        loss = F.mse_loss(model(*inputs), targets)
        apply(count[0], loss, optimizer, model)
        return loss.detach()

    return step


def drops(n, loss, optimizer, model):
    loss.backward()
    if n % 3 == 1:
        optimizer.step()
    optimizer.zero_grad()


def accumulates(n, loss, optimizer, model):
    (loss / 3).backward()
    if n % 3 == 0:
        optimizer.step()
        optimizer.zero_grad()


def norm_of_noise(n, loss, optimizer, model):
    optimizer.zero_grad()
    loss.backward()
    g = torch.Generator().manual_seed(n)
    for p in model.parameters():
        p.grad = loss.detach() * torch.randn(p.shape, generator=g)
    optimizer.step()


def noisy(n, loss, optimizer, model):
    optimizer.zero_grad()
    loss.backward()
    for p in model.parameters():
        p.grad += 0.1 * p.grad.norm() * torch.randn_like(p)
    optimizer.step()


def signs(n, loss, optimizer, model):
    optimizer.zero_grad()
    loss.backward()
    for p in model.parameters():
        p.grad.sign_()
    optimizer.step()


@pytest.mark.parametrize(
    ("apply", "code"), [(drops, "batch-unused"), (norm_of_noise, "gradient-without-data")]
)
def test_a_step_that_wastes_its_gradient_is_found(apply, code):
    assert code in found(Net, step=stepping(apply), optimizer=by(torch.optim.SGD, lr=0.1))


@pytest.mark.parametrize("apply", [accumulates, noisy, signs])
def test_steps_that_use_their_batch_in_their_own_way_are_sound(apply):
    codes = found(Net, step=stepping(apply), optimizer=by(torch.optim.SGD, lr=0.1))
    assert not codes.keys() & {"batch-unused", "gradient-without-data", "weight-stops"}
