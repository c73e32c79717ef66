"""AdamW: the contract is kernels/ops/adamw.h."""

from halfstep import _C
from halfstep._compat import increment_version
from halfstep._ops.layout import common_rows


def step(
    params,
    grads,
    exp_avgs,
    exp_avg_sqs,
    steps,
    halves,
    lr_tensor,
    scale,
    found_inf,
    lr,
    beta1,
    beta2,
    eps,
    weight_decay,
    maximize,
):
    """One step over lists of tensors on one device, of any strides; gradients are off.

    halves: None, or for each parameter its 16-bit copy or None. scale: the unscaled gradients are
    written back. lr_tensor: read instead of lr.
    """
    lists = [list(params), list(grads), list(exp_avgs), list(exp_avg_sqs)]
    if halves is not None:
        lists.append(list(halves))
    copied = _to_rows(lists)
    p, g, m, v, *half = lists
    _C.adamw(
        p,
        g,
        m,
        v,
        steps,
        half[0] if half else None,
        lr_tensor,
        scale,
        found_inf,
        lr,
        beta1,
        beta2,
        eps,
        weight_decay,
        maximize,
        scale is not None,
    )
    written = [*params, *exp_avgs, *exp_avg_sqs, *steps]
    if scale is not None:
        written += grads
    if halves is not None:
        written += [t for t in halves if t is not None]
    written_ids = {id(t) for t in written} if copied else ()
    for t, copy in copied:
        if id(t) in written_ids:
            t.copy_(copy)
    increment_version(written)


def _to_rows(lists):
    """Puts rows of one order in place of what is not row-major; returns (tensor, copy) pairs."""
    copied = []
    for i, item in enumerate(zip(*lists, strict=True)):
        if _are_plain(*item):
            continue
        rows, copies = common_rows(item)
        copied += copies
        for tensors, row in zip(lists, rows, strict=True):
            tensors[i] = row
    return copied


def _are_plain(p, g, m, v, half=None):
    """Spelled out: a model has hundreds of parameters, and each step asks for all of them."""
    return (
        p.is_contiguous()
        and g.is_contiguous()
        and m.is_contiguous()
        and v.is_contiguous()
        and not g.is_neg()
        and (half is None or half.is_contiguous())
    )
