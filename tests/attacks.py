"""Submissions that do what they should not, and what their grade must be.

Each is an answer to the question ``half`` of the little course; its answer to ``double`` is right
and stays right. The same list makes the table of the book's page on isolation.
"""

from __future__ import annotations

from dataclasses import dataclass

RIGHT_DOUBLE = "def double(x):\n    return x + x"
RIGHT_HALF = "def half(x):\n    return 0.5 * x"


@dataclass(frozen=True)
class Attack:
    """One attack.

    Attributes
    ----------
    group, name : str
    source : str
        The answer cell. ``{secrets}`` stands for a list of paths outside, ``{sockets}`` for a
        list of addresses that listen.
    status : str
        What the question ``half`` must get. ``stopped`` is any of ``error``, ``crashed``,
        ``timeout`` and ``memory``: which one is chance.
    harmless : str
        Why full marks are right, where they are.
    """

    group: str
    name: str
    source: str
    status: str
    harmless: str = ""


def body(lines, setup=""):
    """Return an answer whose function runs the lines before it returns the right value."""
    indented = "\n".join(f"    {line}" for line in lines.strip().splitlines())
    imports = "import os, sys, time\nimport numpy as np"
    return f"{imports}\n{setup}\ndef half(x):\n{indented}\n    return x / 2"


def spying(lines, setup=""):
    """Return an answer that is right only if the lines find what they look for."""
    indented = "\n".join(f"    {line}" for line in lines.strip().splitlines())
    return (
        "import os, sys, time, glob, socket\nimport numpy as np\n"
        f"{setup}\ndef look(x):\n{indented}\n"
        "def half(x):\n    return x / 2 if look(x) else np.zeros_like(x)"
    )


TIME = [
    Attack("time", "endless loop in a function", body("while True: pass"), "timeout"),
    Attack("time", "endless loop at the top of a cell", "while True: pass", "timeout"),
    Attack(
        "time",
        "endless loop that swallows interrupts",
        body(
            "while True:\n    try:\n        time.sleep(9)\n    except BaseException:\n        pass"
        ),
        "timeout",
    ),
    Attack(
        "time",
        "endless loop that ignores signals",
        body(
            "for s in range(1, 32):\n    try: signal.signal(s, signal.SIG_IGN)\n"
            "    except OSError: pass\nwhile True: pass",
            "import signal",
        ),
        "timeout",
    ),
    Attack("time", "sleep for eleven days", body("time.sleep(1e6)"), "timeout"),
    Attack(
        "time",
        "stops itself with SIGSTOP",
        body("os.kill(os.getpid(), 19)"),
        "passed",
        "process 1 of a namespace cannot be stopped from inside",
    ),
]

RESOURCES = [
    Attack("resources", "allocates 20 GB", body("y = np.ones(int(2.5e9))"), "memory"),
    Attack(
        "resources",
        "grows until nothing is left",
        body("kept = []\nwhile True: kept.append(bytearray(1 << 26))"),
        "memory",
    ),
    Attack(
        "resources",
        "allocates 20 GB in PyTorch",
        body("torch.ones(int(5e9))", "import torch"),
        "memory",
    ),
    Attack(
        "resources",
        "returns 10 GB",
        "import numpy as np\ndef half(x):\n    return np.zeros(int(1.25e9))",
        "memory",
    ),
    Attack(
        "resources",
        "returns an array of 10 GB that takes no memory",
        "import numpy as np\ndef half(x):\n    return np.broadcast_to(0.5, (1250000000,))",
        "memory",
    ),
    Attack("resources", "fork bomb", body("while True: os.fork()"), "stopped"),
    Attack(
        "resources",
        "thousands of threads",
        body(
            "for _ in range(5000): threading.Thread(target=time.sleep, args=(99,)).start()",
            "import threading",
        ),
        "error",
    ),
    Attack(
        "resources",
        "fills its scratch folder",
        body("for i in range(99): open(f'file{i}', 'wb').write(bytes(1 << 24))"),
        "error",
    ),
    Attack(
        "resources",
        "one file of 10 GB",
        body("with open('file', 'wb') as f:\n    while True: f.write(bytes(1 << 24))"),
        "error",
    ),
    Attack(
        "resources",
        "prints 200 MB in one line",
        body("print('x' * 200_000_000)"),
        "passed",
        "what is printed is thrown away",
    ),
    Attack(
        "resources",
        "prints two million lines",
        body("for _ in range(2_000_000): print('x')"),
        "passed",
        "what is printed is thrown away",
    ),
]

