"""Which check catches which mistake: the matrix of known mistakes, for every exercise notebook.

    python tools/mistakes.py           print the matrix
    python tools/mistakes.py --write   write the book's pages, book/mistakes/
    python tools/mistakes.py --check   exit 1 if the pages do not show what is so

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
PAGES = ROOT / "book" / "mistakes"
SEED = 0

HEAD = """\
# Known mistakes

The grader knows these wrong answers. When a check fails, it compares what your code did with what
each of them does on the same inputs, and names the one that fits. The bank also proves the checks:
every mistake loses points, and every check catches at least one.

If you are still working on a notebook, stop here: the lists give away what its questions look for.

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


def as_pages(rows):
    """Return the pages of the book: ``{file name: text}``."""
    by_stem = {}
    for stem, question, found in rows:
        by_stem.setdefault(stem, []).append((question, found))
    lines = ["| notebook | questions | checks | known mistakes |", "|---|---|---|---|"]
    for stem, entries in by_stem.items():
        checks = sum(len(question.checks) for question, _ in entries)
        mistakes = sum(len(found) for _, found in entries)
        lines.append(f"| [{stem}]({stem}.md) | {len(entries)} | {checks} | {mistakes} |")
    pages = {"index.md": HEAD + "\n".join(lines) + "\n"}
    for stem, entries in by_stem.items():
        parts = [f"# Mistakes in {stem}\n"]
        parts += [_section(question, found) for question, found in entries]
        pages[f"{stem}.md"] = "\n".join(parts)
    return pages


def _section(question, found):
    lines = [f"## `{question.id}`", ""]
    for place, check in enumerate(question.checks, 1):
        lines.append(f"{place}. {check.sentence} ({number(check.points)})")
    lines += ["", "| what was believed | fails checks |", "|---|---|"]
    for mistake, failing in found:
        numbers = ", ".join(map(str, sorted(failing)))
        if len(failing) == len(question.checks) > 1:
            numbers = "all"
        believed = escape(mistake.believed, quote=False).replace("|", "\\|")
        lines.append(f"| {believed} `{mistake.id}` | {numbers} |")
    return "\n".join([*lines, ""])


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--write", action="store_true", help="write book/mistakes/")
    what.add_argument("--check", action="store_true", help="exit 1 if they are out of date")
    options = parser.parse_args(arguments)
    rows = list(matrix(Course(ROOT)))
    for name in uncaught(rows):
        print(f"no mistake fails the check {name}", file=sys.stderr)
    if options.write:
        PAGES.mkdir(exist_ok=True)
        for name, text in as_pages(rows).items():
            (PAGES / name).write_text(text, encoding="utf-8")
    elif options.check:
        kept = {path.name: path.read_text(encoding="utf-8") for path in PAGES.glob("*.md")}
        if kept != as_pages(rows):
            print("book/mistakes/ is out of date: python tools/mistakes.py --write")
            return 1
    else:
        print(as_text(rows))
    return int(bool(uncaught(rows)))


if __name__ == "__main__":
    sys.exit(main())
