"""Custom autograd Functions and operators: found in the model's own run, checked, and counted."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from .. import promises
from ..codes.undecided import BLOCKED, NO_VALUES
from ..functions.coverage import CHECKED, CoverageRow
from ..functions.discovery import RecordedCall, floats_of, is_compiled
from ..functions.evidence import Found, applied_when_trained, evidence
from ..late import Late
from ..state import isolated
from ..text.wording import nearest
from ..verdicts import inconclusive, not_applicable, passed, suspicious

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ..findings import Finding
    from ..functions.calls import Call
    from ..functions.target import Surrogate
    from ..subject import Subject

check_call = Late("functions.engine:check_call")
check_module = Late("functions.modules:check_module")
check_operator = Late("functions.operators:check_operator")
definition_of = Late("functions.operators:definition_of")
make_call = Late("functions.binding:make_call")
shadow_of = Late("functions.operators:shadow_of")
surrogate_of = Late("functions.target:Surrogate")

_STEPS = 12
"""Training steps that lead out of a form which values have only at first: symmetric, of unit rows, zero."""
_SIGNATURES = 3
"""How many different calls of one Function are checked; the first one fully."""


def _verdicts(subject: Subject, found: Found, *, twice: bool = False) -> list[Finding]:
    """Check one Function, once per contract."""
    known = evidence(subject)
    key = (id(found), twice)
    if key not in known.verdicts:
        with isolated():
            known.verdicts[key] = _checked(subject, found, twice=twice)
    return known.verdicts[key]


def _checked(subject: Subject, found: Found, *, twice: bool) -> list[Finding]:
    if found.kind == "module":
        made = check_module(found.thing, found.inputs, name=found.name, seed=subject.seed)
        return list(made)
    surrogate = _surrogate(subject, found.name)
    if not found.calls:
        if found.kind == "operator":
            return list(check_operator(found.thing, found.inputs, twice=twice))
        call = make_call(found.thing, found.inputs, seed=subject.seed)
        return list(check_call(call, found.name, twice=twice, surrogate=surrogate))
    if not any(call.recorded for call in found.calls):
        return [not_applicable(f"{found.name} is only applied where gradients are disabled")]
    usable = [call for call in found.calls if call.whole]
    findings: list[Finding] = []
    compiled = is_compiled(subject.model)
    for position, recorded in enumerate(usable[:_SIGNATURES]):
        made = _call_of(recorded, found.calls, subject.seed)
        findings += check_call(
            made,
            found.name,
            twice=twice or recorded.twice,
            surrogate=surrogate,
            autocast=recorded.autocast,
            compiled=compiled,
            redraw=True,
            only_first=position > 0,
            used_at=recorded.location,
        )
        if any(f.status == "violated" for f in findings):
            break
    if not findings:
        findings = [
            inconclusive(
                f"{found.name} was only applied to tensors without values (fake, meta, "
                "functorch or sparse)",
                NO_VALUES,
            )
        ]
    return _best(findings)


def _call_of(recorded: RecordedCall, calls: Sequence[RecordedCall], seed: int) -> Call:
    """Bind a recorded call; inputs that never required a gradient may get None."""
    floats = floats_of(recorded)
    asked = {index for call in calls for index in call.requires}
    definition = definition_of(recorded.function) if recorded.kind == "operator" else None
    function = shadow_of(definition, recorded.name) if definition is not None else None
    call: Call = make_call(
        recorded.apply,
        recorded.args,
        kwargs=recorded.kwargs,
        linked=recorded.linked,
        wanted=floats,
        optional=[index for index in floats if index not in asked],
        function=function,
        seed=seed,
    )
    return call


def _best(findings: Sequence[Finding]) -> list[Finding]:
    """Keep what needs action; of several passes the first, which is the fullest."""
    acting = [f for f in findings if f.status in ("violated", "suspicious")]
    if acting:
        return list({(f.code, f.summary): f for f in acting}.values())
    held = [f for f in findings if f.status == "passed"]
    return held[:1] or list(findings[:1])


def _surrogate(subject: Subject, name: str) -> Surrogate | None:
    for promise in subject.contract.promised("StraightThrough"):
        assert isinstance(promise, promises.StraightThrough)
        if any(
            fnmatchcase(name, each) or name.rpartition(".")[2] == each for each in promise.functions
        ):
            made: Surrogate = surrogate_of(reason=promise.reason, of=promise.of)
            return made
    return None


def gradcheck(subject: Subject) -> Iterator[Finding]:
    """Check each Function that the model applied, and each that is declared.

    A gradient that is right at the values of the model as built, and wrong at others, must be right where
    training leads too.
    """
    found = [f for f in evidence(subject).found if f.kind != "operator"]
    if not found:
        yield not_applicable("the model applies no custom autograd Function, and none is declared")
    seen: set[object] = set()
    for each in found:
        for finding in _where_trained(subject, each, _verdicts(subject, each)):
            # a Function that is declared and applied by the model is at fault once
            key = (finding.code, finding.location) if finding.status == "violated" else object()
            if key not in seen:
                seen.add(key)
                yield finding
    names = {f.name for f in found}
    for promise in subject.contract.promised("StraightThrough"):
        assert isinstance(promise, promises.StraightThrough)
        for name in promise.functions:
            if not any(fnmatchcase(n, name) or n.rpartition(".")[2] == name for n in names):
                near = nearest(name, names)
                yield suspicious(
                    "surrogate-unknown",
                    f"promises.StraightThrough names {name}, which the model does not apply",
                    observed=f"applied: {', '.join(sorted(names)) or 'no custom Function'}",
                    cause="the Function was renamed, or is no longer used",
                    because="every Function that the model applies was recorded",
                    fix=f"write {near!r}" if near else "correct the name, or remove the promise",
                )


def _where_trained(subject: Subject, each: Found, findings: list[Finding]) -> list[Finding]:
    """Return what is wrong at the values after some steps, where those of the model as built hide it."""
    if not each.calls or not any(f.code == "gradcheck-domain" for f in findings):
        return findings
    trained = applied_when_trained(subject, each, _STEPS)
    if trained is None:
        return findings
    with isolated():
        again = [f for f in _checked(subject, trained, twice=False) if f.status == "violated"]
    if not again:
        return findings
    since = f"at the values that {_STEPS} training steps lead to; it is right in the model as built"
    return [f.replace(observed=f"{f.observed}, {since}" if f.observed else since) for f in again]


def double_backward(subject: Subject) -> Iterator[Finding]:
    """Check the derivative of each Function's gradient."""
    found = [f for f in evidence(subject).found if f.kind == "function"]
    if not found:
        yield inconclusive(
            "no custom autograd Function was found whose second derivative could be checked"
        )
    for each in found:
        findings = _verdicts(subject, each, twice=True)
        yield from _second_only(each, findings)


