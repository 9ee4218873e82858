"""A contract becomes a collector, each of its cases an item; findings decide the item's outcome."""

from __future__ import annotations

import difflib
import json
import os
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from .. import sources
from ..catalogue import catalogue
from ..declared.kept_count import LOG
from ..findings import ContractViolation, Finding
from ..late import resolve
from ..render.terminal import render_finding
from ..render.text import headline
from . import declared, fixtures, known, markers, options
from .options import ACCELERATORS, Options
from .parts import TorchcheckWarning

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Sequence

    from ..contracts import Contract
    from ..runner import Case, Runner
    from ..storage.artifacts import Artifact

EXTRA: Final = pytest.StashKey[list[Any]]()
"""What adds cases to contracts in this run: objects with a ``name`` and ``cases(node)``."""

ITEMS: Final = pytest.StashKey[list[Any]]()
"""What adds other items to contracts in this run: functions of a :class:`ContractNode`."""

TextRepr = Any  # pytest names the type of a failure's representation only privately


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What an item's findings come to.

    Attributes:
        failing: Findings that fail it.
        warning: Findings that are shown as warnings.
        skipping: Reasons why it is shown as skipped; empty unless nothing fails.
        known: Headlines of known findings, for which it is shown as an expected failure; empty
            unless nothing fails.
    """

    failing: tuple[Finding, ...] = ()
    warning: tuple[Finding, ...] = ()
    skipping: tuple[str, ...] = ()
    known: tuple[str, ...] = ()


def judge(findings: Sequence[Finding], *, strict: bool) -> Verdict:
    """Turn findings into an outcome.

    Args:
        findings: Those of one case; at least one.
        strict: Whether ``suspicious`` and ``inconclusive`` fail too. What is undecided only because
            something else is broken does not: its cause fails already.
    """
    hard = {"violated", "error"} | ({"suspicious", "inconclusive"} if strict else set())
    failing = tuple(
        f for f in findings if f.status in hard and not (f.status == "inconclusive" and f.root)
    )
    warning = tuple(f for f in findings if f.status == "suspicious" and f not in failing)
    if failing:
        return Verdict(failing=failing, warning=warning)
    expected = tuple(headline(f) for f in findings if f.status == "known")
    if expected:
        return Verdict(warning=warning, known=expected)
    undecided = [f"inconclusive: {f.summary}" for f in findings if f.status == "inconclusive"]
    idle = [f"not applicable: {f.summary}" for f in findings if f.status == "not-applicable"]
    held = any(f.status in ("passed", "suspicious") for f in findings)
    return Verdict(warning=warning, skipping=tuple(undecided or ([] if held else idle)))


def render_failure(findings: Iterable[Finding], *, verbosity: int = 0) -> str:
    """Return what a failed item shows: each cause in full, what follows from an earlier one in a line."""
    texts = []
    for finding in findings:
        if finding.root is None:
            texts.append(render_finding(finding, verbosity=verbosity))
        else:
            texts.append(
                f"{headline(finding)}\nfollows from {finding.root}, which is reported there"
            )
    return "\n\n".join(texts)


_Failed: Any = pytest.fail.Exception  # a class that pytest makes known under no other public name


class Explained(_Failed):  # type: ignore[misc]
    """A failure that this plugin adds to a test: its text is that of its findings, its frames are nobody's."""

    __module__ = "builtins"

    def __init__(self, findings: Iterable[Finding]) -> None:
        self.findings = tuple(findings)
        super().__init__(render_failure(self.findings), pytrace=False)


