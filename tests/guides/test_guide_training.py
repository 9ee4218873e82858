"""Rows 33 to 36 and 39: what keeps a model from learning."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, Overfit, promises
from pytest_torchcheck.render.terminal import render_report
from tests.guides.rows import Net, Symptom, contract, holds, named, sgd

CE = F.cross_entropy


def stepped(step, optimizer=sgd, **fields):
    """Declare a user's own training step."""
    return contract(Net, train_step=step, optimizer=optimizer, **fields)


def never_steps(broken):
    def step(model, optimizer, inputs, targets):
        optimizer.zero_grad()
        loss = CE(model(*inputs), targets)
        loss.backward()  # BUG
        if not broken:
            optimizer.step()
        return loss.detach()

    return step


def early_step(broken):
    def step(model, optimizer, inputs, targets):
        optimizer.zero_grad()
        loss = CE(model(*inputs), targets)
        if broken:
            optimizer.step()  # BUG
        loss.backward()
        if not broken:
            optimizer.step()
        return loss.detach()

    return step


def rate(value):
    def make(model):
        return torch.optim.SGD(model.parameters(), lr=value)  # BUG

    return make


def head_only(broken):
    def make(model):
        part = model.head if broken else model
        return torch.optim.SGD(part.parameters(), lr=0.1)  # BUG

    return make


def of_another(broken):
    other = Net()

    def make(model):
        return torch.optim.SGD((other if broken else model).parameters(), lr=0.1)  # BUG

    return make


def plain_step(model, made, inputs, targets):
    optimizer, scheduler = made
    optimizer.zero_grad()
    loss = CE(model(*inputs), targets)
    loss.backward()
    optimizer.step()
    scheduler.step()  # BUG
    return loss.detach()


def decays(broken):
    def make(model):
        optimizer = sgd(model)
        return optimizer, torch.optim.lr_scheduler.StepLR(
            optimizer, step_size=1, gamma=0.01 if broken else 0.99
        )

    return make


ROW_33 = (
    Symptom(name="no step", make=lambda b: stepped(never_steps(b)), checks=("step-protocol", "weights-update"), code="step-missing",
            says=("gradients are computed but never applied", "call optimizer.step() after")),
    Symptom(name="a step before backward", make=lambda b: stepped(early_step(b)), checks=("step-protocol",),
            code="step-before-backward", says=("it finds no gradient, so nothing is trained", "move optimizer.step() after")),
    Symptom(name="a learning rate of 0", make=lambda b: contract(Net, optimizer=rate(0.0 if b else 0.1)),
            checks=("weights-update",), code="weight-static", says=("max|after - before| = 0", "learning rate")),
    Symptom(name="a schedule that ends in 0", make=lambda b: stepped(plain_step, decays(b)), checks=("scheduler-order",),
            code="rate-vanishes", says=("step it once per epoch",), status="suspicious"),
    Symptom(name="a part that the optimizer has not", make=lambda b: contract(Net, optimizer=head_only(b)),
            checks=("optimizer-coverage", "weights-update"), code="optimizer-missing", says=("body.weight",)),
    Symptom(name="the optimizer of another model", make=lambda b: contract(Net, optimizer=of_another(b)),
            checks=("optimizer-coverage", "weights-update"), code="optimizer-missing",
            says=("was built over another instance of the model",)),
)  # fmt: skip


@pytest.mark.parametrize("symptom", **named(*ROW_33))
def test_row_33(symptom: Symptom) -> None:
    """Weights before and after some steps: what does not move, and why."""
    holds(symptom)


def never_clears(broken):
    def step(model, optimizer, inputs, targets):
        if not broken:
            optimizer.zero_grad()
        loss = CE(model(*inputs), targets)
        loss.backward()  # BUG
        optimizer.step()
        return loss.detach()

    return step


def clears_late(broken):
    def step(model, optimizer, inputs, targets):
        if not broken:
            optimizer.zero_grad()
        loss = CE(model(*inputs), targets)
        loss.backward()
        if broken:
            optimizer.zero_grad()  # BUG
        optimizer.step()
        return loss.detach()

    return step


def accumulates(*, parts=2, inside=False):
    def step(model, optimizer, inputs, targets):
        optimizer.zero_grad()
        for x, y in zip(inputs[0].chunk(2), targets.chunk(2), strict=True):
            loss = CE(model(x), y) / parts  # BUG
            loss.backward()
            if inside:
                optimizer.step()  # BUG
        if not inside:
            optimizer.step()
        return loss.detach()

    return step


