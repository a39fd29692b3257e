"""The names and shapes of the tensors of Detectron2's ResNets."""

from collections.abc import Iterator

from antipode.nets.backbone import Shape
from antipode.nets.blocks import Bottleneck

NORM = ("weight", "bias", "running_mean", "running_var")


def caffe_name(name: str) -> str:
    """Return Detectron2's name of a tensor: layer1.0.bn2.bias becomes res2.0.conv2.norm.bias."""
    *place, part, leaf = name.split(".")
    if place[-1:] == ["downsample"]:
        place, part = place[:-1], "shortcut" if part == "0" else "shortcut.norm"
    part = f"conv{part[2:]}.norm" if part.startswith("bn") else part
    stage = f"res{int(place[0][5:]) + 1}.{place[1]}" if place else "stem"
    return f"{stage}.{part}.{leaf}"


def layout(shape: Shape, channels: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the names and shapes of the tensors of Detectron2's ResNet.

    They follow from the rules by which Detectron2 builds it. The exported file is compared with
    them.
    """
    width = shape.width
    deep = issubclass(shape.block, Bottleneck)
    yield from _convolution("stem.conv1", width, channels, 7)
    inner = width
    for stage, blocks in enumerate(shape.layers):
        outer = (width << stage) * (4 if deep else 1)
        middle = int((width << stage) * shape.per_group / 64) * shape.groups if deep else outer
        for block in range(blocks):
            home = f"res{stage + 2}.{block}"
            if block == 0 and (stage > 0 or inner != outer):
                yield from _convolution(f"{home}.shortcut", outer, inner, 1)
            yield from _convolution(f"{home}.conv1", middle, inner, 1 if deep else 3)
            yield from _convolution(f"{home}.conv2", middle, middle // shape.groups, 3)
            if deep:
                yield from _convolution(f"{home}.conv3", outer, middle, 1)
            inner = outer


def _convolution(
    name: str, out: int, inner: int, kernel: int
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the names and shapes of a convolution and its batch norm."""
    yield f"{name}.weight", (out, inner, kernel, kernel)
    yield from ((f"{name}.norm.{leaf}", (out,)) for leaf in NORM)
    yield f"{name}.norm.num_batches_tracked", ()
