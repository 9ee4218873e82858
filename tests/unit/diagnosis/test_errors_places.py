from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from provoke import each, explain, line
from torch import nn


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.pred = nn.Linear(4, 4)
        self.grid = torch.ones(2, 4)

    def forward(self, x):
        return self.pred(x) + self.grid


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = Head()

    def forward(self, x):
        return self.head(x)


@pytest.mark.parametrize("rerun", [True, False])
def test_a_plain_attribute_stays_behind(rerun):
    model, x = Detector().to("meta"), torch.randn(2, 4, device="meta")
    found = explain(lambda: model(x), model=model, batch=((x,), None), device="meta", rerun=rerun)
    assert found.code == "device-pair"
    assert found.summary == "head.grid stays on cpu when the model is moved to meta"
    assert found.location.line == line(Head, "self.grid = torch.ones")
    assert 'register_buffer("grid"' in found.fix


class Factory(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        steps = torch.arange(4)
        steps = steps.float()
        return self.fc(x) * steps


def test_a_tensor_made_without_a_device():
    model, x = Factory().to("meta"), torch.randn(2, 4, device="meta")
    found = explain(lambda: model(x), model=model, batch=((x,), None), device="meta")
    assert found.code == "device-pair"
    assert found.location.line == line(Factory, "torch.arange")
    assert found.culprits[0].name == "Factory.forward"
    assert "device=x.device" in found.fix


def test_an_input_that_was_not_moved():
    model, x = Detector().to("meta"), torch.randn(2, 4)
    found = explain(lambda: model(x), model=model, batch=((x,), None), device="meta")
    assert found.summary == "input x is on cpu, the model on meta"
    assert found.culprits[0].kind == "input"


CUDA_MESSAGES = [
    "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!",
    (
        "Expected all tensors to be on the same device, but got mat2 is on cpu, different from other tensors on cuda:0 "
        "(when checking argument in method wrapper_CUDA_bmm)"
    ),
    "Input type (torch.cuda.FloatTensor) and weight type (torch.FloatTensor) should be the same",
    "indices should be either on cpu or on the same device as the indexed tensor (cpu)",
]


@pytest.mark.parametrize(
    "message", [pytest.param(m, id=f"message{i}") for i, m in enumerate(CUDA_MESSAGES)]
)
def test_messages_of_a_gpu(message):
    def run():
        raise RuntimeError(message)

    assert explain(run, device="cuda", rerun=False).code == "device-pair"


def test_reading_values_and_missing_devices():
    z = torch.randn(1, device="meta")
    assert explain(z.item, device="meta").code == "host-sync"
    assert explain(lambda: bool(z > 0), device="meta").code == "host-sync"
    assert explain(z.numpy, device="meta").code == "numpy-on-device"
    assert (
        explain(lambda: nn.Linear(3, 2, device="meta").to("cpu"), device="meta").code
        == "meta-no-data"
    )
    if not torch.backends.cuda.is_built():
        assert explain(lambda: torch.zeros(1, device="cuda")).code == "device-hard-coded"


@pytest.mark.parametrize(
    "run",
    each(
        lambda: nn.Linear(3, 2)(torch.ones(2, 3).double()),
        lambda: nn.Linear(3, 2)(torch.ones(2, 3).long()),
        lambda: nn.Linear(3, 2).half()(torch.randn(2, 3)),
        lambda: nn.Conv2d(3, 8, 3)(torch.randn(2, 3, 8, 8).double()),
        lambda: nn.Conv2d(3, 8, 3)(torch.ones(2, 3, 8, 8, dtype=torch.uint8)),
        lambda: nn.LSTM(3, 2)(torch.randn(2, 2, 3).double()),
        lambda: nn.LayerNorm(4)(torch.randn(2, 4).double()),
        lambda: torch.randn(2, 3, 4) @ torch.randn(2, 4, 3).half(),
        lambda: torch.randn(3).index_put_((torch.tensor([0]),), torch.tensor([1.0]).half()),
        lambda: F.scaled_dot_product_attention(
            torch.randn(1, 2, 3, 4), torch.randn(1, 2, 3, 4).half(), torch.randn(1, 2, 3, 4)
        ),
    ),
)
@pytest.mark.parametrize("rerun", [True, False])
def test_dtype_pairs(run, rerun):
    found = explain(run, rerun=rerun)
    assert found.code == "dtype-pair"
    assert "float" in found.summary


class Positional(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        scale = torch.ones(4, 4)
        return self.fc(x) @ scale


def test_a_factory_with_the_default_dtype():
    model, x = Positional().double(), torch.randn(2, 4, dtype=torch.float64)
    found = explain(lambda: model(x), model=model, batch=((x,), None))
    assert found.code == "dtype-pair"
    assert found.location.line == line(Positional, "torch.ones")
    assert "dtype=x.dtype" in found.fix


def test_images_of_bytes():
    model, x = nn.Sequential(nn.Conv2d(3, 8, 3)), torch.ones(2, 3, 8, 8, dtype=torch.uint8)
    found = explain(lambda: model(x), model=model, batch=((x,), None))
    assert "/ 255" in found.fix


@pytest.mark.parametrize(
    ("run", "dtype"),
    [
        pytest.param(lambda: torch.linalg.inv(torch.eye(3).half()), "float16", id="half"),
        pytest.param(lambda: torch.ones(3).long().softmax(0), "int64", id="long"),
        pytest.param(lambda: torch.ones(3).long().mean(), "int64", id="mean"),
        pytest.param(lambda: torch.ones(3).long().norm(), "int64", id="norm"),
        pytest.param(lambda: F.dropout(torch.ones(3).long()), "int64", id="dropout"),
        pytest.param(lambda: (torch.ones(3) > 0) - (torch.ones(3) > 0), "bool", id="bool"),
    ],
)
def test_missing_kernels(run, dtype):
    found = explain(run)
    assert found.code == "kernel-missing"
    assert dtype in found.summary


def test_masks_of_numbers():
    found = explain(lambda: torch.randn(3).masked_fill(torch.ones(3), 0))
    assert found.code == "mask-dtype"


class Sparse(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(5, 3, sparse=True)

    def forward(self, ids):
        return self.table(ids)


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda p: torch.optim.Adam(p), id="adam"),
        pytest.param(lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.1), id="decay"),
    ],
)
def test_sparse_gradients(make):
    model = Sparse()
    optimizer = make(model.parameters())

    def run():
        model(torch.tensor([1])).sum().backward()
        optimizer.step()

    found = explain(run, phase="step", model=model)
    assert found.code == "sparse-gradient"
    assert found.location.line == line(Sparse, "sparse=True")
    assert found.culprits[0].name == "table"


