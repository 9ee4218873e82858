"""The checks of GPUs on a simulated device: the CPU, made wrong, slow or forgetful by the test."""

from __future__ import annotations

import contextlib
import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from pytest_torchcheck import Contract, Labels, promises, sources
from pytest_torchcheck.catalogue import catalogue
from pytest_torchcheck.hardware import accelerator
from pytest_torchcheck.state import Precision
from pytest_torchcheck.subject import Subject
from pytest_torchcheck.subject.errors import UnmeasurableError
from pytest_torchcheck.verdicts import inconclusive


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(6, 16)
        self.norm = nn.BatchNorm1d(16)
        self.drop = nn.Dropout(0.3)
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.drop(torch.relu(self.norm(self.body(x)))))


class Reads(Net):
    def forward(self, x):
        if x.abs().max().item() > 100:
            x = x / 100
        return super().forward(x)


class Ops(TorchDispatchMode):
    """Changes what some operations give."""

    def __init__(self, change: Any, *names: str, shape: tuple[int, ...] | None = None) -> None:
        super().__init__()
        self.change, self.names, self.shape = change, names, shape

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name in self.names and (self.shape is None or tuple(out.shape) == self.shape):
            return self.change(out)
        return out


class Simulated(accelerator.Cuda):
    """A device whose results, streams and graphs a test decides."""

    def __init__(self, *, ops=None, tf32=None, stream=None, capture=None, waits=()) -> None:
        self.ops, self.tf32, self.stream, self.capturing = ops, tf32, stream, capture
        self.waits = list(waits)

    @contextlib.contextmanager
    def precision(self, *, tf32):
        with (self.tf32 if tf32 else self.ops) or contextlib.nullcontext():
            yield

    @contextlib.contextmanager
    def host_syncs(self):
        yield self.waits

    @contextlib.contextmanager
    def other_stream(self):
        with self.stream or contextlib.nullcontext():
            yield

    def capture(self, run):
        run()
        return self.capturing(run) if self.capturing else run


def contract(model=Net, **fields) -> Contract:
    return Contract(
        model=model, inputs="B 6", targets=Labels("B", classes=3), loss=F.cross_entropy, sizes={"B": 8}, **fields
    )  # fmt: skip


def told(name: str, layer: accelerator.Accelerator, declared: Contract | None = None):
    subject = Subject(declared or contract())
    before = {k: v.clone() for k, v in subject.model.state_dict().items()}
    with accelerator.replaced(layer):
        try:
            found = list(catalogue()[name].run(subject))
        except UnmeasurableError as error:
            found = [inconclusive(error.reason, code=error.code)]
    assert all(torch.equal(before[k], v) for k, v in subject.model.state_dict().items())
    return found


def a_little(out):
    return out * (1 + 2e-7)


def one_entry(out):
    made = out.clone()
    made.view(-1)[3] += 0.02 * float(out.abs().max())
    return made


# -- parity ------------------------------------------------------------------------------------------


def by_the_library(out):
    return one_entry(out) if torch.backends.cudnn.enabled else out


def test_what_only_cudnn_computes_otherwise_is_not_the_users() -> None:
    """Its gradient of a weight of a wide kernel errs by a thousandth: nobody but its authors can mend that."""
    [finding] = told("device-parity", Simulated(ops=Ops(by_the_library, "mm", shape=(16, 6))))
    assert finding.status == "passed", finding
    assert "cuDNN" in finding.summary
    assert torch.backends.cudnn.enabled


def test_another_order_of_summation_is_no_difference() -> None:
    [finding] = told("device-parity", Simulated(ops=Ops(a_little, "addmm", "mm")))
    assert finding.status == "passed", finding
    assert "gradients to" in finding.summary


def test_one_wrong_entry_of_a_forward_kernel_names_the_module() -> None:
    [finding] = told("device-parity", Simulated(ops=Ops(one_entry, "addmm", shape=(8, 16))))
    assert (finding.status, finding.code) == ("violated", "device-differs")
    assert finding.culprits[0].name == "body"
    assert "from body on" in finding.summary
    assert finding.location is not None
    assert finding.location.file == __file__


def test_a_wrong_backward_kernel_names_the_parameter() -> None:
    [finding] = told("device-parity", Simulated(ops=Ops(one_entry, "mm", shape=(3, 16))))
    assert (finding.status, finding.code) == ("violated", "device-differs")
    assert "gradient head.weight" in finding.summary
    assert finding.culprits[0].kind == "parameter"


