"""The 16-bit copies of float32 weights that matrix products read under autocast.

Without an opt-in a weight is cast at each use, as torch.autocast does. An optimizer that was told
to (`hs.optim.AdamW(..., weight_copies=True)`) keeps one copy on the parameter and refreshes it in
its own pass. A kept copy is valid while the parameter's version and memory are those it was made
from: loading and in-place operations bump the version, and the copy is made anew. torch's fused
optimizers bump nothing, so the step of any other optimizer drops the copies of its parameters.
Edits through `p.data`, and a captured CUDA graph that steps another optimizer, go unnoticed: this
is why keeping is not the default.
"""

from collections import OrderedDict
from functools import cache

from halfstep._compat import torch

_NAME = "_halfstep_copy"


class _Copy:
    """Hangs on a parameter; pickles and deep-copies to nothing."""

    __slots__ = ("pointer", "tensor", "version")

    def __init__(self):
        self.tensor = None

    def is_fresh(self, p, dtype):
        return (
            self.tensor is not None
            and self.tensor.dtype is dtype
            and self.version == p._version
            and self.pointer == p.data_ptr()
        )

    def mark(self, p):
        self.version, self.pointer = p._version, p.data_ptr()

    def __deepcopy__(self, memo):
        return None

    def __reduce__(self):
        return (OrderedDict, ())


def _kept(p):
    copy = getattr(p, _NAME, None)
    return copy if type(copy) is _Copy else None


def half_of(p, dtype):
    """p in dtype: p itself, its kept copy, or a fresh cast. Detached."""
    if p.dtype is dtype:
        return p
    copy = _kept(p)
    if copy is None or p.is_inference():
        return p.detach().to(dtype)
    if not copy.is_fresh(p, dtype):
        with torch.inference_mode(False):  # the copy outlives the block, and training may use it
            copy.tensor = p.detach().to(dtype)
        copy.mark(p)
    return copy.tensor


def keep_copies(params):
    """From now on each of these parameters keeps the copy that its first use makes."""
    _watch_other_optimizers()
    for p in params:
        if _kept(p) is None:
            setattr(p, _NAME, _Copy())


def copies_for(params):
    """The kept copies, None where a parameter has none; None altogether where there is not one."""
    kept = [_kept(p) for p in params]
    tensors = [
        copy.tensor
        if copy is not None and copy.tensor is not None and copy.is_fresh(p, copy.tensor.dtype)
        else None
        for copy, p in zip(kept, params, strict=True)
    ]
    return tensors if any(t is not None for t in tensors) else None


def mark_refreshed(params, copies):
    """The optimizer wrote these parameters and, where copies holds a tensor, the copy with it."""
    for p, tensor in zip(params, copies, strict=True):
        if tensor is not None:
            _kept(p).mark(p)


@cache
def _watch_other_optimizers():
    from torch.optim.optimizer import register_optimizer_step_post_hook

    register_optimizer_step_post_hook(_drop_copies)


def _drop_copies(optimizer, args, kwargs):
    """After each step of any optimizer; one with _refreshes_copies has called mark_refreshed."""
    if getattr(optimizer, "_refreshes_copies", False):
        return
    for group in optimizer.param_groups:
        for p in group["params"]:
            copy = _kept(p)
            if copy is not None:
                copy.tensor = None
