"""lightly's side of large.py: its MoCo v2 transform, loss and memory bank on the same files."""

import copy
import time
from pathlib import Path

import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

from antipode.nets.backbone import backbone
from overhead import wait

WARM_UP = 8  # steps


class Files(Dataset[list[torch.Tensor]]):
    """The views of the JPEG files of a folder."""

    def __init__(self, folder: Path, transform: object) -> None:
        self.files = sorted(folder.iterdir())
        self.transform = transform

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> list[torch.Tensor]:
        with Image.open(self.files[index]) as image:
            return self.transform(image.convert("RGB"))


def lightly_speed(
    folder: Path, network: str, *, size: int, batch: int, queue: int, workers: int, seconds: float
) -> dict[str, float]:
    """Return the images per second of training, as in lightly's example of MoCo v2, in bf16.

    Network and optimiser are those of our side, in channels_last and not compiled.
    """
    from lightly.loss import NTXentLoss
    from lightly.models.modules import MoCoProjectionHead
    from lightly.models.utils import update_momentum
    from lightly.transforms import MoCoV2Transform

    device = torch.device("cuda" if torch.cuda.is_available() and size > 64 else "cpu")
    trunk = backbone(network)
    online = nn.Sequential(trunk, MoCoProjectionHead(trunk.width, trunk.width, 128)).to(device)
    online = online.to(memory_format=torch.channels_last)
    twin = copy.deepcopy(online).requires_grad_(False)
    loss = NTXentLoss(temperature=0.2, memory_bank_size=(queue, 128)).to(device)
    optimiser = torch.optim.SGD(online.parameters(), lr=0.03, momentum=0.9, weight_decay=1e-4)
    data = Files(folder, MoCoV2Transform(input_size=size))
    keep = {"persistent_workers": True, "prefetch_factor": 4} if workers else {}
    loader = DataLoader(
        data, batch, shuffle=True, drop_last=True, num_workers=workers, pin_memory=True, **keep
    )

    def step(views: list[torch.Tensor]) -> None:
        query, key = (
            view.to(device, non_blocking=True, memory_format=torch.channels_last) for view in views
        )
        update_momentum(online, twin, m=0.999)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            value = loss(online(query), twin(key).detach())
        optimiser.zero_grad(set_to_none=True)
        value.backward()
        optimiser.step()

    count = 0
    start = time.perf_counter()
    while count <= WARM_UP + 2 or time.perf_counter() - start < seconds:
        for views in loader:
            step(views)
            count += 1
            if count == WARM_UP:
                wait(device)
                start = time.perf_counter()
            if count > WARM_UP + 2 and time.perf_counter() - start > seconds:
                break
    wait(device)
    speed = batch * (count - WARM_UP) / (time.perf_counter() - start)
    return {"images/s": speed, "workers": float(workers)}
