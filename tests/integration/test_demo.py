"""`halfstep demo`, from the outside and check by check."""

import json
import os
import signal
import subprocess
import sys

import pytest
import torch

from halfstep.cli import checks, main
from halfstep.cli.train import Run
from tests.helpers import ROOT

pytest.importorskip("sklearn", reason="the demo needs scikit-learn")
pytest.importorskip("matplotlib", reason="the demo needs matplotlib")

CPU = torch.device("cpu")
ENV = {**os.environ, "PYTHONPATH": str(ROOT / "python"), "PYTHONUNBUFFERED": ""}
STEP = {
    "norm_forward": 7,
    "norm_backward": 7,
    "act_forward": 3,
    "act_backward": 14,
    "xent_forward": 1,
    "xent_backward": 1,
    "scaler_check": 1,
    "adamw": 1,
    "scaler_update": 1,
}


def demo(*arguments, hide=None):
    """Runs the command in a process of its own; hide: a module that seems not to be installed."""
    start = f"import sys; sys.modules[{hide!r}] = None; " if hide else ""
    code = start + "from halfstep.cli import main; raise SystemExit(main())"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=ROOT,
        env=ENV,
        capture_output=True,
        text=True,
    )


def test_two_epochs_as_json(tmp_path):
    png = tmp_path / "curves.png"
    arguments = ("demo", "--epochs", "2", "--device", "cpu", "--json", "--output", str(png))
    done = demo(*arguments)
    result = json.loads(done.stdout)
    plain, ours = result["runs"]
    assert ours["swapped"] == [
        {"Linear": 14, "LayerNorm": 7, "Sequential": 3},
        {"CrossEntropyLoss": 1},
    ]
    assert ours["calls_per_step"] == STEP
    assert "calls_per_step" not in plain
    assert ours["losses"] == pytest.approx(plain["losses"], rel=1e-3)
    assert png.read_bytes().startswith(b"\x89PNG")
    # Two epochs are too few for 95 %, and that must be all that is wrong.
    assert done.returncode == 1 and not result["passed"]
    assert all("the test accuracy is" in sentence for sentence in result["failures"])
    assert [line.startswith("halfstep demo: FAILED: ") for line in done.stderr.splitlines()] == [
        True
    ] * len(result["failures"])


@pytest.mark.slow
def test_the_whole_demo(tmp_path):
    done = demo("demo", "--device", "cpu", "--output", str(tmp_path / "curves.png"))
    assert done.returncode == 0, done.stderr
    for word in ("test accuracy", "time per step", "halfstep.nn.Linear", "curves.png"):
        assert word in done.stdout


@pytest.mark.parametrize(
    "module, package",
    [("torch", "torch"), ("sklearn", "scikit-learn"), ("matplotlib", "matplotlib")],
)
def test_a_missing_package_is_named(module, package):
    done = demo("demo", hide=module)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr == f"halfstep demo: {package} is missing; pip install 'halfstep[demo]'\n"


def test_commands(capsys):
    assert main([]) == 0
    shown = capsys.readouterr().out
    assert "demo" in shown and "info" in shown
    assert main(["info"]) == 0
    assert json.loads(capsys.readouterr().out)["version"]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["demo", "--seeds", "0"], "invalid positive integer value: '0'"),
        (["demo", "--device", "tpu"], "invalid choice: 'tpu'"),
        (["train"], "invalid choice: 'train'"),
    ],
)
def test_bad_arguments(capsys, arguments, message):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("no/such/folder/x.png", "its folder does not exist"),
        ("", "it is a folder"),
        ("{folder}", "it is a folder"),
        ("{folder}/x.xyz", "expected the name of a .png file"),
        ("{folder}/file/x.png", "its folder does not exist"),
        ("{folder}/" + 300 * "x" + ".png", "File name too long"),
    ],
)
def test_an_output_that_cannot_be_written(output, message, tmp_path, capsys):
    (tmp_path / "file").touch()
    assert main(["demo", "--output", output.format(folder=tmp_path)]) == 2
    shown = capsys.readouterr()
    assert message in shown.err and "--output is " in shown.err and shown.out == ""


def test_an_output_without_a_suffix(tmp_path, monkeypatch, capsys):
    trained = []

    def train(kind, seed, epochs, device, on_epoch):
        assert list(tmp_path.iterdir()) == []  # nothing is left behind by the look at the file
        trained.append(kind)
        return good_run(kind, seed)

    monkeypatch.setattr("halfstep.cli.train.train", train)
    assert main(["demo", "--device", "cpu", "--output", str(tmp_path / "curves")]) == 0
    assert trained == ["torch", "halfstep"]
    assert f"curves: {tmp_path}/curves.png\n" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["curves.png"]