def test_a_wrong_running_statistic_names_the_buffer() -> None:
    class Counts(Net):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("centre", torch.ones(6))

        def forward(self, x):
            self.centre = self.centre.lerp(x.detach().mean(0), 0.5)
            return super().forward(x)

    layer = Simulated(ops=Ops(one_entry, "lerp"))
    [finding] = told("device-parity", layer, contract(Counts))
    assert "buffer centre" in finding.summary
    assert finding.culprits[0].kind == "buffer"


def test_a_kernel_that_gives_nan_is_told() -> None:
    nan = Ops(lambda out: out * float("nan"), "addmm", shape=(8, 3))
    [finding] = told("device-parity", Simulated(ops=nan))
    assert finding.code == "device-differs"


def _tf32(out):
    return out.detach().view(torch.int32).bitwise_and(-(1 << 13)).view(torch.float32)


def test_tf32_is_tried_where_it_is_promised_and_held_to_its_own_rounding() -> None:
    layer = Simulated(tf32=Ops(_tf32, "addmm", "mm"))
    promised = contract(promises=(promises.AllowsTF32(),))
    [finding] = told("device-parity", layer, promised)
    assert finding.status == "passed"
    assert "with TF32" in finding.summary
    wrong = Simulated(tf32=Ops(lambda out: out * 1.5, "addmm", "mm"))
    [finding] = told("device-parity", wrong, promised)
    assert finding.code == "device-differs"
    assert "with TF32" in finding.observed
    assert told("device-parity", wrong)[0].status == "passed"  # not promised, not tried


def test_a_model_that_amplifies_rounding_is_no_verdict() -> None:
    class Chaotic(Net):
        def forward(self, x):
            return torch.sin(super().forward(x) * 1e8)

    [finding] = told("device-parity", Simulated(), contract(Chaotic))
    assert (finding.status, finding.code) == ("inconclusive", "ill-conditioned")


def test_a_model_that_is_always_random_is_no_verdict() -> None:
    class Random(Net):
        def forward(self, x):
            return super().forward(x + torch.randn_like(x))

    assert told("device-parity", Simulated(), contract(Random))[0].code == "noisy"


# -- waiting -----------------------------------------------------------------------------------------


def _in_torch(source: str, names: dict[str, Any]) -> Any:
    """Make a function whose frame is torch's, as that of a kernel is no frame of the user's."""
    exec(compile(source, torch.__file__, "exec"), names)
    return names["item"]


_WARNS = """
def item(tensor):
    if mode[0]:
        warn("called a synchronizing CUDA operation (Triggered internally)")
    return original(tensor)
"""
_RAISES = """
def item(tensor):
    raise RuntimeError("operation not permitted when stream is capturing")
"""


@pytest.fixture
def watched(monkeypatch):
    """Torch's own watch, as it warns on a GPU."""
    mode = [0]
    original = torch.Tensor.item
    names = {"mode": mode, "original": original, "warn": warnings.warn, "__name__": "warnings"}
    item = _in_torch(_WARNS, names)

    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: mode[0])
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", lambda to: mode.__setitem__(0, {"warn": 1}.get(to, 0)))  # fmt: skip
    monkeypatch.setattr(torch.Tensor, "item", item)
    return mode


def test_lines_that_wait_are_told(watched) -> None:
    [finding] = told("host-syncs", accelerator.Cuda(), contract(Reads))
    assert (finding.status, finding.code) == ("suspicious", "device-sync")
    assert finding.location is not None
    assert ".item()" in finding.location.text
    assert watched == [0]


def adam(model):
    return torch.optim.Adam(
        model.parameters()
    )  # reads its own counters; on a GPU they lie on the host


def logs(model, optimizer, inputs, targets):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(*inputs), targets)
    loss.backward()
    optimizer.step()
    return loss.item()


def test_a_step_that_reads_its_loss_is_told(watched) -> None:
    [finding] = told("host-syncs", accelerator.Cuda(), contract(train_step=logs, optimizer=adam))
    assert "loss.item()" in finding.location.text


def test_nothing_that_waits_passes(watched) -> None:
    assert told("host-syncs", accelerator.Cuda())[0].status == "passed"


def test_precision_is_set_and_put_back() -> None:
    matmul, conv = torch.backends.cuda.matmul, torch.backends.cudnn.conv
    before = matmul.fp32_precision, conv.fp32_precision, torch.backends.cudnn.benchmark
    for tf32, name in ((False, "ieee"), (True, "tf32")):
        with accelerator.Cuda().precision(tf32=tf32):
            assert (matmul.fp32_precision, conv.fp32_precision) == (name, name)
    assert (matmul.fp32_precision, conv.fp32_precision, torch.backends.cudnn.benchmark) == before


