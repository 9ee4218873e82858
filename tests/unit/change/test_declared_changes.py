"""What may change is declared; what cannot be compared is said; lines are found in what an edit changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from change_pairs import BLOCK, FUSED, edited
from change_versions import HEAD, Here, compare
from torch import nn

from pytest_torchcheck import Contract
from pytest_torchcheck.change.check import against
from pytest_torchcheck.change.lines import Edits
from pytest_torchcheck.change.sketch import sketch
from pytest_torchcheck.change.tree import Reference, Tree
from pytest_torchcheck.declared.limits import DeclarationError
from pytest_torchcheck.subject import Subject

if TYPE_CHECKING:
    from pathlib import Path

SMALL = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(5, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(torch.tanh(self.inner(x)))


net = Contract(model=Net, inputs="B 5")
"""


def small(*replacements: tuple[str, str]) -> str:
    text = SMALL
    for old, new in replacements:
        assert old in text
        text = text.replace(old, new)
    return text


RELU = ("torch.tanh", "torch.relu")
EXPECTED = ('inputs="B 5")', 'inputs="B 5", changes={"outputs": "relu is faster"})')


def test_a_declared_change_passes_with_its_reason(tmp_path: Path) -> None:
    found = compare(tmp_path, SMALL, small(RELU, EXPECTED))
    assert list(found) == ["held"]
    assert "outputs changed, as declared: relu is faster" in found["held"].summary


def test_an_allowed_change_passes(tmp_path: Path) -> None:
    assert list(compare(tmp_path, SMALL, small(RELU), allowed=("outputs",))) == ["held"]


def test_a_declared_change_that_does_not_come_fails(tmp_path: Path) -> None:
    found = compare(tmp_path, SMALL, small(EXPECTED))
    assert found["change-absent"].status == "violated"
    assert "relu is faster" in found["change-absent"].observed


def test_a_contract_that_is_new_is_said_to_be_so(tmp_path: Path) -> None:
    found = compare(tmp_path, SMALL.replace("net = ", "other = "), SMALL)
    assert [f.status for f in found.values()] == ["not-applicable"]


def test_a_model_that_raised_at_the_reference_is_not_compared(tmp_path: Path) -> None:
    found = compare(tmp_path, small(("torch.tanh(", "torch.tan_h(")), SMALL)
    assert found["not-compared"].status == "inconclusive"
    assert "has no attribute 'tan_h'" in found["not-compared"].summary


def test_a_model_that_raises_now_is_found(tmp_path: Path) -> None:
    found = compare(tmp_path, SMALL, small(("self.inner(x))", "self.inner(x[:, :4]))")))
    finding = found["outputs-changed"]
    assert "it raises now" in finding.observed
    assert finding.location is not None
    assert finding.location.text == "return self.head(torch.tanh(self.inner(x[:, :4])))"


def test_the_contract_maps_old_checkpoints_that_the_model_does_not(tmp_path: Path) -> None:
    fused = edited((FUSED[0], FUSED[2]))
    mapping = """
def fuse(state):
    for kind in ("weight", "bias"):
        names = [f"block.attention.{part}.{kind}" for part in ("query", "key", "value")]
        state[f"block.attention.qkv.{kind}"] = torch.cat([state.pop(name) for name in names])
    return state
"""
    declared = fused.replace(
        "loss=F.cross_entropy,", 'loss=F.cross_entropy, changes={"state": fuse},'
    )
    found = compare(tmp_path / "mapped", BLOCK, mapping + declared)
    assert list(found) == ["held"], "\n".join(map(str, found.values()))
    bare = compare(tmp_path / "bare", BLOCK, fused)
    assert {f.code: f.status for f in bare.values() if f.status != "passed"} == {
        "state-changed": "violated", "not-compared": "inconclusive",
    }  # fmt: skip


def test_layers_declared_in_another_order_draw_other_weights_of_the_same_kind(
    tmp_path: Path,
) -> None:
    inner, head = (
        "        self.inner = nn.Linear(5, 40)\n",
        "        self.head = nn.Linear(40, 2)\n",
    )
    wide = small(("nn.Linear(5, 4)", "nn.Linear(5, 40)"), ("nn.Linear(4, 2)", "nn.Linear(40, 2)"))
    found = compare(tmp_path, wide, wide.replace(inner + head, head + inner))
    assert list(found) == ["held"], "\n".join(map(str, found.values()))


