"""Values survive the journey; bytes that are no message are refused."""

import contextlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from autograder import wire

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)
ARRAYS = hnp.arrays(
    hnp.boolean_dtypes()
    | hnp.integer_dtypes()
    | hnp.floating_dtypes()
    | hnp.complex_number_dtypes(),
    hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4),
)
SETTINGS = settings(max_examples=150, derandomize=True, deadline=None)


@SETTINGS
@given(PLAIN)
def test_plain_values(value):
    assert repr(wire.copy(value)) == repr(value)


@SETTINGS
@given(ARRAYS)
def test_arrays(array):
    copied = wire.copy([array])[0]
    assert copied.dtype == array.dtype
    assert copied.shape == array.shape
    assert copied.tobytes() == array.tobytes()
    assert not np.shares_memory(copied, array)


@SETTINGS
@given(st.binary(max_size=60))
def test_bytes_that_are_no_message(data):
    with pytest.raises(wire.WireError):
        wire.decode(data)


@SETTINGS
@given(st.data())
def test_damaged_messages_end_in_a_wire_error_or_a_value(data):
    message = bytearray(wire.encode({"a": [np.arange(3.0), (1, "x")]}))
    place = data.draw(st.integers(0, len(message) - 1))
    message[place] = data.draw(st.integers(0, 255))
    # any other exception than this one would stop a whole class from being graded
    with contextlib.suppress(wire.WireError):
        wire.decode(message)


@pytest.mark.parametrize("value", [object(), np.array([None]), np.zeros(2, "V3"), {1, 2}])
def test_what_cannot_travel(value):
    with pytest.raises(wire.WireError, match="cannot be handed over"):
        wire.encode(value)


def test_what_cannot_travel_becomes_a_handle():
    copied = wire.copy([object()], keep=lambda thing: wire.Handle(7, type(thing).__name__))
    assert copied == [wire.Handle(7, "object")]


def test_nesting_has_a_limit():
    value = []
    for _ in range(100):
        value = [value]
    with pytest.raises(wire.WireError, match="nested"):
        wire.encode(value)


def test_size_has_a_limit(monkeypatch):
    monkeypatch.setattr(wire, "MAX_BYTES", 1000)
    with pytest.raises(wire.WireError, match="at most 1,000"):
        wire.encode(np.zeros(1000))


def test_named_tuples_and_parameters_are_plain_values():
    torch = pytest.importorskip("torch")
    result = wire.copy(torch.zeros(2, 3).max(dim=1))
    assert isinstance(result, tuple)
    assert result[0].shape == (2,)
    assert wire.copy(torch.zeros(2).shape) == (2,)
    assert wire.copy(torch.nn.Parameter(torch.zeros(2))).requires_grad
