"""Torch's global settings: kept, put back, and set for repeatable or exact kernels."""

from __future__ import annotations

import contextlib
import functools
import warnings
from typing import TYPE_CHECKING, Any

import torch
import torch.utils.deterministic

from ..lean import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator


def flags_settable() -> contextlib.AbstractContextManager[None]:
    """Allow the flags of ``torch.backends`` to be set.

    Whoever has imported ``torch.testing._internal.common_utils``, as tests of CUDA extensions do,
    has forbidden it for the whole process; torch's own ``cudnn.flags`` allows it for itself in this
    way.
    """
    allowed: contextlib.AbstractContextManager[None] = getattr(
        torch.backends, "__allow_nonbracketed_mutation"
    )()
    return allowed


@contextlib.contextmanager
def settings_kept() -> Iterator[None]:
    """Put torch's global settings back afterwards."""
    dtype = torch.get_default_dtype()
    device = torch.get_default_device()
    grad = torch.is_grad_enabled()
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    cudnn = torch.backends.cudnn
    flags = (cudnn.enabled, cudnn.benchmark, cudnn.deterministic)
    rounding = Precision.now()
    anomaly = (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled())
    threads = torch.get_num_threads()
    try:
        with warnings.catch_warnings():
            yield
    finally:
        if torch.get_default_dtype() != dtype:
            torch.set_default_dtype(dtype)
        if torch.get_default_device() != device:
            torch.set_default_device(None if device.type == "cpu" else device)
        torch.set_grad_enabled(grad)
        if (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ) != (deterministic, warn_only):
            torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
        if (cudnn.enabled, cudnn.benchmark, cudnn.deterministic) != flags:
            with flags_settable():
                cudnn.enabled, cudnn.benchmark, cudnn.deterministic = flags
        rounding.put_back()
        if (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()) != anomaly:
            torch.autograd.set_detect_anomaly(*anomaly)
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)


def repeatable() -> None:
    """Let a GPU choose the same, deterministic kernels in every run; inside :func:`isolated`.

    Products are rounded as float32 is: cuDNN allows TF32 by default, with which two runs that are to be equal
    differ by a thousandth.
    """
    cudnn = torch.backends.cudnn
    if (cudnn.benchmark, cudnn.deterministic) != (False, True):
        with flags_settable():
            cudnn.benchmark, cudnn.deterministic = False, True
    if torch.backends.cuda.is_built():
        rounded(tf32=False)


def rounded(*, tf32: bool) -> None:
    """Allow or forbid TF32 in products and convolutions, in torch's old settings and its new ones; see `Precision`.

    Both are set: a model that reads the old ones (``torch.backends.cudnn.flags`` does) must find them alike.
    """
    cudnn: Any = torch.backends.cudnn
    with flags_settable():
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        cudnn.allow_tf32 = tf32
        for part in (torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn):
            part.fp32_precision = "tf32" if tf32 else "ieee"


@dataclass(frozen=True, slots=True)
class Precision:
    """How products in float32 may be rounded, as torch's old and new settings have it.

    The old ones (``allow_tf32``, ``set_float32_matmul_precision``) and the new ones
    (``fp32_precision``) are two records of one thing: torch raises where the old are read and the
    two disagree, so that both are kept.

    Attributes:
        new: By backend and kind of operation.
        matmul: The old one of products; None where it could not be read.
        cudnn: The old one of convolutions and recurrent layers; None where it could not be read.
    """

    new: tuple[str, ...]
    matmul: str | None
    cudnn: bool | None

    @classmethod
    def now(cls) -> Precision:
        """Return what is set."""
        _warned_of_old_settings()
        matmul: str | None = None
        cudnn: bool | None = None
        with contextlib.suppress(RuntimeError):
            matmul = torch.get_float32_matmul_precision()
        with contextlib.suppress(RuntimeError):
            cudnn = torch.backends.cudnn.allow_tf32
        return cls(tuple(part.fp32_precision for part in _rounded_parts()), matmul, cudnn)

    def put_back(self) -> None:
        """Set it again where something else is set: the old settings first, since they write the new ones too."""
        now = Precision.now()
        if now == self:
            return
        with flags_settable():
            if self.matmul is not None and now.matmul != self.matmul:
                torch.set_float32_matmul_precision(self.matmul)
            if self.cudnn is not None and now.cudnn != self.cudnn:
                torch.backends.cudnn.allow_tf32 = self.cudnn
            for part, value in zip(_rounded_parts(), self.new, strict=True):
                if part.fp32_precision != value:
                    part.fp32_precision = value


@functools.cache
def _warned_of_old_settings() -> None:
    """Let torch say now, unheard, that its old settings are old: it does so once in a process."""
    with warnings.catch_warnings(), contextlib.suppress(RuntimeError):
        warnings.simplefilter("ignore")
        _ = torch.backends.cuda.matmul.allow_tf32


@functools.cache
def _rounded_parts() -> tuple[Any, ...]:
    """Return what has a setting of its own, the general ones first: theirs are those of parts without."""
    backends: Any = torch.backends
    cudnn, mkldnn = backends.cudnn, backends.mkldnn
    return (
        backends, cudnn, mkldnn, backends.cuda.matmul, cudnn.conv, cudnn.rnn,
        mkldnn.matmul, mkldnn.conv, mkldnn.rnn,
    )  # fmt: skip


@contextlib.contextmanager
def filled_memory() -> Iterator[None]:
    """Let torch fill new memory with NaN while inside, as its deterministic mode does."""
    filling = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    mode, warn = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    # torch.use_deterministic_algorithms would import the compiler first, which takes seconds
    torch._C._set_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch._C._set_deterministic_algorithms(mode, warn_only=warn)
        torch.utils.deterministic.fill_uninitialized_memory = filling  # type: ignore[attr-defined]
