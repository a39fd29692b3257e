"""Tests of decoding image files: formats, pixel values and broken files."""

import io
import sys
import types
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from antipode.data.sources import decode as module
from antipode.data.sources import headers
from antipode.data.sources.decode import decode, from_array
from antipode.data.sources.headers import PIXELS as MOST_PIXELS
from antipode.data.sources.headers import header, quick_header

RANDOM = np.random.default_rng(0)
PIXELS = np.asarray(
    Image.fromarray(RANDOM.integers(0, 256, (6, 8, 3), dtype=np.uint8)).resize((40, 30), 3)
)


def encoded(image, kind, **options):
    """Return the bytes of a Pillow image in a file format."""
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def chw(image):
    """Return a Pillow image as a tensor (C,H,W)."""
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def storable():
    """Yield an image in every format and mode that Pillow can write."""
    for kind in ("JPEG", "PNG", "BMP", "GIF", "TIFF", "WEBP", "PPM"):
        for mode in ("RGB", "L", "P", "RGBA", "LA", "1", "CMYK"):
            try:
                yield pytest.param(
                    encoded(Image.fromarray(PIXELS).convert(mode), kind), id=f"{kind}-{mode}"
                )
            except (OSError, ValueError):
                continue


@pytest.mark.parametrize("data", list(storable()))
def test_every_mode_of_every_format_is_what_pillow_makes_of_it(data):
    assert torch.equal(decode(data), chw(Image.open(io.BytesIO(data)).convert("RGB")))


@pytest.mark.parametrize("data", list(storable()))
def test_without_torchvisions_operator_the_pixels_are_the_same(data, monkeypatch):
    fast = decode(data)
    monkeypatch.setattr(module, "fast_jpeg", lambda: None)
    assert torch.equal(decode(data), fast)


@pytest.mark.parametrize(
    "options", [{"progressive": True}, {"subsampling": 0}, {"quality": 5}, {"optimize": True}]
)
def test_jpeg_pixels_are_those_of_pillow(options):
    data = encoded(Image.fromarray(PIXELS), "JPEG", **options)
    assert torch.equal(decode(data), chw(Image.open(io.BytesIO(data)).convert("RGB")))


def test_one_channel_is_grey():
    data = encoded(Image.fromarray(PIXELS), "JPEG")
    assert decode(data, channels=1).shape == (1, 30, 40)
    assert decode(encoded(Image.fromarray(PIXELS), "PNG"), channels=1).shape == (1, 30, 40)


def test_sixteen_bits_keep_their_upper_eight():
    deep = RANDOM.integers(0, 1 << 16, (9, 11), dtype=np.uint16)
    for kind in ("PNG", "TIFF"):
        data = encoded(Image.fromarray(deep), kind)
        assert header(io.BytesIO(data)).deep
        assert torch.equal(decode(data)[0], torch.from_numpy((deep >> 8).astype(np.uint8)))
    assert not header(io.BytesIO(encoded(Image.fromarray(PIXELS), "PNG"))).deep


@pytest.mark.parametrize("layout", ["HWC", "CHW"])
@pytest.mark.parametrize("channels", [1, 4, 6, 13])
def test_arrays_keep_their_channels(layout, channels):
    array = RANDOM.integers(0, 256, (20, 25, channels), dtype=np.uint8)
    buffer = io.BytesIO()
    np.save(buffer, array if layout == "HWC" else array.transpose(2, 0, 1))
    info = header(io.BytesIO(buffer.getvalue()))
    assert (info.width, info.height, info.bands) == (25, 20, channels)
    assert torch.equal(
        decode(buffer.getvalue(), channels=channels), torch.from_numpy(array).permute(2, 0, 1)
    )