ACCUMULATES = {"promises": (promises.Accumulates(2),), "sizes": {"B": 8}}
ROW_34 = (
    Symptom(name="no zero_grad", make=lambda b: stepped(never_clears(b)), checks=("step-protocol",), code="zero-grad-missing",
            says=("gradients accumulate from step to step", "call optimizer.zero_grad() before the backward")),
    Symptom(name="zero_grad before the step", make=lambda b: stepped(clears_late(b)), checks=("step-protocol",),
            code="zero-grad-before-step", says=("they are never applied",)),
    Symptom(name="not divided by the steps", make=lambda b: stepped(accumulates(parts=1 if b else 2), **ACCUMULATES),
            checks=("accumulation",), code="accumulation-scale", says=("without being divided by 2",)),
    Symptom(name="a step for each micro-batch", make=lambda b: stepped(accumulates(inside=b), **ACCUMULATES),
            checks=("accumulation",), code="accumulation-missing", says=("move optimizer.step() after the loop",)),
)  # fmt: skip


@pytest.mark.parametrize("symptom", **named(*ROW_34))
def test_row_34(symptom: Symptom) -> None:
    """Gradients that are not cleared, cleared too early, or not divided when they are accumulated."""
    holds(symptom)


class Zeroed(Net):
    def __init__(self, broken):
        super().__init__()
        if broken:
            for parameter in self.parameters():
                nn.init.zeros_(parameter)  # BUG


class Dead(Net):
    def __init__(self, broken):
        super().__init__()
        nn.init.constant_(self.body.bias, -100.0 if broken else 0.1)  # BUG


class Huge(Net):
    def __init__(self, broken):
        super().__init__()
        nn.init.normal_(self.head.weight, std=30.0 if broken else 0.1)  # BUG


class Deaf(Net):
    def middle(self, h):
        return h * 0 if self.broken else h  # BUG


class Rounded(Net):
    def forward(self, x):
        out = super().forward(x)
        return out.round() if self.broken else out  # BUG


def scaled_away(output, targets):
    return CE(output / 1e12, targets)  # BUG


STARTS = ("gradients-exist", "weights-update", "input-influence", "dead-units", "overfit")
ROW_35 = (
    Symptom(name="the output is rounded, replaced or multiplied by almost zero", make=lambda b: contract(Net, loss=scaled_away if b else CE),
            checks=("overfit",), code="loss-constant", says=("1.099, the loss of a uniform guess over 3 classes",)),
    Symptom(name="weights of 0", make=lambda b: contract(lambda: Zeroed(b)), checks=STARTS, code="grad-zero",
            says=("start at zero", "start body.weight from other values")),
    Symptom(name="dead units", make=lambda b: contract(lambda: Dead(b)), checks=STARTS, code="grad-zero",
            says=("none of the 64 inputs of torch.relu is positive",)),
    Symptom(name="an input that is lost", make=lambda b: contract(lambda: Deaf(b)), checks=STARTS, code="grad-zero",
            says=("the number 0, is all zeros",)),
    Symptom(name="a flat output", make=lambda b: contract(lambda: Rounded(b)), checks=STARTS, code="grad-zero",
            says=("Tensor.round is flat",)),
    Symptom(name="a learning rate that is too low",
            make=lambda b: contract(Net, optimizer=rate(1e-7 if b else 0.5), sizes={"B": 4}), checks=("overfit",),
            code="optimizer-crawls", status="suspicious", says=("less than 0.01%", "raise the learning rate")),
    Symptom(name="a first loss far above it", make=lambda b: contract(lambda: Huge(b)), checks=("loss-at-start",),
            code="loss-at-start", status="suspicious", says=("far above the 1.10 of a uniform guess",)),
)  # fmt: skip


@pytest.mark.parametrize("symptom", **named(*ROW_35))
def test_row_35(symptom: Symptom) -> None:
    """A loss that stays at the logarithm of the classes, or starts far above it."""
    holds(symptom)


def batches(broken):
    def batch(seed):  # BUG
        x = torch.randn(6, 8, generator=torch.Generator().manual_seed(seed))
        return (1 + 1e-6 * x if broken else x,), torch.tensor([0, 1, 2, 0, 1, 2])

    return Contract(model=Net, batch=batch, loss=CE)


def prices(seed):
    g = torch.Generator().manual_seed(seed)
    return (torch.randn(6, 8, generator=g),), 3 + torch.randn(6, generator=g)


class Price(Net):
    def forward(self, x):
        out = super().forward(x).squeeze(1)
        return torch.sigmoid(out) if self.broken else out  # BUG


class Softmaxed(Net):
    def forward(self, x):
        out = super().forward(x)
        return out.softmax(1) if self.broken else out  # BUG


def negated(output, targets):
    return -CE(output, targets)  # BUG


