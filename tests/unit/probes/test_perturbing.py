"""Dropout and noise that stay on in eval mode are told from draws that a model means."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract
from pytest_torchcheck.probes.perturbing import find_perturbations

X = torch.randn(16, 12, generator=torch.Generator().manual_seed(0))


class Jitter(nn.Module):
    def forward(self, x):
        return x + 0.1 * torch.randn_like(x)


class Latent(nn.Module):
    """Draws with a size that is computed: the latent of an autoencoder."""

    def __init__(self):
        super().__init__()
        self.size = nn.Linear(12, 12)

    def forward(self, x):
        return x + torch.randn_like(x) * self.size(x).exp()


class Hides(nn.Module):
    """A masked autoencoder: what is kept is not scaled."""

    def forward(self, x):
        return x * (torch.rand_like(x) > 0.3).to(x.dtype)


class Inverted(nn.Module):
    def forward(self, x):
        return x * (torch.rand_like(x) > 0.3).to(x.dtype) / 0.7


class Blocks(nn.Module):
    """Stochastic depth: whole samples are dropped."""

    def forward(self, x):
        keep = x.new_empty(len(x), 1).bernoulli_(0.6).div_(0.6)
        return x * keep


class Factors(nn.Module):
    """The jitter of a router, beside a layer with weights."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(12, 12)

    def forward(self, x):
        x = x * torch.empty_like(x).uniform_(0.9, 1.1)  # rand
        return self.gate(x)


class Rescales(nn.Module):
    """Random sizes that are not 1 on average: an augmentation, or a step of a process that grows."""

    def forward(self, x):
        return x * torch.empty_like(x).uniform_(1.0, 2.0)  # rand


class Learned(nn.Module):
    """A noise around 1 of learned size."""

    def __init__(self):
        super().__init__()
        self.size = nn.Parameter(torch.full((12,), 0.1))

    def forward(self, x):
        return x * (1 + self.size * torch.randn_like(x))


class Chooses(nn.Module):
    def forward(self, x):
        return F.gumbel_softmax(x, tau=0.5)


class Functional(nn.Module):
    def forward(self, x):
        return F.dropout(x, 0.2)


class Net(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.first, self.layer, self.head = nn.Linear(12, 12), layer(), nn.Linear(12, 3)

    def forward(self, x):
        return self.head(self.layer(torch.tanh(self.first(x))))


@pytest.mark.parametrize(
    ("layer", "kind"),
    [
        (Jitter, "noise"),
        (Inverted, "mask"),
        (Blocks, "mask"),
        (Functional, "dropout"),
        (Factors, "jitter"),
        (Rescales, None),
        (Learned, None),
        (Latent, None),
        (Hides, None),
        (Chooses, None),
    ],
)
def test_only_what_leaves_the_mean_as_it_was_is_a_perturbation(layer, kind):
    torch.manual_seed(0)
    model = Net(layer).eval()
    state = torch.get_rng_state()
    found = find_perturbations(lambda: model(X), model)
    assert [p.kind for p in found] == ([] if kind is None else [kind])
    assert not torch.equal(state, torch.get_rng_state())  # the run itself draws
    report = Contract(model=lambda: Net(layer), batch=((X,), None)).check(["eval-determinism"])
    (finding,) = report.findings
    assert (finding.status, finding.code) == (
        "suspicious" if kind is None else "violated",
        "random-in-eval",
    )
    assert finding.location is not None
    assert (
        "rand" in finding.location.text
        or "keep" in finding.location.text
        or "F." in (finding.location.text)
    )


class Meant(nn.Module):
    """The pre-net of a decoder that gets its variation from dropout in evaluation too."""

    def forward(self, x):
        return F.dropout(
            torch.relu(x),
            p=0.5,
            training=True,
        )


class MeantByPlace(nn.Module):
    def forward(self, x):
        return F.dropout(torch.relu(x), 0.5, True)


class Decided(nn.Module):
    def forward(self, x):
        return F.dropout(torch.relu(x), 0.5, not self.training)


@pytest.mark.parametrize(
    ("layer", "status"),
    [(Meant, "suspicious"), (MeantByPlace, "suspicious"), (Decided, "violated")],
)
def test_dropout_whose_call_says_that_it_is_on_may_be_meant(layer, status):
    torch.manual_seed(0)
    report = Contract(model=lambda: Net(layer), batch=((X,), None)).check(["eval-determinism"])
    (finding,) = report.findings
    assert (finding.status, finding.code) == (status, "random-in-eval")
    assert ("Stochastic" in finding.fix) == (status == "suspicious")


def test_a_rescaled_mask_names_its_scale():
    (found,) = find_perturbations(lambda: model(X), model := Net(Inverted).eval())
    assert found.scale == pytest.approx(1 / 0.7)
