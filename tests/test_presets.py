"""Laws for every method: purity, resume, compilation, effects of arguments, golden losses."""

import functools
import inspect
import json
import math
import platform
from pathlib import Path

import pytest
import torch

from antipode.core import passes
from antipode.nets.norm import convert
from antipode.papers import arguments, build, methods
from antipode.types import Batch
from tests.toys import MAIN, VARIANTS, Tiny, batch, make, optimiser, train

GOLDEN = Path(__file__).parent / "golden" / "losses.json"

# a second value for every keyword, with what else it needs to have a meaning
EFFECT = {
    "simclr": dict(tau=0.3, dim=5, hidden=7),
    "mocov1": dict(tau=0.3, queue=18, momentum=0.5, dim=5, groups=4),
    "mocov2": dict(tau=0.3, queue=18, momentum=0.5, dim=5, hidden=7, groups=4),
    "byol": dict(momentum=0.5, dim=5, hidden=7),
    "simsiam": dict(dim=5, hidden=7, bottleneck=3),
    "npid": dict(images=30, negatives=9, tau=0.3, memory_momentum=0.9, dim=5),
    "invspread": dict(tau=0.3, dim=5),
    "adco": dict(
        bank=9,
        tau=0.3,
        tau_bank=0.3,
        symmetric=True,
        crops=2,
        in_batch=False,
        fill=False,
        bank_lr=1.0,
        bank_momentum=0.5,
        bank_decay=0.1,
        momentum=0.5,
        dim=5,
        hidden=7,
        groups=4,
    ),
    "eqco": dict(
        base=("simclr", dict(groups=None)),
        negatives=6,
        alpha=10.0,
        tau=0.3,
        momentum=0.5,
        dim=5,
        hidden=7,
        groups=4,
    ),
    "simo": dict(
        negatives=3, shared=False, alpha=10.0, tau=0.3, momentum=0.5, dim=5, hidden=7, groups=4
    ),
    "dcl": dict(
        base="mocov1",
        tau=0.3,
        dim=5,
        hidden=7,
        crops=2,
        queue=(18, dict(base="mocov2")),
        momentum=(0.5, dict(base="mocov2")),
        groups=(2, dict(base="mocov2")),
    ),
    "dclw": dict(
        base="mocov1",
        tau=0.3,
        sigma=0.2,
        detach=False,
        dim=5,
        hidden=7,
        crops=2,
        queue=(18, dict(base="mocov2")),
        momentum=(0.5, dict(base="mocov2")),
        groups=(2, dict(base="mocov2")),
    ),
    "jcl": dict(
        keys=2,
        strength=9.0,
        ramp=2,
        form=("each", dict(ramp=None)),
        tau=0.3,
        queue=18,
        momentum=0.5,
        dim=5,
        hidden=7,
        groups=4,
    ),
    "msbreg": dict(
        views=2,
        centroid="all",
        renormalise=False,
        singular_value=0.1,
        singular_form="nuclear",
        brownian=0.1,
        brownian_form="view",
        uniform=0.1,
        on="projection",
        norm="layer",
        momentum=0.5,
        dim=5,
        hidden=7,
    ),
    "barlowtwins": dict(weight=0.5, dim=5, hidden=7),
    "vicreg": dict(invariance=3.0, variance=2.0, covariance=9.0, dim=5, hidden=7),
    "mocov3": dict(tau=0.3, momentum=0.5, dim=5, hidden=7, layers=3),
    "custom": dict(
        pairing="one-way",
        views=(3, dict(pairing="many-keys")),
        twin="stop-gradient",
        momentum=(0.5, dict(twin="ema")),
        momentum_schedule=("cosine", dict(twin="ema", momentum=0.9)),
        negatives="in-batch-keys",
        queue=(9, dict(negatives="queue")),
        bank=(9, dict(negatives="bank")),
        subset=3,
        tau=0.3,
        tau_bank=(0.3, dict(negatives="bank", bank=8)),
        fill=(False, dict(negatives="bank", bank=8)),
        bank_lr=(1.0, dict(negatives="bank", bank=8)),
        bank_momentum=(0.5, dict(negatives="bank", bank=8)),
        bank_decay=(0.1, dict(negatives="bank", bank=8)),
        strength=(9.0, dict(pairing="many-keys", views=3)),
        ramp=(2, dict(pairing="many-keys", views=3, strength=9.0)),
        coupling="decoupled",
        sigma=(0.2, dict(coupling="weighted")),
        alpha=10.0,
        singular_value=0.1,
        brownian=0.1,
        uniform=0.1,
        predictor=True,
        dim=5,
        hidden=7,
        norm="none",
        joint=True,
        groups=2,
        scale=2.0,
    ),
}


