"""Mixed precision: autocast within its error bounds, and a gradient scaler that does its work."""

from __future__ import annotations

import contextlib
import copy
import math
import sys
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

import torch
from torch import nn

from ... import sources
from ...declared.limits import DTYPES
from ...findings import Culprit, Finding
from ...loop.recorder import trace_of
from ...measure import parity
from ...record.hooks import hooked
from ...record.modes import Functions
from ...state import seed_everything
from ...verdicts import inconclusive, not_applicable, passed, violated

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...findings import Location
    from ...loop.trace import Trace
    from ...subject import Subject

RATIO: Final = {"output": 4.0, "gradient": 6.0, "buffer": 4.0}
"""Factor on the error from rounding each layer's weights and output: operations between layers
round too."""
FLOOR: Final = 8
_ILL = 0.5
_SCALE = 1024.0  # of the loss in float16, so that small gradients do not vanish


def autocast(subject: Subject) -> Iterator[Finding]:
    """Run a pass under autocast and compare with float64; the bound is a float64 pass that only rounds.

    That pass rounds weights, inputs and what each layer gives to the low precision, forward and
    backward, and takes the branches of full precision. Gradients must be finite and of their
    parameters' dtype; in float16 the loss is scaled by 1024, as a GradScaler does. At least one linear or
    convolutional layer must compute in the low precision.
    """
    subject.require_values()
    batch = subject.batch()
    names = dict.fromkeys(d for p in subject.contract.promised("Autocasts") for d in p.dtypes)  # type: ignore[attr-defined]
    usable = [name for name in names if name != "float16" or subject.device.type != "cpu"]
    for name in usable:  # what raises is explained as what it is, before anything is compared
        with torch.autocast(subject.device.type, dtype=DTYPES[name]), subject.backward():
            pass
    exact, train = parity.exact_run(subject, batch)
    for name in names:
        if name not in usable:
            yield not_applicable("float16 autocast needs a GPU; bfloat16 is checked on the CPU")
            continue
        yield _under(subject, name, exact, train=train)


def _under(subject: Subject, name: str, exact: parity.Run, *, train: bool) -> Finding:
    dtype, kind = DTYPES[name], subject.device.type
    batch = subject.batch()
    scale = _SCALE if dtype == torch.float16 else 1.0

    def around() -> contextlib.AbstractContextManager[Any]:
        return torch.autocast(kind, dtype=dtype)

    def once(scale: float, *, watch: bool = False) -> parity.Run:
        with subject.pristine() as model:
            return parity.run(
                subject,
                model,
                batch,
                around=around,
                around_backward=contextlib.nullcontext,
                train=train,
                scale=scale,
                watch=watch,
            )

    found = once(scale)
    if scale > 1 and any(not bool(torch.isfinite(g).all()) for g in found.gradient.values()):
        found = once(1.0)  # a scaler would have lowered its factor
    noise = parity.gaps(parity.rounded_run(subject, batch, dtype, train=train), exact)
    overflows = parity.gaps(found, exact).get("output")
    if overflows is not None and overflows.value == math.inf:
        watched = once(scale, watch=True)
        return _differs(
            subject,
            name,
            overflows,
            math.inf,
            parity.first_apart(watched, exact, sys.float_info.max),
        )
    if "output" in noise and noise["output"].value > _ILL:
        return inconclusive(
            f"rounding each layer to {name} already leaves no correct digit: nothing can be "
            "concluded",
            code="ill-conditioned",
        )
    eps = torch.finfo(dtype).eps
    told = []
    for part, gap in parity.gaps(found, exact).items():
        limit = RATIO[part] * (noise[part].value if part in noise else 0.0) + FLOOR * eps
        if gap.value > limit:
            watched = once(scale, watch=True)
            return _differs(subject, name, gap, limit, parity.first_apart(watched, exact, limit))
        told.append(f"{part}s to {gap.value:.1e}")
    products = _products(subject, dtype)
    if products and set(products.values()) == {torch.float64}:
        return not_applicable("every layer computes in float64, which autocast leaves as it is")
    if products:
        return _without_effect(subject, name, products)
    return passed(
        f"under {name} autocast {', '.join(told)} (relative) of float64, within what "
        "rounding explains"
    )


