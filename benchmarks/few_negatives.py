"""Find out why SiMo with few negatives stays below SiMo with all of them, in spite of EqCo's rule.

    python benchmarks/few_negatives.py --seeds 0 1 2                         # ResNet-18, one GPU
    python benchmarks/few_negatives.py --network resnet10-slim --stem half --epochs 10    # a CPU
    python benchmarks/few_negatives.py --gradients                           # gradients only
    python benchmarks/few_negatives.py --table                               # all results

Question. EqCo's rule weights K negatives like alpha of them, so that training should not depend on
K. On CIFAR-10, SiMo with K = 16 and the rule is 1.7 points of kNN below K = 255 (RESULTS.md). For
a given batch, the gradient with K drawn negatives differs from that with all of them in two ways:

- Noise. It depends on the draw.
- Bias. Its mean over all draws is another gradient, because the loss is a concave function of the
  mean over negatives (Jensen).

Method. Train with losses that have one of the two, both, or none:

| way       | bias | noise of the draw | loss of a query                                        |
|-----------|------|-------------------|--------------------------------------------------------|
| all       | no   | no                | SiMo's, with all other images of the batch              |
| drawn     | yes  | yes               | SiMo's with K of them and the rule, as in the release   |
| own       | yes  | less in weights   | the same with another draw for each query               |
| averaged  | yes  | almost none       | the mean of `drawn` over groups of K                    |
| corrected | no   | that of `drawn`   | `drawn` - `averaged` + `all`                            |
| weighted  | no   | more than `drawn` | linear in K drawn scores, with their weights in `all`   |

The other images of the batch are put in random order, the same for all queries, and divided into
groups of K. `drawn` uses the first group. In `own`, each query has an order of its own, so that the
noise of different queries is independent and partly averages out in the gradient of the weights.
`averaged` uses all groups of K that fit (15 of 16 at a batch of 256). The mean of the gradient of
`corrected` and of `weighted` over all draws is exactly the gradient of `all`. `weighted` also needs
no other scores than those drawn, but for one number per query. Its noise differs from that of
`drawn`, so `corrected` is the one to compare.

- If noise is the reason, `averaged` is as good as `all`, and `corrected` as bad as `drawn`. `own`
  is then better than `drawn`.
- If bias is the reason, `corrected` is as good as `all`, and `averaged` as bad as `drawn`.

With --gradients, bias and noise are measured in float64 at random embeddings and at checkpoints of
a run with `all`. They are relative to the root mean square length of the gradient of `all`, for the
gradient with respect to the projections of a batch and with respect to the weights of the network:

| number           | is                                                                           |
|------------------|------------------------------------------------------------------------------|
| bias             | the length of the mean over draws minus the gradient of `all`                |
| scale            | the part of the mean over draws along the gradient of `all`; 1 without bias  |
| noise            | the standard deviation over draws                                            |
| batch noise      | the standard deviation of the gradient of `all` over batches (weights)       |
| systematic bias  | the bias of the mean over batches, relative to the mean gradient of `all`    |
| systematic scale | the scale of the mean over batches                                           |

All ways have the same weights, order of images and views at the start for the same seed, so their
differences are paired. Each finished run appends a JSON line to --out and is not run again. The
environment variable ANTIPODE_DATA names the folder with CIFAR-10.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

import antipode
from accuracy import facts
from antipode import papers, rng
from antipode.analysis.embeddings import RunEmbeddings
from antipode.analysis.run import _embeddings
from antipode.core.learner import Learner
from antipode.core.loss import coupled, eqco
from antipode.core.negatives import InBatch, Noise
from antipode.core.objective import Metrics
from antipode.core.scores import unit
from antipode.data.loader import Loader
from antipode.devices import pick_device
from antipode.types import Pair, Terms
from machine import surroundings

OUT = Path(__file__).parent / "results" / "few_negatives.jsonl"
METHOD = "simo-few"
ALPHA = 256.0
TAU = 0.2
PROTOCOLS = ("knn", "linear-fast")
Way = Literal["all", "drawn", "own", "averaged", "corrected", "weighted"]
WAYS: tuple[Way, ...] = ("all", "drawn", "own", "averaged", "corrected", "weighted")
RUN = ("network", "stem", "epochs", "batch")  # the options that a run depends on
DRAWS = 64  # draws for the gradients with respect to projections
BACKWARDS = 8  # of them, those whose gradients with respect to weights are computed
BATCHES = 8
POINTS = 3  # checkpoints at which gradients are measured


# Losses. Scores are divided by tau.


def groups(scores: Tensor, size: int) -> Tensor:
    """Return the scores (N,K) in groups of `size` (N,G,size), without those that are left over."""
    count = scores.shape[1] // size
    return scores[:, : count * size].unflatten(1, (count, size))


def losses(attract: Tensor, scores: Tensor, alpha: float) -> Tensor:
    """Return the losses (N,G) of queries with groups of negatives (N,G,K) and EqCo's rule."""
    count = scores.new_tensor(float(scores.shape[2]))
    repel = torch.logsumexp(scores, 2) + eqco(alpha)(count)
    return coupled(Terms(attract[:, None], attract[:, None], repel))


