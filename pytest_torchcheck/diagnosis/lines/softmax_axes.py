"""Softmax weights that sum to one over another dimension than the product that takes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...explanation import on_line
from ...findings import Culprit
from ...verdicts import violated

if TYPE_CHECKING:
    from ...findings import Finding
    from ...probes.numbers.signal_facts import Averaging


def softmax_axis(wrong: list[Averaging]) -> Finding:
    """Explain products whose weights do not sum to one over what they average."""
    one = wrong[0]
    rank = len(one.shape)
    other = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
    modules = dict.fromkeys(w.module or "the model" for w in wrong)
    return violated(
        "softmax-axis",
        f"softmax weights sum to one over dimension {one.normalised - rank}, and are summed over {one.summed - rank}",
        culprits=[
            *(Culprit("module", name, location=one.softmax) for name in list(modules)[:3]),
            Culprit("call", "product", "takes the weights", one.location),
        ],
        location=one.softmax or one.location,
        observed=f"weights {list(one.shape)} of a softmax over dimension {one.normalised - rank}{other}",
        cause="the softmax is taken over the queries, not over the keys that each of them averages",
        because=f"the product{on_line(one.location)} sums over dimension {one.summed - rank}, where the weights "
        "of an average sum to one",
        fix=f"take the softmax over dim={one.summed - rank}",
    )
