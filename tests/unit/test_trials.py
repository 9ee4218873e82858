"""A fix that is a change of one line is given as an edit, and tried by running the check again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, Tokens
from pytest_torchcheck.findings import Edit, Finding, Location
from pytest_torchcheck.runner import suggestions
from pytest_torchcheck.runner.suggestions import misleads
from pytest_torchcheck.sources.edits import clarified
from pytest_torchcheck.sources.rewriting import edit_of

if TYPE_CHECKING:
    from pathlib import Path

SOURCE = """\
import torch
import torch.nn.functional as F

def forward(x, y):
    h = first(x).detach()
    p = F.softmax(h, dim=-1)
    q = p.view(len(x), 128)
    layer = torch.nn.GRU(8, 16, dropout=0.1)
    torch.relu(q)
    q += y
    k = q.float() + p.float()
    a = b.detach() + c.detach()
    return q
    r = F.dropout(q, 0.5, True)

@declared(first)
def made():
    return None
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "net.py"
    path.write_text(SOURCE, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("line", "fix", "new"),
    [
        (5, "drop .detach() on this line; if the stop is meant, say so", "    h = first(x)"),
        (5, "return h: drop .detach() on line 5, or freeze it", "    h = first(x)"),
        (5, "drop .detach on line 5", "    h = first(x)"),  # not to be called without it
        (5, "drop .clone() on this line", None),
        (12, "drop .detach() on this line", None),  # which of the two?
        (6, "drop the softmax on this line, or use nll_loss", "    p = h"),
        (7, "write .reshape for .view on line 7", "    q = p.reshape(len(x), 128)"),
        (7, "write 64 for 128 on line 7", "    q = p.view(len(x), 64)"),
        (7, "write in_features=64 instead of 128 on line 7", "    q = p.view(len(x), 64)"),
        (7, "write 64 for 256 on line 7", None),
        (8, "build rnn with batch_first=True",
         "    layer = torch.nn.GRU(8, 16, dropout=0.1, batch_first=True)"),
        (8, "drop dropout=0.1 on line 8", "    layer = torch.nn.GRU(8, 16)"),
        (8, "give torch.nn.GRU device=x.device on line 8",
         "    layer = torch.nn.GRU(8, 16, dropout=0.1, device=x.device)"),
        (8, "give torch.nn.GRU device=next(x.parameters()).device on line 8",
         "    layer = torch.nn.GRU(8, 16, dropout=0.1, device=next(x.parameters()).device)"),
        (8, "give torch.nn.GRU device=z.device on line 8", None),  # there is no z
        (8, "build rnn with input_size=4", "    layer = torch.nn.GRU(4, 16, dropout=0.1)"),
        (16, "build 2 with in_features=8", None),  # what declares a model builds no layer
        (8, "pass bias=False to torch.nn.GRU, and add one by hand", None),  # a part of it
        (9, "assign the result on line 9: q = torch.relu(q)", "    q = torch.relu(q)"),
        (9, "delete line 9", "    pass"),
        (10, "write to a new tensor: q = q + y instead of q += y", "    q = q + y"),
        (10, "write to a new tensor: p = q + y instead of q += y", None),
        (10, "write to a new tensor: q = list(...)", None),  # a sketch
        (11, "call .double() on y on line 10", "    q += y.double()"),
        (13, "return q * 2", "    return q * 2"),
        (14, "pass training=y to F.dropout", "    r = F.dropout(q, 0.5, y)"),
        (13, "give the head more outputs", None),
    ],
)  # fmt: skip
def test_what_a_fix_describes(source: Path, line: int, fix: str, new: str | None) -> None:
    place = Location(file=str(source), line=line, text=SOURCE.splitlines()[line - 1].strip())
    edit = edit_of(Finding(status="violated", summary="", fix=fix, location=place))
    assert (None if edit is None else edit.new) == new
    if edit is not None:
        assert edit.old == SOURCE.splitlines()[edit.line - 1]


def test_names_that_are_no_ones(source: Path) -> None:
    place = Location(file=str(source), line=10, text="q += y")
    said = "pass it: step(validation) on line 10"
    assert clarified(said, place, {}) == f"{said} (validation stands for your own)"
    assert clarified("pass it: step(p) on line 10", place, {}) == "pass it: step(p) on line 10"
    drawn = clarified("write q.view(4, 32) there", place, {"B": 4, "T": 7})
    assert drawn == "write q.view(4, 32) there (4 is B here)"


class Cut(nn.Module):
    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(5, 6), nn.Linear(width, 3)

    def forward(self, x: Any) -> Any:
        h = torch.tanh(self.body(x)).detach()
        return self.head(h)


class Narrow(Cut):
    def __init__(self) -> None:
        super().__init__(4)
        self.head = nn.Linear(4, 3)


class TwiceCut(Cut):
    def forward(self, x: Any) -> Any:
        h = torch.tanh(self.body(x)).detach()
        again = h.detach()
        return self.head(again)


BATCH = (torch.randn(8, 5),), torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])


def found(
    model: Any, check: str = "gradients-exist", *, status: str = "violated", **fields: Any
) -> Finding:
    made = Contract(model=model, batch=BATCH, **{"loss": F.cross_entropy, **fields})
    first = made.check([check]).findings[0]
    assert first.status == status, first
    return first


