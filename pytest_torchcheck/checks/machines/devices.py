"""The model can move: to another device, found out without one, and to another dtype."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ... import sources
from ...codes import devices as explain
from ...codes.errors import explain_error
from ...declared.limits import DTYPES, FULL_PRECISION
from ...explanation import counted
from ...findings import Culprit, Finding, Location
from ...objects import trees
from ...probes.device_rules import IMPLICIT_SYNCS
from ...runs.portability import Portability, portability
from ...state import seed_everything
from ...subject.errors import SubjectError
from ...text.printable import message_of
from ...verdicts import explained, inconclusive, not_applicable, passed, suspicious

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...batches import Batch
    from ...probes.placement import Placement, Sync
    from ...subject import Subject


_LARGE_BYTES = 64 * 2**20


def device_portability(subject: Subject) -> Iterator[Finding]:
    """Run as if on a GPU, and on ``meta`` in doubt; report what stays on the CPU, by attribute or call.

    The declared loss is run after it in the same way: tensors that it makes on the CPU, and values
    that it reads on the host, are suspicious. Where a train step waits for a GPU is seen on a GPU
    only (host-syncs).
    """
    declared = subject.contract.devices
    if declared is not None and all(device == "cpu" for device in declared):
        yield not_applicable("the contract declares that the model runs on the CPU only")
        return
    if subject.device.type != "cpu":
        yield not_applicable(
            f"the contract's checks run on {subject.device} itself, which tests this"
        )
        return
    subject.require_values()
    seen = portability(subject)
    findings = [explain.explain(subject, mixture, seen) for mixture in seen.pretended.mixtures]
    findings = _each_once(findings)
    if not findings and seen.meta.kind == "mixed":
        findings.append(explain.meta_finding(seen))
    findings += _syncs(seen.pretended, "forward")
    yield from findings
    in_loss = _each_once(
        [explain.explain(subject, mixture, seen) for mixture in seen.in_loss.mixtures]
    )
    in_loss = [one.replace(status="suspicious") for one in in_loss]
    in_loss += _syncs(seen.in_loss, "loss")
    yield from in_loss
    if findings or in_loss:
        return
    if seen.broke is not None and seen.meta.kind != "ran":
        yield inconclusive(
            "neither run could be finished: as if on a GPU, "
            f"{type(seen.broke.error).__name__}: {_first(seen.broke.error)}; on meta, {seen.meta.message}",
            code="not-run",
            location=sources.of_error(seen.broke.error),
        )
        return
    meta = {
        "not-run": "",
        "ran": "; forward and backward run on meta",
        "no-data": f"; on meta the run stops where values are read ({_place(seen)})",
    }.get(seen.meta.kind, f"; on meta an operation is missing ({seen.meta.message[:80]})")
    yield passed(
        f"no devices were mixed in {seen.pretended.ops} calls as if on a GPU{meta}",
        evidence={
            "meta": seen.meta.kind,
            "syncs": [f"{s.how} at {_spell(s)}" for s in seen.pretended.syncs],
        },
    )


def _first(error: BaseException) -> str:
    return (message_of(error).splitlines() or [""])[0][:120]


def _place(seen: Portability) -> str:
    place = seen.meta.location
    return f"line {place.line}: {place.text}" if place else seen.meta.message[:80]


def _spell(sync: Sync) -> str:
    place = sync.location
    return f"{place.file}:{place.line}" if place else sync.module or "the model"


def _each_once(findings: list[Finding]) -> list[Finding]:
    """Keep one finding per attribute or line that is to be changed."""
    kept: dict[tuple[str, object], Finding] = {}
    for finding in findings:
        where = finding.location and (finding.location.file, finding.location.line)
        name = finding.culprits[0].name.partition("[")[0] if finding.culprits else ""
        kept.setdefault((finding.code, where or name), finding)
    return list(kept.values())


def _syncs(seen: Placement, where: str) -> Iterator[Finding]:
    """Report values read on the host by the user's own code, in the forward or in the loss."""
    own = [
        sync
        for sync in seen.syncs
        if sync.how in IMPLICIT_SYNCS and sync.location and sources.rank(sync.location.file) == 2
    ]
    if not own:
        return
    first = own[0].location
    assert first is not None
    lines = ", ".join(str(line) for line in sorted({s.location.line for s in own if s.location}))
    yield suspicious(
        "host-sync",
        f"the {where} waits for the GPU: {own[0].how}"
        + (f" in {own[0].module}" if own[0].module else ""),
        culprits=[
            Culprit("call", s.how, f"in {s.module}" if s.module else "", s.location)
            for s in own[:4]
        ],
        observed=f"{len(own)} place{'s' * (len(own) > 1)} of one {where} read a tensor's value on "
        f"the host (line {lines})",
        cause="a Python number, a string or a branch needs the value, so the CPU waits until the "
        "GPU has computed it",
        because=f"line {first.line} reads it: {first.text}",
        fix="keep it a tensor (torch.where, masks), or read it outside "
        f"{'forward' if where == 'forward' else 'the loss'}: line {first.line}",
        evidence={"syncs": [f"{s.how} at {_spell(s)}" for s in own]},
    )


