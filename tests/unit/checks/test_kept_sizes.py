"""What a call keeps may hold for other sizes only: the batch before then decides what the next one gives."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pytest_torchcheck import Contract


class Ramp(nn.Module):
    """Adds weights of positions, which a longer sequence makes anew."""

    def __init__(self, *, relative: bool) -> None:
        super().__init__()
        self.relative = relative
        self.mix = nn.Linear(4, 4)
        self.grow(8)

    def grow(self, length: int) -> None:
        steps = torch.arange(length).float()
        self.weights = (steps / length if self.relative else steps / 8)[:, None]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length = x.shape[1]
        if length > len(self.weights):
            self.grow(length)  # the table
        return self.mix(x) + self.weights[:length].to(x.dtype)


@pytest.mark.parametrize("relative", [False, True])
def test_a_table_that_a_longer_batch_stretches_is_told(relative: bool) -> None:
    report = Contract(
        model=lambda: Ramp(relative=relative), inputs="B T 4", sizes={"B": 3, "T": (6, 24)},
        batch=torch.randn(3, 6, 4, generator=torch.Generator().manual_seed(0)),
    ).check(["batch-sizes", "eval-purity"])  # fmt: skip
    assert report.ok is not relative
    for found in report.failing:
        assert (found.check, found.code) == ("batch-sizes", "eval-remembers")
        assert found.location.text == "self.grow(length)  # the table"
        assert {c.name for c in found.culprits} == {"weights"}
        assert "self.weights[:length]" in found.culprits[-1].location.text
        assert "after another batch of sizes B=3, T=" in found.observed


class Kept(nn.Module):
    """Reads a table that every call may make longer; its first rows, or those nearest to the end."""

    def __init__(self, *, last: bool) -> None:
        super().__init__()
        self.last, self.table = last, None
        self.mix = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length = x.shape[1]
        if self.table is None or len(self.table) < length:
            self.table = torch.linspace(0, length - 1, length)[:, None]
        rows = self.table[-length:] if self.last else self.table[:length]  # reads
        return self.mix(x) + rows.to(x.dtype)


@pytest.mark.parametrize("last", [False, True])
def test_a_table_that_every_call_keeps_is_read_alike_after_longer_batches(last: bool) -> None:
    report = Contract(
        model=lambda: Kept(last=last), inputs="B T 4", sizes={"B": 3, "T": (2, 24)},
    ).check(["batch-sizes", "eval-purity"])  # fmt: skip
    assert report.ok is not last
    for found in report.failing:
        assert (found.check, found.code) == ("batch-sizes", "eval-remembers")
        assert "# reads" in found.culprits[-1].location.text


class Grid(nn.Module):
    """Keeps a table of places for each size that it has seen, by its area or by both sizes."""

    def __init__(self, key):
        super().__init__()
        self.key, self.mix, self.tables = key, nn.Conv2d(2, 3, 1), {}

    def forward(self, x):
        h, w = x.shape[-2:]
        key = self.key(h, w)
        if key not in self.tables:
            self.tables[key] = torch.arange(h)[:, None] + 0.1 * torch.arange(w)
        return (self.mix(x).flatten(2) + self.tables[key].flatten().to(x)).square().mean(2)


@pytest.mark.parametrize(
    ("key", "wrong"), [(lambda h, w: h * w, True), (lambda h, w: (h, w), False)]
)
def test_sizes_that_change_places_have_one_area(key, wrong):
    contract = Contract(
        model=lambda: Grid(key),
        batch=((torch.randn(3, 2, 6, 10),), None),
        inputs="B 2 H W",
        sizes={"B": (1, 4), "H": (4, 12), "W": (4, 12)},
    )
    codes = [f.code for f in contract.check(["batch-sizes"]).findings if f.status == "violated"]
    assert codes == (["eval-remembers"] if wrong else [])


class Spaced(nn.Module):
    """Keeps the places of a downsampled grid by its size, and maybe by the distance of its points too."""

    def __init__(self, *, whole: bool) -> None:
        super().__init__()
        self.whole, self.kept = whole, {}
        self.body = nn.Conv1d(1, 4, 3, stride=4, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = self.body(x)
        step = x.shape[-1] // made.shape[-1]
        key = (made.shape[-1], step if self.whole else 0)  # the key
        if key not in self.kept:
            self.kept[key] = torch.arange(made.shape[-1]) * step
        return made + self.kept[key].to(made.dtype)


@pytest.mark.parametrize("whole", [False, True])
def test_a_key_that_leaves_out_what_the_values_depend_on_is_told_at_its_line(whole: bool) -> None:
    report = Contract(
        model=lambda: Spaced(whole=whole), inputs="B 1 T", sizes={"B": 3, "T": (8, 40)},
        batch=torch.randn(3, 1, 32, generator=torch.Generator().manual_seed(0)),
    ).check(["batch-sizes"])  # fmt: skip
    assert report.ok is whole, str(report)
    for found in report.failing:
        assert found.code == "eval-remembers"
        assert found.location.text.endswith("# the key")


class Continued(nn.Module):
    """Tells how far after a text something stands; places are kept by length, and maybe by where they begin."""

    def __init__(self, *, whole: bool) -> None:
        super().__init__()
        self.whole, self.kept = whole, {}
        self.mix = nn.Linear(4, 4)

    def places(self, length: int, first: int) -> torch.Tensor:
        key = (length, first if self.whole else 0)  # the key
        if key not in self.kept:
            self.kept[key] = torch.arange(first, first + length)[:, None] / 10
        return self.kept[key]

    def forward(self, text: torch.Tensor, rest: torch.Tensor) -> torch.Tensor:
        middle = self.places(text.shape[1], 0).mean()
        after = (self.places(rest.shape[1], text.shape[1]) - middle).to(rest)
        return self.mix(rest + after) + text.mean(1, keepdim=True)


@pytest.mark.parametrize("whole", [False, True])
def test_sizes_that_are_equal_in_the_base_batch_are_exchanged_at_others(whole: bool) -> None:
    report = Contract(
        model=lambda: Continued(whole=whole), inputs=("B P 4", "B R 4"),
        sizes={"B": 3, "P": (1, 9), "R": (1, 9)}, batch=((torch.randn(3, 6, 4), torch.randn(3, 6, 4)), None),
    ).check(["batch-sizes"])  # fmt: skip
    assert report.ok is whole, str(report)
    for found in report.failing:
        assert found.code == "eval-remembers"
        assert found.location.text.endswith("# the key")
