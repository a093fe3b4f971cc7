"""Which pages are built, their titles, and the links that download the notebooks.

``BOOK_SOLUTIONS=0`` in the environment builds the book without the solutions: they are then
neither pages nor sources nor found by the search.
"""

import os
import re
import shutil
from pathlib import Path

import yaml
from docutils import nodes
from sphinx.errors import ConfigError

SETTING = "BOOK_SOLUTIONS"
FOLDER = "solutions/"

# A section that holds a question starts with its number: "1. softmax".
QUESTION = re.compile(r"(Question )?\d+\b")


def solutions_wanted(environ):
    """Return whether to build the solutions; the default is to build them.

    Raises
    ------
    ConfigError
        If the setting is neither "0" nor "1".
    """
    value = environ.get(SETTING, "1")
    if value not in ("0", "1"):
        raise ConfigError(f"{SETTING} must be 0 or 1, got {value!r}")
    return value == "1"


def without_solutions(toc):
    """Return a copy of a table of contents without the pages under ``solutions/``.

    Parts that are empty then are left out, too.
    """
    parts = []
    for part in toc["parts"]:
        kept = [page for page in part["chapters"] if not page["file"].startswith(FOLDER)]
        if kept:
            parts.append({**part, "chapters": kept})
    return {**toc, "parts": parts}


def choose_pages(app, config):
    """Hand sphinx-external-toc a shorter table of contents where no solutions are wanted."""
    config.book_solutions = solutions_wanted(os.environ)
    if config.book_solutions:
        return
    outdir = Path(app.outdir)
    if (outdir / FOLDER).exists():  # left by an earlier build, with copies in several places
        shutil.rmtree(outdir)
        outdir.mkdir()
    toc = yaml.safe_load((Path(app.srcdir) / config.external_toc_path).read_text("utf-8"))
    shorter = Path(app.doctreedir) / "toc_without_solutions.yml"
    shorter.write_text(yaml.safe_dump(without_solutions(toc), sort_keys=False), encoding="utf-8")
    config.external_toc_path = shorter.as_posix()


def add_download_link(app, doctree, docname):
    """Put a link that downloads the notebook under the title of its page."""
    source = app.env.doc2path(docname, base=False)
    if app.builder.format != "html" or not source.endswith(".ipynb"):
        return
    title = next(iter(doctree.findall(nodes.title)), None)
    if title is None:
        return
    # Sphinx copies each page's source there, unchanged.
    address = "../" * docname.count("/") + f"_sources/{source}"
    link = (
        f'<p class="notebook-link"><a href="{address}" download>Download this notebook</a>'
        f" <span>({source})</span></p>"
    )
    title.parent.insert(title.parent.index(title) + 1, nodes.raw("", link, format="html"))


def mark_questions(app, doctree, docname):
    """Give the sections of exercises and solutions a class, so that they look like questions."""
    if docname.startswith(("exercises/", FOLDER)):
        for section in doctree.findall(nodes.section):
            title = section.next_node(nodes.title)
            if title is not None and QUESTION.match(title.astext()):
                section["classes"].append("question")


def name_solutions(app, doctree):
    """Title a page of solutions "Solutions: ...".

    A notebook of exercises is made from that of the solutions, so both have the same title.
    """
    if app.env.docname.startswith(FOLDER):
        title = next(iter(doctree.findall(nodes.title)))
        for text in title.findall(nodes.Text):
            text.parent.replace(text, nodes.Text(re.sub(r"^Exercises?\b", "Solutions", text)))
            break


def mend_bibliography(app, pagename, templatename, context, doctree):
    """Drop a role that promises list items, which the references inside are not."""
    if "body" in context:
        context["body"] = context["body"].replace(
            '<div role="list" class="citation-list">', '<div class="citation-list">'
        )


def setup(app):
    """Register with Sphinx."""
    # "env": pages hold the table of contents, so a changed setting means reading all of them.
    app.add_config_value("book_solutions", True, "env")
    app.connect("config-inited", choose_pages, priority=100)  # before sphinx-external-toc reads it
    app.connect("doctree-read", name_solutions, priority=100)  # before Sphinx notes the titles
    app.connect("doctree-resolved", add_download_link)
    app.connect("doctree-resolved", mark_questions)
    app.connect("html-page-context", mend_bibliography)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
