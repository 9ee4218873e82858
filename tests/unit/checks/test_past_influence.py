"""Positions that no later one reads are found; local, strided, lagged and position-wise models are sound."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pytest_torchcheck import Contract, Finding, Ints, promises

CHECKS = ["causality", "past-influence"]


class Mixer(nn.Module):
    """Tokens, something that mixes positions, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.qkv, self.head = nn.Embedding(11, 8), nn.Linear(8, 24), nn.Linear(8, 11)
        self.build()

    def build(self) -> None:
        """Make what a subclass needs."""

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        return self.head(x + self.mix(x))

    def attend(self, x: Tensor, visible: Tensor) -> Tensor:
        query, key, value = self.qkv(x).chunk(3, -1)
        return F.scaled_dot_product_attention(query, key, value, attn_mask=visible)

    def mix(self, x: Tensor) -> Tensor:
        raise NotImplementedError


def places(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the position of each query, as a column, and of each key, as a row."""
    index = torch.arange(x.shape[1])
    return index[:, None], index[None]


class CachedChunks(Mixer):
    """Reads chunks of four with all keys so far; the mask is left to ``is_causal``."""

    aligned = False

    def mix(self, x: Tensor) -> Tensor:
        outputs, keys, values = [], x[:, :0], x[:, :0]
        for part in self.qkv(x).split(4, dim=1):
            query, key, value = part.chunk(3, -1)
            keys, values = torch.cat([keys, key], 1), torch.cat([values, value], 1)
            if self.aligned:
                ones = torch.ones(query.shape[1], keys.shape[1], dtype=torch.bool)
                visible = ones.tril(keys.shape[1] - query.shape[1])
                outputs.append(F.scaled_dot_product_attention(query, keys, values, visible))
            else:
                outputs.append(F.scaled_dot_product_attention(query, keys, values, is_causal=True))
        return torch.cat(outputs, 1)


class AlignedChunks(CachedChunks):
    aligned = True


class OldestMemory(Mixer):
    """Each step reads a memory of four entries, from which the newest one is dropped when it is full."""

    newest = False

    def mix(self, x: Tensor) -> Tensor:
        memory: list[Tensor] = []
        outputs = []
        for step in x.unbind(1):
            seen = torch.stack([*memory, torch.zeros_like(step)])
            outputs.append(torch.tanh(self.qkv(seen.sum(0))[..., :8]))
            memory = [*memory, step][-4:] if self.newest else [*memory, step][:4]
        return torch.stack(outputs, 1)


class NewestMemory(OldestMemory):
    newest = True


class Blocks(Mixer):
    def mix(self, x: Tensor) -> Tensor:
        query, key = places(x)
        return self.attend(x, (query >= key) & (query // 4 == key // 4))


class Strided(Mixer):
    def mix(self, x: Tensor) -> Tensor:
        query, key = places(x)
        return self.attend(x, (query >= key) & ((query - key) % 4 == 0))


class Lagged(Mixer):
    def mix(self, x: Tensor) -> Tensor:
        return F.pad(x, (0, 0, 5, 0))[:, : x.shape[1]].tanh()


class Patches(Mixer):
    def build(self) -> None:
        self.patch = nn.Conv1d(8, 8, 4, stride=4)

    def mix(self, x: Tensor) -> Tensor:
        before = F.pad(x.mT, (4, 0))[..., : x.shape[1]]
        return self.patch(before).repeat_interleave(4, -1).mT


class Alone(Mixer):
    def mix(self, x: Tensor) -> Tensor:
        return x.tanh()


class GatedAtZero(Mixer):
    def build(self) -> None:
        self.gate = nn.Parameter(torch.zeros(8))

    def mix(self, x: Tensor) -> Tensor:
        query, key = places(x)
        return self.gate * self.attend(x, query >= key)


class Recurrent(Mixer):
    def build(self) -> None:
        self.layer = nn.GRU(8, 8, batch_first=True)

    def mix(self, x: Tensor) -> Tensor:
        return self.layer(x)[0]


class Steps(Mixer):
    """Calls a recurrent cell for each position."""

    carry = False

    def build(self) -> None:
        self.cell = nn.LSTMCell(8, 8)

    def mix(self, x: Tensor) -> Tensor:
        state = (torch.zeros_like(x[:, 0]), torch.zeros_like(x[:, 0]))
        outputs = []
        for step in x.unbind(1):
            new = self.cell(step, state)  # HERE
            outputs.append(new[0])
            state = new if self.carry else state
        return torch.stack(outputs, 1)


class CarriedSteps(Steps):
    carry = True


class Rectified(Mixer):
    """Works on each position alone, in a loop that gives zeros to a function of torch's."""

    def mix(self, x: Tensor) -> Tensor:
        zero = torch.zeros_like(x[:, 0])
        return torch.stack([torch.maximum(step, zero) for step in x.unbind(1)], 1)


def judge(model: nn.Module, length: int = 16) -> Finding:
    contract = Contract(
        model=model,
        inputs=Ints(f"B {length}", low=0, high=11),
        promises=[promises.Causal()],
    )
    report = contract.check(CHECKS)
    assert not [f for f in report.findings if f.check == "causality" and f.status == "violated"]
    return next(f for f in report.findings if f.check == "past-influence")


@pytest.mark.parametrize("model", [CachedChunks, OldestMemory])
def test_positions_that_nothing_reads_are_found(model: type[nn.Module]) -> None:
    found = judge(model())
    assert (found.status, found.code) == ("violated", "past-unread")


def test_causal_attention_beside_a_cache_is_the_line_and_the_cause() -> None:
    found = judge(CachedChunks())
    assert found.location is not None
    assert "is_causal=True" in found.location.text
    assert "counts queries and keys from the first key" in found.cause
    assert "4 queries and 8 keys" in found.because


@pytest.mark.parametrize("length", [8, 13, 16])
@pytest.mark.parametrize(
    "model",
    [
        AlignedChunks,
        NewestMemory,
        Blocks,
        Strided,
        Lagged,
        Alone,
        GatedAtZero,
        Recurrent,
        CarriedSteps,
        Rectified,
    ],
)
def test_sound_models_are_not_blamed(model: type[nn.Module], length: int) -> None:
    assert judge(model(), length).status in ("passed", "inconclusive")


def test_patches_are_not_blamed() -> None:
    assert judge(Patches()).status == "passed"


def test_steps_that_each_begin_with_zeros_are_the_line_and_the_cause() -> None:
    found = judge(Steps())
    assert (found.status, found.code) == ("violated", "past-unread")
    assert found.location is not None
    assert found.location.text.endswith("HERE")
    assert "not passed to the next" in found.cause
