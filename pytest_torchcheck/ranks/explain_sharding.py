"""Say what FSDP2 computes otherwise, what it unties, and what does not come back from a build on meta."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_torchcheck import sources
from pytest_torchcheck.findings import Culprit, Finding

from ..verdicts import violated
from .differences import culprits_of, line, listed, tie_split

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pytest_torchcheck.findings import Location
    from pytest_torchcheck.subject import Subject

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
    """Explain what the sharded model does otherwise than the plain one."""
    found = outcome.stages["sharded"][0]
    if not found["units"]:
        yield violated(
            "nothing-sharded",
            "the plan shards nothing: no module is under FSDP after it",
            culprits=[Culprit("function", str(getattr(_plan(subject), "__name__", "wrap")))],
            location=_place(subject),
            observed=f"0 units, {len(found['managed'])} parameters that every rank holds whole",
            cause="fully_shard is never reached, or its result is another module than the one handed in",
            because="the modules were looked through after the plan had run",
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
        "fully_shard gives each of its units parameters of their own, and the tied modules stand in different units",
        _place(subject, rf"fully_shard\([^)]*\b{owner}\b" if owner else _SHARD),
        fix="leave both modules to one unit, such as the root: fully_shard(model), or fully_shard([a, b])",
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
            f"{listed(names)} {'is' if len(names) == 1 else 'are'} in no unit of FSDP, so that the ranks never average "
            f"{'its gradient' if len(names) == 1 else 'their gradients'}",
            culprits=culprits_of(subject, names, "parameter", "in no unit"),
            location=_place(subject),
            observed=f"{len(names)} parameters are no DTensor after the plan; gradients differ by "
            f"{found['error']:.3g} (relative)",
            cause="the plan shards some modules and not the model that holds them",
            because="the units were listed after the plan had run: "
            f"{listed([name or 'the model' for name in found['units']])}",
            fix="call fully_shard(model) on the whole model last: it takes what is left",
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
        f"under FSDP the {wrong or 'gradient'} is not that of one process (worst: {names[0]})",
        culprits=culprits_of(subject, names, "parameter", "no gradient" if found["missing"] else "differs"),
        location=_place(subject),
        observed=", ".join(f"{name} {value:.3g}" for name, value in parts.items())
        + f" (relative differences); ratio {found['ratio']:.6g}",
        cause="part of the model is used outside the forward of its unit, where its parameters are shards"
        if wrong == "output" else "the shards' gradients are not averaged over ranks as one process would",
        because="the same shards without FSDP give the outputs exactly, and in float64 rounding "
            f"stays below {bound:.0e}",
        fix="use a sharded module's parameters only inside its own forward, and reduce gradients by the mean",
    )  # fmt: skip


def _state(subject: Subject, found: Mapping[str, Any]) -> Iterator[Finding]:
    if found["keys"] != found["expected"] or found["unloadable"]:
        names = sorted({*found["keys"]} ^ {*found["expected"]}) or found["unloadable"]
        yield violated(
            "sharded-state",
            f"the state_dict under FSDP has other names than the plain model's: {listed(names)}",
            culprits=[Culprit("tensor", name) for name in names[:8]],
            location=_place(subject),
            observed=f"{len(found['keys'])} names under FSDP, {len(found['expected'])} in the plain "
            f"model; {len(names)} stand in one only",
            cause="the plan wraps or renames modules besides sharding them",
            because="both lists of names were compared",
            fix="shard in place (fully_shard keeps all names), or strip what the wrapper adds before saving",
        )
    elif found["lost"] or found["restored"]:
        names = found["lost"] or found["restored"]
        yield violated(
            "sharded-state",
            f"{listed(names)} {'does' if len(names) == 1 else 'do'} not come back from the "
                "state_dict under FSDP",
            culprits=culprits_of(subject, names, "parameter", "different after loading"),
            location=_place(subject),
            observed=f"{len(names)} parameters differ after "
            + ("gathering the state_dict" if found["lost"] else "loading it into a fresh sharded model"),
            cause="a hook of the model changes the state_dict, or part of it is kept elsewhere",
            because="the values before and after were compared bit by bit",
            fix="keep every parameter under its own name in state_dict",
        )  # fmt: skip


def meta(subject: Subject, outcome: Outcome, exact: float) -> Iterator[Finding]:
    """Explain what a model built on meta lacks after it was given memory and its state."""
    found = outcome.stages["meta"][0]
    materialise = next((p.meta for p in subject.contract.promised("FullyShards")), None)  # type: ignore[attr-defined]
    place = line(materialise, r"to_empty", r"def ") if callable(materialise) else None
    if found["ties"] != found["tied"]:
        yield tie_split(
            subject, [found["ties"], found["tied"]], "one tensor on meta and two after they were given memory",
            "each name is given memory of its own", place or _place(subject),
        )  # fmt: skip
        return
    if found["on_meta"]:
        names = found["on_meta"]
        yield violated(
            "meta-left",
            f"{listed(names)} {'stays' if len(names) == 1 else 'stay'} on meta, without values",
            culprits=culprits_of(subject, names, "tensor", "on meta"),
            location=place or _place(subject),
            observed=f"{len(names)} tensors are on meta after the model was given memory",
            cause="what materialises the model leaves them out",
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
        observed=f"built on meta, sharded, given memory and loaded: {len(lost)} tensors differ, "
            f"outputs by {found['output']:.3g} (relative)",
        cause="a buffer that is no part of the state_dict is computed in __init__, where meta has no values"
        if absent else "what gives the model memory after loading, or instead of it, overwrites values",
        because="tensors were compared one by one with the model that was built on the device",
        fix=f"compute {last or 'it'} again after to_empty (in reset_parameters, called by "
            "FullyShards(meta=...)), or make it persistent",
    )  # fmt: skip
