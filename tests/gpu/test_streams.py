"""Streams, devices, synchronisation, and bitwise repetition, for every op."""

import gc

import pytest
import torch

import halfstep as hs
from tests.gpu.ops import OPS, leaves, results, same
from tests.helpers import normal

every_op = pytest.mark.parametrize("name", OPS)


@pytest.fixture(autouse=True)
def fixed_choices():
    """The same algorithm on every stream and device, so that results can be compared by bits."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@every_op
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_bitwise_repeat(name, dtype):
    tensors = leaves(*OPS[name][1], dtype=dtype)
    expected = results(name, tensors)
    for _ in range(20):
        assert same(results(name, tensors), expected)


@every_op
def test_runs_on_the_current_stream(name):
    """The input arrives late on a side stream; an op elsewhere would read what was there."""
    tensors = leaves(*OPS[name][1])
    expected = results(name, tensors)
    late = [torch.zeros_like(t) for t in tensors]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        for t, value in zip(late, tensors, strict=True):
            t.copy_(value.detach())
            t.requires_grad_()
        got = results(name, late)
    torch.cuda.current_stream().wait_stream(stream)
    assert same(got, expected)


@every_op
def test_backward_runs_on_the_stream_of_forward(name):
    tensors = leaves(*OPS[name][1])
    expected = results(name, tensors)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        y = OPS[name][0](*tensors)
        dy = torch.zeros_like(y)
        torch.cuda._sleep(50_000_000)
        dy.fill_(1)
    y.backward(dy)  # called on the default stream; autograd goes to the side stream
    torch.cuda.synchronize()
    assert same([y.detach(), *[t.grad for t in tensors]], expected)


@every_op
def test_case_n2_a_device_that_is_not_the_current_one(name):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    if torch.cuda.get_device_capability(0) != torch.cuda.get_device_capability(1):
        pytest.skip("the two GPUs differ, so their results may")
    expected = results(name, leaves(*OPS[name][1]))
    assert torch.cuda.current_device() == 0
    got = results(name, leaves(*OPS[name][1], device="cuda:1"))
    assert torch.cuda.current_device() == 0
    assert all(t.device == torch.device("cuda:1") for t in got)
    assert same([t.cpu() for t in got], [t.cpu() for t in expected])


@every_op
def test_nothing_waits_for_the_device(name):
    tensors = leaves(*OPS[name][1])
    results(name, tensors)  # the first call loads kernels and chooses algorithms
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        torch.cuda._sleep(200_000_000)
        done = torch.cuda.Event()
        done.record()
        results(name, tensors)
        assert not done.query(), "the call came back only after the device had caught up"
    finally:
        torch.cuda.set_sync_debug_mode("default")


@every_op
def test_only_outputs_and_workspace_are_allocated(name):
    """Nothing is kept from call to call, and nothing bypasses torch's allocator.

    The free memory is the device's, so no other process may work on it meanwhile.
    """
    tensors = leaves(*OPS[name][1])
    for _ in range(3):
        results(name, tensors)
    torch.cuda.synchronize()
    gc.collect()
    free, _ = torch.cuda.mem_get_info()
    held = torch.cuda.memory_allocated()
    for _ in range(100):
        results(name, tensors)
    torch.cuda.synchronize()
    gc.collect()
    assert torch.cuda.memory_allocated() == held
    assert free - torch.cuda.mem_get_info()[0] < 2**21


def test_mixed_devices_are_refused():
    x = normal(0, (4, 8), device="cuda")
    w = torch.ones(8)
    with pytest.raises(ValueError, match=r"layer_norm: weight is on cpu"):
        hs.functional.layer_norm(x, (8,), w, w)
    with pytest.raises(ValueError, match=r"bias_act: b"):
        hs.functional.bias_act(x, w)
    with pytest.raises(ValueError, match=r"linear: weight is on cpu"):
        hs.functional.linear(x, torch.ones(3, 8))
    with pytest.raises(ValueError, match=r"cross_entropy: target is on cpu"):
        hs.functional.cross_entropy(x, torch.zeros(4, dtype=torch.int64))
