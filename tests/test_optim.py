"""Tests of the optimisers.

They cover LARS against its reference implementation, excluded parameters, learning rates that
change in place, bit-identical resuming, and gradient clipping.
"""

import io
import math

import pytest
import torch

from antipode import optim
from antipode.optim import Lars, clip, make, set_rate
from tests.reference import lars as reference

VARIANTS = ["inside", "after", "larc", "larc_clip"]
NAMES = ["sgd", "adamw", "lars"]
KINDS = [("sgd", "after"), ("adamw", "after"), *(("lars", variant) for variant in VARIANTS)]
MOTIONS = [{"momentum": m, "nesterov": n} for m, n in ((0.0, False), (0.9, False), (0.9, True))]
SHAPES = [(4, 3, 2, 2), (5, 4), (5,), ()]
RATES = [0.5, 0.5, 0.1, 2.0, 0.0, 0.7]


def weights():
    generator = torch.Generator().manual_seed(99)
    return [torch.randn(shape, generator=generator).requires_grad_() for shape in SHAPES]


def push(parameters, seed):
    """Set random gradients that depend only on the seed."""
    generator = torch.Generator().manual_seed(seed)
    for p in parameters:
        p.grad = torch.randn(p.shape, generator=generator, dtype=p.dtype).to(p.device)


def train(optimiser, parameters, rates=RATES, first=0):
    for step, lr in enumerate(rates):
        set_rate(optimiser, lr)
        push(parameters, first + step)
        optimiser.step()
    return [p.detach().clone() for p in parameters]


def same(left, right):
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def close(left, right, tolerance):
    return all(
        torch.allclose(a.double(), b.double(), **tolerance)
        for a, b in zip(left, right, strict=True)
    )


def flat(tensors):
    return [t.detach().flatten().tolist() for t in tensors]


def apart(theirs, ours):
    return max(
        abs(a - b) for x, y in zip(theirs, ours, strict=True) for a, b in zip(x, y, strict=True)
    )


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("motion", MOTIONS, ids=str)
@pytest.mark.parametrize("trust", [0.001, 0.5, None])
@pytest.mark.parametrize("variant", VARIANTS)
def test_lars_is_its_page_while_the_rate_changes(double, variant, trust, motion, decay):
    ours = weights()
    with torch.no_grad():
        ours[1].zero_()  # weights of zeros
    settings = {"trust": trust, "variant": variant, **motion}
    theirs = reference.Lars(flat(ours), decay=decay, **settings)
    optimiser = Lars(ours, lr=1.0, weight_decay=decay, **settings)
    for step, lr in enumerate(rate + 0.01 for rate in RATES):  # the reference divides by it
        push(ours, step)
        if step == 2:
            ours[0].grad.zero_()  # a gradient of zeros
        set_rate(optimiser, lr)
        theirs.step(flat([p.grad for p in ours]), lr)
        optimiser.step()
        assert apart(theirs.w, flat(ours)) < 1e-12


@pytest.mark.parametrize("nesterov", [False, True])
def test_inside_and_after_are_one_while_the_rate_stands_still_and_two_when_it_moves(
    double, nesterov
):
    def end(variant, rates):
        p = weights()
        optimiser = Lars(p, lr=1.0, weight_decay=0.1, variant=variant, nesterov=nesterov)
        return train(optimiser, p, rates)

    assert close(end("inside", [0.5] * 6), end("after", [0.5] * 6), {"rtol": 1e-12})
    assert not close(end("inside", RATES), end("after", RATES), {"rtol": 1e-4})


@pytest.mark.parametrize("motion", MOTIONS, ids=str)
def test_lars_without_trust_is_sgd(double, motion):
    ours, theirs = weights(), weights()
    settings = {"lr": 1.0, "weight_decay": 0.1, **motion}
    lars = Lars(ours, trust=None, **settings)
    sgd = torch.optim.SGD(theirs, **settings)
    assert close(train(lars, ours), train(sgd, theirs), {"rtol": 1e-12})


