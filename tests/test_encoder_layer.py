"""The NumPy library agrees with the loop oracle, with finite differences and with PyTorch."""

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from attention.in_numpy.encoder_layer import (
    WEIGHTS,
    dropout,
    encoder,
    encoder_backward,
    encoder_layer,
    encoder_layer_backward,
    feed_forward,
    feed_forward_backward,
    init_encoder_layer,
    layer_norm,
    layer_norm_backward,
    positional_encoding,
)
from attention.in_numpy.training import (
    Adam,
    batches,
    classifier_gradients,
    classify,
    cross_entropy,
    init_classifier,
    stratified_split,
    warmup_cosine,
)

from .oracle import encoder_layer as oracle

settings.register_profile("course", derandomize=True, deadline=None, max_examples=100)
settings.load_profile("course")

ATOL = {np.float16: 8e-3, np.float32: 2e-5, np.float64: 1e-12}
FLOATING = st.sampled_from(list(ATOL))
SEEDS = st.integers(0, 2**32 - 1)
SHAPES = hnp.array_shapes(min_dims=1, max_dims=4, min_side=1, max_side=6)


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def numerical_gradient(loss, array, step=1e-6):
    """Gradient of a number with respect to each entry of `array`, by central differences."""
    gradient = np.zeros(array.shape)
    for index in np.ndindex(array.shape):
        up, down = array.copy(), array.copy()
        up[index] += step
        down[index] -= step
        gradient[index] = (loss(up) - loss(down)) / (2 * step)
    return gradient


# --- layer norm ------------------------------------------------------------------------------


@given(shape=SHAPES, dtype=FLOATING, spread=st.sampled_from([1e-3, 1.0, 100.0]), seed=SEEDS)
def test_layer_norm_and_its_backward_are_the_oracles(shape, dtype, spread, seed):
    rng = np.random.default_rng(seed)
    x = (spread * rng.normal(size=shape) + 0.5).astype(dtype)
    dy = rng.normal(size=shape).astype(dtype)
    gamma, beta = rng.normal(size=(2, shape[-1])).astype(dtype)
    before = [a.copy() for a in (x, dy, gamma, beta)]
    y = layer_norm(x, gamma, beta)
    gradients = layer_norm_backward(dy, x, gamma)
    for array, copy in zip((x, dy, gamma, beta), before, strict=True):
        np.testing.assert_array_equal(array, copy)
    assert y.dtype == dtype
    assert y.shape == x.shape
    # centering loses the digits that the mean takes: 0.5 against the spread, and eps bounds it
    lost = max(1, 1 / max(spread, 3e-3)) if dtype == np.float32 else 1
    np.testing.assert_allclose(y, oracle.layer_norm(x, gamma, beta), atol=ATOL[dtype] * lost)
    expected = oracle.layer_norm_backward(dy, x, gamma)
    for gradient, wanted in zip(gradients, expected, strict=True):
        assert gradient.dtype == dtype
        assert gradient.shape == wanted.shape
        largest = max(1, np.abs(wanted).max())
        np.testing.assert_allclose(gradient, wanted, rtol=1e-3, atol=ATOL[dtype] * lost * largest)


def test_layer_norm_of_equal_numbers_is_beta_and_has_a_finite_gradient():
    x = np.array([[2.0, 2.0, 2.0], [1.0, -4.0, 0.5]])
    gamma, beta = np.array([3.0, -1.0, 2.0]), np.array([0.5, -2.0, 1.0])
    np.testing.assert_array_equal(layer_norm(x, gamma, beta)[0], beta)
    dx, _, _ = layer_norm_backward(normal(2, 3), x, gamma)
    assert np.isfinite(dx).all()
    np.testing.assert_allclose(dx.sum(axis=-1), 0, atol=1e-9)


@pytest.mark.parametrize("eps", [1e-5, 0.3])
def test_layer_norm_backward_is_that_of_finite_differences(eps):
    x, dy, gamma, beta = normal(2, 3, 5), normal(2, 3, 5, seed=1), normal(5), normal(5, seed=2)
    dx, dgamma, dbeta = layer_norm_backward(dy, x, gamma, eps)
    for gradient, array, loss in (
        (dx, x, lambda a: (layer_norm(a, gamma, beta, eps) * dy).sum()),
        (dgamma, gamma, lambda a: (layer_norm(x, a, beta, eps) * dy).sum()),
        (dbeta, beta, lambda a: (layer_norm(x, gamma, a, eps) * dy).sum()),
    ):
        np.testing.assert_allclose(gradient, numerical_gradient(loss, array), atol=1e-7)


