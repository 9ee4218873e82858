"""What a comparison found, as findings: a change that nobody declared, or one that was declared and did not come."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from .. import verdicts
from ..findings import Culprit
from ..lean import dataclass
from ..text.units import format_bytes
from . import CHANGES, places
from .lines import Edits

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from ..findings import Finding
    from ..subject import Subject
    from .judge import Judgement
    from .places import Place
    from .version import Version

_MOST = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """What a model is held beside, as reports speak of it.

    Attributes:
        shown: Its name, such as ``main (1a2b3c4d5)``.
        edits: The lines that changed since, where they are known.
        old: The other version, None for a record.
        meant: What to do about a change of a category that is meant, as a clause.
    """

    shown: str
    edits: Edits
    old: Version | None
    meant: Callable[[str], str]

    @property
    def weights(self) -> str:
        """What the weights are that both were given."""
        return "recorded" if self.old is None else "old"

    @classmethod
    def version(cls, old: Version) -> Beside:
        """Return what reports say of a git reference."""
        return cls(shown=old.tree.reference.shown, edits=Edits(old.tree), old=old, meant=_declare)


def findings(
    subject: Subject,
    beside: Beside,
    found: Judgement,
    *,
    declared: Mapping[str, Any],
    allowed: Collection[str] = (),
) -> Iterator[Finding]:
    """Yield a finding for each change that nobody declared, each declared one that did not come, and what is unchanged.

    Args:
        subject: The model as it is.
        beside: What it is held beside.
        found: What was compared.
        declared: The contract's ``changes``: reasons by category.
        allowed: Categories that the run allows to change.
    """
    shown = beside.shown
    makers = {"state": _state, "outputs": _outputs, "init": _initial, "cost": _cost}
    held = []
    for category in CHANGES:
        changed = is_changed(found, category)
        expected = declared.get(category)
        reason = expected if isinstance(expected, str) else None
        if changed and (reason or category in allowed):
            why = reason or "--torchcheck-allow"
            held.append(f"{category} changed, as declared: {why}")
        elif changed:
            finding = makers[category](subject, found, beside)
            evidence = {**finding.evidence, "category": category, "reference": shown}
            yield finding.replace(evidence=evidence)
        elif category in found.undecided:
            yield verdicts.inconclusive(
                f"{category} not compared with {shown}: {found.undecided[category]}",
                code="not-compared",
            )
        elif reason:
            yield _absent(category, reason, shown)
        else:
            held.append(_unchanged(found, category))
    if held:
        told = f"beside {shown}: {'; '.join(held)}"
        notes = {"notes": list(found.notes)} if found.notes else {}
        yield verdicts.passed(told, evidence={"costs": _told(found, found.costs), **notes})


def is_changed(found: Judgement, category: str) -> bool:
    """Say whether a category changed."""
    match category:
        case "state":
            return found.state.any and not found.loads
        case "outputs":
            return bool(found.changed)
        case "init":
            return bool(found.initial)
    return bool(found.dearer)


def _unchanged(found: Judgement, category: str) -> str:
    """Say how a category is unchanged."""
    match category:
        case "state" if found.state.any:
            by = "the model's hooks" if found.loading.how == "strict" else "the contract's mapping"
            return f"an old checkpoint loads strictly by {by}"
        case "state":
            return "the state dict has the same entries"
        case "init":
            return (
                "initial values are equal under the same seed"
                if found.same_initial
                else "initial values are alike"
            )
        case "cost":
            return "costs are alike"
    rounded = max((v.gap for v in found.verdicts if v.standing == "rounding"), default=0.0)
    how = f"within rounding (at most {rounded:.1e})" if rounded else "bit by bit"
    count = len(found.batches)
    return f"outputs, loss and gradients of {count} batch{'es' * (count != 1)} agree {how}"


def _absent(category: str, reason: str, shown: str) -> Finding:
    return verdicts.violated(
        "change-absent",
        f"the declared change of {category} did not happen: it is the same as at {shown}",
        observed=f"changes={{{category!r}: {reason!r}}}",
        cause="the change is in the reference already, or the edit has no effect",
        fix=f"remove {category!r} from changes=",
    )


def _texts(place: Place, beside: Beside) -> dict[str, Any]:
    """Return cause and evidence of an edit."""
    edit = place.edit
    if edit is None and beside.old is None:
        return {
            "cause": "not known: a record holds numbers and no code; --torchcheck-against names lines"
        }
    if edit is None:
        return {
            "cause": "no changed line of the model's files explains it; look at what they import"
        }
    now, was = edit.text or "(removed)", edit.was or "(no such line)"
    start = "" if place.sure else "likely: "
    return {
        "cause": f"{start}line {edit.new.line} of {_name(edit.new.file)} was\n  {was}\nand is now\n  {now}",
        "evidence": {"was": was, "now": now, "old line": edit.old_line, "at": beside.shown},
    }


def _name(file: str) -> str:
    return file.replace("\\", "/").rpartition("/")[2]


def _declare(category: str) -> str:
    return (
        f"restore it; or, if it is meant, declare changes={{{category!r}: 'why'}} in the contract, or allow it in "
        f"this run with --torchcheck-allow={category}"
    )


def _at(place: Place, kind: str) -> str:
    """Return the module of a place; that of an output or a loss is the first one whose result differs."""
    if not place.cls:
        return ""
    name = f"{place.module} ({place.cls})" if place.module else place.cls
    first = place.step is not None or kind not in ("error", "gradient", "statistics", "update")
    return f", first in {name}" if first else f", in {name}"


def _because(place: Place, found: Judgement, beside: Beside) -> str:
    if place.step is None:
        total, changed = len(found.verdicts), len(found.changed)
        return f"{changed} of {total} runs on the {beside.weights} weights changed"
    called = place.step.op.location
    on = f" on line {called.line}" if called is not None and called != place.line else ""
    return f"both versions have what {place.step.op.name}{on} reads, and its result differs"


def _percent(gap: float) -> str:
    return f"{gap:.2g}" if math.isfinite(gap) else "unbounded"


def _outputs(subject: Subject, found: Judgement, beside: Beside) -> Finding:
    verdict = found.changed[0]
    first = verdict.differences[0]
    place = places.of_numbers(subject, beside.old, found, verdict, beside.edits)
    batch = found.batches[verdict.way.batch]
    sizes = ", ".join(f"{k}={v}" for k, v in batch.sizes.items())
    what = {
        "loss": "the loss", "gradient": f"the gradient of {first.name}", "update": f"the update of {first.name}",
    }.get(first.kind, first.name)  # fmt: skip
    measured = first.fact or f"differs by {_percent(first.gap)} of its largest magnitude"
    way = f"{verdict.way.shown}, {'float64' if verdict.way.double else 'own precision'}"
    subject_ = f"{what} {measured}" if first.kind != "error" else f"it raises now: {measured}"
    total, changed = len(found.verdicts), len(found.changed)
    culprits = []
    if place.cls:
        name = place.module or place.cls
        culprits = [Culprit("module", name, place.cls, place.line)]
    known = _texts(place, beside)
    kinds = list(dict.fromkeys(d.kind for v in found.changed for d in v.differences))
    noun = {
        "loss": "the loss", "gradient": "gradients", "statistics": "running statistics", "update": "updates",
    }.get(first.kind, "outputs")  # fmt: skip
    return verdicts.violated(
        "outputs-changed",
        f"{noun} changed since {beside.shown}{_at(place, first.kind)}",
        culprits=culprits,
        location=place.line or (place.edit.new if place.edit else None),
        observed=f"{subject_} ({way}{f'; {sizes}' if sizes else ''}); {changed} of {total} runs changed",
        because=_because(place, found, beside),
        fix=beside.meant("outputs"),
        cause=known["cause"],
        evidence={
            **known.get("evidence", {}),
            "changed": kinds,
            "largest relative difference": _percent(verdict.gap),
        },
    )


def _state(subject: Subject, found: Judgement, beside: Beside) -> Finding:
    change = found.state
    lines = change.lines()
    names = [
        *change.renames.values(),
        *change.added,
        *change.removed,
        *change.reshaped,
        *change.recast,
    ]
    place = places.of_entry(subject.model, names[0], beside.edits, change.made.get(names[0]))
    how = {
        "renamed": "it loads once its entries are renamed",
        "partly": "it loads with strict=False only",
        "none": "it does not load",
    }.get(found.loading.how, "it loads")
    known = _texts(place, beside)
    fix = beside.meant("state")
    if change.complete:
        fix = f"map the old names in load_state_dict: {dict(list(change.renames.items())[:_MOST])}; or {fix}"
    more = f" and {len(lines) - _MOST} more" if len(lines) > _MOST else ""
    return verdicts.violated(
        "state-changed",
        f"the state dict changed since {beside.shown}: {lines[0]}",
        culprits=[Culprit("parameter", name) for name in dict.fromkeys(names[:_MOST])],
        location=place.line,
        observed=f"{'; '.join(lines[:_MOST])}{more}",
        cause=known["cause"],
        because=f"an old checkpoint was loaded: {how}"
        + (", and the initial values under one seed agree" if change.sure else ""),
        fix=fix,
        evidence={
            **known.get("evidence", {}),
            "renames": dict(change.renames),
            "strict loading": found.loading.error,
        },
    )


def _initial(subject: Subject, found: Judgement, beside: Beside) -> Finding:
    first = found.initial[0]
    place = places.of_entry(subject.model, first.name, beside.edits)
    known = _texts(place, beside)
    count = len(found.initial)
    return verdicts.violated(
        "initial-weights-changed",
        f"{first.name} has different initial values from those at {beside.shown}",
        culprits=[Culprit("parameter", one.name, one.fact) for one in found.initial[:_MOST]],
        location=place.line,
        observed=f"{first.name}: {first.fact}"
        + (f"; {count - 1} more changed too" if count > 1 else ""),
        cause=known["cause"],
        because=f"both were built with the same seed; {found.same_initial} others have the same values",
        fix=beside.meant("init"),
        evidence=known.get("evidence", {}),
    )


def _cost(subject: Subject, found: Judgement, beside: Beside) -> Finding:
    told = list(_told(found, found.dearer).items())
    place = places.of_costs(subject.model, *found.cost_lines, beside.edits)
    known = _texts(place, beside)
    return verdicts.violated(
        "cost-changed",
        f"a training step costs more than at {beside.shown}: {' '.join(told[0])}",
        culprits=[Culprit("call", "training step")],
        location=place.line,
        observed="; ".join(map(" ".join, told)),
        cause=known["cause"],
        because="both were counted on one batch, not timed: they are the same on every machine",
        fix=beside.meant("cost"),
        evidence={**known.get("evidence", {}), "costs": _told(found, found.costs)},
    )


def _told(found: Judgement, names: Iterable[str]) -> dict[str, str]:
    """Return costs before and now, by name."""
    told = {}
    for name in names:
        old, new = found.costs[name]
        if " with " in name:  # the power of a symbol
            symbol = name.rpartition(" ")[2]
            told[name] = f"grow as {symbol}^{new:g}, grew as {symbol}^{old:g}"
            continue
        before, now = (
            format_bytes(int(value)) if "bytes" in name else f"{value:,}" for value in (old, new)
        )
        told[name] = f"{before}, now {now}" + (f" ({new / old:.2f} times)" if old else "")
    return told
