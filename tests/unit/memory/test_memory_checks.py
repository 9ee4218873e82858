from __future__ import annotations

import json

import pytest
import torch
import torch.nn.functional as F
from memory_seeded import SEEDED, attention, kept_by_a_list
from memory_zoo import ZOO
from torch import nn

from pytest_torchcheck import Contract, Labels, Report


def findings(contract: Contract, *checks: str):
    return contract.check(checks).findings


@pytest.mark.parametrize("name", SEEDED)
def test_seeded_bugs_are_found_with_their_line_and_mended_twins_pass(name):
    seeded = SEEDED[name]
    torch.manual_seed(0)
    (found,) = findings(seeded.contract(True), seeded.check)
    assert found.status == "violated"
    assert found.code in seeded.codes
    assert found.location.text.endswith("# BUG")
    assert found.culprits
    for field in (found.observed, found.cause, found.because, found.fix):
        assert field
    torch.manual_seed(0)
    (mended,) = findings(seeded.contract(False), seeded.check)
    assert mended.status == "passed", mended.summary


@pytest.mark.parametrize("name", ZOO)
def test_correct_models_pass(name):
    entry = ZOO[name]
    torch.manual_seed(0)
    contract = Contract(
        model=entry.build, batch=entry.batch(), loss=entry.loss, optimizer=entry.optimizer,
        memory={"total": "32 MiB", "parameters": "8 MiB"}, flops="2 GFLOP",
    )  # fmt: skip
    found = findings(contract, "peak-memory", "flops", "step-leak", "inference-memory")
    assert [f.status for f in found] == ["passed"] * 4, [f.summary for f in found]


def small(**fields) -> Contract:
    return Contract(
        model=lambda: nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)),
        **{"inputs": "B 16", "targets": Labels("B", classes=4), "loss": F.cross_entropy, **fields},
    )


def test_ceilings_hold_at_the_largest_declared_sizes():
    sizes = {"B": (2, 512)}
    (found,) = findings(small(sizes=sizes, memory="64 KiB"), "peak-memory")
    assert found.status == "violated"
    assert "B=512" in found.summary
    assert "would fit" in found.fix
    (held,) = findings(small(sizes={"B": (2, 8)}, memory="64 KiB"), "peak-memory")
    assert held.status == "passed"
    assert "on fake tensors at B=8" in held.summary


def test_ceilings_of_phases_and_categories_are_compared_one_by_one():
    contract = small(memory={"total": "1 MiB", "optimizer_state": "100 B", "forward": "1 MiB"})
    (found,) = findings(contract, "peak-memory")
    assert found.summary.startswith("optimizer state of a training step takes")
    assert "of 100 allowed" in found.observed
    assert "peak " not in found.observed.partition(";")[0]
    contract = small(memory={"backward": "1 KiB"})
    (found,) = findings(contract, "peak-memory")
    assert found.summary.startswith("peak memory of the backward phase is")


def test_the_evidence_is_plain_and_holds_tables_and_the_timeline():
    report = small(memory="1 KiB").check(["peak-memory"])
    (found,) = report.findings
    data = json.loads(json.dumps(found.to_dict()))["evidence"]
    assert data["peak_bytes"] > 1024
    assert {row["category"] for row in data["categories"]} >= {"parameters", "gradients"}
    assert data["lines"][0]["bytes"] >= data["lines"][-1]["bytes"]
    assert data["timeline"]["peak_bytes"] == data["peak_bytes"]
    assert Report.from_json(report.to_json()).findings == (found,)


class Routed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(16, 4)

    def forward(self, x):
        rows = (x.sum(1) > 0).nonzero()[:, 0]
        return self.body(x).index_add(0, rows, self.body(x[rows]))