ENDINGS = [
    Attack("endings", "sys.exit()", body("sys.exit()"), "error"),
    Attack("endings", "raise SystemExit(0)", body("raise SystemExit(0)"), "error"),
    Attack("endings", "os._exit(0)", body("os._exit(0)"), "crashed"),
    Attack(
        "endings",
        "kills itself with SIGKILL",
        body("os.kill(os.getpid(), 9)"),
        "passed",
        "process 1 of a namespace cannot be killed from inside",
    ),
    Attack(
        "endings",
        "kills every process it sees",
        body(
            "try: os.kill(-1, 9)\nexcept OSError: pass\nos.kill(0, 15)",
            "import signal\nsignal.signal(15, signal.SIG_IGN)",
        ),
        "passed",
        "it sees none but its own",
    ),
    Attack(
        "endings", "segmentation fault", body("ctypes.string_at(0)", "import ctypes"), "crashed"
    ),
    Attack("endings", "abort()", body("os.abort()"), "crashed"),
]

CHEATS = [
    Attack(
        "cheats",
        "replaces NumPy's comparisons",
        "import numpy as np\n"
        "np.allclose = np.array_equal = lambda *a, **k: True\n"
        "np.isclose = lambda a, b, **k: np.full(np.shape(a), True)\n"
        "np.testing.assert_allclose = lambda *a, **k: None\n"
        "def half(x):\n    return np.zeros_like(x)",
        "failed",
    ),
    Attack(
        "cheats",
        "replaces builtins",
        "import builtins, numpy as np\nbuiltins.all = builtins.any = lambda *a: True\n"
        "builtins.isinstance = lambda *a: True\ndef half(x):\n    return np.zeros_like(x)",
        "stopped",
    ),
    Attack(
        "cheats",
        "object that equals everything",
        "class Yes:\n    def __eq__(self, other): return True\n    __array__ = None\n"
        "def half(x):\n    return Yes()",
        "failed",
    ),
    Attack(
        "cheats",
        "array whose comparisons are always true",
        "import numpy as np\nclass Yes(np.ndarray):\n    def __eq__(self, other): return True\n"
        "    def __array_ufunc__(self, *a, **k): return np.full(self.shape, True)\n"
        "def half(x):\n    return np.zeros_like(x).view(Yes)",
        "failed",
    ),
    Attack(
        "cheats",
        "array of objects",
        "import numpy as np\ndef half(x):\n    return np.array([object() for _ in x])",
        "failed",
    ),
    Attack(
        "cheats",
        "generator instead of an array",
        "def half(x):\n    return (v / 2 for v in x)",
        "failed",
    ),
    Attack(
        "cheats",
        "result that changes afterwards",
        "import threading\ndef half(x):\n    y = x / 2\n"
        "    threading.Timer(0.001, lambda: y.fill(0)).start()\n    return y",
        "passed",
        "the result was copied when it was handed over",
    ),
    Attack(
        "cheats",
        "writes a made-up answer to every open file",
        "import os, numpy as np\n"
        'forged = b\'{"value": {"dict": [["value", true], ["passed", true]]}, "sizes": []}\' * 9\n'
        "def half(x):\n    for fd in range(256):\n        try: os.write(fd, forged)\n"
        "        except OSError: pass\n    return np.zeros_like(x)",
        "crashed",
    ),
    Attack(
        "cheats",
        "looks for the expected value in memory",
        spying(
            "for thing in gc.get_objects():\n"
            "    if isinstance(thing, np.ndarray) and thing.shape == x.shape:\n"
            "        if thing is not x and np.allclose(thing, x / 2): return True\n"
            "frame = sys._getframe()\n"
            "while frame:\n"
            "    for thing in frame.f_locals.values():\n"
            "        if isinstance(thing, np.ndarray) and thing.shape == x.shape:\n"
            "            if np.allclose(thing, x / 2): return True\n"
            "    frame = frame.f_back\n"
            "return False",
            "import gc",
        ),
        "failed",
    ),
    Attack(
        "cheats",
        "answers with what it saw before",
        "seen = []\ndef half(x):\n    seen.append(x)\n    return seen[0] / 3",
        "failed",
    ),
    Attack(
        "cheats",
        "traces, import hooks and input transformers",
        "import sys, numpy as np\nsys.settrace(lambda *a: None)\n"
        "class Hook:\n    def find_spec(self, name, path, target=None): sys.exit(0)\n"
        "sys.meta_path.insert(0, Hook())\nget_ipython().input_transformers_cleanup = []\n"
        "def half(x):\n    return np.zeros_like(x)",
        "failed",
    ),
    Attack(
        "cheats",
        "imports the answers of the course",
        spying("import answers_of_this_course\nreturn True"),
        "error",
    ),
    Attack(
        "cheats",
        "calls check and believes it",
        "from autograder import check\nimport numpy as np\nassert check('half')\n"
        "def half(x):\n    return np.zeros_like(x)",
        "failed",
    ),
]