class ContractNode(pytest.Collector):
    """One contract of a test module."""

    def __init__(
        self, *, contract: Contract, replayed: Artifact | None = None, **keywords: Any
    ) -> None:
        super().__init__(**keywords)
        self.contract = contract
        self.replayed = replayed
        self._runner: Runner | None = None
        self._alike: Counter[tuple[str, str]] = Counter()
        self.size = 0  # how many cases there are before a selection; 0 where not all are collected
        # marks stand on the factory: @contract(...) above, @pytest.mark.slow below it
        self.own_markers.extend(markers.own_marks(contract.model))
        self.keywords.update((mark.name, mark) for mark in self.own_markers)

    @property
    def settings(self) -> Options:
        """The run's settings."""
        return self.config.stash[options.KEY]

    @property
    def runner(self) -> Runner:
        """Runs this contract's cases; what they share is kept until the last one is done."""
        if self._runner is None:
            from ..runner import Runner  # spares importing torch

            settings, own = self.settings, markers.item_settings(self)
            self._runner = Runner(
                self.contract,
                seed=self.seed,
                examples=settings.examples if own.examples is None else own.examples,
                strict=settings.strict,
                artifacts=settings.artifacts,
                reproduce=self.command,
                budget=settings.budget,
            )
            items = self.session.items
            self._runner.expect(
                item.case for item in items if isinstance(item, CheckItem) and item.parent is self
            )
        return self._runner

    @property
    def seed(self) -> int:
        """The mark's seed, else that of a replayed failure, else the run's."""
        own = markers.item_settings(self).seed
        if own is not None:
            return own
        given = self.settings.sources.get("seed", "default") != "default"
        return self.settings.seed if self.replayed is None or given else self.replayed.seed

    def command(self, case: Case) -> str:
        """Return the command that repeats one case."""
        settings = self.settings
        nodeid = markers.relative_nodeid(self.config, f"{self.nodeid}::{case.id}")
        parts = [f'pytest "{nodeid}" --torchcheck --torchcheck-seed={self.seed}']
        if settings.examples is not None:
            parts.append(f"--torchcheck-examples={settings.examples}")
        if settings.against is not None and case.check.name == "against":
            parts.append(f"--torchcheck-against={settings.against}")
        if settings.devices:
            parts.append(f"--torchcheck-devices={','.join(settings.devices)}")
        if settings.replay is not None:
            parts.append(f"--torchcheck-replay={os.path.relpath(settings.replay)}")
        return " ".join(parts)

    def collect(self) -> list[pytest.Item | pytest.Collector]:
        """Return one item per case."""
        from ..runner import cases, ordered  # spares importing torch

        own = markers.item_settings(self)
        places = own.devices or self.settings.devices or None
        once = self.replayed
        if once is not None:
            found = cases(self.contract, devices=places or (once.device,))
            wanted = (once.check, once.device, once.dtype)
            return [
                self._item(case)
                for case in found
                if (case.check.name, case.device, case.dtype) == wanted
            ]
        chosen = ordered(self.contract, cases(self.contract, devices=places), self.settings.budget)
        extra = (case for each in self.config.stash.get(EXTRA, []) for case in each.cases(self))
        found = (*chosen, *extra)
        self.size = len(found)
        self._alike = Counter((case.check.name, case.device.partition(":")[0]) for case in found)
        more = (item for make in self.config.stash.get(ITEMS, []) for item in make(self))
        return [*(self._item(case) for case in found), *more]

    def _item(self, case: Case) -> CheckItem:
        """Make an item whose id is given whole.

        From pytest 9.2 on, an id that is pieced together from a name with brackets differs from the
        one that
        reports and the cache read back, so that ``--lf`` and ``--sw`` would lose the item.
        """
        nodeid = f"{self.nodeid}::{case.id}"
        made: CheckItem = CheckItem.from_parent(self, name=case.id, nodeid=nodeid, case=case)
        return made

    def alike(self, case: Case) -> int:
        """Return how many cases of a case's check there are on its type of device, before a selection."""
        return self._alike[case.check.name, case.device.partition(":")[0]]

    def teardown(self) -> None:
        """Put back what the contract's cases used, once the last one is done."""
        if self._runner is not None:
            self._runner.close()
            self._runner = None