# tracing takes seconds: one variant, which has most kinds of parts, is traced by default
FIRST = {"adco"}
COMPILED = [
    name if name in FIRST else pytest.param(name, marks=pytest.mark.slow) for name in VARIANTS
]
SOME = [name if name in MAIN else pytest.param(name, marks=pytest.mark.slow) for name in VARIANTS]


@functools.cache
def trace(method, **changes):
    """Return what an argument may change: losses and weights of four steps."""
    torch.manual_seed(3)
    learner = make(method, **changes)
    losses, sums = (
        train(learner, 4, total=4),
        [p.detach().double().sum().item() for p in learner.parameters()],
    )
    assert all(math.isfinite(x) for x in losses + sums)
    return losses, sums


@pytest.mark.parametrize(("method", "keyword"), [(m, k) for m in methods() for k in arguments(m)])
def test_every_keyword_has_an_effect(method, keyword):
    changed = EFFECT[method][keyword]
    value, needs = changed if isinstance(changed, tuple) else (changed, {})
    base = (
        {name: value for name, value in needs.items() if name != keyword}
        if keyword != "base"
        else {}
    )
    before = trace(method, **base)
    after = trace(method, **{**needs, keyword: value})
    # the seed fixes the weights, so any difference comes from the keyword
    assert before != after


def test_the_tables_of_this_file_name_every_keyword():
    assert {method: set(arguments(method)) for method in methods()} == {
        m: set(k) for m, k in EFFECT.items()
    }


@pytest.mark.parametrize("variant", VARIANTS)
def test_forward_is_pure(double, variant):
    """A second forward pass gives the same loss and changes only running statistics."""
    learner = make(variant)
    train(learner, 2)
    before = {name: value.clone() for name, value in learner.state_dict().items()}
    b = batch(learner.views, step=7)
    first, second = learner(b), learner(b)
    assert torch.equal(first.loss, second.loss) and torch.equal(first.keys, second.keys)
    moved = {
        name for name, value in learner.state_dict().items() if not torch.equal(value, before[name])
    }
    assert moved and all("running_" in name or "num_batches" in name for name in moved)


@pytest.mark.parametrize("variant", SOME)
def test_three_steps_saved_and_three_more_are_six(variant, tmp_path):
    torch.manual_seed(1)
    whole = make(variant)
    expected = train(whole, 6, total=6)

    torch.manual_seed(1)
    first = make(variant)
    optim = optimiser(first)
    losses = train(first, 3, total=6, optim=optim)
    torch.save({"learner": first.state_dict(), "optim": optim.state_dict()}, tmp_path / "last.pt")

    torch.manual_seed(99)  # everything must come from the file
    second = make(variant)
    optim = optimiser(second)
    state = torch.load(tmp_path / "last.pt", weights_only=True)
    second.load_state_dict(state["learner"])
    optim.load_state_dict(state["optim"])
    losses += train(second, 3, start=3, total=6, optim=optim)
    assert losses == expected
    for (name, a), b in zip(whole.state_dict().items(), second.state_dict().values(), strict=True):
        assert torch.equal(a, b), name


def trained(learner):
    return [(name, p) for name, p in learner.named_parameters() if p.requires_grad]


@pytest.mark.parametrize("variant", COMPILED)
def test_torch_compile_takes_the_whole_graph(double, variant):
    learner = make(variant)
    b = batch(learner.views, step=1)
    torch.compiler.reset()  # all learners share one forward, and dynamo counts its versions
    compiled = torch.compile(learner, fullgraph=True, backend="eager")
    grads = []
    for forward in (learner, compiled):
        out = forward(b)
        grads.append(
            torch.autograd.grad(out.loss, [p for _, p in trained(learner)], allow_unused=True)
        )
    assert torch.allclose(out.loss, learner(b).loss)
    for (name, _), plain, ours in zip(
        trained(learner), *grads, strict=True
    ):  # torch 2.11 once lost some, unsaid
        assert (plain is None) == (ours is None), name
        assert plain is None or torch.allclose(ours, plain, atol=1e-10), name
    if any(part.filling for part in learner.modules() if hasattr(part, "filling")):
        train(learner, 3)
        assert torch.allclose(compiled(b).loss, learner(b).loss)


