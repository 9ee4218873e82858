"""The checks of GPUs on a real one: what holds passes, each kind of mistake is told by its name."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, Labels, promises
from pytest_torchcheck.hardware import accelerator
from pytest_torchcheck.measure.memory import measure_memory

if TYPE_CHECKING:
    from pytest_torchcheck.findings import Finding

pytestmark = pytest.mark.cuda


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(64, 256)
        self.norm = nn.BatchNorm1d(256)
        self.drop = nn.Dropout(0.1)
        self.head = nn.Linear(256, 10)

    def forward(self, x):
        return self.head(self.drop(F.gelu(self.norm(self.body(x)))))


class Image(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2),
            nn.GroupNorm(4, 32), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        )  # fmt: skip
        self.head = nn.Linear(32, 10)

    def forward(self, x):
        return self.head(self.layers(x.unflatten(1, (1, 8, 8))))


class Text(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        return self.head(self.layer(x.unflatten(1, (4, 16))).flatten(1))


def contract(model: object = Net, **fields: object) -> Contract:
    return Contract(
        model=model, inputs="B 64", targets=Labels("B", classes=10), loss=F.cross_entropy, sizes={"B": 16},
        devices=("cuda",), **fields,
    )  # fmt: skip


def told(name: str, declared: Contract) -> Finding:
    [finding] = [f for f in declared.check([name]).findings if f.check == name]
    return finding


MODELS = [Net, Image, Text]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("tf32", [False, True])
def test_correct_models_agree_with_the_cpu(model: type[nn.Module], tf32: bool) -> None:
    declared = contract(model, promises=(promises.AllowsTF32(),) if tf32 else ())
    finding = told("device-parity", declared)
    assert finding.status == "passed", finding
    assert ("with TF32" in finding.summary) == tf32


class OnDevice(Net):
    def forward(self, x):
        hidden = self.norm(self.body(x))
        return self.head(F.gelu(hidden, approximate="tanh") * 1.01 if x.is_cuda else F.gelu(hidden))


def test_a_branch_on_the_device_is_told() -> None:
    finding = told("device-parity", contract(OnDevice))
    assert (finding.status, finding.code) == ("violated", "device-differs")
    assert finding.culprits[0].name == "head"


class Reads(Net):
    def forward(self, x):
        if x.abs().max().item() > 100:
            x = x / 100
        return super().forward(x)


class Masks(Net):
    def forward(self, x):
        return super().forward(x) + x[x > 0].sum()


@pytest.mark.parametrize(("model", "text"), [(Reads, ".item()"), (Masks, "x[x > 0]")])
def test_lines_that_wait_are_told(model: type[nn.Module], text: str) -> None:
    finding = told("host-syncs", contract(model))
    assert (finding.status, finding.code) == ("suspicious", "device-sync")
    assert finding.location is not None
    assert text in finding.location.text


@pytest.mark.parametrize("model", MODELS)
def test_models_that_wait_for_nothing_pass(model: type[nn.Module]) -> None:
    assert told("host-syncs", contract(model)).status == "passed"
    assert torch.cuda.get_sync_debug_mode() == 0


@pytest.mark.parametrize("model", MODELS)
def test_a_side_stream_gives_the_same(model: type[nn.Module]) -> None:
    assert told("side-stream", contract(model)).status == "passed"


CAPTURES = (promises.CapturesGraph(),)


@pytest.mark.parametrize("model", MODELS)
def test_a_captured_forward_gives_what_eager_gives(model: type[nn.Module]) -> None:
    assert told("graph-capture", contract(model, promises=CAPTURES)).status == "passed"


class Scaled(Net):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x) * self.calls


def test_what_runs_on_the_host_at_capture_is_stale() -> None:
    finding = told("graph-capture", contract(Scaled, promises=CAPTURES))
    assert (finding.status, finding.code) == ("violated", "graph-stale")


def test_what_waits_cannot_be_captured() -> None:
    finding = told("graph-capture", contract(Reads, promises=CAPTURES))
    assert (finding.status, finding.code) == ("violated", "graph-not-captured")
    torch.ones(1, device="cuda").add_(1)  # the device still works
    torch.cuda.synchronize()


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_correct_models_hold_under_autocast(model: type[nn.Module], dtype: str) -> None:
    finding = told("autocast", contract(model, promises=(promises.Autocasts(dtype),)))
    assert finding.status == "passed", finding


class Overflows(Net):
    def forward(self, x):
        return self.head(self.norm(self.body(x * 1e6) ** 2))


def test_float16_overflows_where_bfloat16_does_not() -> None:
    half = told("autocast", contract(Overflows, promises=(promises.Autocasts("float16"),)))
    assert (half.status, half.code) == ("violated", "autocast-overflow")


SCALER = torch.amp.GradScaler("cuda", init_scale=1024.0, enabled=torch.cuda.is_available())


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def scaled(model, optimizer, inputs, targets):
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = F.cross_entropy(model(*inputs), targets)
    SCALER.scale(loss).backward()
    SCALER.step(optimizer)
    SCALER.update()


def by_hand(model, optimizer, inputs, targets):
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = F.cross_entropy(model(*inputs), targets)
    SCALER.scale(loss).backward()
    for parameter in model.parameters():
        parameter.grad /= SCALER.get_scale()
    optimizer.step()


def test_scalers() -> None:
    good = told("grad-scaler", contract(train_step=scaled, optimizer=sgd))
    assert good.status == "passed", good
    bad = told("grad-scaler", contract(train_step=by_hand, optimizer=sgd))
    assert bad.code == "overflow-applied"


class Scatters(Net):
    def forward(self, x):
        rows = torch.arange(len(x), device=x.device) % 3
        pooled = torch.zeros(3, 64, device=x.device).index_add_(0, rows, x)
        return super().forward(x + pooled[rows])


class Histogram(Net):
    def forward(self, x):
        return super().forward(x + torch.bincount(x[:, 0].long().abs(), weights=x[:, 0].detach()).sum())  # fmt: skip


DETERMINISTIC = (promises.Deterministic(),)


def test_an_operation_without_a_fixed_order_is_named() -> None:
    finding = told("deterministic-algorithms", contract(Histogram, promises=DETERMINISTIC))
    assert (finding.status, finding.code) == ("violated", "nondeterministic-op")
    assert "bincount" in finding.culprits[0].name
    assert finding.location is not None
    assert "bincount" in finding.location.text


@pytest.mark.parametrize("model", [Net, Scatters])
def test_deterministic_models_pass(model: type[nn.Module], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    assert told("deterministic-algorithms", contract(model, promises=DETERMINISTIC)).status == "passed"  # fmt: skip


def test_the_allocator_and_the_tracker_tell_of_one_peak() -> None:
    declared = contract(lambda: nn.Sequential(nn.Linear(64, 4096), nn.ReLU(), nn.Linear(4096, 10)))
    profile = measure_memory(declared, device="cuda", fake=False, allocator=True)
    assert profile.allocator_peak_bytes is not None
    # the allocator rounds to 512 bytes, and cuBLAS holds a workspace of its own
    assert profile.peak_bytes <= profile.allocator_peak_bytes <= profile.peak_bytes + (64 << 20)
    assert told("peak-memory", contract(memory="1 GiB")).status == "passed"
    over = told("peak-memory", contract(memory="10 KiB"))
    assert over.status == "violated"


def test_flags_are_put_back() -> None:
    layer = accelerator.Cuda()
    before = torch.backends.cuda.matmul.fp32_precision, torch.backends.cudnn.conv.fp32_precision
    with layer.precision(tf32=True):
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with layer.host_syncs() as seen:
            torch.ones(1, device="cuda").item()
    assert len(seen) == 1
    assert (torch.backends.cuda.matmul.fp32_precision, torch.backends.cudnn.conv.fp32_precision) == before  # fmt: skip


def test_two_ranks_on_two_gpus() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("two GPUs are needed for two ranks over NCCL")
    import sys
    from pathlib import Path

    sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "ranks"))
    import rank_bugs

    declared = Contract(
        model=rank_bugs.Synchronised, inputs="B 6", targets=Labels("B", classes=3), sizes={"B": (2, 16)},
        loss=rank_bugs.cross_entropy, ranks=2, devices=("cuda",), promises=(promises.FullyShards(),),
    )  # fmt: skip
    report = declared.check(["ddp-equivalence", "synchronised-statistics", "fsdp-equivalence"])
    assert {f.status for f in report.findings} == {"passed"}, report


def test_a_module_on_a_gpu_is_sent_to_ranks_from_the_cpu() -> None:
    from pytest_torchcheck.ranks import sending
    from pytest_torchcheck.subject import Subject

    declared = contract(Net().cuda(), ranks=2)
    batch = Subject(declared).batch()
    program = sending.Program(model=declared.model, full=batch, shards=[batch, batch])
    sent = sending.load(sending.dump(declared, program))
    assert {t.device.type for t in sent.model.state_dict().values()} == {"cpu"}
    assert {t.device.type for t in sent.full.tensors().values()} == {"cpu"}
