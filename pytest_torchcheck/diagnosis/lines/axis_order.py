"""Operations over the wrong axes: views in the place of a transpose, and softmax over another dimension."""

from __future__ import annotations

import itertools
import operator
from typing import TYPE_CHECKING

from ...explanation import on_line
from ...findings import Culprit
from ...probes.numbers.views import order
from ...verdicts import suspicious, violated

if TYPE_CHECKING:
    from ...findings import Finding
    from ...probes.numbers.grouped import Regrouped
    from ...probes.numbers.signal_facts import Averaging
    from ...probes.numbers.views import Moved
    from ...runs.window_weights import Uncounted


def axes_swapped(wrong: list[Moved]) -> Finding:
    """Explain views after which a dimension has its size at another place, and other elements."""
    one = wrong[0]
    others = {(o.module, o.location) for o in wrong} - {(one.module, one.location)}
    more = f"; so do {len(others)} more" if others else ""
    modules = dict.fromkeys(w.module or "the model" for w in wrong)
    return violated(
        "axes-swapped",
        f"{one.name} gives dimension {one.now} the size of dimension {one.was}, but not its elements",
        culprits=[
            *(Culprit("module", name, location=one.location) for name in list(modules)[:3]),
            Culprit("call", one.name, "divides the elements anew", one.location),
        ],
        observed=f"{list(one.given)} is read as {list(one.made)}{more}",
        cause=f"the {one.name}{on_line(one.location)} takes the place of a transpose: it keeps the elements "
        "in their order and divides them anew",
        because=f"dimension {one.was} has {one.given[one.was]} entries, and so has dimension {one.now} of the result, "
        f"but each of these holds elements of several of those",
        fix=transposing(one),
    )


def transposing(one: Moved) -> str:
    """Return the edit; exact only where each dimension of one shape is made of whole ones of the other."""
    before = order(one.given, one.made)
    if before is not None and _merged(one.given, before, one.made):
        return f"write {_call(before)} before the {one.name}"
    after = order(one.made, one.given)
    if after is not None and _merged(one.made, after, one.given) and _places(one) == 1:
        back = tuple(after.index(axis) for axis in range(len(after)))
        return (
            f"give the {one.name} its sizes in the order in which the elements lie, "
            f"and write {_call(back)} after it"
        )
    return (
        f"move the dimensions with transpose() or permute() to where the {one.name} names them; "
        "reshape and view do not"
    )


def _places(one: Moved) -> int:
    """Return how many dimensions of the result have the size of the one that was moved."""
    return one.made.count(one.given[one.was])


def _merged(given: tuple[int, ...], way: tuple[int, ...], made: tuple[int, ...]) -> bool:
    """Say whether a view of the dimensions in this order merges whole ones, and splits none."""
    ends = set(itertools.accumulate((given[axis] for axis in way), operator.mul))
    return ends.issuperset(itertools.accumulate(made, operator.mul))


def _call(way: tuple[int, ...]) -> str:
    moved = [axis for axis, other in enumerate(way) if axis != other]
    if len(moved) == 2:
        return f".transpose({moved[0]}, {moved[1]})"
    return f".permute{way}"


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


def regrouped(wrong: list[Regrouped]) -> Finding:
    """Explain attention over the edges of a graph that is normalised at the other end; a diffusion is so on purpose."""
    one = wrong[0]
    modules = dict.fromkeys(w.module or "the model" for w in wrong)
    return suspicious(
        "softmax-axis",
        "weights of edges sum to one at one end, and are summed at the other",
        culprits=[
            *(Culprit("module", name, location=one.made) for name in list(modules)[:3]),
            Culprit("call", "sum", "takes the weights", one.location),
        ],
        location=one.made or one.location,
        observed=f"{one.entries} edges; the weights summed for a node add up to {one.low:.3g} to {one.high:.3g}",
        cause="the weights are normalised by the other row of the edges than the one by which they are summed: right "
        "where each node spreads what it has, wrong where each one averages its neighbours",
        because=f"divided by the sums of their groups{on_line(one.made)} they add up to one in each; the sum"
        f"{on_line(one.location)} is over groups of the other row, where an average needs weights that add up to one",
        fix=f"normalise them{on_line(one.made)} by the index that the sum{on_line(one.location)} takes",
    )


def uncounted(found: Uncounted) -> Finding:
    """Explain an average over windows that divides a weighted sum by plain counts."""
    average = found.average
    made = violated if found.certain else suspicious
    return made(
        "weights-uncounted",
        f"{average.total} sums weighted windows, and {average.count}, which divides it, counts windows",
        culprits=[
            Culprit("tensor", average.count, "adds the same number everywhere", found.counted),
            Culprit("tensor", average.total, "adds weighted windows", found.added),
            Culprit("call", "div", "divides one by the other", found.divided),
        ],
        location=found.counted,
        observed=f"for predictions that are 1 everywhere, the average{on_line(found.divided)} is {found.low:.3g} to "
        f"{found.high:.3g} where {'most' if found.certain else 'equally many'} windows meet",
        cause=f"{average.total} adds each of {found.windows} windows times weights{on_line(found.added)}, and "
        f"{average.count} adds {found.number:g} at each place of a window",
        because="a weighted mean of ones is 1, whatever the weights, where the divisor sums the same weights",
        fix=f"let {average.count}{on_line(found.counted)} add the weights by which {average.total} is multiplied"
        f"{on_line(found.added)}",
    )
