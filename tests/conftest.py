"""Options and fixtures for every tier."""

import pytest
import torch


def pytest_addoption(parser):
    parser.addoption(
        "--without-exchange-api",
        action="store_true",
        help="read torch tensors through to_dlpack, as with torch below 2.10",
    )


def pytest_configure(config):
    torch.set_num_threads(1)  # the tensors are small, and idle threads of torch's would spin
    if config.getoption("--without-exchange-api"):
        from halfstep import _compat

        _compat.register_torch(exchange=None)


@pytest.fixture
def device():
    """Where the tests of one op run; tests/gpu overrides it."""
    return "cpu"
