"""Small configurations of public models, with what their users would declare: a batch and a loss.

`python -m tests.models.zoo` lists them, `python -m tests.models.zoo NAME` holds one to the default
checks (`--plain` runs one plain training step only).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

# a function returns the fields of a contract; its libraries are imported when it is called
ZOO: dict[str, Callable[[], dict[str, Any]]] = {}

TRUE: dict[str, dict[str, str]] = {
    "brevitas.quantised": {
        "grad-zero": "the scale is multiplied by 0 while statistics are collected",
        "grad-none": "the same",
    },
    "brevitas.quantised_convolution": {"grad-zero": "the same"},
    "deepctr.autoint": {
        "copy-after-training": "copy.deepcopy raises after a training step: scores keep their graph"
    },
    "deepctr.xdeepfm": {
        "grad-zero": "at the library's own seed all biases before the first rectifier are negative",
        "weight-static": "the same",
    },
    "diffusers.autoencoder_tiny": {"grad-none": "forward rounds the code to bytes"},
    "diffusers.sd3": {"grad-zero": "the last block's text queries are dropped"},
    "lightly.dino": {"eval-writes": "the loss moves its centre in either mode"},
    "lightly.memory_bank": {"state-lost": "the bank is a buffer with persistent=False"},
    "memorizing_transformers.memorizing": {"grad-zero": "no second segment reads the memory"},
    "monai.segres": {"grad-none": "the layer of the deviation is built where it is not asked for"},
    "monai.unetr": {"grad-none": "the blocks' cross attention is built and not called"},
    "normflows.residual_flow": {"grad-none": "the number of terms is drawn by NumPy"},
    "pytorch_forecasting.n_beats": {
        "grad-none": "what the last block leaves of the past is not used"
    },
    "pyro.guide": {"cpu-tensor": "the prior's tensors stay on the CPU"},
    "segmentation_models.manet": {
        "axes-swapped": "the attention's map is reshaped to channels first, without a permute"
    },
    "segmentation_models.pspnet": {"grad-none": "the encoder is built deeper than it is used"},
    "segmentation_models.unet_plus": {"grad-none": "the encoder is built deeper than it is used"},
    "timm.levit_128s": {
        "stale-after-load": "the biases are cached in eval mode, and a load does not clear them"
    },
    "titans_pytorch.neural_memory": {"grad-none": "a template; copies of it are trained"},
    "transformers.bigbird": {"grad-none": "the pooler's output is not used"},
    "transformers.canine": {"grad-none": "the classifier reads the pooled token alone"},
    "transformers.bros": {"grad-none": "token classification does not use the pooler"},
    "transformers.conditional_detr": {
        "grad-zero": "the queries of the first decoder layer are zeros",
        "weight-static": "the same",
    },
    "transformers.decision": {
        "grad-none": "the heads of states and returns are in no loss",
        "weight-static": "the same",
        "input-ignored": "the rewards are not read",
    },
    "transformers.doge": {
        "samples-mixed": "the router's logits are split by a view across tokens",
        "batch-size-dependent": "the same",
    },
    "transformers.dpt": {
        "grad-none": "the last norm is not used",
        "weight-static": "the same",
    },
    "transformers.encodec": {
        "grad-none": "codes are indices, without an estimator",
        "grad-zero": "the codebook starts at zero",
        "weight-static": "both",
        "input-ignored": "the codebook starts at zero",
        "overfit-stuck": "the codebook starts at zero",
    },
    "torch_geometric.heterogeneous": {
        "grad-none": "the last layer's output for items is not used, nor are its skips",
        "grad-zero": "the same",
        "weight-static": "the same",
    },
    "transformers.encoder_decoder": {"grad-none": "the encoder's pooler is not used"},
    "transformers.esm": {"grad-none": "the contact head is built and not called"},
    "transformers.funnel": {
        "grad-zero": "the last block reads the class token, whose positions are masked",
        "weight-static": "the same",
    },
    "transformers.ibert": {
        "grad-none": "the bias of a quantised norm is read through .data",
        "grad-zero": "the gradient of the positions is exactly zero",
        "weight-static": "the same",
    },
    "transformers.layoutlm": {"grad-none": "token classification does not use the pooler"},
    "transformers.layout_v3": {"grad-none": "relative positions are read under no_grad"},
    "transformers.levit": {
        "stale-after-load": "the biases are cached in eval mode, and a load does not clear them"
    },
    "transformers.luke": {
        "grad-none": "the pooler is not used",
        "grad-zero": "the last block's word queries are dropped",
        "weight-static": "both",
    },
    "transformers.mask2former": {"grad-none": "the backbone's last norm is not used"},
    "transformers.mobile_vit": {
        "signal-vanishes": "the weights of its batch norms are drawn around zero"
    },
    "transformers.prompted_masks": {
        "grad-none": "the backbone runs without gradients, its parameters require them",
        "weight-static": "the same",
    },
    "transformers.recurrent_gemma": {
        "copy-after-training": "copy.deepcopy raises after a training forward: the states keep their graph"
    },
    "transformers.reformer": {
        "grad-none": "the head's own bias is not added",
        "seed-ignored": "the training forward draws its seeds from torch.seed()",
    },
    "transformers.swift_former": {
        "grad-zero": "the softmax of the queries runs over one entry",
        "weight-static": "the same",
    },
    "transformers.visual_question": {
        "grad-none": "what the last block leaves of the picture is not used",
        "grad-zero": "all token types are the padding's",
        "weight-static": "both",
    },
    "vector_quantize.LatentQuantize": {"grad-none": "its values are behind a detach()"},
    "widedeep.attention_over_samples": {
        "samples-mixed": "attention over the samples is what this model is for",
        "batch-size-dependent": "the same",
    },
    "widedeep.tab_net": {
        "input-mutated": "its sparsemax subtracts from its input in place, and marks nothing dirty"
    },
}
"""What plain torch code confirms of a model: code and reason."""


def public(library: str, name: str | None = None) -> Callable[[Any], Any]:
    """Register a function that returns a contract's fields as LIBRARY.FUNCTION."""

    def register(function: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
        ZOO[f"{library}.{name or function.__name__}"] = function
        return function

    return register


def ids(*shape: int, high: int = 50) -> torch.Tensor:
    """Return token ids from 3 on: the first three are special in most vocabularies."""
    return torch.randint(3, high, shape)


def labels(*shape: int, classes: int = 5) -> torch.Tensor:
    """Return class labels."""
    return torch.randint(0, classes, shape)


def over_tokens(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the cross entropy of logits `[B, T, C]` and targets `[B, T]`."""
    return torch.nn.functional.cross_entropy(logits.transpose(1, 2), targets)
