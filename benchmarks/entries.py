"""The runs of accuracy.py, by name."""

from dataclasses import dataclass, field
from typing import Any

QUICK = ("knn", "linear-fast")  # the protocols of most runs


@dataclass(frozen=True)
class Entry:
    """One run: recipe, epochs, batch size, values that differ from the recipe, and protocols."""

    recipe: str
    epochs: int = 100
    batch: int = 256
    values: dict[str, Any] = field(default_factory=dict)
    protocols: tuple[str, ...] = QUICK
    seconds: float = 150.0  # approximate time on an H200, to start only what fits --minutes


def method_entries() -> dict[str, Entry]:
    """Return every method at 100 epochs and batch size 256; SiMo is `simo-255-rule` below."""
    eqco = {"method.base": "mocov2", "method.negatives": 256}
    return {
        "simclr": Entry("cifar10.simclr"),
        "dcl": Entry("cifar10.dcl"),
        "mocov2": Entry("cifar10.mocov2"),
        "mocov1": Entry("cifar10.mocov1"),
        "byol": Entry("cifar10.byol", seconds=240),
        "adco": Entry("cifar10.adco"),
        "dclw": Entry("cifar10.dclw"),
        "eqco": Entry("cifar10.eqco", values=eqco),
        "simsiam": Entry("cifar10.simsiam", seconds=200),
        "npid": Entry("cifar10.npid"),
        "invspread": Entry("cifar10.invspread", seconds=200),
        "adco-symmetric": Entry("cifar10.adco", values={"method.symmetric": True}, seconds=240),
        "jcl": Entry("cifar10.jcl", seconds=260),
        "msbreg-2": Entry("cifar10.msbreg", values={"method.views": 2}, seconds=240),
        "msbreg-4": Entry("cifar10.msbreg", seconds=400),
        # table 2 of the DCL paper
        "dclw-multicrop": Entry("cifar10.dclw", values={"method.crops": 6}, seconds=300),
    }


def dcl_paper_entries() -> dict[str, Entry]:
    """Return DCL and SimCLR in the settings of the DCL paper (table 1)."""
    return {
        f"{method}-paper-{batch}": Entry(f"cifar10.{method}-paper", batch=batch, seconds=seconds)
        for batch, seconds in ((256, 150.0), (32, 400.0))
        for method in ("simclr", "dcl")
    }


def simo_entries() -> dict[str, Entry]:
    """Return SiMo with K negatives, with and without EqCo's rule (figure 3 of the EqCo paper)."""
    entries = {}
    for k in (16, 255, 4):
        # alpha = K means no margin
        for suffix, alpha in (("rule", 256.0), ("plain", float(k))):
            values = {"method.negatives": k, "method.alpha": alpha}
            entries[f"simo-{k}-{suffix}"] = Entry("cifar10.simo", values=values)
    # every query draws its own negatives
    values = {"method.negatives": 16, "method.alpha": 256.0, "method.shared": False}
    entries["simo-16-rule-own"] = Entry("cifar10.simo", values=values)
    return entries


ENTRIES = method_entries() | dcl_paper_entries() | simo_entries()
