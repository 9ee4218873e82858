"""What promises name must be there: an error where it is declared, or where the model is first known."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import nn

import pytest_torchcheck
from pytest_torchcheck import Contract, DeclarationError, Tokens, contract, promises
from pytest_torchcheck.declared.names import UnknownNameError


class Tower(nn.Module):
    """A body with statistics, a head, and a cache that its first forward registers."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        self.head = nn.Linear(4, 2)
        self.slow = nn.Linear(4, 2)

    def forward(self, tokens: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = self.body(tokens)
        self.register_buffer("seen", hidden.detach().mean(0))
        return {"logits": self.head(hidden) + self.slow(hidden)}


def loss(output: dict[str, torch.Tensor], target: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(output["logits"], target)


BATCH: Any = ({"tokens": torch.ones(3, 4)}, torch.zeros(3, 2))
OF_MODEL = [
    (promises.Trainable("hed.*"), "head.*"),
    (promises.Trainable("body"), "body.*"),
    (promises.MayLackGradient("slow.weigth", reason="r"), "slow.weight"),
    (promises.Frozen("bdy.*", reason="r"), "body.*"),
    (promises.Tied("head.weight", "slow.weigth"), "slow.weight"),
    (promises.Replicated("heads", "slow"), "head"),
    (promises.MovingAverage(target="slo", source="head", decay=0.9), "slow"),
]
OF_INPUTS = [
    promises.PaddingInvariant(ids="token"),
    promises.PaddingInvariant(ids="tokens", mask="mask"),
    promises.Causal(input=1),
    promises.PermutationInvariant(dim=1, input="tokns"),
    promises.PermutationEquivariant(inputs={"tokens": 1, "edges": 0}),
]
RIGHT = [
    promises.Trainable("head.*", "body.0.*"),
    promises.MayLackGradient("slow.weight", reason="r"),
    promises.MayChange("seen", "*.running_*", reason="r"),
    promises.Replicated("head", "slow"),
    promises.MovingAverage(target="body.1", source="head", decay=0.5),
    promises.PermutationInvariant(dim=1, input="tokens"),
    promises.Causal(input=0),
]


def declared(model: Any, *given: promises.Promise, batch: Any = BATCH) -> Contract:
    return Contract(model=model, batch=batch, loss=loss, promises=given)


@pytest.mark.parametrize(("promise", "near"), OF_MODEL, ids=repr)
def test_a_model_that_is_there_refuses_a_wrong_name_where_it_is_declared(
    promise: promises.Promise, near: str
) -> None:
    with pytest.raises(DeclarationError, match=f"did you mean '{near[:4]}.*there are: body"):
        declared(Tower(), promise)


@pytest.mark.parametrize(("promise", "near"), OF_MODEL, ids=repr)
def test_a_factory_does_once_the_model_is_built(promise: promises.Promise, near: str) -> None:
    report = declared(Tower, promise).check(["backward", "gradients-exist"])
    first, second = report.findings
    assert (first.status, first.code, report.ok) == ("violated", "unknown-name", False)
    assert first.culprits[0].name.startswith(type(promise).__name__)
    assert near[:4] in first.fix
    assert first.location is not None
    assert (second.status, second.root) == ("inconclusive", "backward/unknown-name")


@pytest.mark.parametrize("promise", OF_INPUTS, ids=repr)
def test_inputs_are_known_from_specs_and_from_a_batch(promise: promises.Promise) -> None:
    with pytest.raises(DeclarationError, match=f"{type(promise).__name__}.*there are: tokens"):
        declared(Tower, promise)
    with pytest.raises(DeclarationError, match="no such input"):
        Contract(model=Tower, inputs={"tokens": "B 4"}, promises=[promise])
    (found,) = declared(Tower, promise, batch=lambda seed: BATCH).check("backward").findings
    assert (found.status, found.code) == ("violated", "unknown-name")


def test_an_output_that_is_not_there_is_known_with_the_output() -> None:
    (found,) = declared(Tower, promises.Causal(output="logit")).check("causality").findings
    assert (found.status, found.code) == ("violated", "unknown-name")
    assert "logits" in found.fix


def test_what_a_forward_registers_may_change() -> None:
    wrong = declared(Tower, promises.MayChange("sen", reason="r")).check("backward")
    assert [f.code for f in wrong.findings] == ["unknown-name"]
    assert declared(Tower, promises.MayChange("seen", reason="r")).check("backward").ok


@pytest.mark.parametrize("model", [Tower, Tower()], ids=["factory", "module"])
def test_names_that_are_there_are_no_error(model: Any) -> None:
    assert declared(model, *RIGHT).check("backward").ok


@pytest.mark.parametrize(
    ("write", "near"),
    [
        (lambda: Contract(model=Tower, optimiser=torch.optim.SGD), "optimizer"),  # type: ignore[call-arg]
        (lambda: contract(optimiser=torch.optim.SGD), "optimizer"),
        (lambda: promises.Casual, "Causal"),
        (lambda: pytest_torchcheck.Contrakt, "Contract"),
        (lambda: promises.Causal(dims=1), "dim"),  # type: ignore[call-arg]
        (lambda: promises.Frozen("a", reasons="b"), "reason"),  # type: ignore[call-arg]
    ],
    ids=["Contract", "contract", "promises", "package", "Causal", "Frozen"],
)
def test_what_is_misspelt_is_answered_by_what_there_is(write: Any, near: str) -> None:
    with pytest.raises((ValueError, AttributeError), match=f"did you mean '{near}'") as told:
        write()
    # of the whole package there are too many names to list
    assert ("allowed are" in str(told.value)) == (near != "Contract")


def test_fields_have_names_and_promises_can_be_copied() -> None:
    with pytest.raises(DeclarationError, match="takes its fields by name"):
        Contract(Tower)  # type: ignore[misc]
    for promise in RIGHT:
        assert copy.deepcopy(promise) == promise
        assert pickle.loads(pickle.dumps(promise)) == promise
    error = UnknownNameError('Frozen("a")', "parameter", "a", ["b"])
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


class Bag(nn.Module):
    """The mean of the words that are not padding, or of all of them."""

    def __init__(self, skips: bool = True) -> None:
        super().__init__()
        self.table, self.skips = nn.Embedding(9, 4), skips

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        real = (words != 0) | (not self.skips)
        found: torch.Tensor = self.table(words) * real[..., None]
        return found.sum(1) / real.sum(1, keepdim=True).clamp(min=1)


@pytest.mark.parametrize(
    "model",
    [Bag, Bag(), lambda: Bag(), lambda: Bag(skips=False)],
    ids=["class", "module", "factory", "wrong"],
)
def test_a_single_input_goes_by_the_name_that_forward_gives_it(
    model: Any, request: pytest.FixtureRequest
) -> None:
    def of(promise: promises.Promise) -> Contract:
        return Contract(
            model=model,
            inputs=Tokens("B T", vocab=9),
            sizes={"T": (3, 6)},
            promises=[promise],
        )

    report = of(promises.PaddingInvariant(ids="words")).check("padding-invariance")
    assert report.ok == ("wrong" not in request.node.callspec.id)
    assert (
        of(promises.PermutationInvariant(dim=1, input="words")).check("permutation-invariance").ok
    )
    assert of(promises.PermutationInvariant(inputs={"words": 1})).check("permutation-invariance").ok
    for wrong in (promises.PaddingInvariant(ids="word"), promises.Causal(input="ids")):
        with pytest.raises(DeclarationError, match="there are: x"):
            of(wrong)


class Weighted(nn.Module):
    """The mean of what a weight is given for, or of one of them alone."""

    def __init__(self, fair: bool = True) -> None:
        super().__init__()
        self.lift, self.fair = nn.Linear(3, 4), fair

    def forward(self, points: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.lift(points) * weights[..., None]
        return found.mean(1) if self.fair else found[:, 0]


def _cloud(seed: int) -> Any:
    g = torch.Generator().manual_seed(seed)
    return (torch.randn(4, 5, 3, generator=g), torch.rand(4, 5, generator=g)), None


@pytest.mark.parametrize("data", ["drawn", "fixed", "read"])
@pytest.mark.parametrize("fair", [True, False])
def test_several_inputs_go_by_the_names_that_forward_gives_them(data: str, fair: bool) -> None:
    how: dict[str, Any] = {
        "drawn": {"inputs": ("B N 3", "B N")},
        "fixed": {"batch": _cloud(0)},
        "read": {"batch": _cloud},
    }[data]
    together = promises.PermutationInvariant(inputs={"points": 1, "weights": 1})
    report = Contract(model=lambda: Weighted(fair), promises=[together], **how).check(
        "permutation-invariance"
    )
    assert [f.status for f in report.findings] == ["passed" if fair else "violated"]


def test_a_name_that_forward_does_not_have_is_told_with_the_names_there_are() -> None:
    wrong = promises.PermutationInvariant(inputs={"points": 1, "weight": 1})
    with pytest.raises(DeclarationError, match="there are: x0, x1"):
        Contract(model=Weighted, inputs=("B N 3", "B N"), promises=[wrong])
    report = Contract(model=Weighted, batch=_cloud, promises=[wrong]).check(
        "permutation-invariance"
    )
    assert [f.code for f in report.findings] == ["unknown-name"]


class Late(nn.Module):
    """Registers its scale in its first forward."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(3, 3)

    def forward(self, x):
        if not hasattr(self, "scale"):
            self.scale = nn.Parameter(torch.ones(3))
        return self.body(x) * self.scale


@pytest.mark.parametrize(("name", "known"), [("scale", True), ("scala", False)])
def test_a_promise_of_a_parameter_that_a_forward_registers_names_something(name, known):
    made = Contract(
        model=lambda: Late(),
        inputs="B 3",
        targets="B 3",
        loss=nn.functional.mse_loss,
        promises=(promises.Trainable(name),),
    )
    codes = {f.code for f in made.check(["backward", "optimizer-coverage"]).findings}
    assert ("unknown-name" in codes) == (not known), codes
