from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from provoke import each, explain, line
from torch import nn


class LeNet(nn.Module):
    def __init__(self, features=512):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 5)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc = nn.Linear(features, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = x.flatten(1)
        return self.fc(x)


def test_linear_after_flatten_shows_the_product_and_the_deciding_line():
    model, x = LeNet(), torch.randn(4, 3, 32, 32)
    found = explain(lambda: model(x), model=model, batch=((x,), None))
    assert found.code == "matmul-shapes"
    assert found.summary == "Linear fc expects 512 features, got 400 = 16*5*5 from input 3x32x32"
    assert found.location.line == line(LeNet, "features=512")
    assert found.culprits[0].name == "fc"
    assert found.culprits[1].location.line == line(LeNet, "return self.fc(x)")
    assert "400" in found.fix


def test_linear_without_a_replay_still_names_module_and_line():
    model, x = LeNet(), torch.randn(4, 3, 32, 32)
    found = explain(lambda: model(x), model=model, batch=((x,), None), rerun=False)
    assert found.summary == "Linear fc expects 512 features, got 400"
    assert found.culprits[0].name == "fc"


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(8, 16),
            nn.ReLU(),
            nn.Linear(12, 4),
        )

    def forward(self, x):
        return self.encoder(x)


def test_linear_inside_a_sequential_names_its_own_line():
    model = Classifier()
    found = explain(lambda: model(torch.randn(2, 8)), model=model)
    assert found.culprits[0].name == "encoder.2"
    assert found.culprits[0].location.line == line(Classifier, "nn.Linear(12, 4)")
    assert found.location.line == line(Classifier, "nn.Linear(12, 4)")
    assert "in_features=16" in found.fix


def test_missing_flatten():
    model = nn.Sequential(nn.Linear(48, 2))
    found = explain(lambda: model(torch.randn(5, 3, 4, 4)), model=model)
    assert "not flattened" in found.cause
    assert ".flatten(1)" in found.fix


def test_swapped_dimensions_of_a_linear():
    model = nn.Sequential(nn.Linear(7, 2))
    found = explain(lambda: model(torch.randn(5, 7, 3)), model=model)
    assert "swapped" in found.cause
    assert ".transpose(1, -1)" in found.fix


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.key = nn.Parameter(torch.randn(6, 5))

    def forward(self, x):
        return x @ self.key


def test_matrix_product_of_a_parameter_says_which_factor_to_transpose():
    model = Attention()
    found = explain(lambda: model(torch.randn(3, 5)), model=model)
    assert found.code == "matmul-shapes"
    assert "key [6, 5]" in found.summary
    assert "second factor must be transposed" in found.cause
    assert found.location.line == line(Attention, "x @ self.key")
    assert found.culprits[0].name == "Attention"


@pytest.mark.parametrize(
    "product",
    each(
        lambda: torch.bmm(torch.randn(2, 3, 4), torch.randn(2, 5, 6)),
        lambda: torch.bmm(torch.randn(2, 3, 4), torch.randn(3, 4, 6)),
        lambda: torch.randn(3, 4) @ torch.randn(5),
        lambda: torch.randn(3) @ torch.randn(5),
        lambda: torch.randn(2, 3, 4) @ torch.randn(2, 5, 6),
        lambda: torch.randn(()) @ torch.randn(5),
        lambda: torch.bmm(torch.randn(3, 4), torch.randn(3, 4, 6)),
    ),
)
@pytest.mark.parametrize("rerun", [True, False])
def test_products(product, rerun):
    assert explain(product, rerun=rerun).code == "matmul-shapes"


def test_einsum_names_the_letter():
    found = explain(
        lambda: torch.einsum("bij,bjk->bik", torch.randn(2, 3, 4), torch.randn(2, 5, 6))
    )
    assert found.code == "einsum-shapes"
    assert "letter j" in found.cause


class Positions(nn.Module):
    def __init__(self, length):
        super().__init__()
        self.register_buffer("table", torch.zeros(1, length, 8))

    def forward(self, x):
        return x + self.table[:, : x.shape[1]]


class WithPositions(nn.Module):
    def __init__(self):
        super().__init__()
        self.pos = Positions(16)

    def forward(self, x):
        return self.pos(x)


def test_a_slice_of_a_short_table_blames_the_table():
    model, x = WithPositions(), torch.randn(2, 20, 8)
    found = explain(lambda: model(x), model=model, batch=((x,), None))
    assert found.code == "table-too-short"
    assert found.culprits[0].name == "pos.table"
    assert "16 positions" in found.summary
    assert "x has length 20 in dimension 1" in found.because
    assert found.location.line == line(Positions, "register_buffer")


class Weighted(nn.Module):
    def forward(self, x, w):
        return x * w


def test_broadcast_with_a_missing_last_dimension():
    model, x, w = Weighted(), torch.randn(4, 5, 8), torch.rand(4, 5)
    found = explain(lambda: model(x, w), model=model, batch=((x, w), None))
    assert found.code == "broadcast-shapes"
    assert "x [4, 5, 8]" in found.summary
    assert "w [4, 5]" in found.summary
    assert "[:, :, None]" in found.fix


def test_broadcast_of_swapped_dimensions():
    found = explain(lambda: torch.randn(4, 5, 8) + torch.randn(4, 8, 5))
    assert "swapped" in found.cause


