"""What a check is handed: somebody's answers, wherever they run."""

from __future__ import annotations

import contextlib
import io
import warnings
from dataclasses import dataclass

from . import wire
from .answers import Answers


class LearnerError(Exception):
    """The learner's code did not give a result.

    Attributes
    ----------
    details : dict
        As `answers.describe` gives it; ``kind`` may also be ``"timeout"`` or ``"crashed"``.
    """

    def __init__(self, details):
        self.details = details
        self.kind = str(details.get("kind", "error"))
        super().__init__(explain(details))


def explain(details):
    """Put the details of an error into a sentence for the learner."""
    kind = details.get("kind")
    if kind == "timeout":
        return f"Stopped after {details['seconds']:g} seconds. Is there a loop that never ends?"
    if kind == "crashed":
        return f"The process that ran your code is gone: {details['message']}."
    if kind == "missing":
        return f"{details['message']}."
    text = f"{details.get('type')}: {details.get('message')}".removesuffix(": ")
    if details.get("line"):
        text += f"\nin your line {details['line']}:  {details['text']}"
    return text


@dataclass(frozen=True)
class Operation:
    """One thing that was asked of a learner's code, and what came of it.

    Attributes
    ----------
    name : {"call", "measure", "value", "step"}
        A method of `answers.Answers`.
    arguments : tuple
    outcome : dict
    """

    name: str
    arguments: tuple
    outcome: dict


class Learner:
    """Somebody's answers: functions to call, values to read.

    Attributes
    ----------
    seconds : float
        Time limit of one operation, where there can be one.
    record : list of Operation
        Everything asked so far: what a diagnosis looks at.
    """

    def __init__(self):
        self.seconds = 5.0
        self.record = []

    def call(self, name, *args, **kwargs):
        """Call a function or class that the learner wrote.

        Parameters
        ----------
        name : str
            The name that the answer binds. A dotted name calls a library where the learner's
            code runs, to make there what an answer takes and what cannot travel:
            ``learner.call("torch.nn.RNN", 3, 4)`` returns the handle of a cell.
        *args, **kwargs
            Values that `wire` can send, and handles. The learner's code gets copies.

        Returns
        -------
        object
            A copy of the result; a `wire.Handle` for an object that cannot travel.

        Raises
        ------
        LearnerError
        """
        return self.run(name, *args, **kwargs)["value"]

    def run(self, name, *args, **kwargs):
        """Call as `call` does; return the whole outcome.

        Returns
        -------
        dict
            ``value``, and ``arguments``: the positional arguments as the call left them.
        """
        return {"arguments": [], **_or_raise(self.operate("call", name, list(args), kwargs))}

    def measure(self, name, *args, **kwargs):
        """Call as `call` does and measure the peak of the memory that NumPy and Python allocate.

        The count is made where the learner's code runs, and code that sets out to can falsify
        it: forbid ``tracemalloc`` in a question that asks for memory.

        Returns
        -------
        value : object
        peak_bytes : int
            The most that was allocated at one time beyond what was there before the call.
        """
        outcome = _or_raise(self.operate("measure", name, list(args), kwargs))
        if (measured := measured_in(outcome)) is None:
            raise LearnerError({"kind": "crashed", "message": "it sent no measurement"})
        return measured

    def method(self, handle, name, *args, **kwargs):
        """Call a method of an object that stayed with the learner's code."""
        return _or_raise(self.operate("call", [handle, name], list(args), kwargs))["value"]

    def step(self, module, *args, upstream=None, **options):
        """Run a torch module that stayed with the learner's code forward, and backward.

        Parameters
        ----------
        module : wire.Handle
        *args
            Of its call.
        upstream : list of torch.Tensor, optional
            The gradient of each output, None for an output without one. Without ``upstream``
            there is no backward pass.
        **options
            ``state``: a state dict to load first; ``training``: mode (False); ``kwargs`` of the
            call.

        Returns
        -------
        dict
            ``output``; ``gradients`` by parameter name, None where a parameter got none;
            ``input_gradients`` in the order of ``args``.
        """
        return _or_raise(self.operate("step", module, list(args), upstream, options))["value"]

    def value(self, name):
        """Return a copy of a value that the learner's code bound to a name."""
        return _or_raise(self.operate("value", name))["value"]

    def attribute(self, handle, name):
        """Return a copy of an attribute of an object that stayed with the learner's code."""
        return _or_raise(self.operate("value", [handle, name]))["value"]

    def operate(self, name, *arguments):
        """Ask for an operation, put it on record, and return its outcome."""
        arguments = wire.copy(arguments)  # neither the check nor the answer can change the record
        outcome = self._ask(name, *arguments)
        self.record.append(Operation(name, arguments, outcome))
        return outcome

    def _ask(self, name, *arguments):
        raise NotImplementedError


def measured_in(outcome):
    """Return the result and the peak in the outcome of `Learner.measure`, None if it has none."""
    found = outcome.get("value")
    if isinstance(found, dict) and found.keys() == {"result", "peak_bytes"}:
        return (found["result"], peak) if type(peak := found["peak_bytes"]) is int else None
    return None


def _or_raise(outcome):
    if "error" in outcome:
        raise LearnerError(outcome["error"])
    return outcome


class LiveLearner(Learner):
    """A learner whose code runs right here: in a notebook's kernel or in a browser.

    Parameters
    ----------
    namespace : dict
        The names that the learner's code has bound.
    """

    def __init__(self, namespace):
        super().__init__()
        self.answers = Answers(namespace)

    def _ask(self, name, *arguments):
        # the same copies that a child would see, so that no call can change a check's own arrays
        arguments = wire.copy(list(arguments))
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            outcome = getattr(self.answers, name)(*arguments)
        if outcome.get("error", {}).get("type") == "KeyboardInterrupt":
            raise KeyboardInterrupt
        return outcome
