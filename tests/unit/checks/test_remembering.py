"""What a call keeps decides no later call: caches with stale contents, and caches that are sound."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, Ints

X = torch.randn(4, 5, 6, generator=torch.Generator().manual_seed(1))
Y = torch.tensor([0, 1, 2, 0])


class Weighted(nn.Module):
    """Pools its frames by weights that it keeps for each shape."""

    def __init__(self, how):
        super().__init__()
        self.score, self.head = nn.Linear(6, 1), nn.Linear(6, 3)
        self.how, self.kept, self.last = how, {}, None

    def weights(self, x):
        return torch.softmax(self.score(x), dim=1)

    def forward(self, x):
        if self.how == "by shape":
            if x.shape not in self.kept:
                self.kept[x.shape] = self.weights(x)
            w = self.kept[x.shape]
        elif self.how == "once":
            if self.last is None or self.last.shape[:2] != x.shape[:2]:
                self.last = self.weights(x)
            w = self.last
        elif self.how == "positions":
            if x.shape not in self.kept:
                self.kept[x.shape] = torch.softmax(torch.arange(x.shape[1]).cos(), 0)[:, None]
            w = self.kept[x.shape]
        elif self.how == "by content":
            key = x.detach().numpy().tobytes()
            if key not in self.kept:
                self.kept[key] = self.weights(x)
            w = self.kept[key]
        else:  # shown to whoever asks, and made anew in each call
            w = self.last = self.weights(x)
        return self.head((x * w).sum(1))


def told(make):
    made = Contract(model=make, batch=((X,), Y), loss=F.cross_entropy)
    return [f for f in made.check(checks=["eval-purity"]).findings if f.status != "passed"]


@pytest.mark.parametrize(
    ("how", "name", "line"),
    [("by shape", "kept", "self.kept[x.shape] ="), ("once", "last", "self.last = self.weights(x)")],
)
def test_a_cache_that_outlives_its_data(how, name, line):
    (finding,) = told(lambda: Weighted(how))
    assert (finding.status, finding.code) == ("violated", "eval-remembers")
    assert finding.culprits[0].name == name
    assert line in finding.location.text
    assert f"with {name} restored" in finding.because


@pytest.mark.parametrize("how", ["positions", "by content", "shown"])
def test_caches_that_hold_what_they_say(how):
    assert not told(lambda: Weighted(how))


class Longest(nn.Module):
    """A table as long as the longest input so far, which is cut to the input's length."""

    def __init__(self):
        super().__init__()
        self.table, self.embed = nn.Embedding(9, 6), torch.zeros(0)
        self.head = nn.Linear(6, 3)

    def forward(self, ids):
        if len(self.embed) < ids.shape[1]:
            self.embed = torch.arange(ids.shape[1]).float().sin()
        return self.head((self.table(ids) * self.embed[: ids.shape[1], None]).mean(1))


def test_a_table_that_only_grows():
    made = Contract(
        model=Longest, inputs=Ints("B T", low=0, high=9), batch=(torch.randint(0, 9, (4, 5)), Y),
        loss=F.cross_entropy,
    )  # fmt: skip
    assert [f.status for f in made.check(checks=["eval-purity"]).findings] == ["passed"]


class Modal(nn.Module):
    """Something that a forward in eval mode leaves in an attribute: what decides training, or what does not."""

    def __init__(self, how):
        super().__init__()
        self.body, self.head = nn.Linear(6, 12), nn.Linear(12, 3)
        self.how, self.rate, self.folded, self.seen = how, 0.5, None, 0
        self.hidden = torch.zeros(1, 12)

    def train(self, mode=True):
        if self.how == "folded, and forgotten":
            self.folded = None
        return super().train(mode)

    def forward(self, x):
        h = self.body(x.mean(1))
        if self.how == "rate":
            self.rate = self.rate if self.training else 0.0
            h = F.dropout(h, self.rate)
        elif "folded" in self.how:
            if not self.training and self.folded is None:
                self.folded = 2 * self.head.weight
            weight = self.head.weight if self.folded is None else self.folded
            return F.linear(h, weight if self.training else 2 * self.head.weight)
        elif self.how == "counted":
            self.seen += 0 if self.training else len(x)
        elif self.how == "carried":
            h = (h + 0 * self.hidden).tanh() if not self.training else (h + self.hidden).tanh()
            self.hidden = h.detach().mean(0, keepdim=True)
        return self.head(h)


