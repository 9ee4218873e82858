"""Ordinary batch normalisation in place of one that gathers its statistics over ranks."""

from __future__ import annotations

import torch
from torch import nn


def plain(model: nn.Module) -> nn.Module:
    """Put torch's ordinary batch normalisation, with the same tensors, where statistics were gathered."""
    for name, module in list(model.named_modules()):
        if not isinstance(module, nn.SyncBatchNorm):
            continue
        made = _AnyBatchNorm(
            module.num_features, module.eps, module.momentum, module.affine, module.track_running_stats
        )  # fmt: skip
        made._parameters, made._buffers, made.training = (
            module._parameters,
            module._buffers,
            module.training,
        )
        if not name:
            return made
        owner, _, last = name.rpartition(".")
        setattr(model.get_submodule(owner), last, made)
    return model


class _AnyBatchNorm(nn.modules.batchnorm._BatchNorm):
    """Batch normalisation of any number of dimensions, as the synchronised one takes."""

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected at least 2 dimensions; got {input.dim()}")
