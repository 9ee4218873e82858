"""The model as it is beside what it was: what changed, of state, outputs, initial weights and costs."""

from __future__ import annotations

import contextlib
import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ..batches import Batch
from ..probes.recorded.operations import narrow
from ..subject import Subject
from . import snapshot
from .initial import InitialChange, compare_initial
from .numbers import ALLOWED, NARROW, Verdict, differences, of_noise
from .running import Outcome, Way, noise, run
from .snapshot import ways
from .state import Loading, StateChange, compare_state, find_loading
from .traces import trace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from .running import Load
    from .version import Version

COSTLIER: Final = 1.2
"""A cost that grew by more than this factor is a change; reordered operations move a peak a little."""
STEEPER: Final = 0.5
"""A power by which a cost grows is a change when it rises by this much."""


@dataclass(slots=True, kw_only=True)
class Judgement:
    """Everything that was compared of a contract.

    Attributes:
        state: How the state dicts differ.
        loading: How old weights get into the model.
        verdicts: What each way of running came to; empty where nothing could be run.
        batches: The batches of the runs.
        initial: Parameters and buffers that have other initial values.
        same_initial: How many have the same ones.
        costs: Every cost before and now, by its name.
        dearer: Names of those that grew too much.
        cost_lines: Lines that hold memory at the peak, then and now; see :func:`~.snapshot.costs`.
        undecided: By category, why it could not be compared.
        notes: What else a reader may want to know, each once.
    """

    state: StateChange
    loading: Loading
    verdicts: list[Verdict] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)
    initial: list[InitialChange] = field(default_factory=list)
    same_initial: int = 0
    costs: dict[str, tuple[float, float]] = field(default_factory=dict)
    dearer: list[str] = field(default_factory=list)
    cost_lines: tuple[Sequence[Any], Sequence[Any]] = ((), ())
    undecided: dict[str, str] = field(default_factory=dict)
    notes: dict[str, None] = field(default_factory=dict)

    @property
    def changed(self) -> list[Verdict]:
        """The ways whose numbers changed."""
        return [one for one in self.verdicts if one.standing == "changed"]

    @property
    def loads(self) -> bool:
        """Whether an old checkpoint loads strictly, by the model's hooks or the contract's mapping."""
        return self.loading.how in ("strict", "mapped")


def judge(
    subject: Subject,
    old: Version,
    mapping: Callable[..., Any] | None = None,
) -> Judgement:
    """Compare a contract's model with what it was.

    Args:
        subject: The model as it is.
        old: The other version.
        mapping: The contract's own function from an old state dict to a new one.

    Raises:
        UnavailableError: The other version cannot be had.
        SubjectError: The model as it is cannot be built.
    """
    then = old.description()
    state = compare_state(then["state"], snapshot.state_of(subject.model))
    found = Judgement(state=state, loading=find_loading(subject, then["weights"], state, mapping))
    judge_initial(found, subject, then["initial"])
    judge_costs(found, snapshot.costs(subject), then["costs"])
    found.batches = _batches(found, subject, then["batches"])
    if found.loading.load is None:
        found.undecided["outputs"] = "the old weights do not fit the model as it is"
    elif found.batches:
        _runs(found, subject, old, [Outcome.of_plain(one) for one in then["runs"]])
    return found


def judge_initial(found: Judgement, subject: Subject, then: Mapping[str, Any]) -> None:
    """Compare initial values with those of :func:`~.snapshot.initial`."""
    if not subject.contract.is_factory or not then:
        found.undecided["init"] = (
            "the contract holds a module that was built before, with no known seed"
        )
        return

    @functools.cache
    def elsewhere() -> Mapping[str, Any]:
        """Return the initial values under another seed."""
        dtype = None if subject.dtype is None else str(subject.dtype).removeprefix("torch.")
        made = Subject(
            subject.contract, device=str(subject.device), dtype=dtype, seed=subject.seed + 1
        )
        with contextlib.closing(made) as other:
            return snapshot.initial(other.model)

    def drawn(name: str) -> bool:
        return bool(elsewhere()[name]["digest"] != now[name]["digest"])

    now = snapshot.initial(subject.model)
    names = found.state.renames
    found.initial, found.same_initial = compare_initial(then, now, names, drawn)


