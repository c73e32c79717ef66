"""The truth: every op in NumPy float64, written from its formula.

Arrays come in as float64 holding values of the tested dtype; results are float64 and not rounded,
but for the one rounding that a contract names (norm's h).
"""

from math import erf, prod, sqrt

import ml_dtypes
import numpy as np


def rounded(a, dtype):
    """a, rounded to the named dtype, as float64."""
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    return np.asarray(a, np.float64).astype(kind).astype(np.float64)


# ---- norm ----
def layer_norm(h, w=None, b=None, eps=1e-5):
    xhat, _ = _normalised(h, eps)
    y = xhat if w is None else xhat * w
    return y if b is None else y + b


def layer_norm_backward(dy, h, w=None, eps=1e-5, dh=0.0):
    """dx, dw, db; dh is what arrives at h by another way. dw and db sum over the leading axes."""
    xhat, rstd = _normalised(h, eps)
    g = dy if w is None else dy * w
    dx = rstd * (g - _row_mean(g) - xhat * _row_mean(g * xhat)) + dh
    rows = tuple(range(h.ndim - 1))
    return dx, (dy * xhat).sum(rows), dy.sum(rows)


def _row_mean(a):
    return a.mean(-1, keepdims=True) if a.shape[-1] else a.sum(-1, keepdims=True)


def _normalised(h, eps):
    centred = h - _row_mean(h)
    rstd = 1 / np.sqrt(_row_mean(centred**2) + eps)
    return centred * rstd, rstd


# ---- act ----
_erf = np.vectorize(erf, otypes=[np.float64])
_TANH_SCALE, _TANH_CUBE = sqrt(2 / np.pi), 0.044715


def act(z, kind):
    if kind is None:
        return z
    if kind == "relu":
        return np.where(z > 0, z, 0 * z)
    if kind == "gelu":
        return z * 0.5 * (1 + _erf(z / sqrt(2)))
    if kind == "gelu_tanh":
        return z * 0.5 * (1 + np.tanh(_TANH_SCALE * (z + _TANH_CUBE * z**3)))
    if kind == "silu":
        return z * _sigmoid(z)
    raise KeyError(kind)


def act_derivative(z, kind):
    if kind is None:
        return np.ones_like(z)
    if kind == "relu":
        return (z > 0).astype(np.float64)
    if kind == "gelu":
        return 0.5 * (1 + _erf(z / sqrt(2))) + z * np.exp(-(z**2) / 2) / sqrt(2 * np.pi)
    if kind == "gelu_tanh":
        t = np.tanh(_TANH_SCALE * (z + _TANH_CUBE * z**3))
        return 0.5 * (1 + t) + 0.5 * z * (1 - t**2) * _TANH_SCALE * (1 + 3 * _TANH_CUBE * z**2)
    if kind == "silu":
        s = _sigmoid(z)
        return s + z * s * (1 - s)
    raise KeyError(kind)


def _sigmoid(z):
    return np.exp(-np.logaddexp(0, -z))


def bias_act(x, b, kind):
    return act(x if b is None else x + b, kind)


def bias_act_backward(dy, x, b, kind):
    """dx, db."""
    dx = dy * act_derivative(x if b is None else x + b, kind)
    return dx, dx.sum(tuple(range(dx.ndim - 1)))


# ---- linear ----
def linear(x, w, b=None, kind=None):
    z = x @ w.T
    return act(z if b is None else z + b, kind)


def linear_backward(dy, x, w, b=None, kind=None):
    """dx, dw, db."""
    z = x @ w.T
    dz = dy * act_derivative(z if b is None else z + b, kind)
    rows = prod(x.shape[:-1])
    flat_dz, flat_x = dz.reshape(rows, w.shape[0]), x.reshape(rows, w.shape[1])
    return dz @ w, flat_dz.T @ flat_x, flat_dz.sum(0)


# ---- xent ----
def cross_entropy(logits, target, **options):
    return _cross_entropy(logits, target, **options)[0]


def cross_entropy_backward(dloss, logits, target, **options):
    """dlogits; dloss has the shape of the loss."""
    _, ce_factor, z_factor, a, wq, softmax, lse, z_loss = _cross_entropy(logits, target, **options)
    dce = (dloss * ce_factor)[:, None]
    dz = (dloss * z_factor)[:, None]
    return dce * (a[:, None] * softmax - wq) + dz * 2 * z_loss * lse[:, None] * softmax


def cross_entropy_soft_backward(dloss, logits, target, weight=None, **options):
    """dtarget and dweight of target probabilities."""
    pieces = _cross_entropy(logits, target, weight, **options)
    ce_factor, lse = pieces[1], pieces[6]
    smoothing = options.get("label_smoothing", 0.0)
    scaled = (dloss * ce_factor)[:, None] * (lse[:, None] - logits)
    q = (1 - smoothing) * target + smoothing / logits.shape[1]
    w = 1 if weight is None else weight
    return scaled * (1 - smoothing) * w, (scaled * q).sum(0)


