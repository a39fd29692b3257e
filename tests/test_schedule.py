"""Tests of the schedules: the curves of the papers, written out by hand, and common properties."""

import math
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antipode.schedule import Schedule, constant, cosine, ramp, scaled, steps

EPOCHS, PER = 200, 7
TOTAL = EPOCHS * PER


def curve(schedule, per_epoch=PER):
    return [schedule.factor(step, per_epoch) for step in range(schedule.epochs * per_epoch + 1)]


def test_constant_is_one_everywhere():
    assert set(curve(Schedule(epochs=EPOCHS))) == {1.0} and constant(0.3) == 1.0


def test_cosine_runs_from_one_over_the_middle_to_its_floor():
    assert cosine(0.0) == 1.0 and cosine(1.0) == 0.0 and cosine(0.5) == pytest.approx(0.5)
    assert cosine(0.0, 0.02) == 1.0 and cosine(1.0, 0.02) == 0.02
    assert cosine(0.5, 0.02) == pytest.approx(0.51)


def test_adco_falls_per_epoch_to_its_final_rate():
    schedule = Schedule(name="cosine", epochs=EPOCHS, floor=0.0006 / 0.03, per="epoch")
    for step in range(TOTAL):
        expected = 0.5 * (1 + math.cos(math.pi * (step // PER) / EPOCHS)) * (0.03 - 0.0006) + 0.0006
        assert 0.03 * schedule.factor(step, PER) == pytest.approx(expected, rel=1e-14)


def test_moco_v1_falls_tenfold_at_120_and_160():
    schedule = Schedule(name="steps", epochs=EPOCHS, at=(120, 160))
    for step, factor in enumerate(curve(schedule)):
        expected = 1 if step < 120 * PER else 0.1 if step < 160 * PER else 0.01
        assert factor == pytest.approx(expected, rel=1e-15)


def test_inv_spread_has_a_factor_for_each_epoch():
    schedule = Schedule(name="steps", epochs=300, at=(120, 160, 200), factors=(0.1, 0.05, 0.01))
    epochs = (0, 119, 120, 159, 160, 199, 200, 299)
    expected = [1.0, 1.0, 0.1, 0.1, 0.05, 0.05, 0.01, 0.01]
    assert [schedule.factor(epoch * PER, PER) for epoch in epochs] == expected
    from_zero = Schedule(
        name="steps", epochs=300, at=(0, 120, 160, 200), factors=(1.0, 0.1, 0.05, 0.01)
    )
    assert curve(from_zero) == curve(schedule)


def test_simclr_warms_up_from_zero_then_takes_the_cosine_over_the_rest_per_step():
    schedule = Schedule(name="cosine", epochs=EPOCHS, warmup=10)
    warm = 10 * PER
    for step, factor in enumerate(curve(schedule)):
        decayed = 0.5 * (1 + math.cos(math.pi * (step - warm) / (TOTAL - warm)))
        assert factor == pytest.approx(step / warm if step < warm else decayed, abs=1e-15)
    assert schedule.factor(0, PER) == 0 and schedule.factor(warm, PER) == 1


def test_cld_warms_up_from_a_hundredth():
    schedule = Schedule(name="cosine", epochs=EPOCHS, warmup=5, start=0.01)
    warm = 5 * PER
    for step in range(warm):
        assert schedule.factor(step, PER) == pytest.approx((99 * step / warm + 1) / 100, rel=1e-14)
    assert schedule.factor(warm, PER) == 1
    plain = Schedule(name="cosine", epochs=EPOCHS - 5)
    assert curve(schedule)[warm:] == curve(plain)


def test_simo_multiplies_the_whole_cosine_by_its_warm_up():
    schedule = Schedule(name="cosine", epochs=EPOCHS, warmup=10, form="times", start=0.001)
    warm = 10 * PER
    for step, factor in enumerate(curve(schedule)):
        part = min(step / warm, 1)
        whole = 0.5 * (1 + math.cos(math.pi * step / TOTAL))
        assert factor == pytest.approx((0.001 * (1 - part) + part) * whole, abs=1e-15)


@pytest.mark.parametrize("form", ["before", "times"])
def test_a_warm_up_leaves_the_epochs_of_a_steps_schedule_where_they_are(form):
    plain = Schedule(name="steps", epochs=EPOCHS, at=(120, 160))
    warmed = Schedule(name="steps", epochs=EPOCHS, at=(120, 160), warmup=5, start=0.01, form=form)
    assert curve(warmed)[5 * PER :] == curve(plain)[5 * PER :]
    assert curve(warmed)[: 5 * PER] == [ramp(step / (5 * PER), 0.01) for step in range(5 * PER)]


def test_a_ramp_stays_at_one():
    assert [ramp(x) for x in (0, 0.25, 1, 3)] == [0, 0.25, 1, 1] and ramp(0, 0.001) == 0.001


def test_the_last_of_several_epochs_decides():
    assert [steps(epoch, (2, 5), (0.5, 3.0)) for epoch in (0, 2, 4, 5, 9)] == [1, 0.5, 0.5, 3, 3]
    assert [steps(epoch, (2, 5), 0.5) for epoch in (0, 2, 4, 5, 9)] == [1, 0.5, 0.5, 0.25, 0.25]


SCHEDULES = st.one_of(
    st.builds(Schedule, name=st.just("cosine"), epochs=st.integers(6, 1000), floor=st.floats(0, 1)),
    st.builds(
        Schedule,
        name=st.just("cosine"),
        epochs=st.integers(6, 1000),
        warmup=st.integers(0, 5) | st.floats(0, 5.5),
        form=st.sampled_from(["before", "times"]),
        start=st.floats(0.001, 1),
        per=st.sampled_from(["step", "epoch"]),
    ),
    st.builds(
        Schedule,
        name=st.just("steps"),
        epochs=st.integers(6, 1000),
        at=st.just((3, 5)),
        factors=st.floats(0, 1),
    ),
)


@given(SCHEDULES, st.integers(1, 500), st.data())
def test_factors_lie_between_nothing_and_the_base_rate(schedule, per_epoch, data):
    step = data.draw(st.integers(0, schedule.epochs * per_epoch))
    assert 0 <= schedule.factor(step, per_epoch) <= 1 + 1e-12


@given(st.integers(1, 1000), st.integers(1, 5000), st.data())
def test_per_epoch_stands_still_within_an_epoch_exactly(epochs, per_epoch, data):
    epoch = data.draw(st.integers(0, epochs - 1))
    schedule = Schedule(name="cosine", epochs=epochs, per="epoch")
    first, last = epoch * per_epoch, (epoch + 1) * per_epoch - 1
    expected = cosine(epoch / epochs)
    assert schedule.factor(first, per_epoch) == schedule.factor(last, per_epoch) == expected


@given(st.integers(1, 5000), st.integers(1, 1000))
def test_a_step_schedule_falls_at_the_very_step(per_epoch, epoch):
    schedule = Schedule(name="steps", epochs=1000, at=(epoch,))
    at = epoch * per_epoch
    assert schedule.factor(at - 1, per_epoch) == 1 and schedule.factor(at, per_epoch) == 0.1


@pytest.mark.parametrize("per", ["step", "epoch"])
def test_the_curve_depends_on_epochs_not_on_their_length(per):
    schedule = Schedule(name="cosine", epochs=20, warmup=4, start=0.1, floor=0.1, per=per)
    assert curve(schedule, 3)[::3] == pytest.approx(curve(schedule, 12)[::12], rel=1e-14)


BASE = {"name": "cosine", "epochs": 20, "warmup": 3, "start": 0.1}
STEPS = {"name": "steps", "epochs": 20, "at": (4, 9)}


@pytest.mark.parametrize(
    "base, change",
    [
        (BASE, {"name": "constant"}),
        (BASE, {"epochs": 21}),
        (BASE, {"warmup": 4}),
        (BASE, {"form": "times"}),
        (BASE, {"start": 0.2}),
        (BASE, {"floor": 0.1}),
        (BASE, {"per": "epoch"}),
        (STEPS, {"at": (4, 8)}),
        (STEPS, {"factors": 0.2}),
        (STEPS, {"factors": (0.1, 0.05)}),
    ],
    ids=str,
)
def test_every_field_has_an_effect(base, change):
    before, after = Schedule(**base), Schedule(**{**base, **change})
    assert curve(before)[:141] != curve(after)[:141]


def test_schedules_are_values():
    schedule = Schedule(**STEPS)
    assert pickle.loads(pickle.dumps(schedule)) == schedule
    assert hash(schedule) == hash(Schedule(**STEPS))


def test_square_root_and_linear_scaling_of_simclr_meet_at_4096():
    assert scaled(0.075, "sqrt", 4096) == scaled(0.3, "linear", 4096) == 4.8
    assert scaled(0.075, "sqrt", 256) > scaled(0.3, "linear", 256)


def test_scaling_rules():
    assert scaled(0.03, "fixed", 512, 8) == 0.03
    assert scaled(0.03, "linear", 512, 8) == 0.06
    assert scaled(0.4, "views", 512, 8) == pytest.approx(6.4)  # MSBReg on ImageNet-100 with 8 views
    assert scaled(0.4, "views", 512) == scaled(0.4, "linear", 512)


WRONG = {
    "an unknown schedule": lambda: Schedule(name="cosines", epochs=2),
    "an unknown warm-up": lambda: Schedule(epochs=2, form="after"),
    "an unknown value of per": lambda: Schedule(epochs=2, per="batch"),
    "no epochs": lambda: Schedule(epochs=0),
    "a warm-up of the whole run": lambda: Schedule(epochs=5, warmup=5),
    "a negative warm-up": lambda: Schedule(epochs=5, warmup=-1),
    "a warm-up that starts above 1": lambda: Schedule(epochs=5, warmup=1, start=1.5),
    "a first epoch with learning rate 0": lambda: Schedule(epochs=5, warmup=1, per="epoch"),
    "a floor above 1": lambda: Schedule(name="cosine", epochs=5, floor=1.5),
    "a floor of NaN": lambda: Schedule(name="cosine", epochs=5, floor=math.nan),
    "a floor without a cosine": lambda: Schedule(epochs=5, floor=0.5),
    "a steps schedule without epochs": lambda: Schedule(name="steps", epochs=5),
    "a cosine schedule with epochs in at": lambda: Schedule(name="cosine", epochs=5, at=(1,)),
    "epochs in descending order": lambda: Schedule(name="steps", epochs=5, at=(3, 2)),
    "a negative epoch": lambda: Schedule(name="steps", epochs=5, at=(-1, 2)),
    "the same epoch twice": lambda: Schedule(name="steps", epochs=5, at=(2, 2)),
    "too few factors": lambda: Schedule(name="steps", epochs=5, at=(2, 3), factors=(0.1,)),
    "a negative factor": lambda: Schedule(name="steps", epochs=5, at=(2,), factors=-0.1),
    "one negative factor of two": lambda: Schedule(
        name="steps", epochs=5, at=(2, 3), factors=(0.1, -0.1)
    ),
    "a step before the run": lambda: Schedule(epochs=5).factor(-1, 10),
    "a step after the run": lambda: Schedule(epochs=5).factor(51, 10),
    "epochs without steps": lambda: Schedule(epochs=5).factor(0, 0),
    "an unknown rule": lambda: scaled(0.1, "square", 256),
    "no images": lambda: scaled(0.1, "linear", 0),
    "no views": lambda: scaled(0.1, "views", 256, 0),
}


def test_lists_are_taken_as_tuples():
    for epoch, factor in ((0, 1.0), (2, 0.5), (3, 0.1), (9, 0.1)):
        assert steps(epoch, [2, 3], [0.5, 0.1]) == factor
    from_lists = Schedule(name="steps", epochs=5, at=[2, 3], factors=[0.5, 0.1])
    assert from_lists == Schedule(name="steps", epochs=5, at=(2, 3), factors=(0.5, 0.1))
    assert hash(from_lists)
    with pytest.raises(ValueError, match="2 epochs needs 2 factors or one number, got 1 factors"):
        Schedule(name="steps", epochs=5, at=[2, 3], factors=[0.5])


@pytest.mark.parametrize("case", WRONG)
def test_wrong_schedules_end_in_a_sentence(case):
    with pytest.raises(ValueError, match=r"^\S+ .* \S+$") as error:
        WRONG[case]()
    assert "\n" not in str(error.value)
