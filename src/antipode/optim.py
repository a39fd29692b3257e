"""Optimisers by name, learning rates that work in a captured CUDA graph, and gradient clipping."""

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

Name = Literal["sgd", "adamw", "lars"]
Variant = Literal["inside", "after", "larc", "larc_clip"]
KERNEL = ("foreach", "fused", "capturable")  # options that select a kernel, not hyper-parameters


class Lars(Optimizer):
    """LARS: SGD in which each tensor's step is proportional to its norm.

    See You et al. 2017, arXiv 1708.03888. With weights w, gradient g, momentum buffer v, momentum m
    and weight decay wd, let u = g + wd w. The variants differ in where the learning rate is applied
    and in how the local ratio r is computed:

      inside     v <- m v + lr r u, w <- w - v, with r = trust |w|/|u|
                 (SimCLR, lars_optimizer.py)
      after      v <- m v + r u, w <- w - lr v, with the same r
                 (BYOL, optimizers.py at 4822a45; equals `inside` while lr is constant)
      larc       like `after`, with r = trust |w|/(|g| + wd |w|)
                 (apex LARC without clipping, SimSiam's linear evaluation)
      larc_clip  like `larc`, with r = min(r/lr, 1), so a step is never longer than that of SGD

    With `nesterov`, the step is r u + m v instead of v. In `inside`, where v contains lr, r u is
    multiplied by lr as well.

    r is 1 if |w| is 0. If |w| is above 0 and the gradient norm is 0, r is 1 in `inside` and `after`
    and 0 in the larc variants.

    A parameter group with trust=None uses plain SGD. SimCLR, BYOL and MSBReg do this for biases and
    norm scales.

    Norms are computed in the precision of the tensors. In float32, a norm below 1e-22 counts as 0.
    A norm of u above 1e19 counts as infinite, so that r is 0. Scaling by the largest magnitude
    first would avoid this, but needs two more passes and takes three times as long in total on a
    CPU.

    If `found_inf` () float is set and 1, a step changes nothing, as with torch's fused optimisers.
    """

    found_inf: Tensor | None = None

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        *,
        lr: float | Tensor,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        trust: float | None = 0.001,
        variant: Variant = "after",
    ) -> None:
        settings: dict[str, Any] = {
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
            "trust": trust,
            "variant": variant,
        }
        _check_group(**settings)
        super().__init__(params, settings)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a parameter group with a momentum buffer of zeros."""
        settings = {name: param_group.get(name, value) for name, value in self.defaults.items()}
        # The check ignores a default of nesterov=True, because a group may have no momentum.
        settings["nesterov"] = param_group.get("nesterov", False)
        _check_group(**settings)
        super().add_param_group(param_group)
        for p in self.param_groups[-1]["params"]:
            self.state[p]["momentum_buffer"] = torch.zeros_like(p)

    @torch.no_grad()
    def step(  # type: ignore[override]
        self, closure: Callable[[], float] | None = None
    ) -> float | None:
        """Update every parameter that has a gradient; the gradients are not modified."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if parameters:
                buffers = [self.state[p]["momentum_buffer"] for p in parameters]
                _update(parameters, buffers, group, self.found_inf)
        return loss


def _update(
    weights: list[Tensor],
    buffers: list[Tensor],
    group: dict[str, Any],
    found_inf: Tensor | None,
) -> None:
    """Update the momentum buffers and the weights of a group in place, unless `found_inf` is 1."""
    lr = group["lr"]
    momentum = group["momentum"]
    inside = group["variant"] == "inside"
    step = _scaled_gradients(weights, group)
    if inside:
        torch._foreach_mul_(step, lr)
    torch._foreach_mul_(buffers, _unless(found_inf, momentum, 1.0, buffers[0]))
    torch._foreach_add_(buffers, _zeroed(step, found_inf))
    if group["nesterov"]:
        torch._foreach_add_(step, buffers, alpha=momentum)
    else:
        step = buffers
    # A product instead of the `alpha` of _foreach_sub_: `alpha` would copy a learning rate that is
    # a tensor on the device back to the host.
    if not inside or found_inf is not None:
        factor = _unless(found_inf, 1.0 if inside else lr, 0.0, weights[0])
        step = list(torch._foreach_mul(step, factor))
    torch._foreach_sub_(weights, step)


