"""A value that nothing uses, and the call that could have taken it."""

# ruff: noqa: F841, RUF059

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pytest_torchcheck import Contract, Finding


class Reader(nn.Module):
    """Reads a sequence; its state starts from what it is given."""

    def __init__(self, sizes: int = 8) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, sizes, batch_first=True)

    def forward(
        self, x: Tensor, start: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        made: tuple[Tensor, tuple[Tensor, Tensor]] = self.lstm(x, start)
        return made


class TwoReaders(nn.Module):
    """An encoder and a decoder, of which the state is handed on in one of several ways, or not."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.encoder = Reader()
        self.decoder = nn.LSTM(3, 4 if how == "unlike" else 8, batch_first=True)
        self.second, self.head = Reader(), nn.LazyLinear(1)

    def forward(self, past: Tensor, known: Tensor) -> Tensor:
        if self.how == "dropped":
            _, (h, c) = self.encoder(past)
            made, _ = self.decoder(known)  # dropped
        elif self.how == "own":
            start = self.encoder(past)[1]
            made, _ = self.second(known)  # own
        elif self.how == "unlike":
            _, state = self.encoder(past)
            made, _ = self.decoder(known)
        else:
            _, state = self.encoder(past)
            made, _ = self.decoder(known, state)
        out: Tensor = self.head(made)[..., 0]
        return out


def _readers(how: str) -> Finding:
    model = TwoReaders(how)
    batch = ((torch.randn(4, 5, 3), torch.randn(4, 2, 3)), torch.randn(4, 2))
    model(*batch[0])
    contract = Contract(model=model, batch=batch, loss=F.mse_loss)
    found = contract.check(["gradients-exist"]).findings
    return next((f for f in found if "encoder" in f.summary), found[0])


@pytest.mark.parametrize(("how", "parameter"), [("dropped", "hx"), ("own", "start")])
def test_a_state_that_the_next_reader_is_not_given(how: str, parameter: str) -> None:
    found = _readers(how)
    assert found.code == "grad-none"
    calls = [c for c in found.culprits if "called here without" in c.detail]
    assert [c.location.text for c in calls if c.location] == [
        f"made, _ = self.{'decoder' if how == 'dropped' else 'second'}(known)  # {how}"
    ]
    assert f"without {parameter};" in calls[0].detail
    assert f"as {parameter} on line {calls[0].location.line}" in found.fix  # type: ignore[union-attr]


@pytest.mark.parametrize("how", ["unlike", "handed"])
def test_no_call_is_named_where_none_fits(how: str) -> None:
    found = _readers(how)
    assert not any("called here without" in c.detail for c in found.culprits)


class Translator(nn.Module):
    """Its decoder attends to the memory, or to its own input."""

    def __init__(self, *, right: bool) -> None:
        super().__init__()
        self.right = right
        self.encoder, self.head = nn.Linear(4, 4), nn.Linear(4, 2)
        self.decoder = nn.TransformerDecoderLayer(4, 2, 8, dropout=0.0, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        memory = self.encoder(x)
        start = torch.zeros_like(x[:, :2])
        if self.right:
            return self.head(self.decoder(start, memory))[:, :, 0]
        made: Tensor = self.decoder(start, start)  # self
        return self.head(made)[:, :, 0]


def test_another_value_under_the_name_of_the_unread_one() -> None:
    batch = ((torch.randn(3, 5, 4),), torch.randn(3, 2))
    wrong = Contract(model=Translator(right=False), batch=batch, loss=F.mse_loss)
    found = wrong.check(["gradients-exist"]).findings
    calls = [c for f in found for c in f.culprits if "called here" in c.detail]
    assert [c.location.text for c in calls if c.location] == [
        "made: Tensor = self.decoder(start, start)  # self"
    ]
    assert calls[0].detail == "called here with another value as memory; memory is never read"


class Masked(nn.Module):
    """Takes a mask, and does not pass it on to the attention."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.embed = nn.Linear(4, 4)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

    def attend(self, h: Tensor, mask: Tensor | None = None) -> Tensor:
        if mask is not None:
            h = h * mask[..., None]
        return h.cumsum(1)

    def within(self, h: Tensor, weights: Tensor) -> Tensor:
        padded = weights == 0
        made: Tensor = self.attention(h, h, h)[0]  # layer
        return made

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        h = self.embed(x)
        if self.how == "helper":
            return self.attend(h)  # helper
        if self.how == "layer":
            return self.within(h, mask)
        if self.how == "function":
            return F.scaled_dot_product_attention(h, h, h)  # function
        return self.attend(h, mask)


def _masked(how: str) -> Finding:
    mask = torch.ones(3, 5).tril(1)
    contract = Contract(model=Masked(how), batch=((torch.randn(3, 5, 4), mask), None))
    return contract.check(["input-influence"]).findings[0]


@pytest.mark.parametrize(
    ("how", "parameter"),
    [("helper", "mask"), ("layer", "key_padding_mask"), ("function", "attn_mask")],
)
def test_a_mask_that_is_not_passed_on(how: str, parameter: str) -> None:
    found = _masked(how)
    assert found.code == "input-ignored"
    call = next(c for c in found.culprits if "called here without" in c.detail)
    assert call.location is not None
    assert call.location.text.endswith(f"# {how}")
    assert f"without {parameter};" in call.detail
    assert "has no influence" in call.detail


def test_a_mask_that_is_used_passes() -> None:
    assert _masked("passed").status == "passed"
