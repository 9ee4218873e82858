"""Caches that are continued wrongly are found; recurrent states, keyword caches and both conventions of masks are sound."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, promises

IDS = torch.arange(24).reshape(3, 8) % 11
MASK = torch.ones(3, 8, dtype=torch.bool)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.layer = nn.Embedding(11, 8), nn.GRU(8, 8, batch_first=True)
        self.head = nn.Linear(8, 11)

    def forward(self, ids: torch.Tensor, state: Any = None) -> Any:
        h, last = self.layer(self.tokens(ids), self.taken(state))
        return self.head(h), self.kept(h, last)

    def taken(self, state: Any) -> Any:
        return state

    def kept(self, h: torch.Tensor, last: torch.Tensor) -> Any:
        return last


class ForgetsState(Recurrent):
    def taken(self, state: Any) -> Any:
        return None if state is None else torch.zeros_like(state)


class KeepsWrongEnd(Recurrent):
    def kept(self, h: torch.Tensor, last: torch.Tensor) -> Any:
        return h[:, 0][None].contiguous()


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(11, 8), nn.Embedding(16, 8)
        self.query, self.head = nn.Linear(8, 8), nn.Linear(8, 11)

    def forward(self, ids: torch.Tensor, mask: Any = None, past_keys: Any = None) -> Any:
        before = 0 if past_keys is None else past_keys.shape[1]
        places = torch.arange(
            self.first(before), self.first(before) + ids.shape[1], device=ids.device
        )
        x = self.tokens(ids) + self.places(places)
        whole = x if past_keys is None else self.joined(past_keys, x)
        scores = self.query(x) @ whole.mT
        scores = scores.masked_fill(torch.ones_like(scores).triu(1 + before) > 0, -1e9)
        if mask is not None:
            scores = scores.masked_fill(~mask[:, None, -scores.shape[-1] :], -1e9)
        return {"logits": self.head(x + scores.softmax(-1) @ whole), "past_keys": whole}

    def first(self, before: int) -> int:
        return before

    def joined(self, past: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        return torch.cat([past, new], 1)


class StartsAgain(Attending):
    def first(self, before: int) -> int:
        return 0


class DropsTheFirst(Attending):
    def joined(self, past: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        return torch.cat([past[:, 1:], new], 1)


class WithoutCache(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(11, 8), nn.Linear(8, 11)

    def forward(self, ids: torch.Tensor, scale: Any = None) -> torch.Tensor:
        return self.head(self.tokens(ids).cumsum(1))


def verdict(model: Any, output: Any, inputs: Any = (IDS,)) -> tuple[str, str]:
    """Return status and code of cached-steps."""
    torch.manual_seed(0)
    contract = Contract(
        model=model,
        batch=(inputs, IDS),
        loss=lambda o, t: (
            F.cross_entropy(o[output].flatten(0, 1), t.flatten()) if output is not None else o.sum()
        ),
        promises=[promises.Causal(output=output)],
    )
    (finding,) = contract.check(checks=["cached-steps"]).findings
    return finding.status, finding.code


@pytest.mark.parametrize(
    ("model", "output"),
    [(ForgetsState, 0), (KeepsWrongEnd, 0), (StartsAgain, "logits"), (DropsTheFirst, "logits")],
)
def test_a_cache_that_is_not_continued_is_found(model: type[nn.Module], output: Any) -> None:
    assert verdict(model, output) == ("violated", "cache-differs")


@pytest.mark.parametrize(
    ("model", "output", "inputs"),
    [
        (Recurrent, 0, (IDS,)),
        (Attending, "logits", (IDS,)),
        (Attending, "logits", {"ids": IDS, "mask": MASK}),
    ],
)
def test_a_cache_that_is_continued_passes(model: type[nn.Module], output: Any, inputs: Any) -> None:
    assert verdict(model, output, inputs)[0] == "passed"


def test_a_model_without_a_cache_is_not_judged() -> None:
    assert verdict(WithoutCache, None)[0] == "not-applicable"


class OwnSteps(nn.Module):
    """Trains on whole sequences; in eval mode it goes step by step, or reads them in some other way."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.tokens, self.layer = nn.Embedding(11, 8), nn.GRU(8, 8, batch_first=True)
        self.head, self.how = nn.Linear(8, 11), how

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids)
        if self.training or self.how == "window":
            reach = x if self.training else torch.cat([x[:, :1], 0.5 * x[:, 1:]], 1)
            reach = self.placed(reach, 0) if "counts" in self.how else reach
            return self.head(self.layer(reach)[0])
        state, steps, given = None, [], x[:, :1]
        for position in range(ids.shape[1]):
            given = given if self.how == "free-running" else x[:, position, None]
            if self.how == "counts anew":
                given = self.placed(given, 0)
            elif self.how == "counts on":
                given = self.placed(given, position)
            y, last = self.layer(given, state)
            state = None if self.how == "forgets" else last
            steps.append(self.head(y))
            if self.how == "free-running":
                given = self.tokens(steps[-1].argmax(-1))
        return torch.cat(steps, 1)

    def placed(self, x: torch.Tensor, start: int) -> torch.Tensor:
        places = torch.arange(start, start + x.shape[1])
        return x + places[:, None] / 8


