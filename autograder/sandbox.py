"""The grader's side of the sandbox: start the server, talk to its children, keep the time."""

from __future__ import annotations

import contextlib
import json
import os
import site
import socket
import subprocess
import tempfile
import threading
import time
from importlib.util import find_spec
from pathlib import Path

from . import wall, wire
from .learner import Learner

CELL_SECONDS = 20.0  # for one cell of a notebook
NOTEBOOK_SECONDS = 600.0  # for all its cells and checks together
START_SECONDS = 120  # for importing NumPy and PyTorch on a slow disk
PRELOAD = ("numpy", "numpy.random", "torch")  # the second would be imported by each child


class ServerGone(RuntimeError):
    """The server ended, or could not be started."""


class Server:
    """The warm server, started when first needed. Use it as a context manager.

    Parameters
    ----------
    answer_key : sequence of str
        Packages that learners' code must not import.
    isolated : bool
        Whether to keep submissions from files, network and other processes. If not, they have
        a time limit only: for a learner's own work.

    Raises
    ------
    RuntimeError
        When it is first used, on a platform that cannot fork.
    """

    def __init__(self, answer_key=(), *, isolated=False):
        self.answer_key = list(answer_key)
        self.isolated = isolated
        self._layers = None if isolated else set()
        self.process = None
        self.attached = False  # to a copy that another server made of itself
        self.lock = threading.Lock()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()

    def start(self):
        """Start the server unless it runs; return at once, while it is still importing."""
        if self.process is not None or self.attached:
            return
        if not hasattr(os, "fork"):
            raise RuntimeError(
                "grading needs a system that can fork: Linux, macOS, or Linux inside Windows "
                "(WSL). In a notebook, `check(...)` works everywhere."
            )
        self.control, theirs = socket.socketpair()
        self.control.settimeout(START_SECONDS)
        folders = library_folders()
        walled = self.isolated and not wall.why_not()
        options = {
            "paths": folders,
            "preload": PRELOAD,
            "answer_key": self.answer_key,
            "isolated": self.isolated,
            "walled": walled,
        }
        program = wall.HOME / "server.py" if walled else Path(__file__).with_name("server.py")
        command = [wall.interpreter(), "-I", "-S", str(program), str(theirs.fileno())]
        command.append(json.dumps(options))
        if walled:
            command = wall.walled(command, folders, [*self.answer_key, "autograder", "tests"])
        self.process = subprocess.Popen(
            command,
            pass_fds=[theirs.fileno()],
            cwd=tempfile.gettempdir(),
            env=clean_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        theirs.close()
        self.ready = False
        self.replies = self.control.makefile("rb")

    def request(self, fds=(), **request):
        with self.lock:
            self.start()
            if not self.ready:
                self._reply()
                self.ready = True
            try:
                socket.send_fds(self.control, [json.dumps(request).encode() + b"\n"], fds)
            except OSError as error:
                raise ServerGone(f"the grading server does not answer: {error}") from error
            return self._reply()

    def _reply(self):
        try:
            reply = self.replies.readline()
        except OSError as error:
            raise ServerGone(f"the grading server does not answer: {error}") from error
        if not reply:
            raise ServerGone(
                "the grading server ended; try `python -c 'import numpy, torch'` to see whether "
                "the installation is whole, and whether every user may read it"
            )
        return json.loads(reply)

    def fork(self, seed):
        """Fork a child.

        Parameters
        ----------
        seed : int
            Seeds the child's random generators.

        Returns
        -------
        Child
        """
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                reply = self.request([theirs.fileno()], op="fork", seed=seed)
        except ServerGone:
            ours.close()
            raise
        return Child(self, ours, reply["pid"])

    def layers(self):
        """Say which walls stand around submissions on this machine.

        Returns
        -------
        set of str
            Of ``"landlock"`` (other files cannot be opened), ``"memory"``, ``"network"``,
            ``"processes"`` and ``"scratch"`` (the outer wall, and a folder of its own inside).
        """
        if self._layers is None:
            child = self.fork(0)
            try:
                self._layers = child.layers()
            finally:
                child.end()
        return self._layers

    def clone(self):
        """Let the server fork a copy of itself, for another process to use.

        Returns
        -------
        Server
            It shares the memory of the first one's imports.
        """
        other = Server(self.answer_key, isolated=self.isolated)
        other._layers = self.layers()
        other.control, theirs = socket.socketpair()
        other.control.settimeout(START_SECONDS)
        with theirs:
            self.request([theirs.fileno()], op="serve")
        other.replies = other.control.makefile("rb")
        other.attached = other.ready = True
        return other

    def restart(self):
        """Start anew, after the server was killed."""
        self.close()
        self.start()

    def close(self):
        """End the server and all its children."""
        if self.process is None and not self.attached:
            return
        with contextlib.suppress(OSError):
            self.control.shutdown(socket.SHUT_RDWR)
        if self.process is not None:
            try:
                self.process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.replies.close()
        self.control.close()
        self.process, self.attached = None, False


def library_folders():
    """Where installed packages lie, NumPy's own folder first."""
    numpy_home = str(Path(find_spec("numpy").origin).parents[1])
    installed = site.getsitepackages()
    if site.ENABLE_USER_SITE:
        installed = [*installed, site.getusersitepackages()]
    return [path for path in dict.fromkeys([numpy_home, *installed]) if os.path.isdir(path)]


def clean_environment():
    """The few variables that a learner's process gets."""
    kept = {k: v for k, v in os.environ.items() if k in ("PATH", "LANG", "LC_ALL", "TMPDIR", "TZ")}
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return kept | one_thread | {"MPLBACKEND": "Agg", "HOME": tempfile.gettempdir()}


class Child:
    """One child process and the socket it answers on."""

    def __init__(self, server, sock, pid):
        self.server = server
        self.sock = sock
        self.pid = pid

    def ask(self, operation, arguments, seconds):
        """Send a request and wait for its outcome.

        Parameters
        ----------
        operation : {"run", "call", "measure", "value", "step"}
        arguments : sequence
            Of the method of `answers.Answers` with that name.
        seconds : float
            How long to wait.

        Returns
        -------
        dict
            The outcome; if the child did not give one, the child is gone and the error's kind
            is ``"timeout"`` or ``"crashed"``.
        """
        deadline = time.monotonic() + seconds
        try:
            self.sock.settimeout(seconds)
            wire.send(self.sock, wire.encode([operation, list(arguments)]))
            outcome = wire.decode(wire.receive(lambda size: self._read(size, deadline)))
            return trusted_shape(outcome)
        except TimeoutError:
            self.end()
            return {"error": {"kind": "timeout", "seconds": seconds}}
        except (OSError, EOFError):
            return {"error": {"kind": "crashed", "message": _how(self.end(patience=2))}}
        except wire.WireError as error:
            self.end()
            return {"error": {"kind": "crashed", "message": str(error)}}

    def end(self, patience=0):
        """End the child with all it started, after so many seconds. Returns how it ended."""
        self.sock.close()
        if self.pid is None:
            return {}
        pid, self.pid = self.pid, None
        return self.server.request(op="end", pid=pid, patience=patience)

    def layers(self):
        """Ask which walls stand around this child, before any code of a learner runs in it."""
        outcome = self.ask("layers", (), START_SECONDS)
        if "error" in outcome:
            raise ServerGone("the grading server's first process ended before it could work")
        return set(outcome["value"])

    @property
    def gone(self):
        return self.pid is None

    def _read(self, size, deadline):
        chunks = bytearray()
        while len(chunks) < size:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self.sock.settimeout(left)
            if not (chunk := self.sock.recv(min(size - len(chunks), 1 << 20))):
                raise EOFError
            chunks += chunk
        return bytes(chunks)


def trusted_shape(outcome):
    """Bring what a child sent into the shape of an outcome, whatever the child made of it.

    Parameters
    ----------
    outcome : object

    Returns
    -------
    dict
        ``{"value": …}``, after a call with ``"arguments": list``, or ``{"error": {…}}``.
    """
    if not isinstance(outcome, dict):
        raise wire.WireError("an outcome is a dict")
    if "error" not in outcome:
        arguments = outcome.get("arguments")
        shaped = {"value": outcome.get("value")}
        return shaped | ({"arguments": arguments} if isinstance(arguments, list) else {})
    sent = outcome["error"] if isinstance(outcome["error"], dict) else {}
    kind = sent.get("kind")
    error = {"kind": kind if kind in ("memory", "missing", "not_attempted") else "error"}
    for key in ("type", "message", "cell", "function", "text"):
        error[key] = str(sent[key])[:500] if isinstance(sent.get(key), str) else ""
    error["line"] = sent["line"] if isinstance(sent.get("line"), int) else 0
    return {"error": error}


def _how(status):
    if "signal" in status:
        return f"Python was ended by {status['signal']}"
    if "exit" in status:
        return f"Python was ended with exit status {status['exit']}"
    return "the connection was closed"


class SandboxedLearner(Learner):
    """A learner whose code runs in a child process.

    Parameters
    ----------
    server : Server
    cells : sequence of (str, str)
        The id and the source of each cell, in order. All run; an error in one does not stop
        the next.
    seed : int
        Seeds the child's random generators.
    """

    def __init__(self, server, cells, *, seed=0):
        super().__init__()
        self.used_seconds = 0.0
        self.layers = set(server.layers())  # the walls around this learner's code
        self.server = server
        self.cells = list(cells)
        self.seed = seed
        self.errors = {}  # of cells, by id
        self.child = None

    def load(self):
        """Run the cells in a fresh child, without those that hung or crashed before."""
        for _ in range(len(self.cells) + 1):  # each try takes out one such cell, or is the last
            self.child = self.server.fork(self.seed)
            self.layers &= self.child.layers()
            for cell_id, source in self.cells:
                if self.errors.get(cell_id, {}).get("kind") in ("timeout", "crashed"):
                    continue
                outcome = self._timed("run", (cell_id, source), CELL_SECONDS)
                if "error" in outcome:
                    self.errors[cell_id] = outcome["error"]
                if self.child.gone:
                    break
            else:
                return
            if self._out_of_time():
                return

    def close(self):
        """End the child."""
        if self.child is not None:
            self.child.end()
            self.child = None

    def _ask(self, name, *arguments):
        if (self.child is None or self.child.gone) and not self._out_of_time():
            self.load()
        return self._timed(name, arguments, self.seconds)

    def _timed(self, name, arguments, seconds):
        """Ask the child, within what is left of the time for the whole notebook."""
        if self._out_of_time():
            if self.child is not None:
                self.child.end()
            return {"error": {"kind": "timeout", "seconds": NOTEBOOK_SECONDS}}
        start = time.monotonic()
        try:
            left = NOTEBOOK_SECONDS - self.used_seconds
            return self.child.ask(name, arguments, min(seconds, left))
        finally:
            self.used_seconds += time.monotonic() - start

    def _out_of_time(self):
        return self.used_seconds >= NOTEBOOK_SECONDS
