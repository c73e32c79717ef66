"""Tensors as rows in the order of memory, for ops that treat every element alike.

A channels_last weight is as good as a contiguous one there: nothing is copied for it.
"""

from halfstep._compat import torch


def row(t):
    """t's elements in the order of memory, sharing it; None where t has gaps, overlaps or a sign to
    resolve."""
    if t.is_neg():
        return None
    expected = 1
    for stride, size in sorted(_strides(t)):
        if stride != expected:
            return None
        expected *= size
    return t.as_strided((t.numel(),), (1,))


def common_rows(tensors):
    """One row for each tensor (None stays None), and the pairs (tensor, copy) behind those copied.

    The tensors have one shape, and equal places in all rows belong to one element. A tensor is
    copied when it has gaps or when its strides are not the first one's; who writes to the rows
    copies back.
    """
    order = tensors[0] if row(tensors[0]) is not None else tensors[0].contiguous()
    rows, copied = [], []
    for t in tensors:
        if t is None:
            rows.append(None)
            continue
        shared = row(t) if _strides(t) == _strides(order) else None
        if shared is None:
            copy = torch.empty_like(order, dtype=t.dtype).copy_(t)
            copied.append((t, copy))
            shared = row(copy)
        rows.append(shared)
    return rows, copied


def is_plain(t):
    """t is row-major and holds the values that it shows."""
    return t.is_contiguous() and not t.is_neg()


def may_overlap(t):
    """Whether elements of t can share one place in memory, so that none is written alone.

    They cannot where each axis steps over all that the axes of smaller strides reach.
    """
    reach = 0
    for stride, size in sorted(_strides(t)) if t.numel() else ():
        if stride <= reach:
            return True
        reach += stride * (size - 1)
    return False


def _strides(t):
    """(stride, size) of the axes where the stride means something."""
    return [(stride, size) for stride, size in zip(t.stride(), t.shape, strict=True) if size != 1]
