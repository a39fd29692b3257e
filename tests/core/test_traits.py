"""What a built learner is like: temperature, alpha, strength, stored and counted negatives."""

import pytest
import torch

from antipode.core import traits
from tests.toys import make

# temperature, EqCo's alpha, strength of JCL's Gaussian
NUMBERS = {
    "simclr": (0.1, None, None),
    "mocov1": (0.07, None, None),
    "mocov2": (0.2, None, None),
    "byol": (None, None, None),
    "simsiam": (None, None, None),
    "adco": (0.12, None, None),  # the bank's own temperature is 0.02
    "eqco": (0.2, 65536, None),
    "eqco-simclr": (0.1, 256, None),
    "simo": (0.2, 256, None),
    "jcl": (0.2, None, 2.0),
    "jcl-each": (0.2, None, None),
    "npid-nce": (0.07, None, None),
    "custom-eqco-bank": (0.2, 50.0, None),
    "custom-jcl-batch": (0.2, None, 4.0),
    "custom-align": (None, None, None),
}

# kind and number of the vectors that a method stores, in 6 dimensions
STORED = {
    "simclr": None,
    "byol": None,
    "simo": None,
    "mocov2": ("queue", 20),
    "eqco": ("queue", 5),
    "jcl": ("queue", 20),
    "adco": ("bank", 12),
    "custom-eqco-bank": ("bank", 12),
    "npid": ("memory", 40),
    "npid-nce": ("memory", 40),
}

# negatives of a query in batches of 8 and of 4 images
NEGATIVES = {
    "simclr": (14, 6),  # both views of 7 other images
    "dcl-crops": (14, 6),  # the two large views are the keys, the local crops are not
    "mocov2": (20, 20),  # the queue
    "jcl": (20, 20),
    "eqco": (5, 5),
    "eqco-simclr": (5, 5),  # 5 drawn of 14 or of 6
    "simo": (5, 3),  # 5 drawn of 7, or all 3 others
    "custom-jcl-batch": (5, 3),
    "byol": (0, 0),
    "npid-nce": (0, 0),  # an objective of its own
}


@pytest.mark.parametrize("variant", NUMBERS)
def test_temperature_alpha_and_strength_are_those_of_the_method(variant):
    learner = make(variant)
    numbers = (traits.temperature(learner), traits.alpha(learner), traits.strength(learner))
    assert numbers == NUMBERS[variant]


@pytest.mark.parametrize("variant", ["simclr", "mocov2", "adco", "npid-nce"])
def test_a_given_temperature_is_the_temperature(variant):
    assert traits.temperature(make(variant, tau=0.37)) == 0.37


def test_the_strength_is_the_final_one_while_it_still_rises():
    learner = make("jcl", strength=3.0)
    learner.before_step(0.0)
    assert float(learner.objective.positives.now) == pytest.approx(3.0 / 4)  # 4 steps to the end
    assert traits.strength(learner) == 3.0


@pytest.mark.parametrize("variant", STORED)
def test_stored_negatives_have_the_kind_and_size_of_the_method(variant):
    found = traits.stored_negatives(make(variant))
    expected = STORED[variant]
    if expected is None:
        assert found is None
    else:
        assert (found.kind, *found.vectors.shape) == (*expected, 6)
        assert torch.allclose(found.vectors.norm(dim=1), torch.ones(expected[1]), atol=1e-5)


def test_a_bank_of_any_length_is_stored_at_unit_length():
    learner = make("adco")
    bank = learner.objective.bank
    with torch.no_grad():
        bank.weight.mul_(torch.arange(1.0, 13.0)[:, None])
    vectors = traits.stored_negatives(learner).vectors
    assert not vectors.requires_grad
    assert torch.allclose(vectors, bank.weight / bank.weight.norm(dim=1, keepdim=True), atol=1e-6)


@pytest.mark.parametrize(
    ("variant", "size"), [("simclr", 0), ("mocov2", 20), ("adco", 12), ("npid", 0)]
)
def test_only_a_queue_or_a_bank_fills_step_by_step(variant, size):
    assert traits.stored_size(make(variant)) == size


@pytest.mark.parametrize("variant", NEGATIVES)
def test_the_negatives_of_a_query_are_counted_by_hand(variant):
    learner = make(variant)
    counts = tuple(traits.negatives_per_query(learner, images) for images in (8, 4))
    assert counts == NEGATIVES[variant]


def test_the_contrast_of_adco_is_inside_its_adversarial_objective():
    learner = make("adco")
    assert traits.contrast(learner) is learner.objective.contrast
    moco = make("mocov2")
    assert traits.contrast(moco) is moco.objective
    assert traits.contrast(make("byol")) is None
