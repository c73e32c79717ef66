"""Softmax cross entropy: the contract is kernels/ops/xent.h."""

from halfstep import _C
from halfstep._compat import empty, empty_like
from halfstep._ops.library import register

# The values of hs_xent_reduction.
REDUCTIONS = {"none": 0, "mean": 1, "sum": 2}


def forward_outputs(logits, target, weight, ignore_index, reduction, smoothing, z_loss, zero):
    """loss (rows,) or (), lse (rows, 2), denominator (2,); float32."""
    rows = logits.shape[0]
    return (
        empty((rows,) if reduction == REDUCTIONS["none"] else (), "float32", logits),
        empty((rows, 2), "float32", logits),
        empty((2,), "float32", logits),
    )


def forward(logits, target, weight, ignore_index, reduction, smoothing, z_loss, zero):
    """Fills forward_outputs. logits: (rows, classes)."""
    options = (ignore_index, reduction, smoothing, z_loss, zero)
    outputs = forward_outputs(logits, target, weight, *options)
    _C.xent_forward(logits, target, weight, *outputs, *options)
    return outputs


def backward_outputs(dloss, logits, *rest):
    return (empty_like(logits),)


def backward(
    dloss,
    logits,
    target,
    weight,
    lse,
    denominator,
    ignore_index,
    reduction,
    smoothing,
    z_loss,
    zero,
):
    """dlogits in the logits' dtype."""
    options = (ignore_index, reduction, smoothing, z_loss, zero)
    return (_C.xent_backward(dloss, logits, target, weight, lse, denominator, ..., *options),)


_OPTIONS = "int ignore_index, int reduction, float smoothing, float z_loss, bool zero"
traced_forward = register(
    "cross_entropy",
    f"(Tensor logits, Tensor target, Tensor? weight, {_OPTIONS}) -> (Tensor, Tensor, Tensor)",
    forward,
    forward_outputs,
)
traced_backward = register(
    "cross_entropy_backward",
    "(Tensor dloss, Tensor logits, Tensor target, Tensor? weight, Tensor lse, Tensor denominator,"
    f" {_OPTIONS}) -> Tensor[]",
    backward,
    backward_outputs,
)
