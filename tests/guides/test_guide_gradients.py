"""Rows 8 to 12, 21 to 25 and 40: NaN, and gradients that are missing, wrong, tiny or huge."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, promises
from pytest_torchcheck.diagnosis.gradient import non_finite as explained
from pytest_torchcheck.probes.numbers import finiteness
from pytest_torchcheck.render.terminal import render_finding, render_report
from tests.guides.rows import Net, Symptom, contract, holds, named, sgd, told


class Distances(Net):
    """The derivative of a square root at 0: the first pairs are equal."""

    def forward(self, a, b):
        gap = (self.body(a) - self.body(b)).pow(2).sum(1)
        return (gap if self.broken else gap + 1e-6).sqrt()  # BUG


def twins(seed):
    a = torch.randn(4, 8, generator=torch.Generator().manual_seed(seed))
    return (a, torch.cat([a[:2], a[2:].flip(0)])), torch.tensor([0.0, 0, 1, 1])


def distances(broken):
    return Contract(model=lambda: Distances(broken), batch=twins, loss=F.mse_loss)


def test_row_08(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which backward and which forward line made a NaN; the search for it is made after a failure only."""
    searched: list[object] = []
    search = finiteness.find_nonfinite

    def find(*args):
        searched.append(args)
        return search(*args)

    monkeypatch.setattr(finiteness, "find_nonfinite", find)
    # an earlier test may have imported the explainer, which holds the function by its name
    monkeypatch.setattr(explained, "find_nonfinite", find)
    modes = []

    class Watched(Distances):
        def forward(self, a, b):
            modes.append(torch.is_anomaly_enabled())
            return super().forward(a, b)

    fine = Contract(model=lambda: Watched(False), batch=twins, loss=F.mse_loss)
    assert fine.check(["backward", "gradients-finite"]).ok
    assert searched == []
    found = holds(
        Symptom(
            name="", make=distances, checks=("gradients-finite",), code="non-finite-gradient",
            says=("SqrtBackward0", "the derivative of a square root at 0 is infinite", "add eps"),
        )
    )  # fmt: skip
    assert found.location is not None
    assert found.location.text.endswith("# BUG")
    assert len(searched) == 1
    assert set(modes) == {False}


class Logs(Net):
    def middle(self, h):
        return torch.log(h if self.broken else h + 1)  # BUG


def test_row_09() -> None:
    """What each layer gave: shape, range, mean, deviation; the first that is not finite. On demand for sound models."""
    x = torch.randn(5, 8, generator=torch.Generator().manual_seed(1))
    batch = ((x,), torch.tensor([0, 1, 2, 0, 1]))
    model = Logs(True)
    found = holds(
        Symptom(
            name="",
            make=lambda b: Contract(model=model if b else Logs(False), batch=batch, loss=F.cross_entropy),
            checks=("gradients-finite",), code="non-finite-forward", says=("torch.log", "log of 0"),
        )
    )  # fmt: skip
    rows = {row["module"]: row for row in found.evidence["layers"]}
    first = model.body(x).detach()
    assert rows["body"]["shape"] == list(first.shape)
    for key, value in {"low": first.min(), "high": first.max(), "mean": first.mean()}.items():
        assert rows["body"][key] == pytest.approx(float(value), rel=1e-4), key
    assert rows["body"]["std"] == pytest.approx(float(first.std(correction=0)), rel=1e-4)
    assert sum(rows["body"]["histogram"]) == first.numel()
    assert next(name for name, row in rows.items() if row["not finite"]) == "head"
    shown = render_finding(found, verbosity=1)
    assert "layers:" in shown
    assert "layers:" not in str(found)
    table = render_report(contract(Net).check(["signal-propagation"]), verbosity=2)
    assert all(word in table for word in ("body", "low", "high", "rms", "shape"))


