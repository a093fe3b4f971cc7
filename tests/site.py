"""What the tests of the book need: a build, a server, a browser, and a look at one page."""

import contextlib
import functools
import http.server
import os
import shutil
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
QUIET = [  # a browser that by itself asks for nothing
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--disable-dev-shm-usage",
]
# What Chromium may ask for all the same; no page of the book has a reason to.
OWN_HOSTS = (".googleapis.com", ".google.com", ".gvt1.com")


def build_book(source, output, **settings):
    """Build the book as `make book` does, with environment variables; return the process."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith("BOOK_")}
    command = [Path(sys.executable).with_name("jupyter-book"), "build", str(source)]
    options = ["--path-output", str(output), "-W", "-n", "--keep-going"]
    return subprocess.run(
        [*command, *options],
        env={**environ, "NO_COLOR": "1", **settings},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )


@contextlib.contextmanager
def serving(handler):
    """Run a server on a free port of this machine; yields ``host:port``."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def files_of(folder, asked):
    """Return a handler that serves `folder` and adds (path, status, bytes) to the list `asked`."""

    class Files(http.server.SimpleHTTPRequestHandler):
        def send_response(self, code, message=None):
            self.status = code
            super().send_response(code, message)

        def copyfile(self, source, outputfile):
            content = source.read()
            asked.append((self.path.partition("?")[0], self.status, len(content)))
            outputfile.write(content)

        def send_error(self, code, message=None, explain=None):
            asked.append((self.path, code, 0))
            super().send_error(code, message, explain)

        def log_message(self, *args):
            pass

    return functools.partial(Files, directory=str(folder))


def recorder_of(left):
    """Return a proxy that refuses every request and adds its host to the list `left`."""

    class Recorder(http.server.BaseHTTPRequestHandler):
        def refuse(self):
            left.append(self.path.split("//")[-1].split("/")[0].split(":")[0])
            self.send_error(502)

        do_GET = do_POST = do_HEAD = do_PUT = do_OPTIONS = do_CONNECT = refuse

        def log_message(self, *args):
            pass

    return Recorder


def launch(playwright, proxy):
    """Start a browser that sends all but its own machine's requests to a proxy."""
    return playwright.chromium.launch(
        executable_path=CHROMIUM, args=[*QUIET, f"--proxy-server={proxy}"]
    )


@dataclass
class Visit:
    """What was found on one page, at one width, in one theme."""

    errors: list = field(default_factory=list)
    outside: list = field(default_factory=list)
    formulas: int = 0
    rendered: int = 0
    raw_formulas: list = field(default_factory=list)
    images: list = field(default_factory=list)
    overflow: int = 0
    grounds: list = field(default_factory=list)
    violations: list = field(default_factory=list)


LOOK = """() => {
  const all = selector => [...document.querySelectorAll(selector)];
  window.scrollTo(9999, 0);
  const overflow = window.scrollX;
  window.scrollTo(0, 0);
  return {
    overflow,
    formulas: all(".math").length,
    rendered: all("mjx-container").length - all("mjx-merror").length,
    raw_formulas: all("article").flatMap(e => e.innerText.match(/\\\\[([].{0,20}/g) ?? []),
    images: all("img").map(e => ({
      name: e.src, alt: e.alt, shown: e.complete && e.naturalWidth > 0,
    })).concat(all("article svg").filter(e => !e.closest("mjx-container, button")).map(e => ({
      name: "inline drawing", shown: true,
      alt: e.getAttribute("role") === "img" ? e.getAttribute("aria-label") ?? "" : "",
    }))),
  };
}"""


def visit(browser, address, width, theme, *, colors_of_code):
    """Open a page and look it over; returns a `Visit`.

    Code has the same colors on every page, and a long chapter has thousands of pieces of it: one
    page with ``colors_of_code`` stands for all.
    """
    found = Visit()
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme)
    page = context.new_page()
    page.on("console", lambda m: found.errors.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda error: found.errors.append(str(error)))
    page.on("requestfailed", lambda r: found.errors.append(f"{r.url}: {r.failure}"))
    here = address.split("/")[2]
    page.on("request", lambda r: None if f"://{here}/" in r.url else found.outside.append(r.url))

    page.goto(address, wait_until="load")
    page.evaluate("() => window.MathJax?.startup?.promise")
    # Colors fade in when the theme is set; axe is to see the final ones.
    page.evaluate(
        "() => Promise.allSettled(document.getAnimations().map(a => a.finished)).then(() => 0)"
    )
    for name, value in page.evaluate(LOOK).items():
        setattr(found, name, value)
    if width >= 1000 or theme == "light":  # a narrow page is the same in the dark but for colors
        found.violations = violations(page, colors=width >= 1000, colors_of_code=colors_of_code)
    if theme == "dark":
        found.grounds = figure_grounds(page)
    context.close()
    return found


def violations(page, *, colors, colors_of_code):
    """List what axe finds serious; to compare colors takes seconds and does not need each width."""
    from axe_playwright_python.sync_playwright import Axe

    # Without preload: axe would fetch the style sheets again and resolve what they import wrongly.
    options = {"resultTypes": ["violations"], "preload": False}
    if not colors:
        options["rules"] = {"color-contrast": {"enabled": False}}
    context = {"exclude": [["div.highlight"]]} if colors and not colors_of_code else None
    report = Axe().run(page, context=context, options=options).response
    return [
        f"{v['impact']}: {v['id']}: {v['help']}: {[n['target'] for n in v['nodes']][:3]}"
        for v in report["violations"]
        if v["impact"] in ("serious", "critical")
    ]


def figure_grounds(page):
    """Return for each figure of a notebook the colors of its corner and of the page."""
    import io

    from PIL import Image

    pairs = []
    ground = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
    for figure in page.locator(".cell_output img").all():
        picture = Image.open(io.BytesIO(figure.screenshot())).convert("RGB")
        # three pixels in, since the edge of a scaled image may be mixed with what is behind it
        pairs.append((picture.getpixel((3, 3)), tuple(int(n) for n in ground[4:-1].split(","))))
    return pairs
