"""Test the page in a real browser.

Needs playwright and Chromium. ANTIPODE_CHROMIUM is the path of Chromium; without it the PATH is
searched. If ANTIPODE_SCREENSHOTS is set, screenshots are written to `artefacts/`.
"""

import json
import os
import shutil
import time
from pathlib import Path

import pytest

import antipode
from antipode.recipe.resolve import Recipe
from tests.reporting.runs import photographs, rows, run, score

ARTEFACTS = Path(__file__).parents[2] / "artefacts"
CHROMIUM = (
    os.environ.get("ANTIPODE_CHROMIUM")
    or shutil.which("chromium")
    or shutil.which("chromium-browser")
)
playwright = pytest.importorskip(
    "playwright.sync_api", reason="playwright is not installed (the extra `dev` has it)"
)

pytestmark = [
    pytest.mark.skipif(
        CHROMIUM is None, reason="chromium is not on the PATH and ANTIPODE_CHROMIUM is not set"
    ),
    pytest.mark.xdist_group("browser"),
]
SIZES = {"wide": {"width": 1280, "height": 900}, "phone": {"width": 390, "height": 844}}
MARKUP = "<img src=x onerror=alert(1)><b>bold"


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


class Tab:
    """An open page, with its console messages and errors, and the URLs it requested."""

    def __init__(self, browser, file, size="wide", scheme="light"):
        # without smooth scrolling, which would move what a test points at
        options = {"color_scheme": scheme, "reduced_motion": "reduce"}
        self.page = browser.new_page(viewport=SIZES[size], **options)
        self.complaints, self.requests = [], []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on(
            "dialog", lambda dialog: (self.complaints.append(dialog.message), dialog.dismiss())
        )
        self.page.on("request", lambda request: self.requests.append(request.url))
        begun = time.perf_counter()
        self.page.goto(Path(file).as_uri())
        self.page.wait_for_selector("html[data-ready]", state="attached", timeout=30_000)
        self.seconds = time.perf_counter() - begun

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.page.close()

    def sound(self):
        """Assert no errors, no network requests, no horizontal scrolling and no broken images."""
        assert self.complaints == []
        assert [url for url in self.requests if not url.startswith(("file:", "data:"))] == []
        wide, screen = self.page.evaluate(
            "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
        )
        assert wide == screen
        broken = (
            "[...document.images].filter((image) => !image.complete || image.naturalWidth === 0)"
            ".map((image) => image.alt)"
        )
        assert self.page.evaluate(broken) == []

    def keep(self, name):
        """Write a screenshot of the whole page, if the user wants to look at it."""
        if "ANTIPODE_SCREENSHOTS" in os.environ:
            ARTEFACTS.mkdir(exist_ok=True)
            self.page.screenshot(path=ARTEFACTS / f"{name}.png", full_page=True)

    def tip(self):
        return self.page.inner_text("#tip") if self.page.is_visible("#tip") else ""

    def point(self, selector, x=0.5, y=0.5):
        """Move the pointer to a place in an element, given as fractions of its width and height."""
        self.page.locator(selector).first.scroll_into_view_if_needed()
        box = self.page.locator(selector).first.bounding_box()
        self.page.mouse.move(box["x"] + x * box["width"], box["y"] + y * box["height"])


