"""All tables and figures of EqCo's paper: those of EqCo and those of SiMo."""

from antipode.papers.eqco import eqco_tables, simo_tables, simo_transfer_tables

ITEMS = {**eqco_tables.ITEMS, **simo_tables.ITEMS, **simo_transfer_tables.ITEMS}