def test_integers_become_float64_and_zero_length_axes_are_kept():
    x = np.array([[2, 0, 1, 0], [0, 1, 1, 5]])
    gamma, beta = np.array([1, 2, 3, 4]), np.array([0, 1, 0, -1])
    y = layer_norm(x, gamma, beta)
    assert y.dtype == np.float64
    np.testing.assert_allclose(y, oracle.layer_norm(x, gamma, beta), rtol=1e-12)
    assert layer_norm(np.zeros((0, 4)), gamma, beta).shape == (0, 4)


# --- feed-forward ----------------------------------------------------------------------------

FEED_FORWARD = {
    "W1": normal(4, 7, seed=1),
    "b1": normal(7, seed=2),
    "W2": normal(7, 5, seed=3),
    "b2": normal(5, seed=4),
}


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("dtype", ATOL)
@pytest.mark.parametrize("lead", [(), (3,), (2, 3), (0,)])
def test_feed_forward_is_the_oracles(activation, dtype, lead):
    x = normal(*lead, 4).astype(dtype)
    weights = {name: array.astype(dtype) for name, array in FEED_FORWARD.items()}
    y = feed_forward(x, **weights, activation=activation)
    assert y.dtype == dtype
    expected = oracle.feed_forward(x, **weights, activation=activation)
    assert y.shape == expected.shape
    np.testing.assert_allclose(y, expected, rtol=1e-3, atol=2 * ATOL[dtype])


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("lead", [(), (3,), (2, 3)])
def test_feed_forward_backward_is_autograds_and_that_of_finite_differences(activation, lead):
    x, dy = normal(*lead, 4), normal(*lead, 5, seed=6)
    dx, gradients = feed_forward_backward(dy, x, **FEED_FORWARD, activation=activation)
    arrays = {"x": x, **FEED_FORWARD}
    tensors = {name: torch.tensor(a, requires_grad=True) for name, a in arrays.items()}
    hidden = getattr(F, activation)(tensors["x"] @ tensors["W1"] + tensors["b1"])
    (hidden @ tensors["W2"] + tensors["b2"]).backward(torch.tensor(dy))
    for name, gradient in {"x": dx, **gradients}.items():
        assert gradient.shape == arrays[name].shape
        np.testing.assert_allclose(gradient, tensors[name].grad.numpy(), atol=1e-11)

        def loss(array, name=name):
            return (feed_forward(**arrays | {name: array}, activation=activation) * dy).sum()

        np.testing.assert_allclose(gradient, numerical_gradient(loss, arrays[name]), atol=1e-7)


# --- dropout, positions ----------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ATOL)
def test_dropout_drops_a_share_and_keeps_the_expected_value(dtype):
    x = normal(200, 100).astype(dtype)
    before = x.copy()
    y = dropout(x, 0.25, rng=np.random.default_rng(3))
    np.testing.assert_array_equal(x, before)
    assert y.dtype == dtype
    assert abs((y == 0).mean() - 0.25) < 0.02
    stays = y != 0
    np.testing.assert_allclose(y[stays], x[stays] / 0.75, rtol=2e-3)
    # each number on its own: neither whole rows nor whole columns fall
    assert (y == 0).sum(axis=0).min() > 0
    assert (y == 0).sum(axis=1).max() < 100


def test_dropout_leaves_everything_in_evaluation_and_at_p_0_and_nothing_at_p_1():
    x = normal(5, 6)
    for y in (dropout(x, 0.5, training=False), dropout(x, 0)):
        np.testing.assert_array_equal(y, x)
        assert not np.shares_memory(x, y)
    np.testing.assert_array_equal(dropout(x, 1), np.zeros((5, 6)))
    assert (dropout(x, 0.5) == 0).any()


def test_dropout_of_the_gradient_with_the_same_rng_is_its_backward():
    x, dy = normal(4, 5), normal(4, 5, seed=1)
    dx = dropout(dy, 0.4, rng=np.random.default_rng(7))

    def loss(array):
        return (dropout(array, 0.4, rng=np.random.default_rng(7)) * dy).sum()

    np.testing.assert_allclose(dx, numerical_gradient(loss, x), atol=1e-8)