MASKED = """
class Norm(nn.Module):
    def __init__(self, eps=1e-6):
        super().__init__()
        self.eps = eps

    def forward(self, x):
        return x / (x.square().mean(-1, keepdim=True) + self.eps).sqrt()


class Pointer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = Norm()
        self.key = nn.Linear(6, 6)
        self.register_buffer("places", torch.linspace(0, 1, 6))

    def forward(self, x):
        keys = self.key(self.norm(x)) + self.places
        scores = keys @ x.mT
        blocked = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        return scores.masked_fill(blocked, -1e9)


net = Contract(model=Pointer, inputs="B T 6", sizes={"B": (2, 5), "T": (4, 10)})
"""


def masked(old: str, new: str) -> str:
    assert old in MASKED
    return MASKED.replace(old, new)


def test_masking_constants_in_outputs_hide_no_change(tmp_path: Path) -> None:
    found = compare(tmp_path, MASKED, masked("eps=1e-6", "eps=1e-4"))["outputs-changed"]
    assert "first in norm (Norm)" in found.summary
    assert found.location is not None
    assert found.location.text == "def __init__(self, eps=1e-4):"


def test_another_masking_constant_is_found(tmp_path: Path) -> None:
    found = compare(tmp_path, MASKED, masked("-1e9", "-1e8"))
    assert found["outputs-changed"].location is not None
    assert "-1e8" in found["outputs-changed"].location.text


def test_a_saved_constant_with_other_values_is_found(tmp_path: Path) -> None:
    found = compare(tmp_path, MASKED, masked("linspace(0, 1, 6)", "linspace(0, 1, 7)[:6]"))
    assert found["initial-weights-changed"].culprits[0].name == "places"
    assert found["initial-weights-changed"].location is not None
    assert "linspace(0, 1, 7)" in found["initial-weights-changed"].location.text


def test_the_same_constant_in_other_words_is_none(tmp_path: Path) -> None:
    again = masked("torch.linspace(0, 1, 6)", "torch.arange(6) / 5")
    assert list(compare(tmp_path, MASKED, again)) == ["held"]


def test_the_line_that_calls_a_module_with_other_input_is_named(tmp_path: Path) -> None:
    found = compare(tmp_path, MASKED, masked("self.key(self.norm(x))", "self.norm(self.key(x))"))
    assert found["outputs-changed"].summary.endswith("first in Pointer")
    assert found["outputs-changed"].location is not None
    assert "self.norm(self.key(x))" in found["outputs-changed"].location.text


def test_memory_that_grows_with_a_higher_power_is_found(tmp_path: Path) -> None:
    line = "x = x + 0 * (x[..., None] - x[..., None, :]).sum(-1)"
    was = small(
        ('inputs="B 5"', 'inputs="B 5 T", sizes={"B": (1, 4), "T": (4, 10)}'),
        ("(x)))", "(x.mT)))"),
    )
    now = was.replace("        return", f"        {line}\n        return")
    found = compare(tmp_path, was, now)["cost-changed"]
    assert "peak bytes with T grow as T^2, grew as T^1" in found.observed
    assert found.location is not None
    assert found.location.text == line


def test_an_entry_that_is_gone_has_the_line_that_made_it(tmp_path: Path) -> None:
    was = small(
        ("        self.head", "        self.extra = nn.Parameter(torch.ones(4))\n        self.head")
    )
    found = compare(tmp_path, was, SMALL)["state-changed"]
    assert found.evidence["was"] == "self.extra = nn.Parameter(torch.ones(4))"
    assert found.evidence["now"] == "(removed)"


def test_a_detached_branch_is_found_by_its_gradients_alone(tmp_path: Path) -> None:
    found = compare(tmp_path, SMALL, small(("self.inner(x))", "self.inner(x)).detach()")))
    assert "gradient" in found["outputs-changed"].summary
    assert "has no gradient" in found["outputs-changed"].observed