def deep(nonlinearity, *, std=None, residual=False):
    class Deep(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(8, 16)
            self.blocks = nn.ModuleList(nn.Linear(16, 16) for _ in range(16))
            self.norms = nn.ModuleList(nn.LayerNorm(16) for _ in range(16))
            self.head = nn.Linear(16, 3)
            if std is not None:
                for block in self.blocks:
                    nn.init.normal_(block.weight, std=std)  # BUG

        def forward(self, x):
            x = torch.relu(self.first(x))
            for block, norm in zip(self.blocks, self.norms, strict=True):
                h = nonlinearity(block(norm(x) if residual else x))
                x = x + h if residual else h
            return self.head(norm(x) if residual else x)

    return Deep


def plain(output, targets):
    return F.cross_entropy(output, targets)


def deep_contract(broken, good):
    return lambda b: contract(broken if b else good)


SOUND = deep(torch.relu, std=(2 / 16) ** 0.5)
VANISHES = Symptom(
    name="vanishing", make=deep_contract(deep(torch.sigmoid), deep(torch.relu, std=(2 / 16) ** 0.5)),
    checks=("signal-propagation",), code="signal-vanishes",
    says=("vanishes over", "use nn.ReLU (or GELU) instead of the sigmoid", "initialise with the gain",
          "normalisation or residual paths"),
    marked=False,
)  # fmt: skip
EXPLODES = Symptom(
    name="exploding", make=deep_contract(deep(torch.relu, std=2.0), SOUND), checks=("signal-propagation",),
    code="signal-explodes", says=("explodes over", "std=2.0", "initialise with a smaller std", "normalise between"),
    marked=False,  # the line that gives std=2.0 is named
)  # fmt: skip


class Detached(Net):
    def middle(self, h):
        return h.detach() if self.broken else h  # BUG


NONE = Symptom(
    name="None", make=lambda b: contract(lambda: Detached(b)), checks=("gradients-exist",), code="grad-none",
    says=("body.weight, body.bias get no gradient", "drop .detach()"),
)  # fmt: skip


def test_row_10() -> None:
    """Gradients that are None, infinite, below 1e-7 and above 100: by layer, as hooks would print them."""
    holds(NONE)
    holds(
        Symptom(name="", make=distances, checks=("gradients-finite",), code="non-finite-gradient")
    )
    small = holds(VANISHES).evidence["layers"]
    assert small[0]["gradient"] < 1e-7 < small[-1]["gradient"]
    large = holds(EXPLODES).evidence["layers"]
    assert large[0]["gradient"] > 100 > large[-1]["gradient"]


def test_row_11() -> None:
    """The norm of every parameter's gradient, of models that fail and of those that do not."""
    found = holds(NONE)
    rows = {row["parameter"]: row["gradient norm"] for row in found.evidence["gradients"]}
    assert (rows["body.weight"], rows["body.bias"]) == ("none", "none")
    assert rows["head.weight"] > 0
    shown = render_finding(found, verbosity=1)
    assert "gradient norm" in shown
    assert "body.weight" in shown

    model = Net()
    batch = (torch.randn(5, 8), torch.tensor([0, 1, 2, 0, 1]))
    report = Contract(
        model=model, batch=((batch[0],), batch[1]), loss=F.cross_entropy
    ).check(["gradients-exist"])  # fmt: skip
    F.cross_entropy(model(batch[0]), batch[1]).backward()
    (passed,) = report.with_status("passed")
    measured = {row["parameter"]: row["gradient norm"] for row in passed.evidence["gradients"]}
    for name, parameter in model.named_parameters():
        assert measured[name] == pytest.approx(float(parameter.grad.norm()), rel=1e-5)
    assert "gradient norm" in render_report(report, verbosity=2)


class Squares(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, broken):
        ctx.save_for_backward(x)
        ctx.broken = broken
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * x * (1 if ctx.broken else 2), None  # BUG


class UsesSquares(Net):
    def middle(self, h):
        return Squares.apply(h, self.broken)


class Hooked(Net):
    def middle(self, h):
        if self.broken and h.requires_grad:
            h.register_hook(lambda grad: grad * 0.5)
        return h


ROW_12 = (
    Symptom(name="a Function", make=lambda b: contract(lambda: UsesSquares(b)), checks=("gradcheck",),
            code="gradcheck-scale", says=("Squares.backward returns half the gradient", "multiply the gradient of x by 2")),
    Symptom(name="a module",
            make=lambda b: contract(lambda: Hooked(b), promises=(promises.Differentiable(),)),
            checks=("gradcheck-module",), code="gradcheck-module", says=("has a wrong gradient of body.weight",),
            marked=False),
)  # fmt: skip


@pytest.mark.parametrize("symptom", **named(*ROW_12))
def test_row_12(symptom: Symptom) -> None:
    """Custom Functions, found by themselves and checked in float64; modules where that is promised."""
    found = holds(symptom)
    assert "float64" in found.observed


class Unused(Net):
    def __init__(self, broken):
        super().__init__(broken)
        self.spare = nn.Linear(16, 16)  # BUG

    def middle(self, h):
        return h if self.broken else self.spare(h)


class NoGrad(Net):
    def middle(self, h):
        with torch.set_grad_enabled(not self.broken and torch.is_grad_enabled()):  # BUG
            return torch.tanh(self.body.bias * h)


class Dropped(Net):
    def __init__(self, broken=False):
        super().__init__(broken)
        dropout = nn.Dropout(0.5)
        self.noise = [dropout] if broken else nn.ModuleList([dropout])  # BUG

    def middle(self, h):
        return self.noise[0](h)


class Evaluated(Net):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def middle(self, h):
        return self.drop(h)


def evaluates(broken):
    def step(model, optimizer, inputs, targets):
        model.train(not broken)  # BUG
        optimizer.zero_grad()
        loss = F.cross_entropy(model(*inputs), targets)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


ROW_21 = (
    Symptom(name="unused", make=lambda b: contract(lambda: Unused(b)), checks=("gradients-exist",),
            code="grad-none", says=("spare.weight", "no operation of the forward reads it", "or delete it")),
    NONE,
    Symptom(name="no_grad", make=lambda b: contract(lambda: NoGrad(b)), checks=("gradients-exist",),
            code="grad-none", says=("the operation runs with gradients disabled",)),
    Symptom(name="a part that eval() does not reach", make=lambda b: contract(lambda: Dropped(b)),
            checks=("registration",), code="module-mode-lost", status="suspicious",
            says=("train() and eval() do not reach it",)),
    Symptom(name="training in eval mode",
            make=lambda b: contract(Evaluated, train_step=evaluates(b), optimizer=sgd),
            checks=("evaluation-leaves-trace",), code="trains-in-eval", status="suspicious",
            says=("every step trains in eval mode: drop has no effect", "model.train()")),
)  # fmt: skip


@pytest.mark.parametrize("symptom", **named(*ROW_21))
def test_row_21(symptom: Symptom) -> None:
    """Parameters without a gradient, with the line of the cut; parts in eval mode, which cut nothing, by themselves."""
    holds(symptom)


class Data(Net):
    def middle(self, h):
        return h.data if self.broken else h  # BUG


class Item(Net):
    def middle(self, h):
        return h * (h.mean().item() if self.broken else h.mean())  # BUG


class Recreated(Net):
    def middle(self, h):
        return torch.tensor(h.tolist()) if self.broken else h  # BUG


class WholeNoGrad(Net):
    def forward(self, x):
        out = super().forward(x)
        return out.data if self.broken else out  # BUG


def made_anew(output, targets):
    return torch.tensor(F.cross_entropy(output, targets).item(), requires_grad=True)  # BUG


def as_number(output, targets):
    return torch.tensor(F.cross_entropy(output, targets).item())  # BUG


def accuracy(output, targets):
    return (output.argmax(1) != targets).float().mean()  # BUG


def lossy(loss):
    return lambda b: contract(Net, loss=loss if b else plain)


ROW_22 = (
    Symptom(name="element does not require grad", make=lambda b: contract(lambda: WholeNoGrad(b)),
            checks=("backward",), code="no-graph", says=("does not require grad", ".data", "drop .data")),
    Symptom(name=".data", make=lambda b: contract(lambda: Data(b)), checks=("gradients-exist",), code="grad-none",
            says=(".data detaches the values from the graph",)),
    Symptom(name="tolist", make=lambda b: contract(lambda: Recreated(b)), checks=("gradients-exist",),
            code="grad-none", says=("Python number", "comes back as a constant")),
    Symptom(name="a loss by .item()", make=lossy(as_number), checks=("loss-sound",), code="loss-disconnected",
            says=("comes back as a constant",)),
    Symptom(name="a loss made anew", make=lossy(made_anew), checks=("loss-sound",), code="loss-recreated",
            says=("the loss is rebuilt from its value",)),
    Symptom(name="a loss by argmax", make=lossy(accuracy), checks=("loss-sound",), code="loss-disconnected",
            says=("has no gradient", "differentiable version")),
)  # fmt: skip


@pytest.mark.parametrize("symptom", **named(*ROW_22))
def test_row_22(symptom: Symptom) -> None:
    """``.data``, ``.item()`` and tensors made anew, in the model and in the loss, each by its kind and line."""
    holds(symptom)


class Recurrent(nn.Module):
    def __init__(self, broken):
        super().__init__()
        self.broken = broken
        self.cell = nn.GRUCell(8, 16)
        self.head = nn.Linear(16, 3)
        self.hidden = None

    def forward(self, x):
        if self.hidden is None or len(self.hidden) != len(x):
            self.hidden = x.new_zeros(len(x), 16)
        hidden = self.cell(x, self.hidden)
        if self.broken:
            self.hidden = hidden  # BUG
        else:
            self.hidden = hidden.detach()
        return self.head(hidden)


def steps(*, retain=False, twice=False):
    def step(model, optimizer, inputs, targets):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(*inputs), targets)
        loss.backward(retain_graph=retain)  # BUG
        if twice:
            loss.backward()  # BUG
        optimizer.step()
        return loss.detach()

    return step


