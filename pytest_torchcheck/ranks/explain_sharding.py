"""Say what FSDP2 computes differently, what it unties, and what a build on meta loses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import sources
from ..findings import Culprit, Finding
from ..verdicts import violated
from .differences import culprits_of, line, listed, tie_split

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ..findings import Location
    from ..subject import Subject
    from .launch import Outcome

_SHARD = r"fully_shard"


def _plan(subject: Subject) -> Any:
    return next((p.wrap for p in subject.contract.promised("FullyShards")), None)  # type: ignore[attr-defined]


def _place(subject: Subject, *patterns: str) -> Location | None:
    plan = _plan(subject)
    return (
        line(plan, *patterns, _SHARD)
        if plan is not None
        else sources.of_object(type(subject.model))
    )


def sharding(subject: Subject, outcome: Outcome, exact: float) -> Iterator[Finding]:
    """Explain what the sharded model does differently from the plain one."""
    found = outcome.stages["sharded"][0]
    if not found["units"]:
        yield violated(
            "nothing-sharded",
            "the plan shards nothing: no module is under FSDP after it",
            culprits=[Culprit("function", str(getattr(_plan(subject), "__name__", "wrap")))],
            location=_place(subject),
            observed=f"0 units, {len(found['managed'])} parameters that every rank holds whole",
            cause="fully_shard is never called, or its result is not the module passed in",
            because="the modules were inspected after the plan ran",
            fix="call fully_shard(model) last in the plan: it changes the module in place",
        )  # fmt: skip
        return
    if found["ties"] != found["tied"]:
        yield split(subject, found)
        return
    yield from _differing(subject, outcome, found, exact)
    yield from _state(subject, found)


def split(subject: Subject, found: Mapping[str, Any]) -> Finding:
    """Name tied parameters that units of FSDP make two of."""
    lost = next(iter(set(found["ties"]) - set(found["tied"])), ())
    owner = lost[-1].rpartition(".")[0].rpartition(".")[2] if lost else ""
    return tie_split(
        subject,
        [found["ties"], found["tied"]],
        "one tensor before sharding and two after it",
        "fully_shard gives each unit its own parameters, and the tied modules are in different units",
        _place(subject, rf"fully_shard\([^)]*\b{owner}\b" if owner else _SHARD),
        fix="keep both modules in one unit, such as the root: fully_shard(model), or fully_shard([a, b])",
    )


def _differing(
    subject: Subject, outcome: Outcome, found: Mapping[str, Any], exact: float
) -> Iterator[Finding]:
    local = outcome.stages["local"][0]
    bound = max(exact, 10 * local["noise"])
    if found["managed"] and found["error"] > bound:
        names = found["managed"]
        yield violated(
            "not-sharded",
            f"{listed(names)} {'is' if len(names) == 1 else 'are'} in no unit of FSDP, so the ranks never average "
            f"{'its gradient' if len(names) == 1 else 'their gradients'}",
            culprits=culprits_of(subject, names, "parameter", "in no unit"),
            location=_place(subject),
            observed=f"{len(names)} parameters are not DTensors after the plan; gradients differ by "
            f"{found['error']:.3g} (relative)",
            cause="the plan shards some modules but not the model that contains them",
            because="the units were listed after the plan ran: "
            f"{listed([name or 'the model' for name in found['units']])}",
            fix="call fully_shard(model) on the whole model last: it shards what is left",
        )
        return
    parts = {
        "output": found["output"],
        "gradient": found["error"],
        "parameters after a step": found["stepped"],
    }
    wrong = next((name for name, value in parts.items() if value > bound), None)
    if wrong is None and not found["missing"]:
        return
    names = found["missing"] or found["worst"]
    yield violated(
        "fsdp-differs",
        f"under FSDP the {wrong or 'gradient'} differs from that of one process (worst: {names[0]})",
        culprits=culprits_of(subject, names, "parameter", "no gradient" if found["missing"] else "differs"),
        location=_place(subject),
        observed=", ".join(f"{name} {value:.3g}" for name, value in parts.items())
        + f" (relative differences); ratio {found['ratio']:.6g}",
        cause="part of the model is used outside the forward of its unit, where its parameters are shards"
        if wrong == "output" else "the gradients of the shards are not averaged over ranks",
        because="the same shards without FSDP give the exact outputs, and float64 rounding "
            f"stays below {bound:.0e}",
        fix="use a sharded module's parameters only inside its own forward, and reduce gradients by the mean",
    )  # fmt: skip


def _state(subject: Subject, found: Mapping[str, Any]) -> Iterator[Finding]:
    if found["keys"] != found["expected"] or found["unloadable"]:
        names = sorted({*found["keys"]} ^ {*found["expected"]}) or found["unloadable"]
        yield violated(
            "sharded-state",
            f"the state_dict under FSDP has different names than that of the plain model: {listed(names)}",
            culprits=[Culprit("tensor", name) for name in names[:8]],
            location=_place(subject),
            observed=f"{len(found['keys'])} names under FSDP, {len(found['expected'])} in the plain "
            f"model; {len(names)} are in only one of them",
            cause="the plan also wraps or renames modules",
            because="both lists of names were compared",
            fix="shard in place (fully_shard keeps all names), or strip the prefix of the wrapper before saving",
        )
    elif found["lost"] or found["restored"]:
        names = found["lost"] or found["restored"]
        yield violated(
            "sharded-state",
            f"{listed(names)} {'does' if len(names) == 1 else 'do'} not survive the "
                "state_dict round trip under FSDP",
            culprits=culprits_of(subject, names, "parameter", "different after loading"),
            location=_place(subject),
            observed=f"{len(names)} parameters differ after "
            + ("gathering the state_dict" if found["lost"] else "loading it into a fresh sharded model"),
            cause="a hook of the model changes the state_dict, or part of it is kept elsewhere",
            because="the values before and after were compared bit by bit",
            fix="keep every parameter under its own name in state_dict",
        )  # fmt: skip


def meta(subject: Subject, outcome: Outcome, exact: float) -> Iterator[Finding]:
    """Explain what a model built on meta lacks after it was materialized and loaded."""
    found = outcome.stages["meta"][0]
    materialise = next((p.meta for p in subject.contract.promised("FullyShards")), None)  # type: ignore[attr-defined]
    place = line(materialise, r"to_empty", r"def ") if callable(materialise) else None
    if found["ties"] != found["tied"]:
        yield tie_split(
            subject, [found["ties"], found["tied"]], "one tensor on meta and two after materialization",
            "each name is allocated separately", place or _place(subject),
        )  # fmt: skip
        return
    if found["on_meta"]:
        names = found["on_meta"]
        yield violated(
            "meta-left",
            f"{listed(names)} {'stays' if len(names) == 1 else 'stay'} on meta, without values",
            culprits=culprits_of(subject, names, "tensor", "on meta"),
            location=place or _place(subject),
            observed=f"{len(names)} tensors are on meta after the model was materialized",
            cause="the function that materializes the model leaves them out",
            because="the devices of all parameters and buffers were listed",
            fix="call model.to_empty(device=...) on the whole model",
        )
        return
    lost = found["lost"]
    if not lost and not found["output"] > max(exact, 1e-12):
        return
    absent = [name for name in lost if name not in found["persistent"]]
    owner, _, last = (absent or lost or [""])[0].rpartition(".")
    module = subject.model
    for part in filter(None, owner.split(".")):
        module = getattr(module, part, module)
    where = sources.of_assignment(module, last) if last else None
    yield violated(
        "meta-not-restored",
        f"{listed(absent or lost or ['the output'])} "
            f"{'has' if len(absent or lost) <= 1 else 'have'} no values after a build on meta",
        culprits=culprits_of(subject, absent or lost, "buffer" if absent else "tensor", "not in the state_dict" if absent else "another value"),
        location=where or place or _place(subject),
        observed=f"built on meta, sharded, materialized and loaded: {len(lost)} tensors differ, "
            f"outputs by {found['output']:.3g} (relative)",
        cause="a buffer that is not in the state_dict is computed in __init__, where meta tensors have no values"
        if absent else ("the function that materializes the model runs after loading, or without loading, "
            "and overwrites values"),
        because="tensors were compared one by one with the model that was built on the device",
        fix=f"compute {last or 'it'} again after to_empty (in reset_parameters, called by "
            "FullyShards(meta=...)), or make it persistent",
    )  # fmt: skip
