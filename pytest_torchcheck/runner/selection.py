"""The cases of a contract, each check on each device and dtype where its needs are met, and what they cost."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Final

import torch

from .. import verdicts
from ..catalogue import Check, catalogue
from ..codes.undecided import NO_DEVICE
from ..declared.limits import FULL_PRECISION
from ..lean import dataclass
from ..subject.errors import SubjectError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..contracts import Contract
    from ..findings import Finding
    from ..subject import Subject


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One check on one device and dtype: what becomes one pytest item.

    Attributes:
        check: The check.
        device: Where it runs, such as ``cpu`` or ``cuda:0``.
        dtype: Floating dtype of the model, such as ``float32``.
        id: Stable name, such as ``gradients-exist[cpu-float32]``.
    """

    check: Check
    device: str
    dtype: str
    id: str


def real_devices(contract: Contract, devices: Sequence[str] | None = None) -> tuple[str, ...]:
    """Return the devices that checks run on: asked for, declared, or the CPU and CUDA where present."""
    wanted = devices or contract.devices
    if wanted is None:
        return (
            ("cpu", "cuda") if torch.cuda.is_available() and torch.cuda.device_count() else ("cpu",)
        )
    return tuple(device for device in wanted if device != "meta") or ("cpu",)


def cases(contract: Contract, *, devices: Sequence[str] | None = None) -> tuple[Case, ...]:
    """Return the cases that apply by declaration, in the order in which they run.

    Args:
        contract: The contract.
        devices: Run on these devices instead of those declared.
    """
    places = real_devices(contract, devices)
    declared = contract.dtypes or ("float32",)
    full = [dtype for dtype in declared if dtype in FULL_PRECISION] or ["float32"]
    low = [dtype for dtype in declared if dtype not in FULL_PRECISION]
    once: list[Case] = []
    rest: dict[tuple[str, str], list[Case]] = {}
    for check in catalogue().values():
        if check.missing(contract) is not None:
            continue
        for device in places:
            kind = device.partition(":")[0]
            if check.devices and kind not in check.devices:
                continue
            if check.axes == "once":
                once.append(Case(check=check, device=device, dtype=full[0], id=check.name))
                break
            if check.axes == "device":
                made = Case(check=check, device=device, dtype=full[0], id=f"{check.name}[{device}]")
                rest.setdefault((device, full[0]), []).append(made)
                continue
            for dtype in low if check.axes == "low-precision" else full:
                made = Case(
                    check=check, device=device, dtype=dtype, id=f"{check.name}[{device}-{dtype}]"
                )
                rest.setdefault((device, dtype), []).append(made)
    found = (*once, *(case for group in rest.values() for case in group))
    first = next((case for case in found if case.check.leads), None)
    return found if first is None else (first, *(case for case in found if case is not first))


def ordered(
    contract: Contract, found: tuple[Case, ...], budget: float | None = None
) -> tuple[Case, ...]:
    """Return the cases in the order in which they run: the cheapest first where a budget may end them.

    The case that leads stays in front, and cases of one device and dtype stay together.
    """
    if budget is None and contract.budget is None:
        return found
    places = list(dict.fromkeys((c.check.axes == "once", c.device, c.dtype) for c in found[1:]))
    return (
        *found[:1],
        *sorted(
            found[1:],
            key=lambda c: (
                places.index((c.check.axes == "once", c.device, c.dtype)),
                estimated_steps(c.check),
            ),
        ),
    )


def no_device(case: Case, contract: Contract) -> Finding:
    """Say in one line which devices are missing."""
    return verdicts.inconclusive(f"no {case.device} device here", code=NO_DEVICE).replace(
        check=case.check.name, contract=contract.name, device=case.device, dtype=case.dtype
    )


_COUNTED: Final = re.compile(r"(\d+)(?: to (\d+))? (FBS|FB|F|B)\b")
_STEPS: Final = {"F": 1 / 3, "B": 2 / 3, "FB": 1.0, "FBS": 1.0}
"""Parts of a plain step, where a backward takes twice the time of a forward."""
_UNKNOWN: Final = 5.0
_BY_DEFAULT: Final = frozenset(
    {"model", "model-or-functions", "loss", "targets", "optimizer", "train_step", "step-or-trainer",
     "overfit", "factory"}
)  # fmt: skip
"""Needs of the checks that run without being asked for."""


def estimated_steps(check: Check) -> float:
    """Return about how many plain training steps a check takes when it passes, read from its declared cost."""
    first = check.cost.partition(";")[0]
    counted = sum(
        float(most or least) * _STEPS[unit] for least, most, unit in _COUNTED.findall(first)
    )
    if "shared" in first or first.startswith(("none", "nothing")):
        return min(counted, 0.5)
    return counted or _UNKNOWN


def is_declared(check: Check) -> bool:
    """Say whether a check runs because the contract asks for it: a promise, a ceiling, data, ranks."""
    return check.promise is not None or not _BY_DEFAULT.issuperset(check.needs)


def plain_step_seconds(subject: Subject) -> float | None:
    """Return the wall time of one training step, in seconds: the faster of two; None where a step raises.

    The model, its optimizer and its random numbers are put back.
    """
    times = []
    try:
        with subject.pristine(steps=True, train=True, seeded=True) as model:
            made = subject.make_optimizer(model)
            for _ in range(2):
                batch = subject.batch().clone()
                start = time.perf_counter()
                subject.train_step(model, made, batch)
                times.append(time.perf_counter() - start)
    except SubjectError:
        return None
    return min(times)
