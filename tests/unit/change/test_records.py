"""A record beside later versions: refactorings and other machines pass, a change of one layer does not."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
from change_pairs import BLOCK, CHANGED, UNCHANGED, edited
from change_versions import load
from torch import nn
from torch.nn import functional as F

from pytest_torchcheck import Contract, Labels
from pytest_torchcheck.change import little, snapshot
from pytest_torchcheck.change.recorded import against_record
from pytest_torchcheck.subject import Subject

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pytest_torchcheck.findings import Finding


def compare(
    contract: Contract, path: Path, *, writes: bool = False, seed: int = 0
) -> dict[str, Finding]:
    """Return what the comparison of a contract with its record finds, by code."""
    subject = Subject(contract, seed=seed)
    try:
        made = list(against_record(subject, path, "net", writes=writes))
    finally:
        subject.close()
    return {finding.code: finding for finding in made}


@pytest.fixture
def no_growth(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out how costs grow, which test_pairs.py compares for the same texts."""
    monkeypatch.setattr(snapshot, "_growth", lambda _: {})


@pytest.fixture(scope="module")
def block_record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the record of the block as it is before any of the changes."""
    folder = tmp_path_factory.mktemp("record")
    path = folder / "net.json"
    assert list(compare(load(folder, "record_block", BLOCK).net, path)) == ["record-new"]
    return path


def beside(record: Path, folder: Path, now: str) -> dict[str, Finding]:
    """Compare another text of the block with a copy of its record."""
    path = folder / "net.json"
    path.write_bytes(record.read_bytes())
    name = f"record_{abs(hash((str(folder), now)))}"
    return compare(load(folder / "now", name, now).net, path, seed=3)


@pytest.mark.usefixtures("no_growth")
@pytest.mark.parametrize("name", UNCHANGED)
def test_a_refactoring_agrees_with_its_record(
    block_record: Path, tmp_path: Path, name: str
) -> None:
    found = beside(block_record, tmp_path, edited(UNCHANGED[name]))
    assert list(found) == ["held"], "\n".join(map(str, found.values()))


@pytest.mark.usefixtures("no_growth")
@pytest.mark.parametrize("name", CHANGED)
def test_a_silent_change_differs_from_its_record(
    block_record: Path, tmp_path: Path, name: str
) -> None:
    replacements, code, blamed, _ = CHANGED[name]
    found = beside(block_record, tmp_path, edited(replacements))
    assert {c for c, f in found.items() if f.status == "violated"} == {code}
    named = [culprit.name for culprit in found[code].culprits]
    if code != "outputs-changed":
        assert named[0] == blamed
    elif name in ("eps", "gelu approximation"):
        assert named[0].startswith("block")


class Net(nn.Module):
    """Three layers, one of which may be off by a factor."""

    def __init__(self, factor: float = 1.0, *, narrow: bool = False) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 16), nn.Linear(16, 3)
        self.inner = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16))
        self.factor, self.narrow = factor, narrow

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.first(x))
        hidden = self.inner(hidden) * self.factor
        if self.narrow:
            hidden = hidden if hidden.dtype == torch.float64 else hidden.bfloat16().float()
        return self.last(hidden)


def net(**given: Any) -> Contract:
    return Contract(
        model=lambda: Net(**given), inputs="B 6", loss=lambda output: output.square().mean(),
        sizes={"B": 4},
    )  # fmt: skip


def test_a_thousandth_in_one_layer_fails_and_the_module_is_named(tmp_path: Path) -> None:
    path = tmp_path / "net.json"
    compare(net(), path)
    assert list(compare(net(), path)) == ["held"]
    found = compare(net(factor=1.001), path)["outputs-changed"]
    assert found.status == "violated"
    assert found.culprits[0].name == "last"  # the first whose own output differs
    assert "--torchcheck-write-record" in found.fix


def test_a_loss_of_precision_that_float64_hides_is_found(tmp_path: Path) -> None:
    path = tmp_path / "net.json"
    compare(net(), path)
    assert compare(net(narrow=True), path)["outputs-changed"].status == "violated"


class Cast(nn.Module):
    """Computes in bfloat16 whatever it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 16), nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            hidden = self.last(torch.relu(self.first(x)))
        return hidden.float()


