"""The loss scale: the contract is kernels/ops/scaler.h."""

from halfstep import _C
from halfstep._compat import increment_version, torch
from halfstep._ops.layout import common_rows, is_plain

_LARGEST_INTERVAL = 2**31 - 1  # what an int32 growth_tracker can count to


def check(grads, scale, found_inf):
    """Sets found_inf to 1 when a gradient is not finite; with a scale, divides them all by it.

    grads: tensors on found_inf's device, of any strides; float64 and complex ones are torch's to
        check.
    """
    grads, others = _by_kernel(grads)
    rows, copied = list(grads), []
    for i, g in enumerate(grads):
        if not is_plain(g):
            (rows[i],), copies = common_rows([g])
            copied += copies
    _C.scaler_check(rows, scale, found_inf)
    increment_version([found_inf])
    if scale is not None:
        for g, copy in copied:
            g.copy_(copy)
        increment_version(grads)
    for g in others:
        _check_by_torch(g, scale, found_inf)


def _by_kernel(grads):
    """The gradients that the kernel takes, and the others."""
    dtypes = (torch.float32, torch.float16, torch.bfloat16)
    others = [g for g in grads if g.dtype not in dtypes]
    return ([g for g in grads if g.dtype in dtypes], others) if others else (grads, others)


def _check_by_torch(g, scale, found_inf):
    with torch.no_grad():
        if scale is not None:
            g.div_(scale)
        found_inf.masked_fill_(~g.isfinite().all(), 1.0)


def update(
    scale,
    growth_tracker,
    found_inf,
    growth_factor,
    backoff_factor,
    growth_interval,
    min_scale,
    max_scale,
):
    """Moves scale and growth_tracker by the rule in the contract."""
    interval = min(growth_interval, _LARGEST_INTERVAL)
    _C.scaler_update(
        scale,
        growth_tracker,
        found_inf,
        growth_factor,
        backoff_factor,
        interval,
        min_scale,
        max_scale,
    )
    increment_version([scale, growth_tracker])
