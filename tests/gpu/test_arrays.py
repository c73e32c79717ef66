"""CuPy and JAX arrays on a GPU. CuPy's are computed in place, on the stream that CuPy works on."""

import numpy as np
import pytest
import torch

import halfstep as hs
from tests import reference, tolerances

F = hs.functional
ROWS, COLS = 300, 1030


@pytest.fixture
def cupy():
    return pytest.importorskip("cupy")


def host(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def norm_calls(x, w, b, dy):
    """y, dx, dw, db of layer_norm for arrays of any kind."""
    y = F.layer_norm(x, (COLS,), w, b)
    return (y, *F.layer_norm_backward(dy, x, (COLS,), w, b))


def on_host():
    x, w, b, dy = host(0, ROWS, COLS), host(1, COLS), host(2, COLS), host(3, ROWS, COLS)
    return x, w, b, dy


def expected_norm(x, w, b, dy):
    return reference.layer_norm(x, w, b), *reference.layer_norm_backward(dy, x, w)


def near(name, actual, expected):
    tolerances.check(name, actual.get(), expected, np.abs(expected).max() * 2.0**-22)


def test_layer_norm_of_cupy_arrays(cupy):
    arrays = on_host()
    results = norm_calls(*(cupy.asarray(a) for a in arrays))
    for name, actual, expected in zip(
        "y dx dw db".split(), results, expected_norm(*arrays), strict=True
    ):
        assert isinstance(actual, cupy.ndarray)
        near(name, actual, expected)


@pytest.mark.parametrize("torch_stream", [False, True])
def test_cupy_arrays_run_on_cupys_stream(cupy, torch_stream):
    """The input arrives late there and the result is read there."""
    x, w, b, dy = on_host()
    stream = cupy.cuda.Stream(non_blocking=True)
    late = cupy.zeros((ROWS, COLS), "float32")
    given = [cupy.asarray(a) for a in (x, w, b, dy)]
    cupy.cuda.Device().synchronize()
    with stream, torch.cuda.stream(torch.cuda.Stream() if torch_stream else None):
        busy = cupy.ones((4096, 4096), "float32")
        for _ in range(40):
            busy = busy @ busy * 1e-4
        late[...] = given[0]
        results = norm_calls(late, *given[1:])
        copies = [r.copy() for r in results]
        late[...] = 0
    stream.synchronize()
    for name, actual, expected in zip(
        "y dx dw db".split(), copies, expected_norm(x, w, b, dy), strict=True
    ):
        near(name, actual, expected)


def test_every_function_takes_cupy_arrays(cupy):
    x, target = host(4, 65, 33), np.arange(65) % 33
    on_gpu, on_cpu = cupy.asarray(x), x
    pairs = {
        "gelu": (F.gelu(on_gpu), F.gelu(on_cpu)),
        "bias_act": (F.bias_act(on_gpu, on_gpu[0], "silu"), F.bias_act(on_cpu, on_cpu[0], "silu")),
        "strided": (F.relu(on_gpu.T), F.relu(np.ascontiguousarray(on_cpu.T))),
        "linear": (F.linear(on_gpu, on_gpu, on_gpu[:, 0]), F.linear(on_cpu, on_cpu, on_cpu[:, 0])),
        "cross_entropy": (
            F.cross_entropy(on_gpu, cupy.asarray(target), reduction="none"),
            F.cross_entropy(on_cpu, target, reduction="none"),
        ),
        "dropout": (F.dropout(on_gpu, state=(3, 4)), F.dropout(on_cpu, state=(3, 4))),
    }
    for name, (actual, expected) in pairs.items():
        assert isinstance(actual, cupy.ndarray), name
        near(name, actual, np.asarray(expected, np.float64))


def test_results_of_jax_arrays_on_a_gpu_are_refused():
    jax = pytest.importorskip("jax")
    if jax.default_backend() != "gpu":
        pytest.skip("this JAX has no GPU")
    with pytest.raises(TypeError, match=r"from_dlpack"):
        F.gelu(jax.numpy.ones((4, 8)))
