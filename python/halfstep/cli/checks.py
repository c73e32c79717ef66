"""What the demo demands of its runs. Each check returns sentences; none means that it holds."""

import math
import statistics
from collections import Counter

from halfstep.cli.train import CALLS
from halfstep.cli.vit import SWAPS

ACCURACY = 0.95
MEANS_APART = 0.01


def failures(runs, device):
    """All sentences about plain and halfstep runs of the same seeds, in one list."""
    found = []
    for run in runs:
        if run.accuracy < ACCURACY:
            found.append(
                f"{run.kind}, seed {run.seed}: the test accuracy is {100 * run.accuracy:.1f} %, "
                f"expected {100 * ACCURACY:.0f} % or more"
            )
        if run.kind == "halfstep":
            found += swap_failures(run) + call_failures(run, device)
    if len({run.seed for run in runs}) >= 3:
        found += mean_failures(runs) + spread_failures(runs)
    return found


def swap_failures(run):
    counts = sum((Counter(report.counts) for report in run.reports), Counter())
    return [
        f"halfstep, seed {run.seed}: {counts[name]} {name} were swapped, the model has {expected}"
        for name, expected in SWAPS.items()
        if counts[name] != expected
    ]


def call_failures(run, device):
    """The first step whose kernel calls are not those of CALLS."""
    expected = CALLS[device.type]
    for i, calls in enumerate(run.calls):
        for name in sorted(expected.keys() | calls.keys()):
            if calls.get(name, 0) != expected.get(name, 0):
                return [
                    f"halfstep, seed {run.seed}: step {i} called {name} {calls.get(name, 0)} "
                    f"times, expected {expected.get(name, 0)}"
                ]
    return [] if run.calls else [f"halfstep, seed {run.seed}: no step was made"]


def mean_failures(runs):
    plain, ours = (statistics.mean(r.accuracy for r in _of(runs, k)) for k in ("torch", "halfstep"))
    if abs(plain - ours) <= MEANS_APART:
        return []
    return [
        f"the mean accuracies, {100 * plain:.2f} % and {100 * ours:.2f} %, are more than "
        f"{100 * MEANS_APART:.0f} point apart"
    ]


def spread_failures(runs):
    """Whether halfstep's mean loss curve lies in the band of the plain ones.

    The band of an epoch reaches from the least to the largest plain loss, widened on both sides by
    the plain runs' standard deviation; that is taken over all epochs together, of the logarithm,
    because a band from three numbers alone is narrow by luck at some epochs.
    """
    plain = [list(map(math.log, losses)) for losses in _by_epoch(runs, "torch")]
    ours = [math.log(statistics.geometric_mean(losses)) for losses in _by_epoch(runs, "halfstep")]
    spread = math.sqrt(statistics.mean(statistics.variance(losses) for losses in plain))
    return [
        f"epoch {epoch}: halfstep's mean loss {math.exp(y):.4f} is outside the plain runs' band, "
        f"{math.exp(min(losses) - spread):.4f} to {math.exp(max(losses) + spread):.4f}"
        for epoch, (losses, y) in enumerate(zip(plain, ours, strict=True))
        if not min(losses) - spread <= y <= max(losses) + spread
    ]


def _of(runs, kind):
    return [run for run in runs if run.kind == kind]


def _by_epoch(runs, kind):
    return list(zip(*[run.losses for run in _of(runs, kind)], strict=True))