@pytest.mark.parametrize("variant", SOME)
def test_views_at_once_are_views_one_by_one(double, variant, monkeypatch):
    """On a GPU, views with separate statistics pass as one batch, with the same result."""
    learners, losses, seen = [], [], []
    for at_once in (False, True):
        monkeypatch.setattr(passes, "worth_it", lambda images, answer=at_once: answer)
        torch.manual_seed(1)
        learners.append(make(variant))
        learners[-1].online.register_forward_pre_hook(
            lambda _, x, at_once=at_once: seen.append((at_once, len(x[0])))
        )
        losses.append(train(learners[-1], 3))
    assert all(abs(a - b) < 1e-9 * max(1, abs(a)) for a, b in zip(*losses, strict=True))
    for (name, a), b in zip(
        learners[0].state_dict().items(), learners[1].state_dict().values(), strict=True
    ):
        assert torch.allclose(a, b, rtol=1e-8, atol=1e-10), name
    if len(learners[0].seen) > 1 and not learners[0].joint and "crops" not in variant:
        assert max(size for at_once, size in seen if at_once) > max(
            size for at_once, size in seen if not at_once
        )


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_views_at_once_compile_as_one_graph(double, variant, monkeypatch):
    monkeypatch.setattr(passes, "worth_it", lambda images: True)
    learner = make(variant)
    torch.compiler.reset()
    compiled = torch.compile(learner, fullgraph=True, backend="eager")
    b = batch(learner.views, step=9)
    assert torch.allclose(compiled(b).loss, learner(b).loss)


@pytest.mark.slow  # a C++ compiler takes a minute
def test_real_compilation_gives_the_eager_loss():
    """One small case through the default backend, with noise, products and losses."""
    learner = make("msbreg")
    b = batch(learner.views)
    assert torch.allclose(
        torch.compile(learner, fullgraph=True)(b).loss, learner(b).loss, rtol=1e-4
    )


@pytest.mark.parametrize(
    "variant", ["npid", "mocov2", "adco"]
)  # memory, queue and bank take in what is computed
def test_memories_take_steps_in_bfloat16(variant):
    learner = make(variant).bfloat16()
    for step in range(2):
        b = batch(learner.views, step=step)
        out = learner(b._replace(views=[view.bfloat16() for view in b.views]))
        out.loss.backward()
        learner.after_step(out)
    assert out.loss.isfinite()


@pytest.mark.parametrize("variant", VARIANTS)
def test_golden_losses(double, variant):
    """Five seeded steps in float64 give the golden losses; the changelog explains a difference."""
    golden = json.loads(GOLDEN.read_text())
    torch.manual_seed(7)
    losses = train(make(variant), 5, total=5)
    assert losses == pytest.approx(golden["losses"][variant], rel=1e-6), golden["versions"]


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_order_of_images_in_a_batch_does_not_matter(double, variant):
    learner = make(variant)
    convert(learner, groups=1)  # groups go by place
    b = batch(learner.views)
    order = torch.randperm(8)
    turned = Batch([view[order] for view in b.views], b.image_ids[order])
    assert torch.allclose(learner(b).loss, learner(turned).loss, rtol=1e-10)


def test_every_preset_names_its_paper_and_states_its_loss():
    for name, preset in methods().items():
        text = inspect.getdoc(preset.build)
        assert text, name
        if name != "custom":
            assert "arXiv" in text and "loss" in text, name


def test_a_keyword_with_a_typo_is_refused_with_the_nearest():
    with pytest.raises(
        ValueError, match=r"method adco has no argument 'tau_bnk', did you mean 'tau_bank'\?"
    ):
        build("adco", Tiny(), tau_bnk=1.0)
    with pytest.raises(ValueError, match=r"there is no method 'simclrr', did you mean 'simclr'\?"):
        build("simclrr", Tiny())


if __name__ == "__main__":  # python -m tests.test_presets writes the golden numbers anew
    torch.set_default_dtype(torch.float64)
    frozen = {}
    for variant in VARIANTS:
        torch.manual_seed(7)
        frozen[variant] = train(make(variant), 5, total=5)
    versions = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
    }
    GOLDEN.write_text(json.dumps({"versions": versions, "losses": frozen}, indent=1) + "\n")
