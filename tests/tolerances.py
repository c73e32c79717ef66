"""How close is close enough, for every tier.

The tolerance of an output is FACTOR times the largest error that torch makes on it, over LIKES
inputs of the same kind, plus ULPS units in the last place of the output's largest magnitude. Where
torch computes in 16 bits and we promise float32 arithmetic with one rounding, the tests give torch
float32 inputs and round its result once, which is the stricter baseline.
"""

import numpy as np

from tests.helpers import dtype_name, to64

# Two roundings of the same size, ours and torch's, may point in opposite directions.
FACTOR = 2
# On a tiny tensor torch's error is often zero by luck; the largest of eight is not.
LIKES = 8
# A float32 sum in another order differs by more than one unit; 16-bit outputs are rounded once.
ULPS = {"float32": 4, "float16": 1, "bfloat16": 1}
# Explicit bits of the significand, and the exponent of the smallest normal number.
_FORMATS = {"float32": (23, -126), "float16": (10, -14), "bfloat16": (7, -126)}


def ulp(magnitude, dtype):
    """The distance between neighbours of dtype at this magnitude."""
    bits, smallest = _FORMATS[dtype]
    exponent = np.floor(np.log2(magnitude)) if magnitude > 0 else smallest
    return 2.0 ** (max(exponent, smallest) - bits)


def largest_error(actual, expected):
    """max |actual - expected|. Elements that are NaN or the same infinity in both agree."""
    actual, expected = to64(actual), np.asarray(expected, np.float64)
    with np.errstate(invalid="ignore"):
        error = np.abs(actual - expected)
    same = (actual == expected) | (np.isnan(actual) & np.isnan(expected))
    error = np.where(same, 0.0, np.where(np.isnan(error), np.inf, error))
    return float(error.max(initial=0.0))


def check(name, actual, expected, baseline_error=0.0):
    """Fails unless actual is within the rule of expected; its dtype sets the unit."""
    expected = np.asarray(expected, np.float64)
    assert tuple(actual.shape) == expected.shape, f"{name}: shape {tuple(actual.shape)}"
    assert np.isfinite(baseline_error), f"{name}: the baseline itself is not finite"
    finite = np.abs(expected[np.isfinite(expected)])
    dtype = dtype_name(actual)
    unit = ulp(float(finite.max(initial=0.0)), dtype)
    tolerance = FACTOR * baseline_error + ULPS[dtype] * unit
    error = largest_error(actual, expected)
    assert error <= tolerance, (
        f"{name} ({dtype}): error {error:.3g} is above {tolerance:.3g} "
        f"(torch's {baseline_error:.3g}, unit {unit:.3g})"
    )


def judge(make, ours, baseline, reference):
    """Runs ours on make(0) and checks every output by the rule.

    make(seed) returns a dict of torch tensors; ours and baseline take it as keywords and return a
    dict of named outputs; reference takes the same keywords as float64 arrays. An output of ours
    must have the dtype that the baseline's has.
    """
    errors, dtypes, expected = {}, {}, None
    for seed in range(LIKES):
        inputs = make(seed)
        truth = reference(**{name: to64(t) for name, t in inputs.items()})
        if expected is None:
            expected = truth
        for name, value in baseline(**inputs).items():
            dtypes[name] = dtype_name(value)
            errors[name] = max(errors.get(name, 0.0), largest_error(value, truth[name]))
    actual = ours(**make(0))
    assert actual.keys() == expected.keys() == errors.keys()
    for name, value in actual.items():
        assert dtype_name(value) == dtypes[name], f"{name} is {value.dtype}, not {dtypes[name]}"
        check(name, value, expected[name], errors[name])