SPIES = [
    Attack(
        "spies",
        "reads solutions, checks, other submissions, home",
        spying(
            "for path in SECRETS:\n    try: open(path).read(1); return True\n"
            "    except OSError: pass\nreturn False",
            "SECRETS = {secrets}",
        ),
        "failed",
    ),
    Attack(
        "spies",
        "asks whether such files exist",
        spying("return any(os.path.exists(p) for p in SECRETS)", "SECRETS = {secrets}"),
        "failed",
    ),
    Attack(
        "spies",
        "reads /proc: environments and memory of processes",
        spying(
            "for path in glob.glob('/proc/[0-9s]*/environ') + glob.glob('/proc/[0-9s]*/mem'):\n"
            "    try: open(path, 'rb').read(1); return True\n    except OSError: pass\nreturn False"
        ),
        "failed",
    ),
    Attack(
        "spies",
        "writes over grader, checks, gradebook",
        spying(
            "for path in [*SECRETS, '/usr/x', '/etc/x', '/grader/autograder/wire.py']:\n"
            "    try: open(path, 'a').close(); return True\n    except OSError: pass\nreturn False",
            "SECRETS = {secrets}",
        ),
        "failed",
    ),
    Attack(
        "spies",
        "changes modes and times of files",
        spying(
            "for path in [*SECRETS, '/usr', sys.prefix, np.__file__]:\n"
            "    for change in (lambda: os.chmod(path, 0o777), lambda: os.utime(path)):\n"
            "        try: change(); return True\n        except OSError: pass\nreturn False",
            "SECRETS = {secrets}",
        ),
        "failed",
    ),
    Attack(
        "spies",
        "connects to the network, to loopback, to Unix and abstract sockets",
        spying(
            "for family, address in SOCKETS:\n"
            "    with socket.socket(family) as s:\n        s.settimeout(0.2)\n"
            "        try: s.connect(address); return True\n        except OSError: pass\n"
            "return False",
            "SOCKETS = {sockets}",
        ),
        "failed",
    ),
    Attack(
        "spies",
        "finds what an earlier submission left",
        spying(
            "return any(os.path.exists(os.path.join(d, 'left')) for d in "
            "('.', '/', '/tmp', '/dev', '/dev/shm', '/grader', os.path.expanduser('~')))"
        ),
        "failed",
    ),
    Attack(
        "spies",
        "leaves files for a later submission",
        body(
            "for d in ('.', '/', '/tmp', '/dev', '/dev/shm', '/grader', os.path.expanduser('~')):\n"
            "    try: open(os.path.join(d, 'left'), 'w').write('x')\n    except OSError: pass"
        ),
        "passed",
        "its folders vanish with it",
    ),
    Attack(
        "spies",
        "mounts and unmounts file systems",
        spying(
            "libc = ctypes.CDLL(None)\n"
            "done = [libc.umount2(b'/proc', 2), libc.mount(b'none', b'/proc', b'proc', 0, None),\n"
            "        libc.mount(b'tmpfs', b'/usr', b'tmpfs', 0, None)]\n"
            "return 0 in done",
            "import ctypes",
        ),
        "failed",
    ),
    Attack(
        "spies",
        "mounts and unmounts in a user namespace of its own",
        spying(
            "libc = ctypes.CDLL(None)\nlibc.unshare(0x10020000)\n"
            "libc.umount2(b'/proc', 2)\nlibc.umount2(b'/scratch', 2)\n"
            "return os.path.exists('/proc/self') or any(os.path.exists(p) for p in SECRETS)",
            "import ctypes\nSECRETS = {secrets}",
        ),
        "failed",
    ),
]

