"""What a checkpoint, a copy or a conversion loses is found and named; what is complete passes."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, Finding, promises

if TYPE_CHECKING:
    from collections.abc import Callable


torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _fixed_seed() -> None:
    torch.manual_seed(0)


class RandomBuffer(nn.Module):
    def __init__(self, *, persistent: bool) -> None:
        super().__init__()
        self.head = nn.Linear(8, 3)
        self.register_buffer("basis", torch.randn(8, 8), persistent=persistent)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.cos(x @ self.basis))


class RandomAttribute(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 3)
        self.basis = torch.randn(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.cos(x @ self.basis))


class Shuffled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 8)
        self.order = torch.randperm(8).tolist()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x)[:, self.order]


class PlainList(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = [nn.Linear(8, 8) for _ in range(2)]
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = F.relu(layer(x))
        return self.head(x)


class RunningMean(nn.Module):
    """Subtracts a mean that training moves."""

    def __init__(self, kept: str) -> None:
        super().__init__()
        self.head, self.kept = nn.Linear(8, 3), kept
        if kept in ("attribute", "unused"):
            self.mean = torch.zeros(8)
        else:
            self.register_buffer("mean", torch.zeros(8), persistent=kept == "persistent")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.mean(0).detach()
        return self.head(x if self.kept == "unused" else x - self.mean)


class DataInit(nn.Module):
    """Takes its scale from the first batch."""

    def __init__(self, *, buffer: bool) -> None:
        super().__init__()
        self.scale, self.head = nn.Parameter(torch.ones(8)), nn.Linear(8, 3)
        if buffer:
            self.register_buffer("ready", torch.tensor(False))
        else:
            self.ready = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.ready:
            with torch.no_grad():
                self.scale.copy_(1 / x.std(0))
            self.ready = torch.tensor(True) if isinstance(self.ready, torch.Tensor) else True
        return self.head(x * self.scale)


class Stateful(nn.Module):
    """Carries its hidden state from batch to batch, and counts."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.hidden, self.steps = nn.GRUCell(8, 4), None, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        self.hidden = self.rnn(x, self.hidden).detach()
        return self.rnn(x, self.hidden)


class Extra(nn.Module):
    def __init__(self, value: Any) -> None:
        super().__init__()
        self.head, self.value = nn.Linear(8, 3), value

    def get_extra_state(self) -> Any:
        return {"value": self.value}

    def set_extra_state(self, state: Any) -> None:
        self.value = state["value"]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x)


