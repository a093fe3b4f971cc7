"""Grade several notebooks and write the reports."""

from __future__ import annotations

import csv
import io

from .grade import grade, unreadable
from .report import number


def grade_all(paths, course, out, seed, server):
    """Grade notebooks, one after another.

    Parameters
    ----------
    paths : sequence of pathlib.Path
        Notebooks, and folders that hold notebooks.
    course : Course
    out : pathlib.Path or None
        Where ``gradebook.csv`` and ``<submission>/<stem>.json`` are written.
    seed : int
    server : Server

    Returns
    -------
    list of Report
    """
    reports = []
    for submission, path in find_submissions(paths):
        if path.is_symlink():
            reason = "it is a link to another file: hand in the notebook itself"
            report = unreadable(path.stem, submission, seed, reason, server.layers())
        else:
            report = grade(path, course, server, seed, submission)
        reports.append(report)
        if out is not None:
            write_whole(out / submission / f"{report.notebook}.json", report.as_json())
    if out is not None:
        write_whole(out / "gradebook.csv", gradebook(reports))
    return reports


def find_submissions(paths):
    """List ``(submission, path)`` for each notebook.

    A notebook is named after its folder when it was found in a folder of a folder
    (``submissions/student-017/02_single_head.ipynb``), else after itself.
    """
    found = []
    for path in paths:
        if path.is_dir():
            for notebook in sorted(path.rglob("*.ipynb")):
                if ".ipynb_checkpoints" in notebook.parts:
                    continue
                inside = notebook.relative_to(path).parts
                found.append((inside[0] if len(inside) > 1 else notebook.stem, notebook))
        else:
            found.append((path.stem, path))
    return found


def gradebook(reports):
    """Return the text of the gradebook: a row a submission and notebook."""
    ids = list(dict.fromkeys(q.id for report in reports for q in report.questions))
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["submission", "notebook", "status", "points", "max_points", *ids])
    for report in reports:
        points = {question.id: number(question.points) for question in report.questions}
        rows.writerow(
            [report.submission, report.notebook, report.status]
            + [number(report.points), number(report.max_points)]
            + [points.get(name, "") for name in ids]
        )
    return text.getvalue()


def write_whole(path, text):
    """Write a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)
