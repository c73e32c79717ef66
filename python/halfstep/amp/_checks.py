"""The arguments of GradScaler. function: the name with which an error begins."""

import math
from numbers import Integral, Real

SMALLEST, LARGEST = 2.0**-149, 2.0**128 - 2.0**104  # of float32, in which the scale is kept


def check_limits(min_scale, max_scale):
    _check_number("GradScaler", "min_scale", min_scale)
    _check_number("GradScaler", "max_scale", max_scale)
    if not 0 <= min_scale <= max_scale <= LARGEST:
        raise ValueError(
            f"GradScaler: min_scale is {min_scale} and max_scale {max_scale}, "
            "expected 0 <= min_scale <= max_scale < 2**128"
        )


def check_rule(function, growth_factor, backoff_factor, growth_interval):
    _check_number(function, "growth_factor", growth_factor)
    _check_number(function, "backoff_factor", backoff_factor)
    if not isinstance(growth_interval, Integral):
        raise TypeError(
            f"{function}: growth_interval is {growth_interval!r}, expected a whole number"
        )
    for name, value, allowed, expected in (
        ("growth_factor", growth_factor, 1 < growth_factor < math.inf, "more than 1"),
        ("backoff_factor", backoff_factor, 0 < backoff_factor < 1, "between 0 and 1"),
        ("growth_interval", growth_interval, growth_interval >= 1, "1 or more"),
    ):
        if not allowed:
            raise ValueError(f"{function}: {name} is {value}, expected {expected}")


def check_scale(name, value, min_scale, max_scale):
    _check_number("GradScaler", name, value)
    if not (min_scale <= value <= max_scale and value >= SMALLEST):
        raise ValueError(
            f"GradScaler: {name} is {value}, expected {min_scale} (min_scale) to {max_scale} "
            "(max_scale), and more than 0 in float32"
        )


def check_state(state, min_scale, max_scale):
    """What load_state_dict is given; returns it with its scale brought between the limits."""
    function = "GradScaler.load_state_dict"
    check_rule(function, state["growth_factor"], state["backoff_factor"], state["growth_interval"])
    scale, tracker = state["scale"], state["_growth_tracker"]
    _check_number(function, "scale", scale)
    if math.isnan(scale):
        raise ValueError(f"{function}: scale is nan, expected a number")
    if not isinstance(tracker, Integral) or not 0 <= tracker < 2**31:
        raise ValueError(
            f"{function}: _growth_tracker is {tracker!r}, expected a whole number from 0 to 2**31"
        )
    return {**state, "scale": float(min(max(scale, min_scale), max_scale))}


def check_new_scale(new_scale):
    """A tensor for update()."""
    if new_scale.numel() != 1 or new_scale.requires_grad:
        raise ValueError(
            f"GradScaler.update: new_scale has {new_scale.numel()} elements and requires_grad "
            f"{new_scale.requires_grad}, expected 1 and False"
        )
    if new_scale.is_complex():
        raise TypeError(
            f"GradScaler.update: new_scale is {new_scale.dtype}, expected a real number"
        )


def check_optimizer(function, optimizer):
    if not hasattr(optimizer, "param_groups"):
        raise TypeError(
            f"GradScaler.{function}: optimizer is a {type(optimizer).__name__}, "
            "expected an optimizer"
        )


def _check_number(function, name, value):
    if not isinstance(value, Real):
        raise TypeError(f"{function}: {name} is {value!r}, expected a number")
