"""One training run of the demo, in plain torch or with halfstep, and what was measured of it."""

import gc
import statistics
import time
from dataclasses import dataclass, field

import torch
from torch import nn

import halfstep as hs
from halfstep import _C
from halfstep.cli.vit import VisionTransformer, load_digits

BATCH, PEAK_RATE, WEIGHT_DECAY = 32, 3e-3, 0.05

# Calls of halfstep's kernels in one step: 7 norms, 14 Linear, 3 of them with a GELU. The CPU's
# matrix products are torch's; there the activation and the bias gradient are passes of their own.
_CALLS = {"norm_forward": 7, "norm_backward": 7, "xent_forward": 1, "xent_backward": 1}
_CALLS |= {"scaler_check": 1, "adamw": 1, "scaler_update": 1}
CALLS = {
    "cpu": _CALLS | {"act_forward": 3, "act_backward": 14},
    "cuda": _CALLS | {"linear_forward": 14, "linear_backward": 14},
}


@dataclass
class Run:
    """What one training run gave. calls: kernel calls of every step, without those that were 0."""

    kind: str
    seed: int
    losses: list = field(default_factory=list)  # mean training loss of each epoch
    accuracy: float = 0.0  # share of the test images
    ms_per_step: float = 0.0  # median, without the first epoch where there are more
    peak_bytes: int | None = None  # of torch's allocator on the GPU
    calls: list = field(default_factory=list)
    reports: list = field(default_factory=list)  # of the model and of the loss


def train(kind, seed, epochs, device, on_epoch):
    """Trains once. kind: "torch" or "halfstep". on_epoch(epoch, loss) follows each epoch."""
    run = Run(kind, seed)
    (x, y), (test_x, test_y) = load_digits(device)
    torch.manual_seed(seed)
    order = torch.Generator().manual_seed(seed)
    if device.type == "cuda":
        _forget_memory(device)
    model, loss_fn, optimizer, scaler = _parts(kind, device, run)
    steps = -(-len(x) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, PEAK_RATE, epochs * steps, pct_start=0.2, cycle_momentum=False
    )
    clock = _Clock(device)
    for epoch in range(epochs):
        total = torch.zeros((), device=device)
        for rows in torch.randperm(len(x), generator=order).split(BATCH):
            images, labels = x[rows.to(device)], y[rows.to(device)]
            before = _C.calls()
            clock.start()
            with torch.autocast(device.type, torch.float16, enabled=device.type == "cuda"):
                loss = loss_fn(model(images), labels)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            clock.stop()
            after = _C.calls()
            run.calls.append({k: after[k] - before[k] for k in after if after[k] != before[k]})
            schedule.step()
            total += loss.detach() * len(rows)
        run.losses.append(total.item() / len(x))
        on_epoch(epoch, run.losses[-1])
    run.ms_per_step = statistics.median(clock.read()[steps if epochs > 1 else 0 :])
    if device.type == "cuda":
        run.peak_bytes = torch.cuda.max_memory_allocated(device)
    model.eval()
    with torch.no_grad():
        run.accuracy = (model(test_x).argmax(1) == test_y).double().mean().item()
    return run


def _parts(kind, device, run):
    model, loss_fn = VisionTransformer().to(device), nn.CrossEntropyLoss()
    if kind == "halfstep":
        hs.accelerate(model)
        hs.accelerate(loss_fn)
        run.reports = [hs.report(model), hs.report(loss_fn)]
        optimizer_class, scaler_class = hs.optim.AdamW, hs.amp.GradScaler
    else:
        optimizer_class, scaler_class = torch.optim.AdamW, torch.amp.GradScaler
    optimizer = optimizer_class(model.parameters(), PEAK_RATE, weight_decay=WEIGHT_DECAY)
    return model, loss_fn, optimizer, scaler_class(device.type)


def _forget_memory(device):
    """What an earlier run left behind, torch's cuBLAS workspace too, is not this run's peak."""
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.reset_peak_memory_stats(device)


class _Clock:
    """Milliseconds of each step; on the GPU by events, which do not make the host wait."""

    def __init__(self, device):
        self.on_gpu = device.type == "cuda"
        self.starts, self.stops = [], []

    def _now(self):
        if not self.on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def start(self):
        self.starts.append(self._now())

    def stop(self):
        self.stops.append(self._now())

    def read(self):
        pairs = list(zip(self.starts, self.stops, strict=True))
        if not self.on_gpu:
            return [1e3 * (stop - start) for start, stop in pairs]
        torch.cuda.synchronize()
        return [start.elapsed_time(stop) for start, stop in pairs]
