"""What training leaves outside of the state dict: flags, statistics, tables that grow, and what sound models keep there."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations

from pytest_torchcheck import Contract

X, Y = torch.randn(12, 6, generator=torch.Generator().manual_seed(3)) * 3 + 1, torch.arange(12) % 3


def told(model, check="state-dict-roundtrip", **declared):
    """Return the violated and suspicious findings of a check, the first of each code."""
    batch = declared.pop("batch", ((X,), Y))
    made = Contract(model=model, batch=batch, loss=F.cross_entropy, **declared)
    found = made.check(checks=[check]).findings
    return {f.code: f for f in found if f.status in ("violated", "suspicious", "error")}


class Whitening(nn.Module):
    """Shifts and scales by what its first batch was like; a flag says whether it has seen one."""

    def __init__(self, dim, *, kept=False, private=False, anywhere=False):
        super().__init__()
        self.shift, self.size = nn.Parameter(torch.zeros(dim)), nn.Parameter(torch.ones(dim))
        self.kept, self.anywhere = kept, anywhere
        self.name = "_seen" if private else "seen"
        if kept:
            self.register_buffer(self.name, torch.tensor(False))
        else:
            setattr(self, self.name, False)

    def forward(self, x):
        if not getattr(self, self.name) and (self.training or self.anywhere):
            with torch.no_grad():
                self.shift.copy_(-x.mean(0))
                self.size.copy_(1 / (x.std(0) + 1e-3))
            if self.kept:
                self.get_buffer(self.name).fill_(True)
            else:
                setattr(self, self.name, True)
        return (x + self.shift) * self.size


class Flow(nn.Module):
    def __init__(self, **how):
        super().__init__()
        self.white, self.head = Whitening(6, **how), nn.Linear(6, 3)

    def forward(self, x):
        return self.head(self.white(x))


@pytest.mark.parametrize("how", [{}, {"private": True}, {"anywhere": True}], ids=str)
def test_a_flag_of_a_first_batch_that_is_not_saved(how):
    found = told(lambda: Flow(**how))
    finding = found["state-unsaved"]
    assert finding.status == "violated"
    assert finding.culprits[0].name == ("white._seen" if how.get("private") else "white.seen")


def test_a_flag_of_a_first_batch_that_is_a_buffer():
    assert not told(lambda: Flow(kept=True))


class WeightsOnly(nn.Module):
    """Saves its parameters alone."""

    def __init__(self, norm):
        super().__init__()
        self.norm, self.head = norm, nn.Linear(6, 3)

    def forward(self, x):
        return self.head(self.norm(x))

    def state_dict(self, *args, **kwargs):
        return {name: p.detach() for name, p in self.named_parameters()}

    def load_state_dict(self, state, strict=True, assign=False):
        return super().load_state_dict(state, strict=False)


def test_a_state_dict_of_parameters_loses_statistics():
    finding = told(lambda: WeightsOnly(nn.BatchNorm1d(6)))["state-unsaved"]
    assert finding.status == "violated"
    assert {"norm.running_mean", "norm.running_var"} <= {c.name for c in finding.culprits}


def test_a_state_dict_of_parameters_of_a_model_without_statistics():
    assert not told(lambda: WeightsOnly(nn.LayerNorm(6)))


class Adapter(nn.Module):
    """Saves what it trains, beside a frozen base that is the same for all."""

    def __init__(self):
        super().__init__()
        self.base = nn.Linear(6, 6)
        with torch.no_grad():
            self.base.weight.copy_(torch.eye(6))
            self.base.bias.zero_()
        self.base.requires_grad_(False)
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        return self.head(self.base(x))

    def state_dict(self, *args, **kwargs):
        return {k: v for k, v in super().state_dict(*args, **kwargs).items() if "base" not in k}

    def load_state_dict(self, state, strict=True, assign=False):
        return super().load_state_dict(state, strict=False)


class Rotary(nn.Module):
    """A table that is built when it is first needed, and a mask that is not saved."""

    def __init__(self, *, lazy=True):
        super().__init__()
        self.mix = nn.Linear(6, 6)
        self.head = nn.Linear(6, 3)
        self._table = None
        self.lazy = lazy
        self.register_buffer("mask", torch.tril(torch.ones(6, 6)), persistent=False)
        self.register_buffer("place", torch.arange(6.0).cos(), persistent=False)

    def forward(self, x):
        if self._table is None or not self.lazy:
            self._table = torch.arange(6.0).sin().to(x)
        return self.head(self.mix(x) @ self.mask + self._table * self.place)


class Averaged(nn.Module):
    """Keeps an average of its weights in a copy that is registered."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(6, 3)
        self.slow = copy.deepcopy(self.net).requires_grad_(False)

    def forward(self, x):
        if self.training:
            with torch.no_grad():
                for slow, fast in zip(self.slow.parameters(), self.net.parameters(), strict=True):
                    slow.lerp_(fast, 0.1)
            return self.net(x)
        return self.slow(x)


