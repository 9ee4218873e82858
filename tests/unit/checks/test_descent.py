"""The loss changes along its gradient by what the gradient says; what is cut off or wrong is found, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract
from pytest_torchcheck.checks.losses import descent


def check(model, *, seed=0, loss=F.cross_entropy, batch=None, **fields):
    torch.manual_seed(seed)
    made = model()
    given = batch() if batch else ((torch.randn(6, 7),), torch.arange(6) % 3)
    (found,) = Contract(model=made, batch=given, loss=loss, **fields).check(["descent"]).findings
    return found


class Scaled(nn.Module):
    """A feature times a factor that is made of the feature itself, in some way."""

    def __init__(self, factor):
        super().__init__()
        self.body, self.head = nn.Linear(7, 20), nn.Linear(20, 3)
        self.factor = factor

    def forward(self, x):
        h = torch.sin(self.body(x))
        return self.head(h * self.factor(h))


def without_gradients(h):
    with torch.no_grad():
        return h.exp()


CUTS = {
    "detach": (lambda h: h.detach().exp(), "Tensor.detach"),
    "no-grad": (without_gradients, "Tensor.exp"),
    "data": (lambda h: h.data.exp(), "Tensor.data"),
    "numpy": (lambda h: torch.from_numpy(np.exp(h.detach().numpy())), "Tensor.detach"),
    "item": (lambda h: h.sum().item(), "Tensor.item"),
    "list": (lambda h: torch.tensor(h.exp().tolist(), dtype=h.dtype), "Tensor.tolist"),
}


@pytest.mark.parametrize("name", CUTS)
def test_a_part_that_is_cut_off_is_named_by_its_line(name):
    factor, called = CUTS[name]
    found = check(lambda: Scaled(factor), seed=1)
    assert (found.status, found.code) == ("suspicious", "gradient-partial"), str(found)
    assert found.culprits[0].name == called
    assert "body.weight" in {culprit.name for culprit in found.culprits}
    assert found.location.file.endswith("test_descent.py")
    line = "with torch.no_grad()" if name == "no-grad" else "lambda h"
    assert line in found.location.text


SOUND = {
    "smooth": lambda: Scaled(lambda h: h.exp()),
    "in float32": lambda: Scaled(lambda h: h.float().exp()),
    "rounded": lambda: Scaled(lambda h: 1 + (3 * h).round()),
    "a mask": lambda: Scaled(lambda h: (h > 0.1).to(h.dtype)),
    "dropout": lambda: Scaled(lambda h: F.dropout(h.cos(), 0.4)),
    "a mean that only logs": lambda: Scaled(lambda h: h.cos() + 0 * h.detach().mean()),
    "rectified": lambda: nn.Sequential(
        nn.Linear(7, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 3)
    ),
    "normalised": lambda: nn.Sequential(
        nn.Linear(7, 24), nn.BatchNorm1d(24), nn.GELU(), nn.LayerNorm(24), nn.Linear(24, 3)
    ),
    "zero-initialised": lambda: _zeroed(),
    "weight norm": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(7, 3)),
}


def _zeroed():
    made = nn.Sequential(nn.Linear(7, 9), nn.ReLU(), nn.Linear(9, 3))
    nn.init.zeros_(made[2].weight)
    nn.init.zeros_(made[0].bias)
    return made


@pytest.mark.parametrize("name", SOUND)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_correct_model_holds(name, seed):
    found = check(SOUND[name], seed=seed)
    assert found.status == "passed", str(found)


class Narrow(Scaled):
    """Computes logits and loss in float32, as many language models do."""

    def forward(self, x):
        return super().forward(x).float()


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_loss_in_float32_is_compared_at_larger_steps(seed):
    assert check(lambda: Narrow(torch.exp), seed=seed).status == "passed"
    found = check(lambda: Narrow(lambda h: h.detach().exp()), seed=seed)
    assert (found.status, found.code) == ("suspicious", "gradient-partial"), str(found)


@pytest.mark.parametrize("cut", [False, True])
def test_a_loss_that_holds_weights_in_float32(cut):
    weighted = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 0.5]))
    found = check(
        lambda: Scaled(lambda h: h.detach().exp() if cut else h.exp()),
        loss=lambda output, targets: weighted(output, targets),
    )
    assert found.status == ("suspicious" if cut else "passed"), str(found)


class Chosen(nn.Module):
    """Codes chosen from a table, with the gradient of what chose them."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(7, 4), nn.Linear(4, 3)
        self.codes = nn.Parameter(torch.randn(11, 4))

    def forward(self, x):
        h = self.body(x)
        code = self.codes[torch.cdist(h, self.codes).argmin(1)]
        return self.head(h + (code - h).detach()), h, code