def test_a_clipped_step_is_sgd_while_the_rate_is_below_the_local_one(double):
    ours, theirs = weights(), weights()
    larc = Lars(ours, lr=1.0, trust=1e6, variant="larc_clip")
    sgd = torch.optim.SGD(theirs, lr=1.0, momentum=0.9)
    assert close(train(larc, ours), train(sgd, theirs), {"rtol": 1e-12})


@pytest.mark.parametrize("variant", VARIANTS[:3])
def test_the_first_step_is_as_long_as_trust_says_whatever_the_gradient(double, variant):
    for scale in (1e-3, 1.0, 1e3):
        p = weights()[:2]
        before = [w.detach().clone() for w in p]
        optimiser = Lars(p, lr=0.5, trust=0.02, variant=variant)
        push(p, 0)
        for w in p:
            w.grad.mul_(scale)
        optimiser.step()
        for w, old in zip(p, before, strict=True):
            moved = float((w.detach() - old).norm() / old.norm())
            assert moved == pytest.approx(0.5 * 0.02, rel=1e-4)  # not exact because of LARC's eps


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("lr", [0.0, 0.1])
def test_zeros_stay_finite(variant, lr):
    for zero_weight, zero_gradient in [(True, True), (True, False), (False, True)]:
        p = weights()
        optimiser = Lars(p, lr=lr, weight_decay=0.1, variant=variant)
        for _ in range(3):
            push(p, 0)
            with torch.no_grad():
                for w in p:
                    w.mul_(0 if zero_weight else 1)
                    w.grad.mul_(0 if zero_gradient else 1)
            optimiser.step()
            assert all(w.isfinite().all() for w in p)


@pytest.mark.parametrize("name", NAMES)
def test_a_step_leaves_gradients_and_idle_parameters_alone(name):
    p = weights()
    optimiser = make(p, name=name, lr=0.1, weight_decay=0.1)
    push(p, 0)
    p[1].grad = None
    idle = p[1].detach().clone()
    before = [w.grad.clone() for w in p if w.grad is not None]
    optimiser.step()
    assert same(before, [w.grad for w in p if w.grad is not None])
    assert torch.equal(p[1], idle)


def test_lars_takes_a_closure_and_later_groups():
    p = weights()
    optimiser = Lars(p[:2], lr=0.1)
    optimiser.add_param_group({"params": p[2:]})
    loss = optimiser.step(lambda: (sum((w**2).sum() for w in p).backward(), 3.0)[1])
    assert loss == 3.0
    assert all(not torch.equal(w, old) for w, old in zip(p, weights(), strict=True))


@pytest.mark.parametrize("motion", MOTIONS, ids=str)
def test_made_sgd_is_torchs_to_the_bit(motion):
    ours, theirs = weights(), weights()
    settings = {"lr": 1.0, "weight_decay": 0.1, **motion}
    assert same(
        train(make(ours, name="sgd", **settings), ours),
        train(torch.optim.SGD(theirs, **settings), theirs),
    )


def test_made_adamw_is_torchs_to_the_bit_with_the_momentum_as_its_first_beta():
    ours, theirs = weights(), weights()
    adamw = torch.optim.AdamW(theirs, lr=1.0, betas=(0.8, 0.999), weight_decay=0.1)
    assert same(
        train(make(ours, name="adamw", lr=1.0, momentum=0.8, weight_decay=0.1), ours),
        train(adamw, theirs),
    )


@pytest.mark.parametrize("name", NAMES)
def test_excluded_parameters_do_not_decay_and_the_others_do(name):
    def moved(exclude, decay):
        p = weights()
        return train(make(p, name=name, lr=1.0, weight_decay=decay, exclude=exclude), p, [0.1] * 3)

    free, decayed, split = moved(False, 0.0), moved(False, 0.5), moved(True, 0.5)
    for shape, a, b, c in zip(SHAPES, free, decayed, split, strict=True):
        if len(shape) > 1:
            assert torch.equal(c, b) and not torch.equal(a, b)
        elif name != "lars":  # lars also excludes them from its adaptation
            assert torch.equal(c, a) and not torch.equal(a, b)


