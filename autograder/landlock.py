"""A wall that Linux (5.13 and later) builds for any process: only some files can be opened.

It needs no root, no namespace and no installed program, so it also stands in a container that
allows nothing else. It does not hide that a file exists. See ``man 7 landlock`` and
``linux/landlock.h``.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446  # system calls, on every processor
VERSION, PATH_BENEATH = 1, 1

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
TRUNCATE = 1 << 14
READ = EXECUTE | READ_FILE | READ_DIR
OF_A_FILE = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE  # what a rule may allow for a file
RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}  # how many rights of files each version knows
TCP = 0b11  # to listen and to connect, from version 4
SCOPES = 0b11  # abstract sockets and signals, from version 6

# what an interpreter and its libraries may need of the system
PROGRAMS = ("/usr", "/lib", "/lib64", "/bin", "/sbin", "/etc/ld.so.cache", "/etc/alternatives")
SYSTEM = (*PROGRAMS, "/etc/localtime", "/proc/cpuinfo", "/proc/meminfo", "/sys/devices/system/cpu")
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")


class _Ruleset(ctypes.Structure):
    _fields_ = (
        ("files", ctypes.c_uint64),
        ("network", ctypes.c_uint64),
        ("scoped", ctypes.c_uint64),
    )


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


def version():
    """Return the version of Landlock that the kernel offers, 0 for none."""
    if sys.platform != "linux":
        return 0
    return max(0, _call(CREATE_RULESET, None, ctypes.c_size_t(0), VERSION))


def close_files(readable, writable):
    """Keep this process, and all that it starts, from opening other files, for good.

    It must have given up new privileges before: see `isolation.restrict`.

    It also keeps it from TCP, from sockets in the abstract namespace and from signals to
    processes outside, as far as the kernel's version can.

    Parameters
    ----------
    readable, writable : sequence of str
        Files, and folders with all that is in them. What does not exist is left out.

    Returns
    -------
    bool
        Whether the wall stands.
    """
    offered = version()
    if not offered:
        return False
    every_right = (1 << RIGHTS[min(offered, max(RIGHTS))]) - 1
    ruleset = _Ruleset(every_right, TCP if offered >= 4 else 0, SCOPES if offered >= 6 else 0)
    size = 24 if offered >= 6 else 16 if offered >= 4 else 8
    rules = _call(CREATE_RULESET, ctypes.byref(ruleset), ctypes.c_size_t(size), 0)
    if rules < 0:
        return False
    try:
        for paths, rights in ((readable, READ), (writable, every_right)):
            for path in paths:
                with contextlib.suppress(FileNotFoundError):
                    _allow(rules, path, rights & every_right)
        return _call(RESTRICT_SELF, rules, 0) == 0
    finally:
        os.close(rules)


def _allow(rules, path, rights):
    parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not os.path.isdir(path):
            rights &= OF_A_FILE
        rule = _PathBeneath(rights, parent)
        if _call(ADD_RULE, rules, PATH_BENEATH, ctypes.byref(rule), 0) != 0:
            raise OSError(ctypes.get_errno(), "a rule of Landlock", path)
    finally:
        os.close(parent)


def _call(number, *arguments):
    return ctypes.CDLL(None, use_errno=True).syscall(number, *arguments)
