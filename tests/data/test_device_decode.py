"""Tests of decoding on the device: the crops are those of workers, whatever a file contains.

The decoder is a function that the tests provide, so everything but nvJPEG and the kernel runs on a
CPU.
"""

import io
import os
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from antipode.data import decoders, device_decode, encoded, nvjpeg
from antipode.data.decoders import (
    choose_decoder,
    device_decoder,
    evaluation_decoder,
    evaluation_place,
    has_pixels_of_host,
)
from antipode.data.loader import Loader
from antipode.data.sources import decode, headers
from antipode.data.sources.folder import tree
from antipode.data.sources.source import BrokenImages, subset
from antipode.data.views.views import views


def picture(seed, width, height):
    random = np.random.default_rng(seed)
    coarse = random.integers(0, 256, (height // 6, width // 6, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def jpeg(seed, width=60, height=48, **settings):
    file = io.BytesIO()
    picture(seed, width, height).save(file, "JPEG", **({"quality": 90} | settings))
    return file.getvalue()


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Thirty files: JPEG of several sizes, a progressive and a grey one, a PNG, a truncated one."""
    root = tmp_path_factory.mktemp("photos")
    for number in range(30):
        (root / f"{number:02d}.jpg").write_bytes(jpeg(number, 60 + 2 * number, 48 + number % 5))
    (root / "03.jpg").write_bytes(jpeg(3, progressive=True))
    picture(4, 60, 48).convert("L").save(root / "04.jpg")
    picture(5, 60, 48).save(root / "05.jpg", "PNG")
    whole = jpeg(6, 90, 70)
    (root / "06.jpg").write_bytes(whole[: len(whole) // 3])
    return tree(root)


def on_host(files, sides):
    """Decode in place of nvJPEG, with the decoder of the workers."""
    return [decode.decode(data.numpy().tobytes()).clone() for data in files]


def run(source, start=0, policy="simclr", **settings):
    values = {"batch": 10, "epochs": 2, "seed": 1, "workers": 0} | settings
    return list(Loader(source, views(policy, size=24), **values).decoded(start))


def same(left, right, levels):
    assert len(left) == len(right) > 0
    for (*step, crops, unit, ids), (*other, theirs, their_unit, their_ids) in zip(
        left, right, strict=True
    ):
        assert step == other
        assert torch.equal(ids, their_ids) and torch.equal(unit, their_unit)
        for a, b in zip(crops, theirs, strict=True):
            assert int((a.int() - b.int()).abs().max()) <= levels


@pytest.mark.filterwarnings("ignore::antipode.data.sources.source.BrokenImages")
@pytest.mark.parametrize(("policy", "workers"), [("simclr", 0), ("simclr", 2), ("byol", 0)])
def test_the_device_cuts_the_crops_of_the_workers(photos, policy, workers):
    """Boxes and flips are equal; floats on the device and bytes on the host differ by a level."""
    plain = run(photos, policy=policy)
    same(run(photos, policy=policy, workers=workers, decoder=on_host), plain, levels=1)


@pytest.mark.filterwarnings("ignore::antipode.data.sources.source.BrokenImages")
@pytest.mark.parametrize("workers", [0, 2])
def test_workers_and_device_share_the_images_by_their_ids(photos, workers):
    """A quarter of the images has the workers' own pixels; the device gets no file of these."""
    mine = [encoded.workers_own(1, epoch, torch.arange(30)) for epoch in range(2)]
    both = torch.stack(mine).all(0).nonzero().flatten().tolist()
    own = {photos.read.encoded(index) for index in both}
    decoded = []

    def noted(files, sides):
        decoded.extend(data.numpy().tobytes() for data in files)
        return on_host(files, sides)

    plain = run(photos)
    shared = run(photos, workers=workers, decoder=noted, share=True)
    same(shared, plain, levels=1)
    assert decoded and not own & {*decoded}
    assert len(decoded) < len(shared) * 10 - 5
    for (_, epoch, crops, _, ids), (*_, theirs, _, _) in zip(shared, plain, strict=True):
        for a, b in zip(crops, theirs, strict=True):
            assert torch.equal(a[mine[epoch][ids]], b[mine[epoch][ids]])
    same(run(photos, 2, workers=workers, decoder=on_host, share=True), shared[2:], levels=0)


@pytest.mark.filterwarnings("ignore::antipode.data.sources.source.BrokenImages")
@pytest.mark.parametrize("start", [1, 3, 4])
def test_a_restart_in_the_middle_of_an_epoch_continues_bit_for_bit(photos, start):
    same(run(photos, start, decoder=on_host), run(photos, decoder=on_host)[start:], levels=0)


@pytest.mark.filterwarnings("ignore::antipode.data.sources.source.BrokenImages")
def test_chunks_slots_and_groups_change_no_bit(photos, monkeypatch):
    whole = run(photos, decoder=on_host)
    monkeypatch.setattr(encoded, "CHUNK", 3)
    monkeypatch.setattr(device_decode, "PIXELS", 30_000)
    same(run(photos, decoder=on_host, workers=2), whole, levels=0)
    slots = encoded.Slots
    monkeypatch.setattr(encoded, "Slots", lambda count, size: slots(count, 6000))
    same(run(photos, decoder=on_host, workers=2), whole, levels=0)


def test_images_in_one_block_of_memory_are_not_copied(photos):
    """The crops are those of images that lie in blocks of their own, padded or not."""
    whole = run(photos, decoder=on_host)

    def in_one_block(files, sides):
        images = [image.contiguous() for image in on_host(files, sides)]
        places, total = nvjpeg._places(sides)
        flat = torch.empty(total, dtype=torch.uint8)
        block = []
        for image, (first, height, width) in zip(images, places.tolist(), strict=True):
            part = flat[first : first + image.numel()].view(3, height, width)
            block.append(part.copy_(image))
        assert device_decode._together(block)[0].data_ptr() == flat.data_ptr()
        return block

    same(run(photos, decoder=in_one_block), whole, levels=0)


def test_nvjpeg_is_told_the_planes_and_rows_of_every_image():
    """nvjpegImage_t: three planes one after the other, rows without padding, aligned images."""
    sides = [(5, 7), (300, 200), (1, 1)]
    places, total = nvjpeg._places(sides)
    table = nvjpeg._targets(1 << 40, places).astype(int)
    assert places[:, 1:].tolist() == [[5, 7], [300, 200], [1, 1]]
    assert total % nvjpeg.ALIGNED == 0
    end = 0
    for (first, height, width), row in zip(places.tolist(), table.tolist(), strict=True):
        assert first % nvjpeg.ALIGNED == 0 and first >= end
        end = first + 3 * height * width
        assert [at - (1 << 40) - first for at in row[:3]] == [0, height * width, 2 * height * width]
        assert row[3:] == [0, width, width, width, 0]
    assert end <= total


@pytest.mark.parametrize(
    ("code", "error"),
    [(4, RuntimeError), (5, torch.OutOfMemoryError), (6, nvjpeg.NvJpegError)],
)
def test_only_a_status_of_a_damaged_file_lets_the_host_decode(photos, code, error):
    """Without memory, or after another failure, training ends and does not become slow."""
    with pytest.raises(error, match=f"nvjpegDecodeBatched of nvJPEG failed with status {code}"):
        nvjpeg._check("nvjpegDecodeBatched", code)
    nvjpeg._check("nvjpegDecodeBatched", 0)

    def fails(files, sides):
        nvjpeg._check("nvjpegDecodeBatched", code)

    sound = subset(photos, torch.arange(10, 30))
    if code in nvjpeg.DAMAGED:
        same(run(sound, decoder=fails), run(sound), levels=0)
    else:
        with pytest.raises(error):
            run(sound, decoder=fails)


@pytest.mark.parametrize(
    ("asked", "engine", "levels", "chosen"),
    [
        (None, True, 0, "gpu"),
        (None, True, 1, "gpu"),
        (None, True, 3, "cpu"),
        (None, False, 0, "cpu"),
        ("auto", True, 0, "gpu"),
        ("cpu", True, 0, "cpu"),
        ("gpu", False, 3, "gpu"),
        ("both", False, 3, "both"),
    ],
)
def test_a_gpu_decodes_for_classifiers_if_its_pixels_are_those_of_the_workers(
    photos, monkeypatch, asked, engine, levels, chosen
):
    """Unless ANTIPODE_DECODER says otherwise: an engine for JPEG, and at most one grey level."""

    def brighter(files, sides):
        return [image.clamp_max(255 - levels) + levels for image in on_host(files, sides)]

    monkeypatch.setattr(decoders, "has_engine", lambda device: engine)
    monkeypatch.setattr(decoders, "device_decoder", lambda device: brighter)
    monkeypatch.delenv("ANTIPODE_DECODER", raising=False)
    if asked:
        monkeypatch.setenv("ANTIPODE_DECODER", asked)
    has_pixels_of_host.cache_clear()
    make = views("simclr", size=24)
    found = evaluation_decoder(photos, make, torch.device("cuda"))
    has_pixels_of_host.cache_clear()
    assert found == {"decoder": None if chosen == "cpu" else brighter, "share": chosen == "both"}
    assert evaluation_decoder(photos, make, torch.device("cpu"))["decoder"] is None


@pytest.mark.parametrize("error", [RuntimeError, nvjpeg.NvJpegError, ValueError, OSError])
def test_a_decoder_that_fails_in_whatever_way_is_not_chosen(photos, monkeypatch, error):
    def fails(files, sides):
        raise error("the driver is too old")

    monkeypatch.delenv("ANTIPODE_DECODER", raising=False)
    monkeypatch.setattr(decoders, "has_engine", lambda device: True)
    monkeypatch.setattr(decoders, "device_decoder", lambda device: fails)
    has_pixels_of_host.cache_clear()
    assert evaluation_place(photos, views("simclr", size=24), torch.device("cuda")) == "cpu"
    assert not decoders._works(fails) and decoders._works(on_host)
    has_pixels_of_host.cache_clear()


def test_the_share_of_the_workers_is_drawn_anew_for_each_image_and_epoch():
    ids = torch.arange(4000)
    first, again, later = (encoded.workers_own(0, epoch, ids) for epoch in (0, 0, 1))
    assert torch.equal(first, again)
    for own in (first, later):
        assert abs(own.float().mean() - encoded.WORKERS) < 0.03
        assert abs(own[::4].float().mean() - encoded.WORKERS) < 0.06  # classes in turn
    assert abs((first & later).float().mean() - encoded.WORKERS**2) < 0.02


def test_a_file_that_the_device_refuses_is_replaced_like_a_broken_one(photos):
    """One damaged file in a batch leaves the others on the device."""
    whole = photos.read.encoded(8)
    refused = []

    def strict(files, sides):
        for data in files:
            if data.numpy().tobytes() == whole:
                refused.append(len(files))
                raise RuntimeError("nvJPEG failed")
        return on_host(files, sides)

    source = subset(photos, torch.tensor([7, 8, 9, 10, 11]))
    assert headers.plain_jpeg(whole)
    plain = run(source, batch=5, epochs=1)
    same(run(source, batch=5, epochs=1, decoder=strict), plain, levels=1)
    assert refused == [5, 1]


def test_broken_images_are_reported(photos):
    source = replace(subset(photos, torch.arange(12)), failed={})
    with pytest.warns(BrokenImages, match="06.jpg"):
        batches = run(source, batch=12, epochs=1, decoder=on_host)
    assert sorted(batches[0][-1].tolist()) == [0, 1, 2, 3, 4, 5, 7, 7, 8, 9, 10, 11]


def test_an_error_of_the_decoder_reaches_the_caller(photos):
    def fails(files, sides):
        raise KeyError("decoder")

    with pytest.raises(KeyError, match="decoder"):
        run(photos, decoder=fails)


def test_a_loader_that_is_left_early_ends_its_thread(photos):
    def running():
        return [one for one in threading.enumerate() if one.name == device_decode.THREAD]

    loader = Loader(
        subset(photos, torch.arange(10, 30)), views("simclr", size=24), batch=4, epochs=50, seed=0,
        workers=0, decoder=on_host,
    )  # fmt: skip
    steps = loader.inputs()
    next(steps)
    assert len(running()) == 1
    steps.close()
    assert not running()


@pytest.mark.parametrize(
    ("settings", "plain"),
    [
        ({}, True),
        ({"subsampling": 0}, True),
        ({"subsampling": 2}, True),
        ({"progressive": True}, False),
        ({"exif": b"Exif\0\0" + bytes(20_000)}, True),
    ],
)
def test_only_ordinary_jpeg_goes_to_the_device(settings, plain):
    data = jpeg(0, 52, 36, **settings)
    assert headers.plain_jpeg(data) == ((36, 52) if plain else None)
    assert headers.plain_jpeg(data[:-200]) is None


def test_grey_cmyk_and_rgb_jpeg_do_not_go_to_the_device():
    image = picture(0, 52, 36)
    for mode, settings in (("L", {}), ("CMYK", {}), ("RGB", {"keep_rgb": True})):
        file = io.BytesIO()
        image.convert(mode).save(file, "JPEG", **settings)
        assert headers.plain_jpeg(file.getvalue()) is None


def test_what_suits_the_device(photos):
    make = views("simclr", size=24)
    assert encoded.suits(photos, make)
    assert not encoded.suits(subset(photos, torch.tensor([3, 4, 5, 6])), make)
    assert not encoded.suits(photos, views("eval", size=24))


def test_without_a_gpu_workers_decode(photos):
    make = views("simclr", size=24)
    cpu = torch.device("cpu")
    assert choose_decoder("auto", photos, make, cpu) is None
    assert choose_decoder("cpu", photos, make, cpu) is None
    with pytest.raises(ValueError, match="decoder=gpu needs a CUDA device"):
        choose_decoder("gpu", photos, make, cpu)


KERNEL = """
import sys, torch
from antipode.data.views import flat, flat_kernel
images, boxes = torch.load(sys.argv[1])
places, memory = [], torch.cat([image.flatten() for image in images])
for number, image in enumerate(images):
    places.append((sum(other.numel() for other in images[:number]), *image.shape[1:]))
for cubic in (False, True):
    ours, plain = (torch.zeros(len(images), 3, 12, 12, dtype=torch.uint8) for _ in range(2))
    flat.crop_flat(memory, torch.tensor(places), boxes, plain, cubic=cubic)
    flat_kernel.crop[(len(images), 3, 2)](
        memory, torch.tensor(places), boxes, ours, SIZE=12, CUBIC=cubic, BLOCK=128
    )
    print(int((ours.int() - plain.int()).abs().max()), float((ours != plain).float().mean()))
"""


@pytest.mark.slow
def test_the_kernel_cuts_the_crops_of_the_reference(tmp_path):
    """Triton interprets the kernel on a CPU. A level of difference is a sum in another order."""
    pytest.importorskip("triton")
    generator = torch.Generator().manual_seed(0)
    sides = [(37, 50), (90, 61), (8, 9)]
    images = [torch.randint(0, 256, (3, *s), dtype=torch.uint8, generator=generator) for s in sides]
    boxes = [[3, 5, 30, 40, 1, 0], [0, 0, 90, 61, 0, 1], [2, 1, 5, 6, 1, 1]]
    torch.save((images, torch.tensor(boxes, dtype=torch.int32)), tmp_path / "images.pt")
    command = [sys.executable, "-c", KERNEL, str(tmp_path / "images.pt")]
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    output = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    for line in output.stdout.splitlines():
        most, share = line.split()
        assert int(most) <= 1 and float(share) < 0.02


on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def test_a_damaged_header_is_not_for_the_device():
    whole = jpeg(1, exif=b"Exif\0\0" + bytes(20))
    adobe = b"\xff\xee\x00\x0eAdobe" + bytes(6) + b"\x01"
    whole = whole[:2] + adobe + whole[2:]
    assert headers.plain_jpeg(whole) == (48, 60)
    scan = whole.index(b"\xff\xda")
    for at in range(2, scan):
        for value in (0, 1, 5, 255):
            with suppress(ValueError):  # a size that is not suitable for training
                headers.plain_jpeg(whole[:at] + bytes([value]) + whole[at + 1 :])
        with suppress(ValueError):
            assert headers.plain_jpeg(whole[:at] + headers.END) is None


def test_a_file_whose_size_decoders_may_read_differently_is_not_for_the_device():
    """The device writes an image of the size that the header states to memory of that size."""
    whole = jpeg(1)
    assert headers.plain_jpeg(whole) == (48, 60)
    at = whole.index(b"\xff\xc0")
    length = 2 + int.from_bytes(whole[at + 2 : at + 4], "big")
    frame = whole[at : at + length]
    larger = frame[:5] + (4000).to_bytes(2, "big") + frame[7:]
    assert headers.plain_jpeg(whole[:at] + larger + whole[at:]) is None
    scan = whole.index(b"\xff\xda")
    assert headers.plain_jpeg(whole[:scan] + whole[-2:]) is None
    assert headers.plain_jpeg(whole[:at] + b"\xff\xfe\x00\x01" + whole[at:]) is None


@pytest.mark.gpu
@on_gpu
@pytest.mark.filterwarnings("ignore::antipode.data.sources.source.BrokenImages")
@pytest.mark.parametrize("policy", ["simclr", "byol"])
def test_the_kernel_on_a_gpu_cuts_the_crops_of_the_workers(photos, policy):
    def to_gpu(files, sides):
        return [image.cuda() for image in on_host(files, sides)]

    def moved(batches):
        for *step, crops, unit, ids in batches:
            yield *step, [crop.cpu() for crop in crops], unit.cpu(), ids.cpu()

    loader = Loader(
        photos, views(policy, size=24), batch=10, epochs=2, seed=1, workers=2, device="cuda",
        decoder=to_gpu,
    )  # fmt: skip
    same(list(moved(loader.decoded())), run(photos, policy=policy), levels=1)


def grey(image):
    """Return the luminance (H,W) of an RGB image (3,H,W)."""
    weights = torch.tensor([0.299, 0.587, 0.114], dtype=torch.float64)
    return (image.double() * weights[:, None, None]).sum(0)


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("subsampling", [0, 1, 2])
@pytest.mark.parametrize(
    ("backend", "levels", "mean"), [("hardware", 1, 1e-3), ("gpu-hybrid", 3, 0.1)]
)
def test_nvjpeg_gives_the_pixels_of_the_host(subsampling, backend, levels, mean):
    """With the engine, 4:4:4 files have equal pixels; others differ by one level here and there."""
    decoder = nvjpeg.NvJpeg(torch.device("cuda"), (backend,))
    files = [jpeg(number, 60 + 2 * number, 50, subsampling=subsampling) for number in range(20)]
    tensors = [torch.frombuffer(bytearray(data), dtype=torch.uint8) for data in files]
    found = decoder(tensors, [headers.plain_jpeg(data) for data in files])
    torch.cuda.synchronize()
    gaps = torch.cat(
        [
            (image.cpu().int() - decode.decode(data).int()).abs().flatten()
            for image, data in zip(found, files, strict=True)
        ]
    )
    assert gaps.max() <= (levels if subsampling or backend == "gpu-hybrid" else 0)
    assert gaps.double().mean() < mean


@pytest.mark.gpu
@on_gpu
def test_the_gpus_decoder_is_nvjpeg_with_the_pixels_of_the_host():
    assert isinstance(device_decoder(torch.device("cuda")), nvjpeg.NvJpeg)
    assert has_pixels_of_host(torch.device("cuda"))


@pytest.mark.gpu
@on_gpu
def test_steps_leave_the_default_stream_only_while_the_gpu_decodes(photos):
    values = {"batch": 10, "epochs": 1, "seed": 0, "device": "cuda", "workers": 0}
    make = views("simclr", size=24)
    default = torch.cuda.default_stream()
    with Loader(photos, make, **values).beside():
        assert torch.cuda.current_stream() == default
    with Loader(photos, make, **values, decoder=on_host).beside():
        assert torch.cuda.current_stream() != default
    assert torch.cuda.current_stream() == default


@pytest.mark.gpu
@on_gpu
@pytest.mark.filterwarnings("ignore::antipode.data.sources.source.BrokenImages")
@pytest.mark.parametrize("share", [False, True])
def test_nvjpeg_feeds_a_loader_whatever_the_files_contain(tmp_path, share):
    """4:4:4 files have the workers' pixels, beside files that nvJPEG does not decode."""
    for number in range(20):
        data = jpeg(number, 60 + 2 * number, 50, subsampling=0)
        (tmp_path / f"{number:02d}.jpg").write_bytes(data)
    whole = jpeg(6, 90, 70, subsampling=0)
    middle = len(whole) // 2
    (tmp_path / "06.jpg").write_bytes(whole[:middle] + b"\xff\xc4" + whole[middle:])
    source = tree(tmp_path)
    loader = Loader(
        source, views("simclr", size=24), batch=10, epochs=2, seed=1, workers=2, device="cuda",
        decoder=device_decoder(torch.device("cuda")), share=share,
    )  # fmt: skip
    with loader.beside():
        found = [
            (*step, [crop.cpu() for crop in crops], unit.cpu(), ids.cpu())
            for *step, crops, unit, ids in loader.decoded()
        ]
    for (*_, crops, _, ids), (*_, theirs, _, _) in zip(found, run(source), strict=True):
        sound = ids != 6
        for a, b in zip(crops, theirs, strict=True):
            assert int((a[sound].int() - b[sound].int()).abs().max()) <= 1
