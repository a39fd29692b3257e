"""Train any method with Lightning's Trainer, and measure kNN accuracy.

    python examples/lightning_module.py                     about 3 minutes on 2 CPU cores
    python examples/lightning_module.py --method byol
    python examples/lightning_module.py --quick             4 steps, to see that it runs

Needs `pip install '.[examples]'`.
"""

import argparse
from typing import Any

import lightning
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import antipode
from antipode.data.sources.catalog import load
from antipode.papers import arguments
from antipode.types import Batch


class SelfSupervised(lightning.LightningModule):
    """Any method of antipode as a LightningModule.

    A batch is a pair of images uint8 (N,3,H,W) and their indices (N,) in the data set.
    """

    def __init__(self, method: str, policy: str, size: int, lr: float, **settings: Any) -> None:
        super().__init__()
        self.learner = antipode.build(method, "resnet10-slim", stem="half", **settings)
        self.make_views = antipode.views(policy, size=size, views=self.learner.views)
        self.lr = lr

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        """Return the loss of a batch."""
        images, ids = batch
        progress = self.global_step / self.trainer.estimated_stepping_batches
        self.learner.before_step(min(progress, 1.0))
        self.out = self.learner(Batch(self.make_views(images), ids))
        self.log("loss", self.out.loss, prog_bar=True)
        return self.out.loss

    def on_train_batch_end(self, *_: Any) -> None:
        """Update key encoder, queue and bank after the optimiser's step."""
        self.learner.after_step(self.out)

    def configure_optimizers(self) -> Any:
        """Return SGD with a learning rate that rises for a tenth of the steps and then falls."""
        groups = self.learner.param_groups()
        optimiser = torch.optim.SGD(groups, lr=self.lr, momentum=0.9, weight_decay=1e-4)
        steps = int(self.trainer.estimated_stepping_batches)
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimiser, self.lr, total_steps=steps + 1, pct_start=0.1
        )
        return [optimiser], [{"scheduler": schedule, "interval": "step"}]


def main() -> None:
    """Train on the embedded shapes, and print the kNN accuracy."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--method", default="dcl", choices=antipode.list_methods())
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--quick", action="store_true", help="train for 4 steps only")
    args = parser.parse_args()
    lightning.seed_everything(0)
    splits = load("shapes")
    train, test = splits.train, splits.test
    assert train is not None and test is not None
    sizes = {"queue": 1024, "bank": 1024, "images": len(train)}
    defaults = {name: parameter.default for name, parameter in arguments(args.method).items()}
    settings = {name: size for name, size in sizes.items() if isinstance(defaults.get(name), int)}
    module = SelfSupervised(args.method, "shapes", splits.size, lr=0.2, **settings)

    count = 256 if args.quick else len(train)
    images, labels = train.take(torch.arange(count))  # uint8 (N,3,H,W)
    data = TensorDataset(images, torch.arange(count))
    loader = DataLoader(data, batch_size=64 if args.quick else 256, shuffle=True, drop_last=True)
    trainer = lightning.Trainer(
        max_epochs=args.epochs,
        max_steps=4 if args.quick else -1,
        logger=False,
        enable_checkpointing=False,
    )
    trainer.fit(module, loader)

    backbone = module.learner.backbone.cpu().eval()
    test_images, test_labels = test.take(torch.arange(min(count, len(test))))
    assert labels is not None and test_labels is not None
    view = antipode.views("shapes-eval", size=splits.size)
    bank, queries = features(backbone, view, images), features(backbone, view, test_images)
    votes = antipode.functional.knn(bank, labels, queries, k=20)
    accuracy = 100 * (votes.argmax(1) == test_labels).float().mean().item()
    print(f"{args.method}: {accuracy:.1f} % kNN")


@torch.no_grad()
def features(backbone: nn.Module, view: nn.Module, images: Tensor) -> Tensor:
    """Return the features (N,D) of images uint8 (N,3,H,W)."""
    return torch.cat([backbone(view(part)[0]) for part in images.split(256)])


if __name__ == "__main__":
    main()
