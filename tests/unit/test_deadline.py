"""An explanation that takes too long is given up; the finding remains, and says so."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, deadline
from pytest_torchcheck.codes import explainer
from pytest_torchcheck.codes.explainer import Each, Maybe, One
from pytest_torchcheck.deadline import Budget, TooLongError
from pytest_torchcheck.runner import Runner, cases
from pytest_torchcheck.verdicts import violated

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_torchcheck.findings import Finding


RUNS: list[bool] = []
"""Of each forward, whether it was run to explain; nothing that a module holds survives a check."""


class Slow(nn.Module):
    """Swallows every exception of its own parts, notes its runs, and cuts its first layer off or raises."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)
        self.way = way

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        RUNS.append(deadline.running())
        if deadline.running():
            time.sleep(0.2)
        try:
            h = self.first(x)
        except Exception:  # what stops an explanation is none of the model's business
            h = x
        if self.way == "cut":
            h = h.detach()
        if self.way == "raises":
            raise LookupError("no such thing")
        out: torch.Tensor = self.last(h)
        return out


def run(model: nn.Module, check: str, seconds: float) -> tuple[Finding, ...]:
    contract = Contract(
        model=model, batch=(torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1])), loss=F.cross_entropy
    )
    runner = Runner(contract, explain_seconds=seconds)
    (case,) = [one for one in cases(contract) if one.check.name == check]
    try:
        found = runner.run(case)
    finally:
        runner.close()
    assert not deadline.running()
    return found


@pytest.mark.parametrize("seconds", [0.0, 0.06])
def test_a_finding_remains_without_its_explanation(seconds: float) -> None:
    model = Slow("cut")
    before = [p.clone() for p in model.parameters()]
    (short,) = run(model, "gradients-exist", seconds)
    assert (short.status, short.code) == ("violated", "grad-none")
    assert f"explaining it took more than {seconds:g} s" in short.summary
    assert short.summary.startswith("does not hold: ")
    assert all(map(torch.equal, model.parameters(), before))
    (full,) = run(Slow("cut"), "gradients-exist", 60.0)
    assert (full.status, full.code) == ("violated", "grad-none")
    assert "detach" in full.cause
    assert "explaining" not in str(full)


def test_an_exception_remains_without_its_explanation() -> None:
    (short,) = run(Slow("raises"), "backward", 0.0)
    assert (short.status, short.code) == ("violated", "crash")
    assert "LookupError: no such thing" in short.summary
    assert "explaining it took more than 0 s" in short.observed
    assert short.location is not None
    (full,) = run(Slow("raises"), "backward", 60.0)
    assert "explaining" not in full.observed


def test_what_is_sound_never_meets_a_deadline() -> None:
    (finding,) = run(Slow(""), "gradients-exist", 0.0)
    assert finding.status == "passed"


def test_an_explanation_stops_at_the_next_run() -> None:
    counts = []
    for seconds in (0.0, 60.0):
        RUNS.clear()
        run(Slow("cut"), "gradients-exist", seconds)
        counts.append(sum(RUNS))
    assert counts[0] == 0
    assert counts[1] > 0


def slowly(*_: Any) -> Finding:
    deadline.keep()
    raise AssertionError("out of time before")


def slowly_each(count: int) -> Iterator[Finding]:
    for _ in range(count):
        yield violated("odd-code", "one more")
    deadline.keep()
    yield violated("odd-code", "never")


def outer() -> Finding:
    return One("here:slowly", "inner-code")()


