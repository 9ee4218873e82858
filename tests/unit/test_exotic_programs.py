"""Sharded, exported and compiled programs, and inputs of layouts of their own: every check answers, none fails."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract
from pytest_torchcheck.objects import trees
from pytest_torchcheck.subject import Subject
from pytest_torchcheck.subject.errors import SubjectError

if TYPE_CHECKING:
    from collections.abc import Iterator

G = torch.Generator().manual_seed(0)
X, Y = torch.randn(12, 5, generator=G), torch.randint(0, 3, (12,), generator=G)


class Net(nn.Module):
    def __init__(self, inputs: int = 5) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.first(x)))


def answers(**fields: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls its own layouts beta
        report = Contract(**({"loss": F.cross_entropy} | fields)).check()
    assert report.ok, str(report)


@pytest.fixture(scope="module")
def mesh() -> Iterator[Any]:
    from torch.distributed.device_mesh import init_device_mesh

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@pytest.mark.parametrize("parts", [("first",), ()], ids=["nested", "whole"])
def test_a_sharded_model(mesh: Any, parts: tuple[str, ...]) -> None:
    from torch.distributed.fsdp import fully_shard

    def build() -> nn.Module:
        model = Net()
        for part in parts:
            fully_shard(model.get_submodule(part), mesh=mesh)
        return fully_shard(model, mesh=mesh)

    def optimizer(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=1e-2)

    answers(model=build, batch=((X,), Y), optimizer=optimizer)


def test_a_model_of_which_a_part_is_distributed(mesh: Any) -> None:
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    answers(
        model=lambda: parallelize_module(Net(), mesh, {"first": ColwiseParallel()}),
        batch=((X,), Y),
    )


class Halves(nn.Module):
    """Of its first layer, half of the rows meet a rectifier that lets nothing through; tied where it is told so."""

    def __init__(self, *, tied: bool = False) -> None:
        super().__init__()
        self.table, self.first, self.last = nn.Embedding(9, 8), nn.Linear(8, 8), nn.Linear(8, 9)
        with torch.no_grad():
            self.first.bias[4:] = -50.0
        if tied:
            self.last.weight = self.table.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.first(self.table(x))))


class Rolled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.read, self.last = nn.Embedding(9, 8), nn.GRU(8, 8), nn.Linear(8, 9)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.read(self.table(x)[None])[0][0])


@pytest.mark.parametrize("net", [Halves, lambda: Halves(tied=True), Rolled])
def test_a_sharded_model_with_rows_that_get_no_gradient_and_with_ties(mesh: Any, net: Any) -> None:
    from torch.distributed.fsdp import fully_shard

    words = torch.randint(0, 9, (12,), generator=G)
    report = Contract(
        model=lambda: fully_shard(net(), mesh=mesh),
        batch=((words,), words.flip(0)),
        loss=F.cross_entropy,
        optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=1e-2),
    ).check()
    wrong = [f for f in report.findings if f.status in ("error", "violated")]
    assert [str(f) for f in wrong if f.check not in ("dead-units", "gradients-exist")] == []


def test_a_sharded_model_runs_again_after_a_forward_that_raised(mesh: Any) -> None:
    from torch.distributed.fsdp import FSDPModule, fully_shard

    if not hasattr(FSDPModule, "reset_iter_state"):
        pytest.skip("torch cannot do so itself")
    subject = Subject(Contract(model=lambda: fully_shard(Net(), mesh=mesh), batch=((X,), Y)))
    wanted = subject.forward()
    with pytest.raises(SubjectError):
        subject.forward(subject.batch().map(lambda path, leaf: leaf[:, :4], targets=False))
    assert torch.equal(subject.forward(), wanted)


def test_memory_that_was_given_back_is_not_read() -> None:
    tensor = torch.ones(4)
    assert not trees.is_freed(tensor)
    tensor.untyped_storage().resize_(0)
    assert trees.is_freed(tensor)
    assert not trees.computable(tensor)


@pytest.mark.parametrize("rows", [6, 12])
def test_a_program_for_so_many_samples(rows: int) -> None:
    program = torch.export.export(Net(), (X[:rows],))
    answers(model=program.module(), batch=((X[:rows],), Y[:rows]))


class Unruly(nn.ModuleList):
    """Has no truth value and no length."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.net = Net()

    def __bool__(self) -> bool:
        raise RuntimeError("no truth")

    def __len__(self) -> int:
        raise RuntimeError("no length")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)


@pytest.mark.parametrize("model", [Unruly, lambda: torch.compile(Net(), backend="eager")])
def test_a_model_without_a_truth_value(model: Any) -> None:
    answers(model=model, batch=((X,), Y))


class Spread(nn.Module):
    """Multiplies a matrix of neighbours with features."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def forward(self, near: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return self.net(near @ x)


@pytest.mark.filterwarnings("ignore:Sparse CS")
@pytest.mark.parametrize("layout", ["", "_csr"], ids=["coo", "csr"])
def test_a_sparse_input(layout: str) -> None:
    near = torch.eye(12) + torch.eye(12).roll(1, 0) / 2
    batch = ((getattr(near, f"to_sparse{layout}")(), X), Y)
    answers(model=Spread, batch=batch, batch_dim=None)


class Summed(nn.Module):
    """Adds up sequences of different lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.each, self.head = nn.Linear(5, 8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = torch.nested.to_padded_tensor(torch.relu(self.each(x)), 0.0)
        return self.head(made.sum(1))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.jagged, torch.strided], ids=["jagged", "strided"])
def test_a_nested_input(layout: torch.layout) -> None:
    rows = torch.nested.nested_tensor([X[:3], X[3:8], X[8:]], layout=layout)
    answers(model=Summed, batch=((rows,), Y[:3]))


class Two(NamedTuple):
    scores: torch.Tensor
    code: torch.Tensor


class Parts(Two):
    """Takes one argument, which a call of the class with each field as an argument would not."""

    def __new__(cls, made: torch.Tensor) -> Self:
        again = super().__new__(cls, made, made.tanh())
        again.unit = "bits"
        return again


class InParts(Net):
    def forward(self, x: torch.Tensor) -> Parts:
        return Parts(super().forward(x))


def test_a_named_tuple_with_a_constructor_of_its_own() -> None:
    def loss(output: Parts, label: torch.Tensor) -> torch.Tensor:
        assert output.unit == "bits"
        return F.cross_entropy(output.scores, label) + output.code.square().mean()

    answers(model=InParts, batch=((X,), Y), loss=loss)


def test_tuples_of_torch_are_rebuilt() -> None:
    found = torch.max(X, 1)
    again = trees.substitute(found, {id(found.values): X})
    assert type(again) is type(found)
    assert again.values is X
