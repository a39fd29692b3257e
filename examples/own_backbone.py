"""Pretrain a network of your own, evaluate it and write its weights.

    python examples/own_backbone.py             about 3 minutes on 2 CPU cores
    python examples/own_backbone.py --quick     one epoch, to see that it runs

Any module that maps images (N,C,H,W) to features (N,D) is a backbone.
"""

import argparse
import copy
import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn

import antipode


class Block(nn.Module):
    """Two convolutions with a shortcut; the second half of the network works at half the size."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the features (N,C,H,W) of one block."""
        return torch.relu(self.main(x) + self.shortcut(x))


class SmallNet(nn.Module):
    """A residual network of three blocks. `width` states the number of its features."""

    width = 128

    def __init__(self) -> None:
        super().__init__()
        stem = nn.Conv2d(3, 32, 3, 2, 1, bias=False)
        self.blocks = nn.Sequential(stem, Block(32, 32, 1), Block(32, 64, 2), Block(64, 128, 2))

    def forward(self, images: Tensor) -> Tensor:
        """Return the features (N,128) of images (N,3,H,W)."""
        return self.blocks(images).mean((2, 3))


def main() -> None:
    """Print the kNN accuracy before and after, and load the weights into a new network."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="train for one epoch only")
    args = parser.parse_args()
    torch.manual_seed(0)
    net = SmallNet()
    untrained = copy.deepcopy(net)  # pretrain trains the module itself
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        epochs = 1 if args.quick else 30
        run = antipode.pretrain("shapes.dcl", backbone=net, epochs=epochs, out=out, quiet=True)
        score = antipode.evaluate(run, "knn20")["knn20"]
        print(f"pretrained: {score.line()}")

        again = antipode.load_backbone(out, into=SmallNet())
        images = torch.rand(4, 3, 32, 32)
        with torch.no_grad():
            assert torch.allclose(again(images), run.backbone()(images), atol=1e-5), "same weights"
            changed = (untrained.eval()(images) - again(images)).abs().mean().item()
    print(f"features changed by {changed:.3f} on average")


if __name__ == "__main__":
    main()
