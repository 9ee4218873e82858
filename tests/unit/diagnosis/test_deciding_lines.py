"""The lines that should have done it stand beside the operation at which it shows."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset

from pytest_torchcheck import Contract, Labels, TensorSpec, promises


def cited(contract: Contract, check: str, code: str) -> list[str]:
    """Return the texts of all lines of the first finding with a code."""
    finding = next(f for f in contract.check([check]).findings if f.code == code)
    places = [finding.location, *(c.location for c in finding.culprits)]
    return [place.text for place in places if place is not None]


class Counted(nn.Module):
    """Counts what it saw, through two helpers, whatever the mode."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.register_buffer("seen", torch.zeros(3))

    def _add(self, x):
        self.seen += x.detach().abs().mean(0)

    def _note(self, x):
        self._add(x)

    def forward(self, x, hold=False):
        counts = not hold
        if counts:
            self._note(x)
        return self.layer(x / (1 + self.seen))


def test_the_condition_under_which_evaluation_writes():
    contract = Contract(model=Counted, batch=((torch.randn(4, 3),), None))
    assert "counts = not hold" in cited(contract, "eval-purity", "eval-writes")


class CountedDeeply(Counted):
    """Counts by three helpers, what several names hold; the guard forgets the mode."""

    def _count(self, x, weight):
        self._note(x * weight)

    def forward(self, x, hold=False, late=False):
        y = self.layer(x)
        weight = torch.ones(())
        if not hold and not late:  # GUARD
            self._count(y, weight)
        return y / (1 + self.seen)


def test_the_guard_in_the_forward_and_nothing_that_is_only_passed():
    contract = Contract(model=CountedDeeply, batch=((torch.randn(4, 3),), None))
    texts = cited(contract, "eval-purity", "eval-writes")
    assert any("GUARD" in text for text in texts)
    assert "weight = torch.ones(())" not in texts


class EarlyEnd(nn.Module):
    """Drops an old key before it loads, and returns where it should go on."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(3))

    def _load_from_state_dict(self, state_dict, prefix, *rest):
        state_dict.pop(prefix + "old", None)
        return  # EARLY

    def forward(self, x):
        return x * self.scale


def test_the_return_by_which_a_module_loads_nothing():
    contract = Contract(model=EarlyEnd, batch=((torch.randn(4, 3),), None))
    assert cited(contract, "state-dict-roundtrip", "state-lost")[0] == "return  # EARLY"


class Recalled(nn.Module):
    """Gives rows that it has computed before from the first one on, whichever are asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.rows = nn.Linear(3, 3), None

    def table(self, x, start):
        if self.rows is not None:
            return self.rows[: len(x) - start]  # RECALLED
        self.rows = x.detach().tanh() + 0.0
        return self.rows[start:]

    def forward(self, x):
        return self.layer(self.table(x, 1))


def test_the_line_that_a_second_call_runs_instead():
    contract = Contract(model=Recalled, batch=((torch.randn(4, 3),), None))
    texts = cited(contract, "eval-purity", "eval-not-repeatable")
    assert any("RECALLED" in text for text in texts)


class Dice(nn.Module):
    def forward(self, output, target):
        keep = target != 255  # ASKED
        hot = F.one_hot(target * keep, 4) * keep[..., None]
        share = output.softmax(-1)
        return 1 - 2 * (share * hot).sum() / (share.sum() + hot.sum())


def test_the_comparison_that_does_not_reach_the_outputs():
    targets = torch.tensor([[0, 1, 255, 2], [3, 255, 0, 1]])
    contract = Contract(
        model=lambda: nn.Linear(3, 4), batch=((torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(0)),), targets), inputs=(TensorSpec("B T 3"),),
        targets=Labels("B T", classes=4, ignore_index=255), loss=Dice(),
    )  # fmt: skip
    texts = cited(contract, "ignored-targets", "ignored-counted")
    assert any("ASKED" in text for text in texts)


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.amount = nn.Linear(6, 2), 0.2

    def forward(self, x):
        disturb = self.amount > 0
        if disturb:
            x = x * torch.empty_like(x).uniform_(1 - self.amount, 1 + self.amount)
        return self.gate(x)


def test_the_condition_under_which_evaluation_draws():
    contract = Contract(model=Noisy, batch=((torch.randn(8, 6),), None))
    assert "disturb = self.amount > 0" in cited(contract, "eval-determinism", "random-in-eval")


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        over = tuple(range(x.dim() - 1))
        centre = x.mean(dim=over, keepdim=True)
        return self.layer(x - centre)


def test_the_line_that_chooses_the_dimensions_of_a_mean():
    contract = Contract(model=Scaled, batch=((torch.randn(5, 3, 4),), None))
    assert "over = tuple(range(x.dim() - 1))" in cited(
        contract, "batch-independence", "samples-mixed"
    )


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(4, 4)
        self.heads = self._heads(2)

    def _heads(self, count):
        made = [nn.Linear(4, 1) for _ in range(count)]
        made[0].bias.data.zero_()
        return made

    def forward(self, x):
        return torch.cat([head(self.trunk(x)) for head in self.heads], 1)


def test_the_method_that_creates_a_list_of_modules():
    contract = Contract(model=Heads, batch=((torch.randn(5, 4),), None))
    assert "made = [nn.Linear(4, 1) for _ in range(count)]" in cited(
        contract, "registration", "module-hidden"
    )


