"""Everything a page needs comes with the site, and nothing more than it needs.

MathJax is copied from the package sphinx-mathjax-offline: only the parts that this book can
request, since the whole package would add 24 MB to the site. The theme's ``fontawesome.js``
(1.5 MB on every page) is emptied: its icons are drawn by the style sheet and web font as well.
"""

import importlib.util
import shutil
from pathlib import Path

# The combined TeX component with its fonts, and TeX extensions, which are loaded on first use.
MATHJAX_PARTS = ["tex-chtml.js", "output/chtml/fonts", "input/tex/extensions"]

FONTAWESOME = "scripts/fontawesome.js"


def mathjax_folder():
    """Return the folder with MathJax's files inside the installed package."""
    # The package's name has hyphens, so it can be found but not imported by a statement.
    package = importlib.util.find_spec("sphinx-mathjax-offline")
    return Path(package.origin).parent / "static" / "mathjax"


def copy_mathjax(app, exception):
    """Copy the parts of MathJax into the finished site."""
    if exception is not None or app.builder.format != "html":
        return
    for part in MATHJAX_PARTS:
        source = mathjax_folder() / part
        target = Path(app.outdir) / "_static" / "mathjax" / part
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, dirs_exist_ok=True)
        else:
            shutil.copyfile(source, target)


def drop_unused_mathjax(app, pagename, templatename, context, doctree):
    """Leave MathJax out of pages without formulas.

    Sphinx loads it on the start page as well, on account of the pages in the table of contents.
    """
    if 'class="math' not in context.get("body", ""):
        context["script_files"] = [
            script
            for script in context["script_files"]
            if "mathjax" not in str(getattr(script, "filename", script))
        ]


def trim_theme(app, exception):
    """Empty the icon script, and leave out the source maps that no reader loads."""
    if exception is not None or app.builder.format != "html":
        return
    static = Path(app.outdir) / "_static"
    (static / FONTAWESOME).write_text("// The icons come from the web font.\n", encoding="utf-8")
    for source_map in static.rglob("*.map"):
        source_map.unlink()


def setup(app):
    """Register with Sphinx."""
    # Jupyter Book always sets this for sphinx-comments, which is not loaded here.
    app.add_config_value("comments_config", {}, "")
    app.config.mathjax_path = "mathjax/tex-chtml.js"
    # No menu: it is the one part that would ask for files that are not copied.
    app.config.mathjax3_config = {"options": {"enableMenu": False}}
    app.connect("html-page-context", drop_unused_mathjax, priority=900)  # after Sphinx added it
    app.connect("build-finished", copy_mathjax)
    app.connect("build-finished", trim_theme)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
