"""The ops as functions, under torch.nn.functional's names.

They take torch tensors (with gradients), NumPy arrays (bfloat16 by ml_dtypes) and other arrays that
speak DLPack; for arrays each has a <name>_backward.
"""

from halfstep.functional.act import (
    bias_act,
    bias_act_backward,
    gelu,
    gelu_backward,
    relu,
    relu_backward,
    silu,
    silu_backward,
)
from halfstep.functional.dropout import dropout, dropout_backward
from halfstep.functional.linear import linear, linear_backward
from halfstep.functional.norm import layer_norm, layer_norm_backward
from halfstep.functional.xent import cross_entropy, cross_entropy_backward

__all__ = [
    "bias_act",
    "bias_act_backward",
    "cross_entropy",
    "cross_entropy_backward",
    "dropout",
    "dropout_backward",
    "gelu",
    "gelu_backward",
    "layer_norm",
    "layer_norm_backward",
    "linear",
    "linear_backward",
    "relu",
    "relu_backward",
    "silu",
    "silu_backward",
]
