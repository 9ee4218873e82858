"""Provoke a real error and explain it; every explanation must read well."""

from __future__ import annotations

import inspect
import os
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from pytest_torchcheck.diagnosis.crashes.explain import Explanation, explain_error
from pytest_torchcheck.findings import Finding
from pytest_torchcheck.render.terminal import MAX_LINES, render_finding

if TYPE_CHECKING:
    from collections.abc import Callable


def error_of(run: Callable[[], object]) -> BaseException:
    try:
        run()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised: torch accepts this now")


def called_with(batch: tuple[Any, Any]) -> SimpleNamespace:
    """Return a pair of inputs and targets as the batch that an explanation is given."""
    inputs, targets = batch
    if isinstance(inputs, dict):
        return SimpleNamespace(args=(), kwargs=inputs, targets=targets)
    return SimpleNamespace(args=inputs, kwargs={}, targets=targets)


def explain(
    run: Callable[..., object],
    *,
    phase: str = "forward",
    model: torch.nn.Module | None = None,
    batch: Any = None,
    rerun: bool = True,
    device: str = "cpu",
    error: BaseException | None = None,
) -> Explanation:
    """Run, catch, explain, and hold the explanation to the anatomy of a failure."""
    torch.manual_seed(0)
    error = error or error_of(run)
    given = None if batch is None else called_with(batch)
    found = explain_error(
        error, phase=phase, model=model, batch=given, rerun=run if rerun else None, device=device
    )
    for field in ("code", "summary", "observed", "cause", "because", "fix"):
        assert getattr(found, field).strip(), f"{field} is empty: {found}"
    assert found.culprits or found.code == "crash", f"no culprit: {found}"
    assert "\n" not in found.summary
    assert len(found.summary) <= 200, found.summary
    finding = Finding(
        status="violated", check="backward", **{f: getattr(found, f) for f in found.__slots__}
    )
    text = render_finding(finding)
    assert len(text.splitlines()) <= MAX_LINES
    if os.environ.get("TORCHCHECK_SHOW"):
        pass
    return found


def line(function: Callable[..., Any] | type, text: str) -> int:
    """Return the number of the line of a function or class that holds ``text``."""
    lines, start = inspect.getsourcelines(function)
    found = [start + place for place, each in enumerate(lines) if text in each]
    assert len(found) == 1, f"{text!r} stands {len(found)} times in {function}"
    return found[0]


def each(*runs: Callable[[], object]) -> list[Any]:
    """Return parameters for ``parametrize``, numbered."""
    return [pytest.param(run, id=f"case{place}") for place, run in enumerate(runs)]