@pytest.mark.parametrize(
    ("how", "name", "line"),
    [
        ("rate", "rate", "self.rate = self.rate if self.training else 0.0"),
        ("folded", "folded", "self.folded = 2 * self.head.weight"),
    ],
)
def test_an_evaluation_that_changes_training(how, name, line):
    (finding,) = told(lambda: Modal(how))
    assert (finding.status, finding.code) == ("violated", "eval-remembers")
    assert finding.summary.startswith("a training forward gives another output after an evaluation")
    assert finding.culprits[0].name == name
    assert line in finding.location.text
    assert f"with {name} restored" in finding.because


@pytest.mark.parametrize("how", ["plain", "folded, and forgotten", "counted", "carried"])
def test_evaluations_that_leave_training_alone_and_states_that_are_carried_anyway(how):
    assert not told(lambda: Modal(how))


class Merged(nn.Module):
    """Layers that make something of their weights for evaluation."""

    def __init__(self, how):
        super().__init__()
        self.base, self.low = nn.Linear(6, 6), nn.Linear(6, 6, bias=False)
        self.how, self.inverse, self.merged, self.angles = how, None, False, None

    def train(self, mode=True):
        super().train(mode)
        if self.how == "merged in place" and self.merged == mode:
            with torch.no_grad():
                self.base.weight.add_(self.low.weight, alpha=-1.0 if mode else 1.0)
            self.merged = not mode
        elif self.how != "kept for ever":
            self.inverse = None
        return self

    def forward(self, x):
        x = x.mean(1)
        if self.how == "merged in place":
            return self.base(x) if self.merged else self.base(x) + self.low(x)
        if self.how == "positions":
            self.angles = torch.arange(6.0).cos() if self.angles is None else self.angles
            return self.base(x + self.angles)
        if self.training:
            return self.base(x) @ torch.linalg.inv(self.low.weight)
        if self.inverse is None:
            self.inverse = torch.linalg.inv(self.low.weight)
        return self.base(x) @ self.inverse


def loaded(how):
    made = Contract(model=lambda: Merged(how), batch=((X,), Y), loss=F.cross_entropy)
    return [
        f for f in made.check(checks=["state-dict-roundtrip"]).findings if f.status == "violated"
    ]


@pytest.mark.parametrize("how", ["kept for ever", "kept until train"])
def test_what_is_made_of_weights_outlives_a_load(how):
    made = Contract(model=lambda: Merged(how), batch=((X,), Y), loss=F.cross_entropy)
    findings = made.check(checks=["state-dict-roundtrip"]).findings
    found = {f.code: f for f in findings}["stale-after-load"]
    assert found.culprits[0].name == "inverse"
    assert "self.inverse = torch.linalg.inv" in found.location.text
    cleared = how == "kept until train"
    assert found.status == ("suspicious" if cleared else "violated")
    assert ("only a load in eval mode after a forward meets it" in found.cause) == cleared
    assert ("train() and eval() after a load" in found.fix) == cleared


class Biased(nn.Module):
    """Keeps the biases of its attention by their index in eval mode, as public vision models do."""

    def __init__(self, clears):
        super().__init__()
        self.query, self.head = nn.Linear(6, 6), nn.Linear(6, 3)
        self.biases = nn.Parameter(torch.randn(5))
        self.register_buffer("index", torch.arange(25).view(5, 5) % 5, persistent=False)
        self.clears, self.cache = clears, {}

    def train(self, mode=True):
        super().train(mode)
        if self.cache and (mode or self.clears == "always"):
            self.cache = {}
        return self

    def bias(self):
        if self.training:
            return self.biases[self.index]
        if "cpu" not in self.cache:
            self.cache["cpu"] = self.biases[self.index]
        return self.cache["cpu"]

    def forward(self, x):
        weights = torch.softmax(self.query(x) @ x.mT + self.bias(), dim=-1)
        return self.head((weights @ x).mean(1))


@pytest.mark.parametrize("clears", ["in train", "always"])
def test_a_cache_that_train_clears_is_only_suspicious_after_a_load(clears):
    made = Contract(model=lambda: Biased(clears), batch=((X,), Y), loss=F.cross_entropy)
    findings = made.check(checks=["state-dict-roundtrip"]).findings
    assert "violated" not in {f.status for f in findings}
    (found,) = [f for f in findings if f.code == "stale-after-load"]
    assert "train() does" in found.cause


@pytest.mark.parametrize("how", ["merged in place", "positions"])
def test_weights_merged_for_evaluation_and_tables_of_positions_are_sound(how):
    assert not loaded(how)


