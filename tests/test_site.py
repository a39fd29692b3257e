"""Tests of the documentation site, as `make docs` builds it."""

import ast
import functools
import http.server
import importlib.util
import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import threading
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))
HOST = "http://site.test/"
PACKAGES = ("mkdocs", "material", "mkdocstrings", "latex2mathml")
MISSING = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
CHROMIUM = os.environ.get("ANTIPODE_CHROMIUM") or shutil.which("chromium")
AXE = os.environ.get("ANTIPODE_AXE")  # axe-core finds barriers for people with disabilities
browser = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not on the PATH")
built = [
    pytest.mark.slow,
    pytest.mark.xdist_group("site"),
    pytest.mark.skipif(bool(MISSING), reason="the extra `docs` is not installed"),
]


def test_the_pictures_of_losses_are_those_of_the_script():
    script = ROOT / "docs_site" / "pictures.py"
    process = subprocess.run(
        [sys.executable, script, "--check"], capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr


def test_every_method_page_has_the_same_parts():
    for page in sorted((ROOT / "docs" / "methods").glob("*.md")):
        if page.stem in {"index", "custom", "add-a-method"}:
            continue
        text = page.read_text()
        for part in ("**Idea.**", "## Loss", "$$", f"losses/{page.stem}.svg", "## When to use"):
            assert part in text, f"{page.name}: {part}"
        assert "## What differs from the paper" in text, page.name


@pytest.mark.parametrize("name", PAGES)
def test_code_that_is_fitted_to_the_page_stays_the_same_code(name):
    """Commands keep their words, Python keeps its syntax tree, and commands fit."""
    code = runpy.run_path(str(ROOT / "docs_site" / "code.py"))
    text = (ROOT / name).read_text()
    for before, after in zip(
        code["BLOCK"].finditer(text),
        code["BLOCK"].finditer(code["on_page_markdown"](text)),
        strict=True,
    ):
        if after[1] in {"sh", "bash"}:
            assert words_of(before[2]) == words_of(after[2])
            assert all(len(line) <= code["WIDTH"] for line in after[2].splitlines()), after[2]
        elif after[1] in {"python", "py"}:
            assert ast.dump(ast.parse(before[2])) == ast.dump(ast.parse(after[2]))
        else:
            assert before[0] == after[0]


def words_of(block):
    """Return the commands of a block as lists of words, without comments."""
    lines = block.replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


class Links(HTMLParser):
    """The links, the loaded files and the anchors of a page."""

    def __init__(self, text):
        super().__init__()
        self.links, self.loaded, self.anchors, self.policy = [], [], {""}, ""
        self.depth = 0  # inside the article or the tabs, which the reader sees at first
        self.seen = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.anchors |= {given[key] for key in ("id", "name") if given.get(key)}
        if tag == "article" or (tag == "nav" and "md-tabs" in (given.get("class") or "")):
            self.depth += 1
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
            if self.depth:
                self.seen.append(given["href"])
        if given.get("http-equiv") == "Content-Security-Policy":
            self.policy = given["content"]
        for key in ("src", "srcset", "poster", "data"):
            if given.get(key):
                self.loaded.append(given[key])
        if tag == "link" and given.get("rel") not in {"canonical"}:
            self.loaded.append(given["href"])

    def handle_endtag(self, tag):
        if self.depth and tag in {"article", "nav"}:
            self.depth -= 1


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Return the folder of the built site; a warning fails the build."""
    folder = tmp_path_factory.mktemp("site")
    process = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert process.returncode == 0, process.stderr[-4000:]
    return folder


@pytest.fixture(scope="module")
def pages(site):
    """Return the parsed pages by their path; 404.html is for any address and has absolute links."""
    files = [file for file in site.rglob("*.html") if file.name != "404.html"]
    return {file.relative_to(site).as_posix(): Links(file.read_text()) for file in files}


def address(page):
    """Return the address at which a page is opened."""
    return HOST + page.removesuffix("index.html")


def target(page, link):
    """Return the page and the anchor that a link leads to, or None for another host."""
    whole, anchor = urldefrag(urljoin(address(page), link))
    if not whole.startswith(HOST):
        return None
    path = unquote(urlsplit(whole).path).lstrip("/")
    return (path + "index.html" if not path or path.endswith("/") else path), anchor


class TestSite:
    pytestmark = built

    def test_no_page_loads_anything_from_another_host(self, site, pages):
        for name, page in pages.items():
            outside = [link for link in page.loaded if re.match(r"(https?:)?//", link)]
            assert not outside, (name, outside)
            assert page.policy.startswith("default-src 'self'"), f"{name} has no policy"
        for file in site.rglob("*.css"):
            found = re.findall(
                r"(?:url\(|@import)\s*[\"']?((?:https?:)?//[^\"')]+)", file.read_text()
            )
            assert not found, (file.name, found)

    def test_links_and_anchors_lead_somewhere(self, site, pages):
        for name, page in pages.items():
            for link in page.links + page.loaded:
                if link.startswith(("data:", "mailto:", "javascript:")):
                    continue
                place = target(name, link)
                if place is None:
                    continue
                path, anchor = place
                assert (site / path).is_file(), (name, link)
                if anchor and path in pages:
                    assert unquote(anchor) in pages[path].anchors, (name, link)

    def test_every_page_is_two_clicks_from_the_home_page(self, pages):
        def reached(name, links):
            places = [target(name, link) for link in links]
            return {place[0] for place in places if place and place[0] in pages}

        first = reached("index.html", pages["index.html"].seen)
        second = {page for name in first for page in reached(name, pages[name].links)}
        assert not set(pages) - first - second - {"index.html"}

    def test_the_search_index_knows_the_words_of_a_reader(self, site):
        entries = json.loads((site / "search" / "search_index.json").read_text())["docs"]
        for words in ("shuffle batch norm", "without labels", "own images", "Lightning"):
            found = [
                e["location"] for e in entries if words.lower() in (e["title"] + e["text"]).lower()
            ]
            assert found, words
        titles = [e["location"] for e in entries if e["title"] == "Shuffle batch norm"]
        assert titles == ["methods/moco/#shuffle-batch-norm"]

    def test_formulas_are_mathml_and_none_is_left_over(self, site):
        for page in (site / "methods").rglob("index.html"):
            text = page.read_text()
            assert "arithmatex" not in text and "\\frac" not in re.sub(
                r"<annotation.*?</annotation>", "", text
            ), page
        assert "<math" in (site / "methods" / "dcl" / "index.html").read_text()

    @browser
    @pytest.mark.parametrize("width", [1280, 390])
    @pytest.mark.parametrize("scheme", ["light", "dark"])
    def test_every_page_in_a_browser(self, site, pages, width, scheme):
        with opened(site, width, scheme) as (page, base, problems):
            for name in sorted(pages):
                page.goto(base + name.removesuffix("index.html"))
                wider = page.evaluate(
                    "document.documentElement.scrollWidth - document.documentElement.clientWidth"
                )
                assert wider <= 0, f"{name} is {wider} px wider than the window"
                assert (
                    page.evaluate("getComputedStyle(document.body).backgroundColor")
                    == {"light": "rgb(251, 250, 248)", "dark": "rgb(18, 20, 23)"}[scheme]
                ), name
            assert not problems

    @browser
    def test_text_code_and_formulas_use_the_fonts_of_the_site(self, site):
        with opened(site) as (page, base, problems):
            page.goto(base + "methods/moco/")
            loaded = page.evaluate(
                "document.fonts.ready.then(fonts =>"
                " [...fonts].filter(f => f.status === 'loaded').map(f => f.family))"
            )
            names = {family.strip('"') for family in loaded}
            assert {"Inter Site", "JetBrains Mono Site", "STIX Two Math"} <= names
            assert not problems

    @browser
    @pytest.mark.parametrize("width", [1280, 390])
    def test_search_finds_shuffle_batch_norm(self, site, width):
        with opened(site, width) as (page, base, problems):
            page.goto(base)
            if width < 1000:
                page.locator("label.md-header__button[for=__search]").click()
            page.locator(".md-search__input").fill("shuffle batch norm")
            page.wait_for_selector(".md-search-result__item", state="attached", timeout=20_000)
            first = page.locator(".md-search-result__link").first.get_attribute("href")
            assert "methods/moco/" in first
            assert not problems

    @browser
    def test_the_paths_of_the_questions_page_can_be_clicked(self, site):
        table = (ROOT / "docs" / "questions.md").read_text()
        rows = re.findall(r"^\| \[(.*?)\]\(#.*?\| (.*) \|$", table, re.MULTILINE)
        assert len(rows) == 10
        with opened(site) as (page, base, problems):
            for question, cell in rows:
                page.goto(base)
                for click in re.findall(r"\]\((.*?)\)", cell):
                    goal = base + re.sub(r"(?:index)?\.md.*$", "/", click).replace("//", "/")
                    links = page.locator("a:visible")
                    hrefs = links.evaluate_all("found => found.map(a => a.href.split('#')[0])")
                    assert goal in hrefs, f"{question}: no link to {click} on {page.url}"
                    links.nth(hrefs.index(goal)).click()
                    page.wait_for_url(f"{goal}*")
            assert not problems

    @browser
    @pytest.mark.skipif(AXE is None, reason="ANTIPODE_AXE does not name a copy of axe.min.js")
    @pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (390, "light")])
    def test_no_page_has_a_serious_barrier(self, site, pages, width, scheme):
        script = Path(AXE).read_text()
        with opened(site, width, scheme, bypass_csp=True) as (page, base, _):
            for name in sorted(pages):
                page.goto(base + name.removesuffix("index.html"))
                page.evaluate(script)
                found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
                grave = [
                    (each["id"], each["nodes"][0]["html"][:200])
                    for each in found["violations"]
                    if each["impact"] in {"serious", "critical"}
                ]
                assert not grave, (name, grave)


@contextmanager
def opened(site, width=1280, scheme="light", **options):
    """Open a browser on the served site; yields page, address and a list of problems.

    Problems are messages on the console, errors of scripts and requests to other hosts.
    """
    driver = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    problems = []
    with served(site) as base, driver.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        size = {"width": width, "height": 900}
        page = browser.new_context(viewport=size, color_scheme=scheme, **options).new_page()
        page.on("console", lambda message: problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda request: outside(request.url, base, problems))
        yield page, base, problems
        browser.close()


def outside(url, base, problems):
    """Note a request that leaves the site."""
    if not url.startswith((base, "data:", "blob:")):
        problems.append(url)


class served:  # noqa: N801 (a context manager)
    """Serve a folder over HTTP; the value is its address."""

    def __init__(self, folder):
        handler = functools.partial(Silent, directory=folder)
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{self.server.server_port}/"

    def __exit__(self, *_):
        self.server.shutdown()


class Silent(http.server.SimpleHTTPRequestHandler):
    """A server that writes no log."""

    def log_message(self, *_):
        """Print nothing."""