def test_dense_gradients_for_sparse_adam_and_closures():
    model = nn.Linear(2, 2)
    model.weight.grad = torch.ones(2, 2)
    assert (
        explain(torch.optim.SparseAdam([model.weight]).step, phase="step").code == "sparse-gradient"
    )
    step = torch.optim.LBFGS(model.parameters()).step
    assert explain(step, phase="step").code == "closure-missing"
    assert explain(lambda: torch.optim.SGD([], lr=0.1), phase="step").code == "optimizer-parameters"
    leaf = torch.randn(3, requires_grad=True) * 2
    assert (
        explain(lambda: torch.optim.SGD([leaf], lr=0.1), phase="step").code
        == "optimizer-parameters"
    )


class Lazy(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.LazyLinear(3)


def test_lazy_parameters():
    model = Lazy()
    found = explain(lambda: sum(p.numel() for p in model.parameters()), phase="build", model=model)
    assert found.code == "lazy-parameter"
    assert "fc.weight" in found.summary
    assert (
        explain(lambda: model.fc.weight.shape, phase="build", model=model).code == "lazy-parameter"
    )


class Two(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Linear(2, 2)
        self.head = nn.Linear(2, width)


def test_state_dicts_of_another_size():
    model, saved = Two(width=3), Two(width=4).state_dict()
    found = explain(lambda: model.load_state_dict(saved), phase="build", model=model)
    assert found.code == "state-dict-size"
    assert "head.weight is 3x2 in Two and 4x2 in the checkpoint" in found.summary
    assert found.location.line == line(Two, "self.head")


class Late(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mask", None)


def test_a_key_that_is_registered_as_none():
    model, grown = Late(), Late()
    grown.mask = torch.ones(2)
    found = explain(lambda: model.load_state_dict(grown.state_dict()), phase="build", model=model)
    assert found.code == "state-dict-keys"
    assert "registered as None" in found.cause
    assert "persistent=False" in found.fix
    assert found.location.line == line(Late, "register_buffer")


def test_state_dicts_with_other_keys():
    model, saved = Two(3), Two(3).state_dict()
    wrapped = {f"module.{key}": value for key, value in saved.items()}
    found = explain(lambda: model.load_state_dict(wrapped), phase="build", model=model)
    assert found.code == "state-dict-keys"
    assert "DataParallel" in found.cause
    assert "strip the prefix 'module.'" in found.fix
    part = {key: value for key, value in saved.items() if "head" not in key}
    found = explain(lambda: model.load_state_dict(part), phase="build", model=model)
    assert "2 keys are missing, 0 unexpected (head.weight)" in found.summary
    found = explain(
        lambda: model.load_state_dict({**saved, "old": saved["head.bias"]}), phase="build"
    )
    assert "unexpected: old" in found.observed
    assert copy.copy(found) == found


class Takes(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(2, 2)

    def forward(self, tokens, mask):
        return self.fc(tokens)


def test_arguments_of_forward():
    model, x = Takes(), torch.randn(2, 2)
    found = explain(lambda: model(x), model=model, batch=((x,), None))
    assert found.code == "forward-arguments"
    assert "mask is not given" in found.cause
    assert "the contract gives tokens" in found.observed
    assert found.location.line == line(Takes, "def forward")
    found = explain(lambda: model(x, masks=x), model=model, batch=({"tokens": x, "masks": x}, None))
    assert "mask" in found.fix
    found = explain(lambda: model(x, x, x), model=model, batch=((x, x, x), None))
    assert "forward takes 2 inputs, 3 are given" in found.cause
    assert explain(lambda: model(x, tokens=x), model=model).code == "forward-arguments"


class Misspelt(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(2, 2)

    def foward(self, x):
        return self.fc(x)


class NoSuper(nn.Module):
    def __init__(self):
        self.fc = nn.Linear(2, 2)


class Stacked(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(2, 2)])

    def forward(self, x):
        return self.layers(x)


def test_modules_that_cannot_be_called():
    model = Misspelt()
    found = explain(lambda: model(torch.randn(1, 2)), model=model)
    assert found.code == "forward-missing"
    assert "foward" in found.summary
    assert found.location.line == line(Misspelt, "def foward")
    found = explain(NoSuper, phase="build")
    assert found.code == "super-init-missing"
    assert found.location.line == line(NoSuper, "self.fc")
    model = Stacked()
    found = explain(lambda: model(torch.randn(1, 2)), model=model)
    assert found.code == "forward-missing"
    assert found.culprits[0].name == "layers"


class Names(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(2, 2)

    def forward(self, x):
        return self.encoderr(x)


def test_names_and_types():
    model, x = Names(), torch.randn(1, 2)
    found = explain(lambda: model(x), model=model)
    assert found.code == "attribute-missing"
    assert "did you mean 'encoder'?" in found.summary
    model = nn.Sequential(nn.LSTM(2, 2), nn.Linear(2, 2))
    found = explain(lambda: model(torch.randn(3, 3, 2)), model=model)
    assert found.code == "not-a-tensor"
    assert "0 is a LSTM, which returns a tuple" in found.because
    assert explain(lambda: model[1](None), model=model).code == "not-a-tensor"

    assert "from_numpy" in explain(lambda: model[1](np.ones((2, 2))), model=model).fix
    assert "tuple" in explain(lambda: (x, x).shape).cause


def test_tensors_as_scalars_and_distributions():
    assert explain(lambda: bool(torch.randn(2) > 0)).code == "tensor-as-scalar"
    assert explain(lambda: torch.randn(2).item()).code == "tensor-as-scalar"
    found = explain(
        lambda: torch.distributions.Normal(torch.zeros(1), -torch.ones(1), validate_args=True)
    )
    assert found.code == "distribution-parameters"
    nan = torch.tensor([float("nan"), 1.0])
    found = explain(lambda: torch.distributions.Categorical(logits=nan, validate_args=True))
    assert "not finite" in found.summary
    assert (
        explain(lambda: torch.multinomial(torch.tensor([-1.0, 2.0]), 1)).code
        == "distribution-parameters"
    )


def test_out_of_memory():
    model, x = nn.Sequential(nn.Linear(3000, 3000)), torch.zeros(2, 2)
    found = explain(lambda: torch.empty(10**15), model=model, batch=((x,), None), rerun=False)
    assert found.code == "out-of-memory"
    assert "(3.6 PiB more)" in found.summary
    assert "0.weight float32 [3000, 3000] 34.3 MiB" in found.because
    assert found.evidence["largest tensors"][0]["memory"] == "34.3 MiB"
    message = (
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which "
        "1.20 GiB is free. Including non-PyTorch memory, this process has 77.00 GiB memory in use."
    )
    error = torch.OutOfMemoryError(message)
    found = explain(lambda: None, error=error, phase="backward", device="cuda", rerun=False)
    assert "(2.0 GiB more)" in found.summary
    assert "1.20 GiB of 79.10 GiB was free" in found.cause


def device_assert(device=None):
    if device is None:
        raise RuntimeError(
            "CUDA error: device-side assert triggered\nCUDA kernel errors might be reported later"
        )
    return F.cross_entropy(torch.randn(6, 3), torch.tensor([1, 2, 3, 1, 2, 3]))


def test_a_device_side_assert_is_explained_by_the_cpu():
    found = explain(device_assert, phase="loss", device="cuda")
    assert found.code == "label-range"
    assert found.cause == "labels start at 1"
    assert "CUDA reported a device-side assert" in found.because
    found = explain(lambda: device_assert(), phase="loss", device="cuda")
    assert found.code == "device-assert"


def test_cuda_libraries():
    def run(device=None):
        if device is None:
            raise RuntimeError(
                "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm`"
            )
        return F.embedding(torch.tensor([7]), torch.randn(3, 2))

    assert explain(run, device="cuda").code == "embedding-range"
    found = explain(lambda: run(), device="cuda")
    assert found.code == "cuda-library"
    error = RuntimeError("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear if you passed in a "
                         "non-contiguous input.")  # fmt: skip
    assert "contiguous" in explain(lambda: None, error=error, device="cuda", rerun=False).fix
    error = RuntimeError(
        "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, ..."
    )
    assert explain(lambda: None, error=error, phase="data", rerun=False).code == "cuda-forked"


def own_error(x):
    raise ValueError(f"sequence too long: {x.shape[0]}")


class Unknown(nn.Module):
    def forward(self, x):
        own_error(x)


def test_an_unknown_error_says_what_is_certain():
    model = nn.Sequential(Unknown())
    found = explain(lambda: model(torch.randn(2, 3)), model=model)
    assert found.code == "crash"
    assert found.summary == "the forward pass raises ValueError in 0: sequence too long: 2"
    assert found.location.line == line(own_error, "raise")
    assert found.culprits[0].name == "0"


def wrapping():
    try:
        torch.randn(2, 3) @ torch.randn(4, 5)
    except RuntimeError as error:
        raise RuntimeError("my model failed") from error


def test_an_error_that_wraps_one_of_torch():
    found = explain(wrapping)
    assert found.code == "matmul-shapes"
    assert found.location.line == line(wrapping, "torch.randn(2, 3)")
