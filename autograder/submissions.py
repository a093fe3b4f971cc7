"""Find what a class handed in: folders, files, zips as learning platforms export them."""

from __future__ import annotations

import re
import zipfile
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from .notebooks import MAX_BYTES, Unreadable, read

MAX_MEMBERS = 100_000  # of a zip
# What Moodle adds to the name of a person's folder: "Ann Lee_123_assignsubmission_file_"
ADDED_TO_FOLDERS = re.compile(r"_assignsubmission_file_?$")
# What comes after the name of a file: "-1" (Canvas: a second attempt), " (1)" (a second download)
ADDED_TO_FILES = re.compile(r"^(-\d+|\s*\(\d+\))+$")


@dataclass
class Submission:
    """What one person handed in.

    Attributes
    ----------
    name : str
        As in the gradebook; also the name of a folder.
    notebooks : dict of str to pathlib.Path
        The newest file for each notebook of the course, by stem.
    notes : list of str
        What was unusual and how it was handled.
    """

    name: str
    notebooks: dict[str, Path] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def find_submissions(paths, course, scratch):
    """Find the submissions of a class.

    Known shapes: a folder for each person; files named by person; either of them in a zip.

    Parameters
    ----------
    paths : sequence of pathlib.Path
        Folders, notebooks and zips.
    course : Course
    scratch : pathlib.Path
        Where zips are unpacked.

    Returns
    -------
    list of Submission
        In the order in which they were found; notebooks that nobody lacks are not mentioned.

    Raises
    ------
    FileNotFoundError
        If a path does not exist.
    """
    found = {}
    for place, path in enumerate(paths):
        if not path.exists() and not path.is_symlink():
            raise FileNotFoundError(f"there is no file or folder {path}")
        root, notes = path, []
        if path.suffix == ".zip" and path.is_file():
            root = scratch / f"zip{place}"
            notes = unpack(path, root)
        for name, file in _people(root):
            submission = found.setdefault((place, name), Submission(name))
            if file is not None:
                _add(submission, file, course)
        for name, note in notes:
            found.setdefault((place, name), Submission(name)).notes.append(note)
    submissions = list(found.values())
    _make_names_unique(submissions)
    for submission in submissions:
        if not submission.notebooks:
            submission.notes.append("no notebook was handed in")
    return submissions


def _people(root):
    """Yield ``(person, notebook or None)`` for what lies under a folder, or for one file."""
    if not root.is_dir():
        yield root.stem, root
        return
    for entry in sorted(root.iterdir()):
        if entry.name.startswith((".", "__MACOSX")):
            continue
        if entry.is_dir() and not entry.is_symlink():
            notebooks = [
                file
                for file in sorted(entry.rglob("*.ipynb"))
                if ".ipynb_checkpoints" not in file.parts
            ]
            for file in notebooks or [None]:
                yield ADDED_TO_FOLDERS.sub("", entry.name), file
        elif entry.suffix == ".ipynb":
            yield entry.stem, entry


def _add(submission, file, course):
    stem = _stem(file, course)
    if file.stem == submission.name and stem in file.stem and file.stem != stem:
        # a file named by person: "lee_02_single_head", "02_single_head-lee", "lee_1_2_02_…-1"
        before, _, after = file.stem.partition(stem)
        submission.name = f"{before}{ADDED_TO_FILES.sub('', after)}".strip(" _-.") or file.stem
    other = submission.notebooks.get(stem)
    if other is None:
        submission.notebooks[stem] = file
        return
    newest = max(other, file, key=lambda f: (f.stat().st_mtime, f.name))
    submission.notebooks[stem] = newest
    submission.notes.append(f"{stem} was handed in twice: the newest counts, {newest.name}")


def _stem(file, course):
    """Say which notebook of the course a file is; if none, its own name."""
    for stem in course.stems():
        if stem in file.name:
            return stem
    if file.is_symlink():
        return file.stem
    try:
        return course.identify(read(file), file) or file.stem
    except Unreadable:
        return file.stem


def _make_names_unique(submissions):
    """Merge files of one person that lie side by side; number people who share a name."""
    taken = {}
    for submission in list(submissions):
        submission.name = safe_name(submission.name)
        first = taken.get(submission.name.casefold())
        if first is None:
            taken[submission.name.casefold()] = submission
        elif not set(first.notebooks) & set(submission.notebooks) and submission.notebooks:
            first.notebooks |= submission.notebooks  # ann_01_….ipynb and ann_02_….ipynb
            first.notes += submission.notes
            submissions.remove(submission)
        else:
            original, number = submission.name, 2
            while f"{original} ({number})".casefold() in taken:
                number += 1
            submission.name = f"{original} ({number})"
            submission.notes.append(f"another submission is named {original} too")
            taken[submission.name.casefold()] = submission


def safe_name(name):
    """Make a name that can be a folder's, and shows nothing but itself on a screen."""
    return re.sub(r"[^\w .@+()-]", "_", name)[:80].strip(" .") or "unnamed"


def unpack(archive, folder):
    """Unpack the notebooks of a zip, and nothing else.

    Parameters
    ----------
    archive, folder : pathlib.Path

    Returns
    -------
    list of (str, str)
        People of whom something was left out, each with a note.

    Raises
    ------
    ValueError
        If the file is not a zip.
    """
    notes = []
    try:
        with zipfile.ZipFile(archive) as opened:
            for member in opened.infolist()[:MAX_MEMBERS]:
                path = PurePosixPath(member.filename.replace("\\", "/"))
                if path.is_absolute() or ".." in path.parts or "__MACOSX" in path.parts:
                    continue
                person = safe_name(ADDED_TO_FOLDERS.sub("", path.parts[0])) if path.parts else ""
                target = folder / path
                if member.is_dir():
                    target.mkdir(parents=True, exist_ok=True)
                elif path.suffix == ".zip":
                    notes.append((person, f"a zip in the zip was not opened: {path.name}"))
                elif path.suffix == ".ipynb":
                    target.parent.mkdir(parents=True, exist_ok=True)
                    with opened.open(member) as source:
                        data = source.read(MAX_BYTES + 1)  # one byte more: reading says why not
                    target.write_bytes(data)
                elif len(path.parts) > 1:
                    (folder / path.parts[0]).mkdir(parents=True, exist_ok=True)
    except (zipfile.BadZipFile, RuntimeError) as error:
        raise ValueError(f"{archive} cannot be unpacked: {error}") from None
    folder.mkdir(parents=True, exist_ok=True)
    return notes
