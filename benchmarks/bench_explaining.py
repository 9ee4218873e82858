"""What a diagnosis costs: a contract that fails and explains, less the same contract of the mended twin, in plain steps.

``tox -e bench`` prints one line per bug. Times are of the processor, on one thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.nn.functional as F
from timing import median
from torch import nn

from pytest_torchcheck import Contract
from pytest_torchcheck.catalogue import catalogue
from pytest_torchcheck.promises import Causal

if TYPE_CHECKING:
    from collections.abc import Callable

MOST = 20
WORDS, WIDTH, LAYERS, LENGTH, BATCH = 2000, 256, 4, 32, 8


class Decoder(nn.Module):
    """A causal language model of 4 million parameters; ``bug`` names the line that is wrong."""

    def __init__(self, bug: str = "") -> None:
        super().__init__()
        self.bug = bug
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True)
            for _ in range(LAYERS)
        )
        self.spare = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return logits, shape (batch, length, words)."""
        x = self.embed(ids)
        mask = None
        if self.bug != "future":
            size = ids.shape[1]
            mask = torch.triu(
                torch.full((size, size), float("-inf"), device=ids.device), diagonal=1
            )
        for number, layer in enumerate(self.layers):
            x = layer(x, src_mask=mask)
            if number == 1 and self.bug == "detached":
                x = x.detach()
            if number == 1 and self.bug == "mixed":
                x = x - x.mean(0, keepdim=True)
            if number == 1 and self.bug == "nan":
                x = x + torch.sqrt((x - x).square().sum())
            if number == 1 and self.bug == "in-place":
                x = torch.tanh(x)
                x += 1
        if self.bug == "shape":
            x = x.transpose(1, 2)
        if self.bug != "unused":
            x = x + self.spare(x)
        return self.head(x)


def loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Cross-entropy over all positions."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


BUGS = {
    "detached": "gradients-exist",
    "unused": "gradients-exist",
    "nan": "gradients-finite",
    "in-place": "backward",
    "shape": "backward",
    "mixed": "batch-independence",
    "future": "causality",
}


def batch() -> Any:
    """Ids and targets, shape (batch, length) each."""
    torch.manual_seed(0)
    return (torch.randint(0, WORDS, (BATCH, LENGTH)),), torch.randint(0, WORDS, (BATCH, LENGTH))


@pytest.mark.parametrize("bug", BUGS)
def test_explanation_in_plain_steps(bug: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Print what explaining one root cause costs."""
    torch.set_num_threads(1)
    inputs, targets = batch()
    codes: list[str] = []

    def check(wrong: str) -> Callable[[], None]:
        torch.manual_seed(0)
        contract = Contract(
            model=Decoder(wrong), batch=(inputs, targets), loss=loss, promises=[Causal()]
        )

        names = [
            name
            for name, each in catalogue().items()
            if name != "overfit" and each.missing(contract) is None
        ]

        def run() -> None:
            report = contract.check(names)
            found = [f for f in report.findings if f.status == "violated" and f.root is None]
            assert [f.check for f in found] == ([BUGS[bug]] if wrong else []), report
            codes[:] = [f.code for f in found]

        return run

    torch.manual_seed(0)
    model = Decoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        loss(model(*inputs), targets).backward()
        optimizer.step()

    plain = median(step)
    sound = median(check(""))
    failing = median(check(bug))
    cost = (failing - sound) / plain
    size = sum(p.numel() for p in model.parameters()) / 1e6
    with capsys.disabled():
        print(
            f"\n{bug:<9} {codes[0]:<16} {size:.1f} M parameters: contract {failing / plain:5.1f} steps, sound twin "
            f"{sound / plain:4.1f}, explaining {cost:+5.1f} plain steps of {plain * 1e3:.0f} ms"
        )
    assert cost <= MOST