def linear(attract: Tensor, scores: Tensor, drawn: Tensor, alpha: float) -> Tensor:
    """Return a loss (N,) of drawn scores (N,K) that estimates the gradient of all scores (N,P).

    The gradient of the loss with all negatives is the sum over k of w_k times that of (score k -
    attract), where w_k is the weight of negative k in the softmax. The sum over K of the P
    negatives, times P/K, has this gradient as its mean over draws.
    """
    count = scores.new_tensor(float(scores.shape[1]))
    rule = eqco(alpha)(count)
    total = torch.logaddexp(attract, torch.logsumexp(scores, 1) + rule)
    weights = (drawn + rule - total[:, None]).exp().detach()
    return (weights * (drawn - attract[:, None])).sum(1) * (count / drawn.shape[1])


def estimate(way: Way, attract: Tensor, scores: Tensor, size: int, alpha: float) -> Tensor:
    """Return the loss (N,) from the scores (N,P) of all negatives in random order."""
    if way == "weighted":
        return linear(attract, scores, scores[:, :size], alpha)
    everyone = losses(attract, scores[:, None], alpha)[:, 0]
    if way == "all":
        return everyone
    few = losses(attract, groups(scores, size), alpha)
    drawn, averaged = few[:, 0], few.mean(1)
    if way == "corrected":
        return drawn - averaged + everyone
    return averaged if way == "averaged" else drawn


class Estimate(nn.Module):
    """SiMo's objective with all other images of the batch, or an estimate of it from K of them."""

    unit_vectors = True
    pool: Literal["pair"] = "pair"

    def __init__(self, way: Way, negatives: int, batch: int, tau: float, alpha: float) -> None:
        super().__init__()
        if way not in WAYS:
            raise ValueError(f"the way must be one of {', '.join(WAYS)}, got {way!r}")
        if not 1 <= negatives < batch:
            raise ValueError(f"{negatives} of the {batch - 1} other images cannot be drawn")
        self.way = way
        self.size = negatives
        # all others, in the order of SiMo's draw
        self.shuffled = InBatch("pair", subset=batch, shared=way != "own")
        self.tau = tau
        self.alpha = alpha

    def forward(self, pair: Pair) -> tuple[Tensor, Metrics]:
        """Return the mean loss over the queries, and the mean cosines."""
        scores = self.shuffled(pair)
        cosine = (pair.query * pair.keys[0]).sum(-1)
        loss = estimate(self.way, cosine / self.tau, scores / self.tau, self.size, self.alpha)
        cosines = {"positive": cosine.detach().mean(), "negative": scores.detach().mean()}
        return loss.mean(), {"contrast": loss.detach().mean(), **cosines}

    def at(self, progress: float) -> None:
        """Do nothing: nothing changes over training."""

    def push(self, keys: Tensor, image_ids: Tensor, noise: Noise) -> bool:
        """Keep nothing."""
        return False


