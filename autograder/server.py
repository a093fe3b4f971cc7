"""The warm server: a small program that forks a child for each submission.

Run as ``python -I -S server.py FD OPTIONS``, inside the wall of `wall.py` where there is one. It
imports NumPy and PyTorch once and never runs an
operation of either: a process that ran one threaded torch operation forks children that hang in
their first. It holds no check, no solution and no expected value, and neither do its children.

The grader talks to it over the socket ``FD``: one JSON line a request, one a reply. The first
line is its own: ``{"ready": true}``.

``{"op": "fork", "seed": 0}`` with one end of a socket pair: fork a child that answers on it.
``{"op": "serve"}`` with one end of a socket pair: fork a copy of this server that attends to it.
``{"op": "end", "pid": 1}``: kill that child with all it started, and say how it ended; with
``"patience": 1`` it has a second to end by itself.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import random
import shutil
import signal
import socket
import sys
import tempfile
import time
import types
from pathlib import Path


def main():
    control = socket.socket(fileno=int(sys.argv[1]))
    options = json.loads(sys.argv[2])
    # Library folders come from the grader: without the `site` module no .pth file is read and
    # no editable install (this course's answer key is one) can be imported.
    sys.path[:] = [path for path in sys.path if path] + options["paths"]
    answers, isolation, landlock, wire = import_own_modules()
    namespace = None
    if options["isolated"]:
        if options["walled"]:
            isolation.become_nobody()
        namespace = isolation.own_processes()
    for name in options["preload"]:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for name in options["answer_key"]:
        sys.modules[name] = None  # importing it raises ImportError
    gc.collect()
    gc.freeze()  # children share these objects: leave their pages untouched
    control.sendall(b'{"ready": true}\n')
    while control is not None:  # once, and once more in each copy
        control = attend(control, options, namespace, answers, isolation, landlock, wire)
    os._exit(0)  # Python's own ending would write to, and so copy, all the memory that is shared


def attend(control, options, namespace, answers, isolation, landlock, wire):
    """Do what the grader asks until it hangs up.

    Returns
    -------
    socket.socket or None
        In a copy of this process, the socket to attend to; else None.
    """
    scratch = {}  # the folder of each child
    requests = Requests(control)
    while (received := requests.next()) is not None:
        request, fds = received
        if request["op"] == "fork":
            # inside the wall each child mounts its own
            folder = None if options["walled"] else tempfile.mkdtemp(prefix="answers-")
            pid = isolation.fork(namespace)
            if pid == 0:
                control.close()
                sock = socket.socket(fileno=fds[0])
                os.setsid()
                layers = isolate(isolation, landlock, options, folder)
                if namespace is not None:
                    layers.add("processes")
                serve(sock, layers, request["seed"], answers, wire)
                os._exit(0)
            scratch[pid] = folder
            reply = {"pid": pid}
        elif request["op"] == "serve":
            if os.fork() == 0:
                control.close()
                return socket.socket(fileno=fds[0])
            reply = {}
        else:
            reply = end(request["pid"], request.get("patience", 0))
            remove(scratch.pop(request["pid"], None))
        for fd in fds:
            os.close(fd)
        control.sendall(json.dumps(reply).encode() + b"\n")
    for pid, folder in scratch.items():  # the grader has gone
        end(pid, patience=0)
        remove(folder)
    return None


def remove(folder):
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)


def import_own_modules():
    """Import the modules that children need, then put a stub where the package was."""
    package = types.ModuleType("autograder")
    package.__path__ = [str(Path(__file__).parent)]
    sys.modules["autograder"] = package
    names = ("answers", "isolation", "landlock", "wire")
    own = [importlib.import_module(f"autograder.{name}") for name in names]
    for name in [name for name in sys.modules if name.startswith("autograder.")]:
        del sys.modules[name]
    stub = types.ModuleType("autograder", "Grading happens elsewhere: `check` does nothing here.")
    stub.check = lambda *args, **kwargs: True
    sys.modules["autograder"] = stub
    return own


class Requests:
    """The requests of the grader, each with the file descriptors that came with it."""

    def __init__(self, control):
        self.control = control
        self.pending = b""
        self.fds = []

    def next(self):
        """Return the next ``(request, file descriptors)``, or None when the grader has gone."""
        while b"\n" not in self.pending:
            data, fds, _, _ = socket.recv_fds(self.control, 65536, 4)
            if not data:
                return None
            self.pending += data
            self.fds += fds
        line, self.pending = self.pending.split(b"\n", 1)
        fds, self.fds = self.fds, []
        return json.loads(line), fds


def end(pid, patience):
    """End a child with all it started; return its exit status or the signal that ended it.

    ``patience`` is for a child that is ending by itself: so many seconds until it is killed.
    """
    deadline = time.monotonic() + patience
    while not (found := os.waitpid(pid, os.WNOHANG))[0] and time.monotonic() < deadline:
        time.sleep(0.001)
    done, status = found
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    if not done:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return {"ended": "by the grader"}
    code = os.waitstatus_to_exitcode(status)
    return {"signal": signal.Signals(-code).name} if code < 0 else {"exit": code}


def isolate(isolation, landlock, options, folder):
    """Build the walls of a child. Returns the layers that stand."""
    if not options["isolated"]:
        os.chdir(folder)
        return set()
    layers = isolation.separate(options["walled"])
    own = [isolation.SCRATCH, "/dev/shm"] if "scratch" in layers else [folder] if folder else []
    os.chdir(own[0] if own else "/")
    if folder is not None:
        os.environ |= {"TMPDIR": folder, "HOME": folder}
        tempfile.tempdir = None  # to be looked up again
    layers |= isolation.restrict()
    libraries = (sys.base_prefix, sys.base_exec_prefix, *options["paths"])
    if landlock.close_files([*landlock.SYSTEM, *libraries], [*landlock.DEVICES, *own]):
        layers.add("landlock")
    return layers


def serve(sock, layers, seed, answers, wire):
    """Be a child: run cells and calls as asked, until the grader hangs up."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    main_module = types.ModuleType("__main__")
    sys.modules["__main__"] = main_module
    sys.argv[:] = [""]
    main_module.get_ipython = Shell
    make_repeatable(seed)
    learner = answers.Answers(vars(main_module))
    operations = {
        name: getattr(learner, name) for name in ("run", "call", "measure", "value", "step")
    }
    operations["layers"] = lambda: {"value": sorted(layers)}

    def read(size):
        chunks = bytearray()
        while len(chunks) < size:
            if not (chunk := sock.recv(min(size - len(chunks), 1 << 20))):
                raise EOFError
            chunks += chunk
        return bytes(chunks)

    while True:
        try:
            operation, arguments = wire.decode(wire.receive(read))
        except EOFError:
            return
        try:
            reply = wire.encode(operations[operation](*arguments))
        except BaseException as error:  # a result that cannot be handed over
            reply = wire.encode({"error": answers.describe(error)})
        wire.send(sock, reply)


def make_repeatable(seed):
    """Seed every generator that the learner's code may draw from."""
    random.seed(seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed % 2**32)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(seed)


class Shell:
    """Stands in for IPython's shell, so that ``%matplotlib inline`` and ``!ls`` do no harm."""

    def __getattr__(self, name):
        return lambda *args, **kwargs: None


if __name__ == "__main__":
    main()