def own_steps(how: str, kind: Any = OwnSteps) -> Any:
    torch.manual_seed(0)
    made = Contract(
        model=lambda: kind(how), batch=((IDS,), IDS), promises=(promises.Causal(),),
        loss=lambda output, targets: F.cross_entropy(output.flatten(0, 1), targets.flatten()),
    )  # fmt: skip
    (found,) = made.check(["cached-steps"]).findings
    return found


@pytest.mark.parametrize(
    ("how", "line"), [("forgets", "def forward"), ("counts anew", "places = torch.arange(start")]
)
def test_steps_of_eval_mode_that_part_from_the_one_call_of_training_are_found(
    how: str, line: str
) -> None:
    found = own_steps(how)
    assert (found.status, found.code) == ("violated", "cache-differs")
    assert "the first position is the same" in found.observed
    assert line in found.location.text


@pytest.mark.parametrize("how", ["right", "counts on", "free-running", "window"])
def test_steps_that_continue_and_modes_that_differ_otherwise_are_not_blamed(how: str) -> None:
    assert own_steps(how).status == "not-applicable"


class StepsOtherwise(nn.Module):
    """Attends to all that was before; a single query is computed on a line of its own."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.tokens, self.qkv, self.how = nn.Embedding(11, 8), nn.Linear(8, 24), how

    def attend(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        near = q @ k.mT
        if q.shape[1] == 1:
            return (0.3 * near if self.how == "right" else near).softmax(-1)
        future = torch.ones_like(near[0], dtype=torch.bool).triu(1)
        return (0.3 * near).masked_fill(future, -1e9).softmax(-1)

    def read(self, x: torch.Tensor, held: Any = None) -> Any:
        q, k, v = self.qkv(x).chunk(3, -1)
        if held is not None:
            k, v = torch.cat([held[0], k], 1), torch.cat([held[1], v], 1)
        return (self.attend(q, k) @ v) @ self.tokens.weight.T, (k, v)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        if self.training:
            return self.read(self.tokens(ids))[0]
        made, held = [], None
        for position in range(ids.shape[1]):
            out, held = self.read(self.tokens(ids[:, position, None]), held)
            made.append(out)
        return torch.cat(made, 1)


def test_another_line_that_a_single_step_takes_is_named_with_the_one_of_the_whole() -> None:
    found = own_steps("forgets its scale", StepsOtherwise)
    assert found.code == "cache-differs"
    assert "softmax" in found.location.text
    assert "self.how" in found.location.text
    assert any(
        "triu" in c.location.text or "masked_fill" in c.location.text for c in found.culprits
    )
    assert own_steps("right", StepsOtherwise).status == "not-applicable"
