"""What raised is done again on another device, where its own is lost."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, Labels
from pytest_torchcheck.subject import Subject
from pytest_torchcheck.subject.errors import Again, SubjectError

ASSERT = "CUDA error: device-side assert triggered\nCUDA kernel errors might be reported later"


class Tagger(nn.Module):
    """Fails as on a device first, with an error that says nothing; elsewhere with the real one."""

    def __init__(self, on_device: bool) -> None:
        super().__init__()
        self.on_device = on_device
        self.table = nn.Embedding(5, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, ids):
        if self.on_device:
            raise RuntimeError(ASSERT)
        return self.head(self.table(ids)).mean(1)


def batch(seed=0):
    return torch.tensor([[1, 2, 7], [0, 1, 2]]), torch.tensor([0, 2])


def simulated():
    """A factory whose first model runs on the simulated device, and every later one on the CPU."""
    made = []

    def build():
        made.append(Tagger(on_device=not made))
        return made[-1]

    return build, made


def test_a_device_side_assert_is_explained_by_a_model_made_anew():
    build, made = simulated()
    report = Contract(model=build, batch=batch, loss=F.cross_entropy).check(["backward"])
    (found,) = report.causes
    assert found.code == "embedding-range"
    assert found.culprits[0].name == "table"
    assert found.location is not None
    assert found.location.text == "self.table = nn.Embedding(5, 4)"
    assert "CUDA reported a device-side assert" in found.because
    # the one that fails, the one that explains it, and the one in which the suggested edit is tried
    assert [model.table.num_embeddings for model in made] == [5, 5, 8]


def test_an_assert_in_the_loss():
    calls = []

    def loss(output, targets):
        calls.append(output)
        if len(calls) == 1:
            raise RuntimeError(ASSERT)
        return F.cross_entropy(output, targets)

    contract = Contract(
        model=lambda: nn.Linear(4, 3),
        batch=lambda seed: (torch.randn(6, 4), torch.tensor([1, 2, 3, 1, 2, 3])),
        loss=loss,
    )
    (found,) = contract.check(["backward"]).causes
    assert (found.code, found.cause) == ("label-range", "labels start at 1")


def test_an_assert_in_the_users_step():
    def step(model, optimizer, inputs, targets):
        F.cross_entropy(model(*inputs), targets).backward()
        optimizer.step()

    build, made = simulated()
    subject = Subject(
        Contract(
            model=build,
            batch=batch,
            loss=F.cross_entropy,
            train_step=step,
            optimizer=lambda model: torch.optim.Adam(model.parameters(), lr=1e-3),
        )
    )
    with pytest.raises(SubjectError) as caught, subject.pristine(steps=True) as model:
        subject.train_step(model, subject.make_optimizer(model), subject.batch().clone())
    again = caught.value.rerun
    assert isinstance(again, Again)
    with pytest.raises(IndexError, match="out of range"):
        again(device="cpu")
    assert again.model is made[1]
    subject.close()


def test_a_batch_that_cannot_be_read_any_more_is_the_one_that_was_placed(monkeypatch):
    build, _ = simulated()
    subject = Subject(Contract(model=build, inputs="B 3", targets=Labels("B", classes=3)))
    first = subject.batch()
    subject._placed[
        (first.seed, tuple(sorted(first.sizes.items())), first.layout, first.origin)
    ] = first.clone()
    with pytest.raises(SubjectError) as caught:
        subject.forward()

    def lost(*args, **kwargs):
        raise RuntimeError(ASSERT)

    monkeypatch.setattr("pytest_torchcheck.batches.batch.move_tensor", lost)
    again = caught.value.rerun
    assert isinstance(again, Again)
    with pytest.raises(RuntimeError, match="device-side"):
        again.__call__()
    monkeypatch.setattr("pytest_torchcheck.batches.batch.move_tensor", lambda t, *_: t)
    with pytest.raises(RuntimeError):
        again(device="cpu")
    assert again.batch is not None
    assert torch.equal(again.batch.args[0], first.args[0])


def test_the_users_own_module_is_put_back():
    model = Tagger(on_device=False)
    weight = model.table.weight.detach().clone()
    subject = Subject(Contract(model=model, batch=batch, loss=F.cross_entropy))
    with pytest.raises(SubjectError) as caught:
        subject.forward()
    with pytest.raises(IndexError):
        caught.value.rerun(device="cpu")
    assert caught.value.rerun.model is model
    subject.close()
    assert torch.equal(model.table.weight, weight)
