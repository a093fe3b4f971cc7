"""What a grading found out: the report, as data, as JSON, as a table."""

from __future__ import annotations

import dataclasses
import json
import re
import textwrap
from dataclasses import dataclass, field
from html import escape

SCHEMA = 1
STATUS_WORDS = {"not_attempted": "not attempted"}


@dataclass
class CheckResult:
    """Whether one property of an answer holds, and if not, what to look at."""

    name: str
    passed: bool
    message: str = ""


@dataclass
class QuestionResult:
    """Points and status of one answer.

    Attributes
    ----------
    status : str
        ``passed``, ``partial``, ``failed``, ``error``, ``timeout``, ``memory``, ``crashed``,
        ``not_attempted``, ``missing`` or ``forbidden``.
    mistake : str or None
        The id of the known mistake that explains the results.
    feedback : str
        What to look at, in words.
    """

    id: str
    points: float
    max_points: float
    status: str
    mistake: str | None = None
    feedback: str = ""
    checks: list[CheckResult] = field(default_factory=list)


@dataclass
class Report:
    """The grade of one notebook. It is true when no points are missing."""

    notebook: str
    submission: str
    seed: int
    isolation: dict[str, bool]
    questions: list[QuestionResult] = field(default_factory=list)
    status: str = "graded"
    reason: str = ""  # why a file is unreadable

    @property
    def points(self):
        return round(sum(question.points for question in self.questions), 4)

    @property
    def max_points(self):
        return round(sum(question.max_points for question in self.questions), 4)

    def __bool__(self):
        return self.status == "graded" and all(q.status == "passed" for q in self.questions)

    def as_dict(self):
        """Return the report as plain data, in the order in which people read it."""
        data = dataclasses.asdict(self)
        head = {"schema": SCHEMA, "status": data.pop("status")}
        if self.reason:
            head["reason"] = self.reason
        del data["reason"]
        questions = data.pop("questions")
        return head | data | self._points() | {"questions": questions}

    def _points(self):
        return {"points": self.points, "max_points": self.max_points}

    @classmethod
    def from_dict(cls, data):
        """Make a report of what `as_dict` returned."""
        questions = [
            QuestionResult(**q | {"checks": [CheckResult(**c) for c in q["checks"]]})
            for q in data["questions"]
        ]
        kept = ("notebook", "submission", "seed", "isolation", "status")
        kept_values = {key: data[key] for key in kept}
        return cls(**kept_values, questions=questions, reason=data.get("reason", ""))

    def as_json(self):
        """Return the report as JSON text."""
        return json.dumps(self.as_dict(), indent=1, ensure_ascii=False) + "\n"

    def next_question(self, among=None):
        """Return the first question with points missing, or None.

        Parameters
        ----------
        among : container of str, optional
            The questions that somebody asked about; all where None.
        """
        asked = [q for q in self.questions if among is None or q.id in among]
        return next((q for q in asked if q.status != "passed"), None)

    def __str__(self):
        if self.status != "graded":
            return f"{self.submission}: unreadable. {self.reason}"
        return "\n".join([*table(self), *wrapped(next_step(self))])

    __repr__ = __str__


def number(points):
    """Write points as people do: ``2``, ``1.5``."""
    return f"{points:.4g}"


def table(report, detailed=False):
    """List the lines of a table: question, points, status.

    Parameters
    ----------
    report : Report
    detailed : bool
        Show each check.

    Returns
    -------
    list of str
        At most 80 columns wide, names aside.
    """
    width = max([len(q.id) for q in report.questions] + [len(report.notebook), 34])
    lines = [f"{report.notebook:<{width + 2}}  points   status"]
    for q in report.questions:
        score = f"{number(q.points):>5}/{number(q.max_points):<4}"
        lines.append(f"  {q.id:<{width}} {score} {STATUS_WORDS.get(q.status, q.status)}")
        if detailed:
            for check in q.checks:
                mark = "✓" if check.passed else "✗"
                lines.append(f"    {mark} {check.name.replace('_', ' ')}")
    score = f"{number(report.points):>5}/{number(report.max_points):<4}"
    lines.append(f"  {'total':<{width}} {score}")
    return lines


MARKS = {"passed": "✓", "partial": "◐", "not_attempted": "○", "missing": "○"}


def as_html(report):
    """Return a small table for a notebook: points, status and what to look at next.

    It has no colors of its own but those of the page around it, so it is legible on light and
    dark. All text is escaped.
    """
    cell = "text-align: left; padding: 0.2em 1.2em 0.2em 0"
    rows = "".join(
        f'<tr style="background: none"><td style="{cell}">'
        f"{MARKS.get(q.status, '✗')}&ensp;<code>{escape(q.id)}</code></td>"
        f'<td style="{cell}">{number(q.points)} of {number(q.max_points)} points</td>'
        f'<td style="{cell}">{STATUS_WORDS.get(q.status, q.status)}</td></tr>'
        for q in report.questions
    )
    lines = [line for line in next_step(report) if line]
    if len(report.questions) == 1 and lines:
        lines[:1] = [] if report.next_question() else lines[:1]
    told = "".join(f"<div>{_emphasized(escape(line.strip()))}</div>" for line in lines)
    return (
        f'<div><table style="margin: 0.3em 0"><tbody>{rows}</tbody></table>'
        f'<div style="margin: 0.3em 0; max-width: 46em; overflow-wrap: anywhere">{told}</div></div>'
    )


def _emphasized(line):
    return re.sub(r"^(Right already|Not yet|Look at this|Next):", r"<b>\1:</b>", line)


def wrapped(lines):
    """Wrap lines at 80 columns, all but those that show code."""
    out = []
    for line in lines:
        if len(line) <= 80 or line.lstrip().startswith("in your line"):
            out.append(line)
        else:
            out += textwrap.wrap(line, 80, subsequent_indent="  ", break_long_words=False)
    return out


def next_step(report, among=None):
    """List the lines that say what to do next: the first open question and its feedback.

    Parameters
    ----------
    report : Report
    among : container of str, optional
        See `Report.next_question`.

    Returns
    -------
    list of str
    """
    question = report.next_question(among)
    if question is None:
        return ["", "All points. Well done."] if report else []
    lines = ["", f"Next: {question.id}"]
    failing = next((c for c in question.checks if not c.passed), None)
    if failing and question.status not in ("not_attempted", "missing", "forbidden"):
        lines[-1] += f" ({failing.name.replace('_', ' ')})"
    return lines + [f"  {line}" for line in question.feedback.splitlines()]
