"""Walls around a submission, built by its own process before any of its code runs.

Linux only; where the kernel refuses a layer, the layer is left out and said to be missing. The
outer wall, a private root around the whole server, is in `wall.py`.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys

# linux/sched.h, linux/mount.h, linux/prctl.h
NEWNS, NEWUTS, NEWIPC = 0x00020000, 0x04000000, 0x08000000
NEWUSER, NEWPID, NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_REC, MS_PRIVATE = 1 << 14, 1 << 18
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS = 1, 4, 38
CAPABILITY_VERSION_3 = 0x20080522

SCRATCH = "/scratch"  # inside the outer wall
GIB = 1 << 30
MIB = 1 << 20
MEMORY = 4 * GIB  # address space of a submission: PyTorch alone takes about 1 GiB of it
DISK = 64 * MIB  # its scratch folder, and its shared memory
LIMITS = {
    resource.RLIMIT_AS: MEMORY,
    resource.RLIMIT_CORE: 0,
    resource.RLIMIT_CPU: 600,  # seconds, all its cells and checks together
    resource.RLIMIT_FSIZE: DISK,
    resource.RLIMIT_NOFILE: 256,
    resource.RLIMIT_NPROC: 64,  # processes and threads
}


def become_nobody():
    """Give up root for good, where the process has it."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)
        if sys.platform == "linux":  # or its own /proc/self would belong to root
            _libc().prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)


def own_processes():
    """Put the server into a user and a process namespace of its own, before it imports much.

    The caller goes on as process 1 of the namespace, and may give each of its children a process
    namespace as well: see `fork`. A stub of a process stays outside and waits.

    Returns
    -------
    int or None
        A file descriptor of the namespace; None where the kernel refuses.
    """
    if sys.platform != "linux":
        return None
    user, group = os.geteuid(), os.getegid()
    if _libc().unshare(NEWUSER | NEWPID) != 0:
        return None
    _map_identity(user, group)
    if pid := os.fork():
        os.waitpid(pid, 0)
        os._exit(0)
    _libc().prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    return os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)


def fork(namespace):
    """Fork a child that is process 1 of a process namespace of its own.

    When such a child ends, everything that it started ends too, and it sees no process but its
    own. With the C library's own fork, one is enough: a process that has PyTorch loaded takes
    tens of milliseconds for each.

    Parameters
    ----------
    namespace : int or None
        What `own_processes` returned.

    Returns
    -------
    int
        As `os.fork` does.
    """
    if namespace is None:
        return os.fork()
    libc = _libc()
    if libc.unshare(NEWPID) != 0:
        raise OSError(ctypes.get_errno(), "a process namespace for a submission")
    pid = os.fork()
    if pid == 0:
        os.close(namespace)
    elif libc.setns(namespace, NEWPID) != 0:
        raise OSError(ctypes.get_errno(), "back to the server's process namespace")
    return pid


def separate(walled):
    """Put this process into namespaces of its own: no network, no shared memory, own folders.

    Parameters
    ----------
    walled : bool
        Whether the outer wall stands. Then the process gets an empty `SCRATCH` and ``/dev/shm``
        of its own, limited in size, and no ``/proc``; else it is not known what lies where.

    Returns
    -------
    set of str
        The layers that stand: some of ``"network"``, ``"scratch"``.
    """
    if sys.platform != "linux":
        return set()
    user, group = os.geteuid(), os.getegid()
    if _libc().unshare(NEWUSER | NEWNET | NEWIPC | NEWUTS | (NEWNS if walled else 0)) != 0:
        return set()
    _map_identity(user, group)
    return {"network", "scratch"} if walled and _private_folders() else {"network"}


def _map_identity(user, group):
    """Let the process be in its user namespace who it is outside."""
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{user} {user} 1")
    _write("/proc/self/gid_map", f"{group} {group} 1")


def _private_folders():
    """Mount empty folders over those that submissions would share."""
    mount, common = _libc().mount, MS_NOSUID | MS_NODEV
    size = f"size={DISK},nr_inodes=4096,mode=0700".encode()
    with open("/proc/cpuinfo") as file:  # PyTorch chooses its kernels by it
        processors = file.read()
    mounted = (
        mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None) == 0
        and mount(b"tmpfs", SCRATCH.encode(), b"tmpfs", common, size) == 0
        and mount(b"tmpfs", b"/dev/shm", b"tmpfs", common | MS_NOEXEC, size) == 0
        and mount(b"tmpfs", b"/proc", b"tmpfs", common, b"size=1m,mode=0755") == 0
    )
    if mounted:
        _write("/proc/cpuinfo", processors)
        mounted = mount(b"tmpfs", b"/proc", b"tmpfs", common | MS_REMOUNT | MS_RDONLY, None) == 0
    return mounted


def restrict():
    """Set the limits and give up every privilege, for this process and all that it starts.

    Returns
    -------
    set of str
        ``{"memory"}`` where the limits hold.
    """
    held = set()
    for limit, value in LIMITS.items():
        try:
            _, hard = resource.getrlimit(limit)
            value = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(limit, (value, value))
        except (OSError, ValueError):
            continue
        if limit == resource.RLIMIT_AS and sys.platform == "linux":
            held.add("memory")
    if sys.platform == "linux":
        libc = _libc()
        libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
        libc.capset(header, (ctypes.c_uint32 * 6)())  # none effective, permitted, inheritable
    return held


def _write(path, text):
    with open(path, "w") as file:
        file.write(text)


def _libc():
    return ctypes.CDLL(None, use_errno=True)