def test_an_edit_that_cures() -> None:
    code = Cut.forward.__code__
    finding = found(Cut)
    assert finding.edit is not None
    assert finding.edit.tried == "passes"
    assert finding.edit.new.strip() == "h = torch.tanh(self.body(x))"
    assert finding.fix.endswith("tried: the check passes with it")
    assert Cut.forward.__code__ is code
    assert Finding.from_dict(finding.to_dict()) == finding
    assert found(Cut()).edit == finding.edit  # a module that stands


def test_an_edit_that_is_not_enough() -> None:
    finding = found(TwiceCut)
    assert finding.edit is not None
    assert finding.edit.tried == "fails"
    assert "the check does not pass with it alone" in finding.fix


class CutTwice(Cut):
    def forward(self, x: Any) -> Any:
        h = torch.tanh(self.body(x).data).detach()
        return self.head(h)


def test_an_edit_that_is_needed_and_not_enough_is_offered() -> None:
    finding = found(CutTwice)
    assert finding.edit is not None
    assert finding.edit.tried == "fails"
    assert suggestions._without("do this, or write that") == "write that"


class Ids(nn.Module):
    """Casts what it reads by whole numbers, at the line where a layer takes it, or in a helper."""

    def __init__(self, *, helper: bool) -> None:
        super().__init__()
        self.table, self.heads, self.helper = (
            nn.Embedding(20, 6),
            nn.ModuleList([nn.Linear(6, 3)]),
            helper,
        )

    def read(self, ids: Any) -> Any:
        return self.table(ids).float()

    def forward(self, ids: Any) -> Any:
        if self.helper:
            return self.heads[0](self.read(ids).mean(1))
        h = self.table(ids).float()
        return self.heads[0](h.mean(1))


@pytest.mark.parametrize("helper", [False, True])
def test_whole_numbers_give_activations_no_dtype(helper: bool) -> None:
    made = Contract(model=lambda: Ids(helper=helper), inputs=Tokens("B T", vocab=20))
    (finding,) = made.check(["dtype-conversion"]).findings
    assert finding.code == "dtype-pair"
    assert "ids.dtype" not in finding.fix
    if not helper:
        assert finding.edit is not None
        assert finding.edit.new.strip() == "h = self.table(ids).to(self.heads[0].weight.dtype)"
        assert finding.edit.tried == "passes"


class Measured(Cut):
    def forward(self, x: Any) -> Any:
        h = torch.tanh(self.body(x)).detach().numpy()
        return torch.from_numpy(h)


def test_an_edit_that_was_tried_and_cannot_be_right_is_left_out() -> None:
    def broken(status: str, code: str, line: int, because: str = "") -> Finding:
        place = Location(file="net.py", line=line, text="")
        return Finding(status=status, summary="", code=code, location=place, because=because)

    edit = Edit(file="net.py", line=5, old="a", new="b")
    first = broken("violated", "matmul-shapes", 5, "6 is not 8")
    again, other, moved, later = (
        broken("violated", "matmul-shapes", 5, "6 is not 10"),
        broken("violated", "kernel-missing", 5),
        broken("violated", "matmul-shapes", 9),
        broken("violated", "cat-sizes", 9),
    )
    assert [misleads(first, edit, (f,)) for f in (again, other, moved, later)] == [True, True, False, False]  # fmt: skip
    assert misleads(broken("suspicious", "matmul-shapes", 5), edit, (moved,))
    finding = found(Measured, "backward")  # numpy() refuses a tensor with a graph
    assert (finding.edit, finding.fix) == (None, "")


def test_an_edit_of_what_builds_the_model() -> None:
    finding = found(Narrow, "backward")
    assert finding.edit is not None
    assert finding.edit.new.strip() == "self.head = nn.Linear(6, 3)"
    assert finding.edit.tried == "passes"
    standing = found(Narrow(), "backward")  # which nobody builds again
    assert standing.edit is not None
    assert standing.edit.tried == ""
    assert standing.fix.endswith("likely: the edit was not tried")


def test_an_edit_of_a_loss_and_of_a_step() -> None:
    def loss(scores: Any, labels: Any) -> Any:
        return F.cross_entropy(scores.softmax(1), labels)

    finding = found(lambda: nn.Linear(5, 3), "loss-input", loss=loss)
    assert finding.edit is not None
    assert finding.edit.new.strip() == "return F.cross_entropy(scores, labels)"
    assert finding.edit.tried == "passes"

    def step(model: Any, optimizer: Any, inputs: Any, labels: Any) -> Any:
        optimizer.zero_grad()
        value = F.cross_entropy(model(*inputs).softmax(1), labels)
        value.backward()
        optimizer.step()
        return value

    finding = found(
        lambda: nn.Linear(5, 3),
        "step-losses",
        loss=None,
        train_step=step,
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
    )
    assert finding.edit is not None
    assert finding.edit.tried == "passes"


def test_the_function_gets_its_code_back_after_an_interruption(
    monkeypatch: pytest.MonkeyPatch,
) -> None:

    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(suggestions, "judged", interrupted)
    code = Cut.forward.__code__
    with pytest.raises(KeyboardInterrupt):
        found(Cut)
    assert Cut.forward.__code__ is code
