"""The table of custom Functions and operators: where each is, who checks it, and which nobody checks."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from ..codes.functions import NEVER
from ..findings import Culprit, Finding, Location, Plain
from ..lean import dataclass
from .defined import defined_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

CHECKED = ("passed", "violated", "suspicious", "not-applicable")
"""Verdicts that leave nothing open; not-applicable: no gradient is ever asked of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoverageRow:
    """One Function or operator of the table.

    Attributes:
        name: Its name, without the functions it is nested in.
        kind: ``function`` or ``operator``.
        module: Module that defines it.
        file, line: Where it is defined; empty and 0 where that is not known.
        contracts: Contracts whose checks looked at it.
        status: The worst verdict of these checks, or ``never checked``.
        reason: Why it could not be checked, where that is so.
    """

    name: str
    kind: str
    module: str
    file: str
    line: int
    contracts: tuple[str, ...] = ()
    status: str = NEVER
    reason: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        """What makes two rows the same Function, across processes."""
        return (self.kind, self.module, self.name)

    def to_dict(self) -> dict[str, Plain]:
        """Return plain data."""
        return asdict(self) | {"contracts": list(self.contracts)}


def rows_of(findings: Iterable[Finding]) -> list[CoverageRow]:
    """Collect the rows that ``function-coverage`` findings carry, of one contract or of many.

    The findings may come from other processes: everything is read from their plain evidence.
    """
    found: dict[tuple[str, str, str], CoverageRow] = {}
    for finding in findings:
        for plain in _plain_rows(finding.evidence):
            own = (finding.contract,) if finding.contract else ()
            row = CoverageRow(**{**plain, "contracts": tuple(plain["contracts"]) or own})
            found[row.key] = _merged(found[row.key], row) if row.key in found else row
    return sorted(found.values(), key=lambda r: (r.file, r.line, r.name))


def _plain_rows(evidence: Mapping[str, Any]) -> list[dict[str, Any]]:
    rows = evidence.get("coverage")
    return list(rows) if isinstance(rows, list) else []


def _merged(a: CoverageRow, b: CoverageRow) -> CoverageRow:
    order = ("violated", "error", "suspicious", "passed", "inconclusive", "not-applicable", NEVER)
    worst = min((a, b), key=lambda r: order.index(r.status) if r.status in order else len(order))
    contracts = tuple(dict.fromkeys((*a.contracts, *b.contracts)))
    return replace(a, contracts=contracts, status=worst.status, reason=worst.reason)


def table(findings: Iterable[Finding], packages: Iterable[str] = ()) -> list[CoverageRow]:
    """Return the whole table: what the contracts' models applied, and what the packages define besides.

    Args:
        findings: Findings of any number of contracts.
        packages: Packages whose Functions and operators must all appear; their submodules are imported.
    """
    rows = {row.key: row for row in rows_of(findings)}
    for definition in defined_in(packages):
        row = row_for(definition.name, definition.kind, definition.module, definition.location)
        rows.setdefault(row.key, row)
    return sorted(rows.values(), key=lambda r: (r.file, r.line, r.name))


def row_for(
    name: str, kind: str, module: str, location: Location | None, **fields: Any
) -> CoverageRow:
    """Make a row from a location."""
    file, line = ("", 0) if location is None else (location.file, location.line)
    return CoverageRow(name=name, kind=kind, module=module, file=file, line=line, **fields)


def unchecked(rows: Iterable[CoverageRow]) -> list[Finding]:
    """Return a ``suspicious`` finding for every row that no contract checks; it fails under strict."""
    return [_unchecked(row) for row in rows if row.status not in CHECKED]


def _unchecked(row: CoverageRow) -> Finding:
    place = Location(file=row.file, line=row.line, function=row.name) if row.file else None
    what = "operator" if row.kind == "operator" else "autograd Function"
    return Finding(
        check="function-coverage",
        code="function-unchecked",
        status="suspicious",
        summary=f"{row.name} is never checked: no contract's model applies it"
        if not row.reason
        else f"{row.name} could not be checked: {row.reason}",
        culprits=(Culprit("function", row.name, location=place),),
        location=place,
        observed=f"a custom {what} of {row.module}",
        cause="its gradient is not covered by any contract",
        because="every Function that a contract's model applies is recorded, and this one was not"
        if not row.reason
        else row.reason,
        fix=f'add functions={{"{row.name}": ({row.name}.apply, inputs)}} to a contract',
        evidence={"coverage": [row.to_dict()]},
    )
