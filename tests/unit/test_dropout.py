"""Dropout against the reference, bit for bit in its mask; tests/gpu/test_dropout.py on a GPU.

Cases of public trackers: N1, N3, N6 (backward draws the mask of forward) and T1 by kind. N2 stands
in tests/gpu/test_streams.py. N4 does not apply: there is no weight; nor do T2, L1 to L3.
"""

import numpy as np
import pytest
import torch

import halfstep as hs
from halfstep import _C
from tests import reference
from tests.helpers import (
    DTYPES,
    KINDS,
    SIZES,
    Margins,
    backward,
    counted,
    normal,
    other_layouts,
    to64,
    torch_dtype,
)
from tests.tolerances import check

STATES = [(0, 0), (1, 0), (2**63 - 1, 4), (-1, 8), (0x123456789ABCDEF, -(2**62))]


def direct(x, p, seed, offset, state=None):
    y = torch.empty_like(x)
    _C.dropout(x, y, state, p, seed, offset)
    return y


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_against_the_reference(device, dtype, state):
    for count in [*SIZES, 1023, 4097]:
        for p in (0.1, 0.5, 0.9):
            x = normal(0, (count,), dtype, device)
            y = direct(x, p, *state)
            expected = reference.dropout(to64(x), p, *state)
            assert np.array_equal(to64(y) == 0, (expected == 0))
            check("y", y, expected)


def test_philox_against_its_published_vectors():
    """The known answers of Random123 for Philox4x32-10."""
    ones = 0xFFFFFFFFFFFFFFFF
    zero = reference.philox(0, 0, [0])[0]
    full = reference.philox(ones, ones, np.array([ones], np.uint64))[0]
    assert [hex(w) for w in zero] == ["0x6627e8d5", "0xe169c58d", "0xbc57ac4c", "0x9b00dbd8"]
    assert [hex(w) for w in full] == ["0x408f276d", "0x41c83b0e", "0xa20bc7c6", "0x6d5451fd"]


def test_state_in_a_tensor(device):
    x = normal(0, (1000,), "float32", device)
    for seed, offset in STATES:
        state = torch.tensor([seed, offset], device=device)
        assert torch.equal(direct(x, 0.3, 0, 0, state), direct(x, 0.3, seed, offset))
        f = hs.functional.dropout
        assert torch.equal(f(x, 0.3, state=(seed, offset)), direct(x, 0.3, seed, offset))


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_the_ends(device, p):
    x = normal(0, (100,), "float32", device).requires_grad_()
    y = hs.functional.dropout(x, p)
    assert torch.equal(y, x if p == 0 else torch.zeros_like(x))
    y.sum().backward()
    assert torch.equal(x.grad, torch.full_like(x, 1 - p))
    assert torch.equal(direct(x.detach(), p, 3, 4), y.detach())


def test_not_training(device):
    x = normal(0, (100,), "float32", device)
    assert hs.functional.dropout(x, 0.5, False) is x


@pytest.mark.parametrize("dtype", DTYPES)
def test_case_n6_backward_draws_the_same_mask(device, dtype):
    x = normal(0, (33, 65), dtype, device)
    ones = torch.ones_like(x)
    torch.manual_seed(5)
    with counted("dropout"):
        out = backward(lambda x: hs.functional.dropout(x, 0.5), ones, x=x)
    assert torch.equal(out["y"] != 0, out["dx"] != 0)
    assert torch.equal(out["y"], x * out["dx"])
    assert set(out["dx"].unique().tolist()) == {0.0, 2.0}


def test_case_n6_a_state_that_changes_before_backward(device):
    x = normal(0, (33, 65), "float32", device).requires_grad_()
    state = torch.tensor([1, 2], device=device)
    y = hs.functional.dropout(x, 0.5, state=state)
    state.fill_(9)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_case_n6_inside_a_recomputed_block(device):
    from torch.utils.checkpoint import checkpoint

    x = normal(0, (64, 64), "float32", device).requires_grad_()
    grads = []
    for recompute in (False, True):
        x.grad = None
        torch.manual_seed(9)

        def block(x):
            return hs.functional.layer_norm(hs.functional.dropout(hs.functional.gelu(x)), (64,))

        y = checkpoint(block, x, use_reentrant=False) if recompute else block(x)
        y.square().sum().backward()
        grads.append(x.grad)
    assert torch.equal(*grads)


