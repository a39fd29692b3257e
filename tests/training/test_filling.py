"""Tests of the sentence about a loss that rises while stored random vectors are replaced."""

import pytest

import antipode
from antipode.core.traits import random_start
from antipode.papers import methods, sketch
from antipode.training.filling import filling_sentence, filling_steps


def test_a_learner_has_a_random_start_exactly_if_keys_replace_its_stored_vectors():
    """A queue, a memory, or a bank that fills. The traits decide, not the name of the method."""
    for name in methods():
        learner = sketch(name, {})
        stores = [part for part in learner.modules() if hasattr(part, "stored")]
        found = random_start(learner)
        assert (found is None) == (not any(getattr(part, "filling", True) for part in stores)), name
        if found:
            assert found.size == max(len(part.stored()) for part in stores)
            assert found.kind in {part.kind for part in stores}


def test_a_bank_that_is_trained_from_the_start_does_not_fill():
    bank = next(name for name in methods() if _has_bank(sketch(name, {})))
    learner = sketch(bank, {})
    part = next(one for one in learner.modules() if getattr(one, "kind", "") == "bank")
    part.filling = False
    assert random_start(learner) is None and filling_sentence(learner, 8) == ""


def _has_bank(learner):
    return any(getattr(part, "kind", "") == "bank" for part in learner.modules())


@pytest.mark.parametrize(("kept", "batch", "steps"), [(96, 32, 3), (97, 32, 4), (10, 32, 1)])
def test_the_span_is_the_stored_vectors_over_the_batch(kept, batch, steps):
    assert filling_steps(kept, batch) == steps
    learner = antipode.build("mocov2", "resnet10-slim", queue=kept)
    sentence = filling_sentence(learner, batch)
    shown = f"first {steps} steps" if steps > 1 else "first step"
    assert f"during the {shown}, which is normal: the queue starts with {kept}" in sentence


def test_training_says_so_once_and_only_for_methods_that_store_negatives(tmp_path, capfd):
    flags = {"epochs": 1, "batch": 256}
    for name, expected in {"mocov2": 1, "simclr": 0}.items():
        antipode.pretrain(f"digits.{name}", out=tmp_path / name, **flags)
        assert capfd.readouterr().err.count("The loss may rise during the") == expected
