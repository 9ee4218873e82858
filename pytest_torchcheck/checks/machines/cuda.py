"""On a GPU the model computes what it computes on a CPU, in any stream, and waits for nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from ... import sources
from ...findings import Culprit, Finding
from ...hardware import accelerator
from ...measure import parity
from ...state import flags_settable
from ...text.wording import counted
from ...verdicts import inconclusive, passed, suspicious, violated

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...batches import Batch
    from ...subject import Subject

FLOOR: Final = 1024
"""Times eps: difference between kernels of correct models due to the order of summation (Winograd,
split-K)."""
TF32_EPS: Final = 2.0**-11
TF32_FLOOR: Final = 64
RATIO: Final = {"output": 3.0, "gradient": 4.0, "buffer": 3.0}
"""Times the error of the CPU's own float32 (R5)."""
_ILL = 0.1
_LEAST = 16  # times eps: what rounding moves at least
_BATCHES = 3


def device_parity(subject: Subject) -> Iterator[Finding]:
    """Compare one pass on the device with float64 on the CPU; the CPU's own error in this dtype gives the bound.

    TF32 is off; where ``AllowsTF32`` is promised, a second pass with it must keep within its rounding.
    """
    base = _oracle(subject)
    if isinstance(base, Finding):
        yield base
        return
    batch, exact, naive, train = base
    device = subject.device.type
    eps = torch.finfo(subject.dtype or torch.float32).eps
    floors = {False: FLOOR * eps} | (
        {True: TF32_FLOOR * TF32_EPS} if subject.contract.promised("AllowsTF32") else {}
    )
    told: list[str] = []
    for tf32, floor in floors.items():
        found = _on_device(subject, batch, tf32=tf32, train=train)
        for part, gap in parity.gaps(found, exact).items():
            limit = RATIO[part] * (naive[part].value if part in naive else 0.0) + floor
            words = f"{part}s{' with TF32' if tf32 else ''} to {gap.value:.1e}"
            if gap.value > limit:
                if part == "gradient" and _by_a_jump(subject, base, found, limit, tf32=tf32):
                    words += ", of which a part jumps at a rounding"
                elif _by_the_library(subject, base, part, limit, tf32=tf32):
                    words += ", by kernels of cuDNN: torch's own keep within the bound"
                else:
                    yield _differs(subject, gap, limit, tf32=tf32, train=train)
                    return
            told.append(words)
    yield passed(f"{device} agrees with float64 on the CPU: {', '.join(told)} (relative)")


Oracle = tuple["Batch", parity.Run, "dict[parity.Part, parity.Gap]", bool]


def _oracle(subject: Subject) -> Oracle | Finding:
    """Return the base batch, the pass in float64, the CPU's own errors and the mode; or why there is no oracle."""
    subject.require_values()
    subject.require_trainable()
    if (own := parity.twin(subject)) is None:
        return inconclusive(parity.NOT_COPIED, code=parity.NO_ORACLE)
    batch = subject.batch()
    exact, train = parity.exact_run(subject, batch)
    if not exact.output or not exact.gradient:
        return inconclusive(
            "no floating output with a gradient: there is nothing to compare", code="no-gradient"
        )
    naive = parity.gaps(
        parity.run(subject, own, batch.to(device="cpu", dtype=subject.dtype), train=train), exact
    )
    worst = max(naive.values(), key=lambda gap: gap.value)
    if not worst.value < _ILL:
        return inconclusive(
            f"the CPU itself errs by {worst.value:.2g} (relative) in {worst.label}: the model "
            "amplifies rounding, so any device may differ",
            code="ill-conditioned",
        )
    return batch, exact, naive, train


def _by_a_jump(
    subject: Subject, base: Oracle, found: parity.Run, limit: float, *, tf32: bool
) -> bool:
    """Say whether rounding alone gives other gradients: where a ReLU or a maximum switches, they jump.

    How far is measured on the CPU, with weights and inputs moved by as much as the outputs on the device
    are away. What a kernel does wrong exceeds that in every batch; a jump does not.
    """
    _, exact, _, train = base
    eps = torch.finfo(subject.dtype or torch.float32).eps
    by = max(parity.gaps(found, exact)["output"].value, _LEAST * eps)
    for index in range(_BATCHES):
        batch = subject.batch(index)
        double = batch.to(device="cpu", dtype=torch.float64)
        wide = parity.twin(subject, torch.float64)
        assert wide is not None
        exact = parity.run(subject, wide, double, train=train)
        gap = parity.gaps(_on_device(subject, batch, tf32=tf32, train=train), exact)["gradient"]
        jump = parity.moved(subject, batch, exact, by, train=train)
        if gap.value <= limit + RATIO["gradient"] * jump:
            return True
    return False


def _by_the_library(
    subject: Subject, base: Oracle, part: parity.Part, limit: float, *, tf32: bool
) -> bool:
    """Say whether a part keeps within its bound where cuDNN is off: the user's own code computes the same then."""
    batch, exact, _, train = base
    found = _on_device(subject, batch, tf32=tf32, train=train, cudnn=False)
    return parity.gaps(found, exact)[part].value <= limit


def _on_device(
    subject: Subject,
    batch: Batch,
    *,
    tf32: bool,
    train: bool,
    watch: bool = False,
    cudnn: bool = True,
) -> parity.Run:
    layer = accelerator.current()
    with subject.pristine() as model:  # which puts the flag back
        if not cudnn:
            with flags_settable():
                torch.backends.cudnn.enabled = False
        return parity.run(
            subject,
            model,
            batch,
            around=lambda: layer.precision(tf32=tf32),
            train=train,
            watch=watch,
        )