def _unless(
    found_inf: Tensor | None, usual: float | Tensor, otherwise: float, like: Tensor
) -> float | Tensor:
    """Return `usual`, or `otherwise` if `found_inf` is 1, in the type of `like`."""
    if found_inf is None:
        return usual
    value = usual.to(like.dtype) if isinstance(usual, Tensor) else like.new_full((), usual)
    return torch.where(found_inf > 0, otherwise, value)


def _zeroed(tensors: list[Tensor], found_inf: Tensor | None) -> list[Tensor]:
    """Set all numbers to 0 if `found_inf` is 1, also NaN and infinite ones; return the tensors.

    The bits are multiplied as integers: as a float, 0 times NaN is NaN. torch has no `where` for
    lists of tensors, and one kernel for each tensor would take longer.
    """
    if found_inf is not None:
        kind = {2: torch.int16, 4: torch.int32, 8: torch.int64}[tensors[0].element_size()]
        bits = [tensor.view(kind) for tensor in tensors]
        torch._foreach_mul_(bits, (found_inf < 1).to(kind))
    return tensors


def _scaled_gradients(weights: list[Tensor], group: dict[str, Any]) -> list[Tensor]:
    """Return r u of each tensor in new memory."""
    grads = [w.grad for w in weights if w.grad is not None]
    decayed = list(torch._foreach_add(grads, weights, alpha=group["weight_decay"]))
    if group["trust"] is None:
        return decayed
    larc = group["variant"] in ("larc", "larc_clip")
    weight_norm = torch.stack(torch._foreach_norm(weights))
    grad_norm = torch.stack(torch._foreach_norm(grads if larc else decayed))
    if larc:
        ratio = _larc_ratio(weight_norm, grad_norm, group)
    else:
        ratio = _lars_ratio(weight_norm, grad_norm, group["trust"])
    torch._foreach_mul_(decayed, list(ratio.unbind()))
    return decayed


def _lars_ratio(weight_norm: Tensor, grad_norm: Tensor, trust: float) -> Tensor:
    return torch.where((weight_norm > 0) & (grad_norm > 0), trust * weight_norm / grad_norm, 1.0)


def _larc_ratio(weight_norm: Tensor, grad_norm: Tensor, group: dict[str, Any]) -> Tensor:
    """Return the ratio r of the larc variants.

    As in apex, the ratio is 1 for weights of zeros, and 0 for a gradient of zeros. In the latter
    case the weights do not decay either.
    """
    # 1e-8 is the eps of apex LARC
    ratio = group["trust"] * weight_norm / (grad_norm + group["weight_decay"] * weight_norm + 1e-8)
    if group["variant"] == "larc_clip":
        ratio = (ratio / group["lr"]).clamp(max=1)
    return torch.where(weight_norm > 0, ratio * (grad_norm > 0), 1.0)