def test_a_model_that_rounds_in_float64_too_agrees_with_its_record(tmp_path: Path) -> None:
    path = tmp_path / "net.json"
    contract = Contract(
        model=Cast, inputs="B 6", loss=F.cross_entropy, targets=Labels("B", classes=3)
    )
    compare(contract, path)
    assert list(compare(contract, path)) == ["held"]

    def elsewhere(data: dict[str, Any]) -> None:
        for line in data["evaluation"]["outputs"].values():
            shake(line, 1e-4)  # bfloat16 rounds by 4e-3

    edit(path, elsewhere)
    assert list(compare(contract, path)) == ["held"]


class Noisy(nn.Module):
    """Statistics before dropout, and dropout."""

    def __init__(self, rate: float, momentum: float = 0.1) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(6, momentum=momentum)
        self.drop, self.last = nn.Dropout(rate), nn.Linear(6, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.drop(self.norm(x)))


def noisy(rate: float, momentum: float = 0.1) -> Contract:
    return Contract(model=lambda: Noisy(rate, momentum), inputs="B 6", sizes={"B": 8})


@pytest.mark.parametrize(("was", "now"), [(0.1, 0.3), (0.0, 0.1), (0.1, 0.0)])
def test_another_dropout_rate_is_found_under_any_seed(
    tmp_path: Path, was: float, now: float
) -> None:
    path = tmp_path / "net.json"
    compare(noisy(was), path)
    assert list(compare(noisy(was), path, seed=5)) == ["held"]
    assert (
        "differs from evaluation mode by" in compare(noisy(now), path)["outputs-changed"].observed
    )


def test_statistics_are_compared_though_training_mode_draws(tmp_path: Path) -> None:
    path = tmp_path / "net.json"
    compare(noisy(0.1), path)
    found = compare(noisy(0.1, momentum=0.2), path)["outputs-changed"]
    assert found.summary.startswith("running statistics changed")


def test_costs_that_another_torch_measured_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "net.json"
    compare(net(), path)

    def elsewhere(data: dict[str, Any]) -> None:
        data["made"]["torch"] = "2.0.0"
        data["costs"]["FLOPs"] *= 10
        data["growth"] = {"FLOPs with B": 0.0}

    edit(path, elsewhere)
    found = compare(net(), path)
    assert list(found) == ["held"]
    assert found["held"].evidence["notes"] == ["torch 2.0.0 measured the recorded FLOPs and bytes"]


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    data = json.loads(path.read_text(encoding="utf-8"))
    change(data)
    path.write_text(json.dumps(data), encoding="utf-8")


def shake(line: list[Any], by: float) -> None:
    """Change numbers in their last digits, as another processor does."""
    line[1] = "another processor"
    line[2:] = [value * (1 + by) for value in line[2:]]


def test_rounding_of_another_machine_passes_and_more_does_not(tmp_path: Path) -> None:
    path = tmp_path / "net.json"
    compare(net(), path)

    def elsewhere(data: dict[str, Any]) -> None:
        """Inputs whose last bits differ, and all that follows from them."""
        data["made"]["machine"] = "aarch64"
        for line in data["inputs"].values():
            shake(line, 1e-7)
        for part in ("outputs", "gradients", "updates", "modules"):
            for line in data["evaluation"][part].values():
                shake(line, 3e-7)
        for line in data["training"]["outputs"].values():
            shake(line, 3e-7)
        for drawn in data["drawn"].values():
            for line in (*drawn["inputs"].values(), *drawn["outputs"].values(), drawn["loss"]):
                shake(line, 1e-7)

    edit(path, elsewhere)
    assert list(compare(net(), path)) == ["held"]
    assert compare(net(factor=1.001), path)["outputs-changed"].status == "violated"