@pytest.fixture(scope="module")
def several(tmp_path_factory):
    """Return a page of two settings, one with two seeds. One run has a name that is markup."""
    folder = tmp_path_factory.mktemp("several")
    paths = [
        run(folder / f"dcl{s}", seed=s, trained=False, scores={"knn": score(60.0 + s)})
        for s in (0, 1)
    ]
    paths.append(run(folder / MARKUP, method="simclr", trained=False, scores={"knn": score(40.0)}))
    return antipode.report(paths, out=folder / "page.html")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_a_run_is_shown_whole_on_any_screen(browser, whole, size, scheme):
    with Tab(browser, whole[1], size, scheme) as tab:
        tab.sound()
        tab.keep(f"run-{size}-{scheme}")
        assert tab.page.locator("#neighbours img").count() == 8 * 9
        assert tab.page.locator("#views img").count() == 6 * 9
        assert tab.page.locator("#map .map canvas").count() == 1
        for part in (
            "scores",
            "training",
            "duplicates",
            "similarities",
            "spectrum",
            "analyses",
            "method",
            "recipe",
            "repeat",
        ):
            assert tab.page.is_visible(f"#{part} h2"), part
        assert tab.page.locator(".absent").count() == 0
        dark = (
            tab.page.evaluate("getComputedStyle(document.body).backgroundColor")
            == "rgb(18, 20, 23)"
        )
        assert dark == (scheme == "dark")


def test_the_switch_turns_light_to_dark_and_back(browser, whole):
    with Tab(browser, whole[1]) as tab:
        paper = "getComputedStyle(document.body).backgroundColor"
        light = tab.page.evaluate(paper)
        tab.page.click("#theme")
        assert tab.page.evaluate(paper) != light
        tab.page.click("#theme")
        assert tab.page.evaluate(paper) == light
        tab.sound()


def test_pointing_at_a_curve_reads_it(browser, whole):
    with Tab(browser, whole[1]) as tab:
        assert tab.tip() == ""
        tab.point("#training .chart", 0.0)
        first = tab.tip()
        assert (
            first.startswith("step 0") and "digits run" in first and "5" in first
        )  # the loss begins at five
        tab.point("#training .chart", 0.98)
        assert tab.tip().startswith("step 39")
        tab.page.mouse.move(2, 2)
        assert tab.tip() == ""


def test_a_curve_can_be_read_with_the_keyboard(browser, whole):
    with Tab(browser, whole[1]) as tab:
        tab.page.focus("#training .chart")
        tab.page.keyboard.press("ArrowRight")
        assert tab.tip().startswith("step 1")


def test_another_metric_axis_or_scale_changes_the_curve(browser, whole):
    with Tab(browser, whole[1]) as tab:
        line = "document.querySelector('#training .line').getAttribute('d')"
        assert tab.page.inner_text("#metric") == "Loss"
        seen = {tab.page.evaluate(line)}
        tab.page.check("#training input >> nth=0")  # log
        seen.add(tab.page.evaluate(line))
        tab.page.check("#training input >> nth=1")  # smooth
        seen.add(tab.page.evaluate(line))
        tab.page.click("[data-metric=uniformity]")
        seen.add(tab.page.evaluate(line))
        assert len(seen) == 4 and tab.page.inner_text("#metric") == "Uniformity"
        tab.page.click("#training .choice >> text=epochs")
        tab.point("#training .chart", 0.5)
        assert tab.tip().startswith("epoch")
        tab.sound()


def drawn(tab):
    """Return the picture of the map, after the next frame."""
    tab.page.evaluate("new Promise((done) => requestAnimationFrame(() => setTimeout(done, 30)))")
    return tab.page.evaluate("document.querySelector('#map .map canvas').toDataURL()")


def spot(tab, image=0):
    """Return where an image of the map is on the screen, and the data of the map."""
    found = tab.page.evaluate(
        "JSON.parse(document.getElementById('data').textContent).runs[0].pictures.map"
    )
    tab.page.locator("#map .map canvas").scroll_into_view_if_needed()
    box = tab.page.locator("#map .map canvas").bounding_box()
    x, y = (found["layouts"]["t-SNE"][2 * image + axis] / found["scale"] for axis in (0, 1))
    across = box["x"] + box["width"] / 2 + (x - 0.5) * (box["width"] - 28)
    down = box["y"] + box["height"] / 2 - (y - 0.5) * (box["height"] - 28)
    return across, down, found


