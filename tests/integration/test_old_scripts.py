"""Training loops as guides print them, run as they are and with only their import lines changed.

The scripts are text and not Python files, so that no formatter touches what guides print.
"""

import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from halfstep import _C
from tests.tolerances import ulp

SCRIPTS = Path(__file__).parent / "scripts"
OLD = "from torch.cuda.amp import autocast, GradScaler"
NEW = "from halfstep.amp import autocast, GradScaler"
ADAMW = ("opt = torch.optim.AdamW(", "opt = halfstep.optim.AdamW(")


@pytest.fixture(autouse=True)
def torchs_amp_without_a_gpu(monkeypatch):
    """torch.cuda.amp switches itself off without a GPU; its replacement for the CPU does not."""
    if not torch.cuda.is_available():
        monkeypatch.setattr(torch.cuda.amp, "autocast", partial(torch.amp.autocast, "cpu"))
        monkeypatch.setattr(torch.cuda.amp, "GradScaler", partial(torch.amp.GradScaler, "cpu"))


def run(source):
    names = {"__name__": "__main__"}
    with warnings.catch_warnings():  # torch.cuda.amp is deprecated; ours names the missing GPU
        warnings.simplefilter("ignore")
        exec(compile(source, "script", "exec"), names)
    return names


def read(name):
    source = (SCRIPTS / f"{name}.txt").read_text()
    assert source.count(OLD) == 1
    return source


def close(got, expected):
    """Another order of roundings, seen through 16-bit layers: two units of the largest loss."""
    got, expected = np.asarray(got), np.asarray(expected)
    return np.abs(got - expected).max() <= 2 * ulp(np.abs(expected).max(), "bfloat16")


@pytest.mark.parametrize("name", ["resnet", "accumulation"])
def test_only_the_import_line_changes(name):
    source = read(name)
    old, new = run(source), run(source.replace(OLD, NEW))
    assert new["scaler"].__class__.__module__.startswith("halfstep.")
    assert len(old["losses"]) == len(new["losses"]) > 5
    if torch.cuda.is_available():  # convolutions choose their algorithm by timing there
        assert close(new["losses"], old["losses"])
    else:  # a power of two as scale, in and out, changes no bit
        assert new["losses"] == old["losses"]
    assert old["losses"][-1] < old["losses"][0], "the script learns nothing"


def test_the_new_scaler_is_at_work():
    before = _C.calls()
    names = run(read("accumulation").replace(OLD, NEW))
    after = _C.calls()
    steps = 6 * 4
    assert after["scaler_check"] >= before["scaler_check"] + steps
    assert after["scaler_update"] == before["scaler_update"] + steps
    assert names["scale"] == 2.0 ** (10 + steps // 5)  # it grew every five clean steps


def test_the_optimizers_import_may_change_too():
    source = read("accumulation")
    new = source.replace(OLD, f"{NEW}\nimport halfstep").replace(*ADAMW)
    assert new.count("halfstep.optim.AdamW") == 1
    before = _C.calls()["adamw"]
    assert close(run(new)["losses"], run(source)["losses"])
    assert _C.calls()["adamw"] == before + 6 * 4


def test_a_checkpoint_goes_on_with_the_new_import():
    source = read("resnet")
    old = run(source)["checkpoint"]["scaler"]
    scaler = run(source.replace(OLD, NEW))["scaler"]
    scaler.load_state_dict(old | {"scale": 8.0})
    assert scaler.get_scale() == 8.0
    assert scaler.state_dict() == old | {"scale": 8.0}
