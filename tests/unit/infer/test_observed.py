"""What ``init`` observes: promises along the axis where they hold, and ceilings that a change of one part meets."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pytest_torchcheck import Contract
from pytest_torchcheck.infer import observe
from pytest_torchcheck.promises import Causal


class ChannelsFirst(nn.Module):
    """A convolution along the last axis that pads on the left, or on both sides."""

    def __init__(self, both: bool = False) -> None:
        super().__init__()
        self.conv, self.out = nn.Conv1d(3, 6, 3), nn.Conv1d(6, 2, 1)
        self.pad = (1, 1) if both else (2, 0)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.conv(F.pad(x, self.pad))))


def declared(model: type[nn.Module], **fields: object) -> Contract:
    return Contract(
        model=model,
        inputs="B 3 T",
        sizes={"T": (8, 16)},
        targets="B 2 T",
        loss=F.mse_loss,
        **fields,
    )


def test_a_promise_names_the_axis_of_the_output() -> None:
    found = list(observe.promises(declared(ChannelsFirst), ChannelsFirst(), output="B 2 T", runs=1))
    (causal,) = [one for one in found if isinstance(one.value, Causal)]
    assert causal.code == "Causal(dim=2, output_dim=2)"
    promise = eval(causal.code, {"Causal": Causal})
    assert declared(ChannelsFirst, promises=[promise]).check(["causality"]).ok
    broken = declared(lambda: ChannelsFirst(both=True), promises=[promise])
    assert not broken.check(["causality"]).ok


class Wide(nn.Module):
    """Weights that outweigh its activations, so that the peak is the optimizer's."""

    def __init__(self, times: int = 1) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 64), nn.Linear(64, 2)
        self.times = times

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x).repeat(1, self.times).tanh()
        return self.last(h.view(len(x), self.times, -1).mean(1))


@pytest.mark.parametrize(("times", "holds"), [(1, True), (10, False)])
def test_the_ceiling_for_activations_is_met_where_the_peak_hides_them(
    times: int, holds: bool
) -> None:
    sound = Contract(model=Wide, inputs="B 64", targets="B 2", loss=F.mse_loss)
    (memory,) = [one for one in observe.ceilings(sound, runs=1) if one.field == "memory"]
    assert set(memory.value) == {"total", "activations"}
    grown = observe.again(Contract(model=lambda: Wide(times), inputs="B 64", targets="B 2", loss=F.mse_loss),
                          memory=memory.value)  # fmt: skip
    assert grown.check(["peak-memory"]).ok == holds
    total = observe.again(grown, memory={"total": memory.value["total"]})
    assert total.check(["peak-memory"]).ok  # the peak alone would have told nothing