def test_each_kind_of_explainer_keeps_what_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"slowly": slowly, "slowly_each": slowly_each, "outer": outer}
    monkeypatch.setattr(explainer, "resolve", lambda name: known[name.partition(":")[2]])
    with deadline.allowed(-1.0):
        one = One("here:slowly", "odd-code")()
        assert (one.status, one.code) == ("violated", "odd-code")
        doubtful = One("here:slowly", "odd-code other-code", doubtful=True)()
        assert (doubtful.status, doubtful.code) == ("suspicious", "unexplained")
        maybe = Maybe("here:slowly", "odd-code")()
        assert maybe is not None
        assert (maybe.status, maybe.code) == ("inconclusive", "unexplained")
        each = list(Each("here:slowly_each", "odd-code", seen=True)(2))
        assert [f.summary for f in each[:2]] == ["one more"] * 2
        assert each[2].summary == one.summary
        assert len(each) == 3
        assert One("here:outer", "outer-code")().code == "outer-code"


def reading(file: str, *, yields: bool = False) -> Any:
    """Return a function of a file that reads on for three seconds, and asks for no deadline."""
    names: dict[str, Any] = {"time": time}
    code = """
def reads(*_):
    start = time.monotonic()
    while time.monotonic() - start < 3:
        pass
"""
    if yields:
        code += "    yield"
    exec(compile(code, file, "exec"), names)
    return names["reads"]


PACKAGE = Path(deadline.__file__).parent


@pytest.mark.parametrize("kind", [One, Maybe, Each])
def test_what_only_reads_is_interrupted(monkeypatch: pytest.MonkeyPatch, kind: Any) -> None:
    reads = reading(str(PACKAGE / "diagnosis" / "odd.py"), yields=kind is Each)
    monkeypatch.setattr(explainer, "resolve", lambda _: reads)
    start = time.monotonic()
    with deadline.allowed(0.1):
        made = kind("here:reads", "odd-code")()
        (found,) = made if kind is Each else (made,)
    assert time.monotonic() - start < 2
    assert "explaining it took more than 0.1 s" in found.summary
    assert found.status == ("violated" if kind is One else "inconclusive")


def test_the_users_code_is_not_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = reading(__file__)
    code = compile("def calls(*_):\n    theirs()", str(PACKAGE / "diagnosis" / "odd.py"), "exec")
    names: dict[str, Any] = {"theirs": theirs}
    exec(code, names)
    monkeypatch.setattr(explainer, "resolve", lambda _: names["calls"])
    start = time.monotonic()
    with deadline.allowed(0.1):
        One("here:calls", "odd-code")()
    assert time.monotonic() - start >= 3


def fails(*_: Any) -> Any:
    raise ZeroDivisionError("of our own")


def fails_each(*_: Any) -> Any:
    yield violated("odd-code", "the first")
    raise ZeroDivisionError("of our own")


def test_an_explanation_that_fails_leaves_what_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"fails": fails, "fails_each": fails_each}
    monkeypatch.setattr(explainer, "resolve", lambda name: known[name.partition(":")[2]])
    one = One("here:fails", "odd-code")()
    assert (one.status, one.code) == ("violated", "odd-code")
    assert "explaining it failed with ZeroDivisionError: of our own" in one.observed
    for kind in (Maybe, Each):
        seen = kind("here:fails", "odd-code", seen=True)()
        (seen,) = seen if kind is Each else (seen,)
        assert (seen.status, seen.code) == ("violated", "odd-code")
        # nothing was seen before: it cannot be said whether anything is wrong
        looks = kind("here:fails", "odd-code")()
        (looks,) = looks if kind is Each else (looks,)
        assert (looks.status, looks.code) == ("error", "internal-error")
    first, rest = Each("here:fails_each", "odd-code")()
    assert first.summary == "the first"
    assert rest.status == "error"


def test_time_runs_only_while_an_explanation_does(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(deadline.time, "monotonic", lambda: clock[0])
    budget = Budget(10.0)
    with budget.spent():
        clock[0] = 6.0
        deadline.keep()
    clock[0] = 100.0
    deadline.keep()
    with budget.spent():
        clock[0] = 103.0
        deadline.keep()
        with Budget(1000.0).spent():  # one within another has the time of the outer one
            clock[0] = 105.0
            with pytest.raises(TooLongError):
                deadline.keep()