def _differs(
    subject: Subject, gap: parity.Gap, limit: float, *, tf32: bool, train: bool
) -> Finding:
    """Run again under hooks, on both sides, to find the first module whose output is apart."""
    device = subject.device.type
    wide = parity.twin(subject, torch.float64)
    assert wide is not None
    batch = subject.batch()
    exact = parity.run(
        subject, wide, batch.to(device="cpu", dtype=torch.float64), train=train, watch=True
    )
    found = _on_device(subject, batch, tf32=tf32, train=train, watch=True)
    first = parity.first_apart(found, exact, limit)
    name = first[0] if first is not None else gap.name
    kinds = {"output": "output", "gradient": "parameter", "buffer": "buffer"}
    if first is not None:
        module = subject.model.get_submodule(first[0]) if first[0] else subject.model
        culprit = Culprit(
            "module",
            first[0],
            f"{type(module).__name__}, {first[1]:.2g} away",
            sources.of_parameter(subject.model, first[0]),
        )
    else:
        culprit = Culprit(
            kinds[gap.part],  # type: ignore[arg-type]
            gap.name,
            f"{gap.value:.2g} away",
            sources.of_parameter(subject.model, gap.name) if gap.part != "output" else None,
        )
    mode = "with TF32" if tf32 else "without TF32"
    return violated(
        "device-differs",
        f"{gap.label} on {device} differs from the CPU"
        + (f", from {name} on" if first is not None else ""),
        culprits=[culprit],
        location=culprit.location or sources.of_object(type(subject.model).forward),
        observed=f"relative difference {gap.value:.3g} against float64 on the CPU ({mode}); "
        f"rounding explains {limit:.2g}",
        cause=f"{name} computes a different result on {device}"
        if first is not None
        else (
            "an operation outside any module, or a backward, computes a different result on "
            f"{device}"
        ),
        because="the same weights and inputs in float32 on the CPU stay within a bound of "
        f"{limit:.2g}"
        + (f", and every module before {name} agrees with the CPU" if first is not None else ""),
        fix=f"compare {name} alone on both devices; look for kernels of your own, uninitialised "
        "memory and branches on the device",
    )


def host_syncs(subject: Subject) -> Iterator[Finding]:
    """Let torch report every operation for which the host waits, in a second pass; the first one warms up.

    Only lines of the user's own code count. The declared train step is run too: what it reads for a
    log each step costs as much.
    """
    subject.require_trainable()
    layer = accelerator.current()
    with subject.backward():
        pass
    with layer.host_syncs() as seen, subject.backward():
        pass
    where = "forward and backward"
    if subject.contract.train_step is not None:
        with subject.pristine(steps=True, train=True) as model:
            optimizer = subject.make_optimizer(model)
            subject.train_step(model, optimizer, subject.batch().clone())
            with layer.host_syncs() as more:
                subject.train_step(model, optimizer, subject.batch().clone())
        seen = [*seen, *more]
        where = "forward, backward and the train step"
    own = {
        (s.location.file, s.location.line): s
        for s in seen
        if s.location is not None and sources.rank(s.location.file) == 2
    }
    if not own:
        rest = f"; {len(seen)} in torch's own code" if seen else ""
        yield passed(f"{where} never wait for the device in the user's code{rest}")
        return
    places = [s.location for s in own.values() if s.location is not None]
    lines = ", ".join(f"{p.file.rpartition('/')[2]}:{p.line}" for p in places[:6])
    yield suspicious(
        "device-sync",
        f"the host waits for the device at {lines}",
        culprits=[
            Culprit("call", f"line {p.line}", p.text, p) for p in places[:6]
        ],
        location=places[0],
        observed=f"{counted(len(own), 'line')} of one step {'waits' if len(own) == 1 else 'wait'}, after a warm-up",
        cause="a value, or a shape that depends on values, is needed on the host before the next "
            "operation can be queued",
        because=f"torch reported a synchronising operation while line {places[0].line} ran: {places[0].text}",
        fix="keep it a tensor (torch.where, masks, index_select with a known size), or read it every n steps only",
    )  # fmt: skip


def side_stream(subject: Subject) -> Iterator[Finding]:
    """Run a pass twice on the default stream, for its own noise, and once on another one."""
    subject.require_trainable()
    layer = accelerator.current()
    batch = subject.batch()

    def once(around: object = None) -> parity.Run:
        with subject.pristine() as model:
            if around is None:
                return parity.run(subject, model, batch)
            with layer.other_stream():
                return parity.run(subject, model, batch)

    first, again, other = once(), once(), once(layer)
    noise = parity.gaps(again, first)
    floor = 16 * torch.finfo(subject.dtype or torch.float32).eps
    for part, gap in parity.gaps(other, first).items():
        limit = 4 * noise[part].value + floor
        if gap.value > limit:
            yield violated(
                "stream-differs",
                f"{gap.label} differs on a side stream",
                culprits=[
                    Culprit(
                        "output" if part == "output" else "parameter",
                        gap.name,
                        f"{gap.value:.2g} away",
                    )
                ],
                location=sources.search(
                    type(subject.model), r"Stream\(|default_stream|current_stream|data_ptr"
                )
                or sources.of_object(type(subject.model).forward),
                observed=f"relative difference {gap.value:.3g}; two passes on the default stream "
                f"differ by {noise[part].value:.2g}",
                cause="a kernel is launched on a fixed stream (such as the default one), and no "
                "stream waits for it",
                because="only the stream was changed, with the same weights, inputs and seed",
                fix="launch kernels on torch.cuda.current_stream(), and make your own streams "
                "wait for it",
            )
            return
    yield passed(
        "outputs, gradients and buffers on a side stream are those of the default one"
        + ("" if any(gap.value for gap in parity.gaps(other, first).values()) else ", bit by bit")
    )
