"""The timer of every benchmark, and the rows it writes.

Device time: each variant is captured in a CUDA graph over enough input sets to leave the L2 cache,
the graphs are replayed in turn, and the time of a replay is divided by the calls in it. Host time:
calls of a variant are timed beside calls of the baseline, without waiting for the device.
"""

import csv
import datetime
import platform
import statistics
import subprocess
import time
from pathlib import Path

import torch

import halfstep

RESULTS = Path(__file__).parent / "results"
COLUMNS = """
    op pass implementation dtype shape ms_p50 ms_p20 ms_p80 gb_per_s share_of_copy tflops peak_mib
    host_us host_ratio note gpu sm_mhz power_w torch cuda triton driver commit date
""".split()
SHOWN = [*COLUMNS[:6], "share_of_copy", "tflops", "host_us", "host_ratio", "note"]


def percentiles(samples):
    cut = statistics.quantiles(samples, n=10, method="inclusive")
    return statistics.median(samples), cut[1], cut[7]


def input_sets(bytes_per_set):
    """How many sets of inputs make a rotation larger than twice the L2 cache."""
    l2 = torch.cuda.get_device_properties(0).L2_cache_size
    return max(2, min(32, -(-2 * l2 // max(bytes_per_set, 1))))


class Captured:
    """One variant as a graph that calls it once on every input set."""

    def __init__(self, calls):
        self.count = len(calls)
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(3):
                for call in calls:
                    call()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        calls[0]()
        torch.cuda.synchronize()
        self.peak_mib = (torch.cuda.max_memory_allocated() - before) / 2**20
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, stream=stream):
            for call in calls:
                call()

    def once(self):
        self.graph.replay()


class Called:
    """One variant that cannot be captured, because it waits for the device: called as it is."""

    peak_mib = float("nan")

    def __init__(self, calls):
        self.count, self.calls = len(calls), calls
        self.once()

    def once(self):
        for call in self.calls:
            call()


def timed_ms(variant):
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    variant.once()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / variant.count


def device_times(variants, repeats=40, uncapturable=()):
    """{name: (p50, p20, p80, peak MiB)}; variants: {name: list of calls, one per input set}."""
    ready = {
        name: (Called if name in uncapturable else Captured)(calls)
        for name, calls in variants.items()
    }
    samples = {name: [] for name in ready}
    for repeat in range(repeats + 3):
        for name, variant in ready.items():
            ms = timed_ms(variant)
            if repeat >= 3:
                samples[name].append(ms)
    return {name: (*percentiles(times), ready[name].peak_mib) for name, times in samples.items()}


def host_times(variants, calls, repeats=60):
    """{name: (us per call, ratio to the first variant)}: medians of samples taken in turn."""
    samples = {name: [] for name in variants}
    for repeat in range(repeats + 5):
        for name, run in variants.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            run()
            elapsed = (time.perf_counter() - start) / calls * 1e6
            if repeat >= 5:
                samples[name].append(elapsed)
    base = next(iter(samples.values()))
    return {
        name: (
            statistics.median(times),
            statistics.median(a / b for a, b in zip(times, base, strict=True)),
        )
        for name, times in samples.items()
    }


def copy_bandwidth():
    """Bytes read plus bytes written per second of a large device copy."""
    a = torch.empty(2**31, dtype=torch.uint8, device="cuda").random_()
    b = torch.empty_like(a)
    ms = device_times({"copy": [lambda: b.copy_(a)] * 4}, uncapturable=["copy"])["copy"][0]
    return 2 * a.numel() / ms * 1e3


def matrix_rate(dtype):
    """Operations per second of an 8192^3 product of random matrices."""
    a, b = (torch.randn(8192, 8192, device="cuda").to(dtype) for _ in range(2))
    ms = device_times({"product": [lambda: torch.mm(a, b)] * 2}, repeats=15)["product"][0]
    return 2 * 8192**3 / ms * 1e3


def _query(fields):
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    found = subprocess.run(command, capture_output=True, text=True)
    return [part.strip() for part in found.stdout.splitlines()[0].split(",")]


def _commit():
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip() or "unknown"


class Table:
    """Collects rows, prints each, and appends them to results/<gpu>.csv."""

    def __init__(self, folder=RESULTS, commit=None):
        self.gpu = torch.cuda.get_device_name(0)
        name = self.gpu.lower().replace("nvidia", "").strip().replace(" ", "-")
        self.path = Path(folder) / f"{name}.csv"
        self.copy = copy_bandwidth()
        sm_mhz, power, driver = _query("clocks.sm,power.draw,driver_version")
        try:
            import triton

            triton_version = triton.__version__
        except ImportError:
            triton_version = ""
        self.common = {
            "gpu": self.gpu,
            "sm_mhz": sm_mhz,
            "power_w": power,
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "triton": triton_version,
            "driver": driver,
            "commit": commit or _commit(),
            "date": datetime.date.today().isoformat(),
        }
        self.add(op="copy", implementation="torch", gb_per_s=self.copy / 1e9, share_of_copy=1.0)
        print(f"halfstep {halfstep.__version__}, Python {platform.python_version()}, {self.common}")

    def add(self, **values):
        row = {column: "" for column in COLUMNS} | self.common | values
        for key, value in row.items():
            if isinstance(value, float):
                row[key] = f"{value:.4g}"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = not self.path.exists()
        with self.path.open("a", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            if new:
                writer.writeheader()
            writer.writerow(row)
        shown = (
            "op pass implementation dtype shape ms_p50 share_of_copy tflops host_us host_ratio note"
        )
        print("  ".join(str(row[key]) for key in shown.split() if row[key] != ""), flush=True)

    def compare(
        self, op, direction, dtype, shape, variants, bytes_moved=0, operations=0, uncapturable=()
    ):
        """Times the variants in one run and adds a row for each."""
        for name, found in device_times(variants, uncapturable=uncapturable).items():
            p50, p20, p80, peak = found
            row = {"op": op, "pass": direction, "dtype": dtype, "shape": shape}
            row |= {"ms_p50": p50, "ms_p20": p20, "ms_p80": p80, "peak_mib": peak}
            if bytes_moved:
                rate = bytes_moved / p50 * 1e3
                row |= {"gb_per_s": rate / 1e9, "share_of_copy": rate / self.copy}
            if operations:
                row["tflops"] = operations / p50 / 1e9
            if name in uncapturable:
                row["note"] = "called, not replayed: it waits for the device"
            self.add(**row, implementation=name)


def assert_close(ours, theirs, rtol):
    """A benchmark of a wrong result is worth nothing: relative error of the whole tensor."""
    error = (ours.double() - theirs.double()).norm() / theirs.double().norm().clamp_min(1e-30)
    if not error <= rtol:
        raise AssertionError(f"relative error {error:.3g} is above {rtol}")