def test_excluded_parameters_of_lars_are_plain_sgd(double):
    ours, theirs = weights(), weights()
    lars = make(ours, name="lars", lr=1.0, weight_decay=0.5, exclude=True)
    sgd = torch.optim.SGD(theirs, lr=1.0, momentum=0.9)
    for shape, a, b in zip(SHAPES, train(lars, ours), train(sgd, theirs), strict=True):
        assert torch.allclose(a, b, rtol=1e-12) == (len(shape) <= 1)


@pytest.mark.parametrize("part", [slice(None, 2), slice(2, None)], ids=["only large", "only small"])
def test_one_kind_of_parameters_makes_one_group(part):
    assert len(make(weights()[part], name="lars", lr=0.1, exclude=True).param_groups) == 1


CHANGES = {
    "sgd": [
        {"momentum": 0.5},
        {"weight_decay": 0.2},
        {"nesterov": True},
        {"exclude": True},
        {"name": "adamw"},
    ],
    "adamw": [{"momentum": 0.5}, {"weight_decay": 0.2}, {"exclude": True}, {"name": "lars"}],
    "lars": [
        {"momentum": 0.5},
        {"weight_decay": 0.2},
        {"nesterov": True},
        {"exclude": True},
        {"trust": 0.01},
        *({"variant": variant} for variant in VARIANTS if variant != "after"),
    ],
}


@pytest.mark.parametrize(
    "name, change", [(name, change) for name in NAMES for change in CHANGES[name]], ids=str
)
def test_every_keyword_has_an_effect(name, change):
    def end(**settings):
        p = weights()
        return train(make(p, **({"name": name, "lr": 1.0, "weight_decay": 0.1} | settings)), p)

    assert same(end(), end()) and not same(end(), end(**change))


@pytest.mark.parametrize("name", NAMES)
def test_the_given_rate_is_the_first(name):
    def first(lr, rates):
        p = weights()
        optimiser = make(p, name=name, lr=lr)
        return train(optimiser, p, rates) if rates else (push(p, 0), optimiser.step(), p)[2]

    assert same(first(0.3, []), first(1.0, [0.3])) and not same(first(0.3, []), first(0.4, []))


@pytest.mark.parametrize("name", NAMES)
def test_a_rate_of_zero_moves_nothing(name):
    p = weights()
    assert same(train(make(p, name=name, lr=1.0, weight_decay=0.1), p, [0.0] * 3), weights())


@pytest.mark.parametrize("name", NAMES)
def test_a_capturable_rate_is_one_tensor_that_set_rate_writes_into(name):
    p, q = weights(), weights()
    optimiser = make(p, name=name, lr=1.0, weight_decay=0.1, exclude=True, capturable=True)
    rates = [group["lr"] for group in optimiser.param_groups]
    for rate in rates:
        assert rate.shape == () and rate.dtype == torch.float32 and rate.device == p[0].device
    addresses = [rate.data_ptr() for rate in rates]
    ends = train(optimiser, p)
    assert [group["lr"].data_ptr() for group in optimiser.param_groups] == addresses
    assert all(rate == torch.tensor(RATES[-1]) for rate in rates)
    plain = make(q, name=name, lr=1.0, weight_decay=0.1, exclude=True)
    assert close(ends, train(plain, q), {"rtol": 1e-4, "atol": 1e-5})
    assert isinstance(plain.param_groups[0]["lr"], float)


