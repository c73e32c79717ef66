"""JAX arrays on the CPU: the values that NumPy arrays give, as JAX arrays; tracers are refused."""

import numpy as np
import pytest

import halfstep.functional as hsf
from tests.helpers import DTYPES, normal, to_numpy

jax = pytest.importorskip("jax", reason="JAX is not installed")
jnp = jax.numpy

TARGET = np.array([0, 3, 5, 3], np.int32)
OPTIONS = {"weight": np.linspace(0.5, 2, 6, dtype=np.float32), "label_smoothing": 0.1}
CASES = {
    "layer_norm": lambda x, w, b: hsf.layer_norm(x, 6, b, b),
    "layer_norm plain": lambda x, w, b: hsf.layer_norm(x, (6,)),
    "layer_norm residual": lambda x, w, b: hsf.layer_norm(x, (6,), b, b, residual=x),
    "layer_norm_backward": lambda x, w, b: hsf.layer_norm_backward(x, x, 6, b, b),
    "bias_act": lambda x, w, b: hsf.bias_act(x, b, "silu"),
    "bias_act_backward": lambda x, w, b: hsf.bias_act_backward(x, x, b, "gelu_tanh"),
    "bias_act gelu": lambda x, w, b: hsf.gelu(x),
    "bias_act gelu_backward": lambda x, w, b: hsf.gelu_backward(x, x),
    "bias_act relu": lambda x, w, b: hsf.relu(x),
    "bias_act silu_backward": lambda x, w, b: hsf.silu_backward(x, x),
    "linear": lambda x, w, b: hsf.linear(x, w),
    "linear gelu": lambda x, w, b: hsf.linear(x, w, b, "gelu"),
    "linear_backward": lambda x, w, b: hsf.linear_backward(x, x, w, b, "relu"),
    "linear_backward plain": lambda x, w, b: hsf.linear_backward(x, x, w),
    "dropout": lambda x, w, b: hsf.dropout(x, 0.5, state=(1, 2)),
    "dropout_backward": lambda x, w, b: hsf.dropout_backward(x, 0.5, (1, 2)),
    "cross_entropy": lambda x, w, b: hsf.cross_entropy(x, like(TARGET, x)),
    "cross_entropy none": lambda x, w, b: hsf.cross_entropy(x, like(TARGET, x), reduction="none"),
    "cross_entropy options": lambda x, w, b: hsf.cross_entropy(x, TARGET, **OPTIONS),
    "cross_entropy probabilities": lambda x, w, b: hsf.cross_entropy(x, abs(x)),
    "cross_entropy_backward": lambda x, w, b: hsf.cross_entropy_backward(
        np.ones((), np.float32), x, like(TARGET, x)
    ),
    "cross_entropy_backward axes": lambda x, w, b: hsf.cross_entropy_backward(
        like(np.ones((4, 2), np.float32), x),
        x.reshape(4, 3, 2),
        like(np.ones((4, 2), np.int32), x),
        reduction="none",
    ),
}


def like(array, x):
    return jnp.asarray(array) if isinstance(x, jax.Array) else array


def arrays(dtype):
    return [to_numpy(normal(i, shape, dtype)) for i, shape in enumerate([(4, 6), (6, 6), (6,)])]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES)
def test_as_with_numpy_arrays(case, dtype):
    given = arrays(dtype)
    expected = CASES[case](*given)
    results = CASES[case](*map(jnp.asarray, given))
    if not isinstance(expected, tuple):
        expected, results = (expected,), (results,)
    assert len(expected) == len(results)
    for right, result in zip(expected, results, strict=True):
        if right is None:
            assert result is None
            continue
        assert isinstance(result, jax.Array)
        assert (result.dtype, result.shape) == (right.dtype, right.shape)
        assert np.asarray(result).tobytes() == right.tobytes()


def test_a_result_that_is_still_being_computed_is_waited_for():
    x = jnp.full((800, 800), 1e-3)
    pending = x
    for _ in range(10):
        pending = pending @ x
    early = hsf.relu(pending)
    assert np.array_equal(early, np.asarray(pending))


@pytest.mark.parametrize("transform", ["jit", "grad", "vmap"])
@pytest.mark.parametrize("case", CASES)
def test_tracers_are_refused_clearly(case, transform):
    x, w, b = map(jnp.asarray, arrays("float32"))
    calls = {
        "jit": lambda f: jax.jit(f)(x),
        "grad": lambda f: jax.grad(lambda x: f(x).sum())(x),
        "vmap": lambda f: jax.vmap(f)(jnp.stack([x, x])),
    }
    op = case.split()[0].removesuffix("_backward")
    with pytest.raises(TypeError, match=rf"{op}: (input|grad) is a .*Tracer.* outside jax\.jit"):
        calls[transform](lambda x: CASES[case](x, w, b))


@pytest.mark.parametrize("name", ["weight", "bias"])
def test_a_traced_parameter_is_refused_clearly(name):
    x, w, b = map(jnp.asarray, arrays("float32"))
    given = {"weight": w, "bias": b}
    traced = jax.jit(lambda t: hsf.linear(x, **{**given, name: t}))
    with pytest.raises(TypeError, match=rf"linear: {name} is a .*Tracer"):
        traced(given[name])


def test_a_callback_runs_under_jit():
    x = jnp.asarray(arrays("float32")[0])
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    traced = jax.jit(lambda x: jax.pure_callback(hsf.gelu, shape, x))
    assert np.array_equal(traced(x), hsf.gelu(x))
