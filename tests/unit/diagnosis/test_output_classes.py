"""Models that return an object of their library: read as it is, and named where a loss wants one tensor."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch.nn.functional as F
from torch import Tensor, nn

from pytest_torchcheck import Contract, Labels


class GoogLeNetOutputs(NamedTuple):  # as torchvision's
    logits: Tensor
    aux_logits: Tensor


@dataclass
class UNetOutput:  # as Diffusers'
    sample: Tensor


class Giving(nn.Module):
    """Returns its output as an object; as torchvision's classifiers, only in training mode."""

    def __init__(self, form: Any, always: bool = True) -> None:
        super().__init__()
        self.body, self.aux = nn.Linear(4, 3), nn.Linear(4, 3)
        self.form, self.always = form, always

    def forward(self, x: Tensor) -> Any:
        if not self.training and not self.always:
            return self.body(x)
        return self.form(self.body(x), self.aux(x))


FORMS = {
    "named-tuple": (GoogLeNetOutputs, "output.logits"),
    "dataclass": (lambda y, z: UNetOutput(y + z), "output.sample"),
    "ordered-dict": (lambda y, z: OrderedDict(out=y, aux=z), "output['out']"),
    "tuple": (lambda y, z: (y, z), "output[0]"),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("loss", "targets"),
    [(F.cross_entropy, Labels("B", classes=3)), (F.mse_loss, "B 3")],
    ids=["c", "m"],
)
def test_a_loss_that_is_given_the_object_says_which_tensor_to_take(
    form: str, loss: Any, targets: Any
) -> None:
    make, taken = FORMS[form]
    contract = Contract(model=Giving(make), inputs="B 4", targets=targets, loss=loss)
    (found,) = contract.check(["backward"]).with_status("violated")
    assert found.code == "not-a-tensor"
    assert found.summary.startswith("the loss received a")
    assert taken in found.fix


def both(output: Any, targets: Tensor) -> Tensor:
    if isinstance(output, Tensor):
        return F.cross_entropy(output, targets)
    return F.cross_entropy(output.logits, targets) + 0.3 * F.cross_entropy(
        output.aux_logits, targets
    )


def test_a_model_that_gives_its_auxiliary_heads_in_training_only_is_sound() -> None:
    def build() -> Giving:
        return Giving(GoogLeNetOutputs, always=False)

    contract = Contract(model=build, inputs="B 4", targets=Labels("B", classes=3), loss=both)
    report = contract.check()
    assert report.ok, str(report)


def test_the_spec_of_an_output_names_the_fields_of_its_class() -> None:
    made = Contract(
        model=Giving(FORMS["ordered-dict"][0]), inputs="B 4", output={"out": "B 3", "aux": "B 3"}
    )
    assert made.check(["output-spec"]).ok
    wrong = Contract(
        model=Giving(FORMS["ordered-dict"][0]), inputs="B 4", output={"out": "B 2", "aux": "B 3"}
    )
    assert not wrong.check(["output-spec"]).ok
