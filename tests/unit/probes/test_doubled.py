"""A slice that is joined with itself while another slice is never read: the line, and which slice."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pytest_torchcheck import Contract


class Reader(nn.Module):
    """Two directions of an LSTM, or two towers in one tensor; how they are joined is chosen."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.rnn = nn.LSTM(3, 4, num_layers=2, bidirectional=True, batch_first=True)
        self.left, self.right, self.head = nn.Linear(3, 4), nn.Linear(3, 4), nn.Linear(8, 2)

    def forward(self, x):
        return self.head(getattr(self, self.how)(x))

    def state(self, x):
        _, (h, _) = self.rnn(x)
        return torch.cat((h[-1], h[-1]), dim=-1)  # state

    def viewed(self, x):
        _, (h, _) = self.rnn(x)
        last = h.view(2, 2, len(x), 4)[-1]
        forward, _ = last.unbind(0)
        return torch.cat([forward, forward], dim=1)  # viewed

    def towers(self, x):
        both = torch.stack([self.left(x[:, 0]), self.right(x[:, 1])])
        a, _ = both.unbind(0)
        return torch.stack([a, a], dim=1).flatten(1)  # towers

    def columns(self, x):
        both = torch.stack([self.left(x[:, 0]), self.right(x[:, 1])], dim=1)
        a, b = both[:, 0], both[:, 1]
        del b
        return torch.hstack([a, a])  # columns

    def correct(self, x):
        _, (h, _) = self.rnn(x)
        return torch.cat((h[-2], h[-1]), dim=-1)

    def elsewhere(self, x):
        _, (h, _) = self.rnn(x)
        return torch.cat((h[-1], h[-1]), dim=-1) * h.mean(0).repeat(1, 2)

    def dead(self, x):
        both = torch.stack([self.left(x[:, 0]), self.right(x[:, 1]) * 0], dim=0)
        return torch.cat([both[0], both[1]], dim=1)


def zeros(how):
    x = torch.randn(6, 5, 3)
    contract = Contract(
        model=Reader(how), batch=((x,), torch.randn(6, 2)), loss=nn.functional.mse_loss
    )
    found = contract.check(["gradients-exist"]).findings
    return [f for f in found if f.status == "violated" and f.code == "grad-zero"]


@pytest.mark.parametrize(
    ("how", "given", "unread"),
    [
        ("state", "[3]", "[2]"),
        ("viewed", "part 0", "part 1"),
        ("towers", "part 0", "part 1"),
        ("columns", "[:, 0]", "[:, 1]"),
    ],
)
def test_the_line_that_joins_a_slice_with_itself(how, given, unread):
    named = [f for f in zeros(how) if f.location and f.location.text.endswith(f"# {how}")]
    assert named, [str(f) for f in zeros(how)]
    for finding in named:
        assert f"receives {given} of the result of" in finding.cause
        assert f"{unread} is never read" in finding.cause
        assert f"line {finding.location.line}" in finding.fix


@pytest.mark.parametrize("how", ["correct", "elsewhere", "dead"])
def test_nothing_is_said_where_every_slice_is_read(how):
    assert all("never read" not in f.cause for f in zeros(how))
