"""The NumPy layer of many heads agrees with the loop oracle and with PyTorch."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from attention.in_numpy.multi_head import (
    add_head_axis,
    merge_heads,
    multi_head_attention,
    multi_head_attention_backward,
    project_backward,
    split_heads,
    unpack_in_proj,
)

from .oracle import multi_head as oracle

settings.register_profile("course", derandomize=True, deadline=None, max_examples=100)
settings.load_profile("course")

DATA = Path(__file__).resolve().parent.parent / "book" / "data"
ATOL = {np.float16: 4e-3, np.float32: 1e-5, np.float64: 1e-12}
SEEDS = st.integers(0, 2**32 - 1)
BIASES = ("b_q", "b_k", "b_v", "b_o")


@st.composite
def layer_inputs(draw, smallest=0):
    """Draw the arguments of the layer: leading axes, widths that differ, biases, a mask."""
    dtype = draw(st.sampled_from(list(ATOL)))
    rng = np.random.default_rng(draw(SEEDS))
    lead = tuple(draw(st.lists(st.integers(smallest, 3), max_size=2)))
    L, h = draw(st.integers(smallest, 4)), draw(st.integers(1, 3))
    d_model, d_k, d_v, d_out = (draw(st.integers(1, 4)) for _ in range(4))
    shapes = {"W_q": (d_model, h * d_k), "W_k": (d_model, h * d_k)}
    shapes |= {"W_v": (d_model, h * d_v), "W_o": (h * d_v, d_out)}
    arrays = {"X": rng.normal(size=(*lead, L, d_model)).astype(dtype)}
    for name, (d_in, width) in shapes.items():
        arrays[name] = (rng.normal(size=(d_in, width)) / d_in**0.5).astype(dtype)
        if draw(st.booleans()):
            arrays[name.replace("W", "b")] = rng.normal(size=width).astype(dtype)
    mask = None
    if draw(st.booleans()):
        full = draw(st.sampled_from([(*lead, L, L), (*lead, h, L, L)]))
        keep = draw(st.lists(st.booleans(), min_size=len(full), max_size=len(full)))
        shape = tuple(n if kept else 1 for n, kept in zip(full, keep, strict=True))
        if len(full) == len(lead) + 2 and draw(st.booleans()):
            shape = shape[-2:]
        mask = rng.random(shape) < draw(st.sampled_from([0.0, 0.4, 0.9]))
    return arrays, h, mask


# --- splitting and merging -------------------------------------------------------------------


@given(
    lead=st.lists(st.integers(0, 3), max_size=3),
    L=st.integers(0, 4),
    h=st.integers(1, 4),
    d=st.integers(0, 3),
    dtype=st.sampled_from([np.float16, np.float32, np.float64, np.int64, bool, np.complex128]),
    seed=SEEDS,
)
def test_splitting_and_merging_are_the_oracles(lead, L, h, d, dtype, seed):
    x = np.random.default_rng(seed).integers(-50, 50, size=(*lead, L, h * d)).astype(dtype)
    heads = split_heads(x, h)
    assert heads.dtype == dtype
    assert heads.shape == (*lead, h, L, d)
    np.testing.assert_array_equal(heads, oracle.split_heads(x, h))
    merged = merge_heads(heads)
    assert merged.dtype == dtype
    np.testing.assert_array_equal(merged, x)
    np.testing.assert_array_equal(merged, oracle.merge_heads(heads))


def test_splitting_takes_lists_and_numpys_integers():
    assert split_heads([[1, 2, 3, 4]], np.int64(2)).tolist() == [[[1, 2]], [[3, 4]]]
    assert merge_heads([[[1, 2]], [[3, 4]]]).tolist() == [[1, 2, 3, 4]]


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (split_heads, (np.arange(4.0), 2), r"x: expected at least 2 axes .*got shape \(4,\)"),
        (split_heads, (np.zeros((3, 6)), 4), "num_heads: expected a divisor of 6, .* x, got 4"),
        (split_heads, (np.zeros((3, 6)), 0), "num_heads: expected a positive integer, got 0"),
        (split_heads, (np.zeros((3, 6)), -2), "num_heads: expected a positive integer, got -2"),
        (split_heads, (np.zeros((3, 6)), 2.0), r"num_heads: expected a positive .* got 2\.0"),
        (merge_heads, (np.zeros((3, 6)),), r"x: expected at least 3 axes .*got shape \(3, 6\)"),
    ],
)
def test_splitting_and_merging_say_what_is_wrong(function, arguments, message):
    with pytest.raises(ValueError, match=message):
        function(*arguments)


# --- the layer -------------------------------------------------------------------------------


@given(inputs=layer_inputs())
def test_the_layer_is_the_oracles(inputs):
    arrays, h, mask = inputs
    before = {name: array.copy() for name, array in arrays.items()}
    output, weights = multi_head_attention(**arrays, num_heads=h, mask=mask)
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, before[name])
    dtype = arrays["X"].dtype.type
    assert output.dtype == weights.dtype == dtype
    expected_output, expected_weights = oracle.multi_head_attention(
        **arrays, num_heads=h, mask=mask
    )
    assert output.shape == expected_output.shape
    assert weights.shape == expected_weights.shape
    atol = ATOL[dtype]
    np.testing.assert_allclose(weights, expected_weights, rtol=0, atol=atol)
    np.testing.assert_allclose(output, expected_output, rtol=atol, atol=4 * atol)


@given(inputs=layer_inputs(), seed=SEEDS)
def test_the_gradients_are_the_oracles(inputs, seed):
    arrays, h, mask = inputs
    dtype = arrays["X"].dtype.type
    output, weights = multi_head_attention(**arrays, num_heads=h, mask=mask)
    doutput = np.random.default_rng(seed).normal(size=output.shape).astype(dtype)
    before = [a.copy() for a in (doutput, weights, *arrays.values())]
    dX, gradients = multi_head_attention_backward(doutput, **arrays, num_heads=h, weights=weights)
    for array, copy in zip((doutput, weights, *arrays.values()), before, strict=True):
        np.testing.assert_array_equal(array, copy)
    expected_dX, expected = oracle.multi_head_attention_backward(
        doutput, **arrays, num_heads=h, weights=weights
    )
    assert set(gradients) == {f"{kind}_{letter}" for kind in "Wb" for letter in "qkvo"}
    # The weights that went in are rounded, so a half-precision gradient is compared loosely.
    bound = {np.float16: 0.02, np.float32: 1e-4, np.float64: 1e-11}[dtype]
    for name, wanted in {"X": expected_dX, **expected}.items():
        gradient = dX if name == "X" else gradients[name]
        assert gradient.dtype == dtype
        assert gradient.shape == wanted.shape
        np.testing.assert_allclose(gradient, wanted, rtol=bound, atol=bound)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("num_heads", [1, 3, 4])
def test_output_weights_and_gradients_are_those_of_pytorchs_layer(dtype, num_heads):
    torch.manual_seed(num_heads)
    theirs = nn.MultiheadAttention(
        12, num_heads, batch_first=True, dtype=torch.from_numpy(np.zeros(1, dtype)).dtype
    )
    nn.init.normal_(theirs.in_proj_bias)
    nn.init.normal_(theirs.out_proj.bias)
    x = torch.randn(2, 5, 12, dtype=theirs.in_proj_weight.dtype, requires_grad=True)
    doutput = torch.randn_like(x)
    mask = (torch.rand(2, 5, 5) < 0.6) | torch.eye(5, dtype=torch.bool)
    expected, expected_weights = theirs(
        x, x, x, attn_mask=~mask.repeat_interleave(num_heads, 0), average_attn_weights=False
    )
    expected.backward(doutput)

    state = {name: tensor.numpy() for name, tensor in theirs.state_dict().items()}
    matrices = unpack_in_proj(state["in_proj_weight"], state["out_proj.weight"])
    biases = [*np.split(state["in_proj_bias"], 3), state["out_proj.bias"]]
    biases = dict(zip(BIASES, biases, strict=True))
    arguments = (x.detach().numpy(), *matrices, num_heads)
    output, weights = multi_head_attention(*arguments, mask.numpy(), **biases)
    dX, gradients = multi_head_attention_backward(doutput.numpy(), *arguments, weights, **biases)
    pairs = [(output, expected), (weights, expected_weights), (dX, x.grad)]
    matrices = unpack_in_proj(theirs.in_proj_weight.grad, theirs.out_proj.weight.grad)
    pairs += [(gradients[f"W_{c}"], torch.tensor(W)) for c, W in zip("qkvo", matrices, strict=True)]
    parts = [*theirs.in_proj_bias.grad.split(12), theirs.out_proj.bias.grad]
    pairs += [(gradients[f"b_{c}"], b) for c, b in zip("qkvo", parts, strict=True)]
    assert len(pairs) == 11
    bound = 500 * np.finfo(dtype).eps
    for ours, wanted in pairs:
        assert ours.dtype == dtype
        np.testing.assert_allclose(ours, wanted.detach().numpy(), rtol=bound, atol=bound)


def random_layer(d_model=4, h=2, seed=1, B=2, L=3):
    rng = np.random.default_rng(seed)
    arrays = {"X": rng.normal(size=(B, L, d_model))}
    for name in ("W_q", "W_k", "W_v", "W_o"):
        arrays[name] = rng.normal(size=(d_model, d_model))
    return arrays, h, rng


def test_a_mask_of_three_axes_is_one_for_each_sequence_even_where_batch_equals_heads():
    arrays, h, _ = random_layer(B=2, h=2)
    mask = np.array([[[True, True, True]] * 3, [[True, False, False]] * 3])  # (B, L, L)
    _, weights = multi_head_attention(**arrays, num_heads=h, mask=mask)
    assert (weights[0] > 0).all()
    assert not weights[1, :, :, 1:].any()
    np.testing.assert_array_equal(weights[1, :, :, 0], 1)


def test_a_mask_with_an_axis_for_the_heads_switches_single_heads_off():
    arrays, h, _ = random_layer(d_model=6, h=3)
    mask = np.array([True, False, True]).reshape(1, 3, 1, 1)
    output, weights = multi_head_attention(**arrays, num_heads=h, mask=mask)
    assert not weights[:, 1].any()
    others = arrays | {"W_v": arrays["W_v"].copy()}
    others["W_v"][:, 2:4] = 0  # the second head brings nothing
    expected, _ = multi_head_attention(**others, num_heads=h)
    np.testing.assert_allclose(output, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("shape", "num_axes", "expected"),
    [
        ((5,), 3, (5,)),
        ((5, 5), 2, (5, 5)),
        ((5, 5), 3, (5, 5)),
        ((3, 5, 5), 2, (3, 5, 5)),
        ((2, 5, 5), 3, (2, 1, 5, 5)),
        ((2, 1, 5), 3, (2, 1, 1, 5)),
        ((2, 1, 1, 5), 3, (2, 1, 1, 5)),
        ((2, 5, 5), 4, (2, 1, 5, 5)),
        ((6, 2, 5, 5), 4, (6, 2, 1, 5, 5)),
    ],
)
def test_the_axis_for_the_heads_is_put_where_it_is_missing(shape, num_axes, expected):
    assert add_head_axis(np.zeros(shape, dtype=bool), num_axes).shape == expected


def test_a_query_with_no_allowed_key_gives_the_bias_and_gradient_zero():
    arrays, h, rng = random_layer(seed=2)
    b_o = rng.normal(size=4)
    mask = np.ones((2, 3, 3), dtype=bool)
    mask[1, 2] = False
    mask[1, :, 2] = False  # and nobody reads it
    output, weights = multi_head_attention(**arrays, num_heads=h, mask=mask, b_o=b_o)
    assert not weights[1, :, 2].any()
    np.testing.assert_array_equal(output[1, 2], b_o)
    dX, _ = multi_head_attention_backward(
        rng.normal(size=output.shape), **arrays, num_heads=h, weights=weights, b_o=b_o
    )
    assert not dX[1, 2].any()
    assert dX[1, :2].all()


def test_the_bias_of_the_keys_has_no_effect():
    arrays, h, rng = random_layer(seed=3)
    b_k = 3 * rng.normal(size=4)
    output, weights = multi_head_attention(**arrays, num_heads=h, b_k=b_k)
    plain, _ = multi_head_attention(**arrays, num_heads=h)
    np.testing.assert_allclose(output, plain, rtol=1e-10, atol=1e-10)
    doutput = rng.normal(size=output.shape)
    _, gradients = multi_head_attention_backward(
        doutput, **arrays, num_heads=h, weights=weights, b_k=b_k
    )
    assert np.abs(gradients["b_k"]).max() < 1e-12 < np.abs(gradients["b_q"]).min()


def test_half_precision_survives_values_beyond_its_range_on_the_way():
    X = np.array([[200.0, -100.0], [150.0, 50.0]], dtype=np.float16)
    W_q = np.array([[0.01, 0.0], [0.0, -0.02]], dtype=np.float16)
    W_v = np.array([[500.0, 400.0], [-300.0, 600.0]], dtype=np.float16)  # X W_v is beyond 65504
    W_o = np.array([[0.001, 0.0], [0.0, 0.002]], dtype=np.float16)
    assert np.abs(X.astype(float) @ W_v).max() > np.finfo(np.float16).max
    output, _ = multi_head_attention(X, W_q, W_q, W_v, W_o, 2)
    expected, _ = oracle.multi_head_attention(X, W_q, W_q, W_v, W_o, 2)
    assert output.dtype == np.float16
    np.testing.assert_allclose(output, expected, rtol=1e-3)


def test_integers_are_taken_as_floats():
    rng = np.random.default_rng(4)
    shapes = [(3, 4), (4, 4), (4, 4), (4, 6), (6, 5)]
    arrays = [rng.integers(-2, 3, size=shape) for shape in shapes]
    output, weights = multi_head_attention(*arrays, 2)
    assert output.dtype == weights.dtype == np.float64
    expected, _ = oracle.multi_head_attention(*arrays, 2)
    np.testing.assert_allclose(output, expected, rtol=1e-12, atol=1e-12)


def test_gradients_of_a_projection_are_those_of_autograd():
    rng = np.random.default_rng(5)
    x, W, dy = (rng.normal(size=shape) for shape in [(2, 3, 4), (4, 5), (2, 3, 5)])
    tensors = [torch.tensor(a, requires_grad=True) for a in (x, W, np.zeros(5))]
    (tensors[0] @ tensors[1] + tensors[2]).backward(torch.tensor(dy))
    for gradient, tensor in zip(project_backward(dy, x, W), tensors, strict=True):
        np.testing.assert_allclose(gradient, tensor.grad.numpy(), rtol=1e-12, atol=1e-12)


GOOD = {"X": (2, 3, 4), "W_q": (4, 6), "W_k": (4, 6), "W_v": (4, 9), "W_o": (9, 5)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"X": (4,)}, r"X: expected at least 2 axes \(\.\.\., L, d_model\), got shape \(4,\)"),
        ({"W_q": (5, 6)}, r"W_q: expected shape \(4, 6\), got \(5, 6\)"),
        ({"W_q": (2, 4, 6)}, r"W_q: expected a matrix \(d_in, d_out\), got shape \(2, 4, 6\)"),
        ({"W_k": (4, 9)}, r"W_k: expected shape \(4, 6\), got \(4, 9\)"),
        ({"W_v": (3, 9)}, r"W_v: expected shape \(4, 9\), got \(3, 9\)"),
        ({"W_o": (6, 5)}, r"W_o: expected shape \(9, 5\), got \(6, 5\)"),
        ({"W_q": (4, 7), "W_k": (4, 7)}, "num_heads: expected a divisor of 7, .* W_q, got 3"),
        ({"W_v": (4, 8), "W_o": (8, 5)}, "num_heads: expected a divisor of 8, .* W_v, got 3"),
        ({"b_q": (9,)}, r"b_q: expected shape \(6,\), got \(9,\)"),
        ({"b_o": (1, 5)}, r"b_o: expected shape \(5,\), got \(1, 5\)"),
    ],
)
def test_the_layer_says_what_is_wrong_with_its_input(change, message):
    rng = np.random.default_rng(6)
    arrays = {name: rng.normal(size=shape) for name, shape in (GOOD | change).items()}
    with pytest.raises(ValueError, match=message):
        multi_head_attention(**arrays, num_heads=3)


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (np.eye(3), "mask: expected booleans"),
        (np.zeros((3, 3, 3), dtype=bool), r"mask: .*\(2, 3, 3, 3\), got \(3, 1, 3, 3\)"),
        (np.zeros((2, 2, 3, 3), dtype=bool), r"mask: .*\(2, 3, 3, 3\), got \(2, 2, 3, 3\)"),
    ],
)
def test_a_mask_that_does_not_fit_is_refused(mask, message):
    rng = np.random.default_rng(7)
    arrays = {name: rng.normal(size=shape) for name, shape in GOOD.items()}
    with pytest.raises(ValueError, match=message):
        multi_head_attention(**arrays, num_heads=3, mask=mask)


def test_backward_says_what_is_wrong_with_its_input():
    rng = np.random.default_rng(8)
    arrays = {name: rng.normal(size=shape) for name, shape in GOOD.items()}
    output, weights = multi_head_attention(**arrays, num_heads=3)
    with pytest.raises(ValueError, match=r"doutput: expected shape \(2, 3, 5\), got \(3, 5\)"):
        multi_head_attention_backward(output[0], **arrays, num_heads=3, weights=weights)
    with pytest.raises(
        ValueError, match=r"weights: expected shape \(2, 3, 3, 3\), got \(3, 3, 3\)"
    ):
        multi_head_attention_backward(output, **arrays, num_heads=3, weights=weights[0])


# --- PyTorch's weights -----------------------------------------------------------------------


def test_unpacking_is_the_oracles_and_copies():
    rng = np.random.default_rng(9)
    in_proj, out_proj = rng.normal(size=(12, 4)).astype(np.float32), rng.normal(size=(4, 4))
    matrices = unpack_in_proj(in_proj, out_proj)
    for W, expected in zip(matrices, oracle.unpack_in_proj(in_proj, out_proj), strict=True):
        np.testing.assert_allclose(W, expected, rtol=1e-6)
        assert not np.shares_memory(W, in_proj)
        assert not np.shares_memory(W, out_proj)
    assert matrices[0].dtype == np.float32


@pytest.mark.parametrize(
    ("in_proj", "out_proj", "message"),
    [
        ((4, 12), (4, 4), r"in_proj_weight: expected shape \(36, 12\), got \(4, 12\)"),
        ((12, 4), (4, 5), r"out_proj_weight: expected shape \(4, 4\), got \(4, 5\)"),
        ((12,), (4, 4), r"in_proj_weight: expected shape"),
    ],
)
def test_unpacking_refuses_other_shapes(in_proj, out_proj, message):
    with pytest.raises(ValueError, match=message):
        unpack_in_proj(np.zeros(in_proj), np.zeros(out_proj))


# --- the data of the chapter -----------------------------------------------------------------


def test_the_experiment_shows_what_the_chapter_says():
    result = json.loads((DATA / "two_places.json").read_text())
    errors = {name: np.array(five) for name, five in result["errors"].items()}
    assert all(len(five) == 5 for five in errors.values())
    assert 0.4 < errors["1 head"].min() <= errors["1 head"].max() < 0.51
    assert errors["2 heads"].max() < 0.005
    assert errors["4 heads"].max() < 0.005
    assert 0.1 < errors["1 head, twice"].min() <= errors["1 head, twice"].max() < 0.25
    places = np.arange(8)
    heads = np.array(result["maps"]["2 heads"]["after"])
    before = heads[:, places, places - 1].mean(axis=-1)
    after = heads[:, places, (places + 1) % 8].mean(axis=-1)
    assert sorted(before > 0.7) == sorted(after > 0.7) == [False, True]
    assert (before > 0.7).tolist() != (after > 0.7).tolist()


def test_the_extract_of_a_real_layer_is_small_and_has_a_head_for_the_previous_token():
    path = DATA / "minilm_layer.npz"
    assert path.stat().st_size < 250_000
    data = np.load(path)
    assert data["lengths"].sum() == len(data["tokens"]) == len(data["Q"]) == len(data["K"])
    ends = np.cumsum(data["lengths"])[:-1]
    for tokens, Q, K in zip(*(np.split(data[n], ends) for n in ("tokens", "Q", "K")), strict=True):
        assert (tokens[0], tokens[-1]) == ("[CLS]", "[SEP]")
        Q, K = (oracle.split_heads(a.astype(float), int(data["num_heads"])) for a in (Q, K))
        weights = torch.softmax(torch.tensor(Q @ K.swapaxes(-1, -2) / 32**0.5), dim=-1).numpy()
        word = np.arange(1, len(tokens) - 1)
        measured = weights[:, word, word - 1].mean(axis=-1)
        assert measured.argmax() == 2
        assert measured[2] > 0.95
        assert np.delete(measured, 2).max() < 0.6


def test_numpy_runs_where_there_is_no_pytorch():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import attention.in_numpy.multi_head\n"
        "assert not any(name.startswith('torch.') for name in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
