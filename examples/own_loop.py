"""Pretrain without a label in a loop of one's own, then ask the labels how good the features are.

    python examples/own_loop.py                       DCL on the embedded shapes: about 2 minutes on 2 CPU cores
    python examples/own_loop.py --method mocov2 --epochs 60
    python examples/own_loop.py --quick               a few steps, to see it run

Any method, any backbone (--backbone resnet18); for pictures of one's own: --data folder:PATH --policy mocov2.
"""

import argparse
import inspect

import torch
from rich.progress import track
from torch import Tensor, nn

import antipode
from antipode.data.loader import Loader, in_order
from antipode.data.sources.catalog import load
from antipode.data.sources.source import Source
from antipode.data.sources.splits import Splits
from antipode.data.views.policy import POLICIES
from antipode.nets.backbone import RESNETS


def main() -> None:
    """Pretrain, then score before and after."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--method", default="dcl", choices=antipode.list_methods())
    parser.add_argument("--backbone", default="resnet10-slim")
    parser.add_argument("--data", default="shapes")
    parser.add_argument("--policy", default="shapes", choices=list(POLICIES))
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--lr", type=float, default=0.2)
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)

    splits = load(args.data)
    args.batch = min(args.batch, len(splits.pretrain))
    stem = (
        "half" if args.backbone in RESNETS else None
    )  # images are small; others have a stem of their own
    learner = antipode.build(
        args.method, args.backbone, stem=stem, channels=splits.channels, **small(args.method)
    )
    learner.to(memory_format=torch.channels_last)
    look = antipode.views("shapes-eval" if args.policy == "shapes" else "eval", size=splits.size)
    print(f"untrained: {score(learner.backbone, look, splits):.1f} % kNN")

    counted = (
        "views" in inspect.signature(POLICIES[args.policy]).parameters
    )  # multi-crop has a number of its own
    make = antipode.views(
        args.policy, size=splits.size, **({"views": learner.views} if counted else {})
    )
    loader = Loader(splits.pretrain, make, batch=args.batch, epochs=args.epochs, seed=0, workers=0)
    total = 4 if args.quick else loader.total
    optimiser = torch.optim.SGD(
        learner.param_groups(), lr=args.lr, momentum=0.9, weight_decay=1e-4, nesterov=True
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, args.lr, total_steps=total + 1, pct_start=0.1
    )
    for step, _, batch in track(loader.steps(), args.method, total=total):
        if step == total:
            break
        learner.before_step(step / total)
        out = learner(batch)
        optimiser.zero_grad()
        out.loss.backward()
        optimiser.step()
        schedule.step()
        learner.after_step(out)
    print(f"{args.method}: {score(learner.backbone, look, splits):.1f} % kNN")


def small(method: str) -> dict[str, int]:
    """Memories that fit a data set of a few thousand images; everything else is the paper's."""
    names = {"adco": "bank", "npid": "images", "mocov1": "queue", "mocov2": "queue", "jcl": "queue"}
    return {names[method]: 5000 if method == "npid" else 1024} if method in names else {}


def score(backbone: nn.Module, look: nn.Module, splits: Splits) -> float:
    """Weighted kNN accuracy in percent, of features that never saw a label; nan where there are none to ask."""
    train, test = splits.train, splits.test
    if train is None or train.labels is None or test is None or test.labels is None:
        return float("nan")
    votes = antipode.functional.knn(
        features(backbone, look, train), train.labels, features(backbone, look, test), k=20
    )
    return 100 * (votes.argmax(1) == test.labels).float().mean().item()


@torch.no_grad()
def features(backbone: nn.Module, look: nn.Module, source: Source) -> Tensor:
    """Features (N,D) of all images, each seen once and without chance."""
    backbone.eval()
    rows = [backbone(view) for view, _ in in_order(source, look, workers=0)]
    backbone.train()
    return torch.cat(rows)


if __name__ == "__main__":
    main()
