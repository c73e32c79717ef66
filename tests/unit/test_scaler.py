"""The passes of the loss scale: the check of gradients, and the scale's rule."""

import numpy as np
import pytest
import torch

from halfstep._ops import scaler as op
from halfstep._ops.layout import may_overlap
from tests import reference
from tests.helpers import DTYPES, SIZES, normal, other_layouts, to64, torch_dtype

BAD = [float("inf"), -float("inf"), float("nan")]


def scalar(value, device, dtype=torch.float32):
    return torch.full((), value, dtype=dtype, device=device)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [None, 2.0**16, 3.0])
def test_check_of_finite_gradients(dtype, scale, device):
    grads = [normal(n, (n,), dtype, device, (scale or 1.0) * 2.0**-4) for n in SIZES]
    found = scalar(0.0, device)
    expected_found, expected = reference.scaler_check([to64(g) for g in grads], scale)
    op.check(grads, None if scale is None else scalar(scale, device), found)
    assert float(found) == expected_found == 0
    for g, e in zip(grads, expected, strict=True):
        unit = torch.finfo(torch_dtype(dtype)).eps
        # One rounding of 1 / scale, one of the product; subnormals of float16 have a fixed unit.
        np.testing.assert_allclose(
            to64(g), e, rtol=unit, atol=2.0**-25 if dtype == "float16" else 0
        )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("scale", [None, 4.0])
def test_check_finds_every_place(dtype, bad, scale, device):
    for size in SIZES[1:]:
        for place in {0, size // 2, size - 1}:
            grads = [torch.ones(n, dtype=torch_dtype(dtype), device=device) for n in (3, size, 0)]
            grads[1][place] = bad
            found = scalar(0.0, device)
            op.check(grads, None if scale is None else scalar(scale, device), found)
            assert float(found) == 1, (size, place)


def test_check_keeps_what_was_found_before(device):
    found = scalar(1.0, device)
    op.check([torch.ones(3, device=device)], None, found)
    op.check([], None, found)
    assert float(found) == 1


@pytest.mark.parametrize("bad", [*BAD, 0.0, -2.0])
def test_a_scale_that_is_of_no_use_is_found_and_nothing_is_unscaled(bad, device):
    found, g = scalar(0.0, device), torch.ones(65, device=device)
    op.check([g], scalar(bad, device), found)
    assert float(found) == 1
    assert torch.equal(g, torch.ones(65, device=device))


def test_update_never_stores_nan(device):
    scale, tracker = scalar(float("nan"), device), scalar(0, device, torch.int32)
    op.update(scale, tracker, scalar(1.0, device), 2.0, 0.5, 3, 4.0, 64.0)
    assert float(scale) == 4


def test_partly_overlapping_elements_are_told(device):
    base = torch.zeros(64, device=device)
    for shape, strides, expected in (
        ((3, 2), (2, 1), False),
        ((3, 2), (1, 3), False),
        ((3, 1, 2), (5, 0, 2), False),
        ((0, 3), (0, 0), False),
        ((3, 2), (1, 1), True),
        ((3, 2), (0, 1), True),
        ((4, 3), (2, 1), True),
    ):
        assert may_overlap(base.as_strided(shape, strides)) is expected, (shape, strides)


def test_a_quotient_that_overflows_is_found(device):
    found = scalar(0.0, device)
    op.check(
        [torch.full((3,), 60000.0, dtype=torch.float16, device=device)], scalar(0.5, device), found
    )
    assert float(found) == 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_check_of_any_strides(dtype, device):
    for _, g in other_layouts(normal(1, (4, 3, 2, 5), dtype, device)):
        expected, found, strides = g.clone() / 4, scalar(0.0, device), g.stride()
        op.check([g], scalar(4.0, device), found)
        assert torch.equal(g, expected)
        assert g.stride() == strides
        g[3, 2, 1, 4] = float("nan")
        op.check([g], None, found)
        assert float(found) == 1


@pytest.mark.parametrize("limits", [(0.0, 2.0**126), (2.0**-3, 2.0**20), (3.0, 1000.0)])
def test_ten_thousand_updates_follow_the_model(limits, device):
    rng = np.random.default_rng(5)
    scale, tracker = scalar(256.0, device), scalar(0, device, torch.int32)
    clean, dirty = scalar(0.0, device), scalar(1.0, device)
    expected = (256.0, 0)
    for rate in (0.02, 0.5, 0.0, 0.3):  # rates of overflow: grow, fall, to the top, down again
        for bad in rng.random(2500) < rate:
            op.update(scale, tracker, dirty if bad else clean, 2.0, 0.5, 3, *limits)
            value, count = reference.scaler_update(*expected, bad, 2.0, 0.5, 3, *limits)
            expected = (float(np.float32(value)), count)
            assert (float(scale), int(tracker)) == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1.0, 0.5, 3, 0.0, 1.0), "growth_factor is 1, expected"),
        ((2.0, 1.0, 3, 0.0, 1.0), "backoff_factor is 1, expected"),
        ((2.0, 0.5, 0, 0.0, 1.0), "growth_interval is 0, expected"),
        ((2.0, 0.5, 3, 2.0, 1.0), "max_scale is 1, expected 2"),
    ],
)
def test_update_refuses(arguments, message, device):
    scale, tracker = scalar(8.0, device), scalar(0, device, torch.int32)
    with pytest.raises(ValueError, match=f"scaler: {message}"):
        op.update(scale, tracker, scalar(1.0, device), *arguments)
    assert float(scale) == 8