class Counting(nn.Module):
    """Counts its calls, for a log."""

    def __init__(self):
        super().__init__()
        self.head, self.calls, self.last = nn.Linear(6, 3), 0, None

    def forward(self, x):
        self.calls += 1
        out = self.head(x)
        self.last = out.detach()
        return out


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.down.weight = self.up.weight

    def forward(self, x):
        return self.head(self.down(self.up(x).tanh()))


class Annealed(nn.Module):
    """Its noise falls with the number of steps, which a buffer counts."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(6, 3)
        self.register_buffer("step", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        if self.training:
            self.step += 1
            x = x + torch.randn_like(x) / self.step
        return self.head(x)


SOUND = {
    "an adapter": Adapter,
    "a table built late": Rotary,
    "a table built in each call": lambda: Rotary(lazy=False),
    "a registered average": Averaged,
    "a counter": Counting,
    "tied weights": Tied,
    "a counted buffer": Annealed,
    "statistics": lambda: nn.Sequential(nn.BatchNorm1d(6, momentum=None), nn.Linear(6, 3)),
    "statistics of the batch": lambda: nn.Sequential(
        nn.BatchNorm1d(6, track_running_stats=False), nn.Linear(6, 3)
    ),
    "dropout": lambda: nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3)),
    "a spectral norm": lambda: nn.Sequential(
        parametrizations.spectral_norm(nn.Linear(6, 8)), nn.Linear(8, 3)
    ),
    "a weight norm": lambda: nn.Sequential(
        parametrizations.weight_norm(nn.Linear(6, 8)), nn.Linear(8, 3)
    ),
    "lazy layers": lambda: nn.Sequential(nn.LazyLinear(8), nn.LazyBatchNorm1d(), nn.LazyLinear(3)),
}


@pytest.mark.parametrize("make", SOUND.values(), ids=SOUND)
def test_sound_models_lose_nothing(make):
    assert not told(make)
    assert not told(make())


class Table(nn.Module):
    """A table of positions that is made longer when a longer input comes."""

    def __init__(self, *, persistent, length=2):
        super().__init__()
        self.head = nn.Linear(6, 3)
        self.persistent = persistent
        self.stretch(length)

    def stretch(self, length):
        self.register_buffer("table", torch.arange(length).cos(), persistent=self.persistent)

    def forward(self, x):
        if len(self.table) < x.shape[1]:
            self.stretch(x.shape[1])
        return self.head(x + self.table[: x.shape[1]])


@pytest.mark.parametrize("factory", [True, False])
def test_a_saved_table_that_a_forward_makes_longer(factory):
    make = lambda: Table(persistent=True)  # noqa: E731
    found = told(make if factory else make())
    finding = found["state-grows"]
    assert finding.status == "violated"
    assert finding.culprits[0].name == "table"
    assert "register_buffer" in finding.location.text


def test_tables_that_fit_are_sound():
    assert not told(lambda: Table(persistent=False))
    assert not told(lambda: Table(persistent=True, length=6))


class Accepting(Table):
    """Takes a table of any length from a checkpoint."""

    def _load_from_state_dict(self, state, prefix, *rest):
        if (saved := state.get(f"{prefix}table")) is not None:
            self.stretch(len(saved))
        super()._load_from_state_dict(state, prefix, *rest)


def test_a_table_that_loads_at_any_length_is_at_most_suspicious():
    found = told(lambda: Accepting(persistent=True))
    assert all(f.status == "suspicious" for f in found.values())


def test_a_write_in_evaluation_is_placed_where_the_buffer_is_replaced():
    finding = told(lambda: Table(persistent=True), "eval-purity")["eval-writes"]
    assert "register_buffer" in finding.location.text


class Forgetful(nn.Module):
    """Returns no entry for a part of what is registered, or puts a part not back."""

    def __init__(self, how):
        super().__init__()
        self.how, self.first, self.head = how, nn.Linear(6, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.first(x).tanh())

    def state_dict(self, *args, **kwargs):
        state = super().state_dict(*args, **kwargs)
        kept = {"nothing": "-", "head": "head", "load": ""}[self.how]
        return {key: value for key, value in state.items() if key.startswith(kept)}

    def load_state_dict(self, state, strict=True, assign=False):
        rest = {k: v for k, v in state.items() if self.how != "load" or "first" not in k}
        return super().load_state_dict(rest, strict=False)


@pytest.mark.parametrize("built", [True, False])
@pytest.mark.parametrize("how", ["nothing", "head", "load"])
def test_a_state_dict_of_ones_own_is_told_what_it_forgets(how, built):
    finding = told((lambda: Forgetful(how)) if built else Forgetful(how))["state-lost"]
    assert finding.status == "violated"
    assert {"first.weight", "first.bias"} <= {c.name for c in finding.culprits}
    assert ("load_state_dict" if how == "load" else "return {key: value") in finding.location.text
    assert "neither" not in finding.cause
    assert "persistent" not in finding.fix


def raises(*_, **__):
    raise RuntimeError("calibrate first")


class Refusing(nn.Sequential):
    """Has a method of its own that raises."""

    def state_dict(self, *args, **kwargs):
        return raises()


def hooked(name):
    net = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3))
    getattr(net, name)(raises)
    return net


@pytest.mark.parametrize(
    ("model", "code"),
    [
        (lambda: hooked("register_state_dict_post_hook"), "state-unpicklable"),
        (lambda: hooked("register_state_dict_pre_hook"), "state-unpicklable"),
        (lambda: Refusing(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3)), "state-unpicklable"),
        (lambda: hooked("register_load_state_dict_pre_hook"), "state-strict"),
    ],
    ids=["after", "before", "override", "load"],
)
def test_a_hook_of_the_users_that_raises_is_told_once_and_is_theirs(model, code):
    contract = Contract(model=model, batch=((X,), Y), loss=F.cross_entropy)
    wrong = [f for f in contract.check().findings if f.status in ("violated", "error")]
    assert [f.code for f in wrong] == [code], [str(f) for f in wrong]
    assert wrong[0].location.text.startswith("raise RuntimeError")
    assert wrong[0].observed == "calibrate first"


class Centred(nn.Module):
    """Subtracts a running mean of its features, or of each sample's own past, which no checkpoint holds."""

    def __init__(self, entries):
        super().__init__()
        self.body, self.head = nn.Linear(6, 12), nn.Linear(12, 3)
        self.register_buffer("past", torch.zeros(entries), persistent=False)

    def forward(self, x):
        h = self.body(x)
        if self.training:
            with torch.no_grad():
                self.past = 0.9 * self.past + 0.1 * h.mean(0)
        return self.head(h - self.past)


