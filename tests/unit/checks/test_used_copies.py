"""Copies after a training step, and copies that outlive their use."""

from __future__ import annotations

import functools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract
from pytest_torchcheck.runs.copying import copies_itself

X = torch.randn(4, 5, 6, generator=torch.Generator().manual_seed(1))
Y = torch.tensor([0, 1, 2, 0])


class Attending(nn.Module):
    """Keeps its attention map to be looked at."""

    def __init__(self, how):
        super().__init__()
        self.query, self.head = nn.Linear(6, 6), nn.Linear(6, 3)
        self.how, self.map, self.extra = how, None, None

    def forward(self, x):
        weights = torch.softmax(self.query(x) @ x.mT, dim=-1)
        if self.how == "graph":
            self.map = weights
        elif self.how == "read":
            self.extra = weights
        elif self.how == "auxiliary":
            self.extra = weights.square().mean()
        elif self.how == "detached":
            self.map = weights.detach()
        elif self.how == "evaluation" and not self.training:
            self.map = weights
        return self.head((weights @ x).mean(1))


def told(make, **declared):
    declared = {"loss": F.cross_entropy, **declared}
    made = Contract(model=make, batch=((X,), Y), **declared)
    return [f for f in made.check(checks=["copy-and-pickle"]).findings if f.status != "passed"]


def penalised(model, optimizer, inputs, targets):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(*inputs), targets) + model.extra.square().mean()
    loss.backward()
    optimizer.step()
    return loss.detach()


def adam(model):
    return torch.optim.Adam(model.parameters())


def test_a_map_with_its_graph():
    (finding,) = told(lambda: Attending("graph"))
    assert (finding.status, finding.code) == ("violated", "copy-after-training")
    assert finding.culprits[0].name == "map"
    assert finding.location.text == "self.map = weights"


@pytest.mark.parametrize("how", ["detached", "evaluation"])
def test_maps_without_one(how):
    assert not told(lambda: Attending(how))


@pytest.mark.parametrize("how", ["read", "auxiliary"])
def test_what_the_loss_reads_needs_its_graph(how):
    (finding,) = told(lambda: Attending(how), optimizer=adam, train_step=penalised)
    assert (finding.status, finding.code) == ("suspicious", "copy-after-training")
    assert "detach()" not in finding.fix
    assert "its graph is used" in finding.because


def test_what_an_undeclared_loss_may_read_is_suspicious():
    (finding,) = told(lambda: Attending("graph"), loss=None)
    assert finding.status == "suspicious"


class Carrying(nn.Module):
    """Mixes what it kept from the call before into its output, without the graph of then."""

    def __init__(self):
        super().__init__()
        self.mix, self.head, self.trail = nn.Linear(12, 6), nn.Linear(6, 3), None

    def forward(self, x):
        h = x.mean(1)
        before = torch.zeros_like(h) if self.trail is None else self.trail.detach()
        self.trail = self.mix(torch.cat([h, before], -1)).tanh()
        return self.head(self.trail)


def test_what_forward_reads_again_is_detached_at_its_end():
    (finding,) = told(Carrying)
    assert finding.code == "copy-after-training"
    assert finding.fix.endswith("self.trail = self.trail.detach() at its end")
    (shown,) = told(lambda: Attending("graph"))
    assert shown.fix.startswith("keep map.detach() on line")


class Cached(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(6, 3)

    @functools.lru_cache(maxsize=8)  # noqa: B019  (the bug)
    def places(self, length):
        return torch.arange(length).float().cos()

    def forward(self, x):
        return self.head((x * self.places(x.shape[1])[:, None]).mean(1))


@functools.lru_cache(maxsize=8)
def places(length):
    return torch.arange(length).float().cos()


class Sharing(nn.Module):
    """Its table is cached by its length alone, and it knows the module around it."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(6, 3)
        self.part = nn.Linear(6, 6)
        self.part.__dict__["parent"] = self

    def forward(self, x):
        return self.head(self.part(x * places(x.shape[1])[:, None]).mean(1))


def test_a_cache_on_a_method_holds_the_module():
    (finding,) = told(Cached)
    assert (finding.status, finding.code) == ("violated", "copy-held")
    assert "lru_cache" in finding.location.text or "def places" in finding.location.text


def test_a_cache_of_numbers_and_a_cycle_hold_nothing():
    assert not told(Sharing)


@pytest.mark.parametrize("package", [__name__, "hypothesis"])
def test_a_library_that_says_how_its_layers_are_copied_is_not_asked_for_it(package):
    class Layer(nn.Linear):
        __module__ = package

        def __getstate__(self):
            return self.__dict__.copy()

    assert copies_itself(nn.Sequential(Layer(2, 2))) == (package == __name__)


class Capped(nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.first, self.head = norm(nn.Linear(6, 6)), nn.Linear(6, 3)

    def forward(self, x):
        return self.head(torch.relu(self.first(x)).mean(1))


def test_torchs_old_spectral_norm_is_no_mistake_of_the_model():
    (finding,) = told(lambda: Capped(nn.utils.spectral_norm))
    assert (finding.status, finding.code) == ("suspicious", "copy-after-training")
    assert "torch.nn.utils.spectral_norm" in finding.cause
    assert "torch.nn.utils.parametrizations.spectral_norm" in finding.fix
    assert told(lambda: Capped(nn.utils.parametrizations.spectral_norm)) == []