class LateBuffer(nn.Module):
    """Registers a persistent buffer when it first runs."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not hasattr(self, "scale"):
            self.register_buffer("scale", torch.ones(8))
        return self.head(x * self.scale)


class Overheard(nn.Module):
    def __init__(self, *, bound: bool) -> None:
        super().__init__()
        self.head = nn.Linear(8, 3)
        self.run = self._run if bound else (lambda x: self.head(x))

    def _run(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.run(x)


class Forgetful(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head, self.scale = nn.Linear(8, 3), 2.0

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "scale": 1.0}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x) * self.scale


class Locked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head, self.lock = nn.Linear(8, 3), threading.Lock()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x)


class Language(nn.Module):
    def __init__(self, tie: str) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(10, 8), nn.Linear(8, 10, bias=False)
        if tie == "parameter":
            self.out.weight = self.embed.weight
        elif tie == "data":
            self.out.weight.data = self.embed.weight.data
        elif tie == "copy":
            self.out.weight.data.copy_(self.embed.weight.data)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.out(self.embed(ids))


def find(model: Any, check: str, x: torch.Tensor | None = None, **fields: Any) -> list[Finding]:
    x = torch.randn(5, 8) if x is None else x
    return list(Contract(model=model, batch=((x,), None), **fields).check([check]).findings)


def only(found: list[Finding], code: str) -> Finding:
    assert [f.code for f in found] == [code], "\n\n".join(map(str, found))
    return found[0]


@pytest.mark.parametrize(
    ("build", "name", "line"),
    [
        (RandomAttribute, "basis", "self.basis ="),
        (lambda: RandomBuffer(persistent=False), "basis", "self.register_buffer"),
        (Shuffled, "order", "self.order ="),
    ],
    ids=["attribute", "buffer", "order"],
)
def test_state_outside_of_the_state_dict_is_lost(
    build: Callable[[], nn.Module], name: str, line: str
) -> None:
    found = only(find(build, "state-dict-roundtrip"), "state-lost")
    assert found.status == "violated"
    assert found.culprits[0].name == name
    assert found.location is not None
    assert line in found.location.text
    assert all((found.summary, found.observed, found.cause, found.because, found.fix))


@pytest.mark.parametrize(
    ("build", "name"),
    [
        (RandomAttribute, "basis"),
        (lambda: RandomBuffer(persistent=False), "basis"),
        (Shuffled, "order"),
    ],
    ids=["attribute", "buffer", "order"],
)
def test_what_an_instance_drew_is_lost_though_it_cannot_be_built_anew(
    build: Callable[[], nn.Module], name: str
) -> None:
    found = only(find(build(), "state-dict-roundtrip"), "state-lost")
    assert found.status == "violated"
    assert found.culprits[0].name == name
    assert "draws it" in found.because


def test_seeded_draws_and_tables_are_made_again() -> None:
    class Seeded(RandomAttribute):
        def __init__(self) -> None:
            super().__init__()
            self.basis = torch.arange(64.0).view(8, 8)

    assert only(find(Seeded(), "state-dict-roundtrip"), "held").status == "passed"


@pytest.mark.parametrize("kept", ["attribute", "buffer"])
@pytest.mark.parametrize("given", [False, True], ids=["factory", "module"])
def test_statistics_outside_of_the_state_dict(kept: str, given: bool) -> None:
    build = lambda: RunningMean(kept)  # noqa: E731
    found = find(build() if given else build, "state-dict-roundtrip")[-1]
    assert (found.status, found.code) == ("violated", "state-unsaved")
    assert [c.name for c in found.culprits] == ["mean"]
    assert all((found.location, found.observed, found.cause, found.because, found.fix))


def test_a_flag_that_a_checkpoint_forgets() -> None:
    found = find(lambda: DataInit(buffer=False), "state-dict-roundtrip")[-1]
    assert found.code == "state-unsaved"
    assert found.culprits[0].name == "ready"


@pytest.mark.parametrize(
    "build",
    [
        lambda: RunningMean("persistent"),
        lambda: RunningMean("unused"),
        lambda: DataInit(buffer=True),
        Stateful,
    ],
    ids=["persistent", "unused", "buffer", "stateful"],
)
@pytest.mark.parametrize("given", [False, True], ids=["factory", "module"])
def test_state_that_is_saved_unused_or_of_one_batch(
    build: Callable[[], nn.Module], given: bool
) -> None:
    found = find(build() if given else build, "state-dict-roundtrip")
    assert [f.status for f in found] == ["passed"], "\n\n".join(map(str, found))


def test_copying_what_was_lost_restores_the_outputs() -> None:
    found = only(find(lambda: RandomBuffer(persistent=False), "state-dict-roundtrip"), "state-lost")
    assert "with basis copied too, the outputs are equal" in found.because


@pytest.mark.parametrize("given", [False, True], ids=["factory", "module"])
def test_layers_in_a_list_are_lost_with_registration_as_the_root(given: bool) -> None:
    model = PlainList() if given else PlainList
    contract = Contract(model=model, batch=((torch.randn(5, 8),), None))
    report = contract.check(["registration", "state-dict-roundtrip"])
    found = next(f for f in report.findings if f.code == "state-lost")
    assert {c.name for c in found.culprits} == {"layers[0]", "layers[1]"}
    assert found.root == "registration/module-hidden"


@pytest.mark.parametrize(
    "build",
    [
        lambda: RandomBuffer(persistent=True),
        lambda: nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5)),
        lambda: nn.utils.parametrizations.weight_norm(nn.Linear(8, 3)),
        lambda: nn.LazyLinear(3),
        lambda: Extra(3),
    ],
    ids=["buffer", "norm", "parametrised", "lazy", "extra"],
)
@pytest.mark.parametrize("given", [False, True], ids=["factory", "module"])
def test_complete_state_passes(build: Callable[[], nn.Module], given: bool) -> None:
    found = only(find(build() if given else build, "state-dict-roundtrip"), "held")
    assert found.status == "passed"


def test_a_module_is_put_back_after_the_round_trip() -> None:
    model = nn.Linear(8, 3)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    find(model, "state-dict-roundtrip")
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


def test_outputs_that_ignore_the_state_decide_nothing() -> None:
    class Blind(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 1.0

    found = find(lambda: Blind(8, 3), "state-dict-roundtrip")
    assert [f.status for f in found] == ["inconclusive"]


def test_keys_that_a_forward_adds_do_not_fit_a_new_model() -> None:
    found = find(LateBuffer, "state-dict-roundtrip")
    assert [(f.status, f.code) for f in found] == [
        ("passed", "held"),
        ("violated", "state-grows"),
    ]
    assert found[1].culprits[0].name == "scale"


def test_extra_state_that_cannot_be_saved() -> None:
    found = find(lambda: Extra(threading.Lock()), "state-dict-roundtrip")
    assert (found[0].status, found[0].code) == ("violated", "state-unpicklable")


def test_extra_state_that_needs_unsafe_loading() -> None:
    found = find(lambda: Extra(threading.Thread), "state-dict-roundtrip")
    assert "state-unsafe" in {f.code for f in found if f.status == "suspicious"}


def test_a_lambda_over_self_keeps_the_original_alive_in_copies() -> None:
    found = find(lambda: Overheard(bound=False), "copy-and-pickle")
    broken = next(f for f in found if f.status == "violated")
    assert broken.code == "copy-depends"
    assert broken.culprits[0].name == "run"
    assert all(f.status == "passed" for f in find(lambda: Overheard(bound=True), "copy-and-pickle"))


def test_pickling_that_drops_an_attribute() -> None:
    found = only(find(Forgetful, "copy-and-pickle"), "pickle-differs")
    assert found.location is not None
    assert "__getstate__" in found.location.text


@pytest.mark.parametrize(
    "build", [Locked, lambda: nn.utils.weight_norm(nn.Linear(8, 3))], ids=["lock", "weight-norm"]
)
@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_models_that_cannot_be_copied_are_no_violation(build: Callable[[], nn.Module]) -> None:
    found = find(build, "copy-and-pickle")
    assert {f.status for f in found} <= {"passed", "inconclusive"}
    assert any(f.code == "not-copied" for f in found)


def test_a_lambda_matters_to_spawned_ranks_only() -> None:
    def build() -> nn.Module:
        model = Extra(1)
        model.value = lambda x: x
        return model

    assert find(build, "copy-and-pickle")[0].status == "passed"
    found = find(build, "copy-and-pickle", ranks=2)
    assert (found[0].code, found[0].culprits[0].name) == ("not-picklable", "value")


IDS = torch.randint(0, 10, (4, 6))
TIE = promises.Tied("embed.weight", "out.weight")


@pytest.mark.parametrize(
    ("tie", "code"), [("copy", "tie-missing"), ("none", "tie-missing"), ("data", "tie-undone")]
)
def test_a_promised_tie_that_does_not_hold(tie: str, code: str) -> None:
    found = only(find(lambda: Language(tie), "tied-weights", IDS, promises=[TIE]), code)
    assert found.status == "violated"
    assert {"out.weight", "embed.weight"} <= {c.name for c in found.culprits}


def test_a_tie_holds_and_says_what_unties_every_module() -> None:
    found = only(find(lambda: Language("parameter"), "tied-weights", IDS, promises=[TIE]), "held")
    assert found.evidence["untied_by"] == ["load_state_dict(assign=True)", "to_empty()"]


def test_ties_are_found_without_a_promise() -> None:
    assert only(find(lambda: Language("parameter"), "tied-weights", IDS), "held").evidence[
        "ties"
    ] == ["embed.weight = out.weight"]
    assert (
        only(find(lambda: Language("data"), "tied-weights", IDS), "tie-undone").status
        == "suspicious"
    )
    assert find(lambda: Language("none"), "tied-weights", IDS)[0].status == "not-applicable"


def test_a_tie_with_an_unknown_name_says_which_is_near() -> None:
    promise = promises.Tied("embed.wieght", "out.weight")
    found = find(lambda: Language("parameter"), "tied-weights", IDS, promises=[promise])[0]
    assert (found.status, found.code) == ("violated", "unknown-name")
    assert "embed.weight" in found.fix


@pytest.mark.parametrize("seed", [0, 5])
def test_a_copy_that_is_drawn_anew_is_no_copy_under_any_seed(seed: int) -> None:
    class Redrawn(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(8, 3)

        def __deepcopy__(self, memo: object) -> Redrawn:
            return Redrawn()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(x)

    torch.manual_seed(seed)  # as the factory's own seed: the same weights would be drawn
    made = Contract(model=Redrawn, batch=(torch.randn(4, 8), None)).check(
        ["copy-and-pickle"], seed=seed
    )
    assert [f.code for f in made.causes] == ["copy-differs"]


def test_buffers_that_a_loop_registers_are_told_by_its_line() -> None:
    class Normalised(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name in ("mean", "other"):
                self.register_buffer(name, torch.zeros(8), persistent=False)  # in a loop
            self.head = nn.Linear(8, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.training:
                self.mean += 0.1 * (x.mean(0).detach() - self.mean)
            return self.head(x - self.mean)

    report = Contract(
        model=Normalised(), batch=((torch.randn(6, 8),), torch.arange(6) % 3), loss=F.cross_entropy
    ).check("state-dict-roundtrip")
    (finding,) = [one for one in report.findings if one.status == "violated"]
    assert finding.code == "state-unsaved"
    assert [one.location.text[-9:] for one in finding.culprits] == ["in a loop"]


class LearntLater(nn.Module):
    """A scale that is saved only once it has been measured; a load takes it as it comes."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


