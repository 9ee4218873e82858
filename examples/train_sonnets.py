"""Train a character-level GRU on Shakespeare's sonnets: a script that knows nothing of contracts.

Run with ``python examples/train_sonnets.py [steps]``; ``test_scripts.py`` holds it to its contract, as it is.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

TEXT = (Path(__file__).parent / "data" / "sonnets.txt").read_text(encoding="utf-8")
VOCABULARY = sorted(set(TEXT))
IDS = torch.tensor([VOCABULARY.index(character) for character in TEXT])


class CharacterModel(nn.Module):
    """Predicts the next character from those before it."""

    def __init__(self, vocabulary: int = len(VOCABULARY), width: int = 64) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.rnn = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        states, _ = self.rnn(self.embed(ids))
        return self.head(states)


def make_optimizer(
    model: nn.Module,
) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return optimizer, torch.optim.lr_scheduler.LinearLR(optimizer, 0.2, total_iters=20)


def sample(seed: int, rows: int = 8, length: int = 24) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    starts = torch.randint(len(IDS) - length - 1, (rows,), generator=generator)
    pieces = torch.stack([IDS[start : start + length + 1] for start in starts.tolist()])
    return pieces[:, :-1], pieces[:, 1:].contiguous()


def loss_of(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def train_step(
    model: nn.Module,
    optimizers: tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler],
    inputs: tuple[torch.Tensor],
    targets: torch.Tensor,
) -> torch.Tensor:
    optimizer, schedule = optimizers
    optimizer.zero_grad()
    loss = loss_of(model(*inputs), targets)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    return loss.detach()


def main(steps: int) -> float:
    torch.manual_seed(0)
    model = CharacterModel()
    optimizers = make_optimizer(model)
    for step in range(steps):
        ids, following = sample(step)
        loss = train_step(model, optimizers, (ids,), following).item()
        if step % 50 == 0:
            print(f"step {step}: loss {loss:.4f}")
    return loss


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 300)
