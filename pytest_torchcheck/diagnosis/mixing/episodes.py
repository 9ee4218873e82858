"""Rewards of one episode that count in the episode before it, explained."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...explanation import on_line
from ...findings import Culprit
from ...verdicts import violated

if TYPE_CHECKING:
    from ...findings import Finding
    from ...runs.training.episodes import AcrossEnd


def across_end(found: AcrossEnd) -> Finding:
    """Explain a number of one episode that holds rewards of the next one."""
    line, name = on_line(found.location), found.carried or "the result"
    late, step, early = found.step + 1, found.step, found.early
    at = found.written.format
    culprits = [Culprit("tensor", name, "holds rewards of two episodes", found.location)]
    culprits.append(Culprit("tensor", found.ends, "does not cut between them", found.read))
    read = on_line(found.read)
    why = (
        "when the last flag is turned, the last step's own number changes: "
        f"a flag of {found.ends} is that of its own step"
    )
    if found.way == "shifted":
        cause = f"step t is cut by the flag of step t + 1{read}, so that an end lets the next episode through"
        fix = f"cut step t by {found.ends} of step t{read}"
    elif found.way == "inverted":
        cause = f"{found.ends} is used the wrong way round{read}: it cuts where an episode goes on"
        fix = f"multiply what is carried from the step after by ({found.goes_on}) of the step"
    else:
        cause = f"what is carried from step t + 1 to step t is not multiplied by {found.goes_on} of step t"
        why = "rewards of earlier steps and of other columns do not change it, so it is no mean or normalisation"
        fix = f"multiply what is carried from the step after by ({found.goes_on}) of the step{line}"
    return violated(
        "reward-across-end",
        f"{name} carries rewards back across the end of an episode{line}",
        culprits=culprits,
        location=found.read or found.location,
        observed=f"{found.ends}{at(step)} ends an episode, and {found.rewards}{at(late)}, a reward of the next one, "
        f"changes what is computed for step {early}",
        cause=cause,
        because=f"the number for step {early} changes with {found.rewards}{at(early)} and with "
        f"{found.rewards}{at(late)}; {why}",
        fix=fix,
        evidence={"step": step, "early": early, "way": found.way},
    )