ROW_23 = (
    Symptom(name="a hidden state", make=lambda b: contract(lambda: Recurrent(b)), checks=("backward",),
            code="second-backward", says=("hidden is kept", "without its graph: .detach()")),
    Symptom(name="backward called twice",
            make=lambda b: contract(Net, train_step=steps(twice=b), optimizer=sgd),
            checks=("backward",), code="second-backward", says=("share a part of the graph",)),
    Symptom(name="retain_graph as a cure",
            make=lambda b: contract(lambda: Recurrent(b), train_step=steps(retain=b), optimizer=sgd),
            checks=("backward", "graph-kept"), code="graph-retained",
            says=("is kept with its graph", "and its memory is not freed", "drop retain_graph=True")),
    Symptom(name="retain_graph in vain",
            make=lambda b: contract(Net, train_step=steps(retain=b), optimizer=sgd),
            checks=("graph-kept",), code="graph-retained", status="suspicious",
            says=("keeps a graph that no later backward uses",)),
)  # fmt: skip


@pytest.mark.parametrize("symptom", **named(*ROW_23))
def test_row_23(symptom: Symptom) -> None:
    """A graph gone through twice: what carries it, and what ``retain_graph`` costs."""
    holds(symptom)


class Normalised(Net):
    def forward(self, x):
        norm = x.norm(dim=1, keepdim=True)
        return super().forward(x / (norm if self.broken else norm + 1e-6))  # BUG


