"""The commands ``grade``, ``release`` and ``gradescope``."""

from __future__ import annotations

import argparse
import contextlib
import functools
import sys
import tempfile
from pathlib import Path

from . import cluster, gradescope, outputs, pages, wall
from .batch import choose_seed, grade_class
from .course import Course, CourseError
from .files import write_whole
from .grade import describe_isolation
from .outputs import status_of
from .release import ReleaseError, release
from .sandbox import Server
from .submissions import find_submissions


def main(argv=None):
    """Run a command. Exit status: 0 done, 1 a file could not be graded, 2 wrong usage."""
    parser = argparse.ArgumentParser(prog="autograder", description=__doc__)
    parser.add_argument("--course", type=Path, help="the course's folder (found by itself)")
    commands = parser.add_subparsers(dest="command", required=True)

    grading = commands.add_parser(
        "grade",
        help="grade notebooks that were handed in",
        description="Grade notebooks that were handed in. Each runs walled in: see the report's "
        "`isolation` for what was in force. Run the same command again to go on where it stopped.",
        epilog="Exit status: 0 all graded; 1 a notebook is missing or unreadable; 2 wrong usage, "
        "--require-isolation and a wall is missing, or a cluster that fails; 130 interrupted.",
    )
    grading.add_argument(
        "paths", nargs="+", type=Path, metavar="PATH", help="notebook, zip, or folder of a class"
    )
    grading.add_argument("--out", type=Path, metavar="DIR", help="where reports are written")
    grading.add_argument("--json", choices=["-"], help="print the one report as JSON")
    grading.add_argument("--jobs", type=int, default=1, metavar="N", help="so many at a time (1)")
    grading.add_argument(
        "--cluster", metavar="ADDRESS", help="grade on the workers of this Dask scheduler instead"
    )
    grading.add_argument("--seed", type=int, help="of the hidden inputs (drawn if not given)")
    grading.add_argument(
        "--require-isolation",
        action="store_true",
        help="refuse to grade where a submission could reach files, network or processes",
    )

    releasing = commands.add_parser("release", help="make exercises/ from solutions/")
    releasing.add_argument("stems", nargs="*", metavar="STEM", help="which notebooks (all)")
    releasing.add_argument("--force", action="store_true", help="overwrite answers in exercises/")

    zipping = commands.add_parser("gradescope", help="make an autograder zip for Gradescope")
    zipping.add_argument("stem", metavar="STEM", help="the notebook that students hand in")
    zipping.add_argument("--out", type=Path, default=Path("autograder.zip"), metavar="ZIP")

    arguments = parser.parse_args(argv)
    try:
        course = Course(arguments.course) if arguments.course else Course.find()
        commands = {"grade": run_grade, "release": run_release, "gradescope": run_gradescope}
        return commands[arguments.command](course, arguments)
    except (CourseError, ReleaseError) as error:
        print(f"autograder: {error}", file=sys.stderr)
        return 2


def run_grade(course, arguments):
    if not (arguments.out or arguments.json):
        print("autograder: say where reports go: --out DIR or --json -", file=sys.stderr)
        return 2
    if arguments.jobs < 1:
        print(f"autograder: --jobs takes 1 or more, got {arguments.jobs}", file=sys.stderr)
        return 2
    with (
        Server(course.answer_key, isolated=True) as server,
        tempfile.TemporaryDirectory(prefix="submissions-") as scratch,
    ):
        if arguments.cluster is None:
            server.start()  # it imports while submissions are found
        try:
            submissions = find_submissions(arguments.paths, course, Path(scratch))
        except (FileNotFoundError, ValueError) as error:
            print(f"autograder: {error}", file=sys.stderr)
            return 2
        notebooks = sum(len(submission.notebooks) for submission in submissions)
        if arguments.json and notebooks != 1:
            print(f"autograder: --json - prints one report; found {notebooks}", file=sys.stderr)
            return 2
        if arguments.cluster is None and (missing := missing_walls(server)):
            print(missing, file=sys.stderr)
            if arguments.require_isolation:
                return 2
        seed = choose_seed(arguments.out, arguments.seed)
        elsewhere = arguments.cluster and functools.partial(
            cluster.graded_on,
            arguments.cluster,
            course,
            require_isolation=arguments.require_isolation,
        )
        try:
            with progress_bar(notebooks) as advance:
                results = grade_class(
                    submissions,
                    course,
                    server,
                    out=arguments.out,
                    seed=seed,
                    jobs=arguments.jobs,
                    progress=advance,
                    elsewhere=elsewhere,
                )
        except cluster.ClusterError as error:
            print(f"autograder: {error}", file=sys.stderr)
            return 2
        except KeyboardInterrupt:
            print("\nautograder: stopped. The same command goes on from here.", file=sys.stderr)
            return 130
    if arguments.cluster and (open_to := cluster.missing_walls(results.reports.values())):
        print(
            f"autograder: a worker has no wall for {', '.join(open_to)}: "
            "grade only notebooks that you trust there, or give --require-isolation",
            file=sys.stderr,
        )
    if arguments.out:
        write_results(results, course, arguments.out)
    if arguments.json:
        print(next(iter(results.reports.values())).as_json(), end="")
    else:
        print_results(results, course, arguments.out)
    complete = all(status_of(results.of(submission)) == "graded" for submission in submissions)
    return int(not complete)


def write_results(results, course, out):
    """Write what is said about the class as a whole, and a feedback page for each notebook."""
    for (name, stem), report in results.reports.items():
        write_whole(out / name / f"{stem}.html", pages.feedback(report))
        write_whole(out / name / f"{stem}.gradescope.json", outputs.gradescope(report))
    write_whole(out / "gradebook.csv", outputs.gradebook(results, course))
    write_whole(out / "canvas.csv", outputs.canvas(results, course))
    write_whole(out / "moodle.csv", outputs.moodle(results, course))
    write_whole(out / "junit.xml", outputs.junit(results))
    write_whole(out / "class.html", pages.class_report(results, course))


def print_results(results, course, out):
    if len(results.reports) == 1:
        report = next(iter(results.reports.values()))
        print(report.submission, report, sep="\n")
    for submission in results.submissions:
        for note in submission.notes:
            print(f"{submission.name}: {note}")
    reused = f", {results.reused} of them unchanged since last time" if results.reused else ""
    print(f"{len(results.reports)} notebooks graded{reused}. See {out / 'class.html'}.")


@contextlib.contextmanager
def progress_bar(total):
    """Show how far the grading is and how long it will take, where somebody is looking."""
    if total < 2 or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("grading", total=total)
        yield lambda report: progress.advance(task)


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


def run_gradescope(course, arguments):
    try:
        gradescope.make_zip(course, arguments.stem, arguments.out)
    except ValueError as error:
        print(f"autograder: {error}", file=sys.stderr)
        return 2
    print(f"{arguments.out}: upload it as the autograder of a programming assignment")
    return 0


def run_release(course, arguments):
    results = release(course, arguments.stems, arguments.force)
    for stem, result in results.items():
        kept = " (it holds answers; --force overwrites them)" if result == "kept" else ""
        print(f"{course.exercises.name}/{stem}.ipynb: {result}{kept}")
    return int("kept" in results.values())


if __name__ == "__main__":
    sys.exit(main())
