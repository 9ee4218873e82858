"""The operation that does the damage is cited, not one that only carries it on."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, Mask, Tokens, promises


@pytest.fixture(autouse=True)
def _fixed_seed():
    torch.manual_seed(0)


class Slopes(nn.Module):
    """Appends to each observation the slope up to it, or from it on, at times that are a vector."""

    def __init__(self, ahead):
        super().__init__()
        self.ahead, self.head = ahead, nn.Linear(6, 3)

    def forward(self, x):
        times = torch.arange(x.shape[1], dtype=x.dtype, device=x.device)
        slopes = (x[:, 1:] - x[:, :-1]) / (times[1:] - times[:-1]).unsqueeze(-1)
        if self.ahead:
            slopes = torch.cat((slopes, slopes[:, -1:]), dim=1)  # AHEAD
        else:
            slopes = torch.cat((slopes[:, :1] * 0, slopes), dim=1)
        return self.head(torch.cat((x, slopes), dim=-1))


def test_a_slope_of_later_observations_is_cited_beside_a_vector_of_times():
    contract = Contract(
        model=lambda: Slopes(ahead=True),
        inputs="B T 3",
        sizes={"B": 3, "T": 8},
        promises=(promises.Causal(),),
    )
    (found,) = contract.check(["causality"]).findings
    assert (found.status, found.code) == ("violated", "future-leak")
    assert found.location is not None, str(found)
    assert found.location.text.endswith("# AHEAD"), str(found)


def test_a_slope_of_earlier_observations_is_causal():
    contract = Contract(
        model=lambda: Slopes(ahead=False),
        inputs="B T 3",
        sizes={"B": 3, "T": 8},
        promises=(promises.Causal(),),
    )
    assert {f.status for f in contract.check(["causality"]).findings} == {"passed"}


class Language(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.rnn = nn.Embedding(12, 16), nn.GRU(16, 16, batch_first=True)
        self.head = nn.Linear(16, 12)

    def forward(self, ids):
        return self.head(self.rnn(self.words(ids))[0])


def next_token(logits, labels):
    logits, labels = logits[:, :-1], labels[:, 1:]  # HELPER
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def shifted_before(logits, labels):
    return next_token(logits[:, :-1], labels[:, 1:])  # OWN


def shifted_in_a_copy(logits, labels):
    return next_token(logits[:, :-1], labels.roll(-1, 1)[:, :-1])


def shifted(loss):
    ids = torch.randint(0, 12, (4, 9))
    contract = Contract(
        model=Language, batch=((ids,), ids.clone()), loss=loss, promises=(promises.Causal(),)
    )
    (found,) = contract.check(["label-shift"]).findings
    return found


def test_both_shifts_of_the_labels_are_cited():
    found = shifted(shifted_before)
    assert (found.status, found.code) == ("violated", "label-shift")
    assert found.location.text.endswith("# OWN")
    places = [c.location for c in found.culprits if c.location is not None]
    helper = next(place for place in places if place.text.endswith("# HELPER"))
    assert found.cause.endswith(f"on lines {found.location.line} and {helper.line}")
    assert "created" not in found.fix


def test_a_shift_that_copies_the_labels_is_not_followed():
    found = shifted(shifted_in_a_copy)
    assert (found.status, found.code) == ("violated", "label-shift")
    assert found.cause == "logits and y are shifted twice"


def test_labels_that_are_shifted_once_pass():
    assert shifted(next_token).status == "passed"


def features(x):
    return F.elu(x) + 1  # ONE


class Linear(nn.Module):
    """Linear attention whose values are divided by the length, and the result multiplied by it."""

    def __init__(self, mask, times=True):
        super().__init__()
        self.mask, self.times = mask, times
        self.embed = nn.Embedding(20, 8, padding_idx=0)
        self.head = nn.Linear(8, 4)

    def forward(self, ids, mask):
        x, real = self.embed(ids), mask[:, :, None].to(torch.get_default_dtype())
        keys, values = features(x), x * real
        if self.mask == "before":
            keys = features(x * real)  # CALLED
        elif self.mask == "after":
            keys = keys * real
        length = x.shape[1]
        values = values / length  # DIVIDED
        mixed = torch.einsum("bsd,bse->bde", keys, values)
        total = keys.sum(1)  # SUM
        out = torch.einsum("bld,bde->ble", features(x), mixed)
        out = out / torch.einsum("bld,bd->bl", features(x), total)[..., None]
        return self.head(out * length if self.times else out) * real


def padded(mask, times=True):
    contract = Contract(
        model=lambda: Linear(mask, times),
        inputs={"ids": Tokens("B T", vocab=20, pad=0), "mask": Mask("B T", kind="right")},
        sizes={"B": 3, "T": (3, 12)},
        promises=(promises.PaddingInvariant(ids="ids", mask="mask"),),
    )
    (found,) = contract.check(["padding-invariance"]).findings
    return found


def test_a_length_that_cancels_out_is_not_blamed_for_the_padding():
    found = padded("before")
    assert (found.status, found.code) == ("violated", "padding-leak")
    assert found.location.text.endswith("# SUM"), str(found)
    cited = [c.location.text for c in found.culprits if c.location is not None]
    assert any(text.endswith("# ONE") for text in cited)
    assert any(text.endswith("# CALLED") for text in cited)
    assert "features is called on line" in found.because


def test_a_length_that_stays_is_blamed():
    found = padded("after", times=False)
    assert (found.status, found.code) == ("violated", "padding-leak")
    assert found.location.text.endswith("# DIVIDED"), str(found)


def test_keys_that_are_masked_after_the_map_pass():
    assert padded("after").status == "passed"


class Scaled(nn.Module):
    """Scales its input by the largest value of the batch in training, and by the last of these in evaluation."""

    def __init__(self, kind):
        super().__init__()
        self.kind, self.learns, self.head = kind, True, nn.Linear(4, 2)
        self.register_buffer("scale", torch.ones(()))

    def learn(self, x):
        self.scale = x.detach().abs().amax()  # REPLACED

    def forward(self, x):
        learns = self.learns and (self.training or self.kind == "always")  # GUARD
        if learns:
            self.learn(x)
        if self.kind == "moved":
            self.scale = self.scale.to(x)
            x = x - x.mean(0)  # MIXED
        return self.head(x / self.scale)


@pytest.mark.parametrize(
    ("kind", "line"), [("always", "# REPLACED"), ("moved", "# MIXED"), ("training", "")]
)
def test_a_buffer_that_evaluation_replaces_is_cited_where_it_mixes_samples(kind, line):
    contract = Contract(
        model=lambda: Scaled(kind), batch=((torch.randn(12, 4),), torch.arange(12) % 2),
        inputs="B 4", sizes={"B": (2, 16)}, loss=F.cross_entropy,
    )  # fmt: skip
    report = contract.check(["batch-independence", "batch-sizes"])
    if not line:
        assert not report.causes, str(report)
        return
    found = report.causes[0]
    assert found.status == "violated"
    assert found.location.text.endswith(line), str(found)
    cited = [c.location.text for c in found.culprits if c.location is not None]
    assert any(text.endswith("# GUARD") for text in cited) == (kind == "always")
    assert ("an eval forward computes scale" in found.cause) == (kind == "always")


def weighted(kind):
    """Return a loss that weights classes by their inverse counts, where some class is absent."""

    def loss(logits, labels):
        counts = F.one_hot(labels, 3).sum(0).to(logits.dtype)
        weights = 1 / counts  # DIVIDED
        absent = torch.isinf(weights)
        if kind == "where":
            weights = torch.where(absent, weights.max(), weights)  # PUT
        elif kind == "index":
            weights[~torch.isfinite(weights)] = weights.max()  # PUT
        elif kind == "other":
            weights = torch.where(torch.isnan(weights), weights.min(), weights)
        elif kind == "written":
            weights = weights.masked_fill(absent, -torch.inf)
        elif kind == "right":
            weights = torch.where(absent, weights[~absent].max(), weights)
        errors = (logits - F.one_hot(labels, 3)).square().mean(0)
        return (errors * weights).sum() / weights.sum()

    return loss


@pytest.mark.parametrize("kind", ["where", "index", "other", "written", "right"])
def test_a_replacement_that_is_not_finite_is_cited(kind):
    contract = Contract(
        model=lambda: nn.Linear(4, 3), batch=((torch.randn(8, 4),), torch.arange(8) % 2),
        loss=weighted(kind),
    )  # fmt: skip
    report = contract.check(["gradients-finite"])
    if kind == "right":
        assert not report.causes
        return
    (found,) = report.causes
    assert found.code == "non-finite-forward"
    puts = kind in ("where", "index")
    assert found.location.text.endswith("# PUT") == puts, str(found)
    assert ("puts in its place is not finite either" in found.cause) == puts
    if puts:
        assert found.culprits[0].name in ("torch.where", "Tensor.__setitem__")