class Overflows(Net):
    def middle(self, h):
        return torch.exp(1000 * h) if self.broken else torch.exp(-h)  # BUG


def diverges(model):
    return torch.optim.SGD(model.parameters(), lr=1e4)  # BUG


def by_hand(output, targets):
    return -torch.log(output.softmax(1)).gather(1, targets[:, None]).mean()  # BUG


def of_probabilities(output, targets):
    p = torch.sigmoid(output)[:, 0]
    y = (targets == 0).float()
    return -(y * torch.log(p) + (1 - y) * torch.log(1 - p)).mean()  # BUG


ROW_24 = (
    Symptom(name="a learning rate", make=lambda b: contract(Net, optimizer=diverges if b else sgd),
            checks=("overfit",), code="optimizer-diverges", says=("the learning rate is too high",)),
    Symptom(name="an overflow", make=lambda b: contract(lambda: Overflows(b)), checks=("gradients-finite",),
            code="non-finite-forward", says=("exp overflows",)),
    EXPLODES,
    Symptom(name="a division by a norm of 0", make=lambda b: contract(lambda: Normalised(b)),
            checks=("degenerate-inputs",), code="edge-non-finite", status="suspicious",
            says=("a sample that is all zero", "a division by zero", "add eps to the denominator")),
    Symptom(name="log of 0", make=lambda b: contract(lambda: Logs(b)), checks=("gradients-finite",),
            code="non-finite-forward", says=("the logarithm of 0",)),
    Symptom(name="log of a softmax", make=lossy(by_hand), checks=("loss-input",), code="log-of-probabilities",
            status="suspicious", says=("logarithm of a softmax", "F.log_softmax")),
    Symptom(name="log of a sigmoid", make=lossy(of_probabilities), checks=("loss-input",),
            code="log-of-probabilities", status="suspicious", says=("logarithm of a sigmoid", "with_logits")),
)  # fmt: skip


