"""Bias and activation on a GPU."""

from tests.gpu import on_gpu

globals().update(on_gpu("tests.unit.test_act"))
