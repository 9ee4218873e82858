"""Run the cases of a contract, and turn what happens into findings."""

from __future__ import annotations

import contextlib
import os
import time
import warnings
from typing import TYPE_CHECKING, Final

from .. import compiler, deadline, outcomes, sources, verdicts
from ..adapters import LoopUnavailableError
from ..blame import (
    compiled_by_itself,
    raised_by_observer,
    unsupported_on,
    unwritable_parameter,
)
from ..codes import folding, undecided
from ..declared.names import UnknownNameError
from ..findings import Finding, Location, Report
from ..late import resolve
from ..objects import heap
from ..state import is_device_error, isolated, repeatable
from ..storage import artifacts
from ..subject import Subject
from ..subject.errors import NothingToDifferentiate, SubjectError, UnmeasurableError
from ..text.printable import message_of
from . import selection
from .crashes import crash_finding, refuses_rearranged, seen_only_by_recorders
from .surroundings import environment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from ..batches import Batch
    from ..contracts import Contract
    from ..heard import Heard
    from .selection import Case

DEFAULT_EXAMPLES: Final = 8
MOST_TRIALS: Final = 6
"""Of suggested edits, for one contract: further findings often follow from the first ones."""


class Runner:
    """Runs the cases of one contract and keeps what they share.

    Args:
        contract: The contract.
        seed: Decides every random choice.
        examples: How many drawn batches the shape-sensitive checks use.
        strict: Whether ``suspicious`` and ``inconclusive`` fail.
        artifacts: Folder for batches and states of failures, or None.
        reproduce: Makes the command that repeats a case.
        explain_seconds: Wall time that one explanation may take; a finding remains without one that
            takes longer.
        budget: How many plain training steps the checks of the contract may take together; the
            contract's own goes first. What no longer fits is reported as not run. A check that is
            declared always runs.
        trials: How many suggested edits may be tried, each by running its check again.
    """

    def __init__(
        self,
        contract: Contract,
        *,
        seed: int = 0,
        examples: int | None = None,
        strict: bool = False,
        artifacts: Path | None = None,
        reproduce: Callable[[Case], str] | None = None,
        explain_seconds: float = deadline.SECONDS,
        budget: float | None = None,
        trials: int = MOST_TRIALS,
    ) -> None:
        self.contract = contract
        self.seed = seed
        self.examples = DEFAULT_EXAMPLES if examples is None else examples
        self.strict = strict
        self.artifacts = artifacts
        self.reproduce = reproduce or self._command
        self.explain_seconds = explain_seconds
        self.budget = budget if contract.budget is None else contract.budget
        self.trials = trials
        self._step: list[float | None] = []
        self.findings: list[Finding] = []
        self._heard: dict[Heard, None] = {}
        self._said: set[Heard] = set()
        self.seconds = 0.0
        self._subjects: dict[tuple[str, str | None], Subject] = {}
        self._crashes: dict[tuple[str, str, str], str] = {}
        self._failing_batch: Batch | None = None
        self._lost: dict[str, str] = {}  # device -> check/code of what lost its context
        self._runs = False

    def expect(self, chosen: Iterable[Case]) -> None:
        """Start in the background what these cases will wait for: a process for the workers of a loader."""
        for target in {case.check.starts for case in chosen if case.check.starts}:
            resolve(target)(self.contract)

    def run(self, case: Case) -> tuple[Finding, ...]:
        """Run one case; the user's bugs become findings, never exceptions.

        Returns:
            One finding or more; those that only repeat an earlier crash point to it by ``root``.
        """
        if not self._runs:
            self._runs = True
            heap.freeze()
        reason = self.contract.skip.get(case.check.name)
        if self.budget is not None and (spent := self._overspent(case)):
            return self._over_budget(case, spent)
        if reason is None:
            with contextlib.suppress(ImportError):  # which the run itself tells
                _ = case.check.function  # what its import takes is not spent on the model
        start, worked, seconds = time.perf_counter(), time.thread_time(), 0.0
        try:
            with (
                isolated(seeds=True),
                compiler.unloaded(),
                warnings.catch_warnings(),
                deadline.allowed(self.explain_seconds),
            ):
                warnings.simplefilter("ignore")
                repeatable()
                untried = reason is not None and not case.check.tries_skip
                found = () if untried else (*self._findings(case), *self._not_put_back())
                found += tuple(self._raised_once(case))
        finally:
            seconds = time.perf_counter() - start
            self.seconds += seconds
        if untried:
            found = (verdicts.not_applicable(f"skipped by the contract: {reason}"),)
        elif reason is not None:
            found = outcomes.skipped(found, reason, case.check.name)
        made = tuple(
            outcomes.named(finding, case.check.summary).replace(
                check=finding.check or case.check.name,
                contract=self.contract.name,
                device=case.device,
                dtype=case.dtype,
                location=finding.location or self._anywhere(finding, case),
                reproduce=finding.reproduce
                or (self.reproduce(case) if finding.status in _REPEATED else ""),
            )
            for finding in found
        )
        if any(f.status in ("violated", "suspicious") and f.fix for f in made):
            with_edits = resolve("runner.suggestions:with_edits")  # a run that passes tries nothing
            # waiting counts little: a busy machine is no reason to leave a fix untried
            cost = max(time.thread_time() - worked, seconds / 10)
            made = with_edits(self, case, made, cost)
        if self.artifacts is not None and any(f.status == "violated" for f in made):
            made = self._kept(case, made)
        self._failing_batch = None
        self.findings += made
        for subject in self._subjects.values():
            self._heard |= dict.fromkeys(subject.ear.heard)
        return made

    def _anywhere(self, finding: Finding, case: Case) -> Location | None:
        """Return the line of the model's class, else of the declaration, for what points to no line of its own."""
        needs_one = finding.status in ("violated", "suspicious")
        pointed = any(culprit.location is not None for culprit in finding.culprits)
        if not needs_one or pointed:
            return None
        model = next((s._model for s in self._subjects.values() if s._model is not None), None)
        if model is None or case.check.about == "declaration" or finding.code in outcomes.DECLARED:
            return self.contract.location
        return sources.of_own_class(model) or self.contract.location

    def _kept(self, case: Case, found: tuple[Finding, ...]) -> tuple[Finding, ...]:
        """Save the batch of a failure and say where, or why not."""
        assert self.artifacts is not None
        path = artifacts.path_of(self.artifacts, self.contract.name, case.id)
        try:
            kept = artifacts.Artifact(
                contract=self.contract.name,
                check=case.check.name,
                device=case.device,
                dtype=case.dtype,
                seed=self.seed,
                batch=self._failing_batch or self.subject(case).batch(),
            )
            problem = artifacts.save(path, kept, found)
        except SubjectError:
            return found  # the batch cannot be made: that is what the finding says
        except Exception as error:  # whatever keeps a batch from being saved, the finding remains
            problem = f"{type(error).__name__}: {message_of(error)}"
        note = {"batch not saved": problem} if problem else {"batch saved": str(path)}
        return tuple(f.replace(evidence={**f.evidence, **note}) for f in found)

    def step_seconds(self, case: Case) -> float | None:
        """Return the wall time of one plain training step on a case's device, measured once; None where it raises."""
        if not self._step:
            subject = None if self.contract.model is None else self.subject(case)
            try:
                step = None if subject is None else selection.plain_step_seconds(subject)
                self._step.append(step)
            except SubjectError:
                self._step.append(None)
        return self._step[0]

    def _overspent(self, case: Case) -> float:
        """Return how many plain steps were spent where the budget is used up; 0 where the case may run."""
        if case.check.leads or selection.is_declared(case.check) or not self.findings:
            return 0.0
        step = self.step_seconds(case)
        spent = 0.0 if not step else self.seconds / step
        return spent if self.budget is not None and spent >= self.budget else 0.0

    def _over_budget(self, case: Case, spent: float) -> tuple[Finding, ...]:
        found = verdicts.inconclusive(
            f"not run: {spent:.3g} plain steps are spent, and the budget is {self.budget:g}",
            code=undecided.OVER_BUDGET,
        ).replace(
            check=case.check.name, contract=self.contract.name, device=case.device, dtype=case.dtype
        )
        self.findings.append(found)
        return (found,)

    def subject(self, case: Case) -> Subject:
        """Return the subject of a case; a user's own module serves one subject at a time."""
        dtype = (
            case.dtype
            if self.contract.dtypes is not None and case.dtype in self.contract.dtypes
            else None
        )
        key = (case.device, dtype)
        if key not in self._subjects:
            if self.contract.model is not None and not self.contract.is_factory:
                self._close_subjects()
            self._subjects[key] = Subject(
                self.contract,
                device=case.device,
                dtype=dtype,
                seed=self.seed,
                examples=self.examples,
            )
        return self._subjects[key]

    def heard(self) -> list[Heard]:
        """Return the warnings that training the model gave and that nobody was told of yet, each once."""
        found = [one for one in self._heard if one not in self._said]
        self._said.update(found)
        return found

    def close(self) -> None:
        """Put everything back; call it when no case of the contract is left."""
        self._close_subjects()
        if self._runs:
            self._runs = False
            heap.release()

    def report(self) -> Report:
        """Return what the cases run so far found, the same root cause folded under one finding."""
        return Report(
            contract=self.contract.name,
            findings=folding.fold(self.findings),
            seconds=self.seconds,
            environment=environment(self.seed),
        )

    def _close_subjects(self) -> None:
        for subject in self._subjects.values():
            subject.close()
        self._subjects.clear()

    def _findings(self, case: Case) -> tuple[Finding, ...]:
        if (root := self._lost.get(case.device)) is not None:
            lost = f"not run: the context of {case.device} was lost (see {root.split('/')[0]})"
            return (verdicts.inconclusive(lost, code=undecided.BLOCKED, root=root),)
        found: list[Finding] = []
        try:
            subject = self.subject(case)
            for finding in case.check.run(subject):
                found.append(finding)  # noqa: PERF402 - what came before an error is kept
            if not found:
                raise RuntimeError("the check yielded no finding")
        except UnmeasurableError as error:
            return (*_acting(found), verdicts.inconclusive(error.reason, code=error.code))
        except SubjectError as error:
            if isinstance(error.error, NothingToDifferentiate):
                return (verdicts.not_applicable(str(error.error)), *_acting(found))
            if lacking := unsupported_on(error.error, subject.device.type):
                return (
                    *_acting(found),
                    verdicts.inconclusive(lacking, code=undecided.NOT_MEASURABLE),
                )
            if seen_only_by_recorders(error, subject):
                reason = compiled_by_itself(error)
                return (
                    *_acting(found),
                    verdicts.inconclusive(reason, code=undecided.NOT_MEASURABLE),
                )
            if refused := refuses_rearranged(error, subject):
                return (
                    *_acting(found),
                    verdicts.inconclusive(refused, code=undecided.NOT_MEASURABLE),
                )
            if error.phase != "promise" and raised_by_observer(error.error):
                return (*_acting(found), self._failed(case, error.error, found))
            return (*_acting(found), self.crash(case, error, subject))
        except LoopUnavailableError as error:
            return (
                verdicts.inconclusive(
                    f"the trainer's loop was not run: {error}", code=undecided.LOOP_UNAVAILABLE
                ),
            )
        except Exception as error:  # must be seen, and must not hide the other checks
            if unwritable := unwritable_parameter(error, self._subjects.values()):
                return (
                    *_acting(found),
                    verdicts.inconclusive(unwritable, code=undecided.NOT_MEASURABLE),
                )
            if is_device_error(error) and case.device != "cpu":
                subject = self.subject(case)
                batch = subject.batch()
                again = subject.again("backward", batch, None)
                told = SubjectError("backward", error, batch, again)
                return (*_acting(found), self.crash(case, told, subject))
            if os.environ.get("TORCHCHECK_DEBUG"):
                raise
            return (*_acting(found), self._failed(case, error, found))
        return tuple(found)

    def _failed(self, case: Case, error: BaseException, found: list[Finding]) -> Finding:
        """Return what an error of a check is: our defect, unless an operation lacks for a tensor of the user's."""
        with contextlib.suppress(Exception):  # what asks may fail as the check did
            name = "runner.unsupported:unsupported"  # nothing that passes asks
            again = lambda: list(case.check.run(self.subject(case)))  # noqa: E731
            if reason := resolve(name)(error, again, self._subjects.values()):
                return verdicts.inconclusive(reason, code=undecided.NOT_MEASURABLE)
        return outcomes.internal(case.check.name, error, found)

    def _not_put_back(self) -> tuple[Finding, ...]:
        """Say once what the model has read that no check can put back for the next run."""
        found: dict[str, str] = {}
        for subject in self._subjects.values():
            found |= subject.not_put_back()
        return (outcomes.not_put_back(found),) if found else ()

    def _raised_once(self, case: Case) -> Iterator[Finding]:
        """Tell of errors that a check went on from, and that did not come again in the same call."""
        for subject in self._subjects.values():
            while subject.rehearsal.once:
                error, drew = subject.rehearsal.once.pop(0)
                ours = raised_by_observer(error.error) or seen_only_by_recorders(error, subject)
                if ours or _key(error) in self._crashes:
                    continue
                yield outcomes.raised_once(self.crash(case, error, subject), error.phase, drew=drew)

    def crash(self, case: Case, error: SubjectError, subject: Subject) -> Finding:
        """Explain an exception of the user's code, or point to the finding that did."""
        cause, key = error.error, _key(error)
        if self.artifacts is not None:
            self._failing_batch = error.batch
        if (root := self._crashes.get(key)) is not None and root.split("/")[0] != case.check.name:
            told = f"the {error.phase} raises {key[0]}"
            if isinstance(cause, UnknownNameError):
                told = cause.problem
            return verdicts.inconclusive(
                f"could not be checked: {told} (see {root.split('/')[0]})",
                code=undecided.BLOCKED,
                root=root,
            )
        lost = subject.device.type != "cpu" and is_device_error(cause)
        finding = crash_finding(self.contract, error, subject, device=case.device, lost=lost)
        self._crashes[key] = f"{case.check.name}/{finding.code}"
        if lost:
            self._lost[case.device] = self._crashes[key]
        return finding

    def _command(self, case: Case) -> str:
        arguments = [f'["{case.check.name}"]']
        if self.seed:
            arguments.append(f"seed={self.seed}")
        if case.device != "cpu":
            arguments.append(f'devices=["{case.device}"]')
        return f"Contract(...).check({', '.join(arguments)})"


_REPEATED = frozenset({"violated", "error", "suspicious"})
"""What comes with a command that repeats it."""


def _key(error: SubjectError) -> tuple[str, str, str]:
    """Return what tells one exception of the user's code from another: type, message and line."""
    cause = error.error
    place = sources.of_error(cause)
    message = message_of(cause).partition("\n")[0][:120]
    return type(cause).__name__, message, f"{place.file}:{place.line}" if place else ""


def _acting(found: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return what a check that did not come to its end had found so far."""
    return tuple(f for f in found if f.status in ("violated", "suspicious"))