@pytest.mark.parametrize(("L", "d_model"), [(1, 1), (9, 2), (20, 7), (33, 8), (0, 4)])
def test_positional_encoding_is_the_oracles(L, d_model):
    expected = oracle.positional_encoding(L, d_model)
    found = positional_encoding(L, d_model)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, atol=1e-12)


# --- the layer -------------------------------------------------------------------------------


def layer_weights(d_model=6, d_ff=10, seed=0, d_k=None, d_v=None, num_heads=3):
    """Weights in which nothing is special: no zero bias, no scale of 1."""
    rng = np.random.default_rng(seed)
    d_k, d_v = d_k or d_model // num_heads, d_v or d_model // num_heads
    shapes = {
        **{"W_q": (d_model, num_heads * d_k), "W_k": (d_model, num_heads * d_k)},
        **{"W_v": (d_model, num_heads * d_v), "W_o": (num_heads * d_v, d_model)},
        **{"W1": (d_model, d_ff), "W2": (d_ff, d_model)},
    }
    weights = {}
    for name, shape in shapes.items():
        weights[name] = rng.normal(size=shape) / math.sqrt(shape[0])
        weights[name.replace("W", "b")] = rng.normal(size=shape[1]) / 4
    for i in "12":
        weights[f"gamma{i}"] = 1 + rng.normal(size=d_model) / 4
        weights[f"beta{i}"] = rng.normal(size=d_model) / 4
    return {name: weights[name] for name in WEIGHTS}


MASKS = {
    "none": None,
    "causal": np.tri(4, dtype=bool),
    "padding": np.array([[True] * 4, [True, True, False, False]])[:, None, None],
    "empty rows": np.array([[[True] * 4] * 4, [[False] * 4] * 2 + [[True, False] * 2] * 2]),
}
every_norm = pytest.mark.parametrize("norm_first", [False, True], ids=["post", "pre"])
every_mask = pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
every_activation = pytest.mark.parametrize("activation", ["relu", "gelu"])


@every_norm
@every_mask
@every_activation
@pytest.mark.parametrize("dtype", ATOL)
def test_encoder_layer_is_the_oracles(norm_first, mask, activation, dtype):
    x = normal(2, 4, 6).astype(dtype)
    weights = {name: array.astype(dtype) for name, array in layer_weights().items()}
    before = x.copy()
    y = encoder_layer(x, weights, 3, mask, norm_first, activation=activation)
    np.testing.assert_array_equal(x, before)
    assert y.dtype == dtype
    expected = oracle.encoder_layer(x, weights, 3, mask, norm_first, activation)
    np.testing.assert_allclose(y, expected, rtol=1e-3, atol=ATOL[dtype])


@every_norm
def test_heads_may_have_widths_of_their_own_and_the_batch_any_axes(norm_first):
    weights = layer_weights(d_k=1, d_v=4)
    x = normal(2, 1, 4, 6)
    y = encoder_layer(x, weights, 3, norm_first=norm_first)
    np.testing.assert_allclose(y[1, 0], oracle.encoder_layer(x[1], weights, 3, None, norm_first)[0])
    np.testing.assert_allclose(
        encoder_layer(x[0, 0], weights, 3, norm_first=norm_first), y[0, 0], atol=1e-12
    )


def torch_layer(tensors, num_heads, mask, norm_first, activation):
    """The layer out of PyTorch's functions, for autograd: an independent second writing."""

    def norm(x, i):
        return F.layer_norm(x, x.shape[-1:], tensors[f"gamma{i}"], tensors[f"beta{i}"])

    def attend(x):
        heads = []
        for c in "qkv":
            part = x @ tensors[f"W_{c}"] + tensors[f"b_{c}"]
            heads.append(part.unflatten(-1, (num_heads, -1)).transpose(-2, -3))
        allowed = None
        if mask is not None:
            allowed = torch.tensor(mask)
            allowed = allowed[:, None] if allowed.ndim == 3 else allowed
        context = F.scaled_dot_product_attention(*heads, attn_mask=allowed)
        return context.transpose(-2, -3).flatten(-2) @ tensors["W_o"] + tensors["b_o"]

    def think(x):
        hidden = getattr(F, activation)(x @ tensors["W1"] + tensors["b1"])
        return hidden @ tensors["W2"] + tensors["b2"]

    x = tensors["x"]
    if norm_first:
        x = x + attend(norm(x, 1))
        return x + think(norm(x, 2))
    x = norm(x + attend(x), 1)
    return norm(x + think(x), 2)


