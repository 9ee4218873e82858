"""What was frozen by mistake: which line did it, through which name, and that it is told once."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, Tokens, promises


class Pair(nn.Module):
    def __init__(self, copied):
        super().__init__()
        self.student = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        if copied:
            self.teacher = copy.deepcopy(self.student)
        else:
            self.teacher = self.student
        for parameter in self.teacher.parameters():
            parameter.requires_grad = False
        self.head = nn.Linear(3, 3)

    def forward(self, x):
        with torch.no_grad():
            goal = self.teacher(x)
        return self.head(self.student(x)) - goal


def told(contract, *checks):
    return [
        f
        for f in contract.check(checks=checks).findings
        if f.status in ("violated", "suspicious") and f.root is None
    ]


def pair(copied, *, built=False):
    return Contract(
        model=Pair(copied) if built else lambda: Pair(copied),
        inputs="B 4",
        targets="B 3",
        loss=F.mse_loss,
        promises=(promises.Trainable("student.*"),),
    )


def test_a_module_of_two_names_is_one_finding_at_the_line_that_makes_the_second():
    for built in (True, False):
        (found,) = told(pair(False, built=built), "gradients-exist")
        assert found.code == "grad-off"
        assert "self.teacher = self.student" in found.location.text
        assert "student and teacher are the same module" in found.cause
        assert "copy.deepcopy" in found.fix
        assert found.evidence["parameters"] == [
            "student.0.weight", "student.0.bias", "student.2.weight", "student.2.bias",
        ]  # fmt: skip


def test_a_copy_of_its_own_may_be_frozen():
    assert told(pair(True), "gradients-exist") == []


class Halves(nn.Module):
    """Two encoders and a head; ``second`` makes the one that is frozen from the other."""

    def __init__(self, second, frozen="image"):
        super().__init__()
        self.text = nn.Sequential(nn.Linear(4, 8), nn.Sequential(nn.ReLU(), nn.Linear(8, 3)))
        self.image = second(self.text)
        if frozen == "image":
            for parameter in self.image.parameters():
                parameter.requires_grad = False
        else:
            self.text.requires_grad_(False)
        self.head = nn.Linear(3, 3)

    def forward(self, x):
        return self.head(self.text(x) + self.image(x))


def halves(second, frozen="image"):
    return Contract(
        model=lambda: Halves(second, frozen),
        inputs="B 4",
        targets="B 3",
        loss=F.mse_loss,
        promises=(promises.Trainable("text.*"),),
    )


@pytest.mark.parametrize(
    "second", [copy.copy, lambda other: nn.Sequential(*other)], ids=["copy", "layers"]
)
def test_two_modules_that_hold_the_same_parameters(second):
    (found,) = told(halves(second), "gradients-exist")
    assert found.code == "grad-off"
    assert found.location.text == "self.image = second(self.text)"
    assert found.cause == "text and image hold the same parameters: freezing one freezes both"
    assert "text.0.weight is model.image.0.weight" in found.because
    assert any("requires_grad = False" in c.location.text for c in found.culprits if c.location)


def test_what_was_frozen_by_its_own_name_is_not_put_down_to_the_other():
    (found,) = told(halves(copy.copy, "text"), "gradients-exist")
    assert "self.text.requires_grad_(False)" in found.location.text
    assert "same" not in found.cause


class Tied(nn.Module):
    """A table of words whose weight the last layer reads, which is frozen with it."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(7, 5)
        self.middle = nn.Linear(5, 5)
        self.last = nn.Linear(5, 7)
        self.last.weight = self.words.weight
        self.last.requires_grad_(False)

    def forward(self, x):
        return self.last(self.middle(self.words(x)).relu()).square().mean()


def test_a_tie_is_no_copy():
    made = Contract(
        model=Tied,
        inputs=Tokens("B T", vocab=7),
        loss="output",
        promises=(promises.Trainable("words.*"),),
    )
    (found,) = told(made, "gradients-exist")
    assert "hold the same" not in found.cause
    assert "self.last.requires_grad_(False)" in found.location.text


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.body(x).relu())


def frozen(first):
    model = Net()
    if first:
        model.requires_grad_(False)
        model.head = nn.Linear(8, 3)
    else:
        model.head = nn.Linear(8, 3)
        model.requires_grad_(False)
    return model


def contract(**fields):
    return Contract(
        **{"model": lambda: frozen(False), "inputs": "B 4", "targets": "B 3", "loss": F.mse_loss}
        | fields
    )


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def test_the_line_that_froze_is_the_one_that_was_seen_to_do_it():
    made = contract(optimizer=sgd, promises=(promises.Frozen("body.*", reason="pretrained"),))
    (found,) = told(made, "backward", "gradients-exist", "frozen-stays", "resume")
    assert (found.check, found.code) == ("gradients-exist", "nothing-trainable")
    assert found.location.function == "frozen"
    assert found.location.line == frozen.__code__.co_firstlineno + 7
    assert "head.weight" in found.summary


def test_a_head_put_in_after_freezing_trains():
    made = contract(model=lambda: frozen(True), optimizer=sgd)
    assert told(made, "backward", "gradients-exist", "resume") == []


