"""What a class hands in, in the shapes in which it comes."""

import os
import zipfile

import pytest

from autograder.submissions import find_submissions, safe_name


@pytest.fixture
def find(course, hand_in, tmp_path):
    """Return a function that lays out files and finds submissions: ``{name: (stems, notes)}``."""

    def run(*names, empty=(), as_zip=False, roots=("class",)):
        for name in names:
            hand_in(name)
        for folder in empty:
            (tmp_path / folder).mkdir(parents=True)
        paths = [tmp_path / root for root in roots]
        if as_zip:
            archive = tmp_path / "class.zip"
            with zipfile.ZipFile(archive, "w") as opened:
                for file in sorted(paths[0].rglob("*")):
                    opened.write(file, file.relative_to(paths[0]))
            paths = [archive]
        found = find_submissions(paths, course, tmp_path / "scratch")
        return {s.name: (sorted(s.notebooks), s.notes) for s in found}

    return run


@pytest.mark.parametrize("as_zip", [False, True])
def test_folder_for_each_person(find, as_zip):
    found = find("class/ann/01_numbers.ipynb", "class/bob/deep/01_numbers.ipynb", as_zip=as_zip)
    assert found == {"ann": (["01_numbers"], []), "bob": (["01_numbers"], [])}


@pytest.mark.parametrize("as_zip", [False, True])
def test_files_named_by_person(find, as_zip):
    found = find(
        "class/ann_01_numbers.ipynb",
        "class/leebob_123_456_01_numbers-1.ipynb",
        as_zip=as_zip,
    )
    assert set(found) == {"ann", "leebob_123_456"}


def test_numbers_in_names_stay(find):
    found = find(
        "class/student-01/01_numbers.ipynb",
        "class/student-02/01_numbers.ipynb",
        "class/x-7_01_numbers.ipynb",
        "class/01_numbers_x-8.ipynb",
    )
    assert set(found) == {"student-01", "student-02", "x-7", "x-8"}


def test_folders_as_moodle_names_them(find):
    assert set(find("class/Ann Lee_77_assignsubmission_file_/my.ipynb", as_zip=True)) == {
        "Ann Lee_77"
    }


def test_renamed_notebook_is_known_by_its_content(find):
    assert find("class/ann/homework final.ipynb")["ann"] == (["01_numbers"], [])


def test_newest_of_two_counts_and_that_is_said(find, hand_in, course, tmp_path):
    old = hand_in("class/ann/01_numbers.ipynb")
    os.utime(old, (1, 1))
    ((stems, notes),) = find("class/ann/01_numbers (1).ipynb").values()
    assert stems == ["01_numbers"]
    assert "handed in twice: the newest counts, 01_numbers (1).ipynb" in notes[0]


def test_two_people_with_one_name_are_kept_apart(find):
    found = find("a/ann/01_numbers.ipynb", "b/ann/01_numbers.ipynb", roots=("a", "b"))
    assert set(found) == {"ann", "ann (2)"}
    assert "another submission is named ann" in found["ann (2)"][1][0]


def test_empty_folder_is_said(find):
    found = find("class/ann/01_numbers.ipynb", empty=["class/bob"])
    assert found["bob"] == ([], ["no notebook was handed in"])


def test_zip_cannot_write_elsewhere(course, tmp_path):
    archive = tmp_path / "evil.zip"
    with zipfile.ZipFile(archive, "w") as opened:
        opened.writestr("../outside.ipynb", "{}")
        opened.writestr("/etc/outside.ipynb", "{}")
        opened.writestr("eve/01_numbers.ipynb", "{}")
        opened.writestr("eve/inner.zip", "x")
    found = find_submissions([archive], course, tmp_path / "scratch")
    assert [s.name for s in found] == ["eve"]
    assert not (tmp_path / "outside.ipynb").exists()
    assert "a zip in the zip" in found[0].notes[0]


def test_what_is_no_zip_says_so(course, tmp_path):
    (tmp_path / "class.zip").write_text("no zip")
    with pytest.raises(ValueError, match="cannot be unpacked"):
        find_submissions([tmp_path / "class.zip"], course, tmp_path / "scratch")


def test_missing_path_says_so(course, tmp_path):
    with pytest.raises(FileNotFoundError, match="no file or folder"):
        find_submissions([tmp_path / "nowhere"], course, tmp_path)


def test_names_are_safe():
    assert safe_name("../../etc") == "_.._etc"
    assert safe_name("a\x1b[31m<b>") == "a__31m_b_"
    assert safe_name("...") == "unnamed"
    assert safe_name("Zoë O'Neil") == "Zoë O_Neil"
