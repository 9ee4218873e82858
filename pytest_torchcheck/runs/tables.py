"""What a reader wants to look at: every parameter with its gradient, every layer with what it gave."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..probes.numbers.activations import watch_activations
from ..subject.errors import SubjectError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..subject import Subject
    from ..subject.gradients import GradStat

MOST = 500
"""Rows of a table that a report keeps."""


def parameter_rows(subject: Subject, stats: Mapping[str, GradStat]) -> list[dict[str, Any]]:
    """Return a row for every parameter: shape, dtype, device, elements and the norm of its gradient.

    Args:
        subject: The model.
        stats: Its gradients, by name; a parameter that is not among them requires none.

    Returns:
        Plain rows, the last of which counts them all.
    """
    rows: list[dict[str, Any]] = []
    trainable = total = 0
    for name, parameter in subject.named_parameters().items():
        size, stat = parameter.numel(), stats.get(name)
        total += size
        trainable += size if stat is not None else 0
        rows.append(
            {
                "parameter": name,
                "shape": list(parameter.shape),
                "dtype": str(parameter.dtype).removeprefix("torch."),
                "device": str(parameter.device),
                "elements": size,
                "gradient norm": "frozen"
                if stat is None
                else "none"
                if stat.kind == "none"
                else stat.norm,
            }
        )
    counted = {
        "parameter": f"{len(rows)} in all",
        "elements": total,
        "gradient norm": f"{trainable} elements are trainable",
    }
    return [*rows[:MOST], counted]


def layer_rows(subject: Subject, run: Callable[[], object]) -> list[dict[str, Any]]:
    """Run once more and return a row for every output of every module, in the order in which they returned.

    Args:
        subject: The model, inside :meth:`~pytest_torchcheck.subject.Subject.pristine`.
        run: Forward, loss and backward.
    """
    try:
        seen = watch_activations(run, subject.model)
    except (SubjectError, RuntimeError):
        return []  # a table is no verdict: what raises here is told by the check itself
    return [
        {
            "module": row.module or "the model",
            "kind": row.module_class,
            "shape": list(row.shape),
            "dtype": row.dtype,
            "low": row.low,
            "high": row.high,
            "mean": row.mean,
            "std": row.std,
            "gradient": row.gradient_rms,
            "not finite": row.nonfinite,
            "histogram": list(row.histogram),
        }
        for row in seen[:MOST]
    ]
