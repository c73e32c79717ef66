"""Tests that need a GPU. Those of one op are the unit tests again, on another device."""

import inspect
from importlib import import_module


def on_gpu(module):
    """The tests of a unit test module that take a device, and the fixtures they need."""
    return {
        name: value
        for name, value in vars(import_module(module)).items()
        if not name.startswith("_")
        and (not name.startswith("test_") or "device" in inspect.signature(value).parameters)
    }
