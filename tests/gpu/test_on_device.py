"""What the first runs on a GPU met: correct models whose checks mixed devices, and bugs that lose the context."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, Ints, Labels, promises
from pytest_torchcheck.probes.loss.pulls import other_classes

pytestmark = pytest.mark.cuda


def contract(model: object, **fields: object) -> Contract:
    return Contract(
        **{
            "model": model, "inputs": "B 8", "targets": Labels("B", classes=4), "loss": F.cross_entropy,
            "sizes": {"B": (2, 8)}, "devices": ("cuda",), **fields,
        }
    )  # fmt: skip


class Old(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            self.body = nn.utils.weight_norm(nn.Linear(8, 16))
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        return self.head(self.body(x).relu())


class Cached(nn.Module):
    """Keeps a table that grows with the width."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 4)
        self.register_buffer("table", torch.zeros(0), persistent=False)

    def forward(self, x):
        if len(self.table) < x.shape[-1]:
            self.table = torch.arange(1.0, x.shape[-1] + 1, device=x.device)
        return self.head(x / self.table)


class Sampler(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        return self.head(x + 0.1 * torch.randn_like(x))


def lazy() -> nn.Module:
    return nn.Sequential(nn.LazyLinear(16), nn.ReLU(), nn.LazyLinear(4))


def accumulate(model, optimizer, inputs, targets):
    for x, y in zip(inputs[0].chunk(2), targets.chunk(2), strict=True):
        (F.cross_entropy(model(x), y) / 2).backward()
    optimizer.step()
    optimizer.zero_grad()


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def plain() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


CORRECT = {
    "a weight that is no parameter": lambda: contract(Old),
    "a buffer that grows": lambda: contract(Cached),
    "lazy layers": lambda: contract(lazy),
    "a lazy instance": lambda: contract(lazy()),
    "a loss with weights of the CPU": lambda: contract(
        plain, loss=nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 1.0, 3.0]))
    ),
    "labels of which some are ignored": lambda: contract(
        nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)),
        targets=Labels("B", classes=4, ignore_index=255),
        loss=nn.CrossEntropyLoss(ignore_index=255),
    ),
    "noise in eval mode": lambda: contract(
        Sampler, promises=(promises.Stochastic(reason="it samples"),)
    ),
    "accumulation": lambda: contract(
        plain, sizes={"B": 8}, optimizer=sgd, train_step=accumulate, promises=(promises.Accumulates(2),)
    ),
    "time first": lambda: contract(
        lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)), inputs="T B 8",
        targets=Labels("T B", classes=4), sizes={"T": (2, 6), "B": (2, 4)}, batch_dim=1,
        loss=lambda o, y: F.cross_entropy(o.flatten(0, 1), y.flatten()),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CORRECT)
def test_every_check_holds_for_a_correct_model(name: str) -> None:
    report = CORRECT[name]().check()
    wrong = [f for f in report.findings if f.status in ("violated", "error")]
    assert not wrong, "\n\n".join(map(str, wrong))
    assert sum(f.status == "passed" for f in report.findings) > 20


