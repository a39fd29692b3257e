"""Images to features: a frozen backbone over a source, each image seen once and without chance."""

import torch
from torch import nn

from antipode.data.loader import in_order
from antipode.data.progress import bar
from antipode.data.source import Source
from antipode.types import Features


@torch.no_grad()
def extract(
    backbone: nn.Module, look: nn.Module, source: Source, *, batch: int = 256, workers: int | None = None
) -> Features:
    """Features (N,D) and labels (N,) of a source; `look` makes the one view. Labels are -1 where there are none."""
    device = next(backbone.parameters()).device
    modes = {module: module.training for module in backbone.modules()}
    backbone.eval()
    rows, ids = [], []
    with bar(len(source), "features") as done:
        for images, at in in_order(source, batch=batch, device=device, workers=workers):
            rows.append(backbone(look(images)[0]).float().cpu())
            ids.append(at.cpu())
            done(len(at))
    for module, mode in modes.items():
        module.training = mode
    x = torch.cat(rows)
    if not x.isfinite().all():
        raise ValueError(f"{int((~x.isfinite()).any(1).sum())} of {len(x)} images have features that are not numbers")
    y = torch.full((len(x),), -1) if source.labels is None else source.labels.cpu()[torch.cat(ids)]
    return Features(x, y)