class Scaled(nn.Module):
    """Keeps the inverse of a scale that is no trained weight."""

    def __init__(self, how):
        super().__init__()
        scale = torch.rand(6) if how == "drawn" else torch.linspace(1.0, 2.0, 6)
        self.scale = nn.Parameter(scale + 0.5, requires_grad=how == "trained")
        self.head, self.inverse = nn.Linear(6, 3), None

    def forward(self, x):
        if self.training:
            return self.head(x.mean(1) / self.scale)
        if self.inverse is None:
            self.inverse = 1 / self.scale.detach()
        return self.head(x.mean(1) * self.inverse)


@pytest.mark.parametrize("how", ["constant", "drawn", "trained"])
def test_what_is_made_of_constants_alone_is_only_suspicious_after_a_load(how):
    made = Contract(model=lambda: Scaled(how), batch=((X,), Y), loss=F.cross_entropy)
    found = {f.code: f for f in made.check(checks=["state-dict-roundtrip"]).findings}
    assert found["stale-after-load"].status == ("suspicious" if how == "constant" else "violated")


class Rotates(nn.Module):
    """Keeps its angles by length, or by length and start."""

    def __init__(self, whole):
        super().__init__()
        self.whole, self.kept, self.head = whole, {}, nn.Linear(6, 3)

    def angles(self, start, length):
        key = (start, length) if self.whole else length  # HERE
        if key not in self.kept:
            self.kept[key] = torch.arange(start, start + length).float().cos()
        return self.kept[key][:, None]

    def forward(self, past, new):
        before = past.shape[1]
        return self.head(new * self.angles(before, new.shape[1]) + past.mean(1, keepdim=True))


def by_sizes(whole):
    batch = (torch.randn(4, 5, 6), torch.randn(4, 3, 6)), torch.arange(12).view(4, 3) % 3
    made = Contract(
        model=lambda: Rotates(whole), inputs=("B P 6", "B T 6"), batch=batch,
        sizes={"B": (1, 4), "P": (1, 40), "T": (1, 40)},
        loss=lambda o, y: F.cross_entropy(o.flatten(0, 1), y.flatten()),
    )  # fmt: skip
    return [f for f in made.check(["batch-sizes"]).findings if f.status != "passed"]


def test_what_is_kept_by_one_of_two_sizes():
    (finding,) = by_sizes(whole=False)
    assert (finding.status, finding.code) == ("violated", "eval-remembers")
    assert finding.location.text.endswith("# HERE")


def test_what_is_kept_by_both():
    assert by_sizes(whole=True) == []


class Grown(nn.Module):
    """Makes its layer when it first sees the width of its input, and notes that it did."""

    def __init__(self):
        super().__init__()
        self.ready = False

    def forward(self, x):
        if not self.ready:
            self.ready, self.scores = True, nn.Linear(x.shape[-1], 3)
        return self.scores(x.mean(1))


def test_a_layer_that_the_first_call_makes_is_what_outlives_it():
    (finding,) = told(Grown)
    assert (finding.status, finding.code) == ("violated", "eval-remembers")
    assert "initialises scores.weight, scores.bias" in finding.cause
    assert "exist after a forward, and not before" in finding.because
    made = Contract(model=Grown, batch=((X,), Y), loss=F.cross_entropy)
    roots = {f.code: f.root for f in made.check(["eval-purity", "registration"]).findings}
    assert roots["eval-remembers"] == "registration/parameter-late"


class Answering(nn.Linear):
    """Keeps its last answer beside the input that it was given, in evaluation."""

    def __init__(self, minds):
        super().__init__(6, 3)
        self.minds, self.given, self.answer = minds, None, None

    def forward(self, x):
        if self.training:
            return super().forward(x).mean(1)
        key = (x, self.weight._version, self.bias._version) if self.minds else (x,)
        if self.given is None or any(a is not b for a, b in zip(self.given, key, strict=True)):
            self.given, self.answer = key, super().forward(x).mean(1)
        return self.answer


@pytest.mark.parametrize("minds", [False, True])
def test_an_answer_that_is_kept_for_one_tensor(minds):
    contract = Contract(model=lambda: Answering(minds), batch=((X,), Y), loss=F.cross_entropy)
    found = [
        f.code for f in contract.check(["state-dict-roundtrip"]).findings if f.status == "violated"
    ]
    assert found == ([] if minds else ["stale-after-load"])
