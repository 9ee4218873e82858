from __future__ import annotations

import random
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from pytest_torchcheck.probes.randomness import find_draws, find_reseeding


@pytest.fixture(autouse=True)
def _other_seeds():
    """Whatever ran before may have left a generator as the seed of a test makes it: a second time changes nothing."""
    random.seed(99)
    np.random.seed(99)
    torch.manual_seed(99)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5))
        self.head = nn.Linear(8, 3)
        self.rng = torch.Generator().manual_seed(1)
        self.own = np.random.default_rng(0)
        self.dice = random.Random(0)

    def middle(self, h):
        return h

    def forward(self, x):
        return self.head(self.middle(self.encoder(x)))


def draws_of(model):
    return find_draws(lambda: model(torch.ones(5, 4)), model)


def only(draws, generator):
    return [draw for draw in draws if draw.generator == generator]


def test_a_dropout_draws_from_torch_in_its_module():
    model = Net()
    (draw,) = draws_of(model)
    assert (draw.generator, draw.kind, draw.op) == ("torch", "draw", "F.dropout")
    assert (draw.module, draw.module_class, draw.training) == ("encoder.1", "Dropout", True)
    assert draw.location.text == "return self.head(self.middle(self.encoder(x)))"
    assert draws_of(model.eval()) == ()


def test_a_functional_dropout_in_eval_mode():
    class Forgets(Net):
        def middle(self, h):
            return F.dropout(h, 0.1)  # HERE

    (draw,) = draws_of(Forgets().eval())
    assert draw.location.text.endswith("# HERE")
    assert draw.training is False


@pytest.mark.parametrize(
    ("generator", "take"),
    [
        ("numpy", "np.random.randn(1)"),
        ("numpy", "np.random.permutation(4)"),
        ("random", "random.random()"),
        ("random", "random.choice([1, 2, 3])"),
    ],
)
def test_other_generators_draw_once_per_line(generator, take):
    code = compile(take, "<text>", "eval")

    class Draws(Net):
        def middle(self, h):
            h = h + 1
            float(np.sum(eval(code)))  # HERE
            return h * 2

    draws = draws_of(Draws().eval())
    assert [(d.generator, d.kind, d.op, d.training) for d in draws] == [
        (generator, "draw", "", False)
    ]
    assert draws[0].location.text.endswith("# HERE")


def test_the_line_that_draws_from_numpy():
    class Masks(Net):
        def starts(self, n):
            size = (n,)
            return torch.as_tensor(np.random.randint(0, 8, size=size))  # HERE

        def middle(self, h):
            keep = self.starts(len(h))
            return h * (torch.arange(8) >= keep[:, None])

    (draw,) = draws_of(Masks().eval())
    assert draw.generator == "numpy"
    assert draw.location.text.endswith("# HERE")
    assert draw.location.function.endswith("Masks.starts")


def test_generators_that_the_module_holds():
    class Owns(Net):
        def middle(self, h):
            h = h + torch.randn(8, generator=self.rng)  # TORCH
            h = h * float(self.own.random())  # NUMPY
            return h * self.dice.random()  # RANDOM

    draws = draws_of(Owns().eval())
    assert [(d.generator, d.location.text.split("# ")[1]) for d in draws] == [
        ("rng", "TORCH"),
        ("own", "NUMPY"),
        ("dice", "RANDOM"),
    ]


def test_seeding_is_told_from_drawing():
    class Reseeds(Net):
        def middle(self, h):
            torch.manual_seed(0)  # TORCH
            np.random.seed(0)  # NUMPY
            random.seed(0)  # RANDOM
            return h + torch.rand(8)  # DRAW

    draws = draws_of(Reseeds().eval())
    assert [(d.kind, d.generator, d.location.text.split("# ")[1]) for d in draws] == [
        ("reseed", "torch", "TORCH"),
        ("reseed", "numpy", "NUMPY"),
        ("reseed", "random", "RANDOM"),
        ("draw", "torch", "DRAW"),
    ]


def test_the_seeding_of_torch_comes_before_that_of_others():
    class Reseeds(Net):
        def middle(self, h):
            np.random.seed(0)  # NUMPY
            torch.manual_seed(0)  # TORCH
            return h + torch.rand(8)

    model = Reseeds()
    found = find_reseeding(lambda: model(torch.ones(5, 4)), model)
    assert (found.op, found.generator) == ("torch.manual_seed", "torch")
    assert found.location.text.endswith("# TORCH")
    sound = Net()
    assert find_reseeding(lambda: sound(torch.ones(5, 4)), sound) is None


def test_what_the_tool_itself_seeds_is_not_the_users():
    model = Net()
    tool = {"torch": torch, "np": np, "model": model}
    code = "def run():\n torch.manual_seed(3); np.random.seed(3)\n model(torch.ones(5, 4))\n np.random.seed(4)"
    exec(compile(code, "<tool>", "exec"), tool)
    found = find_draws(tool["run"], model)
    assert [(draw.kind, draw.op) for draw in found] == [("draw", "F.dropout")]


def test_a_forked_generator_is_restored():
    class Forks(Net):
        def middle(self, h):
            with torch.random.fork_rng(devices=[]):  # FORK
                h = h + torch.rand(8)
            return h.relu()

    draws = draws_of(Forks().eval())
    assert [d.kind for d in draws] == ["draw", "restore"]


def test_a_recomputed_dropout_is_seen_in_the_backward():
    model = Net()

    def run():
        h = checkpoint(model.encoder, torch.ones(5, 4), use_reentrant=False)
        model.head(h).sum().backward()

    draws = find_draws(run, model)
    assert [(d.kind, d.backward) for d in draws if d.op == "F.dropout"] == [
        ("draw", False),
        ("draw", True),
    ]
    model.zero_grad()


def test_nothing_is_drawn_and_the_tracer_is_put_back():
    def own(frame, event, argument):
        return None

    model = Net().eval()
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    kept = sys.gettrace()
    sys.settrace(own)
    try:
        assert draws_of(model) == ()
        assert sys.gettrace() is own
        with pytest.raises(RuntimeError, match="mat1"):
            find_draws(lambda: model(torch.ones(5, 5)), model)
        assert sys.gettrace() is own
    finally:
        sys.settrace(kept)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.random.get_state()[1].tolist() == before[1]
    assert random.getstate() == before[2]
