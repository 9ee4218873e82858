"""What a check found: plain data, with no tensor, no text layout and no pytest in it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, field, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from .late import resolve
from .lean import dataclass
from .text.printable import printable, printable_data

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Status = Literal[
    "violated", "error", "suspicious", "inconclusive", "known", "passed", "not-applicable"
]
STATUSES: tuple[Status, ...] = get_args(Status)
"""Every status, the most serious first."""

Verdict = Literal["violated", "error", "nothing checked", "ok"]
"""What a report comes to, the most serious first."""

CulpritKind = Literal[
    "parameter",
    "buffer",
    "module",
    "tensor",
    "input",
    "output",
    "target",
    "loss",
    "function",
    "optimizer",
    "scheduler",
    "dataset",
    "call",
    "promise",
    "device",
    "rank",
]
_TEXTS = (
    "check", "code", "summary", "observed", "cause", "because", "fix", "reproduce", "contract",
)  # fmt: skip

Plain = None | bool | int | float | str | list[Any] | dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """A line of the user's source.

    Attributes:
        file: Absolute path.
        line: Line number, from 1.
        text: The line itself, stripped.
        function: Qualified name of the function that holds the line, where known.
    """

    file: str
    line: int
    text: str = ""
    function: str = ""

    def printable(self) -> Location:
        """Return the place as it may be shown: a path may hold what no terminal should get."""
        shown = [printable(given) for given in (self.file, self.text, self.function)]
        if all(a is b for a, b in zip(shown, (self.file, self.text, self.function), strict=True)):
            return self
        return Location(file=shown[0], line=self.line, text=shown[1], function=shown[2])


@dataclass(frozen=True, slots=True)
class Culprit:
    """What is at fault, by the name that the user gave it.

    Attributes:
        kind: What sort of thing it is.
        name: Qualified name, such as ``encoder.proj.weight`` or ``optimizer.zero_grad``.
        detail: What was measured of it, such as ``grad is None``.
        location: Where it is made or used, when known.
    """

    kind: CulpritKind
    name: str
    detail: str = ""
    location: Location | None = None

    def printable(self) -> Culprit:
        """Return the culprit as it may be shown; see :meth:`Location.printable`."""
        place = None if self.location is None else self.location.printable()
        name, detail = printable(self.name), printable(self.detail)
        if name is self.name and detail is self.detail and place is self.location:
            return self
        return Culprit(self.kind, name, detail, place)


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """The change of one line that a finding suggests.

    The file parses with it, and it uses no name that does not exist there.

    Attributes:
        file: Absolute path.
        line: Line number, from 1.
        old: The line as it is, with its indentation.
        new: The line as it should be.
        tried: ``passes``: the check was run again with the edit in memory, and this finding is gone;
            ``fails``: it is not; empty where the edit was not tried.
    """

    file: str
    line: int
    old: str
    new: str
    tried: Literal["passes", "fails", ""] = ""

    def printable(self) -> Edit:
        """Return the edit as it may be shown; see :meth:`Location.printable`."""
        shown = [printable(given) for given in (self.file, self.old, self.new)]
        if shown == [self.file, self.old, self.new]:
            return self
        return Edit(file=shown[0], line=self.line, old=shown[1], new=shown[2], tried=self.tried)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One verdict of one check, explained.

    Attributes:
        check: Name of the check, such as ``gradients-exist``.
        code: Stable kebab-case symptom, such as ``grad-none``.
        status: ``violated`` fails; ``error`` fails too: the check itself raised, a defect of this
            package; ``suspicious`` warns (and fails under strict); ``inconclusive`` could not have
            failed; ``known`` is a failure that the project has recorded; the rest need no action.
        summary: One sentence that stands alone: name and symptom.
        culprits: What is at fault, the first one first.
        location: The line of the user's code to change or to look at.
        observed: What was measured.
        cause: Why it happens.
        because: The measured fact that shows that cause.
        fix: One edit.
        reproduce: One command that repeats it.
        evidence: Plain data with all measurements, for reports.
        device, dtype: What the subject ran on, such as ``cpu`` and ``float32``.
        contract: Name of the contract.
        root: ``check/code`` of the finding that this one follows from, or None.
        edit: The change of one line that the fix describes, where it is one.
    """

    check: str = ""
    code: str = ""
    status: Status
    summary: str
    culprits: tuple[Culprit, ...] = ()
    location: Location | None = None
    observed: str = ""
    cause: str = ""
    because: str = ""
    fix: str = ""
    reproduce: str = ""
    evidence: Mapping[str, Plain] = field(default_factory=dict)
    device: str = ""
    dtype: str = ""
    contract: str = ""
    root: str | None = None
    edit: Edit | None = None

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise ValueError(f"status must be one of {', '.join(STATUSES)}; got {self.status!r}")
        texts = [getattr(self, name) for name in _TEXTS]
        if printable(whole := "\n".join(texts)) is not whole:
            for name, text in zip(_TEXTS, texts, strict=True):
                object.__setattr__(self, name, printable(text))
        if (evidence := printable_data(self.evidence)) is not self.evidence:
            object.__setattr__(self, "evidence", evidence)
        if (place := self.location) is not None and (shown := place.printable()) is not place:
            object.__setattr__(self, "location", shown)
        if (edit := self.edit) is not None and (shown_edit := edit.printable()) is not edit:
            object.__setattr__(self, "edit", shown_edit)
        culprits = tuple(culprit.printable() for culprit in self.culprits)
        if any(new is not old for new, old in zip(culprits, self.culprits, strict=True)):
            object.__setattr__(self, "culprits", culprits)

    @property
    def key(self) -> str:
        """``check/code``, which names a finding within one contract."""
        return f"{self.check}/{self.code}"

    def replace(self, **changes: Any) -> Finding:
        """Return a copy with some fields changed."""
        return replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """Return plain types only: what may cross a process or go into JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Finding:
        """Rebuild a finding from :meth:`to_dict`."""
        values = dict(data)
        values["location"] = _location(values.get("location"))
        if (edit := values.get("edit")) is not None:
            values["edit"] = Edit(**edit)
        values["culprits"] = tuple(
            Culprit(**{**culprit, "location": _location(culprit.get("location"))})
            for culprit in values.get("culprits", ())
        )
        return cls(**values)

    def __str__(self) -> str:
        return str(resolve("render.terminal:render_finding")(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything that the checks of one contract found.

    Attributes:
        contract: Name of the contract.
        findings: One or more per check, of every status, in the order of the catalogue.
        seconds: Wall time of the checks.
        environment: Versions and seed, as plain strings.
    """

    contract: str
    findings: tuple[Finding, ...]
    seconds: float = 0.0
    environment: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "contract", printable(self.contract))

    @property
    def ok(self) -> bool:
        """True when nothing is violated, no check itself failed, and at least one check reached a verdict.

        A report in which every check was inconclusive or not applicable is not ok: nothing was checked.
        """
        return self.verdict == "ok"

    @property
    def verdict(self) -> Verdict:
        """What the findings come to, the most serious first."""
        counts = self.counts()
        if counts["violated"]:
            return "violated"
        if counts["error"]:
            return "error"
        decided = counts["passed"] or counts["suspicious"] or counts["known"]
        return "ok" if decided else "nothing checked"

    @property
    def causes(self) -> tuple[Finding, ...]:
        """The violated findings that follow from no other one."""
        return tuple(f for f in self.findings if f.status == "violated" and f.root is None)

    @property
    def failing(self) -> tuple[Finding, ...]:
        """Why the report is not ok: causes and errors, else what could not be decided; empty if it is ok."""
        match self.verdict:
            case "ok":
                return ()
            case "nothing checked":
                return tuple(self.with_status("inconclusive")) or self.findings
        return (*self.causes, *self.with_status("error"))

    def with_status(self, *statuses: Status) -> Iterator[Finding]:
        """Iterate over the findings of these statuses."""
        return (finding for finding in self.findings if finding.status in statuses)

    def counts(self) -> dict[Status, int]:
        """Count the findings by status; every status is present."""
        return {status: sum(1 for _ in self.with_status(status)) for status in STATUSES}

    def to_json(self, **options: Any) -> str:
        """Return the whole report as JSON; ``options`` go to :func:`json.dumps`.

        JSON has no numbers that are not finite: they are written as the strings ``"NaN"``,
        ``"Infinity"`` and ``"-Infinity"``, which :meth:`from_json` reads back as numbers.
        """
        return strict_json(
            {
                "contract": self.contract,
                "ok": self.ok,
                "verdict": self.verdict,
                "seconds": self.seconds,
                "environment": dict(self.environment),
                "findings": [finding.to_dict() for finding in self.findings],
            },
            **options,
        )

    @classmethod
    def from_json(cls, text: str) -> Report:
        """Rebuild a report from :meth:`to_json`."""
        data = _with_numbers(json.loads(text))
        return cls(
            contract=data["contract"],
            findings=tuple(Finding.from_dict(finding) for finding in data["findings"]),
            seconds=data["seconds"],
            environment=data["environment"],
        )

    def __str__(self) -> str:
        return str(resolve("render.terminal:render_report")(self))