class CheckItem(pytest.Item):
    """One check of a contract on one device and dtype."""

    parent: ContractNode

    def __init__(self, *, case: Case, **keywords: Any) -> None:
        super().__init__(**keywords)
        self.case = case
        self.findings: tuple[
            Finding, ...
        ] = ()  # as the case made them: folded again once all are known
        self.environment: dict[str, str] = {}
        self.seconds = 0.0
        self.step_seconds: float | None = None
        self.add_marker("torchcheck")
        kind, _, index = case.device.partition(":")
        if kind in ACCELERATORS:
            number = int(index) + 1 if index else 1
            self.stash[markers.NEED] = markers.DeviceNeed(kind=kind, min_gpus=number)
        owned = self.parent.settings.cuda_marker
        if owned and kind in ACCELERATORS and self.get_closest_marker(kind) is None:
            mark: pytest.MarkDecorator = getattr(pytest.mark, kind)
            self.add_marker(mark(min_gpus=int(index) + 1) if index else mark)
        location = self.parent.contract.location
        self._place = (
            (Path(location.file), location.line - 1) if location is not None else (self.path, 0)
        )

    def runtest(self) -> None:
        """Run the case and raise what its findings come to."""
        from ..heard import say_again  # spares importing torch

        node = self.parent
        before = node.runner.seconds
        self.findings = node.runner.run(self.case)
        self.seconds = node.runner.seconds - before
        self.environment = resolve("runner.surroundings:environment")(node.runner.seed)
        self.user_properties.extend(_properties(node.contract.name, self.case, self.findings))
        saved = [
            one.evidence["batch saved"] for one in self.findings if "batch saved" in one.evidence
        ]
        if saved:
            path = os.path.relpath(str(saved[0]))
            told = f"the batch is saved; run the check on it again with --torchcheck-replay={path}"
            self.add_report_section("call", "torchcheck", told)
        lost = [one.evidence.get("batch not saved") for one in self.findings]
        for problem in dict.fromkeys(filter(None, lost)):
            self.add_report_section("call", "torchcheck", f"the batch is not saved: {problem}")
        settled = self._marked(_settle(node.runner, self.findings))
        self.findings = self._marked(self.findings)
        if node.settings.durations:
            self.step_seconds = node.runner.step_seconds(self.case)
        verdict = judge(settled, strict=node.settings.strict)
        if refused := say_again(node.runner.heard()):
            self.add_report_section("call", "torchcheck", f"a warning is an error here: {refused}")
            if not verdict.failing:
                raise refused
        raise_verdict(verdict, self)

    def _marked(self, findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
        """Mark the findings that the project knows of already."""
        base, node = self.config.stash.get(known.KEY, None), self.parent
        failing = judge(findings, strict=node.settings.strict).failing
        if base is None or not failing:
            return findings
        items = self.session.items
        selected = {
            i.case.check.name for i in items if isinstance(i, CheckItem) and i.parent is node
        }
        return base.marked(node.nodeid, findings, failing, selected)

    def teardown(self) -> None:
        """Let go of the findings: the report carries them, and pytest keeps every item."""
        self.findings, self.environment = (), {}

    def take_over(self, findings: list[dict[str, Any]]) -> None:
        """Replace what the case found by what it found in another process."""
        made = self.parent.runner.findings
        del made[len(made) - len(self.findings) :]
        self.findings = tuple(map(Finding.from_dict, findings))
        made += self.findings

    def repr_failure(
        self, excinfo: pytest.ExceptionInfo[BaseException], *_: Any, **__: Any
    ) -> TextRepr:
        """Show the rendered finding alone: the frames would be this plugin's."""
        if isinstance(excinfo.value, ContractViolation):
            return represent(excinfo, verbosity=self.config.get_verbosity())
        if isinstance(excinfo.value, TorchcheckWarning):  # -W error
            return str(excinfo.value)
        if isinstance(excinfo.value, Warning) and self.findings:
            kind = type(excinfo.value).__name__
            return (
                f"{kind}: {excinfo.value}\ntraining the model warns of it, and the warning filters of this run make "
                "it an error; change what it speaks of, or ignore it with filterwarnings"
            )
        return super().repr_failure(excinfo)

    def reportinfo(self) -> tuple[os.PathLike[str] | str, int | None, str]:
        """Return where the contract is declared, and how reports call the item."""
        return (*self._place, f"{self.parent.name}::{self.name}")


def _settle(runner: Runner, made: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """Point findings to a root cause that an earlier case of the contract has reported."""
    folded = runner.report().findings
    tail = folded[len(folded) - len(made) :]
    same = len(folded) == len(runner.findings) and all(
        a.key == b.key and a.summary == b.summary for a, b in zip(tail, made, strict=True)
    )
    return tail if same else made


def _properties(contract: str, case: Case, findings: Sequence[Finding]) -> list[tuple[str, str]]:
    """Return what JUnit keeps of an item."""
    found = [
        ("torchcheck_contract", contract),
        ("torchcheck_check", case.check.name),
        ("torchcheck_device", case.device),
        ("torchcheck_dtype", case.dtype),
        ("torchcheck_status", ",".join(dict.fromkeys(f.status for f in findings))),
    ]
    codes = dict.fromkeys(f.code for f in findings if f.status in ("violated", "suspicious"))
    if codes:
        found.append(("torchcheck_codes", ",".join(codes)))
    return found


def raise_verdict(verdict: Verdict, item: pytest.Item) -> None:
    """Warn, fail or skip."""
    for finding in verdict.warning:
        item.warn(TorchcheckWarning(render_failure([finding])))
    if verdict.failing:
        raise ContractViolation(verdict.failing)
    if verdict.known:
        pytest.xfail("; ".join(verdict.known))
    if verdict.skipping:
        pytest.skip("; ".join(verdict.skipping))


def represent(excinfo: pytest.ExceptionInfo[Any], *, verbosity: int = 0) -> TextRepr:
    """Represent a violated contract by its findings, and point to the user's line."""
    findings: tuple[Finding, ...] = excinfo.value.findings
    text = render_failure(findings, verbosity=verbosity)
    shown = excinfo.getrepr(style="value", chain=False)
    entry: Any
    for entry in shown.reprtraceback.reprentries:
        entry.lines = text.splitlines()
    crash = shown.reprcrash
    if crash is not None:
        crash.message = (
            text  # the summary then starts with what the user knows, not with a class of ours
        )
        location = next((f.location for f in findings if f.location is not None), None)
        if location is not None:
            crash.path, crash.lineno = location.file, location.line
    return shown


class _Contracts:
    """Finds contracts in test modules; registered only under ``--torchcheck``."""

    def __init__(self, settings: Options) -> None:
        self.settings = settings
        self._artifact: Artifact | None = None
        self._placed: dict[int, tuple[str, str]] = {}  # where a container's contract is collected

    @pytest.hookimpl(tryfirst=True)
    def pytest_pycollect_makeitem(
        self, collector: pytest.Module | pytest.Class, name: str, obj: object
    ) -> ContractNode | list[ContractNode] | None:
        """Make a collector of a contract, or of each contract in a list or dict."""
        contracts = sys.modules.get("pytest_torchcheck.contracts")
        if contracts is None or not self.settings.enabled:
            return None  # nobody has declared one yet, and asking must not import torch
        if isinstance(obj, pytest.MarkDecorator):
            _refuse_outer_mark(collector, name, obj, contracts.Contract)
        if not isinstance(obj, contracts.Contract):
            found = declared.held(name, obj, contracts.Contract)
            nodes = [self._node(collector, *pair, anywhere=True) for pair in found]
            return [node for node in nodes if node is not None] or None
        return self._node(collector, name, obj)

    def _node(
        self,
        collector: pytest.Module | pytest.Class,
        name: str,
        obj: Contract,
        *,
        anywhere: bool = False,
    ) -> ContractNode | None:
        """Make a collector of a contract once, whatever else refers to it.

        Args:
            collector: Of its module or class.
            name: What it is called there.
            obj: The contract.
            anywhere: Whether it stands in a container, and a name of its own comes first.
        """
        LOG.use(obj)
        if self._seen_elsewhere(collector, obj):
            return None
        bound = next((key for key, value in vars(collector.obj).items() if value is obj), None)
        if bound not in (None, name):  # a second name for the same contract
            return None
        here = (collector.nodeid, name)
        if anywhere and self._placed.setdefault(id(obj), here) != here:
            return None
        if not obj.is_named:
            obj.name = name
        replayed = self._replayed(collector.config)
        if replayed is not None:
            if obj.name != replayed.contract:
                return None
            from ..storage.artifacts import with_batch  # spares importing torch

            obj = with_batch(obj, replayed.batch)
        return ContractNode.from_parent(collector, name=name, contract=obj, replayed=replayed)

    def _replayed(self, config: pytest.Config) -> Artifact | None:
        """Return the failure to repeat, read once."""
        if self.settings.replay is None:
            return None
        if self._artifact is None:
            from ..storage.artifacts import load  # spares importing torch

            try:
                self._artifact = load(self.settings.replay)
            except ValueError as error:
                markers.usage_error(config, f"--torchcheck-replay: {error}")
        return self._artifact

    @staticmethod
    def _seen_elsewhere(collector: pytest.Module | pytest.Class, contract: Contract) -> bool:
        """Say whether the contract is only imported here and the project does not want such."""
        try:
            wanted = collector.config.getini("collect_imported_tests")
        except ValueError:  # pytest before 8.4 knows no such setting
            wanted = True
        if wanted or contract.location is None:
            return False
        return os.path.realpath(contract.location.file) != os.path.realpath(collector.path)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        """Leave out the checks that were not asked for; find what is to be repeated."""
        if self.settings.replay is not None and not any(isinstance(i, CheckItem) for i in items):
            which = self._replayed(config)
            told = (
                f"no contract named {which.contract!r} with the check {which.check!r} on {which.device}"
                if which is not None
                else "no contract"
            )
            markers.usage_error(config, f"--torchcheck-replay: {told} was collected")
        if not self.settings.checks or not any(isinstance(item, CheckItem) for item in items):
            return
        try:
            more = (each.name for each in config.stash.get(EXTRA, []))
            chosen = select(self.settings.checks, (*catalogue(), *more))
        except ValueError as error:
            markers.usage_error(config, f"{self.settings.sources['checks']}: {error}")
        kept = [
            item
            for item in items
            if not isinstance(item, CheckItem) or item.case.check.name in chosen
        ]
        left_out = [
            item
            for item in items
            if isinstance(item, CheckItem) and item.case.check.name not in chosen
        ]
        if left_out:
            config.hook.pytest_deselected(items=left_out)
            items[:] = kept


def select(names: Sequence[str], known: Sequence[str] | None = None) -> frozenset[str]:
    """Return the checks that ``a,b`` or ``!c`` leave.

    Raises:
        ValueError: No check has such a name.
    """
    if known is None:
        known = tuple(catalogue())
    for name in names:
        bare = name.removeprefix("!")
        if bare not in known:
            near = difflib.get_close_matches(bare, known, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"no check is named {bare!r}{hint}; there are: {', '.join(known)}")
    wanted = [name for name in names if not name.startswith("!")]
    unwanted = {name[1:] for name in names if name.startswith("!")}
    return frozenset(wanted or known) - unwanted


def _refuse_outer_mark(
    collector: pytest.Collector, name: str, mark: pytest.MarkDecorator, contract: type[Contract]
) -> None:
    """Explain a mark above ``@contract``, which would hide the contract."""
    while mark.args:
        inner = mark.args[0]
        if isinstance(inner, contract):
            place = f"{inner.location.file}:{inner.location.line}: " if inner.location else ""
            raise collector.CollectError(
                f"{place}{name}: put @contract(...) above @pytest.mark.{mark.name}, not below it"
            )
        if not isinstance(inner, pytest.MarkDecorator):
            return
        mark = inner


_HERE: Final = os.path.dirname(os.path.abspath(__file__))
RECORD: Final = "torchcheck"
"""Attribute of a report under which an item's findings travel, as JSON: pytest keeps every report."""


def read_record(report: pytest.TestReport | None) -> dict[str, Any] | None:
    """Return what :func:`record` made of an item's phase, or None where it had nothing to say."""
    text: str | None = getattr(report, RECORD, None)
    if text is None:
        return None
    found: dict[str, Any] = json.loads(text)
    return found


class _Records:
    """Attaches findings to reports, so that they reach the controller of xdist as plain data."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Attach a record to the report of a case, and of any test that broke a contract."""
        if not isinstance(item, CheckItem):
            if call.excinfo is None:
                return (yield)
            _name_the_test(item, call.excinfo.value)
            if drawn := fixtures.drawn_by(item):
                item.add_report_section(call.when, "torchcheck", drawn)
        report = yield
        if (
            report.skipped
            and isinstance(report.longrepr, tuple)
            and report.longrepr[0].startswith(_HERE)
        ):
            path, line, _ = item.reportinfo()  # the test's place tells more than this plugin's
            report.longrepr = (os.fspath(path), (line or 0) + 1, report.longrepr[2])
        if call.excinfo is not None and isinstance(call.excinfo.value, Explained):
            report.longrepr = represent(call.excinfo)
        made = record(item, call, report)
        if made is not None:
            setattr(report, RECORD, json.dumps(plain(made)))
        if isinstance(item, CheckItem) and report.skipped and isinstance(report.longrepr, tuple):
            path, line, reason = report.longrepr  # all checks of a contract have one place
            named = f"Skipped: {item.case.id}: {str(reason).removeprefix('Skipped: ')}"
            report.longrepr = (path, line, named)
        return report


def _name_the_test(item: pytest.Item, error: BaseException) -> None:
    """Let the findings of an assertion be repeated by their test, which the assertion does not know."""
    known = sys.modules.get("pytest_torchcheck.findings")
    if known is None or not isinstance(error, known.ContractViolation):
        return
    settings = item.config.stash[options.KEY]
    command = f'pytest "{markers.relative_nodeid(item.config, item.nodeid)}"'
    if settings.sources.get("seed", "default") != "default":
        command += f" --torchcheck-seed={settings.seed}"
    named = known.ContractViolation(
        [finding.replace(reproduce=command) for finding in error.findings]
    )
    error.findings, error.args = named.findings, named.args


def record(
    item: pytest.Item, call: pytest.CallInfo[None], report: pytest.TestReport
) -> dict[str, Any] | None:
    """Return what a report carries: plain types only, or None for a test that has nothing to say."""
    if isinstance(item, CheckItem):
        if report.when == "teardown" or (report.when == "setup" and report.passed):
            return None
        return _case_record(item, report)
    known = sys.modules.get("pytest_torchcheck.findings")
    if known is None or call.excinfo is None:
        return None
    error = call.excinfo.value
    if not isinstance(error, known.ContractViolation | Explained):
        return None
    found: tuple[Finding, ...] = error.findings
    return {
        "node": item.nodeid,
        "contract": item.name,
        "case": "",
        "of": 0,
        "ran": True,
        "seconds": round(call.duration, 6),
        "environment": {},
        "findings": [
            finding.replace(contract=finding.contract or item.name).to_dict() for finding in found
        ],
    }


def _case_record(item: CheckItem, report: pytest.TestReport) -> dict[str, Any]:
    case, node = item.case, item.parent
    findings = item.findings
    if not findings:  # it did not run: no device, a lost context, an error of this plugin
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
        last = (str(reason).strip().splitlines() or ["it did not run"])[-1].removeprefix(
            "Skipped: "
        )
        findings = (
            Finding(
                check=case.check.name,
                code="not-run",
                status="error" if report.failed else "inconclusive",
                summary=last,
                device=case.device,
                dtype=case.dtype,
                contract=node.contract.name,
            ),
        )
    return {
        "node": node.nodeid,
        "contract": node.contract.name,
        "case": case.id,
        "of": node.size,
        "alike": node.alike(case),
        "ran": bool(item.findings),
        "seconds": round(report.duration, 6),
        "spent": [round(item.seconds, 6), item.step_seconds],
        "environment": item.environment,
        "findings": [finding.to_dict() for finding in findings],
    }


def plain(value: Any) -> Any:
    """Return the value with plain types only; anything else becomes text.

    A tensor or a NumPy number in a report would end an xdist run, at times with exit status 0.
    """
    if value is None or value is True or value is False:
        return value
    if isinstance(value, str):
        return str.__str__(
            value
        )  # torch.__version__ is a str, and yet none that execnet would send
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    return str(value)


def register(config: pytest.Config) -> None:
    """Collect contracts where asked to; findings of assertions are recorded in any case."""
    settings = config.stash[options.KEY]
    if settings.packages:
        sources.count_as_own(settings.packages)
        config.add_cleanup(lambda: sources.count_as_own(()))
    config.pluginmanager.register(_Records(), "torchcheck-records")
    if settings.enabled or settings.models:
        config.pluginmanager.register(_Contracts(settings), "torchcheck-contracts")
