"""Pretrain without labels in your own training loop, then measure kNN accuracy with the labels.

    python examples/own_loop.py                 DCL on the embedded shapes
    python examples/own_loop.py --method mocov2 --epochs 60
    python examples/own_loop.py --quick         4 steps, to see that it runs

The first command takes about 2 minutes on 2 CPU cores.

Every method and every backbone works (--backbone resnet18). For your own images:
--data folder:PATH --policy mocov2.
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
from antipode.data.views.policy import policies
from antipode.nets.backbone import RESNETS
from antipode.papers import arguments


def main() -> None:
    """Pretrain, and print the kNN accuracy before and after."""
    args = read_arguments()
    torch.manual_seed(0)
    splits = load(args.data)
    batch_size = min(args.batch, len(splits.pretrain))
    # the images are small; other networks than ResNets have a stem of their own
    stem = "half" if args.backbone in RESNETS else None
    sizes = memory_sizes(args.method, len(splits.pretrain))
    learner = antipode.build(
        args.method, args.backbone, stem=stem, channels=splits.channels, **sizes
    )
    learner.to(memory_format=torch.channels_last)
    eval_policy = "shapes-eval" if args.policy == "shapes" else "eval"
    eval_view = antipode.views(eval_policy, size=splits.size)
    print(f"untrained: {knn_accuracy(learner.backbone, eval_view, splits):.1f} % kNN")

    make_views = training_views(args.policy, splits.size, learner.views)
    loader = Loader(
        splits.pretrain, make_views, batch=batch_size, epochs=args.epochs, seed=0, workers=0
    )
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
    print(f"{args.method}: {knn_accuracy(learner.backbone, eval_view, splits):.1f} % kNN")


def read_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--method", default="dcl", choices=antipode.list_methods())
    parser.add_argument("--backbone", default="resnet10-slim")
    parser.add_argument("--data", default="shapes")
    parser.add_argument("--policy", default="shapes", choices=list(policies()))
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--lr", type=float, default=0.2)
    parser.add_argument("--quick", action="store_true", help="train for 4 steps only")
    return parser.parse_args()


def training_views(policy: str, size: int, count: int) -> nn.Module:
    """Return the views of a policy, as many as the method needs."""
    # multi-crop policies fix the number of views themselves
    takes_count = "views" in inspect.signature(policies()[policy]).parameters
    return antipode.views(policy, size=size, **({"views": count} if takes_count else {}))


def memory_sizes(method: str, images: int) -> dict[str, int]:
    """Return sizes of queue, bank and memory that fit a small data set.

    All other arguments keep the values of the paper.
    """
    sizes = {"queue": 1024, "bank": 1024, "images": images}
    defaults = {name: parameter.default for name, parameter in arguments(method).items()}
    return {name: size for name, size in sizes.items() if isinstance(defaults.get(name), int)}


def knn_accuracy(backbone: nn.Module, eval_view: nn.Module, splits: Splits) -> float:
    """Return the weighted kNN accuracy in percent, NaN for a data set without labels."""
    train, test = splits.train, splits.test
    if train is None or train.labels is None or test is None or test.labels is None:
        return float("nan")
    train_features = features(backbone, eval_view, train)
    test_features = features(backbone, eval_view, test)
    votes = antipode.functional.knn(train_features, train.labels, test_features, k=20)
    return 100 * (votes.argmax(1) == test.labels).float().mean().item()


@torch.no_grad()
def features(backbone: nn.Module, eval_view: nn.Module, source: Source) -> Tensor:
    """Return the features (N,D) of all images, from one view each that is not random."""
    backbone.eval()
    rows = [backbone(view) for view, _ in in_order(source, eval_view, workers=0)]
    backbone.train()
    return torch.cat(rows)


if __name__ == "__main__":
    main()