def dtype_conversion(subject: Subject) -> Iterator[Finding]:
    """Convert to each declared dtype, else to float64, and run; only a declared one can be violated."""
    if not any(p.is_floating_point() for p in subject.model.parameters()):
        yield not_applicable("the model has no floating-point parameter to convert")
        return
    subject.require_values()
    for name in subject.contract.dtypes or ():
        # models are built in float32: nobody converts to that what is of it
        if name in FULL_PRECISION and DTYPES[name] != torch.float32:
            lost = explain.complex_cast(subject, DTYPES[name])
            if lost is not None:
                yield lost
                return
    own = next(p.dtype for p in subject.model.parameters() if p.is_floating_point())
    declared = [
        d for d in subject.contract.dtypes or () if d in FULL_PRECISION and DTYPES[d] != own
    ]
    if subject.contract.dtypes is not None and not declared:
        names = ", ".join(subject.contract.dtypes)
        yield not_applicable(
            f"the declared dtypes ({names}) are the model's own, or are covered by "
            "low-precision checks"
        )
        return
    size = sum(p.numel() * p.element_size() for p in subject.model.parameters())
    if not declared and size > _LARGE_BYTES:
        yield not_applicable(
            f"no dtype is declared, and the parameters take {size / 2**20:.0f} MiB"
        )
        return
    for name in declared or ["float64" if own != torch.float64 else "float32"]:
        yield _convert(subject, name, declared=bool(declared))


def _convert(subject: Subject, name: str, *, declared: bool) -> Finding:
    dtype = DTYPES[name]
    batch = subject.batch()
    few = subject.few(batch) or batch
    kept, outputs, error, known = _run_in(subject, dtype, few)
    if error is not None and few is not batch:
        kept, outputs, error, known = _run_in(subject, dtype, batch)
    if error is not None:
        subject.forward(train=True)  # if this raises too, it is no matter of dtypes
        assert known is not None
        return known if declared else _undeclared(name, known, error)
    stuck = [path for path, found in outputs.items() if found not in (dtype, dtype.to_complex())]
    if kept:
        words, place = _overriding(subject, kept[0][0])
        return suspicious(
            "dtype-kept",
            f"{kept[0][0]} keeps {kept[0][1]} when the model is converted to {name}",
            culprits=[
                Culprit("parameter", path, found, sources.of_parameter(subject.model, path))
                for path, found in kept[:4]
            ],
            location=place,
            observed=f"{counted(len(kept), 'floating tensor')} of the state "
            f"{'is' if len(kept) == 1 else 'are'} not {name} after model.to(torch.{name})",
            cause=f"{words} overrides how the module is converted"
            if words
            else f"{kept[0][0]} is put back or recreated when the module is converted",
            because=f"{kept[0][0]} is {kept[0][1]} after model.to(torch.{name})",
            fix=f"call super().{words.rpartition('.')[2]}(...) in {words}"
            if words
            else f"convert {kept[0][0]} too, or declare in the contract the dtypes that the model runs in",
        )
    return passed(
        f"the model runs in {name}"
        + (
            f"; {', '.join(stuck[:3])} stays in {outputs[stuck[0]]}"
            if stuck
            else f", and gives {name}"
        ),
        evidence={"outputs": {path: str(found) for path, found in outputs.items()}},
    )


Outcome = tuple[list[tuple[str, str]], dict[str, torch.dtype], SubjectError | None, Finding | None]


def _run_in(subject: Subject, dtype: torch.dtype, base: Batch) -> Outcome:
    """Return what kept its dtype, the outputs' dtypes, and what was raised, explained."""
    with subject.pristine() as model:
        subject.convert(model, dtype)
        kept = [
            (path, str(t.dtype).removeprefix("torch."))
            for path, t in (*model.named_parameters(), *model.named_buffers())
            if t.is_floating_point() and t.dtype != dtype
        ]
        batch = base.to(dtype=dtype).clone()
        model.train()
        seed_everything(subject.seed)

        try:
            with torch.no_grad():
                output = subject.call(model, batch)
        except SubjectError as raised:
            known = explain_error(
                raised.error, phase="forward", model=model, batch=batch, rerun=raised.rerun
            )
            return kept, {}, raised, explained(known)
        return kept, {path: t.dtype for path, t in trees.floats(output).items()}, None, None


def _undeclared(name: str, known: Finding, error: SubjectError) -> Finding:
    """Report a failed conversion to a dtype that nobody promised."""
    own = known.location is not None and sources.rank(known.location.file) == 2
    hidden = known.culprits and known.culprits[0].kind in ("tensor", "call", "buffer")
    if own and hidden:
        return known.replace(
            status="suspicious", summary=f"in {name}, which is not declared: {known.summary}"
        )
    return inconclusive(
        f"the model does not run in {name}, which the contract does not declare: "
        f"{type(error.error).__name__}: {_first(error.error)}",
        code="undeclared-dtype",
        location=known.location,
    )


def _overriding(subject: Subject, path: str) -> tuple[str, Location | None]:
    """Return the user's method that converts the module of a tensor in its own way, and its line."""
    parts = path.split(".")[:-1]
    for count in range(len(parts), -1, -1):
        module = subject.model.get_submodule(".".join(parts[:count]))
        for cls in type(module).__mro__:
            if cls.__module__.partition(".")[0] == "torch":
                break
            for name in ("_apply", "to", "double", "float", "half", "bfloat16", "type"):
                if name in vars(cls):
                    return f"{cls.__name__}.{name}", sources.of_object(vars(cls)[name])
    return "", None