def test_manual_seed(device):
    x = torch.ones(1000, device=device)
    torch.manual_seed(1)
    first, second = hs.functional.dropout(x), hs.functional.dropout(x)
    torch.manual_seed(1)
    assert torch.equal(hs.functional.dropout(x), first)
    assert not torch.equal(first, second)
    torch.manual_seed(2)
    assert not torch.equal(hs.functional.dropout(x), first)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.8])
def test_the_share_of_zeros(device, p):
    torch.manual_seed(0)
    n = 1 << 18
    share = (hs.functional.dropout(torch.ones(n, device=device), p) == 0).float().mean().item()
    assert abs(share - p) < 5 * (p * (1 - p) / n) ** 0.5  # five standard deviations


@pytest.mark.parametrize("shape", [(0,), (3, 0, 2520)])
def test_case_n1_zero_sizes(device, shape):
    for dtype in DTYPES:
        x = normal(0, shape, dtype, device)
        out = backward(lambda x: hs.functional.dropout(x, 0.5), x, x=x)
        assert out["y"].shape == out["dx"].shape == torch.Size(shape)
        check("y", direct(x, 0.5, 0, 0), np.zeros(shape))


def test_case_n3_autocast(device):
    for dtype in DTYPES:
        x = normal(0, (8, 8), dtype, device)
        with torch.autocast(device, torch.bfloat16):
            assert hs.functional.dropout(x).dtype is torch_dtype(dtype)


def test_case_t1_and_layouts(device):
    x = normal(0, (2, 3, 4, 17), "float32", device)
    f = hs.functional.dropout
    expected = f(x, 0.5, state=(1, 2))
    for _, view in other_layouts(x):
        assert torch.equal(f(view, 0.5, state=(1, 2)), expected)
    dy = torch.ones((), device=device).expand(x.shape)
    got = backward(lambda x: f(x, 0.5, state=(1, 2)), dy, x=x)
    assert torch.equal(got["dx"], f(dy.contiguous(), 0.5, state=(1, 2)))
    odd = x.reshape(1, -1).as_strided((1, x.numel()), (7, 1))
    assert torch.equal(f(odd, 0.5, state=(1, 2)).reshape(x.shape), expected)


@pytest.mark.parametrize("shift", [0, 1, 3])
@pytest.mark.parametrize("dtype", DTYPES)
def test_margins(device, dtype, shift):
    for count in SIZES:
        m = Margins(device, shift)
        x = normal(0, (count,), dtype, device)
        y, inside = m.like(x), m.like(x)
        _C.dropout(x, y, None, 0.5, 7, 8)
        inside.copy_(x)
        _C.dropout(inside, inside, None, 0.5, 7, 8)
        m.check()
        assert torch.equal(y, direct(x, 0.5, 7, 8)) and torch.equal(y, inside)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_arrays(dtype, kind):
    x = normal(0, (5, 33), dtype)
    expected = to64(direct(x, 0.5, 3, 4))
    array = KINDS[kind](x)
    for f in (hs.functional.dropout, hs.functional.dropout_backward):
        got = f(array, 0.5, state=(3, 4))
        assert type(got) is type(array) and np.array_equal(to64(got), expected)
    drawn = hs.functional.dropout(array, 0.5)
    assert 0 < (to64(drawn) == 0).mean() < 1


@pytest.mark.parametrize(
    "error, words, call",
    [
        (ValueError, ["p is 1.5"], lambda f, x: f(x, 1.5)),
        (ValueError, ["p is -0.1"], lambda f, x: f(x, -0.1)),
        (ValueError, ["p is nan"], lambda f, x: f(x, float("nan"))),
        (ValueError, ["inplace"], lambda f, x: f(x, inplace=True)),
        (TypeError, ["x", "float64"], lambda f, x: f(x.double())),
        (TypeError, ["x", "int64"], lambda f, x: f(x.long())),
    ],
)
def test_errors_name_op_argument_and_values(error, words, call):
    with pytest.raises(error) as caught:
        call(hs.functional.dropout, normal(0, (2, 4)))
    for word in ["dropout", *words]:
        assert word in str(caught.value)


def test_direct_calls_check_the_state(device):
    x = torch.ones(4, device=device)
    for state in (torch.zeros(1, dtype=torch.int64), torch.zeros(2), torch.zeros(2).int()):
        with pytest.raises((TypeError, ValueError), match=r"dropout: state"):
            direct(x, 0.5, 0, 0, state.to(device))