STAYING = [
    Attack(
        "staying",
        "process in a new session",
        body("if os.fork() == 0:\n    os.setsid()\n    while True: time.sleep(1)"),
        "passed",
        "it ends with the submission",
    ),
    Attack(
        "staying",
        "thread that never ends",
        body(
            "threading.Thread(target=lambda: [0 for _ in iter(int, 1)]).start()", "import threading"
        ),
        "passed",
        "it ends with the submission",
    ),
    Attack(
        "staying",
        "atexit that never ends",
        body("atexit.register(lambda: [0 for _ in iter(int, 1)])", "import atexit"),
        "passed",
        "the process is killed, not asked",
    ),
]

GOOD = [
    Attack(
        "good answers",
        "a warning on stderr",
        body("warnings.warn('careful')", "import warnings"),
        "passed",
        "right",
    ),
    Attack(
        "good answers", "slow, but within the limit", body("time.sleep(0.3)"), "passed", "right"
    ),
    Attack(
        "good answers",
        "threads through NumPy and PyTorch",
        body(
            "torch.set_num_threads(2)\na = torch.randn(300, 300); (a @ a).sum()\n"
            "np.linalg.svd(np.random.rand(200, 200))",
            "import torch",
        ),
        "passed",
        "right",
    ),
    Attack(
        "good answers",
        "a plot with matplotlib",
        body(
            "fig, ax = plt.subplots(); ax.plot(x); fig.savefig('a.png'); plt.close(fig)",
            "import matplotlib.pyplot as plt",
        ),
        "passed",
        "right",
    ),
    Attack(
        "good answers",
        "much of the standard library",
        body(
            "json.dumps(dataclasses.asdict(P(1))); subprocess.run(['true'], check=True)\n"
            "tempfile.TemporaryFile().write(b'x'); random.random(); pathlib.Path('.').resolve()\n"
            "with concurrent.futures.ThreadPoolExecutor(2) as pool: list(pool.map(abs, [1, -1]))",
            "import json, dataclasses, subprocess, tempfile, random, pathlib, concurrent.futures\n"
            "@dataclasses.dataclass\nclass P:\n    x: int",
        ),
        "passed",
        "right",
    ),
]

ATTACKS = [*TIME, *RESOURCES, *ENDINGS, *CHEATS, *SPIES, *STAYING, *GOOD]


def as_markdown():
    """Return the table of the book's page on isolation."""
    lines = ["| attack | grade of its question | |", "|---|---|---|"]
    group = None
    for attack in ATTACKS:
        if attack.group != group:
            group = attack.group
            lines.append(f"| **{group}** | | |")
        status = "`error`, `crashed`, `timeout` or `memory`"
        status = status if attack.status == "stopped" else f"`{attack.status}`"
        why = f"full marks: {attack.harmless}" if attack.harmless else "no points"
        lines.append(f"| {attack.name} | {status} | {why} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(as_markdown(), end="")
