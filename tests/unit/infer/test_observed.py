"""What ``init`` observes: promises along the axis where they hold, and ceilings that a change of one part meets."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pytest_torchcheck import Contract
from pytest_torchcheck.infer import observe
from pytest_torchcheck.promises import Causal
from pytest_torchcheck.specs import Edges, Mask


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


class Reader(nn.Module):
    """Two outputs, of which the second has a position for each of the input's."""

    def __init__(self, both: bool = False) -> None:
        super().__init__()
        self.rnn = nn.GRU(3, 4, batch_first=True, bidirectional=both)

    def forward(self, x: Tensor, mask: Tensor) -> dict[str, Tensor]:
        values, last = self.rnn(x * mask[..., None])
        return {"last": last[0], "values": values}


@pytest.mark.parametrize("both", [False, True])
def test_a_promise_names_the_output_that_has_the_axis(both: bool) -> None:
    contract = Contract(
        model=lambda: Reader(both),
        inputs={"x": "B T 3", "mask": Mask("B T")},
        sizes={"T": (4, 9)},
    )
    found = list(observe.promises(contract, Reader(both), output=None, runs=1))
    causal = [one.code for one in found if isinstance(one.value, Causal)]
    assert causal == ([] if both else ['Causal(input="x", output="values")'])


class Nodes(nn.Module):
    """A graph layer, which may treat the first node apart."""

    def __init__(self, apart: bool = False) -> None:
        super().__init__()
        self.node, self.apart = nn.Linear(3, 4), apart

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        source, target = edge_index
        h = self.node(x).tanh().index_add(0, target, self.node(x)[source])
        return torch.cat([2 * h[:1], h[1:]]) if self.apart else h


@pytest.mark.parametrize("apart", [False, True])
def test_nodes_may_change_places_with_the_edges_that_name_them(apart: bool) -> None:
    contract = Contract(
        model=lambda: Nodes(apart),
        inputs={"x": "N 3", "edge_index": Edges("2 E", nodes="N")},
        sizes={"N": (4, 9), "E": (6, 12)},
        batch_dim=None,
    )
    found = [one.code for one in observe.promises(contract, Nodes(), output="N 4", runs=1)]
    assert ('PermutationEquivariant(dim=0, input="x")' in found) is not apart


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
