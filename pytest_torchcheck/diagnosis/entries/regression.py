"""A regression loss whose output has more columns than its targets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..crashes.losses_called import loss_call, target_culprit

if TYPE_CHECKING:
    from ...explanation import Explanation
    from ..crashes.scene import Scene

_REGRESSIONS = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")


def regression_shape(scene: Scene) -> Explanation | None:
    """Explain one target for several columns of an output; None where that is not what a regression loss was given."""
    name, given, target, _ = loss_call(scene, _REGRESSIONS)
    if given is None or target is None or given.shape[:-1] != target.shape:
        return None
    columns = given.shape[-1]
    whole = not target.is_floating_point()
    place = scene.location
    return scene.explain(
        code="target-shape",
        summary=f"{name} received targets {list(target.shape)} for an output {list(given.shape)}",
        observed=f"output {list(given.shape)}, target {list(target.shape)}",
        cause=f"the output has {columns} columns per target"
        + (": class indices need cross_entropy, not a regression loss" if whole else ""),
        fix=(
            f"use cross_entropy{scene.on_line}"
            if whole
            else (
                f"give the model's last layer one output and call .squeeze(-1) on it{scene.on_line}"
            )
        ),
        culprits=target_culprit(str(list(target.shape)), place, scene),
    )