@pytest.mark.parametrize("symptom", **named(*ROW_24))
def test_row_24(symptom: Symptom) -> None:
    """Every cause of a NaN loss that is taught, by its name."""
    holds(symptom)


def clips(broken):
    def step(model, optimizer, inputs, targets):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(*inputs), targets)
        loss.backward()
        if not broken:
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        return loss.detach()

    return step


CLIPS = Symptom(
    name="clipping",
    make=lambda b: contract(
        Net, train_step=clips(b), optimizer=sgd, promises=(promises.ClipsGradients(0.1),)
    ),
    checks=("gradient-clipping",), code="not-clipped", says=("clip_grad_norm_(parameters, 0.1)",), marked=False,
)  # fmt: skip


@pytest.mark.parametrize("symptom", **named(VANISHES, EXPLODES, CLIPS))
def test_row_25(symptom: Symptom) -> None:
    """Where along the depth it begins, and the cures by name: clip, initialise, normalise, residual, ReLU."""
    found = holds(symptom)
    if symptom is not CLIPS:
        assert len(found.evidence["layers"]) > 16
    cured = contract(deep(torch.sigmoid, residual=True)).check(["signal-propagation"])
    assert told(cured) == []


class Frozen(Net):
    def __init__(self, broken):
        super().__init__(broken)
        if broken:
            self.head.requires_grad_(False)  # BUG


class AllFrozen(Net):
    def __init__(self, broken):
        super().__init__(broken)
        self.requires_grad_(not broken)  # BUG


ROW_40 = (
    Symptom(name="a part", make=lambda b: contract(lambda: Frozen(b), promises=(promises.Trainable("*"),)),
            checks=("gradients-exist",), code="grad-off",
            says=("promised to be trainable", "requires_grad_(True)")),
    Symptom(name="everything", make=lambda b: contract(lambda: AllFrozen(b)), checks=("gradients-exist",),
            code="nothing-trainable", status="suspicious", says=("requires a gradient",)),
)  # fmt: skip


@pytest.mark.parametrize("symptom", **named(*ROW_40))
def test_row_40(symptom: Symptom) -> None:
    """Parameters frozen by accident, where ``Trainable`` says what must train; else they are named in the pass."""
    holds(symptom)
    (passed,) = contract(lambda: Frozen(True)).check(["gradients-exist"]).with_status("passed")
    assert "frozen: head.weight, head.bias" in passed.summary