@every_norm
@every_mask
@every_activation
def test_encoder_layer_backward_is_autograds(norm_first, mask, activation):
    x, dy, weights = normal(2, 4, 6), normal(2, 4, 6, seed=1), layer_weights(d_k=1, d_v=4)
    arrays = {"x": x, **weights}
    before = {name: array.copy() for name, array in arrays.items()}
    dx, gradients = encoder_layer_backward(
        dy, x, weights, 3, mask, norm_first, activation=activation
    )
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, before[name])
    assert set(gradients) == set(WEIGHTS)
    tensors = {name: torch.tensor(array, requires_grad=True) for name, array in arrays.items()}
    torch_layer(tensors, 3, mask, norm_first, activation).backward(torch.tensor(dy))
    for name, gradient in {"x": dx, **gradients}.items():
        np.testing.assert_allclose(gradient, tensors[name].grad.numpy(), atol=1e-11, err_msg=name)
        assert np.abs(gradient).max() > 1e-3 or name == "b_k"  # the bias of the keys has no effect


@every_norm
def test_encoder_layer_backward_is_that_of_finite_differences(norm_first):
    x, dy, weights = normal(3, 4), normal(3, 4, seed=1), layer_weights(4, 5, num_heads=2)
    mask = np.array([[True, False, True], [False] * 3, [True] * 3])
    arrays = {"x": x, **weights}
    dx, gradients = encoder_layer_backward(dy, x, weights, 2, mask, norm_first, activation="gelu")
    for name, gradient in {"x": dx, **gradients}.items():

        def loss(array, name=name):
            changed = arrays | {name: array}
            y = encoder_layer(changed["x"], changed, 2, mask, norm_first, activation="gelu")
            return (y * dy).sum()

        numerical = numerical_gradient(loss, arrays[name])
        np.testing.assert_allclose(gradient, numerical, atol=1e-7, err_msg=name)


@every_norm
def test_a_stack_is_layer_after_layer_and_its_backward_autograds(norm_first):
    layers = [layer_weights(seed=seed) for seed in (1, 2, 3)]
    x, dy, mask = normal(2, 4, 6), normal(2, 4, 6, seed=1), MASKS["causal"]
    y = encoder(x, layers, 3, mask, norm_first)
    dx, gradients = encoder_backward(dy, x, layers, 3, mask, norm_first)
    everything = {"x": torch.tensor(x, requires_grad=True)}
    out, stack = everything["x"], []
    for weights in layers:
        tensors = {name: torch.tensor(a, requires_grad=True) for name, a in weights.items()}
        stack.append(tensors)
        out = torch_layer({"x": out, **tensors}, 3, mask, norm_first, "relu")
    np.testing.assert_allclose(y, out.detach().numpy(), atol=1e-11)
    out.backward(torch.tensor(dy))
    np.testing.assert_allclose(dx, everything["x"].grad.numpy(), atol=1e-10)
    for of_layer, tensors in zip(gradients, stack, strict=True):
        for name, gradient in of_layer.items():
            np.testing.assert_allclose(gradient, tensors[name].grad.numpy(), atol=1e-10)


def test_reordered_tokens_give_reordered_outputs_unless_positions_are_added():
    weights, x, order = layer_weights(), normal(4, 6), [2, 0, 3, 1]
    np.testing.assert_allclose(
        encoder_layer(x[order], weights, 3), encoder_layer(x, weights, 3)[order], atol=1e-12
    )
    marked = encoder_layer(x[order] + positional_encoding(4, 6), weights, 3)
    unmoved = encoder_layer(x + positional_encoding(4, 6), weights, 3)[order]
    assert np.abs(marked - unmoved).max() > 0.1


