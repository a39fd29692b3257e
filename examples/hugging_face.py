"""Use a data set of Hugging Face, and train a method with the Trainer of transformers.

    python examples/hugging_face.py             about 3 minutes on 2 CPU cores
    python examples/hugging_face.py --quick     4 steps, to see that it runs

Needs `pip install '.[examples]'`. The data set is made of the embedded drawings; replace it by
`datasets.load_dataset("NAME", split="train")`.
"""

import argparse
import tempfile
from typing import Any

import datasets
import torch
from PIL import Image
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback, TrainingArguments

import antipode
from antipode.data.sources.catalog import load
from antipode.types import Batch


class Model(nn.Module):
    """A learner with the interface of the Trainer: a forward pass that returns the loss."""

    def __init__(self, learner: nn.Module, make_views: nn.Module) -> None:
        super().__init__()
        self.learner = learner
        self.make_views = make_views

    def forward(self, images: Tensor, ids: Tensor) -> dict[str, Tensor]:
        """Return the loss of images uint8 (N,3,H,W) with their indices (N,)."""
        self.out = self.learner(Batch(self.make_views(images), ids))
        return {"loss": self.out.loss}


class Steps(TrainerCallback):
    """Update the state of the learner before and after each step of the Trainer."""

    def on_step_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Set the values that change over training."""
        others["model"].learner.before_step(min(state.global_step / state.max_steps, 1.0))

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Update key encoder, queue and bank."""
        others["model"].learner.after_step(others["model"].out)


def main() -> None:
    """Train with the Trainer, then with antipode itself, on the same table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="train for 4 steps only")
    args = parser.parse_args()
    table = drawings(64 if args.quick else 2048)
    with tempfile.TemporaryDirectory() as folder:
        with_trainer(table, 4 if args.quick else 400, folder)

        epochs = 1 if args.quick else 20
        run = antipode.pretrain(
            method="dcl",
            data=table,
            backbone="resnet10-slim",
            epochs=epochs,
            batch=32,
            out=f"{folder}/run",
            quiet=True,
        )
        score = antipode.evaluate(run, "knn20", data=table)["knn20"]
        print(f"antipode: {score.line()}")


def drawings(count: int) -> datasets.Dataset:
    """Return the first embedded drawings as a table with images and labels."""
    source = load("shapes").train
    assert source is not None and source.labels is not None
    images, labels = source.take(torch.arange(count))
    assert labels is not None
    columns = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(num_classes=10)}
    )
    pictures = [Image.fromarray(image.permute(1, 2, 0).numpy()) for image in images]
    return datasets.Dataset.from_dict(
        {"image": pictures, "label": labels.tolist()}, features=columns
    )


def with_trainer(table: datasets.Dataset, steps: int, folder: str) -> None:
    """Train MoCo v2 with the Trainer of transformers."""

    def collate(rows: list[dict[str, Any]]) -> dict[str, Tensor]:
        images = torch.stack([torch.from_numpy(row["image"]).permute(2, 0, 1) for row in rows])
        return {"images": images, "ids": torch.tensor([row["index"] for row in rows])}

    indexed = table.add_column("index", list(range(len(table)))).with_format("numpy")
    learner = antipode.build("mocov2", "resnet10-slim", stem="half", queue=256)
    model = Model(learner, antipode.views("shapes", size=32, views=learner.views))
    arguments = TrainingArguments(
        folder,
        per_device_train_batch_size=32,
        max_steps=steps,
        report_to="none",
        save_strategy="no",
        dataloader_drop_last=True,
        remove_unused_columns=False,
        disable_tqdm=True,
    )
    optimiser = torch.optim.SGD(learner.param_groups(), lr=0.05, momentum=0.9)
    trainer = Trainer(
        model,
        arguments,
        train_dataset=indexed,
        data_collator=collate,
        callbacks=[Steps()],
        optimizers=(optimiser, None),
    )
    result = trainer.train()
    print(f"Trainer: {result.global_step} steps, mean loss {result.training_loss:.3f}")


if __name__ == "__main__":
    main()
