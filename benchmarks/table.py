"""Writes the README's table from a CSV: python -m benchmarks.table [benchmarks/results/h200.csv]"""

import csv
import sys
from pathlib import Path

from benchmarks.bench import RESULTS

README = Path(__file__).parent.parent / "README.md"
BEGIN, END = "<!-- table:begin -->", "<!-- table:end -->"
OPS = ("layer_norm", "add_layer_norm", "bias_gelu", "cross_entropy", "linear", "linear_gelu")
PEERS = ("torch", "torch.compile", "liger")


def main():
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else RESULTS / "h200.csv"
    with path.open() as file:
        rows = list(csv.DictReader(file))
    latest = {
        (r["op"], r["dtype"], r["shape"], r["implementation"]): r
        for r in rows
        if r["pass"] in ("forward+backward", "scaler.step + update") and r["ms_p50"]
    }
    cases = [k[:3] for k in latest if k[3] == "halfstep" and k[0] in (*OPS, "adamw")]
    wanted = [c for c in cases if c[1] == "bfloat16" or c[0] == "adamw"]
    gpu, torch = rows[-1]["gpu"], rows[-1]["torch"]
    lines = [
        f"{gpu}, torch {torch}; device time in ms, forward + backward, medians of one run "
        f"(`{path.relative_to(README.parent)}` has every row, host time included). Bold: the best.",
        "",
        "| op | shape | halfstep | torch eager | torch.compile | Liger |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for case in wanted:
        times = {}
        for name in ("halfstep", *PEERS):
            row = latest.get((*case, name)) or (latest.get((*case, f"{name} fused")))
            if row:
                times[name] = float(row["ms_p50"])
        best = min(times.values())
        cells = [
            ("**{:.3g}**" if times[n] == best else "{:.3g}").format(times[n]) if n in times else ""
            for n in ("halfstep", *PEERS)
        ]
        lines.append(f"| {case[0]} {case[1]} | {case[2]} | " + " | ".join(cells) + " |")
    text = README.read_text()
    head, rest = text.split(BEGIN)
    README.write_text(head + BEGIN + "\n" + "\n".join(lines) + "\n" + END + rest.split(END)[1])


if __name__ == "__main__":
    main()
