"""A generator that a model holds repeats from run to run: what seeds it shows in a second build."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import nn

from pytest_torchcheck import Contract


class Source:
    """Holds a generator for a model."""

    def __init__(self, generator):
        self.generator = generator


class Masks(nn.Module):
    def __init__(self, generator, draw):
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.noise = Source(generator)
        self.draw = draw

    def forward(self, x):
        return self.layer(x * self.draw(self.noise.generator))


def found(generator, draw):
    built = Contract(model=lambda: Masks(generator(), draw), batch=((torch.randn(4, 6),), None))
    (finding,) = built.check(["seeding"]).findings
    return finding


def of_torch(seed):
    made = torch.Generator()
    made.seed() if seed is None else made.manual_seed(seed)
    return made


DRAWS = {
    "numpy": (np.random.default_rng, lambda g: float(g.normal())),
    "legacy": (np.random.RandomState, lambda g: float(g.normal())),
    "random": (random.Random, lambda g: g.random()),
    "torch": (of_torch, lambda g: float(torch.rand((), generator=g))),
}


@pytest.mark.parametrize("kind", DRAWS)
def test_a_generator_that_nothing_seeds(kind):
    make, draw = DRAWS[kind]
    finding = found(lambda: make(None), draw)
    assert (finding.status, finding.code) == ("violated", "seed-ignored")
    assert "generator is not seeded" in finding.summary
    assert finding.culprits[0].name == "generator"


@pytest.mark.parametrize("kind", DRAWS)
def test_draws_of_an_own_generator_are_random_in_eval_mode_and_nothing_else(kind):
    make, draw = DRAWS[kind]

    class Noisy(Masks):
        def forward(self, x):
            noise = [draw(self.noise.generator) for _ in range(x.numel())]
            return self.layer(x + 0.1 * x.new_tensor(noise).view_as(x))

    report = Contract(
        model=lambda: Noisy(make(3), None), batch=((torch.randn(4, 6),), None)
    ).check()
    red = {f.check for f in report.findings if f.status in ("violated", "error")}
    assert not red - {"device-portability"}  # the draws of NumPy and Python are on the CPU
    (said,) = [f for f in report.findings if f.check == "eval-determinism"]
    assert (said.status, said.code) == ("suspicious", "random-in-eval")


@pytest.mark.parametrize("kind", DRAWS)
def test_sound_generators(kind):
    make, draw = DRAWS[kind]
    assert found(lambda: make(7), draw).status == "passed"
    assert found(lambda: make(torch.initial_seed() % 2**32), draw).status == "passed"
    assert found(lambda: make(None), lambda _: 0.5).status == "passed"  # never drawn from


class Reseeds(nn.Module):
    """Gives torch's generator a seed that no earlier one decides, to draw the same mask again later."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x):
        if self.training:
            self.again = torch.seed()
        return self.layer(nn.functional.dropout(x, 0.5, self.training))


def test_a_forward_that_seeds_torch_anew():
    made = Contract(
        model=Reseeds, batch=((torch.randn(4, 6),), torch.randn(4, 3)), loss=nn.functional.mse_loss
    )
    (finding,) = made.check("seeding").findings
    assert (finding.status, finding.code) == ("violated", "seed-ignored")
    assert "torch.seed()" in finding.location.text
    assert "another number each time" in finding.cause