ROW_36 = (
    Symptom(name="inputs may have lost information", make=batches, checks=("overfit",), code="overfit-stuck",
            says=("nearly the same inputs", "of samples 0 and 1 differ by", "6 of 6")),
    Symptom(name="targets out of reach", checks=("overfit",), code="overfit-stuck",
            make=lambda b: Contract(model=lambda: Price(b, out=1), batch=prices, loss=F.mse_loss),
            says=("keeps the output from reaching the targets", "100% of targets lie outside")),
    Symptom(name="softmax before cross entropy", make=lambda b: contract(lambda: Softmaxed(b)),
            checks=("loss-input", "overfit"), code="double-softmax", says=("drop the softmax",)),
    Symptom(name="a loss of the wrong sign", make=lambda b: contract(Net, loss=negated if b else CE),
            checks=("loss-sign", "overfit"), code="loss-sign", says=("negate the loss",)),
    Symptom(name="a learning rate that is too high",
            make=lambda b: contract(Net, optimizer=rate(1e4 if b else 0.5), sizes={"B": 4}), checks=("overfit",),
            code="optimizer-diverges", says=("lower the learning rate",)),
)  # fmt: skip


@pytest.mark.parametrize("symptom", **named(*ROW_36))
def test_row_36(symptom: Symptom) -> None:
    """One batch is learnt by heart, or it is said what keeps the model from it."""
    holds(symptom)


def test_row_36_curve() -> None:
    """The curve of the loss in the report: down to a tenth where that is asked for, else below what equal scores reach."""
    for part, declared in ((0.6, {}), (0.1, {"overfit": Overfit()})):
        report = contract(Net, sizes={"B": 4}, **declared).check(["overfit"])
        (passed,) = report.with_status("passed")
        losses = passed.evidence["losses"]
        assert losses[-1] < part * losses[0] < losses[-2]  # no step more than that
        assert "loss by step" in render_report(report, verbosity=2)


class Listed(Net):
    def __init__(self, broken):
        super().__init__()
        blocks = [nn.Linear(16, 16), nn.Linear(16, 16)]
        self.blocks = blocks if broken else nn.ModuleList(blocks)  # BUG

    def middle(self, h):
        for block in self.blocks:
            h = torch.relu(block(h))
        return h


class Keyed(Net):
    def __init__(self, broken):
        super().__init__()
        heads = {"a": nn.Linear(16, 16)}
        self.heads = heads if broken else nn.ModuleDict(heads)  # BUG

    def middle(self, h):
        return self.heads["a"](h)


class Tupled(Net):
    def __init__(self, broken):
        super().__init__()
        if broken:
            self.pair = (nn.Linear(16, 16), nn.ReLU())  # BUG
        else:
            self.pair = nn.Sequential(nn.Linear(16, 16), nn.ReLU())

    def middle(self, h):
        for part in self.pair:
            h = part(h)
        return h


class Nested(Net):
    def __init__(self, broken):
        super().__init__()
        stages = [[nn.Linear(16, 16)], [nn.Linear(16, 16)]]
        self.stages = stages if broken else nn.ModuleList(map(nn.ModuleList, stages))  # BUG

    def middle(self, h):
        for (block,) in self.stages:
            h = torch.relu(block(h))
        return h


class Parameters(Net):
    def __init__(self, broken):
        super().__init__()
        gains = [nn.Parameter(torch.ones(16)) for _ in range(2)]
        self.gains = gains if broken else nn.ParameterList(gains)  # BUG

    def middle(self, h):
        for gain in self.gains:
            h = h * gain
        return h


class MadeInForward(Net):
    def __init__(self, broken):
        super().__init__(broken)
        if not broken:
            self.mid = nn.Linear(16, 16)

    def middle(self, h):
        mid = nn.Linear(16, 16) if self.broken else self.mid  # BUG
        return mid(h)


class Appended(Net):
    def __init__(self, broken):
        super().__init__()
        self.blocks = [] if broken else nn.ModuleList()  # BUG
        for _ in range(2):
            self.blocks.append(nn.Linear(16, 16))

    def middle(self, h):
        for block in self.blocks:
            h = torch.relu(block(h))
        return h


def hidden(name, model, *says, code="module-hidden"):
    return Symptom(
        name=name, make=lambda b: contract(lambda: model(b), optimizer=sgd), code=code, says=says,
        checks=("registration", "gradients-exist", "optimizer-coverage", "state-dict-roundtrip"),
    )  # fmt: skip


ROW_39 = (
    hidden("a list", Listed, "blocks holds 2 modules", "blocks an nn.ModuleList"),
    hidden("a list that is filled", Appended, "blocks holds 2 modules", "blocks an nn.ModuleList"),
    hidden("lists in a list", Nested, "stages[0][0] and stages[1][0]", "nn.ModuleList"),
    hidden("a dict", Keyed, "heads['a']", "heads an nn.ModuleDict"),
    hidden("a tuple", Tupled, "pair[0]", "pair an nn.ModuleList"),
    hidden("parameters", Parameters, "gains holds 2 parameters", "nn.ParameterList", code="parameter-hidden"),
    hidden("a layer made in forward", MadeInForward, "weights are random in every call", code="module-made-in-forward"),
)  # fmt: skip


@pytest.mark.parametrize("symptom", **named(*ROW_39))
def test_row_39(symptom: Symptom) -> None:
    """Layers that parameters(), .to(), eval() and checkpoints do not see."""
    holds(symptom)
