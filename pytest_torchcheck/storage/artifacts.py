"""The batch of a failure, kept on disk: plain tensors and containers, so that loading it runs no code."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import io
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import torch

from ..batches import Batch, BatchSource
from ..findings import strict_json
from ..lean import dataclass
from ..text.printable import message_of
from .files import write_whole

if TYPE_CHECKING:
    from pathlib import Path

    from ..contracts import Contract
    from ..findings import Finding

_FORMAT: Final = 1
_LONGEST_NAME: Final = 200  # file systems take 255 bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """A saved failure.

    Attributes:
        contract: Name of the contract.
        check: Name of the check that failed.
        device, dtype: What it failed on, such as ``cpu`` and ``float32``.
        seed: Decided every random choice.
        batch: What the model was given.
    """

    contract: str
    check: str
    device: str
    dtype: str
    seed: int
    batch: Batch


def path_of(folder: Path, contract: str, case: str) -> Path:
    """Return the file of a case's batch; its report is beside it, with the ending ``.json``."""
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", f"{contract}-{case}").strip("-")
    if len(name) > _LONGEST_NAME:
        digest = hashlib.sha256(name.encode()).hexdigest()[:12]
        name = f"{name[: _LONGEST_NAME - 13]}-{digest}"
    return folder / f"{name}.pt"


def save(path: Path, artifact: Artifact, findings: Sequence[Finding]) -> str:
    """Write a failure's batch and its findings.

    Args:
        path: Where the batch goes, see :func:`path_of`.
        artifact: What to keep; tensors are written from the CPU.
        findings: What was found.

    Returns:
        Why the batch is not there, or an empty text: the folder or disk takes no file, or the batch
        holds objects of other kinds than tensors, numbers, text and containers of them, which
        cannot be loaded without running code. A batch of an earlier run is removed then.
    """
    told = strict_json([finding.to_dict() for finding in findings], default=str)
    report = path.with_suffix(".json")
    try:
        write_whole(report, told + "\n")
    except OSError as error:
        return f"{report} cannot be written: {error.strerror or error}"
    batch = artifact.batch.to(device="cpu")
    data = {
        "format": _FORMAT,
        **{
            name: getattr(artifact, name)
            for name in ("contract", "check", "device", "dtype", "seed")
        },
        "args": tuple(map(_detached, batch.args)),
        "kwargs": _detached(dict(batch.kwargs)),
        "targets": _detached(batch.targets),
        "sizes": dict(batch.sizes),
    }
    written = io.BytesIO()
    try:
        torch.save(data, written)
        written.seek(0)
        torch.load(written, weights_only=True)
    except Exception as error:  # anything may refuse to be pickled, in its own words
        _remove(path)
        foreign = _foreign((data["args"], data["kwargs"], data["targets"]))
        if foreign is not None:
            return f"it holds a {foreign.__name__}, which cannot be loaded without running its code"
        return f"{type(error).__name__}: {message_of(error).partition(chr(10))[0]}"
    try:
        write_whole(path, written.getbuffer())
    except OSError as error:
        _remove(path)
        return f"{path} cannot be written: {error.strerror or error}"
    return ""


def _remove(path: Path) -> None:
    """Remove the batch of an earlier run, which is not that of these findings; a device stays."""
    with contextlib.suppress(OSError):
        if path.is_file():
            path.unlink()


def load(path: Path) -> Artifact:
    """Read a failure back, with ``weights_only=True``.

    Raises:
        ValueError: The file was not written by :func:`save`.
    """
    saved = path.with_suffix(".pt")
    if path != saved and saved.exists():
        raise ValueError(f"{path} holds no batch; it is in the file beside it: {saved}")
    try:
        data = torch.load(path, weights_only=True)
        if data["format"] != _FORMAT:
            raise ValueError(f"its format is {data['format']}")
        batch = Batch(
            args=tuple(data["args"]),
            kwargs=dict(data["kwargs"]),
            targets=data["targets"],
            sizes=dict(data["sizes"]),
            origin="real",
        )
        fields = {name: data[name] for name in ("contract", "check", "device", "dtype", "seed")}
        return Artifact(batch=batch, **fields)
    except Exception as error:  # a file may hold anything
        raise ValueError(f"{path} is no batch that torchcheck has saved: {error}") from None


def with_batch(contract: Contract, batch: Batch) -> Contract:
    """Return the contract with this batch as its real data; what else it declares stays."""
    made = copy.copy(contract)
    made.__dict__.pop("has_targets", None)  # cached for the data before
    made.batch = batch
    made.source = BatchSource(
        contract.inputs, contract.targets, contract.sizes, batch, contract.batch_dim
    )
    return made


def _detached(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach()
    if isinstance(value, Mapping) and type(value) is dict:
        return {key: _detached(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(_detached, value))
    return value


def _foreign(value: Any) -> type | None:
    """Return the first type that is neither a tensor, a plain value nor a container of such."""
    if value is None or isinstance(value, torch.Tensor | bool | int | float | complex | str):
        return None
    if type(value) is dict:
        value = list(value.values())
    if type(value) in (list, tuple):
        return next((found for item in value if (found := _foreign(item)) is not None), None)
    return type(value)