def judge_costs(found: Judgement, now: Mapping[str, Any], then: Mapping[str, Any]) -> None:
    """Compare what :func:`~.snapshot.costs` returns; what neither version could measure is undecided."""
    if why := now["error"] or then["error"]:
        found.undecided["cost"] = f"memory and FLOPs could not be measured: {why}"
    for part in ("counts", "growth"):
        for name, new in now[part].items():
            old = then[part].get(name)
            if old is None or new is None:
                continue
            found.costs[name] = old, new
            if new >= old + STEEPER if part == "growth" else new > old * COSTLIER:
                found.dearer.append(name)
    found.dearer = [name for name in found.dearer if not name.endswith(" peak bytes")]
    found.cost_lines = then["lines"], now["lines"]


def _batches(found: Judgement, subject: Subject, then: list[dict[str, Any]]) -> list[Batch]:
    """Return the batches of the old version: drawn here where that gives the same, else as they were sent."""
    own = snapshot.batches(subject)
    made = []
    for index, sent in enumerate(then):
        mine = own[index] if index < len(own) else None
        if mine is not None and snapshot.plain_batch(mine)["digests"] == sent["digests"]:
            made.append(mine)
        elif sent["trees"] is None:
            found.undecided["outputs"] = (
                "the contract's batches differ, and hold objects that cannot be sent"
            )
            return []
        else:
            made.append(_received(sent, subject))
            found.notes[
                "the batches are those of the reference; the contract now draws different ones"
            ] = None
    return made


def _received(sent: Mapping[str, Any], subject: Subject) -> Batch:
    tree = sent["trees"]
    made = Batch(
        args=tuple(tree["args"]), kwargs=dict(tree["kwargs"]), targets=tree["targets"],
        sizes=dict(sent["sizes"]), origin="real",
    )  # fmt: skip
    return made.to(device=subject.device)


def _runs(found: Judgement, subject: Subject, old: Version, outcomes: list[Outcome]) -> None:
    load = found.loading.load
    assert load is not None
    raised = list(dict.fromkeys(one.error for one in outcomes if one.error))
    if all(one.error for one in outcomes):
        found.undecided["outputs"] = f"the model raised there: {raised[0]}"
        return
    for way, then in zip(ways(len(found.batches)), outcomes, strict=True):
        batch = found.batches[way.batch]
        now = run(subject, batch, load, way, seed=subject.seed)
        found.verdicts.append(_verdict(found, subject, old, way, then, now))


def _verdict(
    found: Judgement, subject: Subject, old: Version, way: Way, then: Outcome, now: Outcome
) -> Verdict:
    """Compare one way of running: bit by bit, and where that differs, in float64."""
    renames = found.state.renames
    first = differences(then, now, renames)
    if not first:
        return Verdict(way=way, standing="bits")
    load, batch = found.loading.load, found.batches[way.batch]
    assert load is not None
    hard = tuple(one for one in first if one.kind in ("error", "structure"))
    if hard:
        return Verdict(way=way, standing="changed", differences=hard)
    if (then.drew or now.drew) and then.randomness != now.randomness:
        return _drawn(found, subject, old, way, load)
    wide = Way(batch=way.batch, train=way.train, double=True)
    there = old.outcome(wide)
    here = run(subject, batch, load, wide, seed=subject.seed)
    left = differences(there, here, renames, ALLOWED)
    if not left:
        return Verdict(way=way, standing="rounding", differences=first)
    gap = max(one.gap for one in left)
    if gap <= NARROW and narrow(trace(subject, batch, load, wide, seed=subject.seed)):
        found.notes["the model computes in float32, where a change below 1e-5 is rounding"] = None
        return Verdict(way=way, standing="rounding", differences=first)
    return Verdict(way=wide, standing="changed", differences=left)


def _drawn(found: Judgement, subject: Subject, old: Version, way: Way, load: Load) -> Verdict:
    """Compare runs that draw other random numbers by how far training mode is from evaluation mode."""
    found.notes["training mode draws other random numbers; only its spread is compared"] = None
    if way.batch:
        return Verdict(way=way, standing="drawn")
    left = of_noise(old.noise(), noise(subject, found.batches[0], load))
    return Verdict(way=way, standing="changed" if left else "drawn", differences=left)
