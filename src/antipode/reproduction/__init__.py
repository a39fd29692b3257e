"""The tables and figures of the papers: which runs each needs, and our numbers beside the paper's."""

from antipode.reproduction import adco, dcl, eqco, jcl, msbreg, simo
from antipode.reproduction.item import Item

ITEMS: dict[str, Item] = {**adco.ITEMS, **eqco.ITEMS, **simo.ITEMS, **dcl.ITEMS, **jcl.ITEMS, **msbreg.ITEMS}
