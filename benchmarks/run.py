"""Runs the op benchmarks: python -m benchmarks.run [--quick] [--output FOLDER] [op ...]"""

import argparse
import importlib
import time

import torch

from benchmarks.bench import RESULTS, Table, matrix_rate

OPS = ["norm", "act", "xent", "linear", "adamw"]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ops", nargs="*", help=f"default: {' '.join(OPS)}")
    parser.add_argument("--quick", action="store_true", help="fewer shapes and dtypes")
    parser.add_argument("--output", default=RESULTS, help="folder of the CSV (default: results)")
    parser.add_argument("--commit", help="what to write into the commit column")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("benchmarks need a GPU")
    unknown = set(options.ops) - set(OPS)
    if unknown:
        parser.error(f"no benchmark of {', '.join(sorted(unknown))}; there are {', '.join(OPS)}")
    table = Table(options.output, options.commit)
    for dtype in (torch.float16, torch.bfloat16):
        name = str(dtype).removeprefix("torch.")
        rate = matrix_rate(dtype)
        table.add(op="matmul", implementation="torch", dtype=name, tflops=rate / 1e12)
    for op in options.ops or OPS:
        start = time.perf_counter()
        importlib.import_module(f"benchmarks.ops.{op}").run(table, options.quick)
        print(f"{op}: {time.perf_counter() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
