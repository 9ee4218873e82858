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


ALONE = """
import sys, torch, torch.nn.functional as F
from torch import nn
from pytest_torchcheck import Contract, Ints, Labels

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(10, 8), nn.Linear(8, 4)
    def forward(self, ids):
        return self.head(self.embed(ids).mean(1))

declared = Contract(model=Net, inputs=Ints("B T", low=0, high=12), targets=Labels("B", classes=CLASSES), loss=F.cross_entropy,
                    sizes={"B": 16, "T": 6}, devices=("cuda",))
report = declared.check()
for finding in report.findings:
    if finding.status in ("violated", "error"):
        print(finding.status, finding.code, finding.location.text if finding.location else "")
print(sum("context of cuda was lost" in f.summary for f in report.findings) > 20)
"""


def test_an_index_out_of_range_is_one_finding_with_its_line(tmp_path) -> None:
    import subprocess
    import sys

    torch.ones(8, device="cuda").add_(1)
    program = tmp_path / "program.py"
    program.write_text(ALONE.replace("CLASSES", "4"))
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, check=False)
    told, blocked = done.stdout.strip().rsplit("\n", 1)
    assert told.startswith("violated embedding-range "), done.stderr
    assert told.endswith("nn.Embedding(10, 8), nn.Linear(8, 4)"), "one finding, at the line to mend"
    assert blocked == "True"


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
