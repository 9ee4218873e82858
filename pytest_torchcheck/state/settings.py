"""Torch's global settings: kept, put back, and set for repeatable or exact kernels."""

from __future__ import annotations

import contextlib
import functools
import warnings
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
import torch.utils.deterministic

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
    before = _Settings.now()
    try:
        with warnings.catch_warnings():
            yield
    finally:
        if (now := _Settings.now()) != before:
            before.put_back(now)


class _Settings(NamedTuple):
    """What is set for the whole process, or for this thread."""

    dtype: torch.dtype
    device: torch.device | None  # None without any mode, where none can be set
    grad: bool
    deterministic: tuple[bool, bool]
    cudnn: tuple[bool, bool, bool]
    rounding: Precision
    anomaly: tuple[bool, bool]
    threads: int

    @classmethod
    def now(cls) -> _Settings:
        """Return what is set."""
        # read around every run: torch's own getters, without the modules of torch.backends before them
        c = torch._C
        return cls(
            torch.get_default_dtype(),
            torch.get_default_device() if c._len_torch_function_stack() else None,
            torch.is_grad_enabled(),
            (c._get_deterministic_algorithms(), c._get_deterministic_algorithms_warn_only()),
            (c._get_cudnn_enabled(), c._get_cudnn_benchmark(), c._get_cudnn_deterministic()),
            Precision.now(),
            (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
            torch.get_num_threads(),
        )

    def put_back(self, now: _Settings) -> None:
        """Set again whatever is set otherwise."""
        if now.dtype != self.dtype:
            torch.set_default_dtype(self.dtype)
        if now.device != self.device:
            plain = self.device is None or self.device.type == "cpu"
            torch.set_default_device(None if plain else self.device)
        torch.set_grad_enabled(self.grad)
        if now.deterministic != self.deterministic:
            enabled, warn_only = self.deterministic
            torch.use_deterministic_algorithms(enabled, warn_only=warn_only)
        if now.cudnn != self.cudnn:
            cudnn = torch.backends.cudnn
            with flags_settable():
                cudnn.enabled, cudnn.benchmark, cudnn.deterministic = self.cudnn
        if now.rounding != self.rounding:
            self.rounding.put_back()
        if now.anomaly != self.anomaly:
            torch.autograd.set_detect_anomaly(*self.anomaly)
        if now.threads != self.threads:
            torch.set_num_threads(self.threads)


def repeatable() -> None:
    """Let a GPU choose the same, deterministic kernels in every run; inside :func:`isolated`.

    Products are rounded as float32 is: cuDNN allows TF32 by default, with which two runs that are to be equal
    differ by a thousandth.
    """
    if (torch._C._get_cudnn_benchmark(), torch._C._get_cudnn_deterministic()) != (False, True):
        cudnn = torch.backends.cudnn
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


_ROUNDED: Final = (
    ("generic", "all"), ("cuda", "all"), ("mkldnn", "all"), ("cuda", "matmul"), ("cuda", "conv"), ("cuda", "rnn"),
    ("mkldnn", "matmul"), ("mkldnn", "conv"), ("mkldnn", "rnn"),
)  # fmt: skip
"""What has a setting of its own, the general ones first: theirs are those of parts without."""


class Precision(NamedTuple):
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
            cudnn = torch._C._get_cudnn_allow_tf32()
        read = torch._C._get_fp32_precision_getter
        return cls(tuple([read(*part) for part in _ROUNDED]), matmul, cudnn)

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
            for part, value in zip(_ROUNDED, self.new, strict=True):
                if torch._C._get_fp32_precision_getter(*part) != value:
                    torch._C._set_fp32_precision_setter(*part, value)


@functools.cache
def _warned_of_old_settings() -> None:
    """Let torch say now, unheard, that its old settings are old: it does so once in a process."""
    with warnings.catch_warnings(), contextlib.suppress(RuntimeError):
        warnings.simplefilter("ignore")
        _ = torch.backends.cuda.matmul.allow_tf32


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