# Training


def build(
    backbone: nn.Module,
    *,
    way: str = "all",
    negatives: int = 16,
    batch: int = 256,
    alpha: float = ALPHA,
    tau: float = TAU,
    momentum: float = 0.999,
) -> Learner:
    """Return SiMo with another estimate of its loss."""
    learner = papers.method("simo").build(backbone, tau=tau, momentum=momentum)
    objective: Any = Estimate(way, negatives, batch, tau, alpha)  # type: ignore[arg-type]
    return learner.replace(objective=objective)


def register() -> None:
    """Add the method to those that `pretrain` knows, with SiMo's recipe."""
    methods: Any = papers.methods()
    methods[METHOD] = replace(papers.method("simo"), build=build, listed=False)


def train(args: argparse.Namespace, way: Way, k: int, seed: int, folder: Path) -> antipode.Run:
    """Train a run in its own subfolder, or return the run that is already there."""
    names = [getattr(args, key) for key in RUN]
    return antipode.pretrain(
        method=METHOD,
        data="cifar10",
        backbone=args.network,
        epochs=args.epochs,
        batch=args.batch,
        seed=seed,
        out=folder / "-".join(map(str, [way, k, seed, *names])),
        quiet=True,
        overrides={
            "backbone.stem": args.stem,
            "method.way": way,
            "method.negatives": k,
            "method.batch": args.batch,
            "monitor.health_every": 0,
            "train.checkpoint_every": max(1, args.epochs // POINTS),
            "train.keep": POINTS + 1,
        },
    )


def run_line(args: argparse.Namespace, way: Way, k: int, seed: int, folder: Path) -> dict[str, Any]:
    """Train and score a run; return what its line adds."""
    start = time.perf_counter()
    run = train(args, way, k, seed, folder)
    trained = time.perf_counter() - start
    scores = antipode.evaluate(run, PROTOCOLS)
    last = [row for row in run.metrics() if "loss" in row][-1]
    return {
        "scores": {name: score.json() for name, score in scores.items()},
        "last": {key: last[key] for key in ("loss", "positive", "negative")},
        "values": run.recipe.leaves(),
        "seconds": {"training": trained, "all": time.perf_counter() - start},
    }


# Gradients


class Sample(NamedTuple):
    """The gradients of one batch, as flat vectors."""

    whole: Tensor  # of `all`
    mean: Tensor  # of a way, mean over draws
    variance: float  # over draws, summed over entries
    draws: int  # draws in the mean


def embedding_gradient(
    objective: nn.Module, z: Tensor, keys: Tensor, ids: Tensor, noise: Tensor
) -> Tensor:
    """Return the gradient of a loss with respect to the projections z (N,D) of images."""
    leaf = z.detach().requires_grad_()
    loss, _ = objective(Pair(unit(leaf), keys[None], ids, keys, ids, noise))
    gradient: Tensor = torch.autograd.grad(loss, leaf)[0]
    return gradient


def variance(gradients: Tensor) -> float:
    """Return the variance of gradients (R,E) over R, summed over their entries."""
    return float(gradients.var(0).sum())


def compare(
    way: Way, k: int, z: Tensor, keys: Tensor, ids: Tensor, weights: list[Tensor]
) -> dict[str, Sample]:
    """Return the gradients of a batch with respect to its projections and, if given, to weights.

    z (N,D) are its projections and keys (N,D) are unit vectors.
    """
    every = Estimate("all", k, len(z), TAU, ALPHA)
    some = Estimate(way, k, len(z), TAU, ALPHA)
    first = rng.key(0, "few negatives", device=z.device)
    whole = embedding_gradient(every, z, keys, ids, first)
    draws = torch.stack(
        [embedding_gradient(some, z, keys, ids, rng.fold(first, n)) for n in range(DRAWS)]
    )
    mean = draws.mean(0)
    flat = draws.flatten(1)
    out = {"projections": Sample(whole.flatten(), mean.flatten(), variance(flat), DRAWS)}
    if weights:
        # a mean of gradients goes back to the weights in one pass, because this is linear
        back = torch.stack([backward(z, weights, draw) for draw in draws[:BACKWARDS]])
        both = [backward(z, weights, gradient) for gradient in (whole, mean)]
        out["weights"] = Sample(both[0], both[1], variance(back), DRAWS)
    return out


def backward(z: Tensor, weights: list[Tensor], gradient: Tensor) -> Tensor:
    """Return the gradient (E,) with respect to weights from that to projections z (N,D)."""
    parts = torch.autograd.grad(z, weights, gradient, retain_graph=True)
    return torch.cat([part.flatten() for part in parts])


def summarise(samples: list[Sample]) -> dict[str, float]:
    """Return bias, scale and noise of some batches; the docstring of the script explains them.

    The squared length of a mean of draws is too large by their variance over their number, which
    is subtracted.
    """
    size = fmean(float(one.whole @ one.whole) for one in samples)
    noise = fmean(one.variance for one in samples)
    excess = fmean(one.variance / one.draws for one in samples)
    bias = fmean(float((one.mean - one.whole).square().sum()) for one in samples) - excess
    along = fmean(float(one.mean @ one.whole) for one in samples)
    return {
        "length": size**0.5,
        "bias": (max(0.0, bias) / size) ** 0.5,
        "scale": along / size,
        "noise": (noise / size) ** 0.5,
    }


def over_batches(samples: list[Sample]) -> dict[str, float]:
    """Return the noise over batches, and bias and scale of the mean over batches."""
    wholes = torch.stack([one.whole for one in samples])
    shifts = torch.stack([one.mean - one.whole for one in samples])
    size = float(wholes.square().sum(1).mean())
    common = product_of_means(wholes, wholes)
    bias = max(0.0, product_of_means(shifts, shifts))
    return {
        "batch noise": (variance(wholes) / size) ** 0.5,
        "systematic bias": (bias / common) ** 0.5,
        "systematic scale": 1 + product_of_means(shifts, wholes) / common,
    }


def product_of_means(a: Tensor, b: Tensor) -> float:
    """Return the product of the expected rows of a and b (B,E), without bias.

    Products of a row of one with the same row of the other are left out.
    """
    count = len(a)
    return float(a.sum(0) @ b.sum(0) - (a * b).sum()) / (count * (count - 1))


def deviations(images: int = 7, k: int = 3) -> dict[str, float]:
    """Return how far each way's mean gradient over all draws is from that of `all`.

    All orders of the other images of a small batch are enumerated, in float64. The result is the
    largest difference of an entry, relative to the largest entry of the gradient of `all`.
    """
    draws = torch.Generator().manual_seed(0)
    z, keys = unit(torch.randn(2, images, 4, generator=draws, dtype=torch.float64))
    z.requires_grad_()
    query = unit(z)
    attract = (query * keys).sum(1) / TAU
    others = ~torch.eye(images, dtype=torch.bool)
    scores = (query @ keys.T / TAU)[others].view(images, images - 1)
    orders = list(permutations(range(images - 1)))
    mean = {
        way: sum(estimate(way, attract, scores[:, order], k, ALPHA).mean() for order in orders)
        / len(orders)
        for way in WAYS
    }
    found = {way: torch.autograd.grad(mean[way], z, retain_graph=True)[0] for way in WAYS}
    size = found["all"].abs().max()
    return {way: float((found[way] - found["all"]).abs().max() / size) for way in WAYS}


def random_batches(images: int, device: torch.device) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield projections, keys (N,D) and ids (N,) of random batches; positives have cosine 0.7."""
    for number in range(BATCHES):
        draws = torch.Generator().manual_seed(number)
        z, noise = torch.randn(2, images, 128, generator=draws, dtype=torch.float64).to(device)
        yield unit(z), unit(unit(z) + unit(noise)), torch.arange(images, device=device)


def trained_batches(subject: RunEmbeddings, images: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield projections (N,D) with a graph, keys (N,D) and ids (N,) of batches, as in training."""
    learner = subject.learner
    loader = Loader(
        subject.splits.pretrain,
        subject.views,
        batch=images,
        epochs=1,
        seed=rng.number(subject.seed, "few negatives"),
        device=subject.device,
        workers=subject.recipe.data.workers,
    )
    for step, _, content in loader.steps():
        if step == BATCHES:
            return
        batch = content._replace(views=[view.double() for view in content.views])
        yield learner.project(batch)[0][0], unit(learner.keys(batch)[0]), batch.image_ids


def gradients(
    batches: Iterable[tuple[Tensor, Tensor, Tensor]], k: int, weights: list[Tensor]
) -> dict[str, Any]:
    """Return bias and noise of the ways at some batches, by way and level."""
    samples: dict[str, dict[str, list[Sample]]] = {}
    for z, keys, ids in batches:
        for way in WAYS[1:]:
            for level, sample in compare(way, k, z, keys.detach(), ids, weights).items():
                samples.setdefault(way, {}).setdefault(level, []).append(sample)
    return {
        way: {
            level: summarise(some) | (over_batches(some) if level == "weights" else {})
            for level, some in levels.items()
        }
        for way, levels in samples.items()
    }


def gradient_line(args: argparse.Namespace, k: int, seed: int, folder: Path) -> dict[str, Any]:
    """Measure gradients at random embeddings and over the training of `all`."""
    start = time.perf_counter()
    run = train(args, "all", args.batch - 1, seed, folder)
    device = pick_device("auto")
    subject = _embeddings(run, "run", {}, None, device, seed, None)
    points = [{"epoch": None, "ways": gradients(random_batches(args.batch, device), k, [])}]
    for moment in subject.history(POINTS):
        learner = moment.learner.double().train()
        weights = [weight for weight in learner.online.parameters() if weight.requires_grad]
        found = gradients(trained_batches(moment, args.batch), k, weights)
        points.append({"epoch": round(moment.epoch, 2), "ways": found})
    counts = {"draws": DRAWS, "draws of weights": BACKWARDS, "batches": BATCHES}
    return {
        "points": points,
        "deviations": deviations(),
        **counts,
        "seconds": {"all": time.perf_counter() - start},
    }


# Lines


def identity(line: dict[str, Any]) -> str:
    """Return what tells one run from others."""
    return json.dumps([line[key] for key in ("kind", *RUN, "way", "negatives", "seed")])


def read_lines(file: Path) -> list[dict[str, Any]]:
    """Return the last line of each run in a file of results."""
    texts = file.read_text().splitlines() if file.exists() else []
    lines = [json.loads(text) for text in texts if text]
    return list({identity(line): line for line in lines}.values())


def wanted(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the start of the line of each run that the command line asks for, in order."""
    options = {key: getattr(args, key) for key in RUN}
    lines = []
    for seed in args.seeds:
        for k in args.negatives:
            for way in args.ways if not args.gradients else [None]:
                count = args.batch - 1 if way == "all" else k
                kind = "gradients" if args.gradients else "run"
                lines.append(
                    {"kind": kind, **options, "way": way, "negatives": count, "seed": seed}
                )
    return list({identity(line): line for line in lines}.values())


def measure(args: argparse.Namespace, line: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return the line of a run with its results and where they were measured."""
    k, seed = line["negatives"], line["seed"]
    if line["kind"] == "gradients":
        found = gradient_line(args, k, seed, folder)
    else:
        found = run_line(args, line["way"], k, seed, folder)
    where = surroundings("torch", "torchvision") | facts() | {"threads": torch.get_num_threads()}
    return line | {"alpha": ALPHA, "tau": TAU} | found | where


# Tables


def table(lines: list[dict[str, Any]]) -> list[str]:
    """Return the rows of the tables of runs and of gradients."""
    runs = [line for line in lines if line["kind"] == "run"]
    settings: dict[str, list[dict[str, Any]]] = {}
    for line in runs:
        settings.setdefault(setting(line), []).append(line)
    rows = []
    for name, some in settings.items():
        rows += ["", name, "", heading(), *run_rows(some)]
    for line in lines:
        if line["kind"] == "gradients":
            rows += [
                "",
                f"Gradients, {setting(line)}, K = {line['negatives']}, seed {line['seed']}",
            ]
            rows += ["", *gradient_rows(line)]
    return rows


def setting(line: dict[str, Any]) -> str:
    """Return the options and the device of a line in words."""
    return (
        f"{line['network']} ({line['stem']} stem), {line['epochs']} epochs, batch {line['batch']}, "
        f"{line['device']}"
    )


def heading() -> str:
    """Return the head of the table of runs."""
    names = [text for protocol in PROTOCOLS for text in (protocol, f"{protocol} minus all")]
    columns = ["K", "way", "seeds", *names]
    return f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}"


def run_rows(lines: list[dict[str, Any]]) -> list[str]:
    """Return a row for each K and way, with the paired difference to `all` with the same seed."""
    by_way: dict[tuple[int, str], dict[int, dict[str, Any]]] = {}
    for line in sorted(lines, key=lambda one: (-one["negatives"], WAYS.index(one["way"]))):
        by_way.setdefault((line["negatives"], line["way"]), {})[line["seed"]] = line["scores"]
    base: dict[int, dict[str, Any]] = {}
    for (_, way), scores in by_way.items():
        base = scores if way == "all" else base
    rows = []
    for (k, way), scores in by_way.items():
        cells = [str(k), way, " ".join(map(str, sorted(scores)))]
        for protocol in PROTOCOLS:
            values = {seed: score[protocol]["value"] for seed, score in scores.items()}
            pairs = [
                v - base[seed][protocol]["value"] for seed, v in values.items() if seed in base
            ]
            cells += [spread(list(values.values())), "" if way == "all" else spread(pairs, "+")]
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def spread(values: list[float], sign: str = "") -> str:
    """Return the mean of some values and their standard deviation."""
    if not values:
        return ""
    deviation = f" ± {stdev(values):.2f}" if len(values) > 1 else ""
    return f"{fmean(values):{sign}.2f}{deviation}"


def gradient_rows(line: dict[str, Any]) -> list[str]:
    """Return the table of a line of gradients."""
    names = ("bias", "scale", "noise", "batch noise", "systematic bias", "systematic scale")
    columns = ["epoch", "with respect to", "way", *names]
    rows = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    for point in line["points"]:
        epoch = "random" if point["epoch"] is None else f"{point['epoch']:g}"
        for level in ("projections", "weights"):
            for way, levels in point["ways"].items():
                if numbers := levels.get(level):
                    cells = [f"{numbers[name]:.3f}" if name in numbers else "" for name in names]
                    rows.append(f"| {' | '.join([epoch, level, way, *cells])} |")
    return rows


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--ways", nargs="+", default=WAYS[:5], choices=WAYS)
    add("--negatives", type=int, nargs="+", default=[16], metavar="K")
    add("--seeds", type=int, nargs="+", default=[0])
    add("--network", default="resnet18")
    add("--stem", default="small")
    add("--epochs", type=int, default=100)
    add("--batch", type=int, default=256)
    add("--gradients", action="store_true", help="measure gradients in place of accuracy")
    add("--folder", type=Path, help="keep run folders here; given again, runs resume")
    add("--out", type=Path, default=OUT, help="the file that lines are appended to")
    add("--table", action="store_true", help="only print the results in --out")
    return parser.parse_args()


def main() -> None:
    args = read_arguments()
    register()
    done = {identity(line) for line in read_lines(args.out)}
    todo = [] if args.table else [line for line in wanted(args) if identity(line) not in done]
    with tempfile.TemporaryDirectory(prefix="few-negatives-") as temporary:
        for start in todo:
            line = measure(args, start, args.folder or Path(temporary))
            with args.out.open("a") as file:
                file.write(json.dumps(line) + "\n")
            print("\n".join(table([line])), flush=True)
    if not todo:
        print("\n".join(table(read_lines(args.out))))


if __name__ == "__main__":
    main()