@pytest.mark.parametrize("planar", ["contig", "separate"])
def test_tiff_of_many_channels(planar):
    tifffile = pytest.importorskip("tifffile")
    array = RANDOM.integers(0, 1 << 16, (20, 25, 5), dtype=np.uint16)
    buffer = io.BytesIO()
    stored = array if planar == "contig" else array.transpose(2, 0, 1)
    tifffile.imwrite(buffer, stored, planarconfig=planar, photometric="minisblack")
    info = header(io.BytesIO(buffer.getvalue()))
    assert (info.bands, info.deep) == (5, True)
    assert torch.equal(
        decode(buffer.getvalue(), channels=5),
        torch.from_numpy((array >> 8).astype(np.uint8)).permute(2, 0, 1),
    )


def test_floats_are_shares_of_white_or_refused():
    assert from_array(np.array([[0.0, 0.5, 1.0]])).flatten().tolist() == [0, 128, 255]
    # the axis with the known number of channels, also if another one is shorter
    assert from_array(np.zeros((3, 7, 5), np.uint8), channels=5).shape == (5, 3, 7)
    assert from_array(np.zeros((5, 7, 3), np.uint8), channels=5).shape == (5, 7, 3)
    with pytest.raises(ValueError, match=r"from 0.0 to 7.0, but must have .* floats in \[0,1\]"):
        from_array(np.array([[0.0, 7.0]]))
    with pytest.raises(ValueError, match="shape"):
        from_array(np.zeros((2, 2, 2, 2)))


def test_other_channels_than_expected_are_refused():
    buffer = io.BytesIO()
    np.save(buffer, np.zeros((20, 20, 5), np.uint8))
    with pytest.raises(ValueError, match="has 5 channels, but 3 are expected"):
        decode(buffer.getvalue())


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "is empty .0 bytes."),
        (b"hello, I am a text file\n" * 9, "is not an image"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "is not an image"),
        (encoded(Image.new("RGB", (1, 1)), "PNG"), "is 1 x 1 px, too small to crop"),
        (
            encoded(Image.new("RGB", (20000, 20)), "PNG"),
            "20000 x 20 px, more than 100 times as long as wide",
        ),
        (encoded(Image.fromarray(PIXELS), "JPEG")[:400], "cannot be decoded|is not an image"),
        (encoded(Image.fromarray(PIXELS), "PNG")[:400], "cannot be decoded|is not an image"),
    ],
    ids=["empty", "text", "postscript", "1x1", "strip", "short JPEG", "short PNG"],
)
def test_what_is_no_image_is_refused_in_a_sentence(data, sentence):
    with pytest.raises(ValueError, match=sentence):
        decode(data)


def test_a_decompression_bomb_is_refused_before_it_is_decoded(monkeypatch):
    bomb = encoded(Image.new("1", (20_000, 10_000)), "PNG")  # 200 million pixels in a few kB
    assert len(bomb) < 100_000
    with pytest.raises(ValueError, match="pixels"):
        header(io.BytesIO(bomb))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)  # some programs set this
    sentence = "has 20000 x 10000 pixels of 3 channels, more than the limit of 67,108,864"
    with pytest.raises(ValueError, match=sentence):
        decode(bomb)


def test_an_array_whose_header_promises_more_than_it_holds_is_refused():
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        buffer, {"descr": "|u1", "fortran_order": False, "shape": (8000, 8000, 3)}
    )
    with pytest.raises(ValueError, match="needs 192,000,000 bytes, but it has 1"):
        header(io.BytesIO(buffer.getvalue() + b"x"))


