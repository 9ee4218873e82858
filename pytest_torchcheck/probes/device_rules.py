"""What torch does with tensors on two devices: which functions want one device, and which wait for the GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


ONE_DEVICE = frozenset(
    [
        "add",
        "sub",
        "mul",
        "div",
        "true_divide",
        "truediv",
        "floor_divide",
        "floordiv",
        "fmod",
        "remainder",
        "mod",
        "pow",
        "rsub",
        "radd",
        "rmul",
        "rtruediv",
        "rpow",
        "iadd",
        "isub",
        "imul",
        "itruediv",
        "ipow",
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
        "logical_and",
        "logical_or",
        "logical_xor",
        "and",
        "or",
        "xor",
        "maximum",
        "minimum",
        "max",
        "min",
        "atan2",
        "lerp",
        "addcmul",
        "addcdiv",
        "addmm",
        "addbmm",
        "baddbmm",
        "addmv",
        "matmul",
        "rmatmul",
        "mm",
        "bmm",
        "mv",
        "dot",
        "outer",
        "inner",
        "tensordot",
        "einsum",
        "cross",
        "linear",
        "bilinear",
        "conv1d",
        "conv2d",
        "conv3d",
        "conv_transpose1d",
        "conv_transpose2d",
        "conv_transpose3d",
        "embedding",
        "embedding_bag",
        "gather",
        "take_along_dim",
        "scatter",
        "scatter_add",
        "scatter_reduce",
        "index_select",
        "index_add",
        "index_copy",
        "masked_fill",
        "masked_scatter",
        "where",
        "cat",
        "concat",
        "concatenate",
        "stack",
        "hstack",
        "vstack",
        "dstack",
        "scaled_dot_product_attention",
        "layer_norm",
        "group_norm",
        "batch_norm",
        "instance_norm",
        "rms_norm",
        "prelu",
        "cdist",
        "pairwise_distance",
        "cosine_similarity",
        "grid_sample",
        "l1_loss",
        "mse_loss",
        "smooth_l1_loss",
        "huber_loss",
        "cross_entropy",
        "nll_loss",
        "kl_div",
        "binary_cross_entropy",
        "binary_cross_entropy_with_logits",
        "complex",
        "polar",
        "isclose",
        "allclose",
        "equal",
        "searchsorted",
        "bucketize",
        "clamp",
        "heaviside",
        "logaddexp",
        "hypot",
        "baddbmm",
        "chain_matmul",
        "multi_head_attention_forward",
        "gru",
        "gru_cell",
        "lstm",
        "lstm_cell",
        "rnn_relu",
        "rnn_relu_cell",
        "rnn_tanh",
        "rnn_tanh_cell",
    ]
)
"""Operations that need all their tensors of one or more dimensions on one device."""

PACKED = frozenset(["gru", "lstm", "rnn_relu", "rnn_tanh"])
"""Of these, those whose integers, the batch sizes of a packed sequence, are always on the CPU."""

PLACEHOLDERS = frozenset(["multi_head_attention_forward"])
"""Of these, those to which an empty tensor is given for a weight that they then do not read."""


FIRST_DECIDES = frozenset(
    [
        "expand_as",
        "view_as",
        "reshape_as",
        "copy",
        "setitem",
        "zeros_like",
        "ones_like",
        "full_like",
        "empty_like",
        "rand_like",
        "randn_like",
        "randint_like",
        "new_zeros",
        "new_ones",
        "new_full",
        "new_empty",
        "new_tensor",
        "index_put",
        "put",
    ]
)


EACH_ALONE = frozenset({"broadcast_tensors", "meshgrid", "align_tensors"})


SYNCS: Mapping[str, str] = {
    "item": ".item()", "__float__": "float()", "__int__": "int()", "__bool__": "bool()", "__index__": "an index",
    "__complex__": "complex()", "tolist": ".tolist()", "cpu": ".cpu()", "nonzero": ".nonzero()",
    "unique": ".unique()", "masked_select": ".masked_select()", "__repr__": "print()", "__format__": "a formatted string",
}  # fmt: skip


IMPLICIT_SYNCS = frozenset(
    {
        ".item()",
        "float()",
        "int()",
        "bool()",
        "an index",
        ".tolist()",
        "print()",
        "a formatted string",
    }
)
"""Synchronisations that turn a tensor into a Python number or a text; the others are data-dependent shapes or are spelt out."""