def test_a_disk_that_fills_up_while_training(tmp_path, monkeypatch, capsys):
    def draw(runs, png):
        raise OSError(28, "No space left on device")

    def train(kind, seed, *_):
        run = good_run(kind, seed)
        run.calls = run.calls or [{}]
        return run

    monkeypatch.setattr("halfstep.cli.train.train", train)
    monkeypatch.setattr("halfstep.cli.show.draw", draw)
    arguments = ["demo", "--device", "cpu", "--json", "--output", str(tmp_path / "x.png")]
    assert main(arguments) == 1
    shown = capsys.readouterr()
    assert json.loads(shown.out)["png"] is None
    assert "could not be written to" in shown.err and "No space left on device" in shown.err


def test_ctrl_c_is_quiet(tmp_path):
    started = subprocess.Popen(
        [sys.executable, "-m", "halfstep.cli", "demo", "--device", "cpu"],
        cwd=tmp_path,
        env=ENV,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert started.stdout.readline().startswith("training on")
    started.send_signal(signal.SIGINT)
    _, errors = started.communicate(timeout=60)
    assert (started.returncode, errors) == (130, "")


@pytest.mark.parametrize("command", ["info", "--version", "demo --device cpu"])
def test_a_closed_pipe_is_quiet(command, tmp_path):
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "halfstep.cli", *command.split()],
        cwd=tmp_path,
        env=ENV,
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


class FakeReport:
    def __init__(self, **counts):
        self.counts = counts


def good_run(kind, seed=0, losses=(2.0, 1.0), accuracy=0.97):
    run = Run(kind, seed, losses=list(losses), accuracy=accuracy)
    if kind == "halfstep":
        run.calls = [dict(STEP), dict(STEP)]
        swaps = FakeReport(Linear=14, LayerNorm=7, Sequential=3)
        run.reports = [swaps, FakeReport(CrossEntropyLoss=1)]
    return run


def test_good_runs_pass():
    assert checks.failures([good_run("torch"), good_run("halfstep")], CPU) == []


def test_a_low_accuracy_fails():
    runs = [good_run("torch", accuracy=0.9499), good_run("halfstep")]
    (sentence,) = checks.failures(runs, CPU)
    assert sentence.startswith("torch, seed 0: the test accuracy is 95.0 %, expected")


def test_a_missing_swap_fails():
    run = good_run("halfstep")
    run.reports[0].counts["LayerNorm"] = 6
    (sentence,) = checks.failures([run], CPU)
    assert sentence == "halfstep, seed 0: 6 LayerNorm were swapped, the model has 7"


@pytest.mark.parametrize("name, count", [("norm_backward", 6), ("adamw", 0), ("dropout", 1)])
def test_a_step_beside_the_kernels_fails(name, count):
    run = good_run("halfstep")
    run.calls[1][name] = count
    (sentence,) = checks.failures([run], CPU)
    expected = STEP.get(name, 0)
    assert sentence == (
        f"halfstep, seed 0: step 1 called {name} {count} times, expected {expected}"
    )


def three(kind, curves, accuracy=0.97):
    return [good_run(kind, seed, curve, accuracy) for seed, curve in enumerate(curves)]


PLAIN = [(2.0, 1.0), (2.2, 1.1), (1.9, 0.9)]


def test_three_seeds_pass_inside_the_spread():
    runs = three("torch", PLAIN) + three("halfstep", [(2.0, 1.1), (2.1, 1.0), (2.0, 1.0)])
    assert checks.failures(runs, CPU) == []


def test_three_seeds_fail_outside_the_spread():
    runs = three("torch", PLAIN) + three("halfstep", [(2.0, 1.4), (2.1, 1.4), (2.0, 1.4)])
    (sentence,) = checks.failures(runs, CPU)
    assert sentence.startswith("epoch 1: halfstep's mean loss 1.4000 is outside")


def test_means_that_are_apart_fail():
    runs = three("torch", PLAIN) + three("halfstep", PLAIN, accuracy=0.955)
    (sentence,) = checks.failures(runs, CPU)
    assert "97.00 % and 95.50 %, are more than 1 point apart" in sentence
