"""Where a course lies: its notebooks, its checks, its known mistakes."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import re
import sys
import tomllib
import zlib
from pathlib import Path

from .checks import questions_of
from .mistakes import mistakes_of
from .notebooks import Unreadable, bound_names, grade_id, is_answer, read
from .release import make_release


class CourseError(Exception):
    """A course or a part of it that cannot be found. The message says what to do."""


class Course:
    """A folder with a ``[tool.autograder]`` table in its ``pyproject.toml``.

    Parameters
    ----------
    root : pathlib.Path

    Raises
    ------
    CourseError
        If the folder is not a course.
    """

    def __init__(self, root):
        self.root = Path(root).resolve()
        settings = _settings(self.root)
        if settings is None:
            raise CourseError(
                f"{self.root} is not a course: its pyproject.toml needs a [tool.autograder] table"
            )
        self.solutions = self.root / settings["solutions"]
        self.exercises = self.root / settings["exercises"]
        self.checks = self.root / settings["checks"]
        self.mistakes_folder = self.root / settings["mistakes"]
        self.answer_key = settings.get("answer_key", [])

    @classmethod
    def find(cls, start=None):
        """Find the course that a file or folder belongs to.

        Looked for in the folders above ``start``, then in the environment variable
        ``AUTOGRADER_COURSE``, then beside this package (an editable install).

        Parameters
        ----------
        start : path-like, optional
            The current folder where it is None.

        Returns
        -------
        Course

        Raises
        ------
        CourseError
        """
        start = Path(start or ".").resolve()
        named = os.environ.get("AUTOGRADER_COURSE")
        places = [
            start,
            *start.parents,
            *([Path(named)] if named else []),
            Path(__file__).parents[1],
        ]
        for place in places:
            if _settings(place) is not None:
                return cls(place)
        raise CourseError(
            "no course found: work inside its folder, or set AUTOGRADER_COURSE to its path"
        )

    def stems(self):
        """List the notebooks of the course: ``["02_single_head", …]``."""
        found = {p.stem for d in (self.solutions, self.exercises) for p in d.glob("*.ipynb")}
        return sorted(stem for stem in found if (self.checks / f"{module_name(stem)}.py").exists())

    @functools.cache  # noqa: B019 (a course lives as long as the process)
    def questions(self, stem):
        """List the `Question` objects of a notebook."""
        return questions_of(self._load(self.checks, stem))

    @functools.cache  # noqa: B019
    def mistakes(self, stem):
        """List the known `Mistake` objects of a notebook."""
        if not (self.mistakes_folder / f"{module_name(stem)}.py").exists():
            return []
        return mistakes_of(self._load(self.mistakes_folder, stem))

    @functools.cache  # noqa: B019
    def pristine(self, stem):
        """Return a notebook as it was handed out."""
        solution = self.solutions / f"{stem}.ipynb"
        if solution.exists():
            return make_release(read(solution))
        return read(self.exercises / f"{stem}.ipynb")  # the solutions are kept elsewhere

    def identify(self, notebook, path):
        """Say which notebook of the course this is, or a copy of.

        Its metadata tell, else the file's name, else the answers in it.

        Parameters
        ----------
        notebook : nbformat.NotebookNode
        path : pathlib.Path

        Returns
        -------
        str or None
        """
        if marked := self._marked(notebook):
            return marked
        for stem in self.stems():
            if stem in path.name:
                return stem
        code = [cell for cell in notebook.cells if cell.cell_type == "code"]
        return self._best(set().union(*(bound_names(cell.source) for cell in code)))

    def recognizes(self, path, named):
        """Tell whether a file is an exercise notebook of this course or a copy of one.

        Parameters
        ----------
        path : pathlib.Path
        named : bool
            Whether somebody named this very file: then a copy without metadata counts too, and
            so does a file that cannot be read.
        """
        at_home = path.parent in (self.exercises, self.solutions)
        try:
            notebook = read(path)
        except Unreadable:
            return named or at_home
        if self._marked(notebook):
            return True
        if at_home or (named and self.root not in path.parents):
            return self.identify(notebook, path) is not None
        return False  # a chapter, say, which defines the same names

    def _marked(self, notebook):
        """Return the stem that a notebook's metadata name, or None."""
        named = notebook.metadata.get("autograder")
        if isinstance(named, dict) and named.get("notebook") in self.stems():
            return named["notebook"]
        return self._best({grade_id(cell) for cell in notebook.cells if is_answer(cell)})

    def _best(self, names):
        """Return the stem whose questions are most among the names, or None."""
        answered = {s: len(names & {q.id for q in self.questions(s)}) for s in self.stems()}
        best = max(answered, key=answered.get, default=None)
        return best if best is not None and answered[best] else None

    def _load(self, folder, stem):
        # Under a name of its own: "tests" may be another package in the learner's environment.
        home = folder.parent
        package = f"_course_{zlib.crc32(str(home).encode()):08x}"
        if package not in sys.modules:
            spec = importlib.util.spec_from_loader(package, loader=None, is_package=True)
            spec.submodule_search_locations = [str(home)]
            sys.modules[package] = importlib.util.module_from_spec(spec)
        try:
            return importlib.import_module(f"{package}.{folder.name}.{module_name(stem)}")
        except ModuleNotFoundError as error:
            if error.name and error.name.startswith(package):
                raise CourseError(f"there is no {folder / module_name(stem)}.py") from None
            raise


def module_name(stem):
    """Name the module of a notebook: ``"02_single_head"`` → ``"single_head"``."""
    return re.sub(r"^\d+_", "", stem)


def _settings(folder):
    try:
        text = (folder / "pyproject.toml").read_text(encoding="utf-8")
        return tomllib.loads(text).get("tool", {}).get("autograder")
    except (OSError, ValueError):
        return None
