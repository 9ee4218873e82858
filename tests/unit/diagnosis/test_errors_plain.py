"""Messages that a row of the table explains: each is provoked on the installed torch, and each row by one at least."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from provoke import error_of, explain
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from pytest_torchcheck.diagnosis.entries.plain import ROWS

if TYPE_CHECKING:
    from collections.abc import Callable

SEQUENCES, LOG_PROBS = torch.randn(2, 3, 4), torch.randn(5, 2, 4).log_softmax(-1)
WHOLE = torch.full((2,), 5)


def _sgd() -> torch.optim.Optimizer:
    return torch.optim.SGD([nn.Parameter(torch.randn(3))], lr=0.1)


def _one_cycle() -> None:
    optimizer = _sgd()
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1.0, total_steps=2)
    for _ in range(3):
        optimizer.step()
        scheduler.step()


def _twice_unscaled() -> None:
    weight = nn.Parameter(torch.randn(3))
    optimizer, scaler = torch.optim.SGD([weight], lr=0.1), torch.amp.GradScaler("cpu")
    scaler.scale(weight.sum()).backward()
    scaler.unscale_(optimizer)
    scaler.unscale_(optimizer)


def _infinite_norm() -> None:
    weight = nn.Parameter(torch.zeros(3))
    weight.sqrt().sum().backward()
    nn.utils.clip_grad_norm_([weight], 1.0, error_if_nonfinite=True)


def _other_state() -> None:
    layers = nn.Linear(3, 4), nn.Linear(3, 4, bias=False)
    first, second = (torch.optim.Adam(layer.parameters()) for layer in layers)
    first.load_state_dict(second.state_dict())


def _assigned(name: str, value: Any) -> Callable[[], None]:
    return lambda: setattr(nn.BatchNorm1d(3), name, value)


PROVOKED: dict[str, tuple[str, Callable[[], object], str]] = {
    "cholesky": ("matrix-singular", lambda: torch.linalg.cholesky(-torch.eye(3)), "eps"),
    "inverse": ("matrix-singular", lambda: torch.linalg.inv(torch.zeros(3, 3)), "given to inv is singular"),
    "solve": ("matrix-singular", lambda: torch.linalg.solve(torch.zeros(3, 3), torch.randn(3)), "given to solve is singular"),
    "svd": ("matrix-singular", lambda: torch.linalg.svd(torch.full((3, 3), torch.nan)), "svd does not converge"),
    "topk": ("size-argument", lambda: torch.randn(3, 4).topk(5), "min(k"),
    "unfold": ("size-argument", lambda: torch.randn(3, 4).unfold(1, 5, 1), "windows of 5 along dimension 1, which has size 4"),
    "multinomial": ("size-argument", lambda: torch.multinomial(torch.ones(2), 3), "replacement=True"),
    "output_size": ("size-argument", lambda: nn.ConvTranspose2d(3, 4, 3, 2)(torch.randn(1, 3, 4, 4), output_size=(20, 20)), "[9, 9] to [10, 10]"),
    "interpolate": ("size-argument", lambda: F.interpolate(torch.randn(2, 3, 4), size=(8, 8)), "[4] and a size (8, 8)"),
    "mode": ("size-argument", lambda: F.interpolate(torch.randn(2, 3, 4, 4), scale_factor=2, mode="linear"), "needs 3 dimensions, got 4"),
    "fold": ("size-argument", lambda: F.fold(torch.randn(1, 12, 5), (4, 4), 2), "needs 3 * 3 = 9 blocks, got 5"),
    "pad": ("size-argument", lambda: F.pad(torch.randn(2, 3, 4), (1,) * 6, mode="reflect"), "6 numbers for 3 dimensions"),
    "cdist": ("sizes-differ", lambda: torch.cdist(torch.randn(3, 4), torch.randn(3, 5)), "of 4 and of 5"),
    "grid_sample": ("sizes-differ", lambda: F.grid_sample(torch.randn(1, 3, 4, 4), torch.randn(2, 4, 4, 2), align_corners=False), "[2, 4, 4, 2]"),
    "index_add": ("sizes-differ", lambda: torch.zeros(3, 4).index_add_(0, torch.tensor([0, 1]), torch.randn(3, 4)), "2 indices for 3 rows"),
    "gather": ("sizes-differ", lambda: torch.randn(3, 4).gather(1, torch.tensor([0, 1, 2])), "unsqueeze"),
    "margins": ("sizes-differ", lambda: F.multilabel_margin_loss(torch.randn(3, 4), torch.zeros(3, 3).long()), "[3, 3] for an output [3, 4]"),
    "tensor_dataset": ("sizes-differ", lambda: torch.utils.data.TensorDataset(torch.randn(3), torch.randn(4)), "different lengths"),
    "random_split": ("sizes-differ", lambda: torch.utils.data.random_split([1, 2, 3], [2, 2]), "do not add up"),
    "unsorted": ("sequence-lengths", lambda: pack_padded_sequence(SEQUENCES, torch.tensor([2, 3]), batch_first=True), "enforce_sorted=False"),
    "empty_sequence": ("sequence-lengths", lambda: pack_padded_sequence(SEQUENCES, torch.tensor([2, 0]), batch_first=True), "clamp(min=1)"),
    "too_few_lengths": ("sequence-lengths", lambda: pack_padded_sequence(SEQUENCES, torch.tensor([3]), batch_first=True), "1 lengths for 2"),
    "lengths_elsewhere": ("sequence-lengths", lambda: pack_padded_sequence(SEQUENCES, torch.tensor([3, 2], device="meta"), batch_first=True), "pass lengths.cpu()"),
    "ctc_inputs": ("sequence-lengths", lambda: F.ctc_loss(LOG_PROBS, torch.ones(2, 3).long(), WHOLE + 1, WHOLE - 3), "length of 6 where there are 5"),
    "ctc_targets": ("sequence-lengths", lambda: F.ctc_loss(LOG_PROBS, torch.ones(2, 3).long(), WHOLE, WHOLE - 1), "length of 4 for targets of 3"),
    "stack": ("empty-input", lambda: torch.stack([]), "empty list"),
    "cat": ("empty-input", lambda: torch.cat([]), "empty list"),
    "max": ("empty-input", lambda: torch.randn(0).max(), "max received an empty tensor"),
    "cat_numbers": ("zero-dimensional", lambda: torch.cat([torch.tensor(1.0), torch.tensor(2.0)]), "torch.stack"),
    "len": ("zero-dimensional", lambda: len(torch.tensor(1.0)), "squeeze(dim)"),
    "iterate": ("zero-dimensional", lambda: list(torch.tensor(1.0)), "squeeze(dim)"),
    "flipped": ("array-conversion", lambda: torch.from_numpy(np.ones(3)[::-1]), ".copy()"),
    "objects": ("array-conversion", lambda: torch.from_numpy(np.array([None, 1], dtype=object)), "object_"),
    "texts": ("array-conversion", lambda: torch.tensor(np.array(["a"])), "str_"),
    "ragged": ("array-conversion", lambda: torch.tensor([[1, 2], [3]]), "length 2 and 1"),
    "a_list": ("array-conversion", lambda: torch.from_numpy([1, 2]), "as_tensor"),
    "total_steps": ("scheduler-step", _one_cycle, "created for 2"),
    "plateau": ("scheduler-step", lambda: torch.optim.lr_scheduler.ReduceLROnPlateau(_sgd()).step(), "validation loss"),
    "unscaled": ("scaler-order", lambda: torch.amp.GradScaler("cpu").unscale_(_sgd()), "before it has scaled a loss"),
    "unscaled_twice": ("scaler-order", _twice_unscaled, "once per step"),
    "infinite_norm": ("gradients-non-finite", _infinite_norm, "gradients-finite"),
    "other_state": ("state-groups", _other_state, "saved for different parameters"),
    "no_parameter": ("parameter-assigned", _assigned("weight", torch.randn(3)), "nn.Parameter"),
    "no_buffer": ("parameter-assigned", _assigned("running_mean", 3), "torch.tensor"),
    "exists": ("parameter-assigned", lambda: nn.Linear(3, 4).register_buffer("weight", None), "another name"),
    "one_tensor": ("optimizer-parameters", lambda: torch.optim.SGD(torch.randn(3), lr=0.1), "model.parameters()"),
    "a_module": ("optimizer-parameters", lambda: torch.optim.Adam(nn.Linear(3, 4), lr=0.1), "parameters()"),
    "layers": ("optimizer-parameters", lambda: torch.optim.Adam(nn.Sequential(nn.Linear(3, 4))), "received Linear where"),
    "no_weight": ("distribution-parameters", lambda: torch.multinomial(torch.zeros(2), 1), "all zero"),
    "bernoulli": ("distribution-parameters", lambda: torch.bernoulli(torch.tensor([2.0])), "sigmoid"),
    "normal": ("distribution-parameters", lambda: torch.normal(0.0, torch.tensor([-1.0])), "softplus"),
    "variance": ("distribution-parameters", lambda: F.gaussian_nll_loss(torch.ones(3), torch.ones(3), -torch.ones(3)), "softplus"),
    "one_hot": ("index-dtype", lambda: F.one_hot(torch.ones(3)), ".long()"),
    "deviation": ("kernel-missing", lambda: torch.ones(2).long().var(), ".float()"),
    "inverted": ("kernel-missing", lambda: ~torch.ones(2), "mask.bool()"),
    "power": ("kernel-missing", lambda: torch.tensor([2]) ** -1, ".float()"),
    "rectified": ("kernel-missing", lambda: torch.ones(2, dtype=torch.complex64).relu(), ".abs()"),
    "fractional_lengths": ("sequence-lengths", lambda: F.ctc_loss(torch.zeros(5, 1, 3), torch.ones(1, 2).long(), torch.ones(1), torch.ones(1).long()), ".long()"),
    "counted_lengths": ("target-shape", lambda: F.ctc_loss(torch.zeros(2, 5, 3), torch.ones(2, 2).long(), torch.full((2,), 5), torch.full((2,), 2)), "transpose(0, 1)"),
    "first_samples": ("target-shape", lambda: F.ctc_loss(torch.zeros(2, 5, 3), torch.ones(2, 2).long(), torch.full((5,), 2), torch.full((5,), 2)), "transpose(0, 1)"),
    "filled": ("size-argument", lambda: torch.zeros(3).index_fill(0, torch.tensor([1]), torch.ones(1)), "index_copy"),
    "scatter": ("dtype-pair", lambda: torch.zeros(3, 4).scatter_(1, torch.tensor([[0, 1]]), torch.randn(2, 2).double()), "convert its result to the dtype"),
    "half": ("value-overflow", lambda: torch.ones(3).half().masked_fill(torch.ones(3).bool(), -1e9), "finfo"),
    "byte": ("value-overflow", lambda: torch.tensor([300], dtype=torch.uint8), "0 to 255"),
}  # fmt: skip


@pytest.mark.parametrize("name", PROVOKED)
def test_explained(name: str) -> None:
    code, run, words = PROVOKED[name]
    found = explain(run, phase="step")
    assert found.code == code
    assert words in f"{found.summary} {found.cause} {found.fix}", found
    assert "{" not in f"{found.summary} {found.cause} {found.fix}", found
    assert found.location is not None


def test_every_row_is_provoked() -> None:
    messages = [str(error_of(run)) for _, run, _ in PROVOKED.values()]
    assert [row for row in ROWS if not any(re.search(row.pattern, text) for text in messages)] == []


class Adds(nn.Module):
    """Adds to its input what a part gives."""

    def __init__(self, part: nn.Module | None) -> None:
        super().__init__()
        self.part = part

    def forward(self, x: Tensor) -> Tensor:
        update = self.part(x)
        return x + update


class Silent(nn.Module):
    def forward(self, x: Tensor) -> None:
        y = torch.relu(x)
        y.mul_(2)  # the last line


@pytest.mark.parametrize(
    ("part", "line", "words"),
    [
        (Silent(), "y.mul_(2)  # the last line", "Silent.forward returns nothing"),
        (nn.LSTM(4, 4), "update = self.part(x)", "several results"),
        (None, "update = self.part(x)", "an attribute that was not set"),
    ],
    ids=["without-return", "several", "not-built"],
)
def test_operands_of_another_kind(part: nn.Module | None, line: str, words: str) -> None:
    model = Adds(part)
    found = explain(lambda: model(torch.randn(3, 4)), model=model)
    assert found.code == "wrong-operand"
    assert found.location is not None
    assert found.location.text == line
    assert words in found.cause


def test_errors_of_other_kinds_are_left_alone() -> None:
    """A number and a text, whatever they are, tell nothing of tensors."""
    assert explain(lambda: 1 + "a").code == "crash"  # type: ignore[operator]