class ContractViolation(AssertionError):
    """Raised when a contract does not hold; carries the findings.

    Attributes:
        findings: The violated findings, as plain data, so that the error can be pickled.
    """

    __module__ = (
        "builtins"  # as pytest.fail's exception does: the summary line then starts with the name
    )

    def __init__(self, findings: Iterable[Finding]) -> None:
        self.findings = tuple(findings)
        super().__init__("\n\n".join(str(finding) for finding in self.findings))

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild_violation, ([finding.to_dict() for finding in self.findings],)


def _rebuild_violation(findings: list[dict[str, Any]]) -> ContractViolation:
    return ContractViolation(Finding.from_dict(finding) for finding in findings)


def strict_json(data: Any, **options: Any) -> str:
    """Return plain data as JSON that every parser reads; ``options`` go to :func:`json.dumps`."""
    return json.dumps(_without_odd(data), **{"indent": 1, "allow_nan": False, **options})


_ODD = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
"""Numbers that JSON cannot write, by the strings that stand for them."""


def _without_odd(value: Any) -> Any:
    """Replace numbers that are not finite by their names."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {_without_odd(key): _without_odd(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_odd(item) for item in value]
    return value


def _with_numbers(value: Any) -> Any:
    """Undo :func:`_without_odd`."""
    if isinstance(value, str):
        return _ODD.get(value, value)
    if isinstance(value, dict):
        return {key: _with_numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_numbers(item) for item in value]
    return value


def _location(data: Mapping[str, Any] | None) -> Location | None:
    return None if data is None else Location(**data)
