"""Read notebooks as strangers hand them in, and put the pristine cells back."""

from __future__ import annotations

import ast
import copy
import json
import re
import warnings

import nbformat

from .files import write_whole

MAX_BYTES = 50_000_000
# cell magics whose cell is Python all the same
PYTHON_MAGICS = ("%%time", "%%timeit", "%%capture", "%%prun")

KERNEL = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
KEPT_METADATA = {"deletable", "editable", "mystnb", "nbgrader", "quote", "tags"}


class Unreadable(Exception):
    """A file that is not a notebook. The message says why."""


def read(path):
    """Read a notebook of any format version.

    Parameters
    ----------
    path : pathlib.Path

    Returns
    -------
    nbformat.NotebookNode
        In format 4; every cell has its source as one string and a ``metadata`` dict.

    Raises
    ------
    Unreadable
    """
    try:
        if not path.is_file():
            raise Unreadable("there is no such file" if not path.exists() else "it is not a file")
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise Unreadable(f"the file has {size:,} bytes; at most {MAX_BYTES:,} are read")
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise Unreadable(f"the file cannot be opened: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise Unreadable(f"the file is not UTF-8 text (byte {error.start})") from None
    if not text.strip():
        raise Unreadable("the file is empty")
    try:
        json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"the file is not JSON: {error}") from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # `nbformat.reads` would also validate, and log what is no trouble here
            notebook = nbformat.convert(nbformat.reader.reads(text), 4)
        cells = notebook.cells
        for cell in cells:
            cell.source = "".join(cell.get("source", ""))
            if cell.get("cell_type") not in ("code", "markdown", "raw"):
                cell.cell_type = "code"  # the kind that counts
            if not isinstance(cell.get("metadata"), dict):
                cell.metadata = nbformat.NotebookNode()
    except Exception as error:  # whatever other JSON than a notebook may cause
        raise Unreadable(
            f"the file is JSON but not a notebook ({type(error).__name__}: {error})"
        ) from None
    return notebook


def normalize(notebook):
    """Bring a notebook into the form in which it is kept, so that diffs stay readable.

    Cells keep their id, or get one from their ``grade_id`` or their place. Of the metadata, what
    `KEPT_METADATA` names stays: no timings, no editor's state, no exact Python version. Text
    that was printed in several pieces is joined, since where it is cut is chance.

    Parameters
    ----------
    notebook : nbformat.NotebookNode

    Returns
    -------
    nbformat.NotebookNode
        A new notebook.
    """
    notebook = copy.deepcopy(notebook)
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    kept = {key: notebook.metadata[key] for key in ("autograder",) if key in notebook.metadata}
    notebook.metadata = nbformat.from_dict(kept | KERNEL)
    taken = set()
    for place, cell in enumerate(notebook.cells, 1):
        own = re.sub(r"[^\w-]", "-", cell.get("id") or "")
        name = (grade_id(cell) or "").replace("_", "-") or own or f"cell-{place:02d}"
        while name in taken:
            name += "-b"
        taken.add(name)
        cell.id = name[:64]
        cell.metadata = nbformat.from_dict(
            {key: value for key, value in cell.metadata.items() if key in KEPT_METADATA}
        )
        if cell.cell_type == "code":
            cell.outputs = _joined(cell.outputs)
    return notebook


def _joined(outputs):
    joined = []
    for output in outputs:
        last = joined[-1] if joined else {}
        if output.output_type == "stream" and last.get("name") == output.name:
            last.text += output.text
        else:
            joined.append(output)
    return joined


def write(notebook, path):
    """Write a normalized notebook, whole or not at all, and only if it changed.

    Returns
    -------
    bool
        Whether the file changed.
    """
    text = as_text(notebook)
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return False
    write_whole(path, text)
    return True


def as_text(notebook):
    """Return the text of the file that `write` writes."""
    notebook = normalize(notebook)
    nbformat.validate(notebook)
    return nbformat.writes(notebook, version=4).rstrip("\n") + "\n"


def nbgrader(cell):
    """Return the cell's nbgrader metadata: a dict, empty where there is none."""
    found = cell.metadata.get("nbgrader")
    return found if isinstance(found, dict) else {}


def grade_id(cell):
    """Return the name under which the course knows the cell, or None."""
    found = nbgrader(cell).get("grade_id")
    return found if isinstance(found, str) else None


def is_locked(cell):
    """Tell whether learners are not to edit the cell."""
    return bool(nbgrader(cell).get("locked"))


def is_answer(cell):
    """Tell whether the cell is the place of an answer."""
    return bool(nbgrader(cell).get("solution"))


def bound_names(source):
    """List the names that a cell's top level binds: functions, classes, variables, imports."""
    try:
        tree = ast.parse(to_python(source))
    except (SyntaxError, ValueError, RecursionError):
        return set(re.findall(r"^(?:def|class)\s+(\w+)", source, re.MULTILINE))
    names = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        else:
            names |= {
                part.id
                for part in ast.walk(node)
                if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
            }
    return names


def same_code(source, other):
    """Tell whether two cells hold the same code, comments and blanks aside."""
    try:
        return ast.dump(ast.parse(to_python(source))) == ast.dump(ast.parse(to_python(other)))
    except (SyntaxError, ValueError, RecursionError):
        return source.strip() == other.strip()


def to_python(source):
    """Translate a cell's magics and shell lines into Python, keeping its line numbers."""
    if source.lstrip().startswith(PYTHON_MAGICS):
        _, line_end, after = source.partition("\n")
        return line_end + to_python(after)
    if not re.search(r"^\s*[%!?]|[?]\s*$|=\s*[%!]", source, re.MULTILINE):
        return source
    from IPython.core.inputtransformer2 import TransformerManager

    try:
        return TransformerManager().transform_cell(source)
    except SyntaxError:
        return source


def merge(theirs, pristine):
    """Put the pristine locked cells back into a learner's notebook.

    Parameters
    ----------
    theirs, pristine : nbformat.NotebookNode
        The notebook handed in, and as it was handed out.

    Returns
    -------
    nbformat.NotebookNode
        A new notebook: the learner's cells in their order, with every locked cell as it was
        handed out; locked cells that were deleted are back, after the cell that they followed.
    """
    locked = {grade_id(cell): cell for cell in pristine.cells if is_locked(cell)}
    merged = copy.deepcopy(theirs)
    cells, seen = [], set()
    for cell in merged.cells:
        name = grade_id(cell)
        if name not in locked:
            cells.append(cell)
        elif name not in seen:
            cells.append(copy.deepcopy(locked[name]))
            seen.add(name)
    earlier = set()  # the ids of the pristine cells before this one
    for cell in pristine.cells:
        name = grade_id(cell)
        if name in locked and name not in seen:
            places = [i for i, other in enumerate(cells) if grade_id(other) in earlier]
            cells.insert(places[-1] + 1 if places else 0, copy.deepcopy(cell))
        earlier |= {name} - {None}
    merged.cells = cells
    return merged


def code_cells(notebook):
    """List the code cells as ``(id, source, cell)``: a unique id, the source as Python."""
    listed, taken = [], set()
    for place, cell in enumerate(notebook.cells, 1):
        if cell.cell_type != "code":
            continue
        name = grade_id(cell) or f"cell {place}"
        if name in taken:
            name = f"{name} (cell {place})"
        taken.add(name)
        listed.append((name, to_python(cell.source), cell))
    return listed
