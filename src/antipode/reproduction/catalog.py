"""The tables and figures of the papers: which runs each needs, and our numbers beside the paper's."""

from antipode.papers.adco import tables as adco
from antipode.papers.dcl import tables as dcl
from antipode.papers.eqco import simo_tables as simo
from antipode.papers.eqco import tables as eqco
from antipode.papers.jcl import tables as jcl
from antipode.papers.msbreg import tables as msbreg
from antipode.reproduction.item import Item

ITEMS: dict[str, Item] = {
    **adco.ITEMS,
    **eqco.ITEMS,
    **simo.ITEMS,
    **dcl.ITEMS,
    **jcl.ITEMS,
    **msbreg.ITEMS,
}