def with_codes(output, targets):
    logits, h, code = output
    return (
        F.cross_entropy(logits, targets)
        + F.mse_loss(code, h.detach())
        + F.mse_loss(h, code.detach())
    )


class Spike(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x > 0).to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g / (1 + x.square())


def test_surrogates_are_no_findings():
    for model, loss in (
        (lambda: Scaled(lambda h: h + (h.sign() - h).detach()), F.cross_entropy),
        (Chosen, with_codes),
    ):
        found = check(model, loss=loss)
        assert found.status == "not-applicable", str(found)
        assert "surrogate" in found.summary


class Cubed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x**2


def hooked(h):
    factor = h.exp()
    if factor.requires_grad:
        factor.register_hook(lambda g: -g)
    return factor


@pytest.mark.parametrize(
    ("factor", "says"),
    [
        (Cubed.apply, "custom Cubed"),
        (Spike.apply, "custom Spike"),
        (hooked, "a hook"),
        (torch.bernoulli, ""),
    ],
)
def test_what_others_judge_or_was_meant_is_not_blamed(factor, says):
    wrap = factor if factor is not torch.bernoulli else lambda h: torch.bernoulli(h.sigmoid())
    found = check(lambda: Scaled(wrap))
    assert found.status in ("inconclusive", "not-applicable", "passed"), str(found)
    assert says in found.summary


class Monitored(nn.Module):
    """Keeps how large the gradient of its features is, by a hook of some kind."""

    def __init__(self, hook):
        super().__init__()
        self.below, self.above, self.hook = nn.Linear(7, 8), nn.Linear(8, 3), hook

    def forward(self, x):
        h = torch.tanh(self.below(x))
        if h.requires_grad:
            h.register_hook(self.hook)
        return self.above(h)


SEEN = []


def looks(gradient):
    SEEN.append(gradient.abs().mean().item())


def writes(gradient):
    SEEN.append(gradient.abs_().mean().item())


def damps(gradient):
    return gradient.mul_(0.1)


def test_a_hook_that_writes_to_the_gradient_it_looks_at_is_named():
    found = check(lambda: Monitored(writes))
    assert (found.status, found.code) == ("violated", "gradient-wrong"), str(found)
    assert found.culprits[0].name == "writes"
    assert "gradient.abs_()" in found.location.text


def test_a_hook_may_look_at_a_gradient_and_return_another():
    assert check(lambda: Monitored(looks)).status == "passed"
    assert check(lambda: Monitored(damps)).status == "inconclusive"


def test_spectral_norm_stops_a_gradient_within_torch():
    def made():
        first = nn.utils.spectral_norm(nn.Linear(7, 9))
        return nn.Sequential(first, nn.ReLU(), nn.Linear(9, 3))

    assert check(made).status in ("inconclusive", "passed")


PARAMETRIZED = nn.utils.parametrizations


class Normed(nn.Module):
    """Calls a layer of torch that switches gradients off by itself."""

    def __init__(self, norm, scale="none"):
        super().__init__()
        self.first, self.last, self.scale = norm(nn.Linear(7, 9)), nn.Linear(9, 3), scale

    def forward(self, x):
        h = self.first(x)
        if self.scale == "with":
            with torch.no_grad():
                factor = nn.functional.normalize(self.first(x))
            h = h * factor
        return self.last(torch.relu(h * measured(h) if self.scale == "decorated" else h))


@torch.no_grad()  # HERE
def measured(h):
    return nn.functional.normalize(h)


@pytest.mark.parametrize(
    "norm",
    [nn.utils.spectral_norm, PARAMETRIZED.spectral_norm, PARAMETRIZED.weight_norm],
    ids=["spectral", "parametrized", "weight"],
)
def test_what_torch_stops_is_at_no_line_of_the_users(norm):
    assert check(lambda: Normed(norm)).status in ("inconclusive", "passed")