def test_an_array_is_never_unpickled():
    buffer = io.BytesIO()
    np.save(buffer, np.array([[{"a": 1}, 2]] * 2, dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match=r"cannot be decoded|is not an image"):
        decode(buffer.getvalue())


ORIGINALS = [
    encoded(Image.fromarray(PIXELS), "JPEG"),
    encoded(Image.fromarray(PIXELS), "JPEG", progressive=True),
    encoded(Image.fromarray(PIXELS).convert("CMYK"), "JPEG"),
    encoded(Image.fromarray(PIXELS), "PNG"),
    encoded(Image.fromarray(PIXELS).convert("P"), "PNG"),
    encoded(Image.fromarray(PIXELS), "WEBP"),
    encoded(Image.fromarray(PIXELS), "TIFF"),
    encoded(Image.fromarray(PIXELS), "GIF"),
]


@settings(max_examples=400, deadline=None)
@given(
    original=st.sampled_from(ORIGINALS),
    edits=st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 255)), max_size=8),
    cut=st.none() | st.integers(0, 4000),
    extra=st.binary(max_size=8),
)
def test_mutated_bytes_give_an_image_or_a_value_error(original, edits, cut, extra):
    data = bytearray(original)
    for position, value in edits:
        data[position % len(data)] = value
    if cut is not None:
        data = data[: cut % len(data)] + extra
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            image = decode(bytes(data))
        except ValueError as error:
            assert str(error) and "\n" not in str(error)
        else:
            assert image.dtype == torch.uint8 and image.shape[0] == 3
            assert image.shape[1] * image.shape[2] <= MOST_PIXELS


def by_pillow(data):
    """Return the header that Pillow reads."""
    return headers._full_header(io.BytesIO(data), data[:8])


@pytest.mark.parametrize("data", list(storable()))
def test_a_quick_header_is_that_of_pillow(data):
    quick = quick_header(data)
    assert quick is None or quick == by_pillow(data)
    assert (quick is None) != data.startswith((headers.PNG, headers.JPEG))


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_a_quick_header_needs_everything_before_the_pixels(kind):
    data = encoded(Image.fromarray(PIXELS), kind)
    first = data.index(b"IDAT" if kind == "PNG" else b"\xff\xda") + 4
    assert quick_header(data[:first]) == by_pillow(data)
    assert all(quick_header(data[:length]) is None for length in range(first - 4))


def test_a_quick_header_of_sixteen_bits_is_deep():
    deep = Image.fromarray(RANDOM.integers(0, 1 << 16, (9, 11), dtype=np.uint16))
    assert quick_header(encoded(deep, "PNG")).deep


