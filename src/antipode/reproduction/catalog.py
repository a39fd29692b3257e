"""Find the tables and figures of all papers by name."""

from collections.abc import Mapping
from functools import cache

from antipode.names import check_name
from antipode.papers import collect
from antipode.reproduction.item import Item


@cache
def items() -> Mapping[str, Item]:
    """Return all items by name."""
    return collect("ITEMS")


def item(name: str) -> Item:
    """Return an item by name. Raises ValueError for an unknown name."""
    check_name("item", name, items())
    return items()[name]
