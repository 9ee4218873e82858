"""Why a product of normalised vectors gives no cosines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...explanation import on_line
from ...findings import Culprit, Finding
from ...verdicts import violated

if TYPE_CHECKING:
    from ...probes.loss.unit_vectors import OtherAxis


def cosine_axis(found: OtherAxis) -> Finding:
    """Explain unit vectors that meet vectors of length one over another dimension."""
    place, product = found.made.location, found.product.location
    name, low, high = found.made.name, *found.lengths
    taken = found.product.name.rpartition(".")[2]
    negative = found.summed - len(found.shape)
    return violated(
        "cosine-axis",
        f"{name} gives {list(found.shape)} length one over dimension {found.over}; the product sums over "
        f"dimension {found.summed}",
        culprits=[
            Culprit("call", name, f"length one over dimension {found.over}", place),
            Culprit("call", taken, f"sums over dimension {found.summed}", product),
        ],
        location=place,
        observed=f"over dimension {found.summed} its lengths range from {low:.3g} to {high:.3g}; those of the other "
        "factor are 1",
        cause=f"the vectors are normalised over another dimension than the one of their features{on_line(place)}, so "
        "that the product gives no cosines, and one vector changes the length of the others",
        because=f"both factors of {taken}{on_line(product)} are normalised, and only the vectors of the other one have "
        "length one where the product sums",
        fix=f"give {name} dim={negative}{on_line(place)}"
        if name.endswith("normalize") and found.direct
        else f"take the lengths over the dimension that the product sums over{on_line(place)}",
    )