@pytest.mark.parametrize("scale", ["with", "decorated"])
def test_what_the_user_stops_around_torchs_layers_is(scale):
    found = check(lambda: Normed(lambda layer: layer, scale))
    assert (found.status, found.code) == ("suspicious", "gradient-partial")
    assert "no_grad" in found.location.text


class Overwrites(nn.Module):
    """Changes what autograd has saved, behind its back."""

    def __init__(self, copies):
        super().__init__()
        self.body, self.head, self.copies = nn.Linear(7, 20), nn.Linear(20, 3), copies

    def forward(self, x):
        h = torch.tanh(self.body(x))
        out = self.head(h)
        kept = h.clone() if self.copies else h
        kept.data.mul_(0.5)
        return out


@pytest.mark.parametrize("copies", [True, False])
def test_a_gradient_of_other_values(copies):
    found = check(lambda: Overwrites(copies))
    if copies:
        assert found.status == "passed", str(found)
    else:
        assert (found.status, found.code) == ("violated", "gradient-wrong")
        assert {c.name for c in found.culprits} >= {"head.weight", "body.weight"}


def test_it_costs_a_step_and_a_forward():
    calls = []

    class Counted(Scaled):
        def forward(self, x):
            calls.append((len(x), x.dtype))
            return super().forward(x)

    found = check(
        lambda: Counted(torch.cos),
        batch=lambda: ((torch.randn(32, 7),), torch.arange(32) % 3),
    )
    assert found.status == "passed"
    assert calls == [(3, torch.float64)] * 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_model_is_put_back(dtype):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(7, 9), nn.BatchNorm1d(9), nn.Linear(9, 3)).to(dtype)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    batch = ((torch.randn(6, 7, dtype=dtype),), torch.arange(6) % 3)
    Contract(model=model, batch=batch, loss=F.cross_entropy).check(["descent"])
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(value.dtype == before[name].dtype for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert torch.get_default_dtype() == torch.float32


def test_several_optimizers_are_left_alone():
    def optimizers(model):
        return [torch.optim.SGD(part.parameters(), lr=0.1) for part in (model.body, model.head)]

    found = check(lambda: Scaled(lambda h: h.detach()), optimizer=optimizers)
    assert found.status == "not-applicable"


def test_a_large_model_is_asked_only_where_float64_is_declared(monkeypatch):
    monkeypatch.setattr(descent, "_LARGE_BYTES", 4 * 2**10)

    def asked(width=43, **declared):
        model = nn.Sequential(nn.Linear(4, width), nn.Linear(width, width), nn.Linear(width, 3))
        contract = Contract(
            model=model,
            batch=((torch.randn(2, 4),), torch.tensor([0, 2])),
            loss=F.cross_entropy,
            **declared,
        )
        (found,) = contract.check(["descent"]).findings
        return found.status

    assert asked() == "not-applicable"
    assert asked(width=8) == "passed"
    assert asked(dtypes=["float32", "float64"]) == "passed"


class Recast(nn.Module):
    """Weighs features that are cut from the graph by a parameter that is cast to what it weighs."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(7, 20), nn.Linear(20, 3)
        self.weight = nn.Parameter(torch.ones(20))

    def forward(self, x):
        h = torch.tanh(self.body(x))
        return self.head(h + self.weight.to(h) * (3 * h).detach())


def test_a_cast_to_what_another_tensor_is_reads_no_value_of_it():
    assert check(Recast).code == "gradient-partial"


def test_nets_that_are_steep_are_asked_at_a_shorter_step() -> None:
    """Norms over few values make the loss of a deep net so steep that steps of 1e-6 leave its slope."""

    def make() -> nn.Module:
        layers: list[nn.Module] = []
        for _ in range(24):
            layers += [nn.Linear(12, 12, bias=False), nn.BatchNorm1d(12), nn.ReLU()]
        return nn.Sequential(nn.Linear(8, 12), *layers, nn.Linear(12, 3))

    contract = Contract(
        model=make,
        batch=((torch.randn(4, 8),), torch.tensor([0, 1, 2, 1])),
        loss=F.cross_entropy,
        optimizer=lambda m: torch.optim.Adam(m.parameters(), lr=1e-3),
    )
    report = contract.check(["backward", "descent"])
    (finding,) = [f for f in report.findings if f.check == "descent"]
    assert finding.status == "passed", finding.summary
