"""`halfstep demo`: the same training in plain torch and with halfstep, side by side."""

import errno
import importlib
import sys
import time
from pathlib import Path

NEEDS = {"torch": "torch", "sklearn": "scikit-learn", "matplotlib": "matplotlib"}


def add_arguments(parser):
    parser.add_argument("--seeds", type=_positive, default=1, metavar="N", help="runs of each kind")
    parser.add_argument("--epochs", type=_positive, default=24, metavar="N")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--output", type=Path, default=Path("halfstep-demo.png"), metavar="PNG")
    parser.add_argument("--json", action="store_true", help="print one JSON object, nothing else")


def run(args):
    """Trains, checks, draws and prints. Returns 0; 1 when a check fails; 2 when it cannot start."""
    for module, package in NEEDS.items():
        try:
            importlib.import_module(module)
        except ImportError:
            return _refuse(f"{package} is missing; pip install 'halfstep[demo]'")
    import torch

    from halfstep.cli import checks, show
    from halfstep.cli.train import train

    if args.device == "cuda" and not torch.cuda.is_available():
        return _refuse("--device cuda, but torch sees no GPU")
    try:
        png = _png(args.output)
    except OSError as error:
        return _refuse(f"--output is {args.output}: {error.strerror}")
    on_gpu = args.device != "cpu" and torch.cuda.is_available()
    device = torch.device("cuda" if on_gpu else "cpu")
    if not args.json:
        print(f"training on {_device_name(device)}, torch {torch.__version__}", flush=True)
    began = time.perf_counter()
    runs = []
    with show.progress(2 * args.seeds * args.epochs, silent=args.json) as advance:
        for seed in range(args.seeds):
            for kind in ("torch", "halfstep"):
                label = f"{kind}, seed {seed}"

                def on_epoch(epoch, loss, label=label):
                    advance(label, epoch, args.epochs, loss)

                runs.append(train(kind, seed, args.epochs, device, on_epoch))
    seconds = time.perf_counter() - began
    failures = checks.failures(runs, device)
    try:
        show.draw(runs, png)
    except OSError as error:
        failures.append(f"the curves could not be written to {png}: {error.strerror}")
        png = None
    if args.json:
        print(show.as_json(runs, device, png, seconds, failures))
    else:
        show.print_results(runs, png, seconds)
    for sentence in failures:
        print(f"halfstep demo: FAILED: {sentence}", file=sys.stderr)
    return 1 if failures else 0


def _refuse(sentence):
    print(f"halfstep demo: {sentence}", file=sys.stderr)
    return 2


def _png(output):
    """The file to draw into, .png added where there is no suffix. OSError where that cannot be.

    It is opened for a moment: better to know before the training than after it.
    """
    if output.is_dir():
        raise OSError(errno.EISDIR, "it is a folder")
    png = output if output.suffix else output.with_suffix(".png")
    if png.suffix.lower() != ".png":
        raise OSError(errno.EINVAL, "expected the name of a .png file")
    if not png.resolve().parent.is_dir():
        raise OSError(errno.ENOENT, "its folder does not exist")
    is_new = not png.exists()
    png.open("ab").close()
    if is_new:
        png.unlink()
    return png


def _device_name(device):
    import torch

    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)} in float16"
    return f"the CPU ({torch.get_num_threads()} threads) in float32, with the loss scaler"


def _positive(text):
    value = int(text)
    if value < 1:
        raise ValueError
    return value


_positive.__name__ = "positive integer"  # argparse names the type in its message
