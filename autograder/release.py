"""Make the exercises that learners get from the notebooks with solutions."""

from __future__ import annotations

import copy

from .notebooks import is_answer, is_locked, nbgrader, read, same_code, write

BEGIN, END = "### BEGIN SOLUTION", "### END SOLUTION"
BEGIN_STUB, END_STUB = "### BEGIN STUB", "### END STUB"
STUB = "raise NotImplementedError"


class ReleaseError(Exception):
    """A notebook from which no exercise can be made. The message says what to mend."""


def make_release(solution):
    """Make an exercise notebook from a notebook with solutions.

    Cells tagged ``solution`` go, what stands between the solution markers becomes
    ``raise NotImplementedError``, locked cells can be neither edited nor deleted. Outputs go,
    but for those of locked cells that are no checks: worked examples, to be read.

    Parameters
    ----------
    solution : nbformat.NotebookNode

    Returns
    -------
    nbformat.NotebookNode

    Raises
    ------
    ReleaseError
        If an answer cell has no markers, or markers do not pair up.
    """
    exercise = copy.deepcopy(solution)
    exercise.cells = [c for c in exercise.cells if "solution" not in c.metadata.get("tags", [])]
    for cell in exercise.cells:
        if is_answer(cell):
            cell.source = strip_solution(cell.source, nbgrader(cell).get("grade_id"))
        elif BEGIN in cell.source or END in cell.source:
            raise ReleaseError(f"solution markers outside an answer cell:\n{cell.source}")
        if is_locked(cell):
            cell.metadata["editable"] = cell.metadata["deletable"] = False
        if cell.cell_type == "code":
            example = is_locked(cell) and not nbgrader(cell).get("grade") and cell.outputs
            if not example:  # nbval takes outputs without a count for a mistake
                cell.outputs, cell.execution_count = [], None
    return exercise


def strip_solution(source, name):
    """Replace each solution in a cell's source by what learners find in its place.

    That is ``raise NotImplementedError``, or a stub that follows the solution as comments::

        ### BEGIN SOLUTION
        predicted_shape = (2, 3)
        ### END SOLUTION
        ### BEGIN STUB
        # predicted_shape = ...
        ### END STUB

    Parameters
    ----------
    source : str
    name : str
        Of the answer, for error messages.

    Returns
    -------
    str
    """
    solution, stub = (BEGIN, END), (BEGIN_STUB, END_STUB)
    lines, inside = [], None  # `inside`: the pair of markers that is open
    own_stub = BEGIN_STUB in source
    for line in source.splitlines():
        marker, indent = line.strip(), line[: len(line) - len(line.lstrip())]
        pair = next((pair for pair in (solution, stub) if marker in pair), None)
        if pair is None:
            if inside is stub:
                lines.append(indent + marker.removeprefix("#").removeprefix(" "))
            elif inside is None:
                lines.append(line)
        elif marker == pair[0]:
            if inside is not None:
                raise ReleaseError(f"{name}: {marker!r} before the {inside[1]!r}")
            inside = pair
            if pair is solution and not own_stub:
                lines.append(indent + STUB)
        elif inside is not pair:
            raise ReleaseError(f"{name}: {marker!r} without a {pair[0]!r} before it")
        else:
            inside = None
    if inside is not None:
        raise ReleaseError(f"{name}: {inside[0]!r} without an {inside[1]!r} after it")
    if BEGIN not in source:
        raise ReleaseError(f"{name}: the answer cell has no {BEGIN!r}")
    return "\n".join(lines)


def release(course, stems=(), force=False):
    """Write the exercise notebooks of a course.

    Parameters
    ----------
    course : Course
    stems : sequence of str
        Which ones; all where empty.
    force : bool
        Overwrite notebooks that hold somebody's answers.

    Returns
    -------
    dict
        For each stem ``"written"``, ``"unchanged"`` or ``"kept"`` (it holds answers).
    """
    results = {}
    for stem in stems or course.stems():
        exercise = make_release(read(course.solutions / f"{stem}.ipynb"))
        target = course.exercises / f"{stem}.ipynb"
        if not force and target.exists() and holds_answers(read(target), exercise):
            results[stem] = "kept"
        else:
            results[stem] = "written" if write(exercise, target) else "unchanged"
    return results


def holds_answers(notebook, exercise):
    """Tell whether somebody has worked in a notebook since it was handed out."""
    stubs = [cell.source for cell in exercise.cells if is_answer(cell)]
    return any(
        STUB not in cell.source and not any(same_code(cell.source, stub) for stub in stubs)
        for cell in notebook.cells
        if cell.cell_type == "code" and not is_locked(cell) and cell.source.strip()
    )