def test_data_dependent_models_run_for_real_or_say_why_not():
    fields = {"targets": Labels("B", classes=4), "loss": F.cross_entropy, "memory": "64 KiB"}
    near = Contract(model=Routed, inputs="B 16", sizes={"B": (2, 32)}, **fields)
    (found,) = findings(near, "peak-memory")
    assert found.status == "passed"
    assert "measured on cpu" in found.summary
    far = Contract(model=Routed, inputs="B 16", sizes={"B": (2, 100_000)}, **fields)
    (found,) = findings(far, "peak-memory")
    assert (found.status, found.code) == ("inconclusive", "not-measurable")
    assert "nonzero" in found.location.text
    assert found.culprits[0].name == "aten.nonzero.default"


def test_what_does_not_train_is_not_applicable():
    contract = Contract(
        model=lambda: nn.Linear(4, 4).requires_grad_(False), inputs="B 4", memory="1 KiB", flops=100
    )
    found = findings(contract, "peak-memory", "flops", "step-leak")
    assert {f.status for f in found} == {"not-applicable"}


def test_flops_over_the_ceiling_name_phase_and_line():
    contract = Contract(
        model=lambda: attention(True).model(), batch=(torch.randint(0, 50, (2, 32)), torch.randint(0, 50, (2, 32))),
        loss=F.cross_entropy, flops="1 MFLOP",
    )  # fmt: skip
    (found,) = findings(contract, "flops")
    assert found.code == "flops-ceiling"
    assert "forward" in found.observed
    assert found.location.text
    assert found.evidence["flops"] > 1_000_000


def test_a_step_without_counted_operations_is_inconclusive():
    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(4))

        def forward(self, x):
            return x * self.scale

    (found,) = findings(Contract(model=Scale, inputs="B 4", flops=1), "flops")
    assert found.status == "inconclusive"


def test_growth_needs_a_range():
    contract = small(sizes={"B": (2, 3)}, growth={"B": 1})
    (found,) = findings(contract, "memory-growth")
    assert found.status == "inconclusive"
    assert "three sizes" in found.summary


def test_growth_below_the_promise_passes_with_its_law():
    (found,) = findings(small(sizes={"B": (2, 32)}, growth={"B": 2}), "memory-growth")
    assert found.status == "passed"
    assert "·B" in found.summary
    assert found.evidence["power"] == 1


def test_the_same_leak_in_inference_points_to_the_one_in_training():
    found = {f.check: f for f in findings(kept_by_a_list(True), "step-leak", "inference-memory")}
    assert found["step-leak"].root is None
    assert (
        found["inference-memory"].root is not None or found["inference-memory"].status == "passed"
    )
    assert found["step-leak"].evidence["holders"][-1] == "Keeper.seen"


class OnlyInEval(nn.Linear):
    def __init__(self) -> None:
        super().__init__(16, 4)
        self.seen: list[torch.Tensor] = []

    def forward(self, x):
        y = super().forward(x)
        if not self.training:
            self.seen.append(y.repeat(1, 100))
        return y


def test_a_leak_of_calls_alone_is_found():
    contract = Contract(
        model=OnlyInEval, inputs="B 16", targets=Labels("B", classes=4), loss=F.cross_entropy
    )
    found = {f.check: f for f in findings(contract, "step-leak", "inference-memory")}
    assert found["step-leak"].status == "passed"
    assert (found["inference-memory"].status, found["inference-memory"].code) == (
        "violated",
        "leak-tensors",
    )
    assert "self.seen.append" in found["inference-memory"].location.text


class TurnsOn(nn.Linear):
    def forward(self, x):
        with torch.enable_grad():
            return super().forward(x).relu()


def test_a_graph_under_no_grad_is_found_with_its_line():
    (found,) = findings(Contract(model=lambda: TurnsOn(4, 4), inputs="B 4"), "inference-memory")
    assert (found.status, found.code) == ("violated", "inference-graph")
    assert "enable_grad" in found.location.text
    assert "saved for backward" in found.observed


def test_gradients_inside_a_forward_are_legal():
    class Energy(nn.Linear):
        def forward(self, x):
            with torch.enable_grad():
                x = x.detach().requires_grad_()
                (force,) = torch.autograd.grad(super().forward(x).square().sum(), x)
            return force.detach()

    (found,) = findings(Contract(model=lambda: Energy(4, 4), inputs="B 4"), "inference-memory")
    assert found.status == "passed"


