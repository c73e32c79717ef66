"""AdamW with the update of all parameters, the unscaling and the skip in one pass."""

import torch

from halfstep._half import copies_for, keep_copies, mark_refreshed
from halfstep._ops import adamw
from halfstep._ops.layout import is_expanded


class AdamW(torch.optim.AdamW):
    """torch.optim.AdamW, stepped by one kernel call for each parameter group and device.

    The signature, the state and the state_dict are torch.optim.AdamW's; a state saved by one loads
    into the other. Loshchilov, Hutter, "Decoupled weight decay regularization" (2019).

    params: float32 parameters, or groups of them.
    lr, betas, eps, weight_decay, maximize: as torch's. A one-element tensor lr on the parameters'
        device is read there, so that a captured step follows its changes.
    foreach, fused, capturable: accepted, and without effect; there is one implementation, it is
        fused, and it can be captured in a CUDA graph.
    amsgrad, differentiable: must be False.
    weight_copies: keep the 16-bit copies of weights that halfstep's layers make under autocast, and
        refresh them in the same pass. Edits through `p.data` go unnoticed then.

    Under a GradScaler (halfstep's or torch's) the gradients are unscaled in the same pass and
    written back unscaled, and a step with an inf or NaN gradient changes nothing.

    Raises ValueError for amsgrad and differentiable, TypeError for parameters that are not float32
    and for sparse gradients; RuntimeError as torch.optim.AdamW does.
    """

    _step_supports_amp_scaling = True  # a GradScaler then sets grad_scale and found_inf on self
    _refreshes_copies = True  # halfstep._half leaves the copies to its step
    _weight_copies = False

    def __init__(
        self,
        params,
        lr=1e-3,
        betas=(0.9, 0.999),
        eps=1e-8,
        weight_decay=1e-2,
        amsgrad=False,
        *,
        maximize=False,
        foreach=None,
        capturable=False,
        differentiable=False,
        fused=None,
        weight_copies=False,
    ):
        _check_options({"amsgrad": amsgrad, "differentiable": differentiable})
        self._weight_copies = bool(weight_copies)  # add_param_group, called next, reads it
        super().__init__(
            params,
            lr,
            betas,
            eps,
            weight_decay,
            maximize=maximize,
            capturable=capturable,
            fused=True,
        )

    def add_param_group(self, param_group):
        """As torch.optim.Optimizer.add_param_group; nothing is added when the group is refused."""
        _check_options(param_group)
        super().add_param_group(param_group)
        try:
            self._adopt(self.param_groups[-1])
        except TypeError:
            self.param_groups.pop()
            raise

    def __getstate__(self):
        return {**super().__getstate__(), "_weight_copies": self._weight_copies}

    def __setstate__(self, state):
        """Takes a state of torch.optim.AdamW too: `step` may be on the CPU there, or a number."""
        for group in state["param_groups"]:
            _check_options(group)
        super().__setstate__(state)
        for group in self.param_groups:
            self._adopt(group)
            for p in group["params"]:
                if "step" in self.state.get(p, ()):
                    own = self.state[p]
                    own["step"] = torch.as_tensor(own["step"], dtype=torch.float32, device=p.device)

    @torch.no_grad()
    def step(self, closure=None):
        """One step for every parameter that has a gradient; never waits for the GPU.

        closure: evaluates the model again and returns the loss, which step returns.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        updates = [
            (group, device, params)
            for group in self.param_groups
            for device, params in _with_gradient(group).items()
        ]
        for group, device, params in updates:
            self._update(group, device, params)
        return loss

    def _adopt(self, group):
        """Checks the parameters, and sets the options by which torch casts a state it loads."""
        for i, p in enumerate(group["params"]):
            if p.dtype != torch.float32:
                raise TypeError(
                    f"adamw: parameter {i} is {p.dtype}, expected torch.float32; keep parameters "
                    "in float32 and compute in 16 bits under torch.autocast"
                )
        group["fused"], group["foreach"] = True, None
        if self._weight_copies:
            keep_copies(group["params"])

    def _update(self, group, device, params):
        states = [self.state[p] or self._new_state(p) for p in params]
        halves = copies_for(params)
        lr, lr_tensor = _learning_rate(group["lr"], device)
        beta1, beta2 = group["betas"]
        adamw.step(
            params,
            [p.grad for p in params],
            [s["exp_avg"] for s in states],
            [s["exp_avg_sq"] for s in states],
            [s["step"] for s in states],
            halves,
            lr_tensor,
            _scalar_on(device, getattr(self, "grad_scale", None)),
            _scalar_on(device, getattr(self, "found_inf", None)),
            lr,
            float(beta1),
            float(beta2),
            group["eps"],
            group["weight_decay"],
            group["maximize"],
        )
        if halves is not None:
            mark_refreshed(params, halves)

    def _new_state(self, p):
        state = self.state[p]
        state["step"] = torch.zeros((), dtype=torch.float32, device=p.device)
        state["exp_avg"] = torch.zeros_like(p, memory_format=torch.preserve_format)
        state["exp_avg_sq"] = torch.zeros_like(p, memory_format=torch.preserve_format)
        return state


def _check_options(group):
    for option in ("amsgrad", "differentiable"):
        if group.get(option):
            raise ValueError(
                f"adamw: {option} is {group[option]}, expected False; torch.optim.AdamW has it"
            )


def _with_gradient(group):
    """The parameters to update, by device. Everything is checked before anything is written."""
    by_device = {}
    for i, p in enumerate(group["params"]):
        g = p.grad
        if g is None:
            continue
        if g.layout is not torch.strided:
            raise TypeError(
                f"adamw: the gradient of parameter {i} is {g.layout}, expected torch.strided; "
                "torch.optim.SparseAdam takes sparse gradients"
            )
        if not g.is_contiguous() and is_expanded(g):
            p.grad = g.contiguous()
        by_device.setdefault(p.device, []).append(p)
    return by_device


def _learning_rate(lr, device):
    """(number, None), or (0, one float32 on device): a number where reading it does not wait."""
    if isinstance(lr, torch.Tensor) and (lr.device == device or lr.device.type != "cpu"):
        return 0.0, _scalar_on(device, lr)
    return float(lr), None


def _scalar_on(device, value):
    if isinstance(value, torch.Tensor):
        return value.to(device, torch.float32, non_blocking=True)
    return value