def test_broadcast_without_a_replay_sees_a_difference_of_one():
    found = explain(lambda: torch.randn(2, 17, 4) + torch.randn(2, 16, 4), rerun=False)
    assert "one element more" in found.cause


@pytest.mark.parametrize(
    "run",
    each(
        lambda: torch.randn(4).add_(torch.randn(3, 4)),
        lambda: torch.zeros(4, 5).__setitem__(slice(None), torch.randn(4, 6)),
        lambda: torch.randn(3, 4).expand(3, 5),
        lambda: F.mse_loss(torch.randn(4, 3), torch.randn(4, 2)),
    ),
)
@pytest.mark.filterwarnings("ignore:Using a target size")
def test_other_broadcasts(run):
    assert explain(run).code == "broadcast-shapes"


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Conv1d(1, 4, 2, stride=2)
        self.up = nn.ConvTranspose1d(4, 4, 2, stride=2)

    def forward(self, x):
        return torch.cat([x, self.up(self.down(x))], dim=1)


def test_cat_of_an_odd_length():
    model, x = UNet(), torch.randn(2, 1, 15)
    found = explain(lambda: model(x), model=model, batch=((x,), None))
    assert found.code == "cat-sizes"
    assert "odd size" in found.cause
    assert found.location.line == line(UNet, "torch.cat")


def test_cat_of_different_ranks_and_stack():
    assert explain(lambda: torch.cat([torch.randn(2, 3), torch.randn(2, 3, 4)])).code == "cat-sizes"
    found = explain(lambda: torch.stack([torch.randn(2, 3), torch.randn(2, 4)]))
    assert found.code == "stack-sizes"
    assert "entry 1 has shape [2, 4]" in found.cause


class Reshaper(nn.Module):
    def forward(self, x):
        return x.view(32, 12)


class Flattener(nn.Module):
    def forward(self, x):
        return x.view(-1, 400)


class Mixer(nn.Module):
    def forward(self, x):
        h = x.transpose(1, 2)
        return h.view(x.shape[0], -1)


def test_view_with_the_batch_size_written_in():
    model = Reshaper()
    found = explain(lambda: model(torch.randn(4, 3, 4)), model=model)
    assert found.code == "view-size"
    assert "batch size 32 is hard-coded" in found.cause
    assert found.location.line == line(Reshaper, "x.view")


def test_view_with_a_wrong_number_of_features():
    model = Flattener()
    found = explain(lambda: model(torch.randn(3, 16, 6, 6)), model=model)
    assert "576" in found.cause
    assert "576" in found.fix
    assert explain(lambda: torch.randn(2, 3).reshape(4, 2), rerun=False).code == "view-size"


def test_view_of_a_transposed_tensor_names_the_transpose():
    model = Mixer()
    found = explain(lambda: model(torch.randn(2, 3, 4)), model=model)
    assert found.code == "view-not-contiguous"
    assert f"transpose on line {line(Mixer, 'x.transpose')}" in found.cause
    assert ".reshape" in found.fix


@pytest.mark.parametrize(
    "run",
    each(
        lambda: torch.randn(2, 3).transpose(1, 2),
        lambda: torch.randn(2, 3).sum(2),
        lambda: torch.randn(2, 3).permute(0, 2, 1),
        lambda: torch.randn(2, 3, 4).permute(0, 0, 1),
        lambda: torch.randn(3, 4).expand(5),
        lambda: torch.randn(3, 4)[0, 0, 0],
        lambda: torch.randn(2, 3).softmax(2),
    ),
)
@pytest.mark.parametrize("rerun", [True, False])
def test_dimensions_that_do_not_exist(run, rerun):
    assert explain(run, rerun=rerun).code == "dimension-missing"


class Unpacking(nn.Module):
    def forward(self, x):
        b, c, h, w = x.shape
        return x.reshape(b, c * h * w)


def test_unpacking_a_shape():
    model, x = Unpacking(), torch.randn(2, 3, 4)
    found = explain(lambda: model(x), model=model, batch=((x,), None))
    assert found.code == "input-rank"
    assert "x has 3 dimensions [2, 3, 4]" in found.cause
    assert found.location.line == line(Unpacking, "x.shape")


def test_unpacking_a_value_and_splitting():
    def run():
        a, b, c = torch.randn(2, 6).chunk(2, 1)
        return a, b, c

    assert explain(run).code == "unpack-count"
    assert explain(lambda: torch.randn(2, 3).unflatten(1, (2, 2))).code == "split-sizes"
    assert explain(lambda: torch.randn(2, 5).split([2, 2], 1)).code == "split-sizes"
    assert explain(lambda: nn.PixelShuffle(2)(torch.randn(1, 3, 4, 4))).code == "split-sizes"


class Ring(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("kept", torch.zeros(10, 3))

    def forward(self, x):
        for start in (0, 4, 8):
            slots = slice(start, start + len(x))  # HERE
            self.kept[slots] = x
        return x


def test_a_slice_that_reaches_past_the_end():
    model = Ring()
    found = explain(lambda: model(torch.randn(4, 3)), model=model)
    assert found.location.text.endswith("# HERE")
    assert "8:12 of 10 entries, and gets 2" in found.because