def test_detached_tensors_in_the_users_loop_are_only_suspicious():
    history: list[torch.Tensor] = []

    def train_step(model, optimizer, inputs, targets):
        optimizer.zero_grad()
        out = model(*inputs)
        history.append(out.detach().repeat(1, 100))
        loss = F.cross_entropy(out, targets)
        loss.backward()
        optimizer.step()
        return loss.detach()

    contract = small(
        optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=0.1), train_step=train_step
    )
    (found,) = findings(contract, "step-leak")
    assert (found.status, found.code) == ("suspicious", "leak-tensors")
    assert "history.append" in found.location.text
    history.clear()


def test_a_leak_in_the_users_step_names_its_line():
    losses: list[torch.Tensor] = []

    def train_step(model, optimizer, inputs, targets):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(*inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss)
        return loss.detach()

    contract = small(
        optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=0.1), train_step=train_step
    )
    (found,) = findings(contract, "step-leak")
    assert (found.status, found.code) == ("violated", "leak-graph")
    assert found.location.text == "losses.append(loss)"
    losses.clear()


def test_a_real_out_of_memory_says_what_was_live():
    class Refused(nn.Linear):
        def forward(self, x):
            y = super().forward(x).relu()
            if type(y) is torch.Tensor:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
            return y

    contract = Contract(
        model=lambda: Refused(16, 64),
        batch=(torch.randn(8, 16), torch.randn(8, 64)),
        loss=F.mse_loss,
        memory="1 MiB",
    )
    (found,) = findings(contract, "peak-memory")
    assert (found.status, found.code) == ("violated", "out-of-memory")
    assert found.evidence["phase"] == "forward"
    assert found.evidence["largest_tensors"]
    assert "were live then, in forward" in found.because


def test_low_precision_is_measured_where_only_that_is_declared():
    full = small(sizes={"B": (1, 64)}, memory="1 MiB")
    half = small(sizes={"B": (1, 64)}, memory="1 MiB", dtypes=("bfloat16",))
    peaks = [findings(c, "peak-memory")[0].evidence["peak_bytes"] for c in (full, half)]
    assert peaks[1] < 0.6 * peaks[0]


def test_no_memory_check_no_cost(monkeypatch):
    from pytest_torchcheck.probes.memory import tracker

    def refuse(*_, **__):
        raise AssertionError("tracked")

    monkeypatch.setattr(tracker.MemoryTracker, "__init__", refuse)
    report = small().check(["step-leak", "inference-memory"])
    assert report.ok
    assert not any(
        f.check in ("peak-memory", "memory-growth", "flops")
        for f in small().check(["backward"]).findings
    )


@pytest.mark.parametrize(
    "build",
    [
        lambda: nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.LazyLinear(4)),
        lambda: torch.jit.trace(nn.Linear(16, 4), torch.randn(2, 16)),
        lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(16, 4))),
    ],
    ids=["lazy", "traced", "parametrised"],
)
@pytest.mark.filterwarnings("ignore:.*torch.jit.*")
def test_modules_of_unusual_kinds_are_measured(build):
    contract = Contract(
        model=build, inputs="B 16", targets=Labels("B", classes=4), loss=F.cross_entropy,
        sizes={"B": (2, 16)}, memory="1 MiB", growth={"B": 1}, flops="1 MFLOP",
    )  # fmt: skip
    found = findings(
        contract, "peak-memory", "memory-growth", "flops", "step-leak", "inference-memory"
    )
    assert [f.status for f in found] == ["passed"] * 5, [f.summary for f in found]


class NeedsScale(torch.optim.SGD):
    """An optimizer that cannot step before somebody has told it a scale."""

    def step(self, closure=None):
        return super().step(closure) * self.scale


