"""What is declared for models that say nothing: each was run at the sizes that are declared."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pytest_torchcheck import DeclarationError, Floats
from pytest_torchcheck.infer.code import code_of
from pytest_torchcheck.infer.inference import Uninferable, infer


class Convolutions(nn.Module):
    """Its linear layer fits one side alone: 20."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(2, 4, 3, stride=2), nn.ReLU(), nn.Flatten())
        self.head = nn.Linear(4 * 31 * 31, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


class Reader(nn.Module):
    def __init__(self, longest: int = 12) -> None:
        super().__init__()
        self.max_len = longest
        self.table = nn.Embedding(23, 8)
        self.places = nn.Parameter(torch.randn(longest, 8))
        self.head = nn.Linear(8, 23)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.table(tokens) + self.places[: tokens.shape[1]])


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(5, 4), nn.Linear(7, 4)

    def forward(self, a: Tensor, b: Tensor) -> dict[str, Tensor]:
        return {"score": (self.left(a) * self.right(b)).sum(-1)}


class TwoTables(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(40, 8), nn.Embedding(50, 8)

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        return (self.users(user) * self.items(item)).sum(-1)


class Attentive(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        h = self.inner(x)
        return self.attention(h, h, h)[0]


class Graph(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(9, 4)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.linear(x)
        return h.index_add(0, edge_index[1], h[edge_index[0]])


class Weights(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 7, 11))

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.einsum("bi,ijk,bk->bj", a, self.weight, b)


class Noised(nn.Module):
    """Takes an image and a step, as denoisers do."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 3, 3, padding=1)
        self.step = nn.Embedding(1000, 3)

    def forward(self, sample: Tensor, t: Tensor) -> Tensor:
        return self.convolution(sample) + self.step(t)[:, :, None, None]


class Own(nn.Module):
    """Returns its own loss."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return (self.linear(x) - x).pow(2).mean()


CASES: list[tuple[Any, str]] = [
    (lambda: nn.Linear(4, 2), 'inputs="B 4", targets=Labels("B", classes=2), loss=F.cross_entropy,'),
    (lambda: nn.Linear(4, 1), 'inputs="B 4", targets="B 1", loss=F.mse_loss,'),
    (Convolutions, 'inputs="B 2 64 64", targets=Labels("B", classes=3), loss=F.cross_entropy,'),
    (TwoInputs, "loss=lambda output, targets: F.mse_loss(output['score'], targets),"),
    (TwoInputs, 'inputs={"a": "B 5", "b": "B 7"}'),
    (TwoTables, 'inputs={"user": Tokens("B T", vocab=40), "item": Tokens("B T", vocab=50)}'),
    (lambda: nn.Linear(4, 4), 'loss=F.mse_loss,'),
    (Attentive, 'inputs="B T 6", sizes={"T": (2, 16)}'),
    (Graph, 'inputs={"x": "N 9", "edge_index": Edges("2 E", nodes="N")}'),
    (Graph, "batch_dim=None,"),
    (Weights, 'inputs={"a": "B 3", "b": "B 11"}'),
    (Noised, 'inputs={"sample": "B 3 64 64", "t": Ints("B", high=1000)}'),
    (Own, 'inputs="B 4", loss="output",'),
    (lambda: nn.LSTM(3, 5), 'inputs="T B 3"'),
    (lambda: nn.LSTM(3, 5), "batch_dim=1,"),
    (lambda: nn.Conv1d(3, 4, 3), 'targets="B 4 T-2"'),
    (lambda: nn.Sequential(nn.Linear(4, 3), nn.LogSoftmax(-1)), "loss=F.nll_loss,"),
    (lambda: nn.Sequential(nn.Linear(4, 3), nn.Softmax(-1)), 'targets=Probabilities("B 3"), loss=F.mse_loss,'),
    (lambda: nn.Sequential(nn.LazyLinear(6), nn.BatchNorm1d(6)), 'sizes={"B": (2, 8)}'),
]  # fmt: skip


@pytest.mark.parametrize(("model", "expected"), CASES)
def test_what_is_declared(model: Any, expected: str) -> None:
    torch.manual_seed(3)
    inferred = infer(model)
    assert expected in " ".join(inferred.lines())
    report = inferred.contract().check(["backward"])
    assert report.ok, str(report)


def started(bias: float, *after: nn.Module) -> nn.Module:
    """Return scores that are all positive, or all zero, at the weights that the model is built with."""
    layer = nn.Linear(4, 3)
    nn.init.constant_(layer.bias, bias)
    nn.init.zeros_(layer.weight)
    return nn.Sequential(layer, *after)


@pytest.mark.parametrize(
    ("bias", "after", "expected"),
    [
        (5.0, (), 'targets=Labels("B", classes=3), loss=F.cross_entropy,'),
        (0.0, (), 'targets=Labels("B", classes=3), loss=F.cross_entropy,'),
        (5.0, (nn.ReLU(),), 'targets=Floats("B 3", low=0.0, high=1.0), loss=F.mse_loss,'),
        (-5.0, (nn.Softplus(),), 'targets=Floats("B 3", low=0.0, high=1.0), loss=F.mse_loss,'),
        (0.0, (nn.Tanh(),), 'targets=Floats("B 3", low=-1.0, high=1.0), loss=F.mse_loss,'),
    ],
)  # fmt: skip
def test_a_range_is_declared_only_where_other_weights_keep_to_it(
    bias: float, after: tuple[nn.Module, ...], expected: str
) -> None:
    assert expected in " ".join(infer(lambda: started(bias, *after)).lines())


def test_a_sequence_is_declared_as_long_as_it_works() -> None:
    inferred = infer(Reader)
    assert inferred.sizes == {"T": (2, 12)}
    assert 'Tokens("B T", vocab=23)' in inferred.lines()[0]


def test_given_inputs_and_loss_are_kept() -> None:
    inferred = infer(Reader, loss="cross_entropy")
    assert inferred.lines()[-2:] == [
        'targets=Labels("B T", classes=23),',
        "loss=lambda output, targets: F.cross_entropy(output.movedim(-1, 1), targets),",
    ]
    assert inferred.contract().check(["backward"]).ok
    given = infer(lambda: nn.Linear(4, 2), inputs=Floats("B T 4"), loss="l1_loss")
    assert given.lines()[0] == 'inputs="B T 4",'
    assert given.loss is not None
    assert given.loss.function is F.l1_loss


class Pooled(nn.Module):
    """Returns two tensors, and each of its layers makes one of them alone."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 3), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"states": self.left(x), "pooled": self.right(x)}


def test_of_several_outputs_none_is_chosen_for_the_loss() -> None:
    inferred = infer(Pooled)
    assert inferred.loss is None
    assert inferred.lines()[-1].startswith("# no loss: the model returns 2 tensors")
    report = inferred.contract().check(["gradients-exist", "weights-update"])
    assert report.ok, str(report)
    named = infer(Pooled, loss="mse_loss")
    assert "F.mse_loss(output['states'], targets)" in named.lines()[-1]


def test_what_the_model_was_built_with_comes_first() -> None:
    patches = nn.Sequential(
        nn.Unflatten(2, (2, 5)), nn.Unflatten(4, (2, 5)), nn.Flatten(), nn.Linear(3 * 100, 2)
    )
    inferred = infer(lambda: patches, arguments={"image_size": 10, "channels": 3})
    assert inferred.lines()[0] == 'inputs="B 3 10 10",'


class Grader(nn.Module):
    """Scores of 3 classes; with some of its initial weights no score is negative."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(5, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.body(x)))


def test_the_loss_does_not_depend_on_the_random_state_of_the_process() -> None:
    codes = set()
    for seed in range(40):
        torch.manual_seed(seed)
        codes.add(infer(Grader).loss.code)
    assert codes == {"F.cross_entropy"}


def test_no_candidate_is_larger_than_a_large_image() -> None:
    wrong = {"image_size": 1_000_000, "channels": 3, "max_len": 10**12, "frames": 10**6}
    inferred = infer(Convolutions, arguments=wrong)
    assert inferred.lines()[0] == 'inputs="B 2 64 64",'


def test_a_model_that_is_built_is_not_run_itself() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    infer(model)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert torch.equal(state, torch.get_rng_state())
    assert model.training


class Guarded(nn.Module):
    """Takes what no layer tells: three more features than any size that it holds."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        if first.shape[-1] != 1013:
            raise ValueError("first needs 1013 features")
        return self.scale * first.sum() * math.prod(second.shape)


def test_what_cannot_be_told_is_asked_for_in_one_line() -> None:
    with pytest.raises(Uninferable) as caught:
        infer(Guarded)
    told = str(caught.value)
    assert "Guarded.forward(first, second)" in told
    assert """--torchcheck-inputs '{"first": "B ...", "second": "B ..."}'""" in told


def test_inputs_that_do_not_run_are_told_with_the_error() -> None:
    with pytest.raises(Uninferable, match='does not run on "B 5"; the first guess raised'):
        infer(lambda: nn.Linear(4, 2), inputs="B 5")
    with pytest.raises(Uninferable, match="loss cross_entropy: no output has a shape"):
        infer(lambda: nn.Linear(4, 1), loss="cross_entropy")


def test_a_factory_that_raises_or_returns_something_else() -> None:
    with pytest.raises(DeclarationError, match="building it failed: ZeroDivisionError"):
        infer(lambda: 1 / 0)  # type: ignore[arg-type, return-value]
    with pytest.raises(DeclarationError, match="it returned int"):
        infer(lambda: 3)  # type: ignore[arg-type, return-value]


class Columns(nn.Module):
    """A table of categories and numbers."""

    def __init__(self, categories=(4, 6), num_continuous=3):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(count, 8) for count in categories)
        self.numbers = nn.Linear(num_continuous, 8)
        self.head = nn.Linear(8, 2)

    def forward(self, x_categ, x_cont):
        columns = [table(x_categ[:, i]) for i, table in enumerate(self.tables)]
        return self.head(torch.tanh(sum(columns) + self.numbers(x_cont)))


class ChannelsLast(nn.Module):
    """Reads [B, H, W, C] and mixes it with coordinates before its first layer."""

    def __init__(self, input_channels=3):
        super().__init__()
        self.read = nn.Linear(input_channels + 2, 8)
        self.head = nn.Linear(8, 5)

    def forward(self, data):
        batch, height, width, channels = data.shape
        assert channels == self.read.in_features - 2
        places = data.new_zeros(batch, height, width, 2)
        return self.head(torch.relu(self.read(torch.cat([data, places], -1))).mean((1, 2)))


@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        (Columns, '{"x_categ": Ints("B 2", high=4), "x_cont": "B 3"}'),
        (ChannelsLast, '"B 32 32 3"'),
    ],
)
def test_tables_and_images_with_channels_last(model, inputs):
    arguments = (
        {"categories": (4, 6), "num_continuous": 3} if model is Columns else {"input_channels": 3}
    )
    found = infer(model, arguments=arguments)
    assert code_of(found.inputs) == inputs
    assert found.contract(name="it").check(["backward"]).ok


def test_the_keys_that_a_forward_reads_are_part_of_the_line() -> None:
    class Keyed(nn.Module):
        def forward(self, batch, scale):  # type: ignore[no-untyped-def]
            return batch["first"].matmul(batch["second"]) * scale["third"]

    with pytest.raises(Uninferable) as caught:
        infer(Keyed)
    line = '{"batch": {"first": "B ...", "second": "B ..."}, "scale": {"third": "B ..."}}'
    assert f"--torchcheck-inputs '{line}'" in str(caught.value)
