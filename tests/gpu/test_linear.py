"""The linear layer on a GPU: cuBLASLt's epilogues, TF32, the choice of algorithm."""

import pytest
import torch

import halfstep as hs
from tests.gpu import on_gpu
from tests.helpers import ACTIVATIONS, DTYPES, counted, normal
from tests.tolerances import judge
from tests.unit.test_linear import inputs, ours, torchs, truth

globals().update(on_gpu("tests.unit.test_linear"))


@pytest.mark.parametrize("kind", ACTIVATIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_fused_path_is_taken(dtype, kind):
    with counted("linear_forward", "linear_backward"):
        ours(kind)(**inputs((16, 64), 32, dtype, "cuda")(0))


@pytest.mark.parametrize("kind", ACTIVATIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_transformer_layer(dtype, kind):
    make = inputs((8, 128, 1024), 4096, dtype, "cuda")
    judge(make, ours(kind), torchs(kind), truth(kind, dtype))


def test_tf32_follows_torchs_setting(monkeypatch):
    x, w = normal(0, (64, 512), device="cuda"), normal(1, (256, 512), device="cuda")
    exact = (x.double() @ w.double().T).float()
    for allowed in (False, True):
        monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", allowed)
        error = (hs.functional.linear(x, w) - exact).abs().max().item()
        assert (error > 1e-3) == allowed, error


@pytest.mark.parametrize("shape, out", [((7, 33), 65), ((1, 1), 1), ((129, 257), 3)])
@pytest.mark.parametrize("kind", ACTIVATIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_sizes_that_no_vector_divides(dtype, kind, shape, out):
    make = inputs(shape, out, dtype, "cuda")
    judge(make, ours(kind), torchs(kind), truth(kind, dtype))
