"""Optimisers by name, with rates that can change inside a captured CUDA graph, and the measure of gradients."""

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

Name = Literal["sgd", "adamw", "lars"]
Variant = Literal["inside", "after", "larc", "larc_clip"]
KERNEL = ("foreach", "fused", "capturable")  # how a group is computed, not what


class Lars(Optimizer):
    """SGD whose every tensor moves in proportion to its own length (You et al. 2017, arXiv 1708.03888).

    The variants differ in where the rate meets the momentum and in what the gradient is measured with:
      inside     v <- m v + lr r u, w <- w - v    with u = g + wd w and r = trust |w|/|u|: SimCLR's lars_optimizer.py
      after      v <- m v + r u, w <- w - lr v    the same r: BYOL's optimizers.py (4822a45); equal while lr is constant
      larc       as after, with r = trust |w|/(|g| + wd |w|): apex LARC without clip, SimSiam's linear evaluation
      larc_clip  as larc, with r = min(r/lr, 1): the length of the step never exceeds that of SGD
    Nesterov's step is r u + m v in place of v (times lr where v has it). r is 1 where |w| or |u| is 0. A group with
    trust=None is plain SGD: what SimCLR, BYOL and MSBReg give biases and norm scales. Squares are summed in the
    tensors' own precision: in float32 a length below 1e-22 counts as 0 and one above 1e19 as endless, so that r is 0.
    Scaling by the largest magnitude first would take two more passes, and three times as long in all on a CPU.
    """

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
        }
        settings |= {"trust": trust, "variant": variant}
        _check_group(**settings)
        super().__init__(params, settings)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Take in a group and start its momentum at 0."""
        given = {name: param_group.get(name, value) for name, value in self.defaults.items()}
        _check_group(
            **given | {"nesterov": param_group.get("nesterov", False)}
        )  # a group may go without momentum
        super().add_param_group(param_group)
        for p in self.param_groups[-1]["params"]:
            self.state[p]["momentum_buffer"] = torch.zeros_like(p)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Move every parameter that has a gradient; gradients stay as they are."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            live = [p for p in group["params"] if p.grad is not None]
            if live:
                _move(live, [self.state[p]["momentum_buffer"] for p in live], group)
        return loss


def _move(weights: list[Tensor], buffers: list[Tensor], group: dict[str, Any]) -> None:
    lr, momentum, inside = group["lr"], group["momentum"], group["variant"] == "inside"
    push = _adapted(weights, group)
    if inside:
        torch._foreach_mul_(push, lr)
    torch._foreach_mul_(buffers, momentum)
    torch._foreach_add_(buffers, push)
    if group["nesterov"]:
        torch._foreach_add_(push, buffers, alpha=momentum)
    else:
        push = buffers
    # a product, not add's alpha: a rate on the device would be read back for it
    torch._foreach_sub_(weights, push if inside else list(torch._foreach_mul(push, lr)))


def _adapted(weights: list[Tensor], group: dict[str, Any]) -> list[Tensor]:
    """r u of each tensor, in new memory."""
    grads = [w.grad for w in weights if w.grad is not None]
    push = list(torch._foreach_add(grads, weights, alpha=group["weight_decay"]))
    if group["trust"] is None:
        return push
    larc = group["variant"] in ("larc", "larc_clip")
    length = torch.stack(torch._foreach_norm(weights))
    slope = torch.stack(torch._foreach_norm(grads if larc else push))
    ratio = _larc(length, slope, group) if larc else _lars(length, slope, group["trust"])
    torch._foreach_mul_(push, list(ratio.unbind()))
    return push


def _lars(length: Tensor, slope: Tensor, trust: float) -> Tensor:
    return torch.where((length > 0) & (slope > 0), trust * length / slope, 1.0)


def _larc(length: Tensor, slope: Tensor, group: dict[str, Any]) -> Tensor:
    """As in apex, a tensor of zeros takes a plain step and one without gradient none, not even its decay."""
    ratio = (
        group["trust"] * length / (slope + group["weight_decay"] * length + 1e-8)
    )  # apex LARC's eps
    if group["variant"] == "larc_clip":
        ratio = (ratio / group["lr"]).clamp(max=1)
    return torch.where(length > 0, ratio * (slope > 0), 1.0)


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
) -> Optimizer:
    """An optimiser by name; AdamW's first beta is the momentum, its second .999.

    `exclude` keeps biases and norm scales (one dimension or none) free of weight decay and of LARS's adaptation.
    `capturable` holds the rate in a float32 tensor beside the parameters, so that `set_rate` reaches into a captured
    CUDA graph. Parameters must be on their device already, and a checkpoint loaded before the capture: loading puts
    new tensors in place of the momentum. A checkpoint of any device loads on any other.
    """
    _check(lr=lr, momentum=momentum, weight_decay=weight_decay, nesterov=nesterov)
    _check_name(name, nesterov, trust, variant)
    parameters = list(parameters)
    if not parameters:
        raise ValueError("an optimiser needs at least one parameter, got none")
    device, groups = parameters[0].device, _groups(parameters, exclude, name)
    rate = torch.tensor(lr, dtype=torch.float32, device=device) if capturable else lr
    common: dict[str, Any] = {"lr": rate, "weight_decay": weight_decay}
    if name == "lars":
        return _rooted(
            Lars(
                groups, momentum=momentum, nesterov=nesterov, trust=trust, variant=variant, **common
            )
        )
    # the only SGD that reads its rate on the device: foreach's asks the host for it, which ends a capture
    common["fused"] = capturable or None
    if name == "sgd":
        return _rooted(SGD(groups, momentum=momentum, nesterov=nesterov, **common))
    common["capturable"] = capturable and device.type == "cuda"  # torch refuses it elsewhere
    return _rooted(AdamW(groups, betas=(momentum, 0.999), **common))


def set_rate(optimiser: Optimizer, lr: float) -> None:
    """Give all groups a learning rate: in place where it is a tensor, so that a captured graph sees it."""
    _check_rate(lr)
    for group in optimiser.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(lr)
        else:
            group["lr"] = lr


def clip(parameters: Iterable[Tensor], norm: float | None) -> Tensor:
    """The norm () of all gradients together, which are then scaled down to `norm`; None only measures.

    Nothing waits for the device. Clipping by a norm that is not finite, as float32 has it, leaves nothing but NaN.
    """
    if norm is not None and not norm > 0:
        raise ValueError(f"gradients are clipped to a norm above 0, got {norm}")
    parameters = list(parameters)
    grads = [p.grad for p in parameters if p.grad is not None]
    if not grads:
        return torch.zeros((), device=parameters[0].device if parameters else None)
    total = nn.utils.get_total_norm(grads)
    if norm is not None:
        # by an endless norm the scale would be 0 and finite gradients pass for good ones
        nn.utils.clip_grads_with_norm_(
            parameters, norm, torch.where(total.isfinite(), total, torch.nan)
        )
    return total


def _groups(parameters: list[Tensor], exclude: bool, name: Name) -> list[dict[str, Any]]:
    small = [p for p in parameters if exclude and p.ndim <= 1]
    large = [p for p in parameters if not (exclude and p.ndim <= 1)]
    plain: dict[str, Any] = (
        {"weight_decay": 0.0, "trust": None} if name == "lars" else {"weight_decay": 0.0}
    )
    groups = [{"params": large}, {"params": small, **plain}]
    return [group for group in groups if group["params"]]


def _rooted(optimiser: Optimizer) -> Optimizer:
    """The optimiser with its state in place and its own ways of computing kept when a checkpoint is loaded."""
    for group in optimiser.param_groups:
        for p in group["params"]:
            if not optimiser.state[p]:
                optimiser.state[p].update(_start(p, group))
    optimiser.register_load_state_dict_pre_hook(_keep_kernels)
    rates = [group["lr"] for group in optimiser.param_groups]
    optimiser.register_load_state_dict_post_hook(partial(_keep_rates, rates=rates))
    return optimiser


def _start(p: Tensor, group: dict[str, Any]) -> dict[str, Tensor]:
    """The zeros that torch would make at the first step: made inside a capture, every replay would zero them again."""
    if "betas" in group:
        device = (
            p.device if group["fused"] or group["capturable"] else "cpu"
        )  # where AdamW itself keeps its count
        step = torch.zeros((), dtype=torch.float32, device=device)
        return {"step": step, "exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
    return {"momentum_buffer": torch.zeros_like(p)} if group["momentum"] else {}


def _keep_kernels(optimiser: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    """A checkpoint from a GPU says fused and capturable, which a CPU could not be, and the other way round."""
    theirs, ours = state["param_groups"], optimiser.param_groups
    if len(theirs) != len(ours):
        raise ValueError(
            f"the checkpoint has {len(theirs)} groups of parameters, the optimiser {len(ours)}"
        )
    kept = [{key: group[key] for key in KERNEL if key in group} for group in ours]
    return state | {"param_groups": [saved | own for saved, own in zip(theirs, kept, strict=True)]}


def _keep_rates(optimiser: Optimizer, rates: list[float | Tensor]) -> None:
    """A loaded rate takes the optimiser's own form: from a tensor on the CPU, a capture would bake in its value."""
    for group, own in zip(optimiser.param_groups, rates, strict=True):
        value = float(group["lr"])
        group["lr"] = own.fill_(value) if isinstance(own, Tensor) else value


