"""What a benchmark of a contract repeats: forward, inference or a training step, with the device's work awaited."""

from __future__ import annotations

import contextlib
import platform
from typing import TYPE_CHECKING, Any, Final, Literal

import torch

from ..state import isolated, seed_everything
from ..subject import Subject
from .snapshot import costs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..contracts import Contract

Kind = Literal["forward", "inference", "training-step"]
KINDS: Final[tuple[Kind, ...]] = ("forward", "inference", "training-step")


@contextlib.contextmanager
def timed(
    contract: Contract, kind: Kind, *, device: str, dtype: str | None, seed: int
) -> Iterator[tuple[Callable[[], Any], dict[str, Any]]]:
    """Give what is to be repeated on the base batch, and what is known of it; the model is put back afterwards.

    Args:
        contract: With a model and batches.
        kind: ``forward`` in training mode with a graph, ``inference`` in evaluation mode without one, or
            ``training-step``: the contract's own, else forward, loss, backward and the optimizer's step.
        device: Where.
        dtype: Floating dtype, None for the model's own.
        seed: Decides weights and batch.

    Raises:
        SubjectError: The model cannot be built, or the batch not made.
    """
    subject = Subject(contract, device=device, dtype=dtype, seed=seed)
    try:
        with isolated(), subject.pristine(steps=True) as model:
            batch = subject.batch().clone()
            seed_everything(seed)
            model.train(kind != "inference")
            optimizer = subject.make_optimizer(model) if kind == "training-step" else None

            def once() -> None:
                if optimizer is not None:
                    subject.train_step(model, optimizer, batch)
                else:
                    with torch.set_grad_enabled(kind == "forward"):
                        subject.call(model, batch)
                if subject.device.type != "cpu":
                    torch.accelerator.synchronize(subject.device)

            symbol = subject.source.batch_symbol
            samples = batch.sizes.get(symbol, 0) if symbol is not None else 0
            yield once, _facts(subject, samples)
    finally:
        subject.close()


def _facts(subject: Subject, samples: int) -> dict[str, Any]:
    """Return what a benchmark file keeps beside the times: plain types."""
    measured = costs(subject)
    return {
        "parameters": measured["parameters"],
        "training_flops": measured.get("flops"),
        "training_peak_bytes": measured.get("peak_bytes"),
        "samples": samples,
        "device": str(subject.device),
        "threads": torch.get_num_threads(),
        "torch": str(torch.__version__),
        "python": platform.python_version(),
    }
