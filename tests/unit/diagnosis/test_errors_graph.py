from __future__ import annotations

import copy

import pytest
import torch
from provoke import explain, line
from torch import nn


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 3)

    def forward(self, x):
        h = torch.exp(self.fc(x))
        y = h * 2
        h += 1
        return y + h


def test_in_place_names_the_line_that_changed_and_the_line_that_saved():
    model = Scaled()
    found = explain(
        lambda: model(torch.randn(2, 3)).sum().backward(), phase="backward", model=model
    )
    assert found.code == "inplace-saved"
    assert found.location.line == line(Scaled, "h += 1")
    assert found.culprits[0].name == "Scaled.forward"
    assert found.culprits[1].location.line == line(Scaled, "torch.exp")
    assert "h = h + 1" in found.fix
    assert "version 0 to 1" in found.because


class Activated(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Sigmoid()
        self.act = nn.ReLU(inplace=True)

    def forward(self, x):
        h = self.gate(x)
        return self.act(h)


def test_an_inplace_module_is_the_culprit():
    model = Activated()
    x = torch.randn(2, 3, requires_grad=True)
    found = explain(lambda: model(x * 1).sum().backward(), phase="backward", model=model)
    assert found.code == "inplace-saved"
    assert found.culprits[0].name == "act"
    assert found.culprits[0].location.line == line(Activated, "nn.ReLU(inplace=True)")
    assert "inplace=False" in found.fix


def test_in_place_without_a_replay():
    model = Activated()
    x = torch.randn(2, 3, requires_grad=True)
    found = explain(
        lambda: model(x * 1).sum().backward(), phase="backward", model=model, rerun=False
    )
    assert found.code == "inplace-saved"
    assert "inplace=True: act" in found.observed


class Masked(nn.Module):
    def forward(self, scores):
        weights = scores.softmax(-1)
        weights[:, 0] = 0.0
        return weights


def test_an_indexed_assignment():
    model = Masked()
    x = torch.randn(2, 3, requires_grad=True)
    found = explain(lambda: model(x).sum().backward(), phase="backward", model=model)
    assert found.location.line == line(Masked, "weights[:, 0]")
    assert "torch.where" in found.fix


def two_losses(model, optimizer, x):
    out = model(x)
    first, second = out.sum(), out.square().sum()
    optimizer.zero_grad()
    first.backward(retain_graph=True)
    optimizer.step()
    second.backward()


def test_a_step_between_forward_and_backward():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = explain(
        lambda: two_losses(model, optimizer, torch.randn(2, 3)), phase="step", model=model
    )
    assert found.code == "inplace-saved"
    assert found.location.line == line(two_losses, "optimizer.step()")
    assert "optimizer" in found.cause
    assert "weight" in found.summary


class Leaf(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x):
        self.scale.mul_(0.9)
        return x * self.scale


def early(model, optimizer, x):
    first = model(x).square().mean()
    second = model(-x).abs().mean()
    optimizer.zero_grad()
    first.backward()
    optimizer.step()
    second.backward()


def test_a_loss_that_was_computed_before_the_step():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = explain(lambda: early(model, optimizer, torch.randn(2, 3)), phase="step", model=model)
    assert found.location.line == line(early, "second = ")
    assert "move line" in found.fix


def test_leaves_and_views():
    model = Leaf()
    found = explain(lambda: model(torch.randn(2, 3)), model=model)
    assert found.code == "inplace-leaf"
    assert found.culprits[0].name == "scale"
    assert found.location.line == line(Leaf, "mul_")
    x = torch.randn(3, requires_grad=True)
    assert explain(lambda: x[:1].mul_(2)).code == "inplace-leaf"

    def several():
        a, *_ = (torch.randn(3, 3, requires_grad=True) * 1).unbind(0)
        a += 1

    assert explain(several).code == "inplace-view"
    assert explain(lambda: torch.randn(3).expand(4, 3).add_(1)).code == "inplace-expanded"


class Remembering(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.Linear(4, 4)
        self.memory = None

    def forward(self, x):
        h = torch.tanh(self.cell(x) + (0 if self.memory is None else self.memory))
        self.memory = h
        return h


def steps(model):
    for _ in range(2):
        model(torch.ones(2, 4)).sum().backward()


def test_a_state_kept_by_a_module():
    model = Remembering()
    found = explain(lambda: steps(model), phase="backward", model=model)
    assert found.code == "second-backward"
    assert found.culprits[0].name == "memory"
    assert found.location.line == line(Remembering, "self.memory = h")
    assert ".detach()" in found.fix


def test_a_state_that_was_put_back_before_the_error_is_explained():
    model = Remembering()

    def run():
        try:
            steps(model)
        finally:
            model.memory = None

    for rerun in (True, False):
        found = explain(run, phase="backward", model=model, rerun=rerun)
        assert found.culprits[0].name == "memory"
        assert found.location.line == line(Remembering, "self.memory = h")


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(4, 4)

    def forward(self, x, h=None):
        return self.rnn(x, h)


def truncated(detach):
    carried = {"hidden": None}

    def train_step(model, x):
        out, hidden = model(x, carried["hidden"])
        out.sum().backward()
        if detach:
            carried["hidden"] = hidden.detach()
        else:
            carried["hidden"] = hidden

    return train_step


@pytest.mark.parametrize("rerun", [True, False])
def test_a_state_kept_by_the_users_own_step(rerun):
    model, step = Recurrent(), truncated(detach=False)

    def run():
        step(model, torch.randn(3, 2, 4))
        step(model, torch.randn(3, 2, 4))

    found = explain(run, phase="step", model=model, rerun=rerun)
    assert found.code == "second-backward"
    assert found.culprits[0].name == "carried['hidden']"
    assert found.location.text == 'carried["hidden"] = hidden'


def test_a_state_that_the_step_lost_before_the_error_is_explained():
    model, step = Recurrent(), truncated(detach=False)

    def run():
        step(model, torch.randn(3, 2, 4))
        try:
            step(model, torch.randn(3, 2, 4))
        finally:
            step.__closure__[0].cell_contents["hidden"] = None

    found = explain(run, phase="step", model=model, rerun=False)
    assert found.culprits[0].name == "carried['hidden']"
    assert "likely" in found.cause
    assert found.location.text == 'carried["hidden"] = hidden'


def twice(x):
    loss = (x * x).sum()
    loss.backward()
    loss.backward()


def test_backward_called_twice():
    found = explain(lambda: twice(torch.randn(3, requires_grad=True)), phase="backward")
    assert found.code == "second-backward"
    assert "called 2 times" in found.observed
    assert found.location.text == "loss.backward()"


def epochs(critic, x, *, detach, retain=False):
    returns = x.sum(dim=1)
    weights = returns - critic(x).squeeze(-1)
    weights = weights / weights.std()
    if detach:
        weights = weights.detach()
    for _ in range(2):
        loss = (weights * critic(x).squeeze(-1)).mean()
        loss.backward(retain_graph=retain)


def test_a_graph_that_two_passes_of_one_call_share():
    critic, x = nn.Linear(4, 1), torch.randn(8, 4)
    epochs(critic, x, detach=True)
    epochs(critic, x, detach=False, retain=True)
    found = explain(lambda: epochs(critic, x, detach=False), phase="step", model=critic)
    assert found.code == "second-backward"
    assert "weights" in found.summary
    assert "earlier step" not in str(found)
    assert found.location.line == line(epochs, "weights / weights.std()")
    assert line(epochs, "returns - critic") in {c.location.line for c in found.culprits}
    assert ".detach()" in found.fix


class Adversary(nn.Module):
    def __init__(self):
        super().__init__()
        self.generator, self.judge = nn.Linear(4, 4), nn.Linear(4, 1)


def adversarial(model, x, *, detach):
    fake = model.generator(x)
    model.judge(fake.detach() if detach else fake).square().mean().backward()
    (1 - model.judge(fake)).square().mean().backward()


def test_a_graph_that_two_losses_of_one_call_share():
    model, x = Adversary(), torch.randn(8, 4)
    adversarial(model, x, detach=True)
    found = explain(lambda: adversarial(model, x, detach=False), phase="step", model=model)
    assert found.code == "second-backward"
    assert "both losses contain fake" in found.cause
    assert found.location.line == line(adversarial, "fake = model.generator")
    lines = {c.location.line for c in found.culprits}
    assert line(adversarial, "(1 - model.judge(fake))") in lines


class Cut(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 1)

    def forward(self, x):
        h = self.fc(x).detach()
        return h * 2


class NoGrad(Cut):
    def forward(self, x):
        with torch.no_grad():
            return torch.relu(self.fc(x))


def test_a_loss_without_a_graph():
    model = Cut()
    found = explain(
        lambda: model(torch.randn(2, 3)).sum().backward(), phase="backward", model=model
    )
    assert found.code == "no-graph"
    assert found.location.line == line(Cut, ".detach()")
    assert found.culprits[0].name == "Cut.forward"
    assert "drop .detach" in found.fix
    model = NoGrad()
    found = explain(
        lambda: model(torch.randn(2, 3)).sum().backward(), phase="backward", model=model
    )
    assert "no_grad" in found.cause
    assert found.location.line == line(NoGrad, "torch.relu")
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    found = explain(
        lambda: model(torch.randn(2, 3)).sum().backward(), phase="backward", model=model
    )
    assert "frozen" in found.cause
    found = explain(lambda: torch.randn(3).sum().backward(), phase="backward", rerun=False)
    assert found.code == "no-graph"


def test_losses_that_are_no_scalar():
    found = explain(lambda: (torch.randn(3, requires_grad=True) * 2).backward(), phase="backward")
    assert found.code == "loss-not-scalar"
    assert "[3]" in found.observed
    z = torch.randn(2, dtype=torch.cfloat, requires_grad=True)
    assert "complex" in explain(lambda: z.sum().backward(), phase="backward").summary
    assert explain(lambda: (1.0).backward(), phase="backward").code == "loss-not-tensor"
    found = explain(lambda: None.backward(), phase="backward")
    assert found.code == "loss-not-tensor"
    assert "returns nothing" in found.cause


def test_numpy_and_inference_tensors():
    x = torch.randn(3, requires_grad=True)
    assert explain(x.numpy).code == "numpy-in-graph"
    with torch.inference_mode():
        made = torch.randn(2, 2)
    layer = nn.Linear(2, 2)
    assert explain(lambda: layer(made).sum().backward()).code == "inference-tensor"
    assert explain(lambda: made.add_(1)).code == "inplace-inference"


def test_autograd_grad_of_something_unused():
    a, b = torch.randn(2, requires_grad=True), torch.randn(2, requires_grad=True)
    assert (
        explain(lambda: torch.autograd.grad(a.sum(), [b]), phase="backward").code == "grad-unused"
    )


class OneGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        return x * y

    @staticmethod
    def backward(ctx, g):
        return g


class ShortGradient(OneGradient):
    @staticmethod
    def backward(ctx, g):
        return g[:1], g


class Legacy(torch.autograd.Function):
    def forward(self, x):
        return x

    def backward(self, g):
        return g


@pytest.mark.filterwarnings("ignore:.*should not be instantiated")
def test_what_a_function_returns():
    x, y = torch.randn(2, requires_grad=True), torch.randn(2, requires_grad=True)
    found = explain(lambda: OneGradient.apply(x, y).sum().backward(), phase="backward")
    assert found.code == "function-gradients"
    assert found.location.line == line(OneGradient, "return g\n")
    found = explain(lambda: ShortGradient.apply(x, y).sum().backward(), phase="backward")
    assert found.code == "function-gradient-shape"
    assert found.culprits[0].name == "ShortGradient"
    assert found.location.line == line(ShortGradient, "return g[:1], g")
    assert explain(lambda: Legacy()(torch.randn(2)), phase="forward").code == "function-form"


class Keeper(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(2, 2)

    def forward(self, x):
        self.last = self.fc(x)
        return self.last


def test_a_copy_of_a_module_that_keeps_its_output():
    model = Keeper()
    model(torch.randn(1, 2))
    found = explain(lambda: copy.deepcopy(model), phase="build", model=model)
    assert found.code == "deepcopy-nonleaf"
    assert found.culprits[0].name == "last"
    assert found.location.line == line(Keeper, "self.last = self.fc(x)")


def test_requires_grad_where_it_cannot_be():
    y = torch.randn(2, requires_grad=True) * 2
    assert explain(lambda: setattr(y, "requires_grad", False)).code == "requires-grad-nonleaf"
    assert explain(lambda: nn.Parameter(torch.ones(2).long())).code == "integer-gradient"


def test_regression_targets_of_another_dtype_in_backward():
    def run():
        out = nn.Linear(3, 1)(torch.randn(4, 3))
        raise RuntimeError("Found dtype Double but expected Float") if out is not None else None

    found = explain(run, phase="backward")
    assert found.code == "target-dtype"
    assert "float64" in found.cause
