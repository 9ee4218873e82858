from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract
from pytest_torchcheck.probes.gradient.provenance import find_zero_gradient, find_zero_gradients


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder = nn.Linear(6, 8)
        self.head = nn.Linear(8, 3)

    def middle(self, h: torch.Tensor) -> torch.Tensor:
        return h

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.middle(self.encoder(x)))


class DeadRelu(Net):
    def middle(self, h):
        g = h - 100
        return torch.relu(g)  # ZERO


class DeadReluInPlace(Net):
    def middle(self, h):
        return F.relu(h - 100, inplace=True)  # ZERO


class SoftmaxOverOne(Net):
    def middle(self, h):
        scores = h.mean(-1, keepdim=True)
        return scores.softmax(-1).expand(-1, 8)  # ZERO


class Renormalised(Net):
    def middle(self, h):
        weight, _ = torch.softmax(h, -1).topk(1)
        weight = weight / (weight.sum(-1, keepdim=True) + 1e-20)  # ZERO
        return weight.expand(-1, 8)


class TimesZeros(Net):
    def middle(self, h):
        mask = torch.zeros(8)
        return h * mask + 1  # ZERO


class TimesNumber(Net):
    def middle(self, h):
        return 0.0 * h + 1  # ZERO


class Clamped(Net):
    def middle(self, h):
        return (h + 50).clamp(0, 1)  # ZERO


class Saturated(Net):
    def middle(self, h):
        return torch.sigmoid(h + 200)  # ZERO


class Rounded(Net):
    def middle(self, h):
        return torch.round(h * 4) / 4  # ZERO


class Normal(Net):
    def middle(self, h):
        return torch.normal(h, 1.0)  # ZERO


class Overwritten(Net):
    def middle(self, h):
        out = h * 2
        out[:] = 1.0  # ZERO
        return out


class Masked(Net):
    def middle(self, h):
        return h.masked_fill(torch.ones(8, dtype=torch.bool), 0.5)  # ZERO


class Centred(Net):
    def middle(self, h):
        g = F.layer_norm(h, (8,))  # ZERO
        return g.sum(-1, keepdim=True).expand(-1, 8)


class Blind(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.sign()

    @staticmethod
    def backward(ctx, g):
        return torch.zeros_like(g)


class BlindFunction(Net):
    def middle(self, h):
        return Blind.apply(h)  # ZERO


KINDS = {
    DeadRelu: "inactive",
    DeadReluInPlace: "inactive",
    SoftmaxOverOne: "single-choice",
    Renormalised: "cancels",
    TimesZeros: "times-zero",
    TimesNumber: "times-zero",
    Clamped: "saturated",
    Saturated: "saturated",
    Rounded: "step",
    Normal: "sampling",
    Overwritten: "overwritten",
    Masked: "overwritten",
    Centred: "normalised",
    BlindFunction: "function",
}


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize(("cls", "kind"), KINDS.items(), ids=lambda v: getattr(v, "__name__", v))
def test_the_operation_that_kills_the_gradient(cls, kind, backward):
    model = cls()
    x, y = torch.randn(5, 6), torch.randint(0, 3, (5,))

    def run():
        loss = F.cross_entropy(model(x), y)
        if backward:
            loss.backward()
        return loss

    found = find_zero_gradient(run, model, "encoder.weight")
    assert (found.kind, found.location.text.endswith("# ZERO")) == (kind, True), found
    assert found.reached > 1e-6
    assert found.left < 1e-6 * found.reached + 1e-9
    assert found.fact
    assert all(p.grad is None for p in model.parameters())


def test_the_facts_hold_numbers():
    model, x = DeadRelu(), torch.zeros(5, 6)
    found = find_zero_gradient(lambda: model(x).square().sum(), model, "encoder.weight")
    top = float((model.encoder(x) - 100).detach().max())
    assert (
        found.fact == f"none of the 40 inputs of torch.relu is positive; the largest is {top:.3g}"
    )


def test_a_zero_input_is_named_at_the_layer_that_reads_it():
    model = Net()
    found = find_zero_gradient(
        lambda: model(torch.zeros(5, 6)).square().sum(), model, "encoder.weight"
    )
    assert found.kind == "times-zero"
    assert found.module == "encoder"
    assert found.fact == "the other operand of F.linear, float32 [5, 6], is all zeros"


def test_a_bias_before_a_batch_norm_cancels():
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)).double()
    x, y = torch.randn(16, 6, dtype=torch.float64), torch.randint(0, 3, (16,))
    found = find_zero_gradient(lambda: F.cross_entropy(model(x), y), model, "0.bias")
    assert found.kind == "cancels"
    assert found.module == "0"


@pytest.mark.parametrize("name", ["encoder.weight", "encoder.bias", "head.weight", "head.bias"])
def test_a_healthy_model_has_no_zero(name):
    model, x, y = Net(), torch.randn(5, 6), torch.randint(0, 3, (5,))
    assert find_zero_gradient(lambda: F.cross_entropy(model(x), y), model, name) is None


def test_a_mean_over_many_is_not_taken_for_zero():
    model = nn.Sequential(nn.Linear(1, 1), nn.Tanh())
    x = torch.rand(200_000, 1)
    assert find_zero_gradient(lambda: model(x).mean() * 1e-3, model, "0.weight") is None


