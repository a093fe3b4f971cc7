"""The outer wall: a private root around the server, built by bubblewrap.

Inside there are the interpreter, the installed libraries and the server's own few files, all
read-only; no home, no course, no network, no process of the outside. Each submission mounts a
scratch folder of its own.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

from .landlock import PROGRAMS

OWN = ("answers.py", "isolation.py", "landlock.py", "server.py", "wire.py")
HOME = Path("/grader/autograder")  # where the server's own files lie inside
SCRATCH = "/scratch"  # where each submission mounts a folder of its own, see `isolation.py`


def interpreter():
    """Return the interpreter itself, not the link to it in a virtual environment."""
    return os.path.realpath(sys.executable)


def walled(command, folders, hidden):
    """Wrap a command so that it runs inside the wall.

    Parameters
    ----------
    command : list of str
    folders : sequence of str
        Folders of libraries, to be seen inside.
    hidden : sequence of str
        Packages not to be seen, should they lie in these folders.

    Returns
    -------
    list of str
    """
    here = Path(__file__).parent
    seen = dict.fromkeys([*PROGRAMS, sys.base_prefix, sys.base_exec_prefix, *folders])
    arguments = [shutil.which("bwrap"), "--die-with-parent", "--new-session", "--unshare-all"]
    if os.geteuid() == 0:
        # Root needs no user namespace for this, and must not be root inside: the server gives
        # it up, and for that it needs these two.
        arguments[3:] = [f"--unshare-{name}" for name in ("pid", "net", "ipc", "uts", "cgroup-try")]
        arguments += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    for folder in _parents([*seen, str(HOME)]):
        arguments += ["--perms", "0755", "--dir", folder]  # by default they are for root alone
    for folder in seen:
        if os.path.islink(folder):
            arguments += ["--symlink", os.readlink(folder), folder]
        elif os.path.exists(folder):
            arguments += ["--ro-bind", folder, folder]
    for name in OWN:
        arguments += ["--ro-bind", str(here / name), str(HOME / name)]
    for folder in folders:
        for name in hidden:
            if os.path.isdir(package := os.path.join(folder, name)):
                arguments += ["--tmpfs", package]
    arguments += ["--proc", "/proc", "--dev", "/dev", "--perms", "0755", "--dir", SCRATCH]
    if not any(Path("/tmp") in Path(folder).parents for folder in seen):
        arguments += ["--symlink", SCRATCH, "/tmp"]
    for name in ("TMPDIR", "HOME"):
        arguments += ["--setenv", name, SCRATCH]
    # what bubblewrap made may belong to the user, and would be shared by all submissions
    arguments += ["--remount-ro", "/dev", "--remount-ro", "/"]
    return [*arguments, "--chdir", "/", *command]


def _parents(folders):
    """List the folders above, from the top down, that do not lie in one of the folders."""
    above = {str(parent) for folder in folders for parent in Path(folder).parents}
    inside = [path for path in above if any(Path(f) in Path(path).parents for f in folders)]
    return sorted(above - set(inside) - set(folders) - {"/"})


@functools.cache
def why_not():
    """Say why there is no wall here, or return the empty string where one can be built."""
    if sys.platform != "linux":
        return f"a private root: there is no bubblewrap on {sys.platform}"
    if shutil.which("bwrap") is None:
        return "a private root: bubblewrap is not installed (`apt install bubblewrap`)"
    test = subprocess.run(
        walled([interpreter(), "-I", "-S", "-c", ""], (), ()),
        capture_output=True,
        text=True,
        timeout=60,
    )
    if test.returncode != 0:
        reason = (test.stderr.strip().splitlines() or ["it ends at once"])[-1]
        return f"a private root: bubblewrap does not work here ({reason})"
    return ""
