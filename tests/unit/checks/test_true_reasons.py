"""What a check says where it does not decide is true too."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import IterableDataset, TensorDataset

from pytest_torchcheck import Contract, Labels
from pytest_torchcheck.objects import trees


def only(contract, name):
    found, *_ = contract.check([name]).findings
    return found


class Stream(IterableDataset):
    def __iter__(self):
        yield from ((torch.tensor([float(i)]), i % 2) for i in range(40))


def test_two_datasets_of_which_one_is_a_stream_are_two():
    held_out = TensorDataset(torch.randn(12, 1), torch.arange(12) % 2)
    found = only(Contract(dataset={"train": Stream(), "eval": held_out}), "split-hygiene")
    assert found.status == "not-applicable"
    assert found.summary == "samples cannot be compared by their index: train is a stream"
    alone = only(Contract(dataset=held_out), "split-hygiene")
    assert alone.summary.startswith("the contract declares one dataset")


class PerToken(nn.Module):
    """Looks at each sequence alone: its layers give as many rows as it has words."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(6))
        self.head = nn.Linear(6, 2)

    def forward(self, x):
        rows = []
        for row in x.unbind():
            for layer in self.layers:
                row = torch.tanh(layer(row))
            rows.append(row.mean(0))
        return self.head(torch.stack(rows))


def test_layers_that_cannot_be_split_into_samples_are_not_called_zero():
    contract = Contract(
        model=PerToken, inputs="B T 6", targets=Labels("B", classes=2), loss=F.cross_entropy
    )
    found = only(contract, "signal-propagation")
    assert "zero" not in found.summary
    assert found.status in ("passed", "inconclusive")


class Graph(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, nodes):
        return self.layer(nodes - nodes.mean(0))


class OwnLoss(Graph):
    def forward(self, nodes):
        return super().forward(nodes).pow(2).mean()


def test_pairs_are_not_looked_for_and_why():
    nodes, labels = torch.randn(12, 4), torch.arange(12) % 3
    graph = Contract(model=Graph, batch=((nodes,), labels), loss=F.cross_entropy, batch_dim=None)
    assert "no axis of samples" in only(graph, "in-batch-pairs").summary
    own = Contract(model=OwnLoss, inputs="B 4", loss="output")
    assert only(own, "in-batch-pairs").summary == "the model computes its own loss"
    few = Contract(model=Graph, inputs="B 4", sizes={"B": 3}, loss=lambda o: o.pow(2).mean())
    assert "the batch has 3 samples" in only(few, "in-batch-pairs").summary


@dataclass(frozen=True, slots=True)
class Detections:
    boxes: torch.Tensor
    scores: dict[str, list[torch.Tensor]]
    name: str = "detections"
    missing: torch.Tensor = field(init=False, repr=False)


def test_a_dataclass_is_rebuilt_with_other_tensors():
    boxes, score = torch.ones(2), torch.zeros(3)
    output = Detections(boxes, {"a": [score]})
    other = torch.full((3,), 7.0)
    made = trees.substitute(output, {id(score): other})
    assert made.scores["a"][0] is other
    assert made.boxes is boxes
    assert made.name == "detections"
    assert output.scores["a"][0] is score


class Detector(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.boxes, self.scores = nn.Linear(5, 4), nn.Linear(5, 3)

    def forward(self, x):
        return Detections(self.boxes(x), {"a": [self.scores(x)]})


def test_the_loss_of_a_dataclass_is_looked_at():
    declared = {"kind": Labels("B", classes=3), "box": "B 4"}

    def loss(output, y):
        kinds = F.cross_entropy(output.scores["a"][0], y["kind"])
        return kinds + F.mse_loss(output.boxes, y["box"])

    def of_a_part(output, y):
        kinds = F.cross_entropy(output.scores["a"][0][1:], y["kind"][1:])
        return kinds + F.mse_loss(output.boxes[1:], y["box"][1:])

    right, wrong = (
        Contract(model=Detector, inputs="B 5", targets=declared, loss=one)
        for one in (loss, of_a_part)
    )
    assert only(right, "target-ownership").status == "passed"
    assert only(wrong, "target-ownership").code == "target-unread"


class Attended(nn.Module):
    """Weights that a first call works out for its own data are kept and used again by mistake."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head, self.kept = nn.Linear(6, 6), nn.Linear(6, 2), {}

    def forward(self, x):
        if x.shape not in self.kept:
            self.kept[x.shape] = torch.sigmoid(x.detach().roll(1, 1))
        return self.head((self.kept[x.shape] * self.layer(x)).mean(1))


def test_what_a_call_keeps_is_not_told_as_an_order_of_samples():
    contract = Contract(model=Attended, inputs="B T 6", targets=Labels("B", classes=2),
                        loss=F.cross_entropy)  # fmt: skip
    report = contract.check(["batch-independence", "eval-purity"])
    told = {f.check: f.code for f in report.findings if f.status == "violated"}
    assert told == {"eval-purity": "eval-remembers"}


def test_a_batch_that_holds_nothing_is_the_only_finding():
    empty = ((torch.zeros(0, 4),), torch.zeros(0, dtype=torch.long))
    declared = {"inputs": "B T 4", "targets": Labels("B", classes=3), "sizes": {"T": 0}}
    for given in ({"batch": empty}, declared):
        report = Contract(model=Graph, loss=F.cross_entropy, **given).check()
        assert not report.ok
        wrong = [f for f in report.findings if f.status in ("violated", "error")]
        assert [f.check for f in wrong] == ["backward"], str(report)
        assert "the batch holds nothing" in wrong[0].summary
