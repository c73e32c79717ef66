"""The loss scale: the contract is kernels/ops/scaler.h."""

from halfstep import _C
from halfstep._compat import increment_version
from halfstep._ops.layout import common_rows, is_plain

_LARGEST_INTERVAL = 2**31 - 1  # what an int32 growth_tracker can count to


def check(grads, scale, found_inf):
    """Sets found_inf to 1 when a gradient is not finite; with a scale, divides them all by it.

    grads: tensors on found_inf's device, of any strides.
    """
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
