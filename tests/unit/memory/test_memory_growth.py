from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from memory_seeded import Attention, attention, distances
from memory_zoo import MLP, ZOO, ConvNet, Transformer
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from pytest_torchcheck import Contract, DeclarationError, Labels, Tokens
from pytest_torchcheck.measure.fit import fit_power
from pytest_torchcheck.measure.growth import growth_sizes, measure_growth
from pytest_torchcheck.probes.memory import MemoryTracker
from pytest_torchcheck.probes.memory.fake import Unmeasurable


@pytest.mark.parametrize(
    ("formula", "power"),
    [
        (lambda n: 7, 0),
        (lambda n: 14336 * n + 5, 1),
        (lambda n: 3 * n * n - 2 * n + 1, 2),
        (lambda n: n**3, 3),
    ],
    ids=["constant", "affine", "quadratic", "cubic"],
)
@pytest.mark.parametrize("sizes", [(4, 8, 12, 16, 20), (1, 2, 5, 16, 128)], ids=["even", "uneven"])
def test_polynomials_are_found_exactly(formula, power, sizes):
    law = fit_power(sizes, [formula(n) for n in sizes])
    assert (law.power, law.exact, law.since) == (power, True, sizes[0])
    for n in (3, 50):
        assert sum(c * n**k for k, c in enumerate(law.coefficients)) == pytest.approx(formula(n))


def test_the_law_of_large_sizes_counts_where_small_ones_peak_elsewhere():
    law = fit_power((1, 2, 3, 4, 5, 6), (1000, 1000, 3000, 4000, 5000, 6000))
    assert (law.power, law.exact, law.since) == (1, True, 3)


