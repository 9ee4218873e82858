from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from pytest_torchcheck.probes.gradient.provenance import GraphCut, find_cut, find_stops


class Net(nn.Module):
    """Two encoders and a head: one path of each subclass is cut in ``middle``."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder = nn.Sequential(nn.Linear(6, 8), nn.Tanh())
        self.side = nn.Linear(6, 8)
        self.head = nn.Linear(8, 3)

    def middle(self, h: torch.Tensor) -> torch.Tensor:
        return h

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.middle(self.encoder(x)) + self.side(x))


class Detached(Net):
    def middle(self, h):
        g = h * 2
        return g.detach()  # CUT


class DataTaken(Net):
    def middle(self, h):
        return torch.relu(h.data)  # CUT


class Numpy(Net):
    def middle(self, h):
        values = h.detach().numpy()  # CUT
        return torch.from_numpy(np.sqrt(values**2 + 1))


class NumpyShared(Net):
    def middle(self, h):
        return torch.from_numpy(h.detach().cpu().numpy())  # CUT


class Item(Net):
    def middle(self, h):
        return torch.full((1, 8), h.mean().item())  # CUT


class ToList(Net):
    def middle(self, h):
        rows = h.tolist()  # CUT
        return torch.tensor([[v + 1.0 for v in row] for row in rows])


class NoGradBlock(Net):
    def middle(self, h):
        h = h + 1
        with torch.no_grad():  # REGION
            h = torch.sigmoid(h)  # CUT
        return h.relu()


class NoGradDecorator(Net):
    @torch.no_grad()  # REGION
    def middle(self, h):
        return torch.sigmoid(h)  # CUT


class Inference(Net):
    def middle(self, h):
        with torch.inference_mode():  # REGION
            h = torch.sigmoid(h)  # CUT
        return h.clone()


class NoGradModule(Net):
    def forward(self, x):
        with torch.no_grad():  # REGION
            h = self.encoder(x)  # CUT
        return self.head(h + self.side(x))


class Disabled(Net):
    def middle(self, h):
        torch.set_grad_enabled(False)  # REGION
        h = h.exp()  # CUT
        torch.set_grad_enabled(True)
        return h


class Cast(Net):
    def middle(self, h):
        return (h * 10).long().float()  # CUT


class Argmax(Net):
    def middle(self, h):
        index = h.argmax(-1)  # CUT
        return F.one_hot(index, 8).float()


class Compared(Net):
    def middle(self, h):
        return (h > 0).float()  # CUT


class TensorOfTensor(Net):
    def middle(self, h):
        return torch.tensor(h)  # CUT


class TensorOfList(Net):
    def middle(self, h):
        return torch.tensor([[row.sum()] for row in h])  # CUT


class ParameterAgain(Net):
    def middle(self, h):
        w = nn.Parameter(h * 3)
        return w + 1  # CUT


class ParameterData(Net):
    def forward(self, x):
        weight = nn.Parameter(self.encoder[0].weight.data)  # CUT
        return self.head(F.linear(x, weight) + self.side(x))


class Sampled(Net):
    def middle(self, h):
        return torch.distributions.Normal(h, 1.0).sample()  # CUT


class Categorical(Net):
    def middle(self, h):
        choice = torch.distributions.Categorical(logits=h).sample()  # CUT
        return F.one_hot(choice, 8).float()


class Multinomial(Net):
    def middle(self, h):
        choice = torch.multinomial(h.softmax(-1), 1)  # CUT
        return choice.float()


class Checkpointed(Net):
    def forward(self, x):
        h = checkpoint(self.encoder, x, use_reentrant=True)  # CUT
        return self.head(h + self.side(x))


class Hard(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = (x > 0).float()
        ctx.mark_non_differentiable(y)
        return y

    @staticmethod
    def backward(ctx, g):
        return g


class HardFunction(Net):
    def middle(self, h):
        return Hard.apply(h)  # CUT


class Forgetful(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return None


class BackwardNone(Net):
    def middle(self, h):
        g = h + 1
        return Forgetful.apply(g)  # CUT


class Unused(Net):
    def middle(self, h):
        self.aux = torch.relu(h)  # CUT
        return torch.ones(8)


class Zeroed(Net):
    def middle(self, h):
        return torch.zeros_like(h)  # CUT


KINDS = {
    Detached: "detach",
    DataTaken: "data",
    Numpy: "numpy",
    NumpyShared: "numpy",
    Item: "item",
    ToList: "item",
    NoGradBlock: "no-grad",
    NoGradDecorator: "no-grad",
    NoGradModule: "no-grad",
    Inference: "no-grad",
    Disabled: "no-grad",
    Cast: "integer-cast",
    Argmax: "integer-cast",
    Compared: "integer-cast",
    TensorOfTensor: "recreated",
    TensorOfList: "recreated",
    ParameterAgain: "recreated",
    ParameterData: "data",
    Sampled: "sampling",
    Categorical: "sampling",
    Multinomial: "sampling",
    Checkpointed: "checkpoint",
    HardFunction: "function",
    BackwardNone: "backward-none",
    Unused: "not-reaching-loss",
    Zeroed: "zeroed",
}


def cuts_of(model: nn.Module, *, backward: bool = False) -> dict[str, GraphCut]:
    x, y = torch.randn(4, 6), torch.randint(0, 3, (4,))

    def run():
        loss = F.cross_entropy(model(x), y)
        if backward:
            loss.backward()
        return loss

    return find_cut(run, model, dict(model.named_parameters()))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize(("cls", "kind"), KINDS.items(), ids=lambda v: getattr(v, "__name__", v))
def test_the_kind_and_the_line_of_each_cut(cls, kind, backward):
    torch.manual_seed(0)
    cuts = cuts_of(cls(), backward=backward)
    assert set(cuts) == {"encoder.0.weight", "encoder.0.bias"}
    cut = cuts["encoder.0.weight"]
    assert (cut.kind, cut.location.text.endswith("# CUT")) == (kind, True), cut
    if kind == "no-grad":
        assert cut.region.text.endswith("# REGION"), cut
    else:
        assert cut.region is None
    assert cut.fact
    if cls is not ParameterData:
        assert cut is cuts["encoder.0.bias"]
        assert cut.parameters == ("encoder.0.weight", "encoder.0.bias")
    else:
        assert cuts["encoder.0.bias"].kind == "never-used"


def test_the_fact_is_what_was_measured():
    cut = cuts_of(Detached())["encoder.0.weight"]
    assert cut.fact == (
        "Tensor.detach took float32 [4, 8] with grad_fn=MulBackward0 and gave float32 [4, 8] with grad_fn=None"
    )
    assert cut.op.name == "Tensor.detach"
    assert cut.module == ""
    assert cut.location.function == "Detached.middle"


def test_the_fact_names_a_parameter_that_is_read():
    cut = cuts_of(NoGradModule())["encoder.0.weight"]
    assert cut.fact == (
        "F.linear took encoder.0.weight, float32 [8, 6] with requires_grad=True and gave float32 [4, 8] "
        "with grad_fn=None; gradients were off"
    )


def test_never_used_names_the_line_that_builds_it():
    class Spare(Net):
        def __init__(self):
            super().__init__()
            self.spare = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2))

    cuts = cuts_of(Spare())
    assert set(cuts) == {f"spare.{i}.{n}" for i in (0, 1) for n in ("weight", "bias")}
    cut = cuts["spare.1.bias"]
    assert cut.kind == "never-used"
    assert cut.location.text == "self.spare = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2))"
    assert len(cut.parameters) == 4


def test_a_head_the_loss_does_not_use():
    class TwoHeads(Net):
        def __init__(self):
            super().__init__()
            self.aux = nn.Linear(8, 2)

        def forward(self, x):
            h = self.encoder(x) + self.side(x)
            aux = torch.sigmoid(self.aux(h))
            self.monitored = aux.mean().item()
            return self.head(h), aux

    model = TwoHeads()
    x, y = torch.randn(4, 6), torch.randint(0, 3, (4,))
    cuts = find_cut(lambda: F.cross_entropy(model(x)[0], y), model, dict(model.named_parameters()))
    assert set(cuts) == {"aux.weight", "aux.bias"}
    assert cuts["aux.weight"].kind == "not-reaching-loss"
    assert cuts["aux.weight"].location.text in (
        "aux = torch.sigmoid(self.aux(h))",
        "self.monitored = aux.mean().item()",
    )


def test_frozen_during_the_forward():
    class Freezes(Net):
        def forward(self, x):
            self.encoder.requires_grad_(False)
            return super().forward(x)

    cuts = cuts_of(Freezes())
    assert cuts["encoder.0.weight"].kind == "frozen"
    assert cuts["encoder.0.weight"].location.text == "self.encoder.requires_grad_(False)"


def test_the_loss_itself_is_cut_and_backward_raises():
    model = Net()

    def run():
        loss = model(torch.randn(4, 6)).square().mean().detach()
        loss.backward()

    cuts = find_cut(run, model, dict(model.named_parameters()))
    assert {cut.kind for cut in cuts.values()} == {"detach"}
    assert (
        cuts["head.weight"].location.text
        == "loss = model(torch.randn(4, 6)).square().mean().detach()"
    )


def test_a_loss_made_again_from_its_number():
    model = Net()

    def run():
        loss = model(torch.randn(4, 6)).square().mean()
        return torch.tensor(loss.item(), requires_grad=True)

    cuts = find_cut(run, model, dict(model.named_parameters()))
    assert {cut.kind for cut in cuts.values()} == {"item"}
    assert len({id(cut) for cut in cuts.values()}) == 1


def test_errors_of_the_run_pass_through():
    model = Net()
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        find_cut(lambda: model(torch.randn(4, 5)).sum(), model, dict(model.named_parameters()))


class StraightThrough(Net):
    def middle(self, h):
        return h + (h.round() - h).detach()


class Stabilised(Net):
    def middle(self, h):
        return torch.exp(h - h.detach().max())


class Pooled(Net):
    def middle(self, h):
        order = h.argsort(-1)
        return h.gather(-1, order) + torch.zeros_like(h)


class CheckpointedWell(Net):
    def forward(self, x):
        h = checkpoint(self.encoder, x, use_reentrant=False)
        return self.head(h + self.side(x))


@pytest.mark.parametrize("cls", [Net, StraightThrough, Stabilised, Pooled, CheckpointedWell])
@pytest.mark.parametrize("backward", [False, True])
def test_no_cut_where_a_live_path_exists(cls, backward):
    assert cuts_of(cls(), backward=backward) == {}


def test_the_cut_beyond_a_harmless_detach_is_named():
    class Both(Net):
        def middle(self, h):
            h = torch.exp(h - h.detach().max())
            return h.sqrt().data  # CUT

    cut = cuts_of(Both())["encoder.0.weight"]
    assert cut.kind == "data"
    assert cut.location.text.endswith("# CUT")
    assert [op.name for op in cut.rivals] == ["Tensor.detach"]


def test_no_straight_through_in_a_quantiser_names_both_ends():
    class Quantiser(nn.Module):
        def __init__(self):
            super().__init__()
            self.encode = nn.Linear(6, 4)
            self.codes = nn.Embedding(5, 4)
            self.decode = nn.Linear(4, 6)

        def forward(self, x):
            z = self.encode(x)
            index = torch.cdist(z, self.codes.weight).argmin(1)
            q = self.codes(index)
            self.commit = F.mse_loss(q, z.detach())
            return self.decode(q)

    model, x = Quantiser(), torch.randn(4, 6)
    cuts = find_cut(
        lambda: F.mse_loss(model(x), x) + model.commit, model, dict(model.named_parameters())
    )
    assert set(cuts) == {"encode.weight", "encode.bias"}
    cut = cuts["encode.weight"]
    assert {cut.op.name, *(op.name for op in cut.rivals)} == {"Tensor.detach", "Tensor.argmin"}


def test_gradients_and_leaves_are_put_back():
    model = Net()
    x = torch.randn(4, 6, requires_grad=True)
    x.grad = torch.ones_like(x)
    model(x).sum().backward()
    kept = {name: p.grad.clone() for name, p in model.named_parameters()}
    before = x.grad.clone()
    find_cut(lambda: model(x).sum(), model, dict(model.named_parameters()))
    assert all(torch.equal(p.grad, kept[name]) for name, p in model.named_parameters())
    assert torch.equal(x.grad, before)


def test_stops_are_listed_even_where_another_path_lives():
    class Vae(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.Linear(6, 8)
            self.decoder = nn.Linear(4, 6)

        def forward(self, x):
            mu, logvar = self.encoder(x).chunk(2, -1)
            std = torch.exp(0.5 * logvar)
            z = torch.normal(mu, std)
            kl = 0.5 * (std.square() + mu.square() - 1 - logvar).sum(-1)
            return self.decoder(z), kl

    model, x = Vae(), torch.randn(4, 6)

    def run():
        recon, kl = model(x)
        return F.mse_loss(recon, x) + 1e-4 * kl.mean()

    assert find_cut(run, model, dict(model.named_parameters())) == {}
    stops = find_stops(run, model)
    assert [(s.kind, s.location.text) for s in stops] == [("sampling", "z = torch.normal(mu, std)")]
    assert stops[0].parameters == ("encoder.weight", "encoder.bias")
    assert "zero by definition" in stops[0].fact


def test_a_regulariser_scaled_in_python():
    class Regularised(Net):
        def forward(self, x):
            self.penalty = 0.1 * self.encoder(x).square().mean().item()  # CUT
            return self.head(self.side(x))

    model = Regularised()

    def run():
        loss = model(torch.randn(4, 6)).square().mean()
        return loss + model.penalty

    cut = find_cut(run, model, dict(model.named_parameters()))["encoder.0.weight"]
    assert cut.kind == "item"
    assert cut.location.text.endswith("# CUT")


def test_operands_of_which_only_the_shape_is_read_lose_nothing():
    class Shaped(Net):
        def middle(self, h):
            base = torch.zeros_like(h).index_add(0, torch.arange(len(h)), h)
            return self.side(torch.ones(4, 6)).reshape(-1).view_as(base) + base

    model, x, y = Shaped(), torch.randn(4, 6), torch.randint(0, 3, (4,))
    run = lambda: F.cross_entropy(model(x), y)  # noqa: E731
    assert find_stops(run, model) == ()
    assert find_cut(run, model, dict(model.named_parameters())) == {}


def test_a_step_that_clears_its_gradients_lost_none():
    model, x = Net(), torch.randn(4, 6)

    def run():
        model(x).sum().backward()
        model.zero_grad()

    assert find_cut(run, model, dict(model.named_parameters())) == {}


class Forces(nn.Module):
    def __init__(self, *, create_graph):
        super().__init__()
        self.energy, self.aside = (
            nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)),
            nn.Linear(3, 3),
        )
        self.create_graph = create_graph

    def forward(self, x):
        x = x.detach().requires_grad_()
        (slope,) = torch.autograd.grad(self.energy(x).sum(), x, create_graph=self.create_graph)
        return self.aside(x) - slope


def test_a_derivative_without_a_graph_of_its_own_cuts():
    x = torch.randn(5, 3)
    for create_graph in (True, False):
        model = Forces(create_graph=create_graph)
        parameters = {n: p for n, p in model.named_parameters() if n != "energy.2.bias"}
        cuts = find_cut(lambda model=model: model(x).square().mean(), model, parameters)
        if create_graph:
            assert cuts == {}
        else:
            assert set(cuts) == {"energy.0.weight", "energy.0.bias", "energy.2.weight"}
            assert {cut.kind for cut in cuts.values()} == {"derivative"}
            assert "autograd.grad" in cuts["energy.0.weight"].location.text


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x):
        h = self.linear(x)
        return x + torch.tanh(h)  # MADE


class Dropping(nn.Module):
    """Two layers, of which the result of the first one is dropped where a helper, or a container, gave it back."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.layers, self.head = how, nn.Sequential(Layer(), nn.Identity()), Layer()

    def helper(self, x):
        return [self.layers(x), x.shape]

    def forward(self, x):
        if self.how == "helper":
            _ = self.helper(x)  # helper LOST
        elif self.how == "container":
            self.layers(x)  # container LOST
        elif self.how == "onwards":
            h = self.helper(x)[0]
            h.add_(1.0)  # onwards LOST
        return self.head(x)


@pytest.mark.parametrize("how", ["helper", "container", "onwards"])
def test_a_result_that_was_given_back_is_lost_by_the_caller(how):
    model, x = Dropping(how), torch.randn(4, 6)
    before = sys.gettrace()
    cuts = find_cut(lambda: model(x).sum(), model, dict(model.named_parameters()))
    assert sys.gettrace() is before
    cut = cuts["layers.0.linear.weight"]
    assert cut.kind == "not-reaching-loss"
    assert cut.location.text.endswith(f"# {how} LOST")
    assert ("gets it back" in cut.fact) == (how != "onwards")
    assert cut.op.location.text.endswith("LOST" if how == "onwards" else "MADE")
