"""MSBReg (Moon et al. 2022): tables 2 to 5 of the supplement."""

from antipode.papers.msbreg.ablation_table import TABLE5
from antipode.papers.msbreg.geometry_table import TABLE3
from antipode.papers.msbreg.norm_table import TABLE4
from antipode.papers.msbreg.transfer_table import TABLE2

ITEMS = {
    "msbreg.table2": TABLE2,
    "msbreg.table3": TABLE3,
    "msbreg.table4": TABLE4,
    "msbreg.table5": TABLE5,
}
