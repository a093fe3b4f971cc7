"""Questions and their checks.

A module of checks names its questions and writes one short function a check::

    softmax = Question("softmax", section="The stable softmax")


    @softmax.check(points=0.5)
    def each_row_sums_to_one(learner, rng):
        x = rng.normal(size=(3, 5))
        expect_close(learner.call("softmax", x), oracle.softmax(x), "softmax(x)")

The function's name, read as a sentence, is the check's name. It gets a `Learner` and a random
generator, and raises `Failed` with a message that a learner can act on.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from . import wire


class Failed(AssertionError):
    """A property does not hold. The message is for the learner."""


@dataclass(frozen=True)
class Check:
    """One property of an answer.

    Attributes
    ----------
    name : str
        An identifier; with blanks for underscores it reads as a sentence.
    points : float
    function : callable
        ``function(learner, rng)``; raises `Failed` or `LearnerError`.
    """

    name: str
    points: float
    function: Callable

    @property
    def sentence(self):
        return self.name.replace("_", " ")


class Question:
    """A question of an exercise notebook and the checks of its answer.

    Parameters
    ----------
    id : str
        The ``grade_id`` of the answer cell: the name that the answer binds.
    section : str
        The section of the chapter to reread.
    forbid : sequence of str
        Ready-made answers, as dotted names: ``"torch.softmax"``; a package forbids all in it.
    seconds : float
        Time limit of one operation (a call) of the learner's code.
    """

    def __init__(self, id, *, section, forbid=(), seconds=5.0):
        self.id = id
        self.section = section
        self.forbid = tuple(forbid)
        self.seconds = seconds
        self.checks = []
        self.probes = []

    def check(self, points):
        """Register the decorated function as a check worth ``points``."""

        def register(function):
            self.checks.append(Check(function.__name__, points, function))
            return function

        return register

    def probe(self, function):
        """Register inputs that tell mistakes apart which the checks alone do not.

        ``function(rng)`` yields tuples of arguments. They are not judged: known mistakes are
        compared on them with the answer.
        """
        self.probes.append(function)
        return function

    @property
    def max_points(self):
        return sum(check.points for check in self.checks)

    def __repr__(self):
        return f"Question({self.id!r})"


def questions_of(module):
    """List the questions that a module of checks defines, in order."""
    return [thing for thing in vars(module).values() if isinstance(thing, Question)]


def rng_for(seed, question, check):
    """Make the random generator of one check: the same for the same seed, whatever ran before."""
    name = f"{question.id}/{check.name}".encode()
    return np.random.default_rng([seed, zlib.crc32(name)])


def expect(condition, message):
    """Raise `Failed` with the message unless the condition holds."""
    if not condition:
        raise Failed(message)


def expect_array(got, shape, what):
    """Check that a result is an array of numbers with the given shape, and return it.

    Parameters
    ----------
    got : object
        What the learner's code returned.
    shape : tuple of int
    what : str
        What to call it in the message: ``"weights"``.

    Returns
    -------
    numpy.ndarray
        In float64 (or complex128).

    Raises
    ------
    Failed
    """
    if hasattr(got, "detach"):  # a torch tensor
        got = got.detach().float().numpy() if got.dtype.itemsize < 8 else got.detach().numpy()
    if isinstance(got, list | tuple):
        raise Failed(f"{what} is a {type(got).__name__} of {len(got)} items; expected one array.")
    if got is None:
        raise Failed(f"{what} is None. Is there a `return`?")
    if isinstance(got, bool | int | float):
        got = np.asarray(got)
    if not isinstance(got, np.ndarray | np.generic) or got.dtype.kind not in "biufc":
        name = got.type if isinstance(got, wire.Handle) else type(got).__name__
        raise Failed(f"{what} is of type {name}; expected an array of numbers.")
    if got.shape != tuple(shape):
        raise Failed(f"{what} has shape {got.shape}; expected {tuple(shape)}.")
    return got.astype(np.result_type(got.dtype, np.float64))


def expect_close(got, want, what, *, rtol=1e-4, atol=1e-6, note=""):
    """Check that a result has the right shape and values.

    Parameters
    ----------
    got : object
        What the learner's code returned.
    want : array_like
        The right values. One row of them is shown when the check fails.
    what : str
        What to call the result in the message: ``"weights"``.
    rtol, atol : float
        Allowed relative and absolute difference. The defaults accept float32 inside.
    note : str
        A sentence to add to the message: what is special about this input.

    Raises
    ------
    Failed
    """
    want = np.asarray(want, dtype=np.float64)
    got = expect_array(got, want.shape, what)
    wrong = ~np.isclose(got, want, rtol=rtol, atol=atol, equal_nan=True)
    if not wrong.any():
        return
    if want.ndim == 0:
        raise Failed(_join(f"{what} is {_show(got)}; expected {_show(want)}.", note))
    not_finite = wrong & ~np.isfinite(got)
    shown = not_finite if not_finite.any() else wrong
    row = tuple(int(i) for i in np.argwhere(shown)[0][:-1])
    place = f"{what}[{', '.join(map(str, row))}]" if row else what
    bad = int(wrong.reshape(-1, wrong.shape[-1]).any(axis=-1).sum()) if row else 1
    rows = wrong.size // wrong.shape[-1]
    kind = "is not finite" if not_finite.any() else "differs"
    many = f" ({bad} of {rows} rows are wrong.)" if rows > 1 else ""
    raise Failed(
        _join(f"{place} {kind}: got {_show(got[row])}, expected {_show(want[row])}.{many}", note)
    )


def expect_tuple(got, names):
    """Check that a result is a tuple with one item for each name, and return it.

    Parameters
    ----------
    got : object
    names : sequence of str
        ``("output", "weights")``.

    Returns
    -------
    tuple

    Raises
    ------
    Failed
    """
    wanted = f"({', '.join(names)})"
    if got is None:
        raise Failed(f"The function returned None; expected {wanted}. Is there a `return`?")
    if not isinstance(got, list | tuple):
        raise Failed(f"The function returned one {type(got).__name__}; expected {wanted}.")
    if len(got) != len(names):
        raise Failed(f"The function returned {len(got)} items; expected {wanted}.")
    return tuple(got)


def expect_numbers(got, parts):
    """Check that a prediction has one number for each of its parts, and return them.

    Parameters
    ----------
    got : object
        A tuple, list, array or tensor.
    parts : sequence of str
        What to call each of them: ``"abc"``.

    Returns
    -------
    list of (int or float)

    Raises
    ------
    Failed
    """
    got = plain(got)
    if not isinstance(got, list) or len(got) != len(parts):
        wanted = ", ".join(f"({part})" for part in parts)
        raise Failed(f"Write {len(parts)} numbers, {wanted}; got {got!r}.")
    for part, number in zip(parts, got, strict=True):
        if not isinstance(number, int | float) or isinstance(number, bool):
            raise Failed(f"Write a number for each part; ({part}) is {number!r}.")
    return [np.inf if abs(number) > 1e300 else number for number in got]  # as no float holds it


def plain(value):
    """Turn arrays, tensors and tuples, also inside of others, into lists and numbers."""
    if hasattr(value, "tolist"):
        return value.tolist()
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def expect_unchanged(arguments, originals, names):
    """Check that a call left its arguments as they were.

    Parameters
    ----------
    arguments : list
        The arguments after the call (``learner.run(…)["arguments"]``).
    originals : sequence of array_like
        What they were before.
    names : sequence of str

    Raises
    ------
    Failed
    """
    if len(arguments) != len(originals):
        raise Failed("The arguments of the call are gone after it.")
    for name, original, after in zip(names, originals, arguments, strict=True):
        if not np.array_equal(np.asarray(original), np.asarray(after), equal_nan=True):
            raise Failed(
                f"The call changed its argument {name}: the caller's array is overwritten. "
                "Work on a new array."
            )


def _show(values):
    text = np.array2string(
        np.asarray(values), precision=4, suppress_small=True, threshold=12, edgeitems=4
    )
    return " ".join(text.split()).removesuffix(".")  # "0.": a sentence ends with its own dot


def _join(*sentences):
    return " ".join(sentence for sentence in sentences if sentence)