@pytest.mark.parametrize("tf32", [False, True])
def test_a_model_may_read_the_old_flags_of_precision(tf32: bool) -> None:
    before = Precision.now()
    with accelerator.Cuda().precision(tf32=tf32):
        with torch.backends.cudnn.flags(enabled=False):  # what a second derivative of an RNN needs
            pass
        assert torch.backends.cudnn.allow_tf32 == torch.backends.cuda.matmul.allow_tf32 == tf32
        assert torch.get_float32_matmul_precision() == ("high" if tf32 else "highest")
    assert before == Precision.now()


# -- streams and graphs ------------------------------------------------------------------------------


def test_a_side_stream_that_changes_nothing_passes() -> None:
    [finding] = told("side-stream", Simulated())
    assert finding.status == "passed"
    assert "bit by bit" in finding.summary


def test_a_side_stream_that_is_not_waited_for_is_told() -> None:
    [finding] = told("side-stream", Simulated(stream=Ops(one_entry, "addmm", shape=(8, 3))))
    assert (finding.status, finding.code) == ("violated", "stream-differs")


class _Graph(contextlib.AbstractContextManager[None]):
    """Stands for ``torch.cuda.graph`` of a capture that is broken: its end raises, and leaves torch on its stream."""

    def __init__(self, graph: object, capture_error_mode: str) -> None:
        assert capture_error_mode == "thread_local"

    def __exit__(self, *_: object) -> None:
        torch.cuda.set_stream("capture")  # type: ignore[arg-type]
        GENERATORS[0].state = "capturing"
        raise RuntimeError("operation failed due to a previous error during capture")


class _Generator:
    state = "own"

    def clone_state(self) -> str:
        return self.state

    def graphsafe_set_state(self, state: str) -> None:
        self.state = state


GENERATORS = [_Generator()]


def test_a_capture_that_fails_leaves_stream_and_generator_as_they_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    streams: list[object] = ["own"]
    for name, fake in {
        "CUDAGraph": object,
        "graph": _Graph,
        "current_stream": lambda: streams[-1],
        "set_stream": streams.append,
        "default_generators": GENERATORS,
        "current_device": lambda: 0,
    }.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    layer = accelerator.Cuda()
    monkeypatch.setattr(layer, "other_stream", contextlib.nullcontext)
    with pytest.raises(RuntimeError, match="previous error"):
        layer.capture(lambda: None)
    assert streams == ["own", "capture", "own"]
    assert GENERATORS[0].state == "own"


CAPTURES = contract(promises=(promises.CapturesGraph(),))


def test_a_graph_that_computes_anew_passes() -> None:
    [finding] = told("graph-capture", Simulated(), CAPTURES)
    assert finding.status == "passed"


def test_a_graph_that_replays_old_results_is_told() -> None:
    [finding] = told("graph-capture", Simulated(capture=lambda run: lambda: None), CAPTURES)
    assert (finding.status, finding.code) == ("violated", "graph-stale")
    assert "that of the inputs at capture" in finding.summary


def test_what_cannot_be_captured_names_its_line() -> None:
    class Refuses(Simulated):
        def capture(self, run):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(torch.Tensor, "item", _in_torch(_RAISES, {}))
                run()

    declared = contract(Reads, promises=(promises.CapturesGraph(),))
    [finding] = told("graph-capture", Refuses(), declared)
    assert finding.code == "graph-not-captured"
    assert ".item()" in finding.location.text


def test_what_waits_is_not_captured_at_all() -> None:
    class Never(Simulated):
        def capture(self, run):
            raise AssertionError("a failed capture would stay in this process")

    place = sources.of_object(Reads.forward)
    waits = [accelerator.HostSync(location=place, message="called a synchronizing CUDA operation")]
    [finding] = told("graph-capture", Never(waits=waits), CAPTURES)
    assert (finding.status, finding.code) == ("violated", "graph-not-captured")
    assert finding.location == place


def test_constant_outputs_are_no_proof() -> None:
    class Constant(Net):
        def forward(self, x):
            return super().forward(x * 0)

    declared = contract(Constant, promises=(promises.CapturesGraph(),))
    [finding] = told("graph-capture", Simulated(), declared)
    assert (finding.status, finding.code) == ("inconclusive", "constant-output")


@pytest.mark.parametrize("name", ["device-parity", "host-syncs", "side-stream", "graph-capture"])
def test_without_a_gpu_nothing_of_it_passes(name) -> None:
    declared = contract(devices=("cpu", "cuda"), promises=(promises.CapturesGraph(),))
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    report = declared.check([name])
    assert [f.status for f in report.findings] == ["inconclusive"]
