"""The book as its readers get it: built, served under a sub-path, and opened in a browser."""

import importlib.util
import json
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
import yaml

from . import site

CONTENTS = yaml.safe_load((site.ROOT / "_toc.yml").read_text("utf-8"))
PAGES = [
    CONTENTS["root"],
    *(page["file"] for part in CONTENTS["parts"] for page in part["chapters"]),
]
NOTEBOOKS = [page for page in PAGES if (site.ROOT / f"{page}.ipynb").exists()]
CHAPTER, EXERCISE = "book/02_single_head", "exercises/02_single_head"
WIDTHS, THEMES = (390, 1280), ("light", "dark")
LOOKS = [
    (page, width, theme) for page in [*PAGES, "search"] for width in WIDTHS for theme in THEMES
]

needs_browser = pytest.mark.skipif(site.CHROMIUM is None, reason="Chromium is not installed")


def load(path):
    """Import a module of the book, which is not a package."""
    spec = importlib.util.spec_from_file_location(path.rpartition("/")[2][:-3], site.ROOT / path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def book(tmp_path_factory):
    """The folder of the finished site, built once and without a repository address."""
    output = tmp_path_factory.mktemp("book")
    build = site.build_book(site.ROOT, output, BOOK_REPOSITORY_URL="")
    assert build.returncode == 0, build.stdout[-4000:]
    return output / "_build/html"


@pytest.fixture
def source(tmp_path):
    """A copy of what the book is made of, to be changed."""
    root = tmp_path / "source"
    root.mkdir()
    for name in ("_config.yml", "_toc.yml"):
        shutil.copy(site.ROOT / name, root)
    for name in ("book", "exercises", "solutions"):
        leave = shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints")
        shutil.copytree(site.ROOT / name, root / name, ignore=leave)
    return root


@pytest.fixture(scope="session")
def world(book):
    """A browser that meets the book as a project page, ``http://host/html/``, and nothing else."""
    from playwright.sync_api import sync_playwright

    asked, left = [], []
    with (
        site.serving(site.files_of(book.parent, asked)) as host,
        site.serving(site.recorder_of(left)) as proxy,
        sync_playwright() as playwright,
    ):
        browser = site.launch(playwright, proxy)
        base = f"http://{host}/html"
        yield SimpleNamespace(browser=browser, base=base, proxy=proxy, asked=asked, left=left)
        browser.close()


@pytest.fixture(scope="session")
def visits(world):
    """Every page at every width in every theme, and the hosts that were asked meanwhile."""
    from playwright.sync_api import sync_playwright

    def visit_all(looks):
        with sync_playwright() as playwright:
            browser = site.launch(playwright, world.proxy)
            return {
                (page, width, theme): site.visit(
                    *(browser, f"{world.base}/{page}.html", width, theme),
                    colors_of_code=page == CHAPTER,
                )
                for page, width, theme in looks
            }

    with ThreadPoolExecutor(2) as pool:  # each thread with a browser of its own
        first, second = pool.map(visit_all, (LOOKS[::2], LOOKS[1::2]))
    return first | second, list(world.left)


@pytest.fixture
def page(world):
    """A fresh page at desktop width, for tests that click and type."""
    context = world.browser.new_context(viewport={"width": 1280, "height": 900})
    yield context.new_page()
    context.close()


# ---- every page, both widths, both themes


@needs_browser
@pytest.mark.parametrize(("name", "width", "theme"), LOOKS)
def test_page_is_sound(visits, name, width, theme):
    found = visits[0][name, width, theme]
    assert found.errors == []
    assert found.outside == []
    assert found.overflow == 0, "the page scrolls sideways"
    assert found.rendered == found.formulas, "a formula was not rendered"
    assert found.raw_formulas == []
    for image in found.images:
        assert image["shown"], image
        # Sphinx puts in the file's name where a figure has no alt text.
        assert image["alt"].strip(), image
        assert not re.search(r"_images|\.(png|svg|jpe?g)", image["alt"]), image
    for corner, ground in found.grounds:
        assert max(abs(a - b) for a, b in zip(corner, ground, strict=True)) <= 3, (
            f"a figure's ground is {corner}, that of the dark page {ground}"
        )
    assert found.violations == []


@needs_browser
def test_pages_that_should_have_formulas_and_figures_have_them(visits):
    chapter, notation, start = (
        visits[0][name, 1280, "dark"] for name in (CHAPTER, "book/notation", "book/index")
    )
    assert chapter.formulas >= 20
    assert notation.formulas >= 20
    assert len(chapter.grounds) >= 3
    assert sum(image["name"] == "inline drawing" for image in start.images) == 2


@pytest.mark.parametrize("name", PAGES)
def test_names_in_formulas_keep_no_backslash(name):
    r"""MathJax prints the backslash of ``\text{chunk\_size}``; ``\mathtt`` takes it as meant."""
    paths = [site.ROOT / f"{name}{suffix}" for suffix in (".ipynb", ".md")]
    source = next(path for path in paths if path.exists()).read_text("utf-8")
    assert re.findall(r"\\text\{[^}]*\\_[^}]*\}", source.replace(r"\\", "\\")) == []


@needs_browser
def test_nothing_was_asked_from_another_host(world, visits):
    assert [host for host in visits[1] if not host.endswith(site.OWN_HOSTS)] == []
    missing = [(path, status) for path, status, _ in world.asked if status >= 400]
    assert missing == []
    outside = [path for path, _, _ in world.asked if not path.startswith("/html/")]
    assert outside == [], "an address that is wrong where the site lies under a sub-path"


@needs_browser
def test_the_recorder_would_have_seen_a_request(world, page):
    page.goto(f"{world.base}/book/index.html")
    page.evaluate("() => fetch('http://from-the-page.invalid/x').catch(() => null)")
    page.evaluate("""() => new Promise(done => {
      const code = "fetch('http://from-a-worker.invalid/x').finally(() => postMessage(0))";
      new Worker(URL.createObjectURL(new Blob([code]))).onmessage = done;
    }).then(() => null)""")
    page.evaluate("""() => new Promise(done => {
      const image = Object.assign(new Image(), {src: "https://from-an-image.invalid/x.png"});
      image.onerror = done;
    }).then(() => null)""")
    for host in ("from-the-page.invalid", "from-a-worker.invalid", "from-an-image.invalid"):
        assert host in world.left


@needs_browser
def test_a_look_finds_what_is_wrong(world, book):
    """The opposite of the tests above: a bad page has each of the faults that they look for."""
    bad = book / "bad.html"
    bad.write_text("""<!doctype html><title>bad</title><body><article>
      <span class="math">\\(x\\)</span> <img src="none.png">
      <div style="width: 3000px; color: #eee; background: #fff">pale</div></article>
      <script>console.error("seen"); fetch("http://outside.invalid/").catch(() => 0)</script>""")
    try:
        address = f"{world.base}/bad.html"
        found = site.visit(world.browser, address, 1280, "light", colors_of_code=True)
    finally:
        bad.unlink()
        world.asked[:] = [entry for entry in world.asked if entry[1] < 400]
    assert "seen" in found.errors
    assert "http://outside.invalid/" in found.outside
    assert found.overflow > 0
    assert (found.formulas, found.rendered) == (1, 0)
    assert found.raw_formulas
    assert found.images == [{"name": f"{world.base}/none.png", "alt": "", "shown": False}]
    ids = {violation.split(": ")[1] for violation in found.violations}
    assert {"color-contrast", "html-has-lang", "image-alt"} <= ids


# ---- finding the way


@needs_browser
@pytest.mark.parametrize("start", ["book/index", EXERCISE])
def test_search_finds_the_chapter(world, page, start):
    page.goto(f"{world.base}/{start}.html")
    page.keyboard.press("Control+K")
    page.keyboard.type("softmax")
    page.keyboard.press("Enter")
    hit = page.locator(f"#search-results a[href*='{CHAPTER}.html']").first
    hit.click()
    page.wait_for_url(f"{world.base}/{CHAPTER}.html*")


@needs_browser
def test_the_keyboard_is_enough(world, page):
    page.goto(f"{world.base}/{CHAPTER}.html")
    page.keyboard.press("Tab")
    skip = page.locator("#pst-skip-link a")
    assert skip.evaluate("e => e === document.activeElement")
    assert skip.is_visible()
    for _ in range(25):
        page.keyboard.press("Tab")
        where, outline = page.evaluate("""() => {
          const e = document.activeElement, s = getComputedStyle(e);
          const shown = s.outlineStyle !== "none" && parseFloat(s.outlineWidth) > 0;
          return [e.outerHTML.slice(0, 80), shown];
        }""")
        assert outline, f"nothing shows that the keyboard is on {where}"


@needs_browser
def test_the_theme_can_be_switched(world, page):
    page.goto(f"{world.base}/book/notation.html")
    seen = set()
    for _ in range(3):
        page.locator(".theme-switch-button").first.click()
        seen.add(page.evaluate("() => document.documentElement.dataset.theme"))
    assert seen == {"light", "dark"}


@needs_browser
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_the_notebook_can_be_downloaded(world, page, name):
    page.goto(f"{world.base}/{name}.html")
    with page.expect_download() as download:
        page.get_by_text("Download this notebook").click()
    assert download.value.suggested_filename == f"{name.rpartition('/')[2]}.ipynb"
    content = download.value.path().read_text("utf-8")
    assert json.loads(content)["nbformat"] == 4
    assert content == (site.ROOT / f"{name}.ipynb").read_text("utf-8")


@needs_browser
def test_a_page_stays_light(world, page):
    world.asked.clear()
    page.goto(f"{world.base}/{CHAPTER}.html", wait_until="networkidle")
    assert len(world.asked) <= 45
    assert sum(size for _, _, size in world.asked) <= 3_500_000


# ---- building


def test_a_warning_fails_the_build(source, tmp_path):
    with (source / "book/notation.md").open("a", encoding="utf-8") as notation:
        notation.write("\n[nowhere](no_such_page.md)\n")
    build = site.build_book(source, tmp_path, BOOK_REPOSITORY_URL="")
    assert build.returncode != 0
    assert "no_such_page.md" in build.stdout


def test_what_lies_around_is_no_page(source, tmp_path):
    for path in (".venv/lib/a.md", ".pytest_cache/b.md", "book/.hidden/c.md", "d.md", "book/e.md"):
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        (source / path).write_text("# Not a page\n")
    build = site.build_book(source, tmp_path, BOOK_REPOSITORY_URL="")
    assert build.returncode == 0, build.stdout[-4000:]
    html = tmp_path / "_build/html"
    built = {str(path.relative_to(html)) for path in html.rglob("*.html")}
    own = {"index.html", "search.html", "genindex.html"}
    theme = {name for name in built if name.startswith("_static/")}
    assert built - own - theme == {f"{page}.html" for page in PAGES}


def test_solutions_are_titled_so(book):
    for name in PAGES:
        text = (book / f"{name}.html").read_text("utf-8")
        heading = re.search(r"<h1>(.*?)<", text)[1]
        assert heading.startswith("Solutions: ") == name.startswith("solutions/"), name


def test_a_build_without_solutions_has_no_trace_of_them(source, tmp_path):
    html = tmp_path / "_build/html"
    traces = {}
    for setting in "10":  # into the same folder: what an earlier build left must go
        build = site.build_book(source, tmp_path, BOOK_SOLUTIONS=setting)
        assert build.returncode == 0, build.stdout[-4000:]
        traces[setting] = [
            path
            for path in html.rglob("*")
            if path.is_file()
            and (
                "solutions" in path.relative_to(html).parts
                or (path.suffix in (".html", ".js", ".inv") and b"solutions/0" in path.read_bytes())
            )
        ]
    assert len(traces["1"]) >= 3
    assert traces["0"] == []
    assert (html / f"{EXERCISE}.html").exists()


def test_the_setting_for_solutions_is_read_strictly():
    pages = load("book/_ext/book_pages.py")
    assert pages.solutions_wanted({})
    assert pages.solutions_wanted({"BOOK_SOLUTIONS": "1"})
    assert not pages.solutions_wanted({"BOOK_SOLUTIONS": "0"})
    with pytest.raises(Exception, match="must be 0 or 1, got 'no'"):
        pages.solutions_wanted({"BOOK_SOLUTIONS": "no"})


@pytest.mark.parametrize(
    ("remote", "address"),
    [
        ("https://github.com/lab/course.git", "https://github.com/lab/course"),
        ("https://github.com/lab/course/\n", "https://github.com/lab/course"),
        ("https://user:secret@gitlab.com/lab/group/course", "https://gitlab.com/lab/group/course"),
        ("git@github.com:lab/course.git", "https://github.com/lab/course"),
        ("ssh://git@github.com:22/lab/course.git", "https://github.com/lab/course"),
        ("http://git.school.edu:3000/lab/course", "http://git.school.edu:3000/lab/course"),
        ("/srv/git/course.git", None),
        ("../course", None),
        ("file:///srv/git/course.git", None),
        ("C:\\git\\course", None),
        ("git://github.com/lab/course", None),
        ("ssh://git@server/lab/course", None),
        ("http://localhost:3000/lab/course", None),
        ("http://10.0.0.5/lab/course", None),
        ("https://git.school.internal/lab/course", None),
        ("https://github.com/lab", None),
        ("https://github.com:port/lab/course", None),
        ("", None),
        (None, None),
    ],
)
def test_only_a_public_address_becomes_a_link(remote, address):
    assert load("book/_ext/book_repository.py").public_address(remote) == address


def test_the_address_comes_from_the_environment_or_from_git(tmp_path):
    find = load("book/_ext/book_repository.py").find_repository
    given = {"BOOK_REPOSITORY_URL": "https://github.com/lab/given"}

    def git(*arguments):
        site.subprocess.run(["git", "-C", str(tmp_path), *arguments], check=True)

    git("init", "-q")
    assert find(tmp_path, {}) is None
    git("remote", "add", "origin", "git@github.com:lab/course.git")
    assert find(tmp_path, {}) == "https://github.com/lab/course"
    assert find(tmp_path, given) == "https://github.com/lab/given"
    assert find(tmp_path, {"BOOK_REPOSITORY_URL": ""}) is None


def test_buttons_lead_to_the_repository_or_are_left_out(book, source, tmp_path):
    def addresses(html):
        text = (html / f"{CHAPTER}.html").read_text("utf-8")
        return set(re.findall(r'href="(https?://[^"]*)"', text))

    address = "https://github.com/lab/course"
    build = site.build_book(source, tmp_path, BOOK_REPOSITORY_URL=address)
    assert build.returncode == 0, build.stdout[-4000:]
    more = addresses(tmp_path / "_build/html") - addresses(book)
    assert address in more
    assert f"{address}/edit/main/{CHAPTER}.ipynb" in more
    assert f"https://mybinder.org/v2/gh/lab/course/main?urlpath=lab/tree/{CHAPTER}.ipynb" in more
    assert all("lab/course" in link for link in more)
    assert not any("github" in link or "binder" in link for link in addresses(book))


# ---- the running example


@pytest.fixture(scope="module")
def example():
    """The numbers behind the figure of the start page."""
    return load("book/experiments/landing_figure.py")


def test_the_start_page_shows_the_chapters_example(example):
    cells = json.loads((site.ROOT / f"{CHAPTER}.ipynb").read_text("utf-8"))["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    for name in ("X", "W_q", "W_k", "W_v"):
        pattern = rf"^{name} = np\.array\(\s*(\[.*?\]),?\s*\)"
        typed = re.search(pattern, code, re.MULTILINE | re.DOTALL)
        assert typed, f"the chapter no longer defines {name} where this test looks for it"
        assert np.array_equal(json.loads(typed[1]), getattr(example, name)), name
    assert f"tokens = {json.dumps(example.TOKENS)}" in code


def test_the_drawings_are_up_to_date(example):
    weights = example.attention_weights()
    for name in ("lines", "weights"):
        drawn = getattr(example, f"draw_{name}")(weights)
        assert (example.STATIC / f"landing_{name}.svg").read_text("utf-8") == drawn


def test_the_notation_page_has_the_right_numbers(example):
    X, W_q, W_k, W_v = example.X, example.W_q, example.W_k, example.W_v
    A = example.attention_weights()
    expected = {
        **{"X": X, "W_q": W_q, "W_k": W_k, "W_v": W_v},
        **{"Q": X @ W_q, "K": X @ W_k, "V": X @ W_v, "Q K^\\top": X @ W_q @ (X @ W_k).T},
        **{"A": A.round(2), "A V": (A @ X @ W_v).round(2)},
    }
    text = (site.ROOT / "book/notation.md").read_text("utf-8")
    matrix = r"^(.+?) (?:=|\\approx) \\begin\{bmatrix\} (.+?) \\end\{bmatrix\}"
    printed = {
        name: [[float(number) for number in row.split("&")] for row in rows.split(r"\\")]
        for name, rows in re.findall(matrix, text, re.MULTILINE)
    }
    assert printed.keys() == expected.keys()
    for name, numbers in expected.items():
        assert np.array_equal(printed[name], numbers), name
