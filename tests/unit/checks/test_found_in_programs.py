"""What programs of others were blamed for, or not: each beside the mistake that it is not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset, WeightedRandomSampler

from pytest_torchcheck import Contract

if TYPE_CHECKING:
    from pytest_torchcheck import Finding


def plain() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=1e-3)


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def told(declared: Contract, check: str) -> list[Finding]:
    return [f for f in declared.check([check]).findings if f.status in ("violated", "suspicious")]


def smooth(output: Tensor, target: Tensor) -> Tensor:
    return F.mse_loss(output, target) + F.mse_loss(output[:, 1:], output[:, :-1])


def doubled(output: Tensor, target: Tensor) -> Tensor:
    return F.mse_loss(output, target) + F.mse_loss(2 * output, output + output)


@pytest.mark.parametrize(("loss", "codes"), [(smooth, []), (doubled, ["compared-with-itself"])])
def test_a_value_is_compared_with_itself(loss: Any, codes: list[str]) -> None:
    declared = Contract(model=plain, batch=((drawn(6, 8),), drawn(6, 4)), loss=loss)
    assert [f.code for f in told(declared, "loss-input")] == codes


def test_outputs_that_begin_as_their_targets_are_not_compared_with_themselves() -> None:
    def zeros() -> nn.Module:
        made = nn.Linear(8, 4)
        nn.init.zeros_(made.weight)
        nn.init.zeros_(made.bias)
        return made

    declared = Contract(model=zeros, batch=((drawn(6, 8),), torch.zeros(6, 4)), loss=F.mse_loss)
    assert not told(declared, "loss-input")


class Halves:
    """A step over real and generated rows, of which the targets tell which is which."""

    def __init__(self, *, pairs: bool) -> None:
        self.pairs = pairs

    def __call__(self, model: nn.Module, optimizer: Any, inputs: Any, targets: Tensor) -> Tensor:
        (x,) = inputs
        real, other = (x[targets == 1], x[targets == 0]) if self.pairs else (x, x.view(8, 8))
        value = (model(real) - model(other)).square().mean() + model(x).square().mean()
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        return value.detach()


@pytest.mark.parametrize(("pairs", "count"), [(True, 0), (False, 1)])
def test_a_step_of_pairs_runs_at_no_odd_size(pairs: bool, count: int) -> None:
    declared = Contract(
        model=plain, inputs="B 8", sizes={"B": (2, 8)}, batch=((drawn(8, 8),), torch.tensor([1.0, 0.0] * 4)),
        train_step=Halves(pairs=pairs), optimizer=adam,
    )  # fmt: skip
    assert len(told(declared, "batch-sizes")) == count


def between_groups(output: Tensor, target: Tensor) -> Tensor:
    score = output[:, 0]
    return (score * (1 - target)).sum() / (1 - target).sum() - (score * target).sum() / target.sum()


def of_positives(output: Tensor, target: Tensor) -> Tensor:
    return (output[:, 0] * target).sum() / target.sum()


@pytest.mark.parametrize(
    ("loss", "status"), [(between_groups, "suspicious"), (of_positives, "violated")]
)
def test_a_loss_between_two_groups_has_none_of_one_sample(loss: Any, status: str) -> None:
    declared = Contract(
        model=plain, inputs="B 8", sizes={"B": (1, 6)}, loss=loss,
        batch=((drawn(6, 8),), torch.tensor([1.0, 1.0, 0.0, 1.0, 0.0, 0.0])),
    )  # fmt: skip
    [finding] = told(declared, "edge-targets")
    assert (finding.status, finding.code) == (status, "edge-targets-non-finite")


class Rows(Dataset[Any]):
    def __init__(self, *more: Any) -> None:
        self.x, self.more = drawn(32, 8), more

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Any:
        return self.x[index], *self.more, index % 3


def noised(samples: Any) -> Any:
    x = torch.stack([x for x, _ in samples])
    return x, torch.zeros(len(x), 4)


@pytest.mark.parametrize(("loader", "count"), [({"collate_fn": noised}, 0), ({}, 1)])
def test_what_a_collate_function_makes_of_labels_is_not_their_dtype(
    loader: Any, count: int
) -> None:
    declared = Contract(
        model=plain, batch=((drawn(8, 8),), drawn(8, 4)), loss=F.mse_loss, dataset=Rows(),
        loader={"batch_size": 8, **loader},
    )  # fmt: skip
    assert len([f for f in told(declared, "dataset-labels") if f.code == "label-dtype"]) == count


class Apart(nn.Module):
    def forward(self, output: Tensor, _: Tensor) -> Tensor:
        return (output.std(0) - 1).square().mean()


def test_a_loss_module_says_by_a_name_that_it_reads_no_targets() -> None:
    declared = Contract(model=plain, batch=((drawn(8, 8),), torch.arange(8)), loss=Apart())
    assert {f.status for f in told(declared, "target-ownership")} <= {"suspicious"}


def test_the_name_behind_a_conversion_is_what_a_sampler_is_given() -> None:
    rows = Rows()
    weights = [1 / count for count in (11, 11, 10)]
    sampler = WeightedRandomSampler(torch.as_tensor(weights, dtype=torch.double), len(rows))
    declared = Contract(dataset=rows, loader={"batch_size": 8, "sampler": sampler})
    [finding] = told(declared, "loader-order")
    assert "weight of its class: weights[labels]" in finding.fix
    assert finding.location is not None
    assert finding.location.text.startswith("weights = [")


class Maps(Dataset[Any]):
    """Maps of classes, resized as the keywords say."""

    def __init__(self, kinds: int, **resize: Any) -> None:
        draw = torch.Generator().manual_seed(0)
        blocks = torch.randint(0, kinds, (12, 3, 3), generator=draw)
        self.maps = blocks.repeat_interleave(4, 1).repeat_interleave(4, 2)
        self.resize = resize

    def __len__(self) -> int:
        return len(self.maps)

    def __getitem__(self, index: int) -> Any:
        image, label = torch.rand(3, 20, 20), self.maps[index][None, None].float()
        return image, F.interpolate(label, size=(20, 20), **self.resize)[0, 0].round().long()


@pytest.mark.parametrize(
    ("kinds", "resize", "codes"),
    [
        (3, {"mode": "bilinear", "align_corners": False}, ["label-blended"]),
        (9, {"mode": "bicubic"}, ["label-blended"]),
        (3, {"mode": "nearest"}, []),
        (2, {"mode": "bilinear", "align_corners": True}, []),  # nothing is between two classes
    ],
)
def test_maps_of_classes_are_not_averaged(kinds: int, resize: Any, codes: list[str]) -> None:
    declared = Contract(dataset=Maps(kinds, **resize), loader={"batch_size": 4})
    found = [f.code for f in told(declared, "dataset-labels") if f.code == "label-blended"]
    assert found == codes


class Logarithm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.norm, self.head = nn.Linear(8, 3), nn.BatchNorm1d(3), nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.body(x)).log()
        return self.head(self.norm(h))


def test_a_norm_that_writes_its_statistics_did_not_find_them_so() -> None:
    declared = Contract(model=Logarithm, batch=((drawn(6, 8),), drawn(6, 4)), loss=F.mse_loss)
    [finding] = told(declared, "gradients-finite")
    assert finding.location is not None
    assert finding.location.text == "h = torch.relu(self.body(x)).log()"
    assert finding.cause == "the logarithm of 0 or less"
