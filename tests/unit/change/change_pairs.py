"""Pairs of versions: refactorings that change nothing, and edits that silently do."""

from __future__ import annotations

BLOCK = """
class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)
        self.register_buffer("bias", torch.linspace(-1.0, 1.0, 64))

    def split(self, x):
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(self, x, mask):
        q, k, v = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(q.shape[-1])
        scores = scores + self.bias[: x.shape[1]]
        scores = scores.masked_fill(~mask[:, None, None, :], -1e9)
        mixed = torch.matmul(scores.softmax(-1), v)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, width=16, heads=2, dropout=0.1):
        super().__init__()
        self.attention = Attention(width, heads)
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.drop = nn.Dropout(dropout)
        nn.init.normal_(self.up.weight, std=0.02)

    def forward(self, x, mask):
        x = self.norm(x + self.drop(self.attention(x, mask)))
        hidden = F.gelu(self.up(x))
        return x + self.drop(self.down(hidden))


class Net(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.embed = nn.Embedding(20, width)
        self.block = Block(width)
        self.head = nn.Linear(width, 3)

    def forward(self, ids):
        mask = ids != 0
        x = self.block(self.embed(ids), mask)
        return self.head(x.mean(1))


net = Contract(
    model=Net, inputs=Tokens("B T", vocab=20), targets=Labels("B", classes=3), loss=F.cross_entropy,
    sizes={"B": (1, 3), "T": (2, 12)},
)
"""

FUSED = (
    (
        """        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
""",
        """        self.qkv = nn.Linear(width, 3 * width)
""",
    ),
    (
        """    def split(self, x):""",
        """    def _load_from_state_dict(self, state, prefix, *rest):
        for kind in ("weight", "bias"):
            names = [f"{prefix}{part}.{kind}" for part in ("query", "key", "value")]
            if all(name in state for name in names):
                state[f"{prefix}qkv.{kind}"] = torch.cat([state.pop(name) for name in names])
        super()._load_from_state_dict(state, prefix, *rest)

    def split(self, x):""",
    ),
    (
        "self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))",
        "map(self.split, self.qkv(x).chunk(3, -1))",
    ),
)

Replacements = tuple[tuple[str, str], ...]

UNCHANGED: dict[str, Replacements] = {
    "variables renamed": (("scores", "logits"), ("mixed", "context")),
    "function split": (
        (
            "        hidden = F.gelu(self.up(x))\n        return x + self.drop(self.down(hidden))",
            "        return x + self.drop(self.feed(x))\n\n    def feed(self, x):\n        return self.down(F.gelu(self.up(x)))",
        ),
    ),
    "einsum": (
        ("torch.matmul(q, k.transpose(-2, -1))", 'torch.einsum("bhqd,bhkd->bhqk", q, k)'),
        (
            "torch.matmul(scores.softmax(-1), v)",
            'torch.einsum("bhqk,bhkd->bhqd", scores.softmax(-1), v)',
        ),
    ),
    "fused qkv": FUSED,
    "scale moved to the query": (
        (
            "torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(q.shape[-1])",
            "torch.matmul(q * q.shape[-1] ** -0.5, k.mT)",
        ),
    ),
    "gelu as a module": (
        (
            "self.drop = nn.Dropout(dropout)",
            "self.drop = nn.Dropout(dropout)\n        self.act = nn.GELU()",
        ),
        ("F.gelu(self.up(x))", "self.act(self.up(x))"),
    ),
    "view in place of unflatten": (
        (
            "x.unflatten(-1, (self.heads, -1)).transpose(1, 2)",
            "x.view(*x.shape[:2], self.heads, -1).permute(0, 2, 1, 3)",
        ),
    ),
    "softmax by hand": (
        ("scores.softmax(-1)", "(scores - scores.logsumexp(-1, keepdim=True)).exp()"),
    ),
    "comments and docstrings": (
        (
            "    def forward(self, ids):",
            '    def forward(self, ids):\n        """Return logits."""  # of 3 classes',
        ),
    ),
    "mean by a sum": (("x.mean(1)", "x.sum(1) / x.shape[1]"),),
}

CHANGED: dict[str, tuple[Replacements, str, str, str]] = {
    # edit, code, module or name that is blamed, text of the line
    "eps": (
        (("nn.LayerNorm(width)", "nn.LayerNorm(width, eps=1e-3)"),),
        "outputs-changed", "block.norm", "self.norm = nn.LayerNorm(width, eps=1e-3)",
    ),
    "dropout default": (
        (("dropout=0.1", "dropout=0.2"),),
        "outputs-changed", "block.drop", "def __init__(self, width=16, heads=2, dropout=0.2):",
    ),
    "gelu approximation": (
        (("F.gelu(self.up(x))", 'F.gelu(self.up(x), approximate="tanh")'),),
        "outputs-changed", "block", 'hidden = F.gelu(self.up(x), approximate="tanh")',
    ),
    "mask fill": (
        (("-1e9)", "-1.0)"),),
        "outputs-changed", "block.attention", "scores = scores.masked_fill(~mask[:, None, None, :], -1.0)",
    ),
    "init gain": (
        (("std=0.02", "std=0.04"),),
        "initial-weights-changed", "block.up.weight", "nn.init.normal_(self.up.weight, std=0.04)",
    ),
    "order of norm and residual": (
        (("self.norm(x + self.drop(self.attention(x, mask)))", "x + self.drop(self.attention(self.norm(x), mask))"),),
        "outputs-changed", "block", "x = x + self.drop(self.attention(self.norm(x), mask))",
    ),
    "buffer no longer saved": (
        (("torch.linspace(-1.0, 1.0, 64))", "torch.linspace(-1.0, 1.0, 64), persistent=False)"),),
        "state-changed", "block.attention.bias",
        'self.register_buffer("bias", torch.linspace(-1.0, 1.0, 64), persistent=False)',
    ),
    "renamed parameter": (
        (("self.up", "self.expand"),),
        "state-changed", "block.expand.weight", "self.expand = nn.Linear(width, 4 * width)",
    ),
    "float64 constant": (
        (("return self.head(x.mean(1))", "return self.head(x.mean(1)) * torch.ones(3, dtype=torch.float64)"),),
        "outputs-changed", "Net", "return self.head(x.mean(1)) * torch.ones(3, dtype=torch.float64)",
    ),
    "doubled memory": (
        (("hidden = F.gelu(self.up(x))", "hidden = F.gelu(self.up(torch.cat([x] * 8)))[: len(x)]"),),
        "cost-changed", "training step", "hidden = F.gelu(self.up(torch.cat([x] * 8)))[: len(x)]",
    ),
}  # fmt: skip


def edited(replacements: Replacements) -> str:
    """Return the text with its replacements made; each must be there."""
    text = BLOCK
    for old, new in replacements:
        assert old in text, old
        text = text.replace(old, new)
    return text