def _products(subject: Subject, dtype: torch.dtype) -> dict[str, torch.dtype]:
    """Return the dtype that each linear and convolutional layer gives; nothing where any operation gives ``dtype``."""
    found: dict[str, torch.dtype] = {}
    low: list[bool] = []

    def around(func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        result = func(*args, **kwargs)
        low.append(isinstance(result, torch.Tensor) and result.dtype == dtype)
        return result

    with subject.pristine() as model, torch.no_grad():
        model.eval()
        handles = [
            module.register_forward_hook(
                lambda _module, _, output, name=name: found.update({name: output.dtype})
            )
            for name, module in model.named_modules()
            if isinstance(module, (nn.Linear, nn.modules.conv._ConvNd))
        ]
        autocast = torch.autocast(subject.device.type, dtype=dtype)
        with hooked(handles), autocast, Functions(around):
            subject.call(model, subject.batch().clone())
    return {} if any(low) else found


def _without_effect(subject: Subject, name: str, products: dict[str, torch.dtype]) -> Finding:
    """Report a model none of whose layers computes in the low precision that is promised."""
    first, model = next(iter(products)), subject.model
    kind = str(products[first]).removeprefix("torch.")
    place = next(
        (
            line
            for module in model.modules()
            if (line := sources.search(type(module), r"autocast\(.*enabled\s*=\s*False"))
            is not None
        ),
        sources.of_parameter(model, f"{first}.weight" if first else "weight"),
    )
    return violated(
        "autocast-unused",
        f"under {name} autocast no layer computes in {name}: {first or 'the model'} gives {kind}",
        culprits=[Culprit("module", first or type(model).__name__, f"gives {kind}", place)],
        observed=f"{len(products)} linear or convolutional layers ran under autocast, and none of them gave {name}",
        cause="autocast is switched off around them",
        because=f"torch.autocast casts the arguments of these layers to {name}, so that they give it",
        fix="leave autocast enabled around the layers, or drop promises.Autocasts",
    )


def _differs(
    subject: Subject, dtype: str, gap: parity.Gap, limit: float, first: tuple[str, float] | None
) -> Finding:
    finite = gap.value != float("inf")
    place: Location | None = None
    if first is not None:
        place = sources.of_parameter(subject.model, first[0])
    place = (
        sources.search(
            type(subject.model),
            r"\.half\(\)|float16|bfloat16|is_autocast|\.dtype\s*[!=]=|dtype\s*=\s*\w+\.dtype",
        )
        or place
        or sources.of_object(type(subject.model).forward)
    )
    name = first[0] if first is not None else gap.name
    return violated(
        "autocast-differs" if finite else "autocast-overflow",
        f"under {dtype} autocast {gap.label} is "
        + ("different from full precision" if finite else "not finite"),
        culprits=[
            Culprit(
                "module"
                if first is not None
                else "output"
                if gap.part == "output"
                else "parameter",
                name,
                "the first that differs" if first is not None else f"{gap.value:.2g} away",
                place,
            )
        ],
        observed=f"relative difference {gap.value:.3g} against float64; rounding every layer to "
        f"{dtype} explains {limit:.2g}"
        if finite
        else f"NaN or infinity under autocast, where float64 is finite ({dtype} ends at "
        f"{torch.finfo(DTYPES[dtype]).max:g})",
        cause=f"the low-precision path computes a different result from {name} on"
        if finite
        else f"a magnitude beyond {dtype}'s range, or a division by a value that it rounds to 0",
        because="a float64 pass with weights, inputs and each layer rounded to that precision "
        "stays within this bound"
        if finite
        else "the same weights and inputs give finite values in float64",
        fix="compute that part in float32 (with torch.autocast(..., enabled=False)), by the same "
        "formula as in full precision",
    )


def grad_scaler(subject: Subject) -> Iterator[Finding]:
    """Run the train step four times and put infinity into a gradient of the second; watch scaler and weights.

    The weights must not move in that step, the factor must fall, and the steps after it must move
    them again.
    """
    trace = trace_of(subject)
    if not any(True for _ in trace.of("scale")):
        yield not_applicable("the train step uses no GradScaler")
        return
    seen = _overflowing(subject)
    if not seen.scalers or not seen.enabled:
        yield not_applicable("the GradScaler is disabled on this device")
        return
    if not seen.injected:
        yield inconclusive(
            "no parameter received a gradient in the second step", code="no-gradient"
        )
        return
    line = next(
        (
            place
            for kind in ("scaler-update", "scaler-step", "scale")
            if (place := _first_line(trace, kind)) is not None
        ),
        None,
    )
    if seen.scalers > 1:
        yield from _made_anew(seen, subject, line)
        return
    if seen.moved[1]:
        yield from _infinite_applied(seen, subject, trace, line)
        return
    if not seen.factors[2] < seen.factors[1]:
        yield violated(
            "scaler-not-updated",
            f"the scaler's factor stays {seen.factors[2]:g} after an overflow",
            culprits=[Culprit("call", "scaler.update", "missing or too late", line)],
            observed=f"factor {seen.factors[1]:g} in the step that overflowed, "
            f"{seen.factors[2]:g} in the next one",
            cause="scaler.update() is not called after scaler.step()",
            because="the factor was read from the scaler in each step",
            fix="call scaler.update() at the end of every step",
        )
        return
    if not seen.moved[0] or not any(seen.moved[2:]):
        yield inconclusive(
            "steps without an overflow change no parameter either: a skipped step cannot be seen",
            code="nothing-moves",
        )
        return
    yield passed(
        "an infinite gradient changed no parameter and lowered the factor from "
        f"{seen.factors[1]:g} to {seen.factors[2]:g}; the next steps changed parameters again"
    )


def _made_anew(seen: _Seen, subject: Subject, line: Location | None) -> Iterator[Finding]:
    """Report a scaler that is made in every step."""
    yield violated(
        "scaler-anew",
        f"a new GradScaler is created in every step ({seen.scalers} in {len(seen.factors)} "
        "steps): its factor never adapts",
        culprits=[Culprit("call", "GradScaler", "created in the step", _scaler_line(subject))],
        location=_scaler_line(subject) or line,
        observed=f"{seen.scalers} scalers in {len(seen.factors)} steps, each with the factor "
        f"{seen.factors[0]:g}",
        cause="the scaler is created inside the step",
        because="the objects that scaled the loss were compared step by step",
        fix="create the GradScaler once, outside the step",
    )


def _infinite_applied(
    seen: _Seen, subject: Subject, trace: Trace, line: Location | None
) -> Iterator[Finding]:
    """Report weights that an infinite gradient changes."""
    yield violated(
        "overflow-applied",
        f"an infinite gradient reaches the weights: the step changes {seen.moved[1][0]}",
        culprits=[
            Culprit("parameter", name, location=sources.of_parameter(subject.model, name))
            for name in seen.moved[1][:4]
        ],
        location=_first_line(trace, "optimizer-step") or line,
        observed=f"{len(seen.moved[1])} parameters change in a step in which one gradient was "
        "made infinite",
        cause="the optimizer is stepped without the scaler, or the scaler's check is bypassed",
        because="one element of one gradient was set to infinity before the step",
        fix="call scaler.step(optimizer) in place of optimizer.step(), and scaler.unscale_ "
        "before any code that reads gradients",
    )


def _first_line(trace: Any, kind: str) -> Location | None:
    return next((event.place for _, event in trace.of(kind)), None)


def _scaler_line(subject: Subject) -> Location | None:
    step = subject.contract.train_step
    return None if step is None else sources.search(step, r"GradScaler\(")


class _Seen:
    """What happened to scaler and weights in each step."""

    def __init__(self) -> None:
        self.objects: list[Any] = []
        self.factors: list[float] = []
        self.moved: list[list[str]] = []
        self.injected = False

    @property
    def scalers(self) -> int:
        return len(self.objects)

    @property
    def enabled(self) -> bool:
        return any(scaler.is_enabled() for scaler in self.objects)


def _overflowing(subject: Subject) -> _Seen:
    """Run four steps, the second with an infinite gradient; scalers are put back as they were."""
    seen = _Seen()
    saved: list[tuple[Any, dict[str, Any]]] = []
    original = torch.amp.GradScaler.scale

    def scale(scaler: Any, outputs: Any) -> Any:
        if not any(scaler is known for known in seen.objects):
            seen.objects.append(scaler)
            saved.append((scaler, _values(scaler)))
        made = original(scaler, outputs)
        if len(seen.factors) < len(seen.moved) + 1:
            seen.factors.append(float(scaler.get_scale()))
        return made

    with (
        subject.pristine(steps=True) as model,
        mock.patch.object(torch.amp.GradScaler, "scale", scale),
    ):
        model.train()
        optimizer = subject.make_optimizer(model)
        try:
            for step in range(4):
                before = {name: p.detach().clone() for name, p in model.named_parameters()}
                handles = _injection(model, seen) if step == 1 else []
                seed_everything(subject.seed + step)
                with hooked(handles):
                    subject.train_step(model, optimizer, subject.batch().clone())
                seen.moved.append(
                    [n for n, p in model.named_parameters() if not torch.equal(before[n], p)]
                )
        finally:
            for scaler, state in saved:
                vars(scaler).clear()
                vars(scaler).update(state)
    while len(seen.factors) < 4:
        seen.factors.append(seen.factors[-1] if seen.factors else 1.0)
    return seen


def _values(scaler: Any) -> dict[str, Any]:
    """Copy what a scaler holds: its factor is a tensor that is written in place."""
    return {
        name: value.clone() if isinstance(value, torch.Tensor) else copy.copy(value)
        for name, value in vars(scaler).items()
    }


def _injection(model: torch.nn.Module, seen: _Seen) -> list[Any]:
    def infinite(parameter: torch.Tensor) -> None:
        if parameter.grad is not None and not seen.injected:
            parameter.grad.view(-1)[0] = float("inf")
            seen.injected = True

    return [
        p.register_post_accumulate_grad_hook(infinite)
        for p in model.parameters()
        if p.requires_grad and p.numel()
    ]