def test_dropout_that_was_off_is_found_though_it_draws(tmp_path: Path) -> None:
    off = small(
        ("return self.head(torch", "return self.head(F.dropout(torch"),
        ("(x)))", "(x)), 0.0, self.training))"),
    )
    found = compare(tmp_path, off, off.replace("0.0, self", "0.3, self"))
    assert found["outputs-changed"].status == "violated"
    assert found["outputs-changed"].location is not None
    assert "0.3, self.training" in found["outputs-changed"].location.text


def test_dropout_drawn_elsewhere_at_the_same_rate_is_no_change(tmp_path: Path) -> None:
    before = small(
        ("torch.tanh(self.inner(x))", "F.dropout(torch.tanh(self.inner(x)), 0.3, self.training)")
    )
    drawn = (
        "torch.tanh(self.inner(x)) * F.dropout(torch.ones(len(x), 5), 0.3, self.training)[:, :4]"
    )
    after = small(("torch.tanh(self.inner(x))", drawn))
    found = compare(tmp_path, before, after)
    assert list(found) == ["held"], "\n".join(map(str, found.values()))


def test_nothing_of_a_subject_is_left_changed(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4))
    contract = Contract(model=model, inputs="B 5", sizes={"B": (2, 4)})
    before = {name: value.clone() for name, value in model.state_dict().items()}
    tree = Tree(Reference(text="main", commit="0" * 40, top=tmp_path), tmp_path)
    subject = Subject(contract)
    found = list(against(subject, Here(tree, contract)))
    subject.close()
    assert {f.code for f in found} == {
        "not-compared",
        "held",
    }  # of weights that no seed decides, nothing is said
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert model.training


@pytest.mark.parametrize(
    "given",
    [
        ["outputs"],
        {"output": "why"},
        {"outputs": ""},
        {"outputs": lambda state: state},
        {"cost": None},
    ],
)
def test_a_wrong_declaration_says_what_is_allowed(given: object) -> None:
    with pytest.raises(DeclarationError, match="changes"):
        Contract(model=nn.Linear(5, 2), inputs="B 5", changes=given)  # type: ignore[arg-type]


def test_a_sketch_tells_bits_and_distances() -> None:
    one = torch.linspace(0, 1, 50_000)
    other = one.clone()
    other[7] += 1e-3
    assert sketch(one).same(sketch(one.clone()))
    assert not sketch(one).same(sketch(other))
    assert sketch(one).gap(sketch(one * 1.001)) == pytest.approx(1e-3, rel=0.1)
    assert sketch(one).gap(sketch(one[:-1])) == float("inf")
    assert sketch(torch.tensor([True, False])).scale == 1.0
    assert sketch(torch.zeros(0)).gap(sketch(torch.zeros(0))) == 0.0


def test_edits_are_found_by_new_and_by_old_line(tmp_path: Path) -> None:
    was = "a = 1\nb = call(\n    2,\n)\n# note\nc = 3\nd = 4\n"
    now = "a = 1\nb = call(\n    5,\n)\n# another note\nd = 4\ne = 6\n"
    (tmp_path / "now").mkdir()
    (tmp_path / "tree").mkdir()
    (tmp_path / "now" / "m.py").write_text(now, encoding="utf-8")
    (tmp_path / "tree" / "m.py").write_text(was, encoding="utf-8")
    tree = Tree(Reference(text="main", commit="0" * 40, top=tmp_path / "now"), tmp_path)
    edits, file = Edits(tree), str(tmp_path / "now" / "m.py")
    found = [(e.was, e.text) for e in edits.of_files([file])]
    assert found == [("2,", "5,"), ("c = 3", ""), ("", "e = 6")]
    gone = edits.before(str(tree.root / "m.py"), 6)
    assert gone is not None
    assert (gone.was, gone.text) == ("c = 3", "")
    assert HEAD not in now


def test_paths_of_the_checkout_are_mapped_and_those_of_environments_are_not(tmp_path: Path) -> None:
    top = tmp_path / "repo"
    for name in ("src", "new", ".venv/lib/site-packages"):
        (top / name).mkdir(parents=True)
    tree = Tree(Reference(text="main", commit="0" * 40, top=top), tmp_path)
    (tree.root / "src").mkdir(parents=True)
    installed = str(top / ".venv" / "lib" / "site-packages")
    given = [str(top / "src"), str(top / "new"), installed, "/usr/lib/python3"]
    assert tree.mapped(given) == [str(tree.root / "src"), installed, "/usr/lib/python3"]