class Remembering(Centred):
    def forward(self, x):
        h = self.body(x)
        if self.past.numel() != len(x):
            self.past = h.new_zeros(len(x))
        if self.training:
            with torch.no_grad():
                self.past = 0.9 * self.past + 0.1 * h.mean(1)
        return self.head(h - (self.past[:, None] if len(x) == len(self.past) else 0))


def test_a_mean_that_is_as_wide_as_the_batch_is_large_is_no_state_of_its_samples():
    assert len(X) == 12
    found = told(lambda: Centred(12))
    assert found["state-unsaved"].status == "violated"
    assert found["state-unsaved"].culprits[0].name == "past"


def test_a_past_with_one_entry_per_sample_is_left_out():
    assert "state-unsaved" not in told(lambda: Remembering(12))


class Book(nn.Module):
    """Codes that the first batch gives and each further one moves; a flag says whether there was one."""

    def __init__(self, *, kept: bool) -> None:
        super().__init__()
        flag = torch.tensor(False)
        if kept:
            self.register_buffer("begun", flag)
        else:
            self.begun = flag  # lost
        self.register_buffer("codes", torch.zeros(6))
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        if self.training:
            with torch.no_grad():
                if not self.begun:
                    self.codes.copy_(x[-1])
                    self.begun.fill_(True)
                self.codes.lerp_(x.mean(0), 0.03)
        return self.head(x * self.codes)


def test_a_lost_flag_after_which_learnt_buffers_are_overwritten_is_a_violation():
    found = told(lambda: Book(kept=False))["state-unsaved"]
    assert found.status == "violated"
    assert "overwrites codes after a restart" in found.summary
    assert found.location.text.endswith("# lost")
    assert not told(lambda: Book(kept=True))
