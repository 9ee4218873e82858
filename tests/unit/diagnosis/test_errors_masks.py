"""Attention masks of the wrong length, on each path of torch's attention: the mask is named with its origin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.nn.functional as F
from provoke import called_with, line
from torch import Tensor, nn

from pytest_torchcheck.diagnosis.crashes.explain import explain_error

if TYPE_CHECKING:
    from pytest_torchcheck.explanation import Explanation


def _padding(lengths: Tensor, most: int) -> Tensor:
    return torch.arange(most)[None] >= lengths[:, None]


class Attends(nn.Module):
    """One layer of each kind, with a mask for half of the frames (rounded down) beside frames rounded up."""

    def __init__(self, kind: str, right: bool = False, **more: Any) -> None:
        super().__init__()
        self.kind, self.right, self.more = kind, right, more
        self.attn = nn.MultiheadAttention(8, 2, batch_first=True)
        block = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(block, 1)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        x = x[:, ::2]
        size = x.shape[1] if self.right else 4
        mask = _padding(lengths, size)
        square = torch.ones(size, size).triu(1).bool()
        if self.kind == "encoder":
            return self.encoder(x, src_key_padding_mask=mask)
        if self.kind == "product":
            return F.scaled_dot_product_attention(x, x, x, attn_mask=~mask[:, None])
        given = {"key_padding_mask": mask} if self.kind == "padding" else {"attn_mask": square}
        made: Tensor = self.attn(x, x, x, **given, **self.more)[0]
        return made


def _explained(model: nn.Module, train: bool) -> Explanation | None:
    model.train(train)
    x, lengths = torch.randn(2, 9, 8), torch.tensor([4, 3])

    def run() -> None:
        with torch.set_grad_enabled(train):
            model(x, lengths)

    try:
        run()
    except Exception as error:  # every kind that torch raises
        return explain_error(
            error, phase="forward", model=model, batch=called_with(((x, lengths), None)), rerun=run
        )
    return None


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("kind", ["padding", "square", "encoder", "product"])
def test_a_mask_that_fits_raises_nothing(kind: str, train: bool) -> None:
    assert _explained(Attends(kind, right=True), train) is None


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize(
    ("kind", "name", "maker", "made"),
    [
        ("padding", "key_padding_mask", "arange", _padding),
        ("square", "attn_mask", "ones", Attends.forward),
        ("encoder", "src_key_padding_mask", "arange", _padding),
        ("product", "attn_mask", "arange", _padding),
    ],
)
def test_the_mask_its_length_and_the_line_that_made_it(
    kind: str, name: str, maker: str, made: Any, train: bool
) -> None:
    found = _explained(Attends(kind), train)
    assert found is not None
    assert found.code == "mask-shape"
    assert name.removeprefix("src_") in found.summary
    assert "for 4 " in found.summary
    assert "there are 5" in found.summary
    assert maker in found.cause
    lines = [c.location.line for c in found.culprits if c.location is not None]
    assert line(made, "torch.arange(" if made is _padding else "torch.ones(") in lines
    if made is _padding:
        assert line(Attends.forward, "mask = _padding") in lines


def test_a_mask_for_another_batch() -> None:
    layer = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    x, mask = torch.randn(2, 5, 8), torch.zeros(3, 5, dtype=torch.bool)
    with pytest.raises(RuntimeError) as caught, torch.no_grad():
        layer(x, x, x, key_padding_mask=mask)
    found = explain_error(
        caught.value, phase="forward", model=layer, batch=called_with(((x,), None))
    )
    assert "key_padding_mask for 3 samples, but there are 2" in found.summary


def test_another_broadcast_in_an_attention_layer_is_no_matter_of_masks() -> None:
    x = torch.randn(2, 5, 8)
    with pytest.raises(RuntimeError) as caught:
        x + torch.randn(4, 8)
    assert explain_error(caught.value, phase="forward").code == "broadcast-shapes"


def test_operands_that_do_not_fit_are_cited_where_they_were_made() -> None:
    x = torch.randn(2, 5, 8)

    def run() -> Tensor:
        left = x.exp()
        right = x[:, ::2].tanh()
        return left * right

    with pytest.raises(RuntimeError) as caught:
        run()
    found = explain_error(caught.value, phase="forward", rerun=run)
    assert found.code == "broadcast-shapes"
    made = {c.location.line for c in found.culprits if c.detail.startswith("gives ") and c.location}
    assert made == {line(run, "x.exp()"), line(run, ".tanh()")}


def test_a_dtype_is_cited_where_it_meets_the_other_one() -> None:
    layer = nn.Linear(4, 2).double()

    def made(t: Tensor) -> Tensor:
        return t[:, None].float() * torch.ones(4, dtype=torch.float32)

    def run() -> Tensor:
        h = made(torch.arange(3))
        return layer(h)

    with pytest.raises(RuntimeError) as caught:
        run()
    found = explain_error(caught.value, phase="forward", model=layer, rerun=run)
    assert found.code == "dtype-pair"
    met = found.culprits[-1].location
    assert met is not None
    assert met.line == line(run, "return layer(h)")
    assert f"on line {met.line}" in found.fix
