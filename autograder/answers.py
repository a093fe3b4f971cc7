"""A learner's names: run their cells, call their functions, look at their values.

The same few operations serve the notebook (in its own kernel) and the sandbox (in a child
process). Each returns an outcome: a plain dict that `wire` can send.
"""

from __future__ import annotations

import ast
import importlib
import linecache
import traceback
import types

from . import wire

MESSAGE_LENGTH = 500  # characters of a learner's error message that are worth showing


class Answers:
    """The namespace in which a learner's code lives.

    Parameters
    ----------
    namespace : dict
        The names that the code has defined, or will define.
    """

    def __init__(self, namespace):
        self.namespace = namespace
        self.objects = {}  # what has stayed here, by the number of its handle

    def run(self, cell_id, source):
        """Run one cell as a notebook would, up to its first error.

        Parameters
        ----------
        cell_id : str
            A name for the cell, used to find the learner's own line after an error.
        source : str
            Python source (magics already translated).

        Returns
        -------
        dict
            ``{}``, or ``{"error": …}``, see `describe`.
        """
        filename = f"<cell {cell_id}>"
        linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
        try:
            code = compile(source, filename, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            result = eval(code, self.namespace)
            if isinstance(result, types.CoroutineType):  # the cell awaits something
                import asyncio

                asyncio.run(result)
        except BaseException as error:
            return {"error": describe(error)}
        return {}

    def call(self, target, args, kwargs):
        """Call a function, a class, or a method of an object that stayed here.

        Parameters
        ----------
        target : str or list
            A name, or ``[handle, method]``. A dotted name is a library's: ``"torch.nn.RNN"``.
        args : list
        kwargs : dict
            Arguments; a `wire.Handle` among them stands for its object.

        Returns
        -------
        dict
            ``{"value": …, "arguments": …}``, where ``arguments`` are the positional arguments
            as the call left them, or ``{"error": …}``.
        """
        try:
            function = self._find(target)
            args = [self._resolve(arg) for arg in args]
            value = function(*args, **{key: self._resolve(arg) for key, arg in kwargs.items()})
            return {"value": wire.copy(value, self.keep), "arguments": wire.copy(args, self.keep)}
        except BaseException as error:
            return {"error": describe(error)}

    def measure(self, target, args, kwargs):
        """Call as `call` does, and measure the memory that the call takes.

        It counts what Python and NumPy allocate (`tracemalloc`), not what PyTorch does.

        Returns
        -------
        dict
            ``value``: a dict of ``result`` and ``peak_bytes``, the most that was allocated at
            one time beyond what was there before the call.
        """
        import tracemalloc

        already = tracemalloc.is_tracing()
        try:
            function = self._find(target)
            args = [self._resolve(arg) for arg in args]
            kwargs = {key: self._resolve(arg) for key, arg in kwargs.items()}
            tracemalloc.start()
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            result = function(*args, **kwargs)
            _, peak = tracemalloc.get_traced_memory()
            found = {"result": result, "peak_bytes": peak - before}
            return {"value": wire.copy(found, self.keep)}
        except BaseException as error:
            return {"error": describe(error)}
        finally:
            if not already:
                tracemalloc.stop()

    def value(self, name):
        """Look at a name, or at an attribute of an object that stayed here: ``[handle, name]``."""
        try:
            value = self._find(name)
            if value is ...:
                raise NotImplementedError
            return {"value": wire.copy(value, self.keep)}
        except BaseException as error:
            return {"error": describe(error)}

    def step(self, handle, args, upstream, options):
        """Run a torch module forward and, where ``upstream`` is given, backward.

        Parameters
        ----------
        handle : wire.Handle
            Of an ``nn.Module``.
        args : list
            Of its call. Floating tensors get gradients.
        upstream : list of torch.Tensor or None
            The gradient of each output (None for an output without one).
        options : dict
            ``state`` (a state dict to load first), ``training`` (False), ``kwargs``.

        Returns
        -------
        dict
            ``value``: a dict of ``output``, ``gradients`` (by parameter name; None where there
            is none), ``input_gradients``.
        """
        try:
            import torch

            module = self._resolve(handle)
            if options.get("state") is not None:
                module.load_state_dict(options["state"])
            module.train(options.get("training", False))
            module.zero_grad(set_to_none=True)
            args = [
                arg.detach().clone().requires_grad_() if _is_floating(torch, arg) else arg
                for arg in args
            ]
            with torch.set_grad_enabled(upstream is not None):
                output = module(*args, **options.get("kwargs", {}))
            if upstream is not None:
                outputs = output if isinstance(output, list | tuple) else [output]
                pairs = [(o, g) for o, g in zip(outputs, upstream, strict=False) if g is not None]
                torch.autograd.backward([o for o, _ in pairs], [g for _, g in pairs])
            found = {
                "output": output,
                "gradients": {name: p.grad for name, p in module.named_parameters()},
                "input_gradients": [getattr(arg, "grad", None) for arg in args],
            }
            return {"value": wire.copy(found, self.keep)}
        except BaseException as error:
            return {"error": describe(error)}

    def keep(self, thing):
        """Hold on to an object that cannot travel and return its handle."""
        number = id(thing)
        self.objects[number] = thing
        return wire.Handle(number, type(thing).__name__)

    def _resolve(self, arg):
        return self.objects[arg.number] if isinstance(arg, wire.Handle) else arg

    def _find(self, target):
        if isinstance(target, str):
            if "." in target:  # of a library: no name of an answer has a dot
                module, _, name = target.rpartition(".")
                return getattr(importlib.import_module(module), name)
            if target not in self.namespace:
                raise Missing(f"`{target}` is not defined")
            return self.namespace[target]
        handle, name = target
        thing = self._resolve(handle)
        return getattr(thing, name) if name else thing


def _is_floating(torch, value):
    return isinstance(value, torch.Tensor) and value.is_floating_point()


class Missing(Exception):
    """The learner's code does not define the name that was asked for."""


def describe(error):
    """Say what went wrong, with the learner's own line.

    Parameters
    ----------
    error : BaseException

    Returns
    -------
    dict
        ``kind`` (``"error"``, ``"memory"``, ``"missing"`` or ``"not_attempted"``), ``type``,
        ``message``, and where in the learner's code the error came from: ``cell``, ``function``
        (or class), ``line``, ``text``.
    """
    kinds = {Missing: "missing", MemoryError: "memory", NotImplementedError: "not_attempted"}
    try:
        message = str(error)[:MESSAGE_LENGTH]
    except Exception:
        message = ""
    kind = next((kind for cls, kind in kinds.items() if isinstance(error, cls)), "error")
    if isinstance(error, RuntimeError) and "allocate memory" in message:  # how torch says it
        kind = "memory"
    found = {
        "kind": kind,
        "type": type(error).__name__,
        "message": message,
    }
    if isinstance(error, SyntaxError):
        found["message"] = str(error.msg)[:MESSAGE_LENGTH]
        places = [(error.filename or "", "", error.lineno or 0, error.text or "")]
    else:
        places = [
            (
                frame.f_code.co_filename,
                frame.f_code.co_qualname.split(".")[0],
                line,
                linecache.getline(frame.f_code.co_filename, line),
            )
            for frame, line in traceback.walk_tb(error.__traceback__)
        ]
    for filename, function, line, text in reversed(places):
        cell = _cell_of(filename)
        if cell is not None:
            found |= {"cell": cell, "function": function, "line": line}
            return found | {"text": text.strip()[:200]}
    return found


def _cell_of(filename):
    """Name the cell that a traceback's file stands for, or return None for a library's file."""
    if filename.startswith("<cell "):
        return filename[len("<cell ") : -1]
    # IPython: "/tmp/ipykernel_123/456.py" in a kernel, "<ipython-input-3-…>" in a terminal
    return "" if "ipykernel_" in filename or filename.startswith("<ipython-input") else None
