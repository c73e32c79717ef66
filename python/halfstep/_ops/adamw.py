"""AdamW: the contract is kernels/ops/adamw.h."""

from halfstep import _C
from halfstep._compat import Tensor, increment_version
from halfstep._ops.layout import common_rows, may_overlap

_NAMES = ("param", "grad", "exp_avg", "exp_avg_sq", "half")


class Step:
    """One step over lists of tensors on one device, of any strides; gradients are off.

    Only run() writes. It checks everything before it does; check() makes the same checks alone, for
    a caller with several steps of which all are to run or none.

    halves: None, or for each parameter its 16-bit copy or None. scale: the unscaled gradients are
    written back. lr_tensor: read instead of lr.
    """

    def __init__(
        self,
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
        lists = [list(params), list(grads), list(exp_avgs), list(exp_avg_sqs)]
        if halves is not None:
            lists.append(list(halves))
        self._written = [*params, *exp_avgs, *exp_avg_sqs, *steps]
        if scale is not None:
            self._written += grads
        if halves is not None:
            self._written += [t for t in halves if t is not None]
        self._copied = _to_rows(lists)
        p, g, m, v, *half = lists
        self._arguments = (
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

    def check(self):
        _C.adamw_check(*self._arguments)

    def run(self):
        _C.adamw(*self._arguments)
        written_ids = {id(t) for t in self._written} if self._copied else ()
        for t, copy in self._copied:
            if id(t) in written_ids:
                t.copy_(copy)
        increment_version(self._written)


def step(*arguments, **options):
    """Makes a Step of these and runs it."""
    Step(*arguments, **options).run()


def _to_rows(lists):
    """Puts rows of one order in place of what is not row-major; returns (tensor, copy) pairs."""
    copied = []
    for i, item in enumerate(zip(*lists, strict=True)):
        if _are_plain(*item):
            continue
        for name, t in zip(_NAMES, item, strict=False):
            if t is not None or name != "half":
                _check_like(name, t, item[0], i)
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
        and isinstance(m, Tensor)
        and m.is_contiguous()
        and isinstance(v, Tensor)
        and v.is_contiguous()
        and not g.is_neg()
        and (half is None or half.is_contiguous())
    )


def _check_like(name, t, p, i):
    """What C cannot see any more once t is a row of a copy."""
    if not isinstance(t, Tensor):
        raise TypeError(f"adamw: {name}[{i}] is a {type(t).__name__}, expected a tensor")
    if t.shape != p.shape:
        raise ValueError(
            f"adamw: {name}[{i}] has shape {tuple(t.shape)}, param[{i}] has shape {tuple(p.shape)}"
        )
    if t.device != p.device:
        raise ValueError(f"adamw: {name}[{i}] is on {t.device}, param[{i}] is on {p.device}")
    if may_overlap(t):
        raise ValueError(
            f"adamw: {name}[{i}] has shape {tuple(t.shape)} and strides {t.stride()}, by which "
            "elements may share memory; expected one place for each"
        )
