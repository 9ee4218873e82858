"""A fix of a size holds for every declared size: what it would write at another is compared, what runs is named."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from ..subject.errors import SubjectError
from .crashes import explained_error

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..batches.source import BatchSource
    from ..findings import Finding
    from ..specs.sizes import SizeRange
    from ..subject import Subject
    from .running import Runner
    from .selection import Case

_OF_SIZES: Final = frozenset(
    {"matmul-shapes", "broadcast-shapes", "norm-shape", "cat-sizes", "view-size", "feature-size",
     "hidden-size", "mask-shape", "channels", "size-crash"}
)  # fmt: skip
_SIZED: Final = re.compile(
    r"(?:give [^;]+? size|declare [^;]+? in the contract with) (\d+) instead of [\dx]+ in dimensions? (\d+)(?: and (\d+))?"
)
_OR: Final = re.compile(r"; or, if the (model|layer) is right, ")
_RUNS: Final = " (tried: the forward runs)"
_NEAR: Final = 8
"""Sizes that are tried at most."""
_SYMBOLS: Final = 3
_MOST: Final = 400
"""Larger sizes are not run."""


def for_all_sizes(runner: Runner, case: Case, finding: Finding) -> str:
    """Return the fix of a finding in terms of the declaration.

    Inputs of another size are named by the symbols that are declared, with sizes that the declaration allows. An
    edit that would be another one at other declared sizes gives way to words.
    """
    fix, wider = finding.fix, finding.code == "position-range"
    of_sizes = wider or finding.code in _OF_SIZES or _SIZED.search(fix)
    if runner.contract.model is None or not of_sizes:
        return fix
    subject = runner.subject(case)
    if subject._model is None:
        return fix
    if wider:
        return _largest(runner, case, finding)
    head, kind, other = ([*_OR.split(fix, maxsplit=1), "", ""])[:3]
    told = " (or narrow" + head.split(" (or narrow", 1)[1] if " (or narrow" in head else ""
    other = _declared(subject, other)
    follows = _followed(runner, case, finding, head) if finding.code in _OF_SIZES else ""
    place = finding.location
    if not follows or place is None:
        return head + (f"; or, if the {kind} is right, {other}" if other else "")
    words = f"make line {place.line} independent of {follows}"
    other = other.split(" (or narrow", 1)[0]
    return f"if the {kind} is right, {other}; otherwise {words}" if other else words + told


def _free(subject: Subject) -> dict[str, SizeRange]:
    """Return the symbols whose sizes the declaration leaves open."""
    sizes = subject.batch().sizes
    named = subject.source.symbols.items()
    return {name: span for name, span in named if not span.fixed and name in sizes}


# -- what is declared ------------------------------------------------------------------------------


def _declared(subject: Subject, other: str) -> str:
    """Return what else may be meant, by the declared symbols where inputs have another size; empty where none fits."""
    if (said := _SIZED.search(other)) is None:
        return other
    meant = [_symbol_at(subject.source, int(dim)) for dim in said.groups()[1:] if dim]
    spans = {name: subject.source.symbols[name] for name in meant if name is not None}
    # a symbol that is declared equal to another one follows it
    follows = [
        n for n, span in spans.items() if span.relation is not None and str(span.relation) in spans
    ]
    spans = {name: span for name, span in spans.items() if name not in follows}
    if None in meant or any(span.relation is not None for span in spans.values()):
        return other
    size, tried = int(said[1]), _RUNS in other
    ranges = [span for span in spans.values() if span.declared and not span.fixed]
    if not tried or not all(size in span for span in ranges):
        near = _allowed(ranges, size)
        found = next((s for s in near if _runs(subject, dict.fromkeys(spans, s))), 0)
        if not found and any((size - span.low) % span.step for span in ranges):
            return ""
        size, tried = found or size, tried or bool(found)
    alone = (name for name in spans if len(spans) > 1 and _runs(subject, {name: size}))
    if (one := next(alone, None)) is not None:
        spans = {one: spans[one]}
    named = ", ".join(f"{symbol}={size}" for symbol in spans)
    rest = other.replace(said[0], "").replace(_RUNS, "")
    return f"declare {named}{_RUNS if tried else ''}{rest}"


def _allowed(ranges: Sequence[SizeRange], size: int) -> list[int]:
    """Return the sizes that all these ranges allow, the nearest to one first; that one alone where there are none."""
    every = set.intersection(*(set(span.values) for span in ranges)) if ranges else {size}
    return sorted(every, key=lambda one: (abs(one - size), one))[:_NEAR]


def _symbol_at(source: BatchSource, dim: int) -> str | None:
    """Return the symbol that all inputs have as the size of a dimension, or None."""
    batch = source.base()
    found: set[str | None] = set()
    for path, leaf in batch.input_leaves():
        if getattr(leaf, "ndim", 0) > dim:
            dims = source._dims_at(path, batch.sizes)
            size = dims[dim] if dims is not None else None
            found.add(size.name if size is not None and size.op == "symbol" else None)
    return found.pop() if len(found) == 1 else None


def _runs(subject: Subject, sizes: Mapping[str, int]) -> bool:
    try:
        made = subject.source.at(subject.seed, **sizes)
        if made is not None:
            subject.forward(subject.place(made))
    except SubjectError:
        return False
    return made is not None


# -- what is written -------------------------------------------------------------------------------


def _followed(runner: Runner, case: Case, finding: Finding, head: str) -> str:
    """Return the symbols that numbers of a fix follow, and what they may be; empty where it is the same at all."""
    bare = head.split(" (or narrow", 1)[0]
    numbers = set(re.findall(r"\d+", re.sub(r"\bline \d+", "", bare)))
    if not numbers or not case.device.startswith("cpu"):
        return ""
    subject = runner.subject(case)
    sizes = subject.batch().sizes | _sizes(finding)
    # the sizes that a finding tells of may be smaller than those that its fix was made for
    here = _fix_at(runner, case, finding, {}) or bare
    found = {}
    for name, span in list(_free(subject).items())[:_SYMBOLS]:
        others = (_fix_at(runner, case, finding, {name: s}) for s in _tried(span, sizes[name]))
        if any(one != here and _form(one) == _form(here) for one in others):
            found[name] = span
    spoken = [
        f"{name} (declared from {span.low} to {span.top})" if span.declared else name
        for name, span in found.items()
    ]
    return " and ".join(spoken)


_LEAST: Final = re.compile(r"(?:=| at least )(\d+)")
"""How many rows a table needs at least."""


def _largest(runner: Runner, case: Case, finding: Finding) -> str:
    """Return a fix that gives a table more rows, with as many as the largest declared size needs."""
    fix, spans = finding.fix, _free(runner.subject(case))
    tops = [{name: span.top} for name, span in spans.items() if span.declared and span.top <= _MOST]
    others = [_fix_at(runner, case, finding, changed) for changed in tops[:_SYMBOLS]]
    found = [int(said[1]) for one in (fix, *others) if (said := _LEAST.search(one))]
    own = _LEAST.search(fix)
    if own is None:
        return fix
    need = max(found)
    return f"{fix[: own.start(1)]}{need}{fix[own.end(1) :]}"


def _tried(span: SizeRange, size: int) -> list[int]:
    """Return the ends of a range and the sizes beside one, in which a division may leave another rest."""
    beside = (span.nearest(size + span.step), span.nearest(max(size - span.step, 0)))
    every = dict.fromkeys((span.low, span.nearest(min(span.top, _MOST)), *beside))
    return [one for one in every if one and one != size]


def _form(fix: str) -> str:
    return re.sub(r"\d+", "#", fix)


def _sizes(finding: Finding) -> dict[str, int]:
    found = finding.evidence.get("sizes")
    return dict(found) if isinstance(found, dict) else {}


def _fix_at(runner: Runner, case: Case, finding: Finding, changed: dict[str, int]) -> str:
    """Return the fix of a finding with some sizes changed; empty where the model runs, or raises another error."""
    subject = runner.subject(case)
    made = subject.source.at(subject.seed, **(_sizes(finding) | changed))
    try:
        if made is not None:
            subject.forward(subject.place(made))
    except SubjectError as error:
        device = case.device
        known = explained_error(runner.contract, error, subject, device=device, lost=False)
        return _OR.split(known.fix)[0] if known.code == finding.code else ""
    return ""
