"""Values as bytes: how arguments travel to a learner's process and results come back.

A message is one JSON header, then the raw bytes of the arrays it speaks of. Reading a message
builds numbers, strings, containers, arrays and tensors, and nothing else: unlike a pickle, it
cannot run code. What cannot travel (a module, a generator) stays where it is and is sent as a
`Handle`.
"""

from __future__ import annotations

import json
import struct
import sys
from dataclasses import dataclass

import numpy as np

ARRAY_KINDS = "biufcU"  # booleans, integers, floats, complex numbers, fixed-length strings
MAX_DEPTH = 40
MAX_BYTES = 1 << 28  # of one message


class WireError(Exception):
    """A value that cannot be sent, or bytes that are no message."""


@dataclass(frozen=True)
class Handle:
    """An object that stays in the learner's process: its number there and the name of its type."""

    number: int
    type: str


def encode(value, keep=None):
    """Turn a value into bytes.

    Parameters
    ----------
    value : object
        None, numbers, strings, lists, tuples, dicts, NumPy arrays, torch tensors, handles.
    keep : callable, optional
        Called with each object of another kind; returns the `Handle` to send in its place.

    Returns
    -------
    bytes

    Raises
    ------
    WireError
        If the value is too large or nested too deeply, or `keep` is missing where it is needed.
    """
    buffers = []
    tree = _pack(value, buffers, keep, depth=0)
    header = json.dumps({"value": tree, "sizes": [len(b) for b in buffers]}).encode()
    _check_size(len(header) + sum(map(len, buffers)))
    return b"".join([struct.pack("!I", len(header)), header, *buffers])


def decode(data):
    """Turn the bytes of `encode` back into a value.

    Parameters
    ----------
    data : bytes-like

    Returns
    -------
    object

    Raises
    ------
    WireError
        If the bytes are not a message.
    """
    try:
        data = memoryview(data)
        (length,) = struct.unpack_from("!I", data)
        header = json.loads(bytes(data[4 : 4 + length]))
        buffers, start = [], 4 + length
        for size in header["sizes"]:
            if not 0 <= size <= len(data) - start:
                raise WireError("a buffer is longer than the message")
            buffers.append(data[start : start + size])
            start += size
        return _unpack(header["value"], buffers, depth=0)
    except WireError:
        raise
    except Exception as error:  # whatever malformed bytes may cause
        raise WireError(f"not a message: {type(error).__name__}: {error}") from None


def copy(value, keep=None):
    """Return the value as the other side would see it, sharing no memory with the original."""
    buffers = []
    tree = _pack(value, buffers, keep, depth=0)
    _check_size(sum(map(len, buffers)))
    return _unpack(tree, buffers, depth=0)


def _check_size(total):
    if total > MAX_BYTES:
        raise WireError(f"the value has {total:,} bytes; at most {MAX_BYTES:,} can be handed over")


def _pack(value, buffers, keep, depth):
    if depth > MAX_DEPTH:
        raise WireError(f"the value is nested deeper than {MAX_DEPTH} levels")
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, Handle):
        return {"handle": [value.number, value.type]}
    if isinstance(value, list | tuple):  # a named tuple is as good as a tuple
        items = [_pack(item, buffers, keep, depth + 1) for item in value]
        return {"list" if isinstance(value, list) else "tuple": items}
    if isinstance(value, dict):
        return {
            "dict": [
                [_pack(part, buffers, keep, depth + 1) for part in item] for item in value.items()
            ]
        }
    if isinstance(value, np.dtype):
        return {"dtype": value.str}
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in ARRAY_KINDS:
        return {"array": _pack_array(np.asarray(value), buffers), "scalar": np.isscalar(value)}
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor) and not value.is_sparse:
        return {"tensor": _pack_tensor(torch, value, buffers), "grad": value.requires_grad}
    if keep is None:
        raise WireError(f"a value of type {type(value).__name__} cannot be handed over")
    return _pack(keep(value), buffers, None, depth)


def _pack_array(array, buffers):
    buffers.append(np.ascontiguousarray(array).tobytes())
    return [array.dtype.str, list(array.shape), len(buffers) - 1]


def _pack_tensor(torch, tensor, buffers):
    name = str(tensor.dtype).removeprefix("torch.")
    plain = tensor.detach().cpu().contiguous()
    if tensor.dtype == torch.bfloat16:  # NumPy has no such type: send its bits
        plain = plain.view(torch.int16)
    return [name, *_pack_array(plain.numpy(), buffers)]


def _unpack(tree, buffers, depth):
    if depth > MAX_DEPTH:
        raise WireError(f"the value is nested deeper than {MAX_DEPTH} levels")
    if not isinstance(tree, dict):
        if isinstance(tree, list):
            raise WireError("a bare list in a message")
        return tree
    for kind, build in (("list", list), ("tuple", tuple)):
        if kind in tree:
            return build(_unpack(item, buffers, depth + 1) for item in tree[kind])
    if "dict" in tree:
        pairs = [[_unpack(part, buffers, depth + 1) for part in item] for item in tree["dict"]]
        return {key: value for key, value in pairs}
    if "handle" in tree:
        number, name = tree["handle"]
        return Handle(int(number), str(name))
    if "dtype" in tree:
        return _plain_dtype(tree["dtype"])
    if "array" in tree:
        array = _unpack_array(tree["array"], buffers)
        return array[()] if tree.get("scalar") else array
    if "tensor" in tree:
        import torch

        name, *rest = tree["tensor"]
        tensor = torch.from_numpy(_unpack_array(rest, buffers))
        if name == "bfloat16":
            tensor = tensor.view(torch.bfloat16)
        return tensor.requires_grad_() if tree.get("grad") else tensor
    raise WireError(f"an unknown kind of value: {sorted(tree)}")


def _plain_dtype(name):
    dtype = np.dtype(name)
    if dtype.kind not in ARRAY_KINDS:
        raise WireError(f"arrays of type {name} are not handed over")
    return dtype


def _unpack_array(description, buffers):
    name, shape, index = description
    array = np.frombuffer(buffers[index], dtype=_plain_dtype(name))
    return array.reshape(shape).copy()


def send(sock, message):
    """Send one encoded message through a stream socket."""
    sock.sendall(struct.pack("!Q", len(message)) + message)


def receive(read):
    """Read one encoded message.

    Parameters
    ----------
    read : callable
        ``read(n)`` returns exactly ``n`` bytes or raises `EOFError`.

    Returns
    -------
    bytes

    Raises
    ------
    EOFError
        If the other side has gone.
    WireError
        If the message is larger than `MAX_BYTES`.
    """
    (length,) = struct.unpack("!Q", read(8))
    if length > MAX_BYTES + (1 << 20):
        raise WireError(f"a result of {length:,} bytes; at most {MAX_BYTES:,} can be handed over")
    return read(length)
