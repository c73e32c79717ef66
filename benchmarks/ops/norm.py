"""LayerNorm: forward, backward and both; with and without a residual; and host time."""

import torch
import torch.nn.functional as F

import halfstep.functional as hsf
from benchmarks.bench import assert_close, host_times, input_sets
from benchmarks.ops.common import both_directions, compiled, liger

SHAPES = [(16384, 768), (8192, 4096), (4096, 8192)]


def run(table, quick=False):
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for rows, cols in SHAPES[:2] if quick or dtype is not torch.bfloat16 else SHAPES:
            layer_norm(table, rows, cols, dtype)
    residual(table, 8192, 4096, torch.bfloat16)
    host(table)


def layer_norm(table, rows, cols, dtype):
    size = rows * cols * dtype.itemsize
    sets = []
    for _ in range(input_sets(3 * size)):
        x, g = (torch.randn(rows, cols, device="cuda").to(dtype) for _ in range(2))
        w, b = (torch.randn(cols, device="cuda").to(dtype) for _ in range(2))
        sets.append(([t.requires_grad_() for t in (x, w, b)], g))

    def theirs(x, w, b):
        return F.layer_norm(x, (cols,), w, b)

    variants = {
        "halfstep": lambda x, w, b: hsf.layer_norm(x, (cols,), w, b),
        "torch": theirs,
        "torch.compile": compiled(theirs),
    }
    peer = liger("liger_kernel.ops.layer_norm", "LigerLayerNormFunction")
    if peer is not None:
        variants["liger"] = lambda x, w, b: peer.apply(x, w, b, 1e-5)
    assert_close(variants["halfstep"](*sets[0][0]), theirs(*sets[0][0]), 1e-2)
    both_directions(
        table, "layer_norm", dtype, f"{rows}x{cols}", variants, sets, 2 * size, 3 * size
    )


def residual(table, rows, cols, dtype):
    size = rows * cols * dtype.itemsize
    sets = []
    for _ in range(input_sets(4 * size)):
        x, r, g, gh = (torch.randn(rows, cols, device="cuda").to(dtype) for _ in range(4))
        w, b = (torch.randn(cols, device="cuda").to(dtype) for _ in range(2))
        sets.append(([t.requires_grad_() for t in (x, r, w, b)], (g, gh)))

    def theirs(x, r, w, b):
        h = x + r
        return F.layer_norm(h, (cols,), w, b), h

    variants = {
        "halfstep": lambda x, r, w, b: hsf.layer_norm(x, (cols,), w, b, residual=r),
        "torch": theirs,
        "torch.compile": compiled(theirs),
    }
    assert_close(variants["halfstep"](*sets[0][0])[0], theirs(*sets[0][0])[0], 1e-2)
    shape = f"{rows}x{cols}"
    both_directions(table, "add_layer_norm", dtype, shape, variants, sets, 4 * size, 4 * size)


def host(table, rows=64, cols=768, length=200):
    """A chain of layers, each with its own weights, small enough that the host is the limit."""
    dtype = torch.bfloat16
    x = torch.randn(rows, cols, device="cuda").to(dtype)
    g = torch.randn_like(x)
    weights = [
        [torch.nn.Parameter(torch.randn(cols, device="cuda").to(dtype)) for _ in range(2)]
        for _ in range(length)
    ]

    def chain(norm):
        y = x
        for w, b in weights:
            y = norm(y, (cols,), w, b)
        return y

    def forward(norm):
        with torch.no_grad():
            chain(norm)

    def step(norm):
        for pair in weights:
            for p in pair:
                p.grad = None
        chain(norm).backward(g)

    functions = {"torch": F.layer_norm, "halfstep": hsf.layer_norm}
    for name, body in (("forward no_grad", forward), ("forward+backward", step)):
        variants = {k: (lambda f=f, body=body: body(f)) for k, f in functions.items()}
        for k, (us, ratio) in host_times(variants, length).items():
            row = {"op": "layer_norm", "pass": f"host {name}", "implementation": k}
            row |= {"dtype": "bfloat16", "shape": f"{rows}x{cols}", "note": f"chain of {length}"}
            table.add(**row, host_us=us, host_ratio=ratio)
