"""AdamW with the update of all parameters, the unscaling and the skip in one pass."""

import math
from numbers import Real

import torch

from halfstep._half import copies_for, keep_copies, mark_refreshed
from halfstep._ops import adamw
from halfstep._ops.layout import may_overlap


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
    written back unscaled, and a step with an inf or NaN gradient changes nothing. Neither does one
    with a loss scale that is not finite and above 0, or an lr tensor on a GPU that is not finite
    and 0 or more: finding that out would mean to wait.

    Raises ValueError for amsgrad, differentiable, numbers out of range, elements of a parameter
    that share memory, and a state of other shapes; TypeError for parameters that are not float32
    and for sparse gradients; RuntimeError as torch.optim.AdamW does. A step or load_state_dict that
    raises has changed nothing, in no group.
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
        if fused and foreach:
            raise RuntimeError("adamw: fused and foreach are both True, expected one at most")
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
        super().add_param_group(param_group)
        try:
            _check_group(self.param_groups[-1])
        except (TypeError, ValueError):
            self.param_groups.pop()
            raise
        self._adopt(self.param_groups[-1])

    def __getstate__(self):
        return {**super().__getstate__(), "_weight_copies": self._weight_copies}

    def __setstate__(self, state):
        """Takes a state of torch.optim.AdamW too: `step` may be on the CPU there, or a number."""
        for group in state["param_groups"]:
            _check_group(group)
            for i, p in enumerate(group["params"]):
                if state["state"].get(p):
                    _check_state(i, p, state["state"][p])
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
        for group in self.param_groups:
            _check_numbers(group)
        updates = [
            self._update(group, device, params)
            for group in self.param_groups
            for device, params in _with_gradient(group).items()
        ]
        if len(updates) > 1:  # one alone is checked by its run, before it writes
            for update, *_ in updates:
                update.check()
        for update, new_states, params, halves in updates:
            update.run()
            self.state.update(new_states)
            if halves is not None:
                mark_refreshed(params, halves)
        return loss

    def _adopt(self, group):
        """Sets the options by which torch casts a state it loads."""
        group["fused"], group["foreach"] = True, None
        if self._weight_copies:
            keep_copies(group["params"])

    def _update(self, group, device, params):
        """The step of these parameters, not yet run, with what is to be noted once it is."""
        new = {}
        states = [self.state.get(p) or new.setdefault(p, _new_state(p)) for p in params]
        halves = copies_for(params)
        lr, lr_tensor = _learning_rate(group["lr"], device)
        beta1, beta2 = group["betas"]
        update = adamw.Step(
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
        return update, new, params, halves


def _new_state(p):
    return {
        "step": torch.zeros((), dtype=torch.float32, device=p.device),
        "exp_avg": torch.zeros_like(p, memory_format=torch.preserve_format),
        "exp_avg_sq": torch.zeros_like(p, memory_format=torch.preserve_format),
    }


# ---- checks ----
def _check_group(group):
    _check_numbers(group)
    for i, p in enumerate(group["params"]):
        if p.dtype != torch.float32:
            raise TypeError(
                f"adamw: parameter {i} is {p.dtype}, expected torch.float32; keep parameters "
                "in float32 and compute in 16 bits under torch.autocast"
            )


def _check_numbers(group):
    """Everything in a group but the parameters; it may have been changed since it was added."""
    _check_options(group)
    for name in ("lr", "eps", "weight_decay"):
        _check_number(name, group.get(name), math.inf, "a finite value of 0 or more")
    betas = group.get("betas")
    if not isinstance(betas, (tuple, list)) or len(betas) != 2:
        raise ValueError(f"adamw: betas is {betas!r}, expected two numbers")
    for name, beta in zip(("beta1", "beta2"), betas, strict=True):
        _check_number(name, beta, 1, "0 or more and less than 1")


def _check_options(group):
    for option in ("amsgrad", "differentiable"):
        if group.get(option):
            raise ValueError(
                f"adamw: {option} is {group[option]}, expected False; torch.optim.AdamW has it"
            )


def _check_number(name, value, limit, expected):
    """A number, or a tensor of one, is in [0, limit). One on a GPU is left to the kernel."""
    if isinstance(value, torch.Tensor):
        if value.numel() != 1 or value.is_complex():
            raise ValueError(
                f"adamw: {name} has {value.numel()} elements of {value.dtype}, "
                "expected one real number"
            )
        if value.device.type != "cpu":
            return
    elif not isinstance(value, Real):
        raise TypeError(f"adamw: {name} is {value!r}, expected a number")
    if not 0 <= value < limit:
        raise ValueError(f"adamw: {name} is {float(value):g}, expected {expected}")


def _check_state(i, p, state):
    """The saved state of parameter i fits it. Reading `step` waits; a state is loaded once."""
    for name in ("exp_avg", "exp_avg_sq"):
        t = state.get(name)
        if not isinstance(t, torch.Tensor):
            raise TypeError(
                f"adamw: {name} of parameter {i} is a {type(t).__name__}, expected a tensor"
            )
        if t.shape != p.shape:
            raise ValueError(
                f"adamw: {name} of parameter {i} has shape {tuple(t.shape)}, "
                f"the parameter has shape {tuple(p.shape)}"
            )
    step = state.get("step")
    if isinstance(step, torch.Tensor) and step.numel() == 1:
        step = step.item()
    _check_number(f"step of parameter {i}", step, math.inf, "a finite value of 0 or more")


def _with_gradient(group):
    """The parameters to update, by device."""
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
        if not g.is_contiguous() and may_overlap(g):
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
        return value.to(device, torch.float32, non_blocking=device.type != "cpu")
    return value