def make(
    parameters: Iterable[Tensor],
    *,
    name: Name,
    lr: float,
    momentum: float = 0.9,
    weight_decay: float = 0.0,
    nesterov: bool = False,
    exclude: bool = False,
    trust: float = 0.001,
    variant: Variant = "after",
    capturable: bool = False,
    embeddings: Iterable[Tensor] = (),
) -> Optimizer:
    """Create an optimiser by name.

    For AdamW, the first beta is `momentum` and the second is .999.

    `exclude` exempts biases and norm scales (parameters with at most one dimension) from weight
    decay and from the adaptation of LARS. It also exempts `embeddings`, which are the class token
    and the position embeddings of a vision transformer.

    `capturable` stores the learning rate in a float32 tensor on the device of the parameters, so
    that `set_rate` also changes it in a captured CUDA graph. The parameters must already be on
    their device. Load a checkpoint before the capture, because loading replaces the momentum
    tensors. A checkpoint from any device can be loaded on any other device.
    """
    _check(lr=lr, momentum=momentum, weight_decay=weight_decay, nesterov=nesterov)
    _check_name(name, nesterov, trust, variant)
    parameters = list(parameters)
    if not parameters:
        raise ValueError("an optimiser needs at least one parameter, got none")
    device = parameters[0].device
    groups = _groups(parameters, exclude, name, {id(p) for p in embeddings})
    rate = torch.tensor(lr, dtype=torch.float32, device=device) if capturable else lr
    common: dict[str, Any] = {"lr": rate, "weight_decay": weight_decay}
    if name == "lars":
        common |= {"momentum": momentum, "nesterov": nesterov, "trust": trust, "variant": variant}
        return _prepared(Lars(groups, **common))
    # Only the fused SGD reads the learning rate on the device. The foreach implementation copies it
    # to the host, which makes a capture fail.
    common["fused"] = capturable or None
    if name == "sgd":
        return _prepared(SGD(groups, momentum=momentum, nesterov=nesterov, **common))
    common["capturable"] = capturable and device.type == "cuda"  # torch requires a CUDA device
    return _prepared(AdamW(groups, betas=(momentum, 0.999), **common))


def step_unless(optimiser: Optimizer, skip: Tensor | None) -> None:
    """Take a step of the optimiser, unless `skip` () float is 1; None always takes it.

    LARS and torch's fused optimisers read the flag on the device, so the host does not wait. The
    others run on a CPU, where reading it takes no time, and on MPS devices, where the host waits.
    """
    on_device = isinstance(optimiser, Lars) or bool(optimiser.defaults.get("fused"))
    if skip is None:
        optimiser.step()
    elif on_device:
        optimiser.found_inf = skip  # type: ignore[attr-defined]
        optimiser.step()
        optimiser.found_inf = None  # type: ignore[attr-defined]
    elif not skip:
        optimiser.step()


def set_rate(optimiser: Optimizer, lr: float) -> None:
    """Set the learning rate of all parameter groups.

    A learning rate that is a tensor is changed in place, so that a captured CUDA graph uses it.
    """
    _check_rate(lr)
    for group in optimiser.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(lr)
        else:
            group["lr"] = lr


def clip(parameters: Iterable[Tensor], norm: float | None) -> Tensor:
    """Clip the total gradient norm to `norm` in place and return the norm () before clipping.

    If `norm` is None, the gradients do not change. If the total norm in float32 is not finite,
    clipping sets all gradients to NaN. Does not synchronise with the device.
    """
    if norm is not None and not norm > 0:
        raise ValueError(f"the norm to clip gradients to must be above 0, got {norm}")
    parameters = list(parameters)
    grads = [p.grad for p in parameters if p.grad is not None]
    if not grads:
        return torch.zeros((), device=parameters[0].device if parameters else None)
    total = nn.utils.get_total_norm(grads)
    if norm is not None:
        # An infinite norm would scale the finite gradients to 0, which would hide the problem.
        divisor = torch.where(total.isfinite(), total, torch.nan)
        nn.utils.clip_grads_with_norm_(parameters, norm, divisor)
    return total


def _groups(
    parameters: list[Tensor], exclude: bool, name: Name, embeddings: set[int]
) -> list[dict[str, Any]]:
    """Split the parameters into regular and excluded ones and return the groups with parameters.

    `embeddings` holds the ids of parameters that are excluded whatever their shape is.
    """
    excluded = [p for p in parameters if exclude and (p.ndim <= 1 or id(p) in embeddings)]
    chosen = {id(p) for p in excluded}
    regular = [p for p in parameters if id(p) not in chosen]
    plain: dict[str, Any] = {"weight_decay": 0.0}
    if name == "lars":
        plain["trust"] = None
    groups = [{"params": regular}, {"params": excluded, **plain}]
    return [group for group in groups if group["params"]]