@pytest.mark.parametrize("kind", ["JPEG", "JPEG2000"])
def test_large_images_are_decoded_at_a_reduced_size(kind, monkeypatch):
    data = encoded(Image.fromarray(PIXELS).resize((400, 300)), kind)
    full = decode(data).float()
    for module_ in (module, headers):
        monkeypatch.setattr(module_, "PIXELS", 400 * 300 // 2)
    half = decode(data)
    assert half.shape == (3, 150, 200)
    expected = torch.nn.functional.avg_pool2d(full, 2)
    assert (half.float() - expected).abs().mean() < 4
    for module_ in (module, headers):
        monkeypatch.setattr(module_, "PIXELS", 400 * 300 // 5)
    assert decode(data).shape == (3, 75, 100)
    assert decode(data, channels=1).shape == (1, 75, 100)


@pytest.mark.parametrize(("kind", "options"), [("PNG", {}), ("JPEG", {"progressive": True})])
def test_large_images_that_need_the_full_image_in_memory_are_refused(kind, options, monkeypatch):
    monkeypatch.setattr(headers, "PIXELS", 40 * 30 - 1)
    with pytest.raises(ValueError, match=r"has 40 x 30 pixels .* more than the limit of 1,199"):
        decode(encoded(Image.fromarray(PIXELS), kind, **options))


def test_a_progressive_jpeg_of_thousands_of_scans_is_refused(monkeypatch):
    data = encoded(Image.fromarray(PIXELS), "JPEG", progressive=True)
    scans = data.count(b"\xff\xda")
    monkeypatch.setattr(module, "SCANS", scans * 40 * 30)
    assert decode(data).shape == (3, 30, 40)
    monkeypatch.setattr(module, "SCANS", scans * 40 * 30 - 1)
    with pytest.raises(ValueError, match=f"cannot be decoded .it has {scans} scans"):
        decode(data)


def test_arrays_that_need_too_much_memory_or_are_no_numbers_are_refused(monkeypatch):
    buffer = io.BytesIO()
    np.save(buffer, np.zeros((30, 40), "M8[s]"))
    with pytest.raises(ValueError, match="is not a number"):
        decode(buffer.getvalue())
    monkeypatch.setattr(headers, "PIXELS", 30 * 40)
    buffer = io.BytesIO()
    np.save(buffer, np.zeros((30, 40, 3), np.float64))
    with pytest.raises(ValueError, match="needs more than"):
        decode(buffer.getvalue())


@pytest.fixture
def fresh_decoder():
    """Let the test choose its decoder."""
    chosen = module.fast_jpeg
    chosen.cache_clear()
    yield
    chosen.cache_clear()


def orientated(number):
    exif = Image.Exif()
    exif[0x0112] = number
    return encoded(Image.fromarray(PIXELS), "JPEG", exif=exif)


@pytest.mark.parametrize("before", [b"", b"\xff\xff", 2 * (b"\xff\xe2\xff\xf0" + bytes(65_518))])
def test_exif_data_is_removed_wherever_it_stands(before):
    """Fill bytes or large profiles may stand before it."""
    whole = orientated(6)
    at = whole.index(b"Exif") - 4
    moved = module.without_exif(whole[:at] + before + whole[at:])
    assert b"Exif" not in moved
    with Image.open(io.BytesIO(moved)) as image:
        assert 0x0112 not in image.getexif()
        assert np.array_equal(np.asarray(image), np.asarray(Image.open(io.BytesIO(whole))))


def test_torchcodec_comes_first_and_does_not_see_the_orientation(monkeypatch, fresh_decoder):
    calls = []

    def decode_jpeg(source, mode):
        data = source.numpy().tobytes()
        calls.append((mode, b"Exif" in data))
        image = Image.open(io.BytesIO(data))
        return module.from_pillow(image, channels={"RGB": 3, "GRAY": 1}[mode])

    codec = types.ModuleType("torchcodec.decoders")
    codec.decode_jpeg = decode_jpeg
    monkeypatch.setitem(sys.modules, "torchcodec", types.ModuleType("torchcodec"))
    monkeypatch.setitem(sys.modules, "torchcodec.decoders", codec)
    plain = decode(encoded(Image.fromarray(PIXELS), "JPEG"))
    assert torch.equal(decode(orientated(6)), plain)
    assert decode(orientated(6), channels=1).shape == (1, *PIXELS.shape[:2])
    assert calls == [("RGB", False), ("RGB", False), ("GRAY", False)]


@pytest.mark.parametrize(
    "message",
    [
        "decode_rows, /__w/torchcodec/src/_core/DecodeJpeg.cpp:287, Image is incomplete.",
        "/__w/vision/torchvision/csrc/io/image/cpu/decode_jpeg.cpp:46, Image is incomplete.",
        "Image is incomplete.",
    ],
)
def test_a_message_of_a_decoder_names_no_source_file(message):
    assert headers.reason(RuntimeError(message)) == "Image is incomplete."


@pytest.mark.parametrize("name", ["_torchcodec", "_torchvision"])
def test_every_decoder_gives_the_pixels_of_pillow(monkeypatch, fresh_decoder, name):
    """The bound is zero grey levels, since all of them are libjpeg-turbo."""
    chosen = getattr(module, name)()
    if chosen is None:
        pytest.skip(f"{name[1:]} is not installed")
    random = np.random.default_rng(0)
    smooth = Image.fromarray(random.integers(0, 256, (24, 32, 3), dtype=np.uint8)).resize(
        (256, 192)
    )
    files = [orientated(number) for number in (1, 3, 6, 8)]
    for options in ({}, {"subsampling": 0}, {"progressive": True}, {"quality": 30}):
        files.append(encoded(smooth, "JPEG", **options))
    grey = encoded(smooth.convert("L"), "JPEG")
    monkeypatch.setattr(module, "fast_jpeg", lambda: chosen)
    fast = [*map(decode, [*files, grey]), decode(grey, channels=1)]
    monkeypatch.setattr(module, "fast_jpeg", lambda: None)
    slow = [*map(decode, [*files, grey]), decode(grey, channels=1)]
    assert all(torch.equal(a, b) for a, b in zip(fast, slow, strict=True))
