"""AdamW with the loss scale: check of the gradients, unscale and update."""

import torch

import halfstep as hs
from benchmarks.bench import device_times, host_times

# The parameter shapes of a 12-layer, 768-wide transformer: many small tensors, some large ones.
LAYER = [(2304, 768), (2304,), (768, 768), (768,), (3072, 768), (3072,), (768, 3072), (768,)]
LAYER += [(768,)] * 4


def run(table, quick=False):
    shapes = [(30522, 768), (512, 768), *LAYER * (4 if quick else 12)]
    elements = sum(torch.Size(s).numel() for s in shapes)

    def parameters():
        made = [torch.randn(s, device="cuda").requires_grad_() for s in shapes]
        for p in made:
            p.grad = torch.randn_like(p)
        return made

    def step_of(optimizer, scaler):
        def step():
            scaler._per_optimizer_states.clear()
            scaler.step(optimizer)
            scaler.update()

        return step

    variants = {}
    for name, make, scaler in (
        ("halfstep", hs.optim.AdamW, hs.amp.GradScaler),
        (
            "torch fused",
            lambda p: torch.optim.AdamW(p, fused=True, capturable=True),
            torch.amp.GradScaler,
        ),
        ("torch foreach", lambda p: torch.optim.AdamW(p, foreach=True), torch.amp.GradScaler),
    ):
        made = scaler("cuda", init_scale=1.0)
        made.scale(torch.ones((), device="cuda"))
        variants[name] = step_of(make(parameters()), made)
    row = {"op": "adamw", "pass": "scaler.step + update", "dtype": "float32"}
    row["shape"] = f"{len(shapes)} tensors, {elements / 1e6:.0f} M elements"
    # Reads p, g, m, v and the gradients once more for the check; writes p, m, v.
    moved = 4 * elements * 8
    graphs = {k: [v] for k, v in variants.items() if k != "torch foreach"}
    for name, found in device_times(graphs).items():
        rate = moved / found[0] * 1e3
        measured = dict(zip(("ms_p50", "ms_p20", "ms_p80"), found, strict=False))
        shares = {"gb_per_s": rate / 1e9, "share_of_copy": rate / table.copy}
        table.add(**row, **measured, **shares, implementation=name)
    order = {"torch fused": variants["torch fused"]} | variants
    for name, (us, ratio) in host_times(order, 1, repeats=20).items():
        table.add(**row, implementation=name, host_us=us, host_ratio=ratio, note="per step")