class SavesItself(LearntLater):
    def _save_to_state_dict(self, destination, prefix, keep_vars):
        super()._save_to_state_dict(destination, prefix, keep_vars)
        del destination[f"{prefix}scale"]


def without_scale(module, state, prefix, _):
    del state[f"{prefix}scale"]


class Fading(nn.Module):
    """Loses a key by a hook, which no method of its own says."""

    def __init__(self) -> None:
        super().__init__()
        self.scaled = LearntLater()
        self.scaled._register_state_dict_hook(without_scale)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scaled(x)


@pytest.mark.parametrize(
    ("made", "status", "code"),
    [
        (lambda: nn.Sequential(nn.Linear(3, 3), SavesItself()), "inconclusive", "state-overridden"),
        (Fading, "violated", "state-strict"),
    ],
    ids=["method", "hook"],
)
def test_a_part_that_saves_in_a_way_of_its_own_is_not_judged_by_a_strict_load(made, status, code):
    contract = Contract(
        model=made, batch=((torch.randn(4, 3),), torch.randn(4, 3)), loss=F.mse_loss
    )
    (found,) = contract.check(["state-dict-roundtrip"]).findings
    assert (found.status, found.code) == (status, code), str(found)
    if status == "inconclusive":
        assert "SavesItself overrides _save_to_state_dict" in found.summary
