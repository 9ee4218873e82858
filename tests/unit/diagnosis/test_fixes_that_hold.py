"""A fix is one that holds: names in reach, sizes as they are declared, and nothing that would mix or break what it mends."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pytest_torchcheck import Contract, Finding, Ints, Labels, Tokens

CLASSES: dict[str, Any] = {"targets": Labels("B", classes=3), "loss": F.cross_entropy}


def told(model: Any, check: str, **fields: Any) -> Finding:
    wrong = [
        f
        for f in Contract(model=model, **{**CLASSES, **fields}).check([check]).findings
        if f.status in ("violated", "suspicious")
    ]
    return wrong[0]


class Pooled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(2, 5, 3), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.adaptive_max_pool2d(self.conv(x), 1).squeeze())


def test_squeeze_names_every_dimension_but_that_of_the_samples() -> None:
    found = told(Pooled, "batch-sizes", inputs="B 2 8 8")
    assert found.fix.startswith("name the dimension: .squeeze((2, 3)) instead of .squeeze()")
    assert found.fix.endswith("tried: the check passes with it")


class Copies(nn.Module):
    """Scores several copies of each sample."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(5, 4), nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x)
        return self.head(h.repeat(3, 1).view(len(x), 12))


def test_repeat_becomes_repeat_interleave() -> None:
    found = told(Copies, "batch-independence", inputs="B 5")
    assert found.fix.startswith("write .repeat_interleave(3, 0) instead of .repeat(3, 1)")
    assert "tried: the check passes" in found.fix


class Half(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.key, self.head = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, seq: Tensor) -> Tensor:
        scores = (self.key(seq) @ seq.mT).half()
        ahead = torch.ones_like(scores, dtype=torch.bool).triu(1)
        weights = scores.masked_fill(ahead, -1e8).softmax(-1)
        return self.head((weights.float() @ seq).mean(1))


def test_a_mask_is_filled_with_the_lowest_number_of_a_tensor_in_reach() -> None:
    found = told(Half, "backward", inputs="B 5 6")
    assert found.fix.startswith("write torch.finfo(scores.dtype).min instead of -1e8")
    assert "tried: the check passes" in found.fix


class Prefixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token, self.head = nn.Parameter(torch.randn(1, 1, 6)), nn.Linear(6, 3)

    def forward(self, parts: Tensor) -> Tensor:
        both = torch.cat([self.token.expand(32, 1, 6), parts], dim=1)
        return self.head(both.mean(1))


def test_a_number_of_samples_that_is_written_in_is_named() -> None:
    found = told(Prefixed, "backward", inputs="B 4 6")
    assert found.fix.startswith("write len(parts) instead of 32")
    assert "interpolate" not in found.fix
    assert "tried: the check passes" in found.fix