def test_init_has_the_shapes_the_variances_and_every_name():
    weights = init_encoder_layer(64, 256, np.random.default_rng(0))
    assert set(weights) == set(WEIGHTS)
    assert weights["W1"].shape == (64, 256)
    assert weights["W2"].shape == (256, 64)
    for name, variance in {"W_q": 1 / 64, "W_o": 1 / 64, "W1": 2 / 320, "W2": 2 / 320}.items():
        np.testing.assert_allclose(weights[name].var(), variance, rtol=0.1)
    assert not np.array_equal(weights["W_q"], weights["W_k"])
    y = encoder_layer(normal(5, 64), weights, 8)
    np.testing.assert_allclose(y.mean(axis=-1), 0, atol=1e-9)


def broken(**changes):
    return {name: array for name, array in (layer_weights() | changes).items() if array is not None}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: layer_norm(normal(2, 3), normal(3), normal(4)), r"beta: .*\(3,\), got \(4,\)"),
        (lambda: layer_norm(normal(2, 3), normal(2, 3), normal(3)), r"gamma: .*\(3,\), got"),
        (lambda: layer_norm(normal(2, 0), normal(0), normal(0)), r"x: .*d_model of at least 1"),
        (lambda: layer_norm(2.0, normal(1), normal(1)), r"x: expected at least 1 axes"),
        (lambda: layer_norm_backward(normal(3), normal(2, 3), normal(3)), r"dy: expected shape"),
        (lambda: feed_forward(normal(2, 3), **FEED_FORWARD), r"W1: expected shape \(3, 7\)"),
        (
            lambda: feed_forward(normal(2, 4), **FEED_FORWARD | {"b1": normal(1)}),
            r"b1: .*\(7,\), got \(1,\)",
        ),
        (
            lambda: feed_forward(normal(2, 4), **FEED_FORWARD, activation="swish"),
            r"activation: expected 'relu' or 'gelu', got 'swish'",
        ),
        (lambda: dropout(normal(2), 1.5), r"p: expected a share from 0 to 1, got 1.5"),
        (lambda: positional_encoding(-1, 4), r"L: expected at least 0, got -1"),
        (lambda: positional_encoding(3, 0), r"d_model: expected at least 1, got 0"),
        (lambda: encoder_layer(normal(4, 6), broken(W1=None), 3), r"weights: .*missing W1"),
        (lambda: encoder_layer(normal(4, 6), broken(W2=normal(10, 5)), 3), r"W2: .*\(10, 6\)"),
        (lambda: encoder_layer(normal(4, 6), layer_weights(), 4), r"num_heads: expected a divisor"),
        (lambda: encoder_layer(normal(6), layer_weights(), 3), r"x: expected at least 2 axes"),
        (lambda: encoder_layer(normal(4, 5), layer_weights(), 3), r"W_o: expected shape \(6, 5\)"),
        (
            lambda: encoder_layer(normal(4, 6), layer_weights(), 3, np.zeros((4, 4), dtype=int)),
            r"mask: expected booleans",
        ),
        (
            lambda: encoder_layer_backward(normal(3, 6), normal(4, 6), layer_weights(), 3),
            r"dy: expected shape \(4, 6\), got \(3, 6\)",
        ),
        (lambda: cross_entropy(normal(2, 3), np.array([0, 3])), r"targets: .*from 0 to 2"),
        (lambda: cross_entropy(normal(2, 3), np.array([0.0, 1.0])), r"targets: expected integers"),
        (lambda: cross_entropy(normal(2, 3), np.array([0])), r"logits, targets: expected shapes"),
    ],
)
def test_a_wrong_argument_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# --- training --------------------------------------------------------------------------------


@pytest.mark.parametrize("spread", [1.0, 1e4])
def test_cross_entropy_and_its_gradient_are_pytorchs(spread):
    logits, targets = spread * normal(5, 4), np.array([3, 0, 0, 2, 1])
    loss, dlogits = cross_entropy(logits, targets)
    tensor = torch.tensor(logits, requires_grad=True)
    expected = F.cross_entropy(tensor, torch.tensor(targets))
    expected.backward()
    np.testing.assert_allclose(loss, expected.item(), rtol=1e-12)
    np.testing.assert_allclose(dlogits, tensor.grad.numpy(), atol=1e-12)


