"""Targets that equal an input."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pytest_torchcheck import Contract, DeclarationError, Same, Tokens
from pytest_torchcheck.batches import BatchSource
from pytest_torchcheck.specs import SpecError


class Squeeze(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(6, 12), nn.Linear(12, 6)

    def forward(self, signal: Tensor) -> Tensor:
        return self.up(torch.tanh(self.down(signal)))


def test_the_targets_are_the_input_however_the_batch_is_made() -> None:
    source = BatchSource({"x": "B T 6", "m": "B"}, Same("x"), {"T": (1, 4)})
    for batch in (source.base(0), source.draw(3), source.at(1, B=2, T=3)):
        assert batch is not None
        assert torch.equal(batch.kwargs["x"], batch.targets)
        assert batch.targets.data_ptr() != batch.kwargs["x"].data_ptr()
    first = source.at(1, B=4, T=3)
    assert first is not None
    for other in (source.crop(first, {"B": 2}), source.distinct(first, 0)):
        assert other is not None
        assert torch.equal(other.kwargs["x"], other.targets)


@pytest.mark.parametrize("name", ["x", "signal"])
def test_a_sound_autoencoder_passes_and_one_that_is_cut_does_not(name: str) -> None:
    sound = Contract(model=Squeeze, inputs="B 6", targets=Same(name), loss=F.mse_loss)
    report = sound.check()
    assert report.ok, str(report)

    class Cut(Squeeze):
        def forward(self, signal: Tensor) -> Tensor:
            return self.up(torch.tanh(self.down(signal)).detach())

    broken = Contract(model=Cut, inputs="B 6", targets=Same(name), loss=F.mse_loss)
    assert not broken.check(["gradients-exist"]).ok


def test_targets_may_hold_several_inputs() -> None:
    source = BatchSource(("B 3", Tokens("B T", vocab=9)), {"a": Same("x0"), "b": Same("x1")})
    batch = source.base(0)
    assert torch.equal(batch.args[0], batch.targets["a"])
    assert torch.equal(batch.args[1], batch.targets["b"])
    assert batch.targets["b"].dtype == torch.int64


def test_an_input_that_does_not_exist_is_told_with_those_that_do() -> None:
    with pytest.raises(DeclarationError, match=r"no input .* is named 'y'; there are: signal"):
        Contract(model=Squeeze, inputs="B 6", targets=Same("y"), loss=F.mse_loss)
    with pytest.raises(SpecError, match="name the input"):
        Same(3)  # type: ignore[arg-type]
