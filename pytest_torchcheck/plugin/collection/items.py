"""Contracts and their checks as pytest's nodes."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from ...findings import ContractViolation, Finding
from ...late import Late, resolve
from .. import known, markers, options
from ..options import ACCELERATORS, Options
from ..parts import TorchcheckWarning
from .verdict import TextRepr, judge, raise_verdict, represent
from .verdict import Verdict as Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...contracts import Contract
    from ...runner import Case, Runner
    from ...storage.artifacts import Artifact

_cases = Late("runner.selection:cases")
_ordered = Late("runner.selection:ordered")
_say_again = Late("heard:say_again")


EXTRA: Final = pytest.StashKey[list[Any]]()
"""What adds cases to contracts in this run: objects with a ``name`` and ``cases(node)``."""


ITEMS: Final = pytest.StashKey[list[Any]]()
"""What adds other items to contracts in this run: functions of a :class:`ContractNode`."""

FOUND: Final = pytest.StashKey[Any]()
"""What an item that is no check of a contract has found of it, as findings."""


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
            from ...runner import Runner  # spares importing torch

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
        parts = [f"{self.selecting(case)} --torchcheck-seed={self.seed}"]
        if settings.examples is not None:
            parts.append(f"--torchcheck-examples={settings.examples}")
        if settings.against is not None and case.check.name == "against":
            parts.append(f"--torchcheck-against={settings.against}")
        if settings.record is not None and case.check.name == "record":
            parts.append(f"--torchcheck-record={os.path.relpath(settings.record)}")
        if settings.devices:
            parts.append(f"--torchcheck-devices={','.join(settings.devices)}")
        if settings.replay is not None:
            parts.append(f"--torchcheck-replay={os.path.relpath(settings.replay)}")
        return " ".join(parts)

    def selecting(self, case: Case) -> str:
        """Return the command that selects one case."""
        nodeid = markers.relative_nodeid(self.config, f"{self.nodeid}::{case.id}")
        return f'pytest "{nodeid}" --torchcheck'

    def collect(self) -> list[pytest.Item | pytest.Collector]:
        """Return one item per case."""
        own = markers.item_settings(self)
        places = own.devices or self.settings.devices or None
        once = self.replayed
        if once is not None:
            found = _cases(self.contract, devices=places or (once.device,))
            wanted = (once.check, once.device, once.dtype)
            return [
                self._item(case)
                for case in found
                if (case.check.name, case.device, case.dtype) == wanted
            ]
        chosen = _ordered(
            self.contract, _cases(self.contract, devices=places), self.settings.budget
        )
        extra = (case for each in self.config.stash.get(EXTRA, []) for case in each.cases(self))
        found = (*chosen, *extra)
        self.size = len(found)
        self._alike = Counter((case.check.name, case.device.partition(":")[0]) for case in found)
        more = (item for make in self.config.stash.get(ITEMS, []) for item in make(self))
        return [*(self._item(case) for case in found), *more]

    def _item(self, case: Case) -> CheckItem:
        """Make an item whose id is given whole.

        From pytest 9.2 on, an id that is pieced together from a name with brackets differs from the
        one that reports and the cache read back, so that ``--lf`` and ``--sw`` would lose the item.
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
        self.unchanged = (
            ""  # since when nothing has changed, where an earlier verdict stands for this one
        )
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

    def runtest(self) -> None:
        """Run the case and raise what its findings come to."""
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
        if refused := _say_again(node.runner.heard()):
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
                "it an error; fix its cause, or ignore it with filterwarnings"
            )
        return super().repr_failure(excinfo)

    def reportinfo(self) -> tuple[os.PathLike[str] | str, int | None, str]:
        """Return where the contract is declared, and how reports call the item."""
        location = self.parent.contract.location
        path, line = (
            (self.path, 0) if location is None else (Path(location.file), location.line - 1)
        )
        return (path, line, f"{self.parent.name}::{self.name}")


def _settle(runner: Runner, made: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """Point findings to a root cause that an earlier case of the contract has reported."""
    folded = runner.report().findings
    tail = folded[len(folded) - len(made) :]
    same = len(folded) == len(runner.findings) and all(
        a.key == b.key and a.summary == b.summary for a, b in zip(tail, made, strict=True)
    )
    return tail if same else made


_SHARED: Final[dict[tuple[str, str], tuple[str, str]]] = {}  # reports are kept, and say the same


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
    return [_SHARED.setdefault(pair, pair) for pair in found]