def test_adam_takes_the_steps_of_pytorchs():
    start = {"W": normal(3, 4), "b": normal(4, seed=1)}
    ours = {name: array.copy() for name, array in start.items()}
    theirs = {name: torch.tensor(array, requires_grad=True) for name, array in start.items()}
    options = {"lr": 0.02, "betas": (0.8, 0.95), "eps": 1e-3}
    opt, torch_opt = Adam(ours, **options), torch.optim.Adam(theirs.values(), **options)
    for step in range(7):
        gradients = {name: normal(*a.shape, seed=10 + step) for name, a in start.items()}
        for name, tensor in theirs.items():
            tensor.grad = torch.tensor(gradients[name])
        opt.lr = torch_opt.param_groups[0]["lr"] = 0.02 / (step + 1)
        opt.step(gradients)
        torch_opt.step()
    for name, tensor in theirs.items():
        np.testing.assert_allclose(ours[name], tensor.detach().numpy(), rtol=1e-12)
        assert np.abs(ours[name] - start[name]).max() > 0.01


def test_the_classifiers_gradients_are_those_of_finite_differences():
    rng = np.random.default_rng(0)
    weights = init_classifier(3, 4, 6, 5, rng)
    for array in weights.values():
        array += rng.normal(size=array.shape) / 4
    tokens, targets = normal(2, 3, 3), np.array([4, 1])
    loss, gradients = classifier_gradients(tokens, targets, weights, 2)
    assert set(gradients) == set(weights)
    assert loss == cross_entropy(classify(tokens, weights, 2), targets)[0]
    for name, array in weights.items():

        def value(changed, name=name):
            logits = classify(tokens, weights | {name: changed}, 2)
            return cross_entropy(logits, targets)[0]

        numerical = numerical_gradient(value, array)
        np.testing.assert_allclose(gradients[name], numerical, atol=1e-8, err_msg=name)


def test_batches_hold_every_row_once_an_epoch_in_a_new_order():
    drawn = list(batches(10, 4, 3, np.random.default_rng(0)))
    assert [len(rows) for rows in drawn] == [4, 4, 2] * 3
    epochs = [np.concatenate(drawn[i : i + 3]).tolist() for i in (0, 3, 6)]
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3


def test_the_split_is_fixed_and_holds_every_class_in_its_share():
    classes = np.repeat([7, 2, 5], [40, 10, 25])
    first, second = stratified_split(classes, 0.2, np.random.default_rng(0))
    assert sorted([*first, *second]) == list(range(75))
    assert {c: int((classes[second] == c).sum()) for c in (7, 2, 5)} == {7: 8, 2: 2, 5: 5}
    again = stratified_split(classes, 0.2, np.random.default_rng(0))[1]
    np.testing.assert_array_equal(second, again)


def test_the_learning_rate_rises_to_1_and_falls_to_0():
    factors = [warmup_cosine(step, 20, 5) for step in range(20)]
    np.testing.assert_allclose(factors[:6], [0.2, 0.4, 0.6, 0.8, 1.0, 1.0])
    assert all(a > b for a, b in itertools.pairwise(factors[5:]))
    assert 0 < factors[-1] < 0.02
    assert warmup_cosine(0, 20) == 1


RESULT = Path(__file__).resolve().parent.parent / "book" / "data" / "digits_numpy.json"


def test_the_committed_runs_on_digits_reach_what_the_chapter_says():
    runs = json.loads(RESULT.read_text(encoding="utf-8"))["runs"]
    assert len({run["seed"] for run in runs}) == 5
    assert np.median([run["accuracy"] for run in runs]) >= 0.97
    assert max(run["seconds"] for run in runs) <= 60


def test_the_committed_runs_are_the_scripts():
    pytest.importorskip("sklearn")
    from book.experiments import digits_numpy as script

    committed = json.loads(RESULT.read_text(encoding="utf-8"))
    s = script.SETTINGS
    assert committed["settings"] == s
    (x, y), held_out = script.load(s["held_out"])
    rng = np.random.default_rng(committed["runs"][0]["seed"])
    weights = init_classifier(8, s["d_model"], s["d_ff"], 10, rng)
    drawn = script.draw_batches(x, y, s["batch"], s["epochs"], s["dropped_pixels"], rng)
    steps = script.train(weights, drawn, s["num_heads"], s["lr"], s["warmup"])
    losses = list(itertools.islice(steps, len(drawn) // s["epochs"]))
    first = committed["runs"][0]
    np.testing.assert_allclose(np.mean(losses), first["loss"][0], atol=1e-4)
    share = script.accuracy(*held_out, weights, s["num_heads"])
    assert abs(share - first["held_out"][0]) < 0.01
