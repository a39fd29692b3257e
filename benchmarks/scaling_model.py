"""Model the time of a training step on 8 to 1,024 GPUs, from bytes and bandwidths.

    python benchmarks/scaling_model.py                      # the tables of docs/scaling.md
    python benchmarks/scaling_model.py --share 32 --node 4  # other images per GPU and GPUs per node

A step computes for some time on each GPU and then waits for its collectives. Nothing overlaps with
the computation: a compiled backward pass returns all gradients at its end. The model counts the
collectives that a step really calls, with their bytes:

- gather: keys or features of all images, and the sum of their gradients on the way back.
- statistics: one gather of mean and variance per batch-norm layer on the way forward and one sum on
  the way back, over the GPUs of a statistics group. A twin has another gather.
- gradients: the sum of all gradients in float32, in flat buckets.
- shuffle: MoCo's key images travel twice, to mix the statistics groups.

A collective takes a latency per hop plus its bytes over the bandwidth. Within a node the hops are
NVLink's, between nodes those of the network. All network cards of a node work in parallel, as in
NCCL's rings.
"""

import argparse
import json
import math
from dataclasses import dataclass

COUNTS = (1, 8, 16, 32, 64, 128, 256, 512, 1024)


@dataclass(frozen=True)
class Machine:
    """Bandwidths in bytes per second and latencies in seconds, per GPU.

    The defaults are those of a node of eight H100 or H200 with NVLink 4 (450 GB/s each way, of
    which a collective reaches about 80 %) and one 400 Gb/s network card per GPU (about 80 %
    reached). `launch` is what any collective costs, `hop` what each further step of a tree costs.
    """

    node: int = 8
    inside: float = 360e9
    outside: float = 40e9
    launch: float = 10e-6
    hop_inside: float = 2e-6
    hop_outside: float = 8e-6

    def latency(self, gpus: int) -> float:
        """Return the seconds of a collective of no bytes."""
        if gpus == 1:
            return 0.0
        nodes = max(1, gpus // self.node)
        inside = math.ceil(math.log2(min(gpus, self.node))) * self.hop_inside
        return self.launch + inside + math.ceil(math.log2(nodes)) * self.hop_outside

    def bandwidth(self, gpus: int) -> float:
        """Return the bandwidth at which data pass through a node, or through a GPU inside it."""
        return self.inside if gpus <= self.node else min(self.inside, self.node * self.outside)

    def all_reduce(self, size: float, gpus: int) -> float:
        """Return the seconds of a sum of `size` bytes over the GPUs."""
        share = 2 * (gpus - 1) / gpus
        return 2 * self.latency(gpus) + share * size / self.bandwidth(gpus)

    def all_gather(self, size: float, gpus: int) -> float:
        """Return the seconds of a gather of `size` bytes from each GPU."""
        return self.latency(gpus) + (gpus - 1) * size / self.bandwidth(gpus)


@dataclass(frozen=True)
class Work:
    """What a step computes and sends.

    Args:
        name: for the table.
        compute: seconds of computation per image of a GPU's share.
        weights: trained weights.
        layers: batch-norm layers that pass over the ranks.
        channels: their channels in all.
        views: views of each image that pass the network, and whose features are gathered.
        width: of a feature.
        shuffled: bytes of a key image, if keys are shuffled over the ranks.
        backward: the gathered features have gradients.
        groups: statistics groups of batch norm, or 0 for one per node.
        twin: keys come from a twin, whose batch norm needs statistics, too.
    """

    name: str
    compute: float
    weights: float
    layers: int
    channels: int
    views: int
    width: int
    shuffled: float = 0.0
    backward: bool = True
    groups: int = 1
    twin: bool = False


# ResNet-50 at 224 px: 52.3 ms for 256 images of MoCo v2 (scale of an H200, benchmarks/RESULTS.md)
# with one backward and one forward view; SimCLR has two backward views, 3/2 of the work.
RESNET50 = {"weights": 27.9e6, "layers": 55, "channels": 28_672}
WORKS = [
    Work("SimCLR, batch norm over all ranks", 306e-6, **RESNET50, views=2, width=128),
    Work("SimCLR, batch norm per rank", 306e-6, 27.9e6, 0, 0, views=2, width=128),
    Work(
        "MoCo v2, shuffled keys, as many statistics groups as GPUs",
        204e-6,
        27.9e6,
        0,
        0,
        views=1,
        width=128,
        shuffled=3 * 224**2 * 4,
        backward=False,
    ),
    Work("MoCo v2, keys not shuffled", 204e-6, 27.9e6, 0, 0, views=1, width=128, backward=False),
    Work("SimCLR, batch norm per node", 306e-6, **RESNET50, views=2, width=128, groups=0),
    Work(
        "MoCo v2, shuffled keys, 8 statistics groups",
        204e-6,
        **RESNET50,
        views=1,
        width=128,
        shuffled=3 * 224**2 * 4,
        backward=False,
        groups=8,
        twin=True,
    ),
]


def step(work: Work, machine: Machine, gpus: int, share: int) -> dict[str, float]:
    """Return the milliseconds of each part of a step with `share` images on each GPU."""
    features = share * work.views * work.width * 4
    gather = machine.all_gather(features, gpus)
    if work.backward:
        gather += machine.all_reduce(features * gpus, gpus)
    per_layer = 2 * work.channels / max(work.layers, 1) * 4 * work.views  # mean and variance
    among = max(1, gpus // work.groups) if work.groups else min(gpus, machine.node)
    forward = machine.all_gather(per_layer, among) * (2 if work.twin else 1)
    backward = machine.all_reduce(per_layer, among)
    shuffle = 0.0
    if work.shuffled:
        shuffle = machine.all_gather(share * work.shuffled, gpus)
        shuffle += machine.all_gather(share * work.width * 4, gpus)
    parts = {
        "compute": share * work.compute,
        "gather": gather,
        "statistics": work.layers * (forward + backward),
        "gradients": machine.all_reduce(4 * work.weights, gpus),
        "shuffle": shuffle,
    }
    if gpus == 1:
        parts = {name: seconds * (name == "compute") for name, seconds in parts.items()}
    return {name: 1e3 * seconds for name, seconds in parts.items()}


def table(work: Work, machine: Machine, share: int) -> list[dict[str, float]]:
    """Return one row for each number of GPUs, with the efficiency over a single one."""
    rows = []
    for gpus in COUNTS:
        parts = step(work, machine, gpus, share)
        total = sum(parts.values())
        efficiency = parts["compute"] / total
        rows.append({"gpus": gpus, **parts, "step": total, "efficiency": efficiency})
    return rows


def limit(rows: list[dict[str, float]], bar: float = 0.8) -> int:
    """Return the largest number of GPUs up to which the efficiency is at least `bar`."""
    return max(int(row["gpus"]) for row in rows if row["efficiency"] >= bar)


def markdown(rows: list[dict[str, float]]) -> str:
    """Return the rows as a table of milliseconds."""
    names = ("compute", "gather", "statistics", "gradients", "shuffle", "step")
    lines = [f"| GPUs | {' | '.join(names)} | efficiency |", "|---|" + "---|" * (len(names) + 1)]
    for row in rows:
        cells = [f"{row[name]:.1f}" for name in names]
        share = f"{100 * row['efficiency']:.0f} %"
        lines.append(f"| {row['gpus']:,} | {' | '.join(cells)} | {share} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--share", type=int, default=64, help="images on each GPU")
    parser.add_argument("--node", type=int, default=8, help="GPUs of a node")
    parser.add_argument("--outside", type=float, default=40, help="GB/s of a GPU between nodes")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    machine = Machine(node=args.node, outside=args.outside * 1e9)
    tables = {work.name: table(work, machine, args.share) for work in WORKS}
    if args.json:
        print(json.dumps(tables))
        return
    for name, rows in tables.items():
        print(f"{name}, {args.share} images on each GPU (ms)\n\n{markdown(rows)}\n")
        print(f"At least 80 % up to {limit(rows):,} GPUs.\n")


if __name__ == "__main__":
    main()