class Followed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.online = nn.Linear(4, 4)
        self.slow = self._copy()

    def _copy(self):
        return copy.deepcopy(self.online)

    def forward(self, x):
        return (self.online(x) - self.slow(x + 1)).square().mean(1)


def test_the_method_that_creates_what_should_be_frozen():
    contract = Contract(
        model=Followed, batch=((torch.randn(5, 4),), None), loss=lambda out, _: out.mean(),
        optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=0.1),
        promises=(promises.Frozen("slow.*", reason="follows online"),),
    )  # fmt: skip
    assert "return copy.deepcopy(self.online)" in cited(contract, "frozen-stays", "frozen-moved")


class Reader(nn.Module):
    """Two convolutions over words, of which the second reads what the first made of padding."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(9, 6, padding_idx=0)
        self.first, self.second = nn.Conv1d(6, 6, 3, padding=1), nn.Conv1d(6, 6, 3, padding=1)

    def forward(self, ids):
        real = (ids != 0)[:, None]
        x = self.words(ids).transpose(1, 2) * real
        x = torch.tanh(self.first(x))
        x = self.second(x)
        return (x * real).transpose(1, 2)


def test_the_line_that_fills_the_padded_positions():
    ids = torch.randint(1, 9, (4, 7)).masked_fill(
        torch.arange(7) > torch.tensor([[4], [6], [3], [6]]), 0
    )
    contract = Contract(
        model=Reader, batch=((ids,), None), promises=(promises.PaddingInvariant(ids=0, pad=0),)
    )
    assert "x = torch.tanh(self.first(x))" in cited(contract, "padding-invariance", "padding-leak")


class Wrapped(nn.Module):
    """Hands on what it is given."""

    def __init__(self, inner) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x, **kwargs):
        return self.inner(x, **kwargs)


class Pool(nn.Module):
    def forward(self, x, mask=None):
        if mask is None:
            return x.mean(1)
        return (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)


class Pooled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.pool = nn.Linear(3, 5), Wrapped(Pool())

    def forward(self, x, mask):
        x = self.layer(x)
        return self.pool(x)


def test_the_call_that_leaves_out_what_a_wrapper_would_hand_on():
    mask = (torch.arange(6) < torch.tensor([[6], [4], [2]])).float()
    contract = Contract(model=Pooled, batch=((torch.randn(3, 6, 3), mask), None))
    assert "return self.pool(x)" in cited(contract, "input-influence", "input-ignored")


class Copied(nn.Module):
    def __init__(self, words, tie) -> None:
        super().__init__()
        self.out = nn.Linear(4, 9, bias=False)
        if tie:
            self.out.weight = words.weight
        else:
            self.out.weight.data.copy_(words.weight.data)

    def forward(self, x):
        return self.out(x)


class Language(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(9, 4)
        self.head = Copied(self.words, False)

    def forward(self, ids):
        return self.head(self.words(ids))


def test_the_line_that_copied_instead_of_tying_where_another_branch_ties():
    contract = Contract(
        model=Language, batch=((torch.randint(0, 9, (3, 5)),), None),
        promises=(promises.Tied("words.weight", "head.out.weight"),),
    )  # fmt: skip
    texts = cited(contract, "tied-weights", "tie-missing")
    assert "self.out.weight.data.copy_(words.weight.data)" in texts
    assert "self.out.weight = words.weight" not in texts


class Windows(Dataset):
    def __init__(self, excess: int, count: int = 40) -> None:
        self.data, self.excess = torch.arange(float(count)), excess

    def __len__(self) -> int:
        return (len(self.data) - 1) // 4 + self.excess

    def __getitem__(self, index: int):
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self.data[4 * index : 4 * index + 4], self.data[4 * index + 1 : 4 * index + 5]


@pytest.mark.parametrize(("excess", "status"), [(1, "violated"), (0, "passed")])
def test_a_last_sample_that_reaches_past_the_end(excess, status):
    contract = Contract(dataset=Windows(excess), loader={"batch_size": 4})
    (finding,) = contract.check(["samples-valid"]).findings
    assert finding.status == status
    if excess:
        assert "the last sample reaches past the end of the data" in finding.cause
        assert "return (len(self.data) - 1) // 4 + self.excess" in {
            c.location.text for c in finding.culprits if c.location is not None
        }


class Steps(nn.Module):
    """Adds an embedding of a step, made in float32 whatever the model computes in."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))

    def _code(self, t):
        return torch.stack([torch.sin(t.float() * k) for k in range(1, 5)], -1)

    def forward(self, x, t):
        code = self._code(t)
        return x + self.embed(code)


def test_the_forward_that_hands_on_another_dtype():
    contract = Contract(
        model=Steps, batch=((torch.randn(5, 3), torch.arange(5)), None), dtypes=("float64",)
    )
    assert "return x + self.embed(code)" in cited(contract, "backward", "dtype-pair")


class DropsUnlessOff(nn.Module):
    """Leaves early where it is off, which evaluation does not make it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.rate = nn.Linear(3, 3), 0.4

    def forward(self, x):
        h = self.layer(x)
        off = self.rate == 0
        if off:
            return h
        keep = torch.rand_like(h) >= self.rate
        return h * keep / (1 - self.rate)


def test_the_condition_above_a_draw_that_returns_early():
    contract = Contract(model=DropsUnlessOff, batch=((torch.randn(4, 3),), None))
    assert "off = self.rate == 0" in cited(contract, "eval-determinism", "random-in-eval")