def _cross_entropy(
    logits,
    target,
    weight=None,
    ignore_index=-100,
    reduction="mean",
    label_smoothing=0.0,
    z_loss=0.0,
    all_ignored="nan",
):
    """The loss and the pieces of its gradient. target: (rows) indices, or (rows, classes)."""
    rows, classes = logits.shape
    top = logits.max(1, keepdims=True, initial=-np.inf)
    lse = (top + np.log(np.exp(logits - top).sum(1, keepdims=True)))[:, 0]
    logp = logits - lse[:, None]
    w = np.ones(classes) if weight is None else weight
    if target.ndim == 1:
        counted = target != ignore_index
        t = np.where(counted, target, 0).astype(np.int64)
        q = (t[:, None] == np.arange(classes)).astype(np.float64)
        row_weight = w[t] * counted
        target_part = (1 - label_smoothing) * q * counted[:, None]
    else:
        counted = np.ones(rows, bool)
        row_weight = np.ones(rows)
        target_part = (1 - label_smoothing) * target
    wq = w * (target_part + label_smoothing / classes * counted[:, None])
    ce, z = -(wq * logp).sum(1), z_loss * lse**2 * counted
    a = wq.sum(1)
    ce_factor, z_factor = np.ones(rows), counted.astype(np.float64)
    if reduction == "mean":
        nothing = not counted.any()
        if nothing:
            fill = np.nan if all_ignored == "nan" else 0.0
            zeros = np.zeros(rows)
            return fill, zeros, zeros, a, wq, np.exp(logp), lse, z_loss
        ce_factor, z_factor = ce_factor / row_weight.sum(), z_factor / counted.sum()
    loss = ce * ce_factor + z * (z_factor if reduction == "mean" else 1)
    total = loss if reduction == "none" else loss.sum()
    return total, ce_factor, z_factor, a, wq, np.exp(logp), lse, z_loss


# ---- dropout ----
def philox(seed, offset, index):
    """Philox4x32-10 of Salmon et al. (SC 2011): (len(index), 4) words of 32 bits."""
    low, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    index = np.asarray(index, np.uint64)
    key = [np.uint64(seed & 0xFFFFFFFF), np.uint64(seed >> 32 & 0xFFFFFFFF)]
    counter = [
        index & low,
        index >> shift,
        np.full_like(index, offset & 0xFFFFFFFF),
        np.full_like(index, offset >> 32 & 0xFFFFFFFF),
    ]
    for _ in range(10):
        first, second = np.uint64(0xD2511F53) * counter[0], np.uint64(0xCD9E8D57) * counter[2]
        counter = [
            (second >> shift) ^ counter[1] ^ key[0],
            second & low,
            (first >> shift) ^ counter[3] ^ key[1],
            first & low,
        ]
        key = [key[0] + np.uint64(0x9E3779B9) & low, key[1] + np.uint64(0xBB67AE85) & low]
    return np.stack(counter, -1).astype(np.uint32)


def dropout_kept(count, p, seed, offset):
    words = philox(seed, offset, np.arange((count + 3) // 4)).reshape(-1)[:count]
    return words >= p * 2.0**32


def dropout(x, p, seed, offset):
    kept = dropout_kept(x.size, p, seed, offset).reshape(x.shape)
    return np.where(kept, x / (1 - p) if p < 1 else 0.0, 0.0)


# ---- adamw and scaler ----
def adamw(p, g, m, v, step, lr, beta1, beta2, eps, weight_decay, scale=1.0, maximize=False):
    """p, m, v after one step; step is the count before it."""
    t = step + 1
    g = (-1 if maximize else 1) * g / scale
    p = p - lr * weight_decay * p
    m = m + (1 - beta1) * (g - m)
    v = beta2 * v + (1 - beta2) * g * g
    p = p - lr / (1 - beta1**t) * m / (np.sqrt(v / (1 - beta2**t)) + eps)
    return p, m, v


def scaler_check(gradients, scale=None):
    """found_inf, and the gradients divided by scale."""
    out = [g if scale is None else g / scale for g in gradients]
    return float(any(not np.isfinite(g).all() for g in out)), out


def scaler_update(
    scale, tracker, found_inf, growth, backoff, interval, min_scale=0.0, max_scale=np.inf
):
    """scale and growth_tracker after one step; scale is a float32 in the end."""
    if found_inf:
        return max(scale * backoff, min_scale), 0
    if tracker + 1 < interval:
        return scale, tracker + 1
    with np.errstate(over="ignore"):
        grown = min(float(np.float32(scale * growth)), max_scale)
    return (grown if np.isfinite(grown) else scale), 0