def _check(*, lr: float, momentum: float, weight_decay: float, nesterov: bool) -> None:
    _check_rate(lr)
    if not 0 <= momentum < 1:
        raise ValueError(f"the momentum of an optimiser lies in [0,1), got {momentum}")
    if not 0 <= weight_decay < math.inf:
        raise ValueError(f"weight decay must not be negative, got {weight_decay}")
    if nesterov and not momentum:
        raise ValueError("nesterov looks ahead along the momentum, which is 0")


def _check_rate(lr: float) -> None:
    if not 0 <= lr < math.inf:
        raise ValueError(f"a learning rate is a finite number of 0 or more, got {lr}")


def _check_group(*, lr: Any, trust: float | None, variant: str, **settings: Any) -> None:
    _check(lr=float(lr), **settings)
    _check_trust(trust, variant)


def _check_trust(trust: float | None, variant: str) -> None:
    if trust is not None and not 0 < trust < math.inf:
        raise ValueError(f"the trust of lars must be above 0, got {trust}")
    if variant not in get_args(Variant):
        raise ValueError(
            f"the variant of lars is one of {', '.join(get_args(Variant))}, not {variant!r}"
        )


def _check_name(name: str, nesterov: bool, trust: float, variant: str) -> None:
    if name not in get_args(Name):
        raise ValueError(f"an optimiser is one of {', '.join(get_args(Name))}, not {name!r}")
    if name != "lars" and (trust, variant) != (0.001, "after"):
        raise ValueError(f"trust and variant belong to lars, but the optimiser is {name}")
    if name == "adamw" and nesterov:
        raise ValueError("adamw has no nesterov momentum")
