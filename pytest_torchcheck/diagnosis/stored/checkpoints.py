"""What a checkpoint restores and what it loses: outputs to compare, saving and loading, the state in between."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ... import sources
from ...explanation import listed, on_line
from ...findings import Culprit, Finding
from ...probes.holding.init_arguments import given_to_init
from ...runs.hidden import hidden
from ...runs.portability import Portability
from ...verdicts import suspicious, violated

if TYPE_CHECKING:
    from ...runs.saving import Lost
    from ...subject import Subject


def explain_lost(
    subject: Subject, lost: list[Lost], difference: tuple[str, float], *, confirmed: bool
) -> Finding:
    """Explain outputs that differ after a strict load into another instance."""
    path, distance = difference
    observed = (
        f"{path} differs by {distance:.3g} after state_dict was saved and loaded with strict=True"
    )
    if not lost:
        return violated(
            "state-lost",
            f"a loaded checkpoint does not restore the outputs of {type(subject.model).__name__}",
            location=sources.of_object(type(subject.model).forward),
            observed=observed,
            cause="the output depends on a value that is not a parameter, buffer or attribute",
            because="two instances with equal state dicts give different outputs for equal inputs and seeds",
            fix="keep every random or learned value in a parameter or a persistent buffer",
        )
    return _loses(lost, confirmed, subject, observed, distance)


def _loses(
    lost: list[Lost], confirmed: bool, subject: Subject, observed: str, distance: float
) -> Finding:
    """Explain what a checkpoint loses, by name."""
    lost = list({each.name: each for each in lost}.values())
    first = lost[0]
    names = listed([each.name for each in lost])
    word = first.name.rpartition(".")[2]
    cause, fix = {
        "buffer": (
            f"{first.name} is a buffer with persistent=False, and its values differ between instances",
            f'register_buffer("{word}", ..., persistent=True)',
        ),
        "tensor": (
            f"{first.name} is a plain tensor, neither parameter nor buffer, and its values differ between instances",
            f'write self.register_buffer("{word}", ...)',
        ),
        "parameter": (
            f"{first.name} is not registered, so state_dict() does not hold it",
            "hold it in an nn.ModuleList, ModuleDict, ParameterList or an attribute of its own",
        ),
        "attribute": (
            f"{first.name} is a plain attribute that differs between instances ({first.detail})",
            f"derive {word} from the arguments of __init__, or save it by get_extra_state",
        ),
    }[first.kind]
    because = (
        f"with {names} copied too, the outputs are equal"
        if confirmed
        else f"the two instances differ in {names}, and state_dict() does not hold it"
    )
    line = on_line(first.location)
    trained = {holding.path for holding in hidden(subject).trained.values()}
    # a module hidden in a list that gets no gradient is hidden on purpose, and has a checkpoint of
    # its own
    meant = all(each.kind == "parameter" and each.name not in trained for each in lost)
    if given := all(given_to_init(subject.model, each.name) for each in lost):
        cause = f"{first.name} is an argument of __init__ that differs between the two instances"
        fix = f"build the model with the same {word} before loading; or {fix}"
    made = suspicious if meant or given else violated
    return made(
        "state-lost",
        f"a checkpoint loses {names}",
        culprits=[
            Culprit(
                "buffer" if each.kind == "buffer" else "tensor",
                each.name,
                each.detail,
                each.location,
            )
            for each in lost[:6]
        ],
        observed=observed,
        cause=cause,
        because=because,
        fix=f"{fix}{line}",
        root=_root(subject, [each.name for each in lost]),
        evidence={"difference": distance, "lost": [each.name for each in lost]},
    )


def _root(subject: Subject, names: list[str]) -> str | None:
    """Return the finding of another check that has already named the same attributes."""
    trained = hidden(subject).trained
    for holding in trained.values():
        if any(name.startswith(holding.path) for name in names):
            return f"registration/{'module' if holding.kind == 'module' else 'parameter'}-hidden"
    seen = subject.cache.get("portability")
    if isinstance(seen, Portability):
        strays = {m.stray.name for m in seen.pretended.mixtures if m.stray is not None}
        if strays & set(names):
            return "device-portability/cpu-tensor"
    return None
