"""Released checkpoints load and give what they gave; what does not is found and named."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from pytest_torchcheck import Contract, promises
from pytest_torchcheck.promises.base import PromiseError

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_torchcheck import Finding


class Recurrent(nn.Module):
    def __init__(self, *, reset: bool = False, out: str = "out") -> None:
        super().__init__()
        self.cell = nn.GRU(3, 6, batch_first=True)
        self.norm = nn.BatchNorm1d(6)
        self.add_module(out, nn.Linear(6, 2))
        self.out_name, self.reset = out, reset

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = self.cell(x)[0][:, 0 if self.reset else -1]
        return {"scores": self.get_submodule(self.out_name)(self.norm(hidden))}


@pytest.fixture
def release(tmp_path: Path) -> Path:
    torch.manual_seed(3)
    model = Recurrent()
    model(torch.randn(32, 4, 3))  # statistics of their own
    model.eval()
    given = torch.randn(5, 4, 3)
    torch.save({"step": 7, "model": model.state_dict()}, tmp_path / "old.pt")
    torch.save({"x": given}, tmp_path / "given.pt")
    with torch.no_grad():
        torch.save(model(given), tmp_path / "gave.pt")
    return tmp_path


def held(folder: Path, model: Any = Recurrent, **given: Any) -> Finding:
    fields = {"key": "model", "inputs": folder / "given.pt", "output": folder / "gave.pt", **given}
    file = fields.pop("file", folder / "old.pt")
    contract = Contract(model=model, inputs="B T 3", promises=(promises.Loads(file, **fields),))
    (finding,) = contract.check("old-checkpoints").findings
    return finding


def test_a_checkpoint_that_is_still_good_passes(release: Path) -> None:
    assert held(release).status == "passed"
    state = torch.load(release / "old.pt", weights_only=True)["model"]
    assert held(release, file=lambda: state, key=None).status == "passed"
    assert held(release, inputs=None, output=None).status == "passed"
    double = {name: value.double() for name, value in state.items()}
    assert held(release, file=lambda: double, key=None).status == "passed"


def test_rounding_of_another_machine_passes_and_a_thousandth_does_not(release: Path) -> None:
    gave = torch.load(release / "gave.pt", weights_only=True)
    assert held(release, output={k: v * (1 + 4e-7) for k, v in gave.items()}).status == "passed"
    far = held(release, output={k: v * 1.001 for k, v in gave.items()})
    assert (far.status, far.code) == ("violated", "old-checkpoint-differs")


def test_another_forward_and_another_shape_are_found(release: Path) -> None:
    other = held(release, lambda: Recurrent(reset=True))
    assert (other.status, other.code) == ("violated", "old-checkpoint-differs")
    shape = held(release, output={"scores": torch.zeros(5, 3)})
    assert "[5, 3]" in shape.observed
    path = held(release, output=torch.zeros(5, 2))
    assert path.code == "old-checkpoint-differs"


def test_a_renamed_layer_is_named(release: Path) -> None:
    found = held(release, lambda: Recurrent(out="head"))
    assert (found.status, found.code) == ("violated", "old-checkpoint-not-loaded")
    assert "out.weight is now head.weight" in found.observed
    assert "'out.weight': 'head.weight'" in found.fix


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"key": "weights"}, "has no entry 'weights'; it holds 'step', 'model'"),
        ({"key": None}, "give key='model'"),
        ({"key": "step"}, "holds no state dict but 7"),
        ({"file": "gone.pt"}, "there is no file"),
        ({"file": "broken.pt"}, "cannot be read by torch.load"),
    ],
    ids=["key", "no key", "number", "gone", "broken"],
)
def test_a_file_that_is_no_checkpoint_says_so(release: Path, given: Any, told: str) -> None:
    (release / "broken.pt").write_text("version https://git-lfs.github.com/spec/v1\n")
    if "file" in given:
        given = {**given, "file": release / given["file"]}
    found = held(release, **given)
    assert (found.status, found.code) == ("violated", "old-checkpoint-unreadable")
    assert told in found.summary


def test_a_wrong_declaration_says_what_is_allowed() -> None:
    with pytest.raises(PromiseError, match="path or a function"):
        promises.Loads(7)  # type: ignore[arg-type]
    with pytest.raises(PromiseError, match="give output="):
        promises.Loads("old.pt", inputs=torch.zeros(1))
