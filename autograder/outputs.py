"""Grades in the formats that people and platforms read: CSV, JUnit XML, Gradescope's JSON."""

from __future__ import annotations

import csv
import io
import json
import re
from xml.etree import ElementTree

from .report import number

WORDS = {"incomplete": "a notebook is missing or unreadable", "missing": "nothing was handed in"}


def status_of(reports):
    """Sum up the reports of one submission: ``graded``, ``incomplete`` or ``missing``."""
    if all(report is None for report in reports):
        return "missing"
    graded = all(report is not None and report.status == "graded" for report in reports)
    return "graded" if graded else "incomplete"


def max_points(results, course):
    """Add up what the notebooks that the class handed in are worth."""
    known = set(course.stems())
    questions = [q for stem in results.stems if stem in known for q in course.questions(stem)]
    return sum(question.max_points for question in questions)


def points_of(reports):
    return sum(report.points for report in reports if report is not None)


def gradebook(results, course):
    """Return ``gradebook.csv``: a row a submission, for each question points and status."""
    known = set(course.stems())
    ids = [q.id for stem in results.stems if stem in known for q in course.questions(stem)]
    rows = [["submission", "status", "points", "max_points", "notes"]]
    rows[0] += [column for name in ids for column in (name, f"{name} status")]
    most = number(max_points(results, course))
    for submission in results.submissions:
        reports = results.of(submission)
        found = {q.id: q for report in reports if report is not None for q in report.questions}
        notes = [*submission.notes]
        for stem, report in zip(results.stems, reports, strict=True):
            if report is None and submission.notebooks:
                notes.append(f"{stem} was not handed in")
            elif report is not None and report.status != "graded":
                notes.append(f"{stem} is unreadable: {report.reason}")
        row = [submission.name, status_of(reports), number(points_of(reports)), most]
        row.append("; ".join(notes))
        for name in ids:
            question = found.get(name)
            row += [number(question.points), question.status] if question else ["", ""]
        rows.append(row)
    return _csv(rows)


def canvas(results, course):
    """Return a CSV for Canvas's gradebook import: the column *SIS Login ID* holds our names."""
    title = " ".join(results.stems) or "assignment"
    rows = [["Student", "ID", "SIS Login ID", "Section", title]]
    rows.append(["Points Possible", "", "", "", number(max_points(results, course))])
    for submission in results.submissions:
        points = number(points_of(results.of(submission)))
        rows.append([submission.name, "", submission.name, "", points])
    return _csv(rows)


def moodle(results, course):
    """Return a CSV for Moodle's grade import: map *username* and *grade* when asked."""
    rows = [["username", "grade", "feedback"]]
    for submission in results.submissions:
        reports = results.of(submission)
        rows.append([submission.name, number(points_of(reports)), status_of(reports)])
    return _csv(rows)


def _csv(rows):
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([[_plain(v) for v in row] for row in rows])
    return text.getvalue()


def _plain(value):
    """Keep a spreadsheet from taking a name for a formula, and control characters out."""
    text = re.sub(r"[\x00-\x1f\x7f]", " ", str(value))
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text


def junit(results):
    """Return JUnit XML: a suite for each notebook of a submission, a case for each check."""
    root = ElementTree.Element("testsuites")
    for submission in results.submissions:
        for stem, report in zip(results.stems, results.of(submission), strict=True):
            suite = ElementTree.SubElement(root, "testsuite", name=f"{submission.name}/{stem}")
            checks = (
                [(q, c) for q in report.questions for c in q.checks] if report is not None else []
            )
            for question, check in checks:
                case = ElementTree.SubElement(
                    suite, "testcase", classname=question.id, name=check.name
                )
                if not check.passed:
                    failure = ElementTree.SubElement(case, "failure", message=question.status)
                    failure.text = _xml_text(check.message)
            failures = sum(not check.passed for _, check in checks)
            suite.set("tests", str(len(checks)))
            suite.set("failures", str(failures))
            if report is None or report.status != "graded":
                reason = report.reason if report is not None else "not handed in"
                case = ElementTree.SubElement(suite, "testcase", classname=stem, name="readable")
                ElementTree.SubElement(case, "error", message=_xml_text(reason))
                suite.set("tests", "1")
                suite.set("errors", "1")
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _xml_text(text):
    return re.sub(r"[^\t\n\x20-\ud7ff\ue000-\ufffd]", "?", text)


def gradescope(report):
    """Return Gradescope's ``results.json`` of one report.

    See https://gradescope-autograders.readthedocs.io/en/latest/specs/ for its form.
    """
    if report.status != "graded":
        return _json({"score": 0, "output": f"The notebook cannot be read. {report.reason}"})
    tests = [
        {
            "name": question.id,
            "score": question.points,
            "max_score": question.max_points,
            "status": "passed" if question.status == "passed" else "failed",
            "output": question.feedback or "All checks hold.",
            "output_format": "text",
            "visibility": "visible",
        }
        for question in report.questions
    ]
    return _json({"score": report.points, "tests": tests, "visibility": "visible"})


def _json(data):
    return json.dumps(data, indent=1, ensure_ascii=False) + "\n"
