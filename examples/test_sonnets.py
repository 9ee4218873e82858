"""A character-level GPT on Shakespeare's sonnets (public domain), promised to be causal.

Run with ``pytest --torchcheck examples``.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Tokens, contract, promises

TEXT = (Path(__file__).parent / "data" / "sonnets.txt").read_text(encoding="utf-8")
VOCABULARY = sorted(set(TEXT))
IDS = torch.tensor([VOCABULARY.index(character) for character in TEXT])
LENGTH = 32


class Block(nn.Module):
    """Attention to the past, then a two-layer perceptron, each on a normalised residual stream."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """A two-block transformer whose head shares the embedding's weight."""

    def __init__(self, vocabulary: int, width: int = 64, heads: int = 4, blocks: int = 2) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(LENGTH, width)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(blocks)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        for table in (self.tokens, self.positions):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        places = torch.arange(ids.shape[1], device=ids.device)
        x = self.tokens(ids) + self.positions(places)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def next_character_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def text_batch(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Four pieces of the text, and the same shifted by one character."""
    generator = torch.Generator().manual_seed(seed)
    starts = torch.randint(len(IDS) - LENGTH - 1, (4,), generator=generator)
    pieces = torch.stack([IDS[start : start + LENGTH + 1] for start in starts.tolist()])
    return pieces[:, :-1], pieces[:, 1:].contiguous()


@contract(
    inputs=Tokens("B T", vocab=len(VOCABULARY)),
    sizes={"B": (1, 8), "T": (1, LENGTH)},
    batch=text_batch,
    output=f"B T {len(VOCABULARY)}",
    loss=next_character_loss,
    optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=3e-3),
    promises=(promises.Causal(), promises.Tied("head.weight", "tokens.weight")),
    memory="16 MiB",
)
def gpt() -> nn.Module:
    return GPT(len(VOCABULARY))
