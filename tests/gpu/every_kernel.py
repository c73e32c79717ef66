"""Calls every kernel once in each of its forms: compute-sanitizer ... -m tests.gpu.every_kernel

Values are judged by the tests beside this file; here only memory accesses, races and barriers are.
"""

import itertools

import torch

import halfstep as hs
import halfstep.functional as F

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
# Around the pack, the warp's row and the block's row; the last ones take the loops over long rows.
COLS = (1, 7, 8, 255, 256, 768, 1023, 1024, 1032, 4096, 8200, 20000)
ACTIVATIONS = (None, "relu", "gelu", "gelu_tanh", "silu")


def rand(*shape, dtype=torch.float32):
    return torch.randn(*shape, device="cuda").to(dtype).requires_grad_()


def back(outputs):
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    torch.autograd.backward(outputs, [torch.ones_like(t) for t in outputs])


def norm():
    for dtype, cols in itertools.product(DTYPES, COLS):
        # Backward has a kernel for few rows of not too many columns.
        for rows in (37, 300) if cols <= 1024 else (37,):
            x, w, b = rand(rows, cols, dtype=dtype), rand(cols), rand(cols)
            back(F.layer_norm(x, (cols,), w, b))
            back(F.layer_norm(x, (cols,)))
            for residual in {dtype, torch.float32}:
                r = rand(rows, cols, dtype=residual)
                back(F.layer_norm(x, (cols,), w, b, residual=r))


def act():
    for dtype, cols, name in itertools.product(DTYPES, COLS[:9], ACTIVATIONS):
        x = rand(37, cols, dtype=dtype)
        back(F.bias_act(x, None, name))
        back(F.bias_act(x, rand(cols), name))


def dropout():
    for dtype, cols in itertools.product(DTYPES, COLS):
        back(F.dropout(rand(3, cols, dtype=dtype), 0.3))


def xent():
    for dtype, classes in itertools.product(DTYPES, COLS):
        x, w = rand(19, classes, dtype=dtype), rand(classes).detach().abs()
        target = torch.randint(classes, (19,), device="cuda")
        target[3], target[5] = -100, classes + 7
        back(F.cross_entropy(x, target))
        back(F.cross_entropy(x, target, w, label_smoothing=0.1, z_loss=1e-3, reduction="none"))
        back(F.cross_entropy(x, rand(19, classes).detach().softmax(1).to(dtype), reduction="sum"))


def linear():
    for dtype, name, (m, k, n) in itertools.product(
        DTYPES, ACTIVATIONS, [(64, 64, 128), (33, 7, 13), (1, 3, 1)]
    ):
        back(F.linear(rand(m, k, dtype=dtype), rand(n, k, dtype=dtype), rand(n, dtype=dtype), name))


def optimizer():
    params = [rand(n).detach().requires_grad_() for n in (0, 1, 3, 4, 1025, 16385, 70001)]
    for p in params:
        p.grad = torch.randn_like(p)
    opt, scaler = hs.optim.AdamW(params), hs.amp.GradScaler("cuda")
    scaler.scale(torch.ones((), device="cuda"))
    for _ in range(3):
        scaler.unscale_(opt)
        scaler.step(opt)
        scaler.update()
        params[-1].grad[-1] = float("inf")


def main():
    for kernels in (norm, act, dropout, xent, linear, optimizer):
        kernels()
        torch.cuda.synchronize()
        print(kernels.__name__, "done", flush=True)


if __name__ == "__main__":
    main()