def test_only_a_loss_leaves_it_open_whether_a_frozen_model_is_to_train():
    (found,) = told(contract(), "gradients-exist")
    assert (found.status, found.code) == ("suspicious", "nothing-trainable")


def test_a_model_that_is_to_stay_or_is_thawed_or_has_nothing_to_freeze_is_no_mistake():
    def thawing(model):
        model.head.requires_grad_(True)
        return sgd(model.head)

    def counting(model, optimizer, inputs, targets):
        with torch.no_grad():
            model.head.bias.add_((targets - model(*inputs)).mean(0))

    for fields in (
        {"promises": (promises.Frozen("*", reason="a teacher"),), "optimizer": sgd},
        {"optimizer": thawing},
        {"optimizer": sgd, "train_step": counting},
        {"loss": "output", "model": lambda: Distance(), "targets": None},
        {"model": lambda: nn.Flatten()},
    ):
        made = {k: v for k, v in fields.items() if v is not None}
        made = Contract(**made, inputs="B 4") if "loss" in made else contract(**made)
        assert told(made, "gradients-exist") == []


class Distance(Net):
    def __init__(self):
        super().__init__()
        self.requires_grad_(False)

    def forward(self, x):
        return super().forward(x).square().mean()


class Deep(nn.Module):
    """Where ``p.requires_grad = False`` is written is told, and this line is not it."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(11))
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x).relu()
        return self.head(x)


def is_low(name, dots):
    return name.startswith(("blocks.0.", "blocks.1.") if dots else ("blocks.0", "blocks.1"))


def freeze_low(model, dots):
    for name, p in model.named_parameters():
        low = is_low(name, dots)
        p.requires_grad = not low


def deep(dots):
    torch.manual_seed(0)  # four rectified units of a block may all be off by chance
    model = Deep()
    freeze_low(model, dots)
    trainable = [f"blocks.{i}.*" for i in range(2, 11)]
    return contract(model=model, promises=(promises.Trainable(*trainable),))


def test_what_decides_is_named_beside_the_line_that_freezes():
    (found,) = told(deep(False), "gradients-exist")
    assert found.code == "grad-off"
    assert found.location.text == "p.requires_grad = not low"
    texts = [c.location.text for c in found.culprits if c.location is not None]
    assert "low = is_low(name, dots)" in texts
    assert any(text.startswith("return name.startswith") for text in texts)
    assert "decided on line" in found.because


def test_names_with_their_dots_freeze_what_is_meant():
    assert told(deep(True), "gradients-exist") == []


def by_name(model, whole):
    for name, p in model.named_parameters():
        if whole:
            p.requires_grad = name == "head"  # HERE
        else:
            p.requires_grad = name.startswith("head.")
    return model


def test_of_several_lines_that_switch_the_one_that_keeps_it_on_is_not_named():
    made = contract(model=by_name(Net(), True), promises=(promises.Trainable("head.*"),))
    (found,) = told(made, "gradients-exist")
    assert "# HERE" in found.location.text
    assert not any("startswith" in c.location.text for c in found.culprits if c.location)


def still(part):
    for p in part.parameters():
        p.requires_grad_(False)


class Student(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk, self.top = nn.Linear(4, 6), nn.Linear(6, 3)
        self.trunk_slow, self.top_slow = copy.deepcopy(self.trunk), copy.deepcopy(self.top)
        still(self.trunk_slow)
        still(self.top)

    def forward(self, x):
        with torch.no_grad():
            goal = self.top_slow(self.trunk_slow(x))
        return self.top(self.trunk(x)) - goal


@pytest.mark.parametrize("built", [True, False])
def test_the_call_that_gives_a_part_to_what_freezes_it_is_the_place(built):
    made = Contract(
        model=Student() if built else Student,
        inputs="B 4",
        targets="B 3",
        loss=F.mse_loss,
        promises=(promises.Trainable("top.*"),),
    )
    (found,) = [f for f in told(made, "gradients-exist") if f.code == "grad-off"]
    assert found.location.text == "still(self.top)"


class Borrowed(nn.Module):
    """Reads a table that is switched off for the reading, or for nothing."""

    def __init__(self, off):
        super().__init__()
        self.off, self.table, self.head = off, nn.Embedding(9, 4), nn.Linear(4, 2)

    def forward(self, ids):
        self.table.weight.requires_grad = not self.off
        found = self.table(ids)
        self.table.weight.requires_grad = True
        return self.head(found.mean(1))


def test_a_parameter_that_requires_a_gradient_again_when_it_has_been_read():
    declared = {"inputs": Tokens("B T", vocab=9), "targets": "B 2", "loss": F.mse_loss}
    (found,) = told(Contract(model=lambda: Borrowed(True), **declared), "gradients-exist")
    assert (found.code, found.evidence["kind"]) == ("grad-none", "frozen")
    assert "where it is read, and True again" in found.because
    assert "not self.off" in found.location.text
    assert not told(Contract(model=lambda: Borrowed(False), **declared), "gradients-exist")