def test_rounding_does_not_hide_the_power():
    sizes = (16, 28, 40, 52, 64)
    rounded = [4096 * -(-(700 * n) // 4096) for n in sizes]
    assert fit_power(sizes, rounded).power == 1


def test_rounding_does_not_look_like_a_higher_power():
    sizes = (10, 20, 30, 40, 50, 60)
    bent = [
        10_000 * n + (n - 10) * (n - 20) // 100 for n in sizes
    ]  # exactly quadratic, by 20 bytes
    law = fit_power(sizes, bent)
    assert (law.power, law.exact) == (1, False)
    assert fit_power(sizes, [10_000 * n + 100 * n * n for n in sizes]).power == 2


def test_a_kink_is_no_higher_power_than_any_part_has():
    sizes = (8, 70, 132, 194, 256)
    values = [max(900 * n, 10 * n * n, 14 * n * n - 100 * n) for n in sizes]
    assert fit_power(sizes, values, highest=2).power == 2


def test_three_sizes_are_needed():
    with pytest.raises(ValueError, match="three sizes"):
        fit_power((1, 2), (1, 2))
    with pytest.raises(ValueError, match="three sizes"):
        fit_power((1, 2, 2), (1, 2, 2))


def test_laws_are_written_as_people_do():
    law = fit_power((1, 2, 3, 4), [2048 * n * n + 12 for n in (1, 2, 3, 4)])
    assert law.text("T") == "2.0 KiB·T² + 12 B"
    assert fit_power((1, 2, 3, 4), [5 * n for n in (1, 2, 3, 4)]).text("N", "FLOP") == "5 FLOP·N"


def test_explicit_attention_is_quadratic_and_its_line_is_named():
    found = measure_growth(attention(True), "T")
    assert (found.power, found.exact) == (2, True)
    assert found.fastest.location.text.endswith("# BUG")
    assert found.fastest.shape == (2, 2, 512, 512)
    assert found.fastest_power == 2
    assert found.lines[0][0].text.endswith("# BUG")
    assert found.sizes == (17, 116, 215, 314, 413, 512)


def test_fused_attention_is_linear_in_memory_and_quadratic_in_work():
    found = measure_growth(attention(False), "T")
    assert (found.power, found.exact) == (1, True)
    assert found.flops_power == 2
    assert len(set(found.parameters)) == 1


def test_pairs_of_samples_are_quadratic_in_the_batch():
    assert measure_growth(distances(True), "B").power == 2
    assert measure_growth(distances(False), "B").power == 1


def test_small_batches_are_seen_behind_a_large_optimizer():
    contract = Contract(
        model=lambda: MLP(width=128, depth=2), inputs="B 128", targets=Labels("B", classes=10),
        sizes={"B": (1, 9)}, loss=F.cross_entropy,
    )  # fmt: skip
    found = measure_growth(contract, "B")
    assert (found.power, found.exact) == (1, True)
    assert found.bytes[-1] > 4 * found.transient_bytes[-1]


def test_images_grow_linearly_in_each_side():
    contract = Contract(
        model=ConvNet, inputs="B 3 H W", targets=Labels("B", classes=10),
        sizes={"B": (1, 4), "H": (16, 48), "W": (16, 48)}, loss=F.cross_entropy,
    )  # fmt: skip
    for symbol in "BHW":
        found = measure_growth(contract, symbol, step="inference")
        assert found.power == 1, symbol


def test_sizes_lie_in_the_declared_range():
    contract = Contract(
        model=lambda: nn.Linear(4, 4), inputs="B T 4",
        sizes={"B": (2, 3), "T": (16, 96, 16)},
    )  # fmt: skip
    assert growth_sizes(contract, "T") == (16, 32, 48, 64, 80, 96)
    assert growth_sizes(contract, "B") == ()
    with pytest.raises(DeclarationError, match="a law needs three sizes"):
        measure_growth(contract, "B")
    with pytest.raises(DeclarationError, match="no input has the symbol 'X'"):
        measure_growth(contract, "X")


def test_what_cannot_be_faked_can_be_measured_for_real():
    entry = ZOO["moe"]
    contract = Contract(
        model=entry.build,
        inputs="B 64",
        targets=Labels("B", classes=10),
        sizes={"B": (16, 96)},
        loss=entry.loss,
    )
    with pytest.raises(Unmeasurable):
        measure_growth(contract, "B")
    found = measure_growth(contract, "B", sizes=(32, 64, 96), fake=False)
    assert found.power == pytest.approx(1, abs=0.25)
    assert not found.fake


@pytest.mark.parametrize(
    "name", ["mlp", "conv", "unet", "moe", "transformer-explicit", "checkpointed"]
)
def test_flops_are_those_of_torchs_counter(name):
    entry = ZOO[name]
    torch.manual_seed(0)
    model, (args, targets) = entry.build(), entry.batch()

    def step() -> None:
        entry.loss(model(*args), targets).backward()

    with FlopCounterMode(display=False) as counter:
        step()
    tracker = MemoryTracker(model=model, flops=True)
    with tracker:
        step()
    assert sum(count for _, count, _, _ in tracker.flops) == counter.get_total_flops() > 0


def test_fused_attention_and_lstm_layers_count_on_the_cpu_too():
    b, h, t, d = 2, 3, 16, 8
    q, k, v = (torch.randn(b, h, t, d, requires_grad=True) for _ in range(3))
    tracker = MemoryTracker(flops=True)
    with tracker:
        F.scaled_dot_product_attention(q, k, v).sum().backward()
    by_phase = {phase: count for phase, count, _, _ in tracker.flops}
    product = 2 * b * h * t * t * d
    assert by_phase["forward"] == 2 * product
    assert by_phase["backward"] == 5 * product  # the scores are made again

    model, x = nn.LSTM(8, 16), torch.randn(5, 3, 8)
    tracker = MemoryTracker(model=model, flops=True)
    with tracker:
        model(x)[0].sum().backward()
    weights = 4 * 16 * (8 + 16)
    assert [count for _, count, _, _ in tracker.flops] == [2 * 15 * weights, 4 * 15 * weights]


def test_flops_name_module_and_line():
    model = Attention(True)
    ids = torch.randint(0, 50, (2, 16))
    tracker = MemoryTracker(model=model, inputs=ids, flops=True)
    with tracker:
        model(ids).sum().backward()
    lines = {(phase, module): site[1] for phase, _, module, site in tracker.flops}
    assert lines["forward", "qkv"] == lines["backward", "qkv"]


def test_growth_is_plain_data():
    import json

    contract = Contract(
        model=lambda: Transformer(depth=1), inputs=Tokens("B T", vocab=100), targets=Labels("B T", classes=100),
        sizes={"T": (8, 24)}, loss=lambda o, y: F.cross_entropy(o, y.flatten()),
    )  # fmt: skip
    data = json.loads(json.dumps(measure_growth(contract, "T", sizes=(8, 16, 24)).to_dict()))
    assert data["symbol"] == "T"
    assert len(data["bytes"]) == 3


class Short(nn.Module):
    """Scores that are no more than a spike of the forward at short lengths: the wide layer is the peak."""

    def __init__(self, chunked):
        super().__init__()
        self.chunked = chunked
        self.wide, self.back = nn.Linear(64, 512), nn.Linear(512, 64)

    def forward(self, x):
        if self.chunked:
            mixed = x.cumsum(1)
        else:
            with torch.no_grad():
                scores = x @ x.transpose(1, 2)
                mixed = scores.softmax(-1) @ x
        return self.back(torch.relu(self.wide(mixed)))


@pytest.mark.parametrize("chunked", [False, True])
def test_a_quadratic_beneath_the_peak_is_one_all_the_same(chunked):
    declared = Contract(
        model=lambda: Short(chunked),
        inputs="B T 64",
        sizes={"B": 4, "T": (8, 64)},
        growth={"T": 1},
    )
    report = declared.check(["memory-growth"])
    if chunked:
        assert report.ok
        return
    (finding,) = report.causes
    assert finding.code == "memory-growth"
    assert "x @ x.transpose(1, 2)" in finding.location.text or "softmax" in finding.location.text
    assert "beneath the peak" in finding.because