def test_a_relu_that_switches_at_a_rounding_is_no_difference() -> None:
    """In a deep network some unit is near 0: another order of summation turns it on, and its gradient jumps."""

    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layers = []
            for width in (3, *[32] * 5):
                layers += [nn.Conv2d(width, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()]
            self.body, self.head = nn.Sequential(*layers), nn.Linear(32, 4)

        def forward(self, x):
            return self.head(self.body(x).mean((2, 3)))

    declared = contract(Deep, inputs="B 3 32 32", sizes={"B": 8})
    for seed in range(3):
        [finding] = declared.check(["device-parity"], seed=seed).findings
        assert finding.status == "passed", finding


def test_other_classes_on_a_gpu_are_such_as_occur() -> None:
    labels = torch.tensor([0, 2, 255, -100], device="cuda")
    other = other_classes(labels, labels, 1)
    assert other.tolist() == [2, 255, 0, -100]


class Numbered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(10, 8), nn.Linear(8, 4)

    def forward(self, ids):
        return self.head(self.embed(ids).mean(1))


def alive() -> bool:
    """Say whether the process's context still computes."""
    return float(torch.ones(8, device="cuda").sum()) == 8


def test_an_index_out_of_range_is_one_finding_with_its_line() -> None:
    declared = contract(Numbered, inputs=Ints("B T", low=0, high=12), sizes={"B": 16, "T": 6})
    report = declared.check()
    [found] = [f for f in report.findings if f.status in ("violated", "error") and f.root is None]
    assert (found.status, found.code) == ("violated", "embedding-range")
    assert found.location.text.endswith("nn.Embedding(10, 8), nn.Linear(8, 4)"), (
        "at the line to mend"
    )
    assert alive()


def test_a_label_out_of_range_is_one_finding() -> None:
    report = contract(plain, targets=Labels("B", classes=5)).check()
    [found] = [f for f in report.findings if f.status in ("violated", "error") and f.root is None]
    assert (found.status, found.code) == ("violated", "label-classes")
    assert alive()


class Edges(nn.Module):
    """Its edges lead from rows of one table to rows of a smaller one: what checks change of them may not fit."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(4, 8), nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, users, items, edges):
        sent = self.second(items)[edges[1]]
        return self.head(self.first(users).index_add(0, edges[0], sent).relu())


def test_indices_that_only_a_check_makes_wrong_lose_no_context() -> None:
    edges = torch.stack([torch.randint(0, 8, (30,)), torch.randint(0, 6, (30,))])
    batch = ((torch.randn(8, 4), torch.randn(6, 4), edges), torch.randint(0, 4, (8,)))
    declared = Contract(
        model=Edges, batch=batch, loss=F.cross_entropy, batch_dim=None, devices=("cuda",)
    )
    wrong = [f for f in declared.check().findings if f.status in ("violated", "error")]
    assert not wrong, "\n\n".join(map(str, wrong))
    assert alive()


def test_a_loss_whose_labels_are_places_in_the_batch_loses_no_context() -> None:
    def loss(z, _targets):
        z = F.normalize(z, dim=1)
        own = torch.eye(len(z), dtype=torch.bool, device=z.device)
        partner = torch.arange(len(z), device=z.device) ^ 1
        return F.cross_entropy((z @ z.t()).masked_fill(own, -1e9), partner)

    declared = contract(plain, loss=loss, sizes={"B": 8})
    wrong = [
        f for f in declared.check().findings if f.status == "error" or f.code == "device-assert"
    ]
    assert not wrong, "\n\n".join(map(str, wrong))
    assert alive()


def test_a_loss_of_probabilities_loses_no_context() -> None:
    declared = contract(
        lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1), nn.Flatten(0), nn.Sigmoid()),
        targets=Labels("B", classes=2),
        loss=lambda o, y: F.binary_cross_entropy(o, y.float()),
    )  # fmt: skip
    wrong = [f for f in declared.check().findings if f.status in ("violated", "error")]
    assert not wrong, "\n\n".join(map(str, wrong))
    assert alive()


class Flow(nn.Module):
    """Returns a distribution, of which no tensor by itself has a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Linear(8, 3)

    def forward(self, x):
        base = torch.distributions.Normal(torch.zeros(3, device=x.device), 1.0)
        shift = torch.distributions.AffineTransform(self.scale(x), 1.0)
        return torch.distributions.TransformedDistribution(base.expand((len(x), 3)), [shift])


def test_a_distribution_as_output_holds() -> None:
    batch = ((torch.randn(6, 8),), torch.randn(6, 3))
    declared = Contract(
        model=Flow, batch=batch, loss=lambda d, y: -d.log_prob(y).mean(), devices=("cuda",)
    )
    wrong = [f for f in declared.check().findings if f.status in ("violated", "error")]
    assert not wrong, "\n\n".join(map(str, wrong))


class Images(nn.Module):
    """Cannot run in float64, so that nothing but its own kernels tells what rounding is."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Conv2d(3, 64, 3, padding=1), nn.Linear(64, 4)

    def forward(self, x):
        return self.head(self.body(x.float()).relu().mean((2, 3)).float())


def test_another_layout_is_compared_without_tf32() -> None:
    declared = contract(Images, inputs="B 3 32 32", sizes={"B": 4})
    [finding] = declared.check(["layout-invariance"]).findings
    assert finding.status == "passed", finding


class Copied(nn.Module):
    """Builds its copies anew, as wrappers of other libraries do: on the CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        return self.head(x)

    def __deepcopy__(self, memo):
        made = Copied()
        made.load_state_dict(self.state_dict())
        return made


def test_a_copy_that_is_built_on_the_cpu_is_moved_as_its_user_would() -> None:
    wrong = [
        f for f in contract(Copied).check(["copy-and-pickle"]).findings if f.status != "passed"
    ]
    assert not wrong, "\n\n".join(map(str, wrong))


def test_masks_of_the_cpu_are_told_as_a_pair_of_devices() -> None:
    def loss(z, _targets):
        own = torch.eye(len(z), dtype=torch.bool)
        return F.cross_entropy((z @ z.t()).masked_fill(own, -1e9), torch.zeros_like(_targets))

    [finding] = (
        contract(plain, loss=loss, targets=Labels("B", classes=2)).check(["backward"]).findings
    )
    assert (finding.status, finding.code) == ("violated", "device-pair")


class Elsewhere(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        return self.head(x) + torch.zeros(4, device=f"cuda:{torch.cuda.device_count() + 3}")


def test_a_gpu_by_its_number_is_told() -> None:
    [finding] = contract(Elsewhere).check(["backward"]).findings
    assert (finding.status, finding.code) == ("violated", "device-hard-coded")


def test_ids_in_range_pass() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(12, 8), nn.Linear(8, 4)

        def forward(self, ids):
            return self.head(self.embed(ids).mean(1))

    report = contract(
        Net, inputs=Ints("B T", low=0, high=12), sizes={"B": (2, 8), "T": (2, 6)}
    ).check()
    assert not [f for f in report.findings if f.status in ("violated", "error")], report
