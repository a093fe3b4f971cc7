"""Which check catches which mistake: the matrix of known mistakes, for every exercise notebook.

    python tools/mistakes.py           print the matrix
    python tools/mistakes.py --write   write the book's page, book/mistakes.md
    python tools/mistakes.py --check   exit 1 if the page does not show what is so

A check that no mistake fails is reported: extend it or delete it.
"""

import argparse
import sys
from html import escape
from pathlib import Path

from autograder.course import Course
from autograder.grade import run_check
from autograder.learner import LiveLearner
from autograder.report import number

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "book" / "mistakes.md"
SEED = 0

HEAD = """\
# Known mistakes

The grader knows these wrong answers. When a check fails, it compares what your code did with what
each of them does on the same inputs, and names the one that fits. The bank also proves the checks:
every mistake loses points, and every check catches at least one.

If you are still working on a notebook, stop here: the list gives away what its questions look for.
"""


def failing_checks(question, mistake):
    """Return the set of checks, by place, that a mistake fails."""
    learner = LiveLearner({question.id: mistake.answer})
    return {
        place
        for place, check in enumerate(question.checks, 1)
        if run_check(question, check, learner, SEED)[0] != "passed"
    }


def matrix(course):
    """Yield ``(stem, question, [(mistake, failing checks)])`` for each question of a course."""
    for stem in course.stems():
        for question in course.questions(stem):
            mistakes = [m for m in course.mistakes(stem) if m.question == question.id]
            yield stem, question, [(m, failing_checks(question, m)) for m in mistakes]


def uncaught(rows):
    """List the checks that no mistake fails, as ``question: check``."""
    return [
        f"{question.id}: {check.sentence}"
        for _, question, found in rows
        for place, check in enumerate(question.checks, 1)
        if not any(place in failing for _, failing in found)
    ]


def as_text(rows):
    """Return the matrix as plain text."""
    lines = []
    for stem, question, found in rows:
        lines += [f"{stem}  {question.id}"]
        lines += [f"  {place:2d}  {c.sentence}" for place, c in enumerate(question.checks, 1)]
        places = range(1, len(question.checks) + 1)
        lines.append(" " * 58 + "".join(f"{place:3d}" for place in places))
        for mistake, failing in found:
            marks = "".join("  x" if place in failing else "  ." for place in places)
            lines.append(f"  {mistake.id:<56}{marks}")
        lines.append("")
    return "\n".join(lines)


def as_page(rows):
    """Return the matrix as a page of the book."""
    lines, current = [HEAD], None
    for stem, question, found in rows:
        if stem != current:
            current = stem
            lines.append(f"## {stem}\n")
        checks = enumerate(question.checks, 1)
        lines.append(f"### `{question.id}`\n")
        lines += [f"{place}. {c.sentence} ({number(c.points)})" for place, c in checks]
        lines += ["", "| mistake | what was believed | fails checks |", "|---|---|---|"]
        for mistake, failing in found:
            numbers = ", ".join(map(str, sorted(failing)))
            if len(failing) == len(question.checks) > 1:
                numbers = "all"
            believed = escape(mistake.believed, quote=False).replace("|", "\\|")
            lines.append(f"| `{mistake.id}` | {believed} | {numbers} |")
        lines.append("")
    return "\n".join(lines)


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--write", action="store_true", help="write book/mistakes.md")
    what.add_argument("--check", action="store_true", help="exit 1 if that page is out of date")
    options = parser.parse_args(arguments)
    rows = list(matrix(Course(ROOT)))
    for name in uncaught(rows):
        print(f"no mistake fails the check {name}", file=sys.stderr)
    if options.write:
        PAGE.write_text(as_page(rows), encoding="utf-8")
    elif options.check:
        if PAGE.read_text(encoding="utf-8") != as_page(rows):
            print("book/mistakes.md is out of date: python tools/mistakes.py --write")
            return 1
    else:
        print(as_text(rows))
    return int(bool(uncaught(rows)))


if __name__ == "__main__":
    sys.exit(main())