def weighted(o: Tensor, t: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(o, t.float(), pos_weight=torch.ones(5))


def test_weights_of_a_loss_are_named() -> None:
    found = told(
        lambda: nn.Linear(4, 6),
        "backward",
        inputs="B 4",
        targets=Ints("B 6", high=2),
        loss=weighted,
    )
    assert (found.code, found.fix.startswith("give pos_weight=")) == ("class-weights", True)


class Located(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 6)
        self.places = nn.Embedding(6, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head((self.words(ids) + self.places(torch.arange(ids.shape[1]))).mean(1))


def test_a_table_is_made_for_the_largest_declared_length() -> None:
    found = told(Located, "backward", inputs=Tokens("B N", vocab=20), sizes={"N": (5, 21)})
    assert found.fix.startswith("write num_embeddings=21 or more instead of 6")


class Patches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cut, self.head = nn.Conv2d(3, 8, 4, 4), nn.Linear(8, 3)
        self.grid = nn.Parameter(torch.zeros(1, 9, 8))

    def forward(self, image: Tensor) -> Tensor:
        return self.head((self.cut(image).flatten(2).mT + self.grid).mean(1))


def test_a_side_that_follows_another_one_is_no_size_of_its_own() -> None:
    found = told(Patches, "backward", inputs="B 3 H W", sizes={"H": (12, 24, 4), "W": "H"})
    assert found.fix.startswith("build grid on line")
    assert "declare H=12 (tried: the forward runs)" in found.fix


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.head = nn.Linear(6, 18), nn.Linear(6, 3)
        self.register_buffer("future", torch.full((7, 7), float("-inf")).triu(1))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.head(F.scaled_dot_product_attention(q, k, v, attn_mask=self.future).mean(1))


def test_a_mask_of_the_model_is_no_input() -> None:
    found = told(Masked, "backward", inputs="B 9 6")
    assert "it is future, a buffer of the model" in found.cause


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.kind, self.size = nn.Linear(5, 8), nn.Linear(8, 3), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Any:
        # fmt: off
        h = self.body(x).tanh(); return self.kind(h), self.size(h)  # noqa: E702
        # fmt: on


def test_of_two_statements_on_a_line_none_is_blamed() -> None:
    found = told(Two, "gradients-exist", inputs="B 5", loss=lambda o, t: F.cross_entropy(o[0], t))
    assert "never read" not in found.cause


def test_a_dropout_that_drops_all_is_the_cause() -> None:
    def net() -> nn.Module:
        return nn.Sequential(nn.Linear(5, 8), nn.Dropout(1.0), nn.Tanh(), nn.Linear(8, 3))

    found = told(net, "gradients-exist", inputs="B 5")
    assert found.cause.startswith("a dropout sets every value")


def spoken(o: Tensor, t: Tensor) -> Tensor:
    many = len(o)
    return F.ctc_loss(o.log_softmax(-1), t, torch.full((many,), o.shape[1]), torch.full((many,), 2))


def test_log_probabilities_with_the_samples_first() -> None:
    fields: dict[str, Any] = {
        "inputs": "B 11 5",
        "targets": Ints("B 2", low=1, high=6),
        "loss": spoken,
    }
    found = told(lambda: nn.Linear(5, 6), "backward", **fields)
    assert (found.code, "transpose(0, 1)" in found.fix) == ("target-shape", True)


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.both, self.head = nn.Linear(6, 12), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        many, length, _ = x.shape
        k, v = self.both(x).chunk(2, -1)
        k, v = (one.view(many, 2, length, 3) for one in (k, v))
        made = F.scaled_dot_product_attention(k, k, v)
        return self.head(made.transpose(1, 2).reshape(many, length, 6).mean(1))


def test_no_reshape_is_advised_that_would_mix_elements() -> None:
    found = told(Heads, "backward", inputs="B 7 6")
    assert found.code == "view-not-contiguous"
    assert ".reshape" not in found.fix
    assert ".transpose(1, 2) after it" in found.fix


def test_a_broadcast_is_one_cause() -> None:
    contract = Contract(model=lambda: nn.Linear(5, 1), inputs="B 5", targets="B", loss=F.mse_loss)
    report = contract.check(["loss-shapes", "target-ownership"])
    assert [f.code for f in report.findings if f.status in ("violated", "suspicious")] == [
        "loss-broadcast"
    ]


class Timed(nn.Linear):
    """Scales its input by what the clock says."""

    def __init__(self) -> None:
        super().__init__(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x * (1 + time.perf_counter() % 1))


def test_what_no_seed_decides_is_no_memory_and_no_generator_by_itself() -> None:
    found = told(Timed, "seeding", inputs="B 5")
    assert "reads a value that differs from one forward to the next" in found.cause
    assert "empty" not in found.fix


def clipped(limit: float) -> Any:
    def step(model: Any, optimizer: Any, inputs: Any, targets: Any) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(*inputs), targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), limit)
        optimizer.step()
        return loss.detach()

    return step


@pytest.mark.parametrize("limit", [1e-8])
def test_a_limit_that_leaves_no_gradient_is_named(limit: float) -> None:
    found = told(
        lambda: nn.Linear(5, 3), "weights-update", inputs="B 5", loss=None, train_step=clipped(limit),
        optimizer=lambda m: torch.optim.SGD(m.parameters(), 0.1),
    )  # fmt: skip
    assert "clip_grad_norm_ with the limit 1e-08" in found.cause
    assert "order the calls" not in found.fix
