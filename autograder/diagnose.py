"""Which mistake is it? Compare what a learner's answer did with what known mistakes do.

Everything that a learner's code was asked, and what came of it, is on record. A known mistake
that gives the same result to every one of these questions explains the answer: the same values,
shapes, NaNs and kinds of exception, and the same arguments changed.
"""

from __future__ import annotations

import numpy as np

from .checks import Failed, rng_for
from .learner import Learner, LiveLearner, measured_in
from .sandbox import ServerGone
from .wire import Handle

MORE_SEEDS = 3  # tried until one mistake is left
ABOUT_AS_MUCH = 4  # one temporary array more or less is no other mistake
HALF = {"float16": 2**-10, "torch.float16": 2**-10, "torch.bfloat16": 2**-7}  # eps of 16 bits
SMALLER_TRIES = 24  # drawings of a failing check, of which the smallest is shown


def diagnose(question, learner, records, failing, mistakes, seed):
    """Find the known mistake that explains what an answer did.

    Parameters
    ----------
    question : Question
    learner : Learner
        Whose code can be asked for more.
    records : dict
        For each check that was run, by name: the list of its `learner.Operation`.
    failing : sequence of str
        The checks that do not hold, in order.
    mistakes : sequence of Mistake
        Those of this question.
    seed : int

    Returns
    -------
    Mistake or None
    """
    others = [name for name in records if name not in failing]
    everything = [op for name in [*failing, *others] for op in records[name]]
    fitting = [m for m in mistakes if explains(m, question, everything)]
    fitting = _confirmed(fitting, question, learner, failing, seed)
    if fitting:
        return fitting[0]
    # Two mistakes at once: name the one that alone explains the first thing that is wrong, if
    # there are values to go by (many mistakes end in the same exception).
    first = records[failing[0]]
    if any("value" in op.outcome for op in first):
        fitting = [m for m in mistakes if explains(m, question, first)]
        fitting = _confirmed(fitting, question, learner, failing[:1], seed, probes=False)
        if len(fitting) == 1:
            return fitting[0]
    return None


def _confirmed(fitting, question, learner, names, seed, probes=True):
    """Keep the mistakes that explain further inputs too, until one is left."""
    for more in range(1, MORE_SEEDS + 1):
        if not fitting:
            break
        operations = _ask_more(question, learner, names, seed + more, probes)
        fitting = [m for m in fitting if explains(m, question, operations)]
        if len(fitting) == 1:
            break
    return fitting


def explains(mistake, question, operations):
    """Tell whether a mistake gives the same outcome to each of the operations."""
    replayed = LiveLearner({question.id: mistake.answer})
    handles = {}  # of the record → of the replay
    for op in operations:
        try:
            arguments = [_translated(argument, handles) for argument in op.arguments]
        except KeyError:  # an object that the mistake did not make
            return False
        outcome = replayed.operate(op.name, *arguments)
        alike = same_measure if op.name == "measure" else same
        if not alike(op.outcome, outcome, handles):
            return False
    return True


def same_measure(first, second, handles):
    """Tell whether two measured calls gave the same result with about the same memory."""
    if "error" in first or "error" in second:
        return same(first, second, handles)
    if None in (measured := [measured_in(first), measured_in(second)]):
        return False
    (result, peak), (other, other_peak) = measured
    low, high = sorted([peak, other_peak])
    return high <= ABOUT_AS_MUCH * low and same(result, other, handles)


def _translated(value, handles):
    if isinstance(value, Handle):
        return handles[value.number]
    if isinstance(value, list | tuple):
        return type(value)(_translated(item, handles) for item in value)
    if isinstance(value, dict):
        return {key: _translated(item, handles) for key, item in value.items()}
    return value


def same(first, second, handles):
    """Tell whether two outcomes, or values inside them, are the same as far as anyone can see."""
    if isinstance(first, Handle) and isinstance(second, Handle):
        handles[first.number] = second
        return True
    if isinstance(first, dict) and isinstance(second, dict):
        if "error" in first or "error" in second:
            errors = [outcome.get("error") or {} for outcome in (first, second)]
            return errors[0].get("type") == errors[1].get("type") is not None
        return first.keys() == second.keys() and all(
            same(first[key], second[key], handles) for key in first
        )
    if isinstance(first, list | tuple) and isinstance(second, list | tuple):
        return len(first) == len(second) and all(
            same(a, b, handles) for a, b in zip(first, second, strict=True)
        )
    places = [HALF.get(str(getattr(value, "dtype", ""))) for value in (first, second)]
    if places[0] != places[1]:
        return False
    rtol, atol = (2 * places[0], places[0] / 2) if places[0] else (1e-4, 1e-6)
    if hasattr(first, "detach") and hasattr(second, "detach"):
        if first.requires_grad != second.requires_grad:
            return False
        first, second = (tensor.detach().double().numpy() for tensor in (first, second))
    if isinstance(first, np.ndarray | np.generic) and isinstance(second, np.ndarray | np.generic):
        if first.shape != second.shape or "U" in (first.dtype.kind, second.dtype.kind):
            return np.array_equal(first, second)
        return bool(np.isclose(first, second, rtol=rtol, atol=atol, equal_nan=True).all())
    if _is_number(first) and _is_number(second):
        return bool(np.isclose(first, second, rtol=rtol, atol=atol, equal_nan=True))
    return type(first) is type(second) and first == second


def _is_number(value):
    return isinstance(value, float) or (type(value) is int and abs(value) < 2**53)


def _ask_more(question, learner, names, seed, probes):
    """Try the question's probes, and its failing checks with other inputs; return the record."""
    start = len(learner.record)
    for probe in question.probes if probes else ():
        for arguments in probe(np.random.default_rng(seed)):
            learner.operate("call", question.id, list(arguments), {})
    for check in question.checks:
        if check.name in names:
            _fails(check, question, learner, seed)
    return learner.record[start:]


def smallest_failure(question, check, learner, message, seed):
    """Look for a smaller example of a property that does not hold.

    Parameters
    ----------
    question : Question
    check : Check
    learner : Learner
    message : str
        What is said about the example found so far.
    seed : int

    Returns
    -------
    str
        What to say about the smallest example found.
    """
    best, smallest = message, _size(learner.record[-1:])
    for more in range(1, SMALLER_TRIES + 1):
        start = len(learner.record)
        failure = _fails(check, question, learner, seed + more)
        size = _size(learner.record[start:][-1:])
        del learner.record[start:]
        if failure is not None and 0 < size < smallest:
            best, smallest = str(failure), size
    return best


def _fails(check, question, learner: Learner, seed):
    try:
        check.function(learner, rng_for(seed, question, check))
    except Failed as failure:
        return failure
    except ServerGone:
        raise
    except Exception:  # the answer raises, or gives what no check foresaw
        return None
    return None


def _size(operations):
    """Count the numbers that went into the operations."""

    def count(value):
        if isinstance(value, list | tuple):
            return sum(map(count, value))
        if isinstance(value, dict):
            return sum(map(count, value.values()))
        return int(np.prod(getattr(value, "shape", ()))) if hasattr(value, "shape") else 0

    return sum(count(list(op.arguments)) for op in operations)
