"""The commands ``grade`` and ``release``."""

from __future__ import annotations

import argparse
import secrets
import sys
from pathlib import Path

from . import wall
from .batch import grade_all
from .course import Course, CourseError
from .grade import describe_isolation
from .release import ReleaseError, release
from .report import next_step, table
from .sandbox import Server


def main(argv=None):
    """Run a command. Exit status: 0 done, 1 a file could not be graded, 2 wrong usage."""
    parser = argparse.ArgumentParser(prog="autograder", description=__doc__)
    parser.add_argument("--course", type=Path, help="the course's folder (found by itself)")
    commands = parser.add_subparsers(dest="command", required=True)

    grading = commands.add_parser(
        "grade",
        help="grade notebooks that were handed in",
        description="Grade notebooks that were handed in. Each runs walled in: see the report's "
        "`isolation` for what was in force.",
    )
    grading.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="notebook or folder")
    grading.add_argument("--out", type=Path, metavar="DIR", help="where reports are written")
    grading.add_argument("--json", choices=["-"], help="print the one report as JSON")
    grading.add_argument("--seed", type=int, help="of the hidden inputs (drawn if not given)")

    grading.add_argument(
        "--require-isolation",
        action="store_true",
        help="refuse to grade where a submission could reach files, network or processes",
    )

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
    with Server(course.answer_key, isolated=True) as server:
        if missing := missing_walls(server):
            print(missing, file=sys.stderr)
            if arguments.require_isolation:
                return 2
        reports = grade_all(arguments.paths, course, arguments.out, arguments.seed, server)
    if arguments.json and len(reports) != 1:
        print(f"autograder: --json - prints one report; found {len(reports)}", file=sys.stderr)
        return 2
    if arguments.json:
        print(reports[0].as_json(), end="")
    else:
        for report in reports:
            print(report if report.status != "graded" else "\n".join(summary(report)), end="\n\n")
    return int(any(report.status != "graded" for report in reports))


def missing_walls(server):
    """Say what a submission could reach on this machine, or return the empty string."""
    isolation = describe_isolation(server.layers())
    open_to = [name for name, closed in isolation.items() if not closed]
    if not open_to:
        return ""
    why = wall.why_not()
    return (
        f"autograder: not for strangers' code on this machine: no wall for {', '.join(open_to)}."
        + (f"\n  Missing is {why}." if why else "")
        + "\n  Grade only notebooks that you trust, or grade on a Linux machine with bubblewrap."
    )


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