def test_a_disconnected_parameter_is_none():
    model = Net()
    found = find_zero_gradient(lambda: model.head(torch.ones(2, 8)).sum(), model, "encoder.weight")
    assert found is None


def test_a_dead_branch_beside_a_live_one_is_no_zero():
    class Residual(Net):
        def middle(self, h):
            return h + torch.relu(h - 100)

    model, x, y = Residual(), torch.randn(5, 6), torch.randint(0, 3, (5,))
    assert find_zero_gradient(lambda: F.cross_entropy(model(x), y), model, "encoder.weight") is None


def test_a_gradient_that_is_not_finite_is_no_zero():
    class Root(Net):
        def middle(self, h):
            return (h * 0).sqrt()

    model, x = Root(), torch.randn(5, 6)
    assert find_zero_gradient(lambda: model(x).sum(), model, "encoder.weight") is None


def test_a_frozen_parameter_has_no_gradient_to_lose():
    model, x = DeadRelu(), torch.randn(5, 6, requires_grad=True)
    model.encoder.requires_grad_(False)
    assert find_zero_gradient(lambda: model(x).sum(), model, "encoder.weight") is None


def test_several_parameters_in_one_step():
    model, x, y = DeadRelu(), torch.randn(5, 6), torch.randint(0, 3, (5,))
    runs = []

    def run():
        runs.append(1)
        return F.cross_entropy(model(x), y)

    found = find_zero_gradients(run, model, dict(model.named_parameters()))
    # what the dead rectifier hands on is zero too, so the head's weight has nothing to learn from
    assert set(found) == {"encoder.weight", "encoder.bias", "head.weight"}
    assert found["encoder.bias"].op.name == "torch.relu"
    assert found["head.weight"].op.name == "torch.relu"
    assert "F.linear multiplies by what that gave" in found["head.weight"].fact
    assert len(runs) == 1


class Joined(nn.Module):
    """Text and image attend to each other; the last block drops what the text became."""

    def __init__(self) -> None:
        super().__init__()
        self.text, self.image, self.key = nn.Linear(4, 6), nn.Linear(4, 6), nn.Linear(4, 6)

    def forward(self, image: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        query = torch.cat([self.image(image), self.text(text)], 1)
        key = self.key(torch.cat([image, text], 1))
        return (query @ key.mT).softmax(-1)[:, : image.shape[1]]


def test_a_part_that_is_dropped_after_it_was_joined() -> None:
    torch.manual_seed(0)
    model, image, text = Joined(), torch.randn(2, 3, 4), torch.randn(2, 5, 4)
    found = find_zero_gradient(lambda: model(image, text).square().sum(), model, "text.weight")
    assert found is not None
    assert (found.kind, found.op.name) == ("unread", "torch.cat")
    assert "self.text(text)" in found.location.text


class Kinds(nn.Module):
    """Adds the row of a table that stands for its padding."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(2, 6, padding_idx=0), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kinds = torch.zeros(len(x), dtype=torch.long, device=x.device)
        return self.head(x + self.table(kinds))


def test_a_table_that_is_read_at_its_padding_only() -> None:
    made = Contract(
        model=Kinds,
        batch=((torch.randn(5, 6),), torch.arange(5) % 3),
        loss=nn.functional.cross_entropy,
    )
    (found,) = made.check("gradients-exist").with_status("violated")
    assert "padding_idx" in found.cause
    assert "cancel" not in found.cause


class Outermost(Net):
    """Puts the diagonal on the side that is chosen, of which a rectifier leaves nothing."""

    side = -float("inf")

    def middle(self, h):
        distance = torch.cdist(h, h).masked_fill(torch.eye(len(h)).bool(), self.side)  # ZERO
        return torch.relu(distance.min(1).values[:, None] + h)


class Nearest(Outermost):
    side = float("inf")


def test_the_line_that_makes_what_a_rectifier_cuts_infinite():
    model, x = Outermost(), torch.randn(4, 6)
    found = find_zero_gradient(lambda: model(x).square().sum(), model, "encoder.weight")
    assert found is not None
    assert found.kind == "infinite"
    assert found.location is not None
    assert found.location.text.endswith("# ZERO")
    assert "the infinity comes from Tensor.masked_fill" in found.fact
    assert found.choosing is not None
    assert found.choosing.name == "Tensor.min"


def test_an_infinity_written_in_place_comes_from_where_it_is_written():
    class Farthest(Net):
        def middle(self, h):
            distance = -torch.cdist(h, h)
            distance.diagonal().fill_(float("inf"))  # ZERO
            hardest = distance.amax(1)
            return torch.relu(h.sum(1) - hardest)[:, None] + 0 * h

    model, x = Farthest(), torch.randn(4, 6)
    found = find_zero_gradient(lambda: model(x).square().sum(), model, "encoder.weight")
    assert found is not None
    assert found.kind == "infinite"
    assert found.location is not None
    assert found.location.text.endswith("# ZERO")
    assert found.choosing is not None
    assert found.choosing.location is not None
    assert "amax" in found.choosing.location.text


def test_infinities_that_nothing_chooses():
    model, x = Nearest(), torch.randn(4, 6)
    assert find_zero_gradient(lambda: model(x).square().sum(), model, "encoder.weight") is None