def saved(optimiser):
    file = io.BytesIO()
    torch.save(optimiser.state_dict(), file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("capturable", [False, True])
@pytest.mark.parametrize("name, variant", KINDS)
def test_a_resumed_run_is_the_same_to_the_bit(name, variant, capturable):
    settings = {"name": name, "lr": 1.0, "weight_decay": 0.1, "exclude": True, "variant": variant}
    settings["capturable"] = capturable
    p = weights()
    optimiser = make(p, **settings)
    train(optimiser, p, RATES[:3])
    q = [w.detach().clone().requires_grad_() for w in p]
    state = saved(optimiser)
    expected = train(optimiser, p, RATES[3:], first=3)
    resumed = make(q, **settings)
    resumed.load_state_dict(state)
    assert resumed.param_groups[0]["lr"] == (torch.tensor(RATES[2]) if capturable else RATES[2])
    assert same(train(resumed, q, RATES[3:], first=3), expected)
    without_state = [w.detach().clone().requires_grad_() for w in q]
    optimiser = make(without_state, **settings)
    assert not same(train(optimiser, without_state, RATES[3:], first=3), expected)


@pytest.mark.parametrize("name", NAMES)
def test_momentum_is_in_the_state_from_the_start(name):
    key = "exp_avg" if name == "adamw" else "momentum_buffer"
    p = weights()
    optimiser = make(p, name=name, lr=0.1)
    assert [s[key].shape for s in saved(optimiser)["state"].values()] == [w.shape for w in p]
    train(optimiser, p, [0.1])
    assert all(s[key].abs().sum() > 0 for s in saved(optimiser)["state"].values())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("capturable", [False, True])
def test_a_checkpoint_brings_values_not_kernels(name, capturable):
    """Load a checkpoint with capturable learning rates into an optimiser without, and vice versa.

    The learning rates keep their type and their address in memory.
    """

    def kernels(optimiser):
        groups = optimiser.param_groups
        return [{key: group[key] for key in optim.KERNEL if key in group} for group in groups]

    p, q = weights(), weights()
    source = make(p, name=name, lr=1.0, exclude=True, capturable=capturable)
    train(source, p, [0.25])
    target = make(q, name=name, lr=1.0, exclude=True, capturable=not capturable)
    before = kernels(target)
    rates = [group["lr"] for group in target.param_groups]
    target.load_state_dict(saved(source))
    assert kernels(target) == before
    for group, rate in zip(target.param_groups, rates, strict=True):
        assert group["lr"] == 0.25 and type(group["lr"]) is type(rate)
        assert capturable or group["lr"] is rate
    with torch.no_grad():
        for a, b in zip(q, p, strict=True):
            a.copy_(b)
    assert close(train(target, q, first=1), train(source, p, first=1), {"rtol": 1e-4, "atol": 1e-5})


def test_clipping_scales_all_gradients_to_the_norm_and_returns_what_it_was():
    p = weights()
    push(p, 0)
    before = [w.grad.clone() for w in p]
    total = torch.cat([g.flatten() for g in before]).norm()
    assert torch.allclose(clip(p, None), total) and same(before, [w.grad for w in p])
    assert torch.allclose(clip(p, 2 * total.item()), total) and same(before, [w.grad for w in p])
    norm = clip(p, 0.5)
    assert norm.shape == () and torch.allclose(norm, total)
    assert close([w.grad for w in p], [g * 0.5 / total for g in before], {"rtol": 1e-5})
    assert torch.allclose(clip(p, None), torch.tensor(0.5))


def test_gradients_that_are_missing_or_zero_have_the_norm_zero():
    p = weights()
    assert clip(p, 1.0) == 0 and clip([], None) == 0
    push(p, 0)
    for w in p[1:]:
        w.grad = None
    p[0].grad.zero_()
    assert clip(iter(p), 1.0) == 0 and p[0].grad.isfinite().all()


def test_a_broken_gradient_is_not_hidden_by_clipping():
    p = weights()
    push(p, 0)
    p[0].grad[0] = math.inf
    assert not clip(p, 1.0).isfinite() and not p[0].grad.isfinite().all()


@pytest.mark.parametrize(
    "broken", [[math.inf, 1.0], [math.nan, 1.0], [3e30, 3e30], [-math.inf, math.inf]]
)
def test_clipping_by_a_norm_that_is_not_finite_leaves_no_finite_gradient(broken):
    p = [torch.zeros(2, requires_grad=True), torch.zeros(3, requires_grad=True)]
    p[0].grad = torch.tensor(broken)
    p[1].grad = torch.ones(3)
    assert not clip(p, None).isfinite()
    assert torch.equal(p[1].grad, torch.ones(3))  # with None, the gradients do not change
    assert not clip(p, 1.0).isfinite()
    assert all(w.grad.isnan().all() for w in p)


PARAMS = weights()
WRONG = {
    "an unknown name": lambda: make(PARAMS, name="adam", lr=0.1),
    "no parameters": lambda: make([], name="sgd", lr=0.1),
    "a negative learning rate": lambda: make(PARAMS, name="sgd", lr=-0.1),
    "a learning rate of NaN": lambda: make(PARAMS, name="adamw", lr=math.nan),
    "an infinite learning rate": lambda: Lars(PARAMS, lr=math.inf),
    "a negative learning rate in set_rate": lambda: set_rate(
        make(PARAMS, name="sgd", lr=0.1), -1.0
    ),
    "momentum of one": lambda: make(PARAMS, name="sgd", lr=0.1, momentum=1.0),
    "momentum below zero": lambda: Lars(PARAMS, lr=0.1, momentum=-0.1),
    "negative decay": lambda: make(PARAMS, name="lars", lr=0.1, weight_decay=-1e-4),
    "nesterov without momentum": lambda: make(
        PARAMS, name="lars", lr=0.1, momentum=0.0, nesterov=True
    ),
    "nesterov in adamw": lambda: make(PARAMS, name="adamw", lr=0.1, nesterov=True),
    "a trust of zero": lambda: make(PARAMS, name="lars", lr=0.1, trust=0.0),
    "an unknown variant": lambda: make(PARAMS, name="lars", lr=0.1, variant="before"),
    "trust in sgd": lambda: make(PARAMS, name="sgd", lr=0.1, trust=0.02),
    "a variant of adamw": lambda: make(PARAMS, name="adamw", lr=0.1, variant="inside"),
    "an unknown variant of one group": lambda: Lars(
        [{"params": PARAMS, "variant": "beside"}], lr=0.1
    ),
    "a negative learning rate of one group": lambda: Lars([{"params": PARAMS, "lr": -0.1}], lr=0.1),
    "a negative decay of a later group": lambda: Lars(PARAMS[:1], lr=0.1).add_param_group(
        {"params": PARAMS[1:], "weight_decay": -1.0}
    ),
    "a trust of zero in a later group": lambda: Lars(PARAMS[:1], lr=0.1).add_param_group(
        {"params": PARAMS[1:], "trust": 0.0}
    ),
    "clipping to a norm of zero": lambda: clip(PARAMS, 0.0),
    "another number of groups": lambda: make(
        PARAMS, name="sgd", lr=0.1, exclude=True
    ).load_state_dict(make(PARAMS, name="sgd", lr=0.1).state_dict()),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_optimisers_end_in_a_sentence(case):
    with pytest.raises(ValueError, match=r"^\S+ .* \S+$") as error:
        WRONG[case]()
    assert "\n" not in str(error.value)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.xdist_group("gpu")
@pytest.mark.parametrize("name, variant", KINDS)
def test_a_captured_step_follows_the_rate(name, variant):
    """The first step is captured; replays equal eager steps of the same kernels bit for bit."""
    settings = {
        "name": name,
        "lr": 1.0,
        "weight_decay": 0.1,
        "exclude": True,
        "variant": variant,
        "capturable": True,
    }
    p, q = ([w.detach().cuda().requires_grad_() for w in weights()] for _ in range(2))
    captured, eager = make(p, **settings), make(q, **settings)
    push(p, 0)
    grads = [w.grad for w in p]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        norm = clip(p, 3.0)
        captured.step()
    for step, lr in enumerate(RATES):
        push(q, step)
        for grad, w in zip(grads, q, strict=True):
            grad.copy_(w.grad)
        for optimiser in (captured, eager):
            set_rate(optimiser, lr)
        graph.replay()
        assert torch.equal(norm, clip(q, 3.0))
        eager.step()
        assert same(p, q)


def test_a_group_may_go_without_momentum_where_the_others_have_nesterovs():
    groups = [{"params": PARAMS[:1]}, {"params": PARAMS[1:], "momentum": 0.0}]
    optimiser = Lars(groups, lr=0.1, nesterov=True)
    assert [group["momentum"] for group in optimiser.param_groups] == [0.9, 0.0]