def _second_only(found: Found, findings: Sequence[Finding]) -> Iterator[Finding]:
    mine = [f for f in findings if f.code.startswith("double-backward")]
    if mine:
        yield from mine
    elif any(f.status == "violated" for f in findings):
        yield inconclusive(
            f"the second derivative of {found.name} was not checked: its first derivative is wrong",
            BLOCKED,
            root=f"gradcheck/{next(f.code for f in findings if f.status == 'violated')}",
        )
    elif "second derivatives" in _held(findings[0]):
        yield passed(
            f"second derivatives of {found.name} agree with central differences of its gradient"
        )
    else:
        yield findings[0]


def _held(finding: Finding) -> list[Any]:
    held = finding.evidence.get("held")
    return held if isinstance(held, list) else []


def custom_ops(subject: Subject) -> Iterator[Finding]:
    """Run opcheck and a gradient check on each operator that the model called."""
    found = [f for f in evidence(subject).found if f.kind == "operator"]
    if not found:
        yield not_applicable("the model calls no operator registered with torch.library")
    for each in found:
        if not each.calls:
            yield from _verdicts(subject, each)
            continue
        recorded = next((c for c in each.calls if c.whole), None)
        registered: list[Finding] = []
        if recorded is not None:
            inputs = (
                dict(recorded.kwargs) if recorded.kwargs and not recorded.args else recorded.args
            )
            registered = check_operator(
                each.thing, inputs, used_at=recorded.location, derivatives=False
            )
        broken = [f for f in registered if f.status == "violated"]
        yield from registered
        if not broken and _trains(each):
            yield from _verdicts(subject, each)


def _trains(found: Found) -> bool:
    definition = definition_of(found.thing)
    return definition is not None and getattr(definition, "_backward_fn", None) is not None


def function_coverage(subject: Subject) -> Iterator[Finding]:
    """List each Function with its line and verdict."""
    known = evidence(subject)
    if not known.found:
        yield not_applicable("the model uses no custom Function or operator")
        return
    rows = [_row(subject, each) for each in known.found]
    lines = "; ".join(f"{r.name} ({r.file.rpartition('/')[2]}:{r.line}) {r.status}" for r in rows)
    plain = {"coverage": [row.to_dict() for row in rows]}
    missing = [row for row in rows if row.status not in CHECKED]
    if missing:
        names = ", ".join(row.name for row in missing)
        yield inconclusive(
            f"{len(missing)} of {len(rows)} custom Functions could not be checked: {names} ({missing[0].reason})",
            "function-unchecked",
            evidence=plain,
            observed=lines,
        )
        return
    yield passed(f"{len(rows)} custom Functions found and checked: {lines}", evidence=plain)


def _row(subject: Subject, found: Found) -> CoverageRow:
    verdicts = _verdicts(subject, found)
    order = ("violated", "suspicious", "passed", "inconclusive", "not-applicable")
    worst = min((f.status for f in verdicts), key=order.index)
    reason = (
        next((f.summary for f in verdicts if f.status == worst), "") if worst not in CHECKED else ""
    )
    return CoverageRow(
        **{
            **{k: getattr(found.row, k) for k in ("name", "kind", "module", "file", "line")},
            "contracts": (subject.contract.name,),
            "status": worst,
            "reason": reason,
        }
    )


def gradcheck_module(subject: Subject) -> Iterator[Finding]:
    """Compare directional derivatives of every parameter and floating input; locate the submodule that differs."""
    batch = subject.batch().clone()
    with subject.pristine(train=True) as model:
        inputs = batch.args if not batch.kwargs else batch.kwargs
        yield from check_module(model, inputs, name=subject.contract.name, seed=subject.seed)