def test_the_users_own_error_is_explained_once():
    contract = small(
        optimizer=lambda m: NeedsScale(m.parameters()),
        sizes={"B": (2, 16)},
        memory="1 MiB",
        growth={"B": 1},
    )
    found = {f.check: f for f in findings(contract, "memory-growth", "peak-memory")}
    assert found["memory-growth"].status == "violated"
    assert "scale" in found["memory-growth"].summary
    assert found["peak-memory"].root is not None


def test_an_optimizer_that_takes_a_closure_is_measured():
    contract = small(
        optimizer=lambda m: torch.optim.LBFGS(m.parameters()),
        sizes={"B": (2, 16)},
        memory="1 MiB",
        growth={"B": 1},
    )
    found = findings(contract, "memory-growth", "peak-memory")
    assert [f.status for f in found] == ["passed"] * 2, [f.summary for f in found]


class ForceField(nn.Module):
    """Gives the energy of positions and its negative gradient."""

    def __init__(self, *, create_graph=True, detached=False, aside=False):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
        self.aside = nn.Linear(3, 2)
        self.create_graph, self.detached, self.with_aside = create_graph, detached, aside

    def forward(self, x):
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            aside = self.aside(x.detach())
            energy = self.net(x)
            create = self.training if self.create_graph is None else self.create_graph
            forces = -torch.autograd.grad(energy.sum(), x, create_graph=create)[0]
        if self.detached and not self.training:
            energy, forces = energy.detach(), forces.detach()
        return (energy, forces, aside) if self.with_aside else (energy, forces)


def test_the_graph_of_a_derivative_that_the_forward_takes_is_no_mistake():
    (found,) = findings(Contract(model=lambda: ForceField(), inputs="B 3"), "inference-memory")
    assert (found.status, found.code) == ("suspicious", "inference-graph")
    assert "torch.autograd.grad" in found.location.text
    assert "create_graph=self.training" in found.fix
    assert ".detach()" in found.fix


def test_a_derivative_whose_graph_is_gone_keeps_nothing():
    for fields in ({"detached": True}, {"create_graph": None}, {"create_graph": False}):
        made = Contract(model=lambda fields=fields: ForceField(**fields), inputs="B 3")
        (found,) = findings(made, "inference-memory")
        assert found.status == "passed"


def test_what_no_derivative_needs_is_a_mistake_beside_one():
    (found,) = findings(
        Contract(model=lambda: ForceField(detached=True, aside=True), inputs="B 3"),
        "inference-memory",
    )
    assert (found.status, [c.name for c in found.culprits]) == ("violated", ["output[2]"])


def test_a_loss_that_differentiates_the_output_needs_its_graph():
    class Field(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))

        def forward(self, x):
            with torch.enable_grad():
                x = x.detach().requires_grad_()
                return {"x": x, "u": self.net(x)}

    def residual(output, targets):
        (slope,) = torch.autograd.grad(output["u"].sum(), output["x"], create_graph=True)
        return (slope + output["u"] - targets).square().mean()

    made = Contract(model=Field, inputs="B 1", targets="B 1", loss=residual)
    (found,) = findings(made, "inference-memory")
    assert (found.status, found.code) == ("suspicious", "inference-graph")
    assert "the loss computes a derivative" in found.cause


def test_the_history_of_an_optimizer_is_no_leak():
    kept = []

    def step(leaks):
        def training(model, optimizer, inputs, targets):
            def closure():
                optimizer.zero_grad()
                loss = F.mse_loss(model(*inputs), targets)
                loss.backward()
                return loss

            if leaks:
                kept.append(targets.repeat(100, 1))
            return optimizer.step(closure)

        return training

    for leaks in (False, True):
        report = Contract(
            model=lambda: nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 3)),
            batch=((torch.randn(6, 8),), torch.randn(6, 3)),
            optimizer=lambda m: torch.optim.LBFGS(m.parameters(), max_iter=2),
            train_step=step(leaks),
        ).check(["step-leak"])
        (finding,) = report.findings
        assert (finding.status == "passed") is not leaks, str(report)
