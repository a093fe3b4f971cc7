"""Keep the chapters true: quotes up to date, outputs from a fresh run, one tidy file format.

    python tools/chapters.py                  every chapter in book/
    python tools/chapters.py 02_single_head   one chapter, by its stem (or a path)
    python tools/chapters.py --check          change nothing; say what is wrong, exit 1

For each notebook this brings the quotes up to date, runs it in a fresh kernel, tidies the result
and writes the file if it changed.

A cell that shows library code names it in its metadata, and its source is replaced by the code
that stands in the library (several names: a list, in the order in which they are to stand)::

    {"quote": "attention.in_numpy.single_head.softmax"}

Edit a chapter as text, then bring the text back and run it::

    jupytext --to md:myst -o chapter.md book/02_single_head.ipynb
    jupytext --to ipynb --update -o book/02_single_head.ipynb chapter.md
    python tools/chapters.py 02_single_head
"""

import argparse
import ast
import sys
from pathlib import Path

from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError

from autograder.notebooks import as_text, read, write

ROOT = Path(__file__).resolve().parent.parent
BOOK = ROOT / "book"

SECONDS_A_CELL = 60


class ChapterError(Exception):
    """A chapter cannot be made: a quote names nothing, or a cell fails."""


# --- quotes ----------------------------------------------------------------------------------


def quoted_source(names):
    """Return the library source of one dotted name, or of a list of names."""
    if isinstance(names, str):
        names = [names]
    return "\n\n\n".join(source_of(name) for name in names)


def source_of(dotted):
    """Return the source of a top-level function, class or constant, read from its file."""
    module, _, name = dotted.rpartition(".")
    path = ROOT.joinpath(*module.split(".")).with_suffix(".py") if module else None
    if path is None or not path.is_file():
        raise ChapterError(f"quotes {dotted}: there is no module {module!r}")
    text = path.read_text(encoding="utf-8")
    for node in ast.parse(text).body:
        if name in names_bound_by(node):
            first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
            return "\n".join(text.splitlines()[first - 1 : node.end_lineno])
    raise ChapterError(f"quotes {dotted}: {path.relative_to(ROOT)} defines no {name!r}")


def names_bound_by(node):
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Assign):
        return {target.id for target in node.targets if isinstance(target, ast.Name)}
    return set()


def update_quotes(nb):
    """Replace the source of every quoting cell by what stands in the library."""
    for number, cell in enumerate(nb.cells, start=1):
        if "quote" in cell.metadata:
            try:
                cell.source = quoted_source(cell.metadata["quote"])
            except ChapterError as error:
                raise ChapterError(f"cell {number} {error}") from None


# --- running ---------------------------------------------------------------------------------


def execute(nb, folder):
    """Run all cells in a fresh kernel, working in `folder`; counts start at 1."""
    client = NotebookClient(
        nb,
        timeout=SECONDS_A_CELL,
        kernel_name="python3",
        record_timing=False,
        extra_arguments=["--log-level=ERROR"],
        resources={"metadata": {"path": str(folder)}},
    )
    try:
        client.execute()
    except CellTimeoutError:
        raise ChapterError(f"a cell ran for more than {SECONDS_A_CELL} s") from None
    except CellExecutionError as error:
        raise ChapterError(f"a cell failed\n{error}") from None


def refresh(path):
    """Bring one notebook up to date. Return True if its file changed."""
    nb = read(path)
    update_quotes(nb)
    execute(nb, path.parent)
    return write(nb, path)


# --- checking --------------------------------------------------------------------------------


def problems_of(path):
    """Return what is wrong with a notebook, in words; an empty list if nothing is."""
    text = path.read_text(encoding="utf-8")
    nb = read(path)
    problems = []
    if text != as_text(nb):
        problems.append("the file is not in its normal form (ids, metadata or layout)")
    expected_count = 0
    for number, cell in enumerate(nb.cells, start=1):
        if cell.cell_type != "code":
            continue
        expected_count += 1
        problems += [
            f"cell {number} {problem}" for problem in problems_of_code_cell(cell, expected_count)
        ]
    return problems


def problems_of_code_cell(cell, expected_count):
    problems = []
    if cell.execution_count is None:
        # nbval compares no output of such a cell, so nothing would prove what it shows.
        problems.append("has no execution count: its output was not run or was cleared")
    elif cell.execution_count != expected_count:
        problems.append(
            f"has execution count {cell.execution_count}, in a fresh run it is {expected_count}"
        )
    if "quote" in cell.metadata:
        try:
            if cell.source != quoted_source(cell.metadata["quote"]):
                problems.append(f"quotes {cell.metadata['quote']}, which has changed since")
        except ChapterError as error:
            problems.append(str(error))
    for output in cell.outputs:
        if output.output_type == "error":
            problems.append(f"ends in an error: {output.ename}: {output.evalue}")
        if output.get("name") == "stderr":
            problems.append(f"writes to stderr: {output.text.strip().splitlines()[-1]}")
    if shows_figure(cell) and not alt_text(cell).strip():
        problems.append("shows a figure without alt text (cell metadata mystnb.image.alt)")
    return problems


def shows_figure(cell):
    return any("image/png" in output.get("data", {}) for output in cell.outputs)


def alt_text(cell):
    return cell.metadata.get("mystnb", {}).get("image", {}).get("alt", "")


# --- command line ----------------------------------------------------------------------------


def find(argument):
    """Return the notebook that a stem or a path names."""
    by_stem = BOOK / f"{argument}.ipynb"
    return by_stem if by_stem.is_file() else Path(argument).resolve()


def shown(path):
    return path.relative_to(ROOT) if path.is_relative_to(ROOT) else path


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("chapters", nargs="*", help="stems or paths; none means all of book/")
    parser.add_argument("--check", action="store_true", help="change nothing, say what is wrong")
    options = parser.parse_args(arguments)

    paths = [find(argument) for argument in options.chapters] or sorted(BOOK.glob("*.ipynb"))
    failed = False
    for path in paths:
        if not path.is_file():
            parser.error(f"there is no notebook {path}")
        if options.check:
            problems = problems_of(path)
            for problem in problems:
                print(f"{shown(path)}: {problem}")
            failed |= bool(problems)
            continue
        try:
            print(f"{shown(path)}: {'updated' if refresh(path) else 'unchanged'}")
        except ChapterError as error:
            print(f"{shown(path)}: {error}", file=sys.stderr)
            failed = True
    if options.check and failed:
        print("To mend: python tools/chapters.py")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
