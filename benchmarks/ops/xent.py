"""Softmax cross entropy."""

import torch
import torch.nn.functional as F

import halfstep.functional as hsf
from benchmarks.bench import assert_close
from benchmarks.ops.common import both_directions, compiled, liger


def run(table, quick=False):
    for rows, classes in [(8192, 32000)] if quick else [(8192, 32000), (4096, 128256)]:
        cross_entropy(table, rows, classes, torch.bfloat16)
    if not quick:
        cross_entropy(table, 8192, 32000, torch.bfloat16, label_smoothing=0.1)


def cross_entropy(table, rows, classes, dtype, **options):
    size = rows * classes * dtype.itemsize
    sets = []
    for _ in range(2):
        x = torch.randn(rows, classes, device="cuda").to(dtype).requires_grad_()
        sets.append(([x, torch.randint(classes, (rows,), device="cuda")], None))

    def theirs(x, target):
        return F.cross_entropy(x.float(), target, **options)

    variants = {
        "halfstep": lambda x, target: hsf.cross_entropy(x, target, **options),
        "torch": theirs,
        "torch.compile": compiled(theirs),
    }
    peer = liger("liger_kernel.transformers.functional", "liger_cross_entropy")
    if peer is not None:
        variants["liger"] = lambda x, target: peer(x, target, **options)
    assert_close(variants["halfstep"](*sets[0][0]), theirs(*sets[0][0]), 1e-3)
    op = "cross_entropy" + "".join(f" {k}={v}" for k, v in options.items())
    shape = f"{rows}x{classes}"
    both_directions(table, op, dtype, shape, variants, sets, size, 2 * size, uncapturable=["liger"])