def _prepared(optimiser: Optimizer) -> Optimizer:
    """Initialise the state of an optimiser and register hooks for loading checkpoints.

    The hooks keep the kernel options and the form of the learning rate of this optimiser.
    """
    for group in optimiser.param_groups:
        for p in group["params"]:
            if not optimiser.state[p]:
                optimiser.state[p].update(_initial_state(p, group))
    optimiser.register_load_state_dict_pre_hook(_keep_kernels)
    rates = [group["lr"] for group in optimiser.param_groups]
    optimiser.register_load_state_dict_post_hook(partial(_keep_rates, rates=rates))
    return optimiser


def _initial_state(p: Tensor, group: dict[str, Any]) -> dict[str, Tensor]:
    """Return the zeros that torch would create in the first step.

    If they were created inside a capture, every replay would reset them to zero.
    """
    if "betas" in group:
        # the device on which AdamW itself would keep its step count
        device = p.device if group["fused"] or group["capturable"] else "cpu"
        step = torch.zeros((), dtype=torch.float32, device=device)
        return {"step": step, "exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
    return {"momentum_buffer": torch.zeros_like(p)} if group["momentum"] else {}


def _keep_kernels(optimiser: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    """Replace the kernel options in a checkpoint by those of the optimiser.

    A checkpoint from a GPU contains fused and capturable options that do not work on a CPU, and
    vice versa.
    """
    saved = state["param_groups"]
    groups = optimiser.param_groups
    if len(saved) != len(groups):
        raise ValueError(
            f"the checkpoint has {len(saved)} parameter groups but the optimiser has {len(groups)}"
        )
    options = [{key: group[key] for key in KERNEL if key in group} for group in groups]
    merged = [group | kernel for group, kernel in zip(saved, options, strict=True)]
    return state | {"param_groups": merged}


def _keep_rates(optimiser: Optimizer, rates: list[float | Tensor]) -> None:
    """Convert loaded learning rates to the form that the optimiser used before: tensor or float.

    With a tensor on the CPU, a capture would record its value as a constant.
    """
    for group, rate in zip(optimiser.param_groups, rates, strict=True):
        value = float(group["lr"])
        group["lr"] = rate.fill_(value) if isinstance(rate, Tensor) else value


def _check(*, lr: float, momentum: float, weight_decay: float, nesterov: bool) -> None:
    _check_rate(lr)
    if not 0 <= momentum < 1:
        raise ValueError(f"momentum must be at least 0 and below 1, got {momentum}")
    if not 0 <= weight_decay < math.inf:
        raise ValueError(f"weight decay must be finite and at least 0, got {weight_decay}")
    if nesterov and not momentum:
        raise ValueError("nesterov needs a momentum above 0, got 0")


def _check_rate(lr: float) -> None:
    if not 0 <= lr < math.inf:
        raise ValueError(f"the learning rate must be finite and at least 0, got {lr}")


def _check_group(*, lr: Any, trust: float | None, variant: str, **settings: Any) -> None:
    _check(lr=float(lr), **settings)
    _check_trust(trust, variant)


def _check_trust(trust: float | None, variant: str) -> None:
    if trust is not None and not 0 < trust < math.inf:
        raise ValueError(f"the trust of lars must be finite and above 0, got {trust}")
    if variant not in get_args(Variant):
        raise ValueError(
            f"the variant of lars must be one of {', '.join(get_args(Variant))}, not {variant!r}"
        )


def _check_name(name: str, nesterov: bool, trust: float, variant: str) -> None:
    if name not in get_args(Name):
        raise ValueError(f"the optimiser must be one of {', '.join(get_args(Name))}, not {name!r}")
    if name != "lars" and (trust, variant) != (0.001, "after"):
        raise ValueError(f"only lars has trust and variant, but the optimiser is {name}")
    if name == "adamw" and nesterov:
        raise ValueError("adamw does not support nesterov momentum")