def test_the_map_shows_the_image_under_the_pointer_and_other_layouts(browser, whole):
    with Tab(browser, whole[1]) as tab:
        across, down, found = spot(tab)
        tab.page.mouse.move(across, down)
        assert tab.page.locator("#tip canvas").count() == 1
        assert tab.tip().removesuffix(" (test)").removesuffix(" (train)") in found["classes"]
        seen = {drawn(tab)}
        for press in ("text=PCA", "text=images", "text=train >> nth=-1"):
            tab.page.click(f"#map .choice >> {press}")
            seen.add(drawn(tab))
        tab.page.click("#map .choice >> text=points")
        tab.page.locator("#map .legend button").first.click()
        tab.page.mouse.move(2, 2)
        seen.add(drawn(tab))
        assert len(seen) == 5
        tab.sound()


def test_a_click_on_the_map_shows_the_neighbours_of_the_image(browser, whole):
    with Tab(browser, whole[1]) as tab:
        across, down, found = spot(tab)
        tab.page.mouse.click(across, down)
        assert tab.page.inner_text("#map .found h3").startswith("Nearest neighbours: ")
        assert tab.page.locator("#map .found button canvas").count() == 1 + found["k"]
        tab.page.locator("#map .found .grid-of-images button").nth(2).click()  # go on from there
        assert tab.page.locator("#map .found button canvas").count() == 1 + found["k"]
        tab.page.click("#map .found >> text=Clear")
        assert tab.page.locator("#map .found button").count() == 0
        tab.sound()


def test_a_lasso_shows_the_images_inside_it(browser, whole):
    with Tab(browser, whole[1]) as tab:
        _, _, found = spot(tab)
        tab.page.click("#map .controls >> text=Lasso")
        tab.page.locator("#map .map canvas").scroll_into_view_if_needed()
        box = tab.page.locator("#map .map canvas").bounding_box()
        right, bottom = box["width"] / 2, box["height"] - 8  # the corners of the map are round
        tab.page.mouse.move(box["x"] + 8, box["y"] + 8)
        tab.page.mouse.down()
        for x, y in ((right, 8), (right, bottom), (8, bottom), (8, 8)):
            tab.page.mouse.move(box["x"] + x, box["y"] + y, steps=4)
        tab.page.mouse.up()
        half = sum(x < found["scale"] / 2 for x in found["layouts"]["t-SNE"][::2])
        title = tab.page.inner_text("#map .found h3")
        assert abs(int(title.split()[0].replace(",", "")) - half) <= 3 and "selected" in title
        assert tab.page.locator("#map .found button canvas").count() == min(120, half)
        tab.sound()


def test_the_map_moves_and_zooms(browser, whole):
    with Tab(browser, whole[1]) as tab:
        spot(tab)
        seen = {drawn(tab)}
        tab.page.click("#map .controls >> text=Zoom in")
        seen.add(drawn(tab))
        box = tab.page.locator("#map .map canvas").bounding_box()
        tab.page.mouse.move(box["x"] + 300, box["y"] + 200)
        tab.page.mouse.down()
        tab.page.mouse.move(box["x"] + 420, box["y"] + 260, steps=5)
        tab.page.mouse.up()
        tab.page.mouse.move(2, 2)
        seen.add(drawn(tab))
        assert len(seen) == 3 and tab.page.locator("#map .found h3").count() == 0
        tab.page.click("#map .controls >> text=Reset")
        assert drawn(tab) in seen


def test_the_map_is_used_with_the_keyboard(browser, whole):
    with Tab(browser, whole[1]) as tab:
        tab.page.focus("#map .map canvas")
        before = drawn(tab)
        for key in ("+", "ArrowLeft", "ArrowUp"):
            tab.page.keyboard.press(key)
        assert drawn(tab) != before
        tab.page.keyboard.press("Enter")
        assert tab.page.inner_text("#map .found h3").startswith("Nearest neighbours: ")
        tab.page.keyboard.press("Escape")
        assert tab.page.locator("#map .found h3").count() == 0
        tab.page.click("#map .controls >> text=Images in view")  # in place of a lasso
        assert "selected" in tab.page.inner_text("#map .found h3")


