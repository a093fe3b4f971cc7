"""The commands ``grade`` and ``release``."""

from __future__ import annotations

import argparse
import secrets
import sys
from pathlib import Path

from .batch import grade_all
from .course import Course, CourseError
from .release import ReleaseError, release
from .report import next_step, table

WARNING = (
    "Not for strangers' code yet: a submission runs with a time limit, but it can read and "
    "change your files. Grade only notebooks that you trust."
)


def main(argv=None):
    """Run a command. Exit status: 0 done, 1 a file could not be graded, 2 wrong usage."""
    parser = argparse.ArgumentParser(prog="autograder", description=__doc__)
    parser.add_argument("--course", type=Path, help="the course's folder (found by itself)")
    commands = parser.add_subparsers(dest="command", required=True)

    grading = commands.add_parser(
        "grade",
        help="grade notebooks that were handed in",
        description=f"Grade notebooks. {WARNING}",
    )
    grading.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="notebook or folder")
    grading.add_argument("--out", type=Path, metavar="DIR", help="where reports are written")
    grading.add_argument("--json", choices=["-"], help="print the one report as JSON")
    grading.add_argument("--seed", type=int, help="of the hidden inputs (drawn if not given)")

    releasing = commands.add_parser("release", help="make exercises/ from solutions/")
    releasing.add_argument("stems", nargs="*", metavar="STEM", help="which notebooks (all)")
    releasing.add_argument("--force", action="store_true", help="overwrite answers in exercises/")

    arguments = parser.parse_args(argv)
    try:
        course = Course(arguments.course) if arguments.course else Course.find()
        return {"grade": run_grade, "release": run_release}[arguments.command](course, arguments)
    except (CourseError, ReleaseError) as error:
        print(f"autograder: {error}", file=sys.stderr)
        return 2


def run_grade(course, arguments):
    if arguments.seed is None:
        arguments.seed = secrets.randbelow(2**31)
    if not (arguments.out or arguments.json):
        print("autograder: say where reports go: --out DIR or --json -", file=sys.stderr)
        return 2
    print(WARNING, file=sys.stderr)
    reports = grade_all(arguments.paths, course, arguments.out, arguments.seed)
    if arguments.json and len(reports) != 1:
        print(f"autograder: --json - prints one report; found {len(reports)}", file=sys.stderr)
        return 2
    if arguments.json:
        print(reports[0].as_json(), end="")
    else:
        for report in reports:
            print(report if report.status != "graded" else "\n".join(summary(report)), end="\n\n")
    return int(any(report.status != "graded" for report in reports))


def summary(report):
    return [f"{report.submission}", *table(report), *next_step(report)]


def run_release(course, arguments):
    results = release(course, arguments.stems, arguments.force)
    for stem, result in results.items():
        kept = " (it holds answers; --force overwrites them)" if result == "kept" else ""
        print(f"{course.exercises.name}/{stem}.ipynb: {result}{kept}")
    return int("kept" in results.values())


if __name__ == "__main__":
    sys.exit(main())
