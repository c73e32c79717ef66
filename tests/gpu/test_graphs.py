"""CUDA graphs: every op, and scaler, AdamW and update together, captured and replayed."""

import pytest
import torch

import halfstep as hs
from halfstep import _C
from halfstep._ops import adamw, scaler
from tests import reference
from tests.gpu.ops import OPS, leaves, results, same
from tests.helpers import normal, to64
from tests.tolerances import check


@pytest.fixture(autouse=True)
def fixed_choices():
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def captured(run):
    """run() once on a side stream, then captured: (graph, what run returned in the capture)."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = run()
    return graph, out


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", OPS)
def test_replay_equals_eager(name, dtype):
    tensors = leaves(*OPS[name][1], dtype=dtype)
    graph, out = captured(lambda: results(name, tensors))
    for seed in (10, 20, 30):
        fresh = leaves(*OPS[name][1], dtype=dtype, seed=seed)
        expected = results(name, fresh)
        with torch.no_grad():
            for t, value in zip(tensors, fresh, strict=True):
                t.copy_(value)
        graph.replay()
        assert same(out, expected)


def test_dropout_draws_anew_in_each_replay():
    x = torch.ones(1 << 14, device="cuda", requires_grad=True)

    def run():
        y = hs.functional.dropout(x, 0.5)
        return y.detach(), *torch.autograd.grad(y, x, torch.ones_like(y))

    graph, (y, dx) = captured(run)
    seen = []
    for _ in range(3):
        graph.replay()
        assert torch.equal(y, dx)
        seen.append(y.clone())
    assert not torch.equal(seen[0], seen[1]) and not torch.equal(seen[1], seen[2])


HYPER = {"beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1}


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_check_adamw_and_update_together(dtype):
    """Gradients, an infinity and the learning rate change between replays."""
    sizes = (1, 7, 1000, 65537)
    params = [normal(i, (n,), device="cuda") for i, n in enumerate(sizes)]
    grads = [torch.zeros(n, dtype=getattr(torch, dtype), device="cuda") for n in sizes]
    moments = [[torch.zeros_like(p) for p in params] for _ in range(2)]
    steps = [torch.zeros((), device="cuda") for _ in params]
    lr, scale, found = (torch.full((), v, device="cuda") for v in (0.0, 1024.0, 0.0))
    tracker = torch.zeros((), dtype=torch.int32, device="cuda")

    def run():
        found.zero_()
        scaler.check(grads, None, found)
        adamw.step(
            params, grads, *moments, steps, None, lr, scale, found, lr=0.0, **HYPER, maximize=False
        )
        scaler.update(scale, tracker, found, 2.0, 0.5, 2, 1.0, 4096.0)

    with torch.no_grad():
        before = [p.clone() for p in params]
        graph, _ = captured(run)
        for t, value in zip(params, before, strict=True):
            t.copy_(value)
        for t in [*moments[0], *moments[1], *steps, tracker]:
            t.zero_()
        scale.fill_(1024.0)
        expected = [(to64(p), 0 * to64(p), 0 * to64(p)) for p in params]
        model_scale, model_tracker, applied = 1024.0, 0, 0
        for step in range(8):
            rate = 1e-2 / (step + 1)
            bad = step in (2, 5)
            lr.fill_(rate)
            for i, g in enumerate(grads):
                g.copy_(normal(100 * step + i, g.shape, dtype, "cuda", model_scale * 2.0**-6))
            if bad:
                grads[-1][-1] = float("inf")
            truth = [to64(g) for g in grads]
            torch.cuda.synchronize()
            graph.replay()
            if not bad:
                expected = [
                    reference.adamw(p, g, m, v, applied, lr=rate, **HYPER, scale=model_scale)
                    for (p, m, v), g in zip(expected, truth, strict=True)
                ]
                applied += 1
            model_scale, model_tracker = reference.scaler_update(
                model_scale, model_tracker, bad, 2.0, 0.5, 2, 1.0, 4096.0
            )
            assert (scale.item(), tracker.item()) == (model_scale, model_tracker)
            assert [s.item() for s in steps] == [applied] * len(sizes)
    for p, (value, _, _) in zip(params, expected, strict=True):
        check("p", p, value, 1e-6)


def test_a_whole_step_with_the_public_classes():
    """Model, loss, scaler and optimizer in one graph; the calls are counted while capturing."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        hs.nn.Linear(32, 64, activation="gelu"), hs.nn.LayerNorm(64), hs.nn.Linear(64, 10)
    ).cuda()
    rate = torch.tensor(1e-2, device="cuda")
    optimizer = hs.optim.AdamW(net.parameters(), lr=rate, capturable=True)
    loss_fn, scaling = hs.nn.CrossEntropyLoss(), hs.amp.GradScaler("cuda", init_scale=256.0)
    x, t = normal(0, (64, 32), device="cuda"), torch.arange(64, device="cuda") % 10

    def run():
        optimizer.zero_grad(set_to_none=False)
        with torch.autocast("cuda", torch.float16):
            loss = loss_fn(net(x), t)
        scaling.scale(loss).backward()
        scaling.step(optimizer)
        scaling.update()
        return loss.detach()

    graph, loss = captured(run)
    before = _C.calls()
    losses = []
    for _ in range(30):
        graph.replay()
        losses.append(loss.item())
    assert _C.calls() == before, "a replay calls no Python"
    assert losses[-1] < 0.5 * losses[0]
