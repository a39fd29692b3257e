"""Make docs/pictures/report.png from the report of a run: its first screen, and its map in dark.

    antipode report runs/demo --out demo.html
    python benchmarks/report_picture.py demo.html

It needs playwright and Chromium; --chromium names the browser. The two halves are as wide as a
README, one above the other.
"""

import argparse
import io
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

OUT = Path(__file__).parents[1] / "docs" / "pictures" / "report.png"
WIDTH = 1000  # pixels of the page; shown at 830 in a README, its text of 16 px is still 13 px
ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage")


def head(page: Any) -> bytes:
    """Return the picture of the page down to the health of the embeddings."""
    end = page.locator(".condition").bounding_box()
    height = end["y"] + end["height"] + 24
    return bytes(page.screenshot(clip={"x": 0, "y": 0, "width": WIDTH, "height": height}))


def map_of_images(page: Any) -> bytes:
    """Return the picture of the map, with its title and legend, without text and controls."""
    hidden = ".bar, #map .how, #map .controls { display: none } html { scroll-behavior: auto }"
    page.add_style_tag(content=hidden)
    page.evaluate("document.querySelector('#map').scrollIntoView()")
    page.wait_for_timeout(1000)
    first, last = (page.locator(f"#map {name}").bounding_box() for name in ("h2", ".legend"))
    top, bottom = first["y"] - 28, last["y"] + last["height"] + 28
    return bytes(page.screenshot(clip={"x": 0, "y": top, "width": WIDTH, "height": bottom - top}))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("report", type=Path)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    args = parser.parse_args()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=args.chromium, args=[*ARGUMENTS])
        parts = []
        for scheme, draw in (("light", head), ("dark", map_of_images)):
            context = browser.new_context(
                viewport={"width": WIDTH, "height": 900},
                color_scheme=scheme,
                device_scale_factor=1.66,
                bypass_csp=True,
            )
            page = context.new_page()
            page.goto(args.report.resolve().as_uri())
            page.wait_for_selector("#map .map canvas")
            parts.append(Image.open(io.BytesIO(draw(page))).convert("RGB"))
        browser.close()
    joined(parts).quantize(256).save(args.out, optimize=True)


def joined(parts: list[Image.Image]) -> Image.Image:
    """Return pictures below each other, scaled to the width of the first one."""
    width = parts[0].width
    scaled = [part.resize((width, round(part.height * width / part.width))) for part in parts]
    whole = Image.new("RGB", (width, sum(part.height for part in scaled)))
    top = 0
    for part in scaled:
        whole.paste(part, (0, top))
        top += part.height
    return whole


if __name__ == "__main__":
    main()
