"""Why two instances of one factory are not apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ... import sources
from ...culprits import parameter
from ...explanation import listed
from ...findings import Culprit, Finding
from ...verdicts import suspicious, violated

if TYPE_CHECKING:
    from ...subject import Subject


def instances_share(subject: Subject, names: list[str]) -> Finding:
    """Report tensors that two instances keep in the same memory though training writes to them."""
    place = sources.of_parameter(subject.model, names[0])
    own = (
        place is None or sources.rank(place.file) == 2
    )  # a library may share by design, as Pyro's store of parameters
    return (violated if own else suspicious)(
        "factory-repeats",
        f"two models that the factory builds share the memory of {listed(names)}",
        culprits=[parameter(subject, name, "shared by instances") for name in names[:6]],
        location=place,
        observed=f"{names[0]} of both has one address in memory; their modules are not the same objects",
        cause="its values are made once (a default argument, an attribute of the class, a global), not for "
        "each instance",
        because="training writes to this memory, so that a step of one model changes the other",
        fix=f"make {names[0]} in __init__, or copy the values there: .clone()",
        evidence={"parameters": names},
    )


def reads_last_instance(subject: Subject, names: list[str], by: float) -> Finding:
    """Report a model that computes with what belongs to the instance that was built last."""
    kind = type(subject.model).__name__
    return violated(
        "factory-repeats",
        f"the outputs of one {kind} depend on {listed(names)} of the one that was built last",
        culprits=[Culprit("parameter", name, "of another instance") for name in names[:6]],
        location=sources.of_own_class(subject.model),
        observed=f"other values there change the first model's output by {by:.3g}",
        cause="a global, or an attribute of a class, holds what belongs to one instance; the next one replaces it",
        because="only tensors of the second instance were changed, which the first one does not hold",
        fix="let each instance hold what it uses as an attribute of its own",
        evidence={"parameters": names},
    )