@pytest.fixture(scope="module")
def filling(tmp_path_factory):
    """Return a page of a run whose queue fills in the first six steps, while the loss rises."""
    folder = tmp_path_factory.mktemp("filling")
    log = [{"step": at, "epoch": at // 10, "loss": min(at, 6.0)} for at in range(40)]
    path = run(folder / "moco", method="mocov2", trained=False, log=log, **{"method.queue": 96})
    return antipode.report([path], out=folder / "page.html")


def test_a_loss_that_rises_while_the_queue_fills_is_marked(browser, filling):
    with Tab(browser, filling) as tab:
        assert "rises during the first 6 steps, and this is normal" in tab.page.inner_text(
            "#training .filling"
        )
        assert tab.page.locator("#training .span text").text_content() == "queue fills"
        chart = tab.page.locator("#training .chart").bounding_box()
        span = tab.page.locator("#training .span rect").bounding_box()
        share = span["width"] / (chart["width"] - 62)  # without the margins
        assert share == pytest.approx(6 / 39, abs=0.01)
        tab.page.click("#training .choice >> text=epochs")
        assert tab.page.locator("#training .span rect").count() == 1


@pytest.mark.parametrize("page", ["whole", "several"])
def test_nothing_is_clipped_on_a_phone(browser, page, request):
    found = request.getfixturevalue(page)
    with Tab(browser, found[1] if page == "whole" else found, "phone") as tab:
        assert not tab.page.is_visible("nav a >> nth=0")
        tab.page.click("#menu")
        for link in tab.page.locator("nav a").all():
            box = link.bounding_box()
            assert box["x"] >= 0 and box["x"] + box["width"] <= 390
        tab.page.keyboard.press("Escape")
        assert not tab.page.is_visible("nav a >> nth=0")
        for detail in tab.page.locator("#recipe details, #scores details").all():
            detail.evaluate("(node) => { node.open = true; }")
        clipped = tab.page.evaluate(
            "[...document.querySelectorAll('.stack, .stack td, .verdict, .bars')]"
            ".filter((node) => node.scrollWidth > node.clientWidth + 1"
            " || node.getBoundingClientRect().right > 391).map((node) => node.textContent)"
        )
        assert clipped == []


@pytest.mark.parametrize("width", [780, 1000, 1130, 1280])
def test_no_link_of_the_bar_is_cut(browser, whole, width):
    with Tab(browser, whole[1]) as tab:
        tab.page.set_viewport_size({"width": width, "height": 800})
        cut = tab.page.evaluate(
            "(() => { const bar = document.querySelector('nav');"
            " return bar.scrollWidth > bar.clientWidth + 1; })()"
        )
        assert not cut


def test_sources_of_a_recipe_are_read_line_by_line_on_a_phone(browser, whole):
    with Tab(browser, whole[1], "phone") as tab:
        tab.page.click("#recipe summary")
        narrow = tab.page.evaluate(
            "[...document.querySelectorAll('#recipe td[data-label=source]')]"
            ".filter((node) => node.offsetWidth < 300).length"
        )
        assert narrow == 0 and tab.page.locator("#recipe td[data-label=source]").count() > 20


def test_neighbours_and_histograms_answer_the_pointer(browser, whole):
    with Tab(browser, whole[1]) as tab:
        tab.point("#neighbours .frame")
        assert "cosine similarity" in tab.tip()
        assert tab.tip().startswith(("same label: ", "different label: "))
        tab.point("#similarities .chart", 0.9)
        assert "same image" in tab.tip() and "%" in tab.tip()
        before = tab.page.inner_text("#recipe")
        tab.page.click("#recipe summary")
        assert (
            len(tab.page.inner_text("#recipe")) > len(before)
            and "method.tau" in before
            and "0.7" in before
        )


def test_an_analysis_is_drawn_without_being_known(browser, whole):
    with Tab(browser, whole[1]) as tab:
        article = tab.page.locator("[data-what=npc]")
        assert article.locator(".line").count() == 2 and article.locator(".steps").count() == 1
        text = article.inner_text()
        assert "0.25" in text and "a note <b>of markup</b>" in text and "images 512" in text
        assert "Skipped: it has no bank" in tab.page.inner_text("[data-what=bank]")


def test_the_recipe_that_is_saved_is_the_run_s_own(browser, whole, tmp_path):
    with Tab(browser, whole[1]) as tab:
        with tab.page.expect_download() as saved:
            tab.page.click("#save")
        saved.value.save_as(tmp_path / "recipe.json")
    assert Recipe.read(tmp_path / "recipe.json") == Recipe.read(whole[0] / "recipe.json")


@pytest.mark.parametrize("size", SIZES)
def test_a_comparison_filters_its_runs(browser, several, size):
    with Tab(browser, several, size) as tab:
        tab.sound()
        tab.keep(f"several-{size}")
        lines, dots = tab.page.locator("#training .line"), tab.page.locator("#scores .dot")
        assert (lines.count(), dots.count(), tab.page.locator(".runs tbody tr").count()) == (
            3,
            3,
            3,
        )
        tab.page.fill("#filter", "dcl seed=1")
        assert (lines.count(), dots.count(), tab.page.locator(".runs tbody tr").count()) == (
            1,
            1,
            1,
        )
        assert lines.first.get_attribute(
            "data-name"
        ) == "dcl1" and "1 of 3 runs" in tab.page.inner_text("#runs")
        tab.page.fill("#filter", "")
        tab.page.uncheck(".runs tbody tr:nth-child(2) input")
        assert lines.count() == 2
        tab.page.click("#runs .controls >> text=Select none")
        assert (lines.count(), dots.count()) == (0, 0)
        tab.page.click("#runs .controls >> text=Select all")
        assert (lines.count(), dots.count()) == (3, 3)
        tab.sound()


def test_a_comparison_shows_means_over_seeds(browser, several):
    with Tab(browser, several) as tab:
        row = tab.page.locator("#scores .dotrow").first.text_content()
        assert "dcl" in row and "60.5 ± 0.7" in row and "n = 2" in row
        tab.page.click("#training .choice >> text=mean over seeds")
        assert (
            tab.page.locator("#training .line").count() == 2
            and tab.page.locator("#training .band").count() == 1
        )
        tab.page.click(".runs th >> text=knn")
        assert tab.page.inner_text(".runs tbody tr:first-child td:first-child").strip() == MARKUP
        tab.point("#scores .dotrow")
        assert "dcl0" in tab.tip() and "60.0" in tab.tip()


def test_a_name_that_is_markup_stays_text(browser, several):
    with Tab(browser, several) as tab:
        for select in tab.page.locator("select.focus").all():
            select.select_option(label=MARKUP)
        assert tab.page.locator("img[src=x]").count() == 0
        assert MARKUP in tab.page.inner_text(".runs")
        tab.point("#training .chart", 0.9, 0.5)
        assert MARKUP in tab.tip()
        tab.sound()


def test_another_run_comes_into_focus_everywhere(browser, several):
    with Tab(browser, several) as tab:
        tab.page.locator("#recipe select").select_option(label="dcl1")
        assert {one.input_value() for one in tab.page.locator("select.focus").all()} == {"1"}
        assert "train.seed" in tab.page.inner_text("#recipe")


def test_pages_of_runs_with_gaps_are_sound(browser, tmp_path):
    photos = photographs(tmp_path / "photos")
    plain = run(tmp_path / "plain", data=f"folder:{photos}", channels=3)
    half = run(tmp_path / "half", trained=False, log=rows(20, knn=False))
    empty = run(tmp_path / "empty", trained=False, log=[])
    for path in (plain, half, empty):
        with Tab(browser, antipode.report([path]), "phone") as tab:
            tab.sound()
            tab.keep(f"{path.name}-phone")
            warned = tab.page.locator("#notes").count() and tab.page.inner_text("#notes")
            assert ("has not ended" in str(warned)) == (path != plain)
            assert ("no labels" in tab.page.inner_text("#neighbours")) == (path == plain)


@pytest.fixture(scope="module")
def two_hundred(tmp_path_factory):
    """Return a page of 200 runs: 4 methods, 10 settings each, 5 seeds each, long logs."""
    folder = tmp_path_factory.mktemp("many")
    log = "".join(json.dumps(row) + "\n" for row in rows(1000))
    for method in ("dcl", "simclr", "byol", "mocov2"):
        first = run(folder / method, method=method, trained=False, log=[])
        content = json.loads((first / "recipe.json").read_text())
        for at in range(50):
            path = folder / f"{method} {at}"
            path.mkdir()
            content["train"]["seed"], content["optim"]["network"]["lr"] = at % 5, 0.1 + at // 5
            (path / "recipe.json").write_text(json.dumps(content))
            (path / "metrics.jsonl").write_text(log)
            (path / "scores.json").write_text(json.dumps({"knn": score(40.0 + at / 10)}))
        shutil.rmtree(first)
    return antipode.report(sorted(folder.iterdir()), out=folder / "page.html")


@pytest.mark.slow
def test_two_hundred_runs_stay_small_and_open_at_once(browser, two_hundred):
    assert two_hundred.stat().st_size < 30e6
    seconds = []
    for _ in range(3):  # the fastest of three counts, because the machine may be busy
        with Tab(browser, two_hundred) as tab:
            seconds.append(tab.seconds)
            tab.sound()
            lines = tab.page.evaluate(
                "[...document.querySelectorAll('#training .line')].map((x) => x.getAttribute('d'))"
            )
            assert len(lines) == 200 and max(line.count("L") for line in lines) < 300
            tab.page.fill("#filter", "method.name=simclr")
            assert tab.page.locator("#training .line").count() == 50
        if seconds[-1] < 3:
            break
    assert min(seconds) < 3, seconds


def test_a_page_without_images_draws_its_map_as_points(browser, imageless):
    with Tab(browser, imageless) as tab:
        tab.sound()
        assert tab.page.locator("img").count() == 0
        assert tab.page.locator("#map .map canvas").count() == 1
        assert tab.page.locator("#map .choice >> text=images").count() == 0
        for part in ("views", "neighbours"):
            assert "--no-images" in tab.page.inner_text(f"#{part} .absent")
        for x in (0.3, 0.5, 0.7):  # some point lies near the pointer
            for y in (0.3, 0.5, 0.7):
                tab.point("#map .map canvas", x, y)
                if tab.tip():
                    assert tab.page.locator("#tip canvas").count() == 0
                    return
        pytest.fail("no point has a tip")


def test_texts_that_reorder_others_are_shown_as_escapes(browser, tmp_path):
    scores = {"knn": score(60.0)}
    path = run(tmp_path / "run", trained=False, scores=scores)
    (path / "analysis.json").write_text(json.dumps({"a\u202eb\x1b": {"values": {"c\u2066": 1.0}}}))
    with Tab(browser, antipode.report([path], out=tmp_path / "page.html")) as tab:
        tab.sound()
        text = tab.page.inner_text("#analyses")
        assert "a\\u202eb\\u001b" in text and "c\\u2066" in text
        assert not {"\u202e", "\u2066", "\x1b"} & set(tab.page.inner_text("body"))


def test_a_key_of_a_recipe_does_not_change_other_objects_of_the_page(browser, tmp_path):
    path = run(tmp_path / "run", trained=False)
    recipe = json.loads((path / "recipe.json").read_text())
    recipe["__proto__"] = {"polluted": "yes"}
    (path / "recipe.json").write_text(json.dumps(recipe))
    with Tab(browser, antipode.report([path], out=tmp_path / "page.html")) as tab:
        tab.sound()
        assert tab.page.evaluate("({}).polluted === undefined")
