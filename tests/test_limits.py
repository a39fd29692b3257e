"""Numbers have limits that catch slips and hostile files, and that no paper comes near."""

from pathlib import Path
from typing import get_args

import pytest

from antipode.data.views.policy import policies
from antipode.limits import COUNT, LIMITS, NUMBERS, check_limit
from antipode.papers import arguments, methods
from antipode.recipe.listed import list_recipes
from antipode.recipe.resolve import resolve
from antipode.recipe.schema import argument_fields, fields
from antipode.reproduction.catalog import items

# whole numbers that only count, so that a large value takes neither memory nor time
COUNTS = {"ramp", "seed", "checkpoint_every", "checkpoint_steps", "keep"}
COUNTS |= {"log_every", "health_every", "knn_every"}


def is_whole(kind):
    """Return True if an annotation names int, on its own or in a union or list."""
    return kind is int or any(is_whole(part) for part in get_args(kind))


def test_every_whole_number_has_a_limit_or_only_counts():
    kinds = {key.rpartition(".")[2]: kind for key, (kind, _) in fields().items()}
    for name in methods():
        kinds |= {key: argument.annotation for key, argument in arguments(name).items()}
    for policy in policies().values():
        kinds |= {key: argument.annotation for key, argument in argument_fields(policy).items()}
    whole = {name for name, kind in kinds.items() if is_whole(kind)}
    assert whole == (set(LIMITS) | COUNTS) & whole, whole - set(LIMITS) - COUNTS
    assert set(LIMITS) <= whole, "a limit of nothing"


def test_limits_lie_far_above_all_recipes():
    for recipe in list_recipes():
        for key, value in resolve(recipe).leaves().items():
            name = key.rpartition(".")[2]
            if name in LIMITS and isinstance(value, int):
                assert 4 * value <= LIMITS[name].most, (recipe, key)


def test_limits_lie_above_all_values_of_the_papers_tables():
    for item in items().values():
        for grid in item.grids.values():
            for trial in grid.trials:
                for key, value in trial.overrides.items():
                    name = key.rpartition(".")[2]
                    if name in LIMITS and isinstance(value, int):
                        assert value <= LIMITS[name].most, (key, value)


@pytest.mark.parametrize("name", [*LIMITS, "ramp"])
def test_the_largest_value_is_allowed_and_the_next_is_not(name):
    most = LIMITS.get(name, COUNT).most
    check_limit("it", name, most)
    for value in (most + 1, 1e300, float("inf"), 10**5000, [1, most + 1]):
        with pytest.raises(ValueError, match=f"it must be at most {most:,} \\(.+\\), not "):
            check_limit("it", name, value)


@pytest.mark.parametrize("name", [name for name, limit in LIMITS.items() if limit.least])
def test_the_smallest_value_is_allowed_and_the_one_before_is_not(name):
    least = LIMITS[name].least
    check_limit("it", name, [least, least + 1])
    with pytest.raises(ValueError, match=f"it must be at least {least}, not {least - 1}"):
        check_limit("it", name, least - 1)


@pytest.mark.parametrize(
    "size", ["dim", "hidden", "bottleneck", "queue", "bank", "groups", "views"]
)
@pytest.mark.parametrize("value", [0, -1])
def test_no_method_takes_a_size_below_one(size, value):
    takers = [name for name in methods() if size in arguments(name)]
    assert takers
    for name in takers:
        with pytest.raises(ValueError, match=r"\w+ .*(0|-1|effect|nothing)"):
            resolve(method=name, data="shapes", overrides={f"method.{size}": value})


def test_a_seed_has_the_range_of_the_schema():
    assert resolve(flags={"train.seed": 2**63 - 1}).train.seed == 2**63 - 1


def test_the_page_on_the_command_line_states_every_limit():
    text = (Path(__file__).parents[1] / "docs" / "command-line.md").read_text()
    for name, limit in LIMITS.items():
        rows = [line for line in text.splitlines() if f"`{name}`" in line and line[0] == "|"]
        assert any(f"| {limit.most:,} | {limit.reason} |" in row for row in rows), name
    assert f"at most {NUMBERS:,} numbers" in text and f"| {COUNT.most:,} | {COUNT.reason} |" in text
