"""The model as it is beside what it was: what changed, of state, outputs, initial weights and costs."""

from __future__ import annotations

import contextlib
import functools
import math
from dataclasses import field
from typing import TYPE_CHECKING, Any, Final

import torch

from ..batches import Batch
from ..lean import dataclass
from ..probes.recorded.operations import narrow
from ..subject import Subject
from . import snapshot
from .running import Outcome, Way, noise, run
from .sketch import Sketch
from .snapshot import ways
from .state import Loading, StateChange, compare_state, find_loading
from .traces import ALLOWED, NARROW, Verdict, differences, of_noise, trace

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


_SIGMAS = 6.0
_FEW = 30  # elements below which a sample says little of a distribution


@dataclass(frozen=True, slots=True, kw_only=True)
class InitialChange:
    """One parameter or buffer that has other initial values.

    Attributes:
        name: Its name.
        fact: What was measured, as a clause.
    """

    name: str
    fact: str


def compare_initial(
    old: Mapping[str, Mapping[str, Any]],
    new: Mapping[str, Mapping[str, Any]],
    names: Mapping[str, str],
    drawn: Callable[[str], bool],
) -> tuple[list[InitialChange], int]:
    """Compare parameters and buffers of two models built under one seed; see :func:`~.snapshot.initial`.

    Another order of drawing gives other values of the same distribution, which is no change.

    Args:
        old: Of the reference.
        new: Of the model as it is.
        names: New names of renamed ones.
        drawn: Says whether one has other values under another seed.

    Returns:
        The changed ones, and how many of both versions have the same values.
    """
    found, same = [], 0
    for before, then in old.items():
        name = names.get(before, before)
        now = new.get(name)
        if now is None or list(then["shape"]) != list(now["shape"]):
            continue
        if then["digest"] == now["digest"]:
            same += 1
            continue
        fact = _otherwise(then, now)
        if not fact and "values" in then:
            gap = _sketch(then).gap(_sketch(now))
            if gap > NARROW and not drawn(name):
                fact = f"values differ by {gap:.2g} of the largest magnitude"
        if fact:
            found.append(InitialChange(name=name, fact=fact))
    return found, same


def _otherwise(then: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return how two parameters of one shape are initialised otherwise; empty where they may be alike."""
    if then["std"] == 0.0 or now["std"] == 0.0:  # a constant
        if then["std"] == now["std"] and math.isclose(then["mean"], now["mean"], rel_tol=1e-6):
            return ""
        return (
            f"mean {then['mean']:.4g} and standard deviation {then['std']:.4g} are now "
            f"{now['mean']:.4g} and {now['std']:.4g}"
        )
    ratio = _ratio(then, now)
    if ratio is not None:
        same = math.isclose(ratio, 1.0, rel_tol=1e-6)
        return "" if same else f"every value is {ratio:.4g} times what it was"
    count = math.prod(then["shape"])
    if count < _FEW:
        return ""
    error = math.sqrt(1 / count)  # of the log of a deviation, twice 1 / (2 n); less if uniform
    if abs(math.log(now["std"] / then["std"])) > _SIGMAS * error:
        return f"standard deviation {then['std']:.4g}, now {now['std']:.4g} ({count} values)"
    spread = math.hypot(then["std"], now["std"]) / math.sqrt(count)
    if abs(now["mean"] - then["mean"]) > _SIGMAS * spread:
        return f"mean {then['mean']:.4g}, now {now['mean']:.4g} ({count} values)"
    return ""


def _ratio(then: Mapping[str, Any], now: Mapping[str, Any]) -> float | None:
    """Return by what all values are multiplied; None where that is not so, or where no values were kept."""
    if "values" not in then:
        return None
    one, two = _sketch(then).values.double(), _sketch(now).values.double()
    norms = float(one.norm()), float(two.norm())
    if not all(norms) or len(one) < 2:
        return None
    cosine = float(torch.dot(one, two)) / (norms[0] * norms[1])
    if abs(abs(cosine) - 1) >= 1e-9:
        return None
    return math.copysign(norms[1] / norms[0], cosine)


def _sketch(data: Mapping[str, Any]) -> Sketch:
    return Sketch.of_plain(
        {key: data[key] for key in ("shape", "dtype", "digest", "scale", "values")}
    )
