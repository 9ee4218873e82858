"""The line to change, where another one shows what is wrong: hooks, kept state, names, lengths, schedules."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset

from pytest_torchcheck import Contract, Labels, promises


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


class Bank(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 3)
        self.register_buffer("bank", torch.zeros(6, 3))

    def forward(self, x):
        z = self.body(x)
        near = self.bank.detach().mean(0)
        if self.training:
            self.bank = torch.cat([z[:2], self.bank])[:6]
        return z - near


def test_a_buffer_that_keeps_the_graph_of_a_step_is_named():
    (found,) = (
        Contract(model=Bank(), inputs="B 4", sizes={"B": (2, 6)}, targets="B 3", loss=F.mse_loss)
        .check(["step-leak"])
        .causes
    )
    assert found.code == "leak-graph"
    assert "model.bank" in found.summary
    assert "torch.cat" in found.location.text


class Pooled(nn.Module):
    def __init__(self, masked):
        super().__init__()
        self.words, self.masked = nn.Embedding(9, 5, padding_idx=0), masked

    def forward(self, ids):
        mask = (ids != 0).float()
        number = mask.sum(1, keepdim=True).clamp(min=1) if self.masked else ids.shape[1]
        weights = mask / number
        return (self.words(ids) * weights[..., None]).sum(1)


@pytest.mark.parametrize("masked", [True, False])
def test_a_mask_that_is_divided_by_the_padded_length(masked):
    ids = torch.tensor([[3, 4, 1, 2, 0, 0], [5, 1, 2, 0, 0, 0], [7, 8, 1, 2, 3, 4]])
    report = Contract(
        model=Pooled(masked), batch=(ids,), promises=(promises.PaddingInvariant(ids=0, pad=0),)
    ).check(["padding-invariance"])
    if masked:
        assert not report.causes
        return
    (found,) = report.causes
    assert "computes with the length, padding included" in found.cause


def counted_step(model, optimizer, inputs, targets):
    optimizer.turn = getattr(optimizer, "turn", -1) + 1
    for group in optimizer.param_groups:
        group["lr"] = 0.1 / (1 + optimizer.turn)
    optimizer.zero_grad()
    loss = F.mse_loss(model(*inputs), targets)
    loss.backward()
    optimizer.step()
    return loss.detach()


def test_what_a_step_hangs_on_an_optimizer_of_torchs_may_be_saved_beside():
    (found,) = (
        Contract(
            model=nn.Linear(3, 2),
            inputs="B 3",
            targets="B 2",
            train_step=counted_step,
            optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=0.1),
        )
        .check(["resume"])
        .findings
    )
    assert (found.code, found.status) == ("resume-differs", "suspicious")


def overlap(masked):
    def loss(scores, labels):
        known = (labels != 255).flatten(1)
        shares = scores.softmax(1).flatten(2)
        wanted = F.one_hot(labels.flatten(1).clamp(max=2), 3).movedim(-1, 1) * known[:, None]
        kept = shares * known[:, None] if masked else shares
        both = (kept + wanted).sum((0, 2))
        return (1 - 2 * (kept * wanted).sum((0, 2)) / (both + 1)).mean()

    return loss


@pytest.mark.parametrize("masked", [True, False])
def test_positions_that_are_flattened_are_told_where_they_are_merged(masked):
    report = Contract(
        model=nn.Conv2d(2, 3, 1),
        inputs="B 2 4 4",
        targets=Labels("B 4 4", classes=3, ignore_index=255),
        loss=overlap(masked),
    ).check(["ignored-targets"])
    if masked:
        assert not report.causes
        return
    (found,) = report.causes
    assert any("(kept + wanted).sum" in text for text in lines(found))


def flip_all(*arrays):
    if torch.rand(()) < 0.5:
        return [array.flip(-1) for array in arrays]
    return list(arrays)


class Scans(Dataset):
    def __init__(self):
        g = torch.Generator().manual_seed(0)
        self.images = torch.rand(16, 1, 6, 6, generator=g)
        self.masks = torch.randint(0, 3, (16, 6, 6), generator=g)

    def __len__(self):
        return 16

    def __getitem__(self, i):
        (image,) = flip_all(self.images[i])
        (mask,) = flip_all(self.masks[i])
        return image, mask


def test_the_line_that_calls_what_flips_alone():
    made = Contract(dataset=Scans(), loader={"batch_size": 4})
    (found,) = made.check(["dataset-labels"]).causes
    assert found.code == "target-flipped-apart"
    assert any("= flip_all(" in text for text in lines(found))
