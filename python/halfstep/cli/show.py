"""What the demo prints and draws."""

import json
import statistics
import sys
from contextlib import contextmanager

COLORS = {"torch": "#888888", "halfstep": "#1f6fb4"}


@contextmanager
def progress(total_epochs, silent):
    """Yields on_epoch(label, epoch, epochs, loss): a bar on a terminal with rich, else lines."""
    if silent:
        yield lambda *_: None
        return
    bar = _bar() if sys.stdout.isatty() else None
    if bar is None:
        yield _line
        return
    with bar:
        task = bar.add_task("", total=total_epochs)

        def advance(label, epoch, epochs, loss):
            text = f"{label}: epoch {epoch + 1}/{epochs}, loss {loss:.4f}"
            bar.update(task, advance=1, description=text)
            if epoch + 1 == epochs:
                bar.console.print(text)

        yield advance


def _bar():
    try:
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
    except ImportError:
        return None
    return Progress(TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())


def _line(label, epoch, epochs, loss):
    if epoch == 0 or epoch % 5 == 4 or epoch + 1 == epochs:
        print(f"{label}: epoch {epoch + 1}/{epochs}, loss {loss:.4f}", flush=True)


def summary(runs):
    """Rows of (kind, accuracy, loss, ms per step, peak MiB): means over the seeds, in words."""
    rows = []
    for kind in ("torch", "halfstep"):
        own = [run for run in runs if run.kind == kind]
        peaks = [run.peak_bytes for run in own]
        peak = "not measured" if None in peaks else f"{max(peaks) / 2**20:.1f} MiB"
        rows.append(
            (
                kind,
                f"{100 * statistics.mean(run.accuracy for run in own):.2f} %",
                f"{statistics.mean(run.losses[-1] for run in own):.4f}",
                f"{statistics.median(run.ms_per_step for run in own):.2f} ms",
                peak,
            )
        )
    return rows


def print_results(runs, png, seconds):
    head = ("", "test accuracy", "last loss", "time per step", "peak memory")
    rows = [head, *summary(runs)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    print()
    for row in rows:
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))
    print("(peak memory is torch's allocator on the GPU; on a CPU it is not measured)\n")
    for report in next(run for run in runs if run.kind == "halfstep").reports:
        print(report)
    print(f"\ncurves: {png or 'not written'}\n{len(runs)} runs in {seconds:.0f} s")


def as_json(runs, device, png, seconds, failures):
    """One object with everything that the tables show."""
    keys = ("kind", "seed", "accuracy", "ms_per_step", "peak_bytes", "losses")
    return json.dumps(
        {
            "device": str(device),
            "passed": not failures,
            "failures": failures,
            "seconds": round(seconds, 1),
            "png": png and str(png),
            "runs": [
                {key: getattr(run, key) for key in keys}
                | ({"calls_per_step": run.calls[0]} if run.calls[0] else {})
                | ({"swapped": [r.counts for r in run.reports]} if run.reports else {})
                for run in runs
            ],
        },
        indent=1,
    )


def draw(runs, png):
    """Loss by epoch, a line a run, with the test accuracy of each run in the legend."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for run in runs:
        style = "--" if run.kind == "torch" else "-"
        label = f"{run.kind}, seed {run.seed}: {100 * run.accuracy:.1f} %"
        epochs = range(1, len(run.losses) + 1)
        axes.plot(epochs, run.losses, style, color=COLORS[run.kind], label=label)
    axes.set(xlabel="epoch", ylabel="training loss", yscale="log")
    axes.set_title("Vision transformer on handwritten digits, test accuracy in the legend")
    axes.legend()
    figure.savefig(png, dpi=120)
