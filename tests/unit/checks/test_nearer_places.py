"""The line to change, where another one shows what is wrong: hooks, kept state, names, lengths, schedules."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset

from pytest_torchcheck import Contract, promises


def lines(finding):
    return [c.location.text for c in finding.culprits if c.location is not None]


class Tapped(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 2)
        self.seen = []

    def note(self, module, args, output):
        self.seen = [output.detach()]

    def forward(self, x):
        return self.head(self.body(x).relu())


def test_the_call_that_adds_a_hook_in_each_step():
    def step(model, optimizer, inputs, targets):
        optimizer.zero_grad()
        model.body.register_forward_hook(model.note)
        loss = F.mse_loss(model(*inputs), targets)
        loss.backward()
        optimizer.step()
        return loss.detach()

    (found,) = (
        Contract(
            model=Tapped(),
            inputs="B 4",
            targets="B 2",
            train_step=step,
            optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=0.01),
        )
        .check(["step-leak"])
        .causes
    )
    assert found.code == "leak-hooks"
    assert "register_forward_hook" in found.location.text


class Carrying(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.kept = nn.GRUCell(4, 5), None

    def forward(self, x):
        known = self.kept is not None and len(self.kept) == len(x)
        self.kept = self.cell(x, self.kept if known else None).detach()
        return self.cell(x, self.kept)


def test_the_line_that_decides_whether_kept_state_is_read():
    (found,) = Contract(model=Carrying(), inputs="B 4").check(["eval-purity"]).causes
    assert found.code == "eval-not-repeatable"
    assert any(text.startswith("known = ") for text in lines(found))


class Windows(Dataset):
    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        room = 3
        return len(self.rows) - room + 1

    def __getitem__(self, i):
        return self.rows[i : i + 3], self.rows[i + 3 : i + 5]


def test_what_a_length_is_computed_from():
    made = Contract(dataset=Windows(torch.randn(20, 2)), loader={"batch_size": 4})
    (found,) = made.check(["samples-valid"]).causes
    assert "room = 3" in lines(found)


def test_the_function_that_a_schedule_is_given_under_another_name():
    def whole(step):
        return 0.01 * 0.9**step

    def optimizer(model):
        made = torch.optim.SGD(model.parameters(), lr=0.01)
        factor = whole
        made.plan = torch.optim.lr_scheduler.LambdaLR(made, factor)
        return made, made.plan

    (found,) = (
        Contract(
            model=nn.Linear(3, 2),
            inputs="B 3",
            targets="B 2",
            loss=F.mse_loss,
            optimizer=optimizer,
            promises=(promises.Schedule(lambda step: 0.01 * 0.9**step),),
        )
        .check(["schedule"])
        .causes
    )
    assert found.code == "schedule-differs"
    assert "factor = whole" in lines(found)


class InPlace(Dataset):
    """Scales arrays that lie in the memory of tensors, whose flags NumPy does not set."""

    def __init__(self, copied):
        self.boxes, self.copied = [torch.rand(3, 4).numpy() for _ in range(8)], copied

    def __len__(self):
        return len(self.boxes)

    def __getitem__(self, i):
        boxes = self.boxes[i].copy() if self.copied else self.boxes[i]
        boxes *= 0.5
        return torch.from_numpy(boxes)


@pytest.mark.parametrize("copied", [True, False])
def test_an_array_in_a_tensors_memory_is_put_back(copied):
    data = InPlace(copied)
    before = data.boxes[0].copy()
    report = Contract(dataset=data, loader={"batch_size": 4}).check(["samples-unchanged"])
    assert [f.code for f in report.causes] == ([] if copied else ["dataset-mutated"])
    assert (data.boxes[0] == before).all()