def test_sums_in_another_order_pass(tmp_path: Path) -> None:
    class Blocked(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            weight, bias = self.first.weight, self.first.bias
            parts = [x[:, [i]] * weight[:, i] for i in (4, 0, 2, 5, 3, 1)]
            return self.last(self.inner(torch.tanh(bias + sum(parts))))

    path = tmp_path / "net.json"
    compare(net(), path)
    blocked = Contract(
        model=Blocked, inputs="B 6", loss=lambda output: output.square().mean(), sizes={"B": 4}
    )
    found = compare(blocked, path)
    assert list(found) == ["held"], "\n".join(map(str, found.values()))
    assert "within rounding" in found["held"].summary


def test_other_sizes_are_another_batch(tmp_path: Path) -> None:
    path = tmp_path / "net.json"
    compare(net(), path)
    other = Contract(
        model=Net, inputs="B 6", sizes={"B": 5}, loss=lambda output: output.square().mean()
    )
    found = compare(other, path)["record-other-batch"]
    assert found.status == "inconclusive"
    assert list(compare(other, path, writes=True)) == ["held"]
    assert list(compare(other, path)) == ["held"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "is not JSON"),
        ("[1, 2]", "is not a record"),
        ('{"torchcheck record": 99}', "format 99"),
        ('{"torchcheck record": 1, "contract": "net"}', "lacks 'made'"),
        ("<<<<<<< HEAD\n{}\n", "merge conflict"),
    ],
)
def test_a_file_that_is_no_record_says_so(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "net.json"
    path.write_text(text, encoding="utf-8")
    finding = compare(net(), path)["record-unreadable"]
    assert finding.status == "violated"
    assert told in finding.summary
    assert path.read_text(encoding="utf-8") == text


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data["evaluation"]["outputs"].update(output=[1, 2]),
        lambda data: data["evaluation"].pop("loss"),
        lambda data: data["state"].update({"first.weight": "float33 [16, 6]"}),
        lambda data: data["made"].update(seed="nought"),
        lambda data: data["start"].update({"first.weight": 7}),
        lambda data: data.update(inputs=[]),
    ],
    ids=["numbers", "loss", "dtype", "seed", "start", "inputs"],
)
def test_a_damaged_record_says_so(tmp_path: Path, damage: Callable[[Any], object]) -> None:
    path = tmp_path / "net.json"
    compare(net(), path)
    edit(path, damage)
    found = compare(net(), path)
    assert "record-unreadable" in found, "\n".join(map(str, found.values()))


def test_a_record_is_short_and_has_a_line_for_each_tensor(tmp_path: Path) -> None:
    path = tmp_path / "net.json"
    compare(net(), path)
    lines = path.read_text(encoding="utf-8").splitlines()
    assert len(lines) < 110
    assert max(map(len, lines)) < 260
    before = path.read_text(encoding="utf-8")
    compare(net(), path, writes=True, seed=0)
    assert path.read_text(encoding="utf-8") == before


def test_weights_come_from_names_alone() -> None:
    one = little.weight("first.weight", (300, 40), "float32", [0.1, 0.5])
    with torch.random.fork_rng():
        torch.manual_seed(99)
        two = little.weight("first.weight", (300, 40), "float32", [0.1, 0.5])
    assert torch.equal(one, two)
    assert not torch.equal(one, little.weight("last.weight", (300, 40), "float32", [0.1, 0.5]))
    assert float(one.mean()) == pytest.approx(0.1, abs=0.02)
    assert float(one.std()) == pytest.approx(0.5, rel=0.02)
    # the numbers themselves, which must not change with versions or processors
    assert little.weight("w", (3,), "float64", [0.0, 1.0]).tolist() == pytest.approx(
        WEIGHTS, rel=1e-15
    )


WEIGHTS = [-1.598546320342171, -0.17571671848831907, 1.2183697439034833]


def test_tied_weights_and_a_renamed_layer_still_compare(tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.embed = nn.Linear(6, 6, bias=False)
            self.add_module(name, nn.Linear(6, 5))
            self.name = name
            self.out = nn.Linear(6, 6, bias=False)
            self.out.weight = self.embed.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.get_submodule(self.name)(self.out(torch.tanh(self.embed(x))))

    path = tmp_path / "net.json"
    compare(Contract(model=lambda: Tied("head"), inputs="B 6"), path)
    assert "= embed.weight" in path.read_text(encoding="utf-8")
    assert list(compare(Contract(model=lambda: Tied("head"), inputs="B 6"), path)) == ["held"]
    found = compare(Contract(model=lambda: Tied("top"), inputs="B 6"), path)
    assert found["state-changed"].status == "violated"
    assert "head.weight is now top.weight" in found["state-changed"].observed
    assert "outputs, loss and gradients of 4 batches agree" in found["held"].summary
