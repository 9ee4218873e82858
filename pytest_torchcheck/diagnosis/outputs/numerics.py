"""Inputs at the edge of their domain and in other layouts, runs in low precision, and complex buffers that a conversion makes real, explained."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch

from ... import sources
from ...explanation import by_forward, counted, listed, on_line
from ...findings import Culprit, Finding
from ...objects import trees
from ...probes.numbers.finiteness import find_overflow
from ...probes.recorded.operations import record
from ...probes.recorded.orders import first_merging
from ...runs.numerics import Trouble, in_double, watched
from ...state import seed_everything
from ...verdicts import explained, suspicious, violated
from ..crashes.explain import explain_error
from ..gradient.non_finite import evidence_of, remedy, writers
from .eval_lines import eval_run

if TYPE_CHECKING:
    from torch import nn

    from ...batches import Batch
    from ...findings import Location, Status
    from ...probes.numbers.domains import NonFinite
    from ...runs.variants.merged_integers import MergedIntegers
    from ...subject import Subject
    from ...subject.errors import SubjectError


def overflowing(subject: Subject, batch: Batch) -> NonFinite | None:
    """Return what computes the first infinity of the forward in eval mode, where float64 computes none."""

    def first(model: torch.nn.Module, batch: Batch) -> NonFinite | None:
        model.eval()
        seed_everything(subject.seed)
        return find_overflow(lambda: subject.call(model, batch), model)

    with subject.pristine():
        found = first(subject.model, batch.clone())
    return found if found is not None and in_double(subject, first) is None else None


def place_of(found: NonFinite | None) -> tuple[str, Location | None]:
    """Return words for the operation and module, and the line."""
    if found is None:
        return "an operation", None
    inside = f" in {found.module}" if found.module else ""
    return f"{found.op.name}{inside}", found.location


def culprits_of(found: NonFinite | None, names: tuple[str, ...]) -> list[Culprit]:
    """Name the module and the operation, else the parameters."""
    made = writers(found)
    if found is not None and found.module:
        made.append(Culprit("module", found.module, found.fact, found.location))
    if found is not None:
        made.append(Culprit("call", found.op.name, found.fact, found.location))
    return made or [Culprit("parameter", name) for name in names[:4]]


def edge(subject: Subject, batch: Batch, what: str, trouble: Trouble, *, status: Status) -> Finding:
    """Explain a NaN at the edge of the domain.

    Args:
        subject: The model under test.
        batch: The batch that shows it.
        what: The edge in words, such as ``an input that is all zero``.
        trouble: What is not finite.
        status: ``violated`` where the contract declares the domain, else ``suspicious``.
    """
    found = watched(subject, batch)
    op, place = place_of(found)
    kind = found.kind if found is not None else "nan"
    word = "NaN" if kind == "nan" else "infinity"
    cause, fix = remedy(found, forward=found is None or found.phase == "forward")
    return Finding(
        status=status,
        code="edge-non-finite",
        summary=f"{trouble} {'become' if trouble.several else 'becomes'} NaN or inf for {what}",
        culprits=tuple(culprits_of(found, trouble.gradients)),
        location=place,
        observed=f"{batch.describe()[:200]}: {trouble} {'are' if trouble.several else 'is'} not "
        "finite; on an ordinary batch all are finite",
        cause=f"{op} makes the first {word}: {cause}"
        + (", in the backward" if found and found.phase == "backward" else ""),
        because=evidence_of(found),
        fix=fix,
    )


Outputs = dict[str, torch.Tensor]


def moved(subject: Subject, kind: str, error: SubjectError) -> Finding:
    """Report a crash that another memory layout of the input causes."""
    with subject.pristine():
        known = explain_error(
            error.error,
            phase="forward",
            model=subject.model,
            batch=error.batch,
            rerun=error.rerun,
            device=str(subject.device),
        )
    words = kind.replace("_", "-")
    return explained(
        known,
        "suspicious",
        code="layout-crash",
        summary=f"{words} inputs crash: {known.summary}",
        location=known.location or sources.of_error(error.error),
        because=f"the same values run in contiguous memory; {known.because}",
        fix=known.fix or "use reshape instead of view",
    )


def digits_lost(
    subject: Subject, dtype: str, path: str, *, worst: float, noise: float, evidence: dict[str, Any]
) -> Finding:
    """Explain an output in which no digit is right, though rounding the weights alone moves it far less."""
    if (found := overflowing(subject, subject.batch())) is not None:
        return overflow(subject, dtype, path, found, train=False, error=worst)
    return suspicious(
        "precision-lost",
        f"{path} has no correct digit in {dtype}",
        culprits=[Culprit("output", path, f"relative error {worst:.2g}")],
        location=sources.of_object(type(subject.model).forward),
        observed=f"relative error {worst:.2g} against float64; rounding only weights and inputs "
        f"to {dtype} changes it by {noise:.2g}",
        cause=f"an intermediate result loses its digits in {dtype} (a long sum, a difference of "
        "large numbers, a counter)",
        because=f"the error is {worst / max(noise, 1e-30):.3g} times that of rounding the weights",
        fix="compute sums, means, norms and positions in float32",
        evidence=evidence,
    )


def integers_merged(subject: Subject, found: MergedIntegers) -> Finding:
    """Explain integers that a model in low precision takes for one another: name the cast that makes them equal."""
    dtype = str(subject.dtype).removeprefix("torch.")
    with subject.pristine() as model:
        base, other = (
            record(eval_run(subject, batch), model) for batch in (subject.batch(), found.batch)
        )
    step = first_merging(base, other)
    op, line = (step.op.name, step.op.location) if step is not None else ("", None)
    name, (one, two) = by_forward(subject, found.path), found.values
    place = line or sources.of_object(type(subject.model).forward)
    called = [at for at in (step.callers[:1] if step is not None else ()) if at != line]
    return violated(
        "integers-merged",
        f"different integers of {name} give the same outputs in {dtype}",
        culprits=[
            Culprit("input", name, f"{one} and {two} are both {found.rounded:g} in {dtype}", place),
            *([Culprit("call", op, "makes them equal", line)] if op else []),
            *(Culprit("call", at.function, "is called here", at) for at in called),
        ],
        location=place,
        observed=f"with {two} in place of {one}, and others alike, no output changed in {dtype}; in float64 they moved "
        f"by {found.gap:.3g} (relative)",
        cause=f"{op}{on_line(line)} casts {name} to {dtype}, which holds {one} and {two} as {found.rounded:g}"
        if op
        else f"{name} is cast to {dtype}, which holds {one} and {two} as {found.rounded:g}",
        because=(f"{op} read other integers and gave the same values, bit for bit; " if op else "")
        + f"rounding all weights to {dtype} moves the outputs by {found.noise:.3g} only",
        fix=f"compute with {name}.float(), and cast the result{on_line(line)}",
        evidence={"gap": found.gap, "noise": found.noise, "rounded": found.rounded},
    )


def overflow(
    subject: Subject,
    dtype: str,
    what: str,
    found: NonFinite | None,
    *,
    train: bool,
    error: float | None = None,
) -> Finding:
    """Explain a low-precision run whose values leave the range of the dtype.

    Args:
        subject: In low precision.
        dtype: Its name.
        what: The output, loss or gradient that shows it.
        found: The operation to blame.
        train: The mode of the run.
        error: Relative error of ``what``, where it is finite again.
    """
    op, place = place_of(found)
    limit = torch.finfo(getattr(torch, dtype)).max
    backward = found is not None and found.phase == "backward"
    then = (
        f"; {found.then} then makes it NaN" if found is not None and found.then is not None else ""
    )
    return violated(
        "precision-overflow",
        (f"{what} is not finite" if error is None else f"{what} has no correct digit")
        + f" in {dtype}: {op} "
        + ("overflows" if found is not None and found.kind == "inf" else "makes the first NaN")
        + (" in the backward" if backward else ""),
        culprits=culprits_of(found, ()),
        location=place,
        observed=f"{what} holds NaN or inf in {dtype} ({'training' if train else 'eval'} mode), but "
        "not in float64 with the same weights"
        if error is None
        else (
            f"relative error {error:.2g} against float64; an intermediate value is inf, and "
            "dividing by it makes the output finite"
        ),
        cause=f"{dtype} holds magnitudes up to {limit:g}, and {op} exceeds it, or divides by a "
        "value rounded to 0",
        because=(found.fact + then) if found is not None else "the same step in float64 is finite",
        fix=f"compute this operation in float32{f', line {place.line}' if place else ''}, or scale its input down",
        evidence={"result": found.result, "kernel": found.kernel, "count": found.count}
        if found is not None
        else {},
    )


_ALIKE = 1e-3  # relative; outputs in another dtype differ by rounding, those of half a table by their size


def complex_cast(subject: Subject, dtype: torch.dtype) -> Finding | None:
    """Compare a copy converted by ``.to(dtype)`` with one whose complex tensors stay complex.

    Complex parameters are no matter of this: they lose their half as well, but a model of complex
    weights can hardly do without.

    Args:
        subject: Whose model; only copies are converted.
        dtype: A real floating dtype that the contract declares.

    Returns:
        None where no buffer is complex, the model cannot be copied, or the outputs agree.
    """
    names = [
        name
        for name, buffer in subject.model.named_buffers()
        if buffer.is_complex() and bool(buffer.imag.any())
    ]
    if not names:
        return None
    kept, cast = subject.copy_model(), subject.copy_model()
    if kept is None or cast is None:
        return None
    subject.convert(kept, dtype)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Casting complex values to real")
        cast.to(dtype)
    if any(cast.get_buffer(name).is_complex() for name in names):
        return None  # the class converts in a way of its own
    wanted = _outputs(subject, kept, dtype)
    try:
        found = _outputs(subject, cast, dtype)
        gaps = [trees.apart(found[path], wanted[path]) for path in wanted]
    except (RuntimeError, KeyError, TypeError) as error:
        gaps, said = [float("inf")], f"the forward then raises {type(error).__name__}"
    else:
        said = f"the output changes by {max(gaps, default=0.0):.3g} (relative)"
    if all(gap <= _ALIKE for gap in gaps):
        return None
    return _made_real(subject, names, dtype, said, cast)


def _made_real(
    subject: Subject, names: list[str], dtype: torch.dtype, said: str, cast: nn.Module
) -> Finding | None:
    """Report complex buffers whose imaginary part a conversion loses."""
    place = sources.of_parameter(subject.model, names[0])
    word = str(dtype).removeprefix("torch.")
    line = on_line(place)
    return violated(
        "complex-cast",
        f"model.to(torch.{word}) makes {listed(names, 3)} real: the imaginary part is lost",
        culprits=tuple(
            Culprit(
                "buffer",
                name,
                str(subject.model.get_buffer(name).dtype).removeprefix("torch."),
                sources.of_parameter(subject.model, name),
            )
            for name in names[:4]
        ),
        location=place,
        observed=f"{counted(len(names), 'complex buffer')}; after .to(torch.{word}) {said}",
        cause=".to(dtype) converts complex buffers to the real dtype too; .double() and .half() "
        "leave them unchanged",
        because=f"{names[0]} is {cast.get_buffer(names[0]).dtype} after .to(torch.{word}), and "
        "its imaginary part was not zero",
        fix=f"register torch.view_as_real of it{line}, and use torch.view_as_complex in forward",
    )


def _outputs(subject: Subject, model: nn.Module, dtype: torch.dtype) -> dict[str, Any]:
    model.eval()
    seed_everything(subject.seed)
    with torch.no_grad():
        return trees.floats(subject.contract.invoke(model, subject.batch().to(dtype=dtype).clone()))
