"""Checks of exercise 5: the encoder layer and its parts, in NumPy and PyTorch.

One property a check: where a check is about the wiring of the layer, the norms have their default
weights; where it is about the mask, it looks at which tokens read from which, not at values. Chance
is taken out of dropout by a probability so near 1 that nothing stays, and by seeds.
"""

import numpy as np

from autograder.checks import (
    Failed,
    Question,
    expect,
    expect_array,
    expect_close,
    expect_numbers,
    expect_tuple,
    expect_unchanged,
    plain,
)
from autograder.learner import LearnerError
from autograder.wire import Handle

from ..oracle import encoder_layer as oracle
from ..oracle import exercise_encoder_layer as more
from . import LIBRARY

NORM = "Layer norm"
NORM_BACKWARD = "Its backward pass"
FORWARD = "The feed-forward layer"
FORWARD_BACKWARD = "Its backward pass, and GELU"
DROPOUT = "Dropout"
WHOLE = "The whole layer"
WHERE = "Post-norm and pre-norm"
SINUSOIDS = "Sinusoids"
ROTARY = "Learned and rotary positions"
TWIN = "The torch twin"
COSTS = "What it costs"
WRONG = "How it goes wrong"

READY_MADE = (*LIBRARY, "jax", "scipy", "sklearn", "tensorflow", "torch")
READY_MADE_IN_TORCH = (
    *(name for name in READY_MADE if name != "torch"),
    ".TransformerEncoderLayer",
    ".TransformerEncoder",
    ".TransformerDecoderLayer",
    ".Transformer",
    "torch.ops",
)

ALMOST_ONE = 1 - 1e-7  # a probability of dropout that leaves nothing, and is no division by zero


# --- predict: the parameters ---

predicted_parameters = Question("predicted_parameters", section=COSTS)


def _compare_count(learner, place, hint):
    parts = ("attention", "feed-forward network", "norms")
    got = expect_numbers(learner.value("predicted_parameters"), "abc")[place]
    right = more.layer_parameters(d_model=10, num_heads=2, d_ff=30)[place]
    part = f"({'abc'[place]}) {got:g} is not the number of the {parts[place]}."
    expect(got == right, f"{part} {hint}")


@predicted_parameters.check(points=0.25)
def the_count_of_the_attention_is_right(learner, rng):
    hint = "How many matrices are there, which shape has each, and what comes with each?"
    _compare_count(learner, 0, hint)


@predicted_parameters.check(points=0.25)
def the_count_of_the_feed_forward_network_is_right(learner, rng):
    hint = "There are two linear maps, there and back. Does each have a bias, and how long is it?"
    _compare_count(learner, 1, hint)


@predicted_parameters.check(points=0.25)
def the_count_of_the_norms_is_right(learner, rng):
    hint = "How many norms does a layer have, and which numbers does each of them learn?"
    _compare_count(learner, 2, hint)


# --- layer norm ---

# the notebook imports torch.nn as nn and torch.nn.functional as F: what is forbidden by its last
# name is found behind any alias
layer_norm = Question("layer_norm", section=NORM, forbid=(*READY_MADE, ".layer_norm", ".LayerNorm"))


def _ones_and_zeros(d):
    return np.ones(d), np.zeros(d)


def _compare_norm(learner, x, gamma=None, beta=None, eps=None, note="", **options):
    default = _ones_and_zeros(x.shape[-1])
    arguments = [x, default[0] if gamma is None else gamma, default[1] if beta is None else beta]
    arguments += [] if eps is None else [eps]
    got = learner.call("layer_norm", *arguments)
    expect_close(got, oracle.layer_norm(*arguments), "layer_norm(x)", note=note, **options)


@layer_norm.check(points=0.5)
def each_token_is_normalized_over_its_own_features(learner, rng):
    # with many features, neither ddof nor eps can be seen at this tolerance
    n, d = int(rng.integers(3, 6)), int(rng.integers(40, 50))
    x = rng.normal(size=(n, d)) * rng.uniform(0.5, 3, size=(n, 1)) + rng.uniform(-4, 4, (n, 1))
    note = f"x has {n} tokens of {d} features; gamma is 1 and beta 0."
    _compare_norm(learner, x, note=note, rtol=0.03, atol=0.05)


@layer_norm.check(points=0.25)
def any_number_of_leading_axes_will_do(learner, rng):
    n, d = _sizes(rng, 2)
    d += 30
    for shape in ((d,), (d, d), (2, n, d), (2, 3, n, d)):
        x = rng.normal(size=shape) + 3 * rng.normal(size=(*shape[:-1], 1))
        _compare_norm(learner, x, note=f"x has shape {shape}.", rtol=0.03, atol=0.05)


@layer_norm.check(points=0.25)
def the_variance_divides_by_the_number_of_features(learner, rng):
    for d in (2, 4):
        x = rng.normal(size=(3, 1)) + 2 * rng.permuted(np.tile(np.arange(d), (3, 1)), axis=1)
        _compare_norm(learner, x, note=f"There are only {d} features.", rtol=5e-3)


@layer_norm.check(points=0.5)
def eps_is_added_to_the_variance(learner, rng):
    n, d = _sizes(rng, 2)
    d += 30  # the choice of the divisor does not show at this tolerance
    for eps, scale in ((None, 3e-3), (0.5, 0.7)):
        x = scale * rng.normal(size=(n, d))
        said = "is 1e-5, its default" if eps is None else f"is {eps}"
        note = f"The features deviate by about {scale:g} from their mean, and eps {said}."
        _compare_norm(learner, x, eps=eps, note=note, rtol=0.04, atol=0.04)
    x = np.repeat(rng.integers(1, 5, size=(n, 1)), d, axis=1) * 1.0
    note = "All features of a token are equal: expected is beta, which is 0 here."
    _compare_norm(learner, x, note=note)


@layer_norm.check(points=0.25)
def gamma_scales_and_beta_shifts_each_feature(learner, rng):
    n, d = _sizes(rng, 2)
    d += 30
    gamma = rng.choice([-1, 1], size=d) * rng.uniform(0.5, 2, size=d)
    beta = rng.normal(size=d)
    note = "gamma and beta differ from feature to feature."
    _compare_norm(learner, rng.normal(size=(2, n, d)), gamma, beta, note=note, rtol=0.03, atol=0.05)


@layer_norm.check(points=0.25)
def the_arrays_of_the_norm_are_left_unchanged(learner, rng):
    n, d = _sizes(rng, 2)
    arguments = [rng.normal(size=(n, d)) + 2, *_ones_and_zeros(d)]
    outcome = learner.run("layer_norm", *arguments)
    got = expect_array(outcome["value"], (n, d), "layer_norm(x)")
    expect(np.isfinite(got).all(), "layer_norm(x) is not finite.")
    expect(not np.allclose(got, arguments[0]), "layer_norm(x) is x itself.")
    expect_unchanged(outcome["arguments"], arguments, ["x", "gamma", "beta"])


@layer_norm.probe
def square_tokens(rng):
    yield (rng.normal(size=(4, 4)) + 1, rng.normal(size=4), rng.normal(size=4))
    yield (1e-3 * rng.normal(size=(3, 3, 3)), rng.normal(size=3), rng.normal(size=3))


# --- its backward pass ---

layer_norm_backward = Question(
    "layer_norm_backward", section=NORM_BACKWARD, forbid=(*READY_MADE, ".layer_norm", ".LayerNorm")
)
NORM_GRADIENTS = ("dx", "dgamma", "dbeta")


def _norm_problem(rng, *shape, scale=1.0):
    """Draw ``[dy, x, gamma]``; the columns of dy have means that are not 0."""
    d = shape[-1]
    gamma = rng.choice([-1, 1], size=d) * rng.uniform(0.5, 2, size=d)
    return [rng.normal(size=shape) + 1, scale * rng.normal(size=shape) + 1, gamma]


def _compare_norm_backward(learner, *arguments, only=NORM_GRADIENTS, note=""):
    got = expect_tuple(learner.call("layer_norm_backward", *arguments), NORM_GRADIENTS)
    right = oracle.layer_norm_backward(*arguments)
    for name, array, wanted in zip(NORM_GRADIENTS, got, right, strict=True):
        if name in only:
            expect_close(array, wanted, name, rtol=1e-3, atol=1e-5, note=note)


@layer_norm_backward.check(points=0.25)
def gradient_of_beta_is_right(learner, rng):
    _compare_norm_backward(learner, *_norm_problem(rng, *_sizes(rng, 2)), only=("dbeta",))


@layer_norm_backward.check(points=0.5)
def gradient_of_gamma_is_right(learner, rng):
    _compare_norm_backward(learner, *_norm_problem(rng, *_sizes(rng, 2)), only=("dgamma",))


@layer_norm_backward.check(points=0.75)
def gradient_of_x_is_right_where_gamma_is_one(learner, rng):
    n, d = _sizes(rng, 2)
    for shape in ((n, d), (d, d), (d,), (2, n, d)):
        dy, x, _ = _norm_problem(rng, *shape)
        note = f"x has shape {shape}; gamma is 1. Mean and variance depend on x too."
        _compare_norm_backward(learner, dy, x, np.ones(d), only=("dx",), note=note)


@layer_norm_backward.check(points=0.25)
def gamma_enters_the_gradient_of_x(learner, rng):
    arguments = _norm_problem(rng, *_sizes(rng, 2))
    note = "gamma differs from feature to feature."
    _compare_norm_backward(learner, *arguments, only=("dx",), note=note)


@layer_norm_backward.check(points=0.25)
def eps_enters_the_gradients(learner, rng):
    n, d = _sizes(rng, 2)
    for eps, scale in ((None, 3e-3), (0.5, 0.7)):
        dy, x, _ = _norm_problem(rng, n, d, scale=scale)
        said = "is 1e-5, its default" if eps is None else f"is {eps}"
        note = f"The features deviate by about {scale:g}, and eps {said}; gamma is 1."
        arguments = [dy, x, np.ones(d)] + ([] if eps is None else [eps])
        _compare_norm_backward(learner, *arguments, only=("dx", "dgamma"), note=note)


@layer_norm_backward.check(points=0.25)
def sums_run_over_all_leading_axes_and_no_array_is_changed(learner, rng):
    n, d = _sizes(rng, 2)
    for shape in ((d,), (2, n, d), (2, 3, n, d)):
        arguments = _norm_problem(rng, *shape)
        note = f"x has shape {shape}, gamma and beta {(d,)}."
        _compare_norm_backward(learner, *arguments, only=("dgamma", "dbeta"), note=note)
    outcome = learner.run("layer_norm_backward", *arguments)
    expect_unchanged(outcome["arguments"], arguments, ["dy", "x", "gamma"])


@layer_norm_backward.probe
def equal_sizes_of_the_norm(rng):
    yield tuple(_norm_problem(rng, 4, 4))
    yield tuple(_norm_problem(rng, 3, 3, 3))


# --- RMSNorm ---

rms_norm = Question("rms_norm", section=NORM, forbid=(*READY_MADE, ".rms_norm", ".RMSNorm"))


def _compare_rms(learner, *arguments, note):
    got = learner.call("rms_norm", *arguments)
    expect_close(got, more.rms_norm(*arguments), "rms_norm(x)", note=note)


@rms_norm.check(points=0.25)
def each_token_is_divided_by_its_root_mean_square(learner, rng):
    n, d = _sizes(rng, 2)
    for shape in ((n, d), (2, n, d)):
        x = rng.normal(size=shape) + 2
        note = f"x has shape {shape} and a mean that is not 0; gamma is 1, eps 0."
        _compare_rms(learner, x, np.ones(d), 0.0, note=note)


@rms_norm.check(points=0.25)
def gamma_scales_each_feature(learner, rng):
    n, d = _sizes(rng, 2)
    gamma = rng.choice([-1, 1], size=d) * rng.uniform(0.5, 2, size=d)
    x = rng.normal(size=(n, d)) + 2
    _compare_rms(learner, x, gamma, 0.0, note="gamma differs from feature to feature; eps is 0.")


@rms_norm.check(points=0.25)
def eps_is_added_to_the_mean_square(learner, rng):
    n, d = _sizes(rng, 2)
    x = 3e-3 * rng.normal(size=(n, d))
    note = "The features are about 0.003 in size, eps is 1e-5, its default; gamma is 1."
    _compare_rms(learner, x, np.ones(d), note=note)
    _compare_rms(learner, 300 * x, np.ones(d), 0.5, note="eps is 0.5; gamma is 1.")


# --- RMSNorm, its backward pass ---

rms_norm_backward = Question(
    "rms_norm_backward", section=NORM_BACKWARD, forbid=(*READY_MADE, ".rms_norm", ".RMSNorm")
)
RMS_GRADIENTS = ("dx", "dgamma")


def _compare_rms_backward(learner, *arguments, only=RMS_GRADIENTS, note=""):
    got = expect_tuple(learner.call("rms_norm_backward", *arguments), RMS_GRADIENTS)
    right = more.rms_norm_backward(*arguments)
    for name, array, wanted in zip(RMS_GRADIENTS, got, right, strict=True):
        if name in only:
            expect_close(array, wanted, name, rtol=1e-3, atol=1e-5, note=note)


@rms_norm_backward.check(points=0.25)
def the_scale_sums_over_all_tokens_and_no_array_is_changed(learner, rng):
    n, d = _sizes(rng, 2)
    for shape in ((n, d), (d,), (2, n, d)):
        note = f"x has shape {shape}, gamma {(d,)}; eps is 0."
        arguments = _norm_problem(rng, *shape)
        _compare_rms_backward(learner, *arguments, 0.0, only=("dgamma",), note=note)
    outcome = learner.run("rms_norm_backward", *arguments)
    expect_unchanged(outcome["arguments"], arguments, ["dy", "x", "gamma"])


@rms_norm_backward.check(points=0.25)
def gradient_of_x_is_right_where_the_scale_is_one(learner, rng):
    n, d = _sizes(rng, 2)
    for shape in ((n, d), (d,), (2, n, d)):
        dy, x, _ = _norm_problem(rng, *shape)
        note = f"x has shape {shape}; gamma is 1, eps 0. The root mean square depends on x too."
        _compare_rms_backward(learner, dy, x, np.ones(d), 0.0, only=("dx",), note=note)


@rms_norm_backward.check(points=0.25)
def the_scale_enters_the_gradient_of_x(learner, rng):
    arguments = _norm_problem(rng, *_sizes(rng, 2))
    note = "gamma differs from feature to feature; eps is 0."
    _compare_rms_backward(learner, *arguments, 0.0, only=("dx",), note=note)


@rms_norm_backward.check(points=0.25)
def eps_enters_both_gradients(learner, rng):
    n, d = _sizes(rng, 2)
    for eps, scale in ((None, 3e-3), (0.5, 0.7)):
        dy, x = rng.normal(size=(n, d)) + 1, scale * rng.normal(size=(n, d))
        said = "is 1e-5, its default" if eps is None else f"is {eps}"
        note = f"The features are about {scale:g} in size, and eps {said}; gamma is 1."
        arguments = [dy, x, np.ones(d)] + ([] if eps is None else [eps])
        _compare_rms_backward(learner, *arguments, note=note)


@rms_norm_backward.probe
def equal_sizes_of_the_rms_norm(rng):
    yield tuple(_norm_problem(rng, 4, 4))
    yield tuple(_norm_problem(rng, 3, 3, 3))


# --- feed-forward ---

feed_forward = Question("feed_forward", section=FORWARD, forbid=READY_MADE)


def _maps(rng, *lead):
    """Draw ``[x, W1, b1, W2, b2]``, all of order 1, with biases that matter."""
    d, d_ff = _sizes(rng, 2)
    d_ff += 3
    return [
        rng.normal(size=(*lead, d)),
        rng.normal(size=(d, d_ff)) / np.sqrt(d),
        rng.choice([-1, 1], size=d_ff) * rng.uniform(0.3, 0.8, size=d_ff),
        rng.normal(size=(d_ff, d)) / np.sqrt(d_ff),
        rng.choice([-1, 1], size=d) * rng.uniform(0.3, 0.8, size=d),
    ]


def _compare_forward(learner, arguments, note):
    got = learner.call("feed_forward", *arguments)
    expect_close(got, oracle.feed_forward(*arguments), "feed_forward(x)", note=note)


@feed_forward.check(points=0.25)
def the_hidden_layer_is_clipped_at_zero_between_two_maps(learner, rng):
    x, W1, b1, W2, b2 = _maps(rng, 5)
    _compare_forward(learner, [x, W1, 0 * b1, W2, 0 * b2], "Both biases are 0.")


@feed_forward.check(points=0.25)
def both_biases_count(learner, rng):
    x, W1, b1, W2, b2 = _maps(rng, 5)
    b1 = np.abs(b1) + np.abs(x @ W1).max()  # what is clipped where is another check's business
    _compare_forward(learner, [x, W1, b1, W2, b2], "b1 is so large that nothing is clipped.")


@feed_forward.check(points=0.25)
def positions_are_treated_alike_whatever_the_leading_axes(learner, rng):
    for lead in ((), (2, 3), (2, 3, 2)):
        x, W1, b1, W2, b2 = _maps(rng, *lead)
        note = f"x has shape {x.shape}; both biases are 0."
        _compare_forward(learner, [x, W1, 0 * b1, W2, 0 * b2], note)


# --- feed-forward with a gate ---

swiglu = Question("swiglu", section=FORWARD, forbid=(*READY_MADE, ".silu", ".SiLU"))


def _gated_maps(rng, *lead):
    """Draw ``[x, W1, W2, W3]``, all of order 1; no two of the sizes are equal."""
    d, d_ff = _sizes(rng, 2)
    d_ff += 3
    return [
        2 * rng.normal(size=(*lead, d)),
        rng.normal(size=(d, d_ff)) / np.sqrt(d),
        rng.normal(size=(d_ff, d)) / np.sqrt(d_ff),
        rng.normal(size=(d, d_ff)) / np.sqrt(d),
    ]


def _compare_gated(learner, arguments, note, **options):
    got = learner.call("swiglu", *arguments)
    expect_close(got, more.swiglu(*arguments), "swiglu(x)", note=note, **options)


@swiglu.check(points=0.5)
def the_gate_multiplies_the_hidden_layer(learner, rng):
    arguments = _gated_maps(rng, 5)
    _compare_gated(learner, arguments, f"x has shape {arguments[0].shape}.")


@swiglu.check(points=0.25)
def large_numbers_do_not_break_the_gate(learner, rng):
    x, W1, W2, W3 = _gated_maps(rng, 5)
    sign = rng.permutation(np.arange(W1.shape[1]) % 2) * 2 - 1  # some gates open, some shut
    x, W1 = np.abs(x) + 1, sign * (np.abs(W1) + 0.5)  # no number of x W1 is near 0
    note = "The numbers in x W1 are some thousands, below and above 0."
    _compare_gated(learner, [x, 2000 * W1, W2 / 2000, W3], note, rtol=1e-3, atol=1e-3)


@swiglu.check(points=0.25)
def the_gate_works_for_any_leading_axes(learner, rng):
    for lead in ((), (2, 3), (2, 3, 2)):
        arguments = _gated_maps(rng, *lead)
        _compare_gated(learner, arguments, f"x has shape {arguments[0].shape}.")


# --- a backward pass to mend ---

mended_feed_forward_backward = Question(
    "mended_feed_forward_backward", section=FORWARD_BACKWARD, forbid=READY_MADE
)
MAP_GRADIENTS = ("dx", "dW1", "db1", "dW2", "db2")


def _compare_maps(learner, rng, *leads, only=MAP_GRADIENTS):
    for lead in leads:
        arguments = _maps(rng, *lead)
        dy = rng.normal(size=arguments[0].shape) + 0.5
        got = learner.call("mended_feed_forward_backward", dy, *arguments)
        got = expect_tuple(got, MAP_GRADIENTS)
        right = more.feed_forward_backward(dy, *arguments)
        note = f"x has shape {arguments[0].shape}."
        for name, array, wanted in zip(MAP_GRADIENTS, got, right, strict=True):
            if name in only:
                expect_close(array, wanted, name, rtol=1e-3, atol=1e-5, note=note)


@mended_feed_forward_backward.check(points=0.5)
def its_gradients_of_the_second_map_are_right(learner, rng):
    _compare_maps(learner, rng, (5,), only=("dW2", "db2"))


@mended_feed_forward_backward.check(points=0.5)
def its_gradients_of_the_first_map_are_right(learner, rng):
    _compare_maps(learner, rng, (5,), only=("dW1", "db1"))


@mended_feed_forward_backward.check(points=0.5)
def its_gradient_of_the_input_is_right(learner, rng):
    _compare_maps(learner, rng, (5,), only=("dx",))


@mended_feed_forward_backward.check(points=0.25)
def its_bias_gradients_sum_over_all_positions_of_a_batch(learner, rng):
    _compare_maps(learner, rng, (2, 4), (3, 2), only=("db1", "db2"))


# --- dropout ---

CHANCE = "All chance has to come from rng."
dropout = Question("dropout", section=DROPOUT, forbid=(*READY_MADE, ".dropout", ".Dropout"))


def _drop(learner, seed, x, p, *more_arguments):
    """Call dropout with a generator of its own, made where the answer runs."""
    generator = learner.call("numpy.random.default_rng", seed)
    got = learner.call("dropout", x, p, *more_arguments, rng=generator)
    return expect_array(got, x.shape, "dropout(x, p)")


def _numbers(rng, n=100):
    """Draw a square of numbers of which none is near 0."""
    return rng.choice([-1, 1], size=(n, n)) * rng.uniform(1, 2, size=(n, n))


@dropout.check(points=0.25)
def nothing_is_dropped_outside_of_training(learner, rng):
    x = _numbers(rng, 5)
    got = _drop(learner, 1, x, 0.5, False)
    expect_close(got, x, "dropout(x, 0.5, training=False)", note="Evaluation has no chance in it.")
    # the other half of the switch, so that it cannot be stuck
    x = _numbers(rng, 20)
    got = _drop(learner, 1, x, 0.5, True)
    expect(not np.allclose(got, x), "With training=True and p = 0.5 nothing was dropped.")


@dropout.check(points=0.25)
def each_number_is_dropped_with_probability_p_by_itself(learner, rng):
    for p in (0.2, 0.7):
        zero = _drop(learner, int(rng.integers(1000)), _numbers(rng), p) == 0
        share = zero.mean()
        expect(
            abs(share - p) < 0.05,
            f"With p = {p} a share of {share:.2f} of 10,000 numbers became 0.",
        )
        for axis, name in ((1, "row"), (0, "column")):
            far = np.abs(zero.mean(axis=axis) - p).max()
            expect(
                far < 0.32,
                f"With p = {p}, a {name} of 100 numbers lost a share that is {far:.2f} away from "
                "p. Each number is dropped by itself, not together with its neighbors.",
            )
    x, seed = _numbers(rng, 5), int(rng.integers(1000))
    counts = {int((_drop(learner, seed + i, x, 0.5) == 0).sum()) for i in range(12)}
    expect(
        len(counts) > 1,
        f"12 times, with p = 0.5 and 25 numbers, exactly {min(counts)} became 0. Each number is "
        "dropped by itself, so how many are dropped is a matter of chance too.",
    )


@dropout.check(points=0.5)
def what_stays_is_enlarged_so_that_the_mean_is_kept(learner, rng):
    for p in (0.2, 0.7):
        x = _numbers(rng, 20)
        got = _drop(learner, int(rng.integers(1000)), x, p)
        stays = got != 0
        expect(stays.any(), f"With p = {p} none of 400 numbers stays.")
        expect(not stays.all(), f"With p = {p} all of 400 numbers stay.")
        factors = got[stays] / x[stays]
        note = f"p is {p}. The shares that stay times this factor should be 1 on average."
        wanted = np.full(factors.shape, 1 / (1 - p))
        expect_close(factors, wanted, "What stays, divided by x,", rtol=1e-3, note=note)


@dropout.check(points=0.25)
def chance_comes_from_the_generator_and_x_is_left_unchanged(learner, rng):
    x, seed = _numbers(rng, 20), int(rng.integers(1000))
    first, again, other = (_drop(learner, s, x, 0.5) == 0 for s in (seed, seed, seed + 1))
    expect(first.any() and not first.all(), "With p = 0.5 all of 400 numbers fare alike.")
    expect(
        (first == again).all(),
        "Two generators with the same seed drop different numbers. " + CHANCE,
    )
    expect(
        (first != other).any(), "Generators with different seeds drop the same numbers. " + CHANCE
    )
    generator = learner.call("numpy.random.default_rng", seed)
    outcome = learner.run("dropout", x, 0.5, True, generator)
    expect_unchanged(outcome["arguments"][:1], [x], ["x"])
    got = expect_array(learner.call("dropout", x, ALMOST_ONE), x.shape, "dropout(x, p)")
    expect(not got.any(), f"Without rng and with p = {ALMOST_ONE}, something stays.")
    start = len(learner.record)
    first, second = (learner.call("dropout", x, 0.5) for _ in range(2))
    first, second = (expect_array(y, x.shape, "dropout(x, p)") for y in (first, second))
    del learner.record[start:]  # chance without a seed cannot be replayed in a diagnosis
    expect(
        not np.array_equal(first, second),
        "Two calls without rng drop the same numbers. The generator that you make must not have a "
        "seed: in a training, every step would drop the same.",
    )


# --- dropout to mend ---

mended_dropout = Question(
    "mended_dropout", section=DROPOUT, forbid=(*READY_MADE, ".dropout", ".Dropout")
)


def _drop_and_return(learner, seed, x, dy, p, training=True):
    """Call the mended dropout; returns its output and its gradient as arrays."""
    generator = learner.call("numpy.random.default_rng", seed)
    got = learner.call("mended_dropout", x, dy, p, training, rng=generator)
    y, dx = expect_tuple(got, ("y", "dx"))
    return expect_array(y, x.shape, "y"), expect_array(dx, x.shape, "dx")


@mended_dropout.check(points=0.25)
def the_mended_dropout_does_nothing_in_evaluation(learner, rng):
    x, dy = _numbers(rng, 5), _numbers(rng, 5)
    y, dx = _drop_and_return(learner, 1, x, dy, 0.4, False)
    expect_close(y, x, "y", note="In evaluation y is x.")
    expect_close(dx, dy, "dx", note="In evaluation y is x. What is its gradient?")
    # the other half of the switch, so that it cannot be stuck
    x = _numbers(rng, 20)
    y, _ = _drop_and_return(learner, 1, x, x, 0.4, True)
    expect(not np.allclose(y, x), "With training=True and p = 0.4 nothing was dropped.")


@mended_dropout.check(points=0.25)
def what_is_dropped_on_the_way_out_is_dropped_on_the_way_back(learner, rng):
    seed, before = int(rng.integers(1000)), None
    for p in (0.2, 0.7):
        for s in (seed, seed + 1):
            x, dy = _numbers(rng), _numbers(rng)
            y, dx = _drop_and_return(learner, s, x, dy, p)
            share = (y == 0).mean()
            expect(abs(share - p) < 0.05, f"With p = {p} a share of {share:.2f} of y became 0.")
            apart = int(((y == 0) != (dx == 0)).sum())
            expect(
                apart == 0,
                f"With p = {p}, {apart} of 10,000 numbers were dropped in one of y and dx and not "
                "in the other. Which numbers of x does y depend on?",
            )
            same = before is not None and s != seed and ((y == 0) == before).all()
            expect(not same, "Generators with different seeds drop the same numbers. " + CHANCE)
            before = y == 0


@mended_dropout.check(points=0.25)
def what_stays_is_enlarged_by_one_factor_both_ways(learner, rng):
    for p in (0.2, 0.7):
        x, dy = _numbers(rng, 20), _numbers(rng, 20)
        results = _drop_and_return(learner, int(rng.integers(1000)), x, dy, p)
        for name, got, source in zip(("y", "dx"), results, (x, dy), strict=True):
            stays = got != 0
            expect(stays.any(), f"With p = {p} none of 400 numbers of {name} stays.")
            expect(not stays.all(), f"With p = {p} all of 400 numbers of {name} stay.")
            factors = got[stays] / source[stays]
            wanted = np.full(factors.shape, 1 / (1 - p))
            note = f"p is {p}. y is x times a factor; which factor leads back?"
            what = f"What stays of {name}, divided by {'x' if name == 'y' else 'dy'},"
            expect_close(factors, wanted, what, rtol=1e-3, note=note)


@mended_dropout.check(points=0.25)
def zeros_in_x_hide_nothing_from_the_gradient(learner, rng):
    x, dy, p = np.zeros((100, 100)), _numbers(rng), 0.3
    _, dx = _drop_and_return(learner, int(rng.integers(1000)), x, dy, p)
    share = (dx == 0).mean()
    expect(
        abs(share - p) < 0.05,
        f"All of x is 0 and p = {p}: a share of {share:.2f} of dx is 0. A number that is 0 and "
        "stays has a gradient too.",
    )


# --- positions ---

positional_encoding = Question("positional_encoding", section=SINUSOIDS, forbid=READY_MADE)


def _positions(learner, L, d_model):
    got = learner.call("positional_encoding", L, d_model)
    return expect_array(got, (L, d_model), f"positional_encoding({L}, {d_model})")


def _compare_positions(learner, L, d_model, rows=slice(None), columns=slice(None)):
    got = _positions(learner, L, d_model)[rows, columns]
    right = oracle.positional_encoding(L, d_model)[rows, columns]
    what = f"positional_encoding({L}, {d_model})"
    if columns != slice(None):
        what += "[1:, ::2]" if columns.start is None else "[1:, 1::2]"
    expect_close(got, right, what, rtol=1e-3, atol=2e-4)


@positional_encoding.check(points=0.25)
def position_zero_is_zero_one_zero_one(learner, rng):
    L, half = _sizes(rng, 2)
    got = _positions(learner, L, 2 * half)[0]
    expect_close(got, np.arange(2 * half) % 2, "Row 0", atol=2e-4, note="Positions start at 0.")


@positional_encoding.check(points=0.5)
def even_columns_are_sines_of_falling_frequency(learner, rng):
    L, half = _sizes(rng, 2)
    _compare_positions(learner, L + 4, 2 * half, slice(1, None), slice(None, None, 2))


@positional_encoding.check(points=0.25)
def odd_columns_are_cosines_of_the_same_angles(learner, rng):
    L, half = _sizes(rng, 2)
    _compare_positions(learner, L + 4, 2 * half, slice(1, None), slice(1, None, 2))


@positional_encoding.check(points=0.25)
def an_odd_width_leaves_the_last_sine_without_cosine(learner, rng):
    L, half = _sizes(rng, 2)
    _compare_positions(learner, L, 2 * half + 1)
    _compare_positions(learner, L, 1)


@positional_encoding.probe
def other_widths(rng):
    yield from ((4, 4), (6, 2), (2, 8), (5, 5))


# --- rotary positions ---

rotary_encoding = Question("rotary_encoding", section=ROTARY, forbid=READY_MADE)


def _compare_rotary(learner, x, positions, note):
    got = learner.call("rotary_encoding", x, positions)
    wanted = more.rotary_encoding(x, positions)
    expect_close(got, wanted, "rotary_encoding(x, positions)", rtol=1e-3, atol=1e-4, note=note)


@rotary_encoding.check(points=0.5)
def a_pair_of_features_turns_by_its_position(learner, rng):
    L = int(rng.integers(4, 7))
    note = "There are two features, one pair; it turns by the position, in radians."
    _compare_rotary(learner, rng.normal(size=(L, 2)), np.arange(L), note)


@rotary_encoding.check(points=0.5)
def each_pair_turns_with_a_frequency_of_its_own(learner, rng):
    L, half = _sizes(rng, 2)
    note = f"There are {half} pairs of features side by side: 0 and 1, 2 and 3, …"
    _compare_rotary(learner, rng.normal(size=(L, 2 * half)), np.arange(L), note)


@rotary_encoding.check(points=0.25)
def scores_depend_on_the_distance_between_positions(learner, rng):
    positions = np.array([2, 3, 5, 9])
    q, k = (np.tile(rng.uniform(0.5, 1.5, size=2), (4, 1)) for _ in range(2))

    def scores(positions):
        turned = [learner.call("rotary_encoding", a, positions) for a in (q, k)]
        a, b = (expect_array(t, q.shape, "rotary_encoding(x, positions)") for t in turned)
        return a @ b.T

    first, moved, apart = (scores(p) for p in (positions, positions + 7, 2 * positions))
    note = f"All queries are equal, and all keys. The positions are {positions.tolist()}."
    expect(
        np.allclose(first, moved, atol=1e-3),
        f"Scores change when all positions grow by 7. {note} Only the distance should count.",
    )
    expect(
        not np.allclose(first, apart, atol=1e-3),
        f"Scores stay the same when all positions are doubled, and with them the distances. {note}",
    )


@rotary_encoding.check(points=0.25)
def leading_axes_turn_alike_and_x_is_left_unchanged(learner, rng):
    L = int(rng.integers(4, 7))
    positions = np.sort(rng.permutation(np.arange(3, 30))[:L])
    for lead in ((2,), (2, 3)):
        x = rng.normal(size=(*lead, L, 2))
        arguments = [x, positions]
        outcome = learner.run("rotary_encoding", *arguments)
        wanted = more.rotary_encoding(*arguments)
        what = "rotary_encoding(x, positions)"
        note = f"x has shape {x.shape}, the positions are {positions.tolist()}."
        expect_close(outcome["value"], wanted, what, rtol=1e-3, atol=1e-4, note=note)
        expect_unchanged(outcome["arguments"], arguments, ["x", "positions"])


@rotary_encoding.probe
def square_queries(rng):
    yield rng.normal(size=(4, 4)), np.arange(4)
    yield rng.normal(size=(4, 4, 4)), np.arange(4)


# --- predict: where the norm stands ---

predicted_rows = Question("predicted_rows", section=WHERE)


def _compare_row(learner, place, norm_first, hint):
    rows = plain(learner.value("predicted_rows"))
    row = expect_tuple(rows, ("post-norm", "pre-norm"))[place]
    got = expect_numbers(row, ("mean", "standard deviation"))
    right = more.silent_layer_rows(3.0, 5.0, gamma=2.0, beta=1.0, norm_first=norm_first)
    expect(
        np.allclose(got, right, atol=0.01),
        f"({'ab'[place]}) Mean {got[0]:g} and standard deviation {got[1]:g} are not those of a row "
        f"of the output. {hint}",
    )


@predicted_rows.check(points=0.5)
def the_row_after_a_post_norm_layer_is_right(learner, rng):
    hint = "What is the last thing that happens to a row, and what do gamma and beta make of it?"
    _compare_row(learner, 0, False, hint)


@predicted_rows.check(points=0.5)
def the_row_after_a_pre_norm_layer_is_right(learner, rng):
    hint = "Follow the row along the residual connection. Does it meet a norm on its way?"
    _compare_row(learner, 1, True, hint)


# --- the layer in NumPy ---

encoder_layer = Question(
    "encoder_layer", section=WHOLE, forbid=(*READY_MADE, ".TransformerEncoderLayer")
)


def _layer(rng, d_model, d_ff, learned=False):
    """Draw the 16 arrays of a layer; without ``learned`` the norms' weights are 1 and 0."""
    w = {}
    for c in "qkvo":
        w[f"W_{c}"] = rng.normal(size=(d_model, d_model)) / np.sqrt(d_model)
        w[f"b_{c}"] = 0.3 * rng.normal(size=d_model)
    w["W1"], w["b1"] = rng.normal(size=(d_model, d_ff)) / np.sqrt(d_model), rng.normal(size=d_ff)
    w["W2"], w["b2"] = rng.normal(size=(d_ff, d_model)) / np.sqrt(d_ff), rng.normal(size=d_model)
    for number in "12":
        w[f"gamma{number}"], w[f"beta{number}"] = _ones_and_zeros(d_model)
        if learned:
            sign = rng.choice([-1, 1], size=d_model)
            w[f"gamma{number}"] = sign * rng.uniform(0.4, 2, size=d_model)
            w[f"beta{number}"] = rng.normal(size=d_model)
    return w


def _tokens(rng, *shape):
    """Draw tokens that are not normalized."""
    return 1.5 * rng.normal(size=shape) + rng.normal(size=(*shape[:-1], 1))


def _layer_sizes(rng):
    """Draw B, L, number of heads, d_model, d_ff: all different, and so is the width of a head."""
    h = int(rng.integers(2, 5))
    L = int(rng.choice([n for n in (3, 4, 5) if n != h]))
    B = int(rng.choice([n for n in (2, 3, 4) if n not in (h, L)]))
    return B, L, h, h * (3 if h == 2 else 2), 11


def _norm_place(norm_first):
    return "norm_first is True" if norm_first else "norm_first is False"


def _compare_layer(learner, rng, norm_first, learned=False):
    B, L, h, d_model, d_ff = _layer_sizes(rng)
    x, weights = _tokens(rng, B, L, d_model), _layer(rng, d_model, d_ff, learned)
    got = learner.call("encoder_layer", x, weights, h, norm_first=norm_first)
    right = oracle.encoder_layer(x, weights, h, norm_first=norm_first)
    norms = "weights of their own" if learned else "the weights 1 and 0"
    note = f"x has shape {x.shape}, there are {h} heads, {_norm_place(norm_first)}; the norms have "
    expect_close(got, right, "The output", rtol=1e-3, atol=1e-5, note=f"{note}{norms}.")


@encoder_layer.check(points=1.0)
def the_output_of_a_post_norm_layer_is_right(learner, rng):
    _compare_layer(learner, rng, norm_first=False)


@encoder_layer.check(points=0.75)
def the_output_of_a_pre_norm_layer_is_right(learner, rng):
    _compare_layer(learner, rng, norm_first=True)


@encoder_layer.check(points=0.25)
def each_norm_has_weights_of_its_own(learner, rng):
    for norm_first in (False, True):
        _compare_layer(learner, rng, norm_first, learned=True)


def _expect_masked(run, x, mask, norm_first):
    """Change one token: those that may read it change, and no others; leave it out: none does.

    `run` maps ``(x, mask)`` to an output. Its queries are 0, so that no weight is too small to see.
    """
    L = x.shape[1]
    allowed = np.broadcast_to(mask, (len(x), 1, L, L))[:, 0]
    said = f"the mask has shape {mask.shape}; {_norm_place(norm_first)}"

    def output(x, mask):
        try:
            return expect_array(run(x, mask), x.shape, "The output")
        except LearnerError as error:
            if error.kind != "error":
                raise
            raise Failed(f"{error}\nHere x has shape {x.shape}, {said}.") from None

    before = output(x, mask)
    expect(
        np.isfinite(before).all(),
        f"The output is not finite. Every query has an allowed key; {said}.",
    )
    for key in (0, L - 1):
        changed = x.copy()
        changed[:, key] += np.resize([2.0, -1.0, 1.0], x.shape[-1])  # a norm does not undo this
        after = output(changed, mask)
        differs = np.abs(after - before).max(axis=-1) > 1e-4  # (B, L)
        reads = allowed[:, :, key] | (np.arange(L) == key)
        wrong = np.argwhere(differs != reads)
        if len(wrong):
            b, query = (int(i) for i in wrong[0])
            does = "reads it all the same" if differs[b, query] else "does not read it"
            may = "may" if reads[b, query] else "may not"
            raise Failed(
                f"In sequence {b}, token {query} {may} attend to token {key}, and {does}; {said}."
            )
    for b in np.flatnonzero(~allowed[:, :-1, -1].any(axis=-1)):
        cut = mask[:-1, :-1] if mask.ndim == 2 else mask[b : b + 1, ..., :-1]
        got = output(x[b : b + 1, :-1], cut)
        expect(
            np.allclose(got[0], before[b, :-1], rtol=1e-3, atol=1e-4),
            f"In sequence {b} no other token may attend to the last one, so without it all "
            f"others stay as they are. They change; {said}.",
        )


def _masks(rng, B, L):
    """Draw a mask for queries and keys, and one for the padding of each sequence."""
    causal = np.tril(np.ones((L, L), dtype=bool))
    lengths = rng.permutation(np.resize([L - 1, L], B))
    return causal, (np.arange(L) < lengths[:, None])[:, None, None]  # (B, 1, 1, L)


@encoder_layer.check(points=0.5)
def the_mask_reaches_the_attention(learner, rng):
    B, L, h, d_model, d_ff = _layer_sizes(rng)
    x, weights = _tokens(rng, B, L, d_model), _layer(rng, d_model, d_ff)
    weights |= {"W_q": 0 * weights["W_q"], "b_q": 0 * weights["b_q"]}
    for first in (False, True):

        def run(x, mask, first=first):
            return learner.call("encoder_layer", x, weights, h, mask, first)

        for mask in _masks(rng, B, L):
            _expect_masked(run, x, mask, first)


@encoder_layer.check(points=0.25)
def tokens_and_weights_are_left_unchanged(learner, rng):
    B, L, h, d_model, d_ff = _layer_sizes(rng)
    x, weights = _tokens(rng, B, L, d_model), _layer(rng, d_model, d_ff)
    outcome = learner.run("encoder_layer", x, weights, h)
    got = expect_array(outcome["value"], x.shape, "The output")
    expect(np.abs(got - x).max() > 1e-3, "The output is x itself.")
    expect(np.abs(got).max() > 1e-3, "The output is 0.")
    after, weights_after = outcome["arguments"][:2]
    expect_unchanged([after], [x], ["x"])
    same = isinstance(weights_after, dict) and weights_after.keys() == weights.keys()
    expect(same, "The call changed which weights the dict holds.")
    expect_unchanged(list(weights_after.values()), list(weights.values()), list(weights))


@encoder_layer.probe
def equal_heads_and_widths(rng):
    for norm_first in (False, True):
        yield _tokens(rng, 2, 4, 4), _layer(rng, 4, 4, learned=True), 2, None, norm_first


# --- PyTorch: positions ---

PositionalEncoding = Question("PositionalEncoding", section=TWIN, forbid=READY_MADE_IN_TORCH)


def _new(learner, name, *sizes, **options):
    module = learner.call(name, *sizes, **options)
    given = [*map(str, sizes), *(f"{key}={value}" for key, value in options.items())]
    expect(
        isinstance(module, Handle),
        f"{name}({', '.join(given)}) gave a {type(module).__name__}; expected an nn.Module.",
    )
    return module


def _add_positions(learner, module, x, dtype="float32"):
    import torch

    x = torch.tensor(x, dtype=getattr(torch, dtype))
    return learner.step(module, x)["output"]


def _expect_positions(learner, rng, L, d_model, *max_len, note=""):
    module = _new(learner, "PositionalEncoding", d_model, *max_len)
    x = rng.normal(size=(3, L, d_model))
    right = x + oracle.positional_encoding(L, d_model)
    note = f"x has shape {x.shape}. {note}".strip()
    for _ in range(2):  # calling twice gives the same
        got = _add_positions(learner, module, x)
        expect_close(got, right, "The output", rtol=1e-3, atol=1e-3, note=note)


@PositionalEncoding.check(points=0.5)
def each_position_gets_a_row_of_its_own(learner, rng):
    L, half = _sizes(rng, 2)
    _expect_positions(learner, rng, L, 2 * half, 20, note="max_len is 20.")
    _expect_positions(learner, rng, L, 2 * half, note="max_len has its default.")


@PositionalEncoding.check(points=0.25)
def odd_widths_and_the_longest_sequence_work(learner, rng):
    L, half = _sizes(rng, 2)
    _expect_positions(learner, rng, L, 2 * half + 1, L, note=f"max_len is {L}.")
    _expect_positions(learner, rng, 512, 4, note="max_len has its default, 512.")
    _expect_positions(learner, rng, 600, 4, 600, note="max_len is 600.")


def _tensors(learner, module, method):
    """List the module's parameters or buffers."""
    return learner.call("builtins.list", learner.method(module, method))


@PositionalEncoding.check(points=0.25)
def the_table_is_a_buffer_and_not_trained(learner, rng):
    L, half = _sizes(rng, 2)
    module = _new(learner, "PositionalEncoding", 2 * half, L + 3)
    found = _tensors(learner, module, "parameters")
    many = sum(int(np.prod(parameter.shape)) for parameter in found)
    expect(not found, f"An optimizer would train {many} numbers: parameters() is not empty.")
    buffers = _tensors(learner, module, "buffers")
    big = any(np.prod(buffer.shape) >= (L + 3) * 2 * half for buffer in buffers)
    expect(big, "No buffer holds the table: buffers() has none of its size.")


@PositionalEncoding.check(points=0.25)
def the_output_has_the_dtype_of_module_and_x(learner, rng):
    import torch

    L, half = _sizes(rng, 2)
    for method, dtype, close in (
        ("float", "float32", 1e-3),
        ("half", "float16", 4e-3),
        ("double", "float64", 1e-3),
    ):
        module = _new(learner, "PositionalEncoding", 2 * half, 20)
        if method != "float":  # a new module works in float32 as it is
            learner.method(module, method)
        x = rng.normal(size=(2, L, 2 * half)).astype(np.float16).astype(float)
        got = _add_positions(learner, module, x, dtype)
        when = "In a new module" if method == "float" else f"After module.{method}()"
        note = f"{when}, with x in {dtype}."
        found = str(getattr(got, "dtype", None)).removeprefix("torch.")
        expect(
            getattr(got, "dtype", None) is getattr(torch, dtype),
            f"The output comes in {found}. {note}",
        )
        # which row goes to which position is another check's business
        added = expect_array(got, x.shape, "The output") - x
        inside = np.abs(added).max() <= 1 + 2 * close and np.abs(added).max() > 0.5
        expect(inside, f"What is added is not between -1 and 1, or too small. {note}")


# --- PyTorch: the layer ---

EncoderLayer = Question("EncoderLayer", section=TWIN, forbid=READY_MADE_IN_TORCH, seconds=10.0)
SHAPES = {
    "self_attn.in_proj_weight": ("3 d", "d"),
    "self_attn.in_proj_bias": ("3 d",),
    "self_attn.out_proj.weight": ("d", "d"),
    "self_attn.out_proj.bias": ("d",),
    "linear1.weight": ("f", "d"),
    "linear1.bias": ("f",),
    "linear2.weight": ("d", "f"),
    "linear2.bias": ("d",),
    "norm1.weight": ("d",),
    "norm1.bias": ("d",),
    "norm2.weight": ("d",),
    "norm2.bias": ("d",),
}


def _state(rng, d_model, d_ff, learned=False):
    """Draw the arrays of a layer under PyTorch's names."""
    w = _layer(rng, d_model, d_ff, learned)
    state = {
        "self_attn.in_proj_weight": np.concatenate([w[f"W_{c}"].T for c in "qkv"]),
        "self_attn.in_proj_bias": np.concatenate([w[f"b_{c}"] for c in "qkv"]),
        "self_attn.out_proj.weight": w["W_o"].T,
        "self_attn.out_proj.bias": w["b_o"],
        "linear1.weight": w["W1"].T,
        "linear1.bias": w["b1"],
        "linear2.weight": w["W2"].T,
        "linear2.bias": w["b2"],
        "norm1.weight": w["gamma1"],
        "norm1.bias": w["beta1"],
        "norm2.weight": w["gamma2"],
        "norm2.bias": w["beta2"],
    }
    return {name: np.ascontiguousarray(array) for name, array in state.items()}


def _load(learner, module, state):
    """Set a module's parameters; return ``(missing, unexpected)`` names."""
    import torch

    tensors = {name: torch.tensor(array) for name, array in state.items()}
    try:
        found = learner.method(module, "load_state_dict", tensors, strict=False)
    except LearnerError as error:
        if "size mismatch" not in str(error):
            raise
        first = next(line for line in str(error).splitlines() if "size mismatch" in line)
        raise Failed(f"Loading the weights: {first.strip().replace('torch.Size', '')}") from None
    missing, unexpected = expect_tuple(found, ("missing", "unexpected"))
    return missing, unexpected


def _without_queries(state, d_model):
    """Let every query be 0: a token reads all tokens that it may with the same weight."""
    state = {name: array.copy() for name, array in state.items()}
    for name in ("self_attn.in_proj_weight", "self_attn.in_proj_bias"):
        state[name][:d_model] = 0.0
    return state


def _torch_case(learner, rng, name, norm_first=False, learned=False, dropout=0.0):
    """Make a layer with known weights; return it, its weights, x and the number of heads."""
    B, L, h, d_model, d_ff = _layer_sizes(rng)
    options = {"norm_first": True} if norm_first else {}
    learner.call("torch.manual_seed", int(rng.integers(1000)))  # what is not loaded repeats too
    module = _new(learner, name, d_model, h, d_ff, dropout, **options)
    state = _state(rng, d_model, d_ff, learned)
    _load(learner, module, state)
    return module, state, _tokens(rng, B, L, d_model), h


def _run(learner, module, x, mask=None, upstream=None, dtype="float32", training=False):
    import torch

    arguments = [torch.tensor(x, dtype=getattr(torch, dtype))]
    arguments += [] if mask is None else [torch.tensor(mask)]
    if upstream is not None:
        upstream = [torch.tensor(upstream, dtype=getattr(torch, dtype))]
    return learner.step(module, *arguments, upstream=upstream, training=training)


def _compare_torch(learner, rng, name, norm_first, learned=False, dropout=0.0, note=""):
    module, state, x, h = _torch_case(learner, rng, name, norm_first, learned, dropout)
    right, _ = more.torch_layer(state, x, h, norm_first=norm_first)
    norms = "weights of their own" if learned else "the weights 1 and 0"
    said = f"x has shape {x.shape}, there are {h} heads, {_norm_place(norm_first)}; the norms have "
    got = _run(learner, module, x)["output"]
    expect_close(
        got, right, "The output", rtol=1e-3, atol=1e-4, note=f"{said}{norms}. {note}".strip()
    )


@EncoderLayer.check(points=0.25)
def its_parameters_are_named_as_in_pytorch(learner, rng):
    _, _, h, d_model, d_ff = _layer_sizes(rng)
    module = _new(learner, "EncoderLayer", d_model, h, d_ff, 0.1)
    missing, unexpected = _load(learner, module, _state(rng, d_model, d_ff))
    expect(not missing or not unexpected, _other_names(unexpected, missing))
    expect(not unexpected, f"There is no parameter {_some(unexpected)}.")
    expect(not missing, f"Besides the 12 parameters there is {_some(missing)}, too much.")


def _other_names(expected, found):
    return f"There is no parameter {_some(expected)}; found instead: {_some(found)}."


def _some(names):
    rest = f" (and {len(names) - 2} more)" if len(names) > 2 else ""
    return ", ".join(names[:2]) + rest


@EncoderLayer.check(points=0.5)
def the_module_of_a_post_norm_layer_gives_the_right_output(learner, rng):
    _compare_torch(learner, rng, "EncoderLayer", norm_first=False)


@EncoderLayer.check(points=0.5)
def the_module_of_a_pre_norm_layer_gives_the_right_output(learner, rng):
    _compare_torch(learner, rng, "EncoderLayer", norm_first=True)


@EncoderLayer.check(points=0.25)
def each_norm_of_the_module_has_weights_of_its_own(learner, rng):
    for norm_first in (False, True):
        _compare_torch(learner, rng, "EncoderLayer", norm_first, learned=True)


def _compare_masks(learner, rng, name, training):
    for first in (False, True):
        module, state, x, _ = _torch_case(learner, rng, name, first)
        _load(learner, module, _without_queries(state, x.shape[-1]))
        for mask in _masks(rng, *x.shape[:2]):
            run = _runner(learner, module, training=training and first)
            _expect_masked(run, x, mask, first)


def _runner(learner, module, training=False):
    return lambda x, mask: _run(learner, module, x, mask, training=training)["output"]


@EncoderLayer.check(points=0.5)
def masks_for_queries_and_for_padding_reach_the_attention(learner, rng):
    _compare_masks(learner, rng, "EncoderLayer", training=True)


@EncoderLayer.check(points=0.25)
def gradients_reach_every_parameter_in_float64(learner, rng):
    for norm_first in (False, True):
        module, state, x, h = _torch_case(learner, rng, "EncoderLayer", norm_first, learned=True)
        learner.method(module, "double")
        _load(learner, module, state)
        upstream = rng.normal(size=x.shape)
        mask = _masks(rng, *x.shape[:2])[0]
        found = _run(learner, module, x, mask, upstream, dtype="float64")
        _, right = more.torch_layer(state, x, h, mask, norm_first, upstream)
        note = f"After module.double(), with a causal mask; {_norm_place(norm_first)}."
        gradients = {"x": found["input_gradients"][0], **found["gradients"]}
        for name, wanted in right.items():
            gradient = gradients.get(name)
            expect(
                gradient is not None,
                f"After the backward pass {name} has no gradient: nothing that depends on it "
                f"reaches the output. {note}",
            )
            what = f"the gradient of {name}"
            expect_close(gradient, wanted, what, rtol=1e-3, atol=1e-4, note=note)


def _compare_evaluation(learner, rng, name):
    note = "The dropout is nearly 1, and the module is in evaluation mode, so it has no effect."
    for norm_first in (False, True):
        _compare_torch(learner, rng, name, norm_first, dropout=ALMOST_ONE, note=note)


@EncoderLayer.check(points=0.25)
def nothing_is_dropped_in_evaluation(learner, rng):
    _compare_evaluation(learner, rng, "EncoderLayer")


def _compare_training(learner, rng, name):
    for norm_first in (False, True):
        module, _, x, _ = _torch_case(learner, rng, name, norm_first, dropout=ALMOST_ONE)
        got = _run(learner, module, x, training=True)["output"]
        ones, zeros = _ones_and_zeros(x.shape[-1])
        twice = oracle.layer_norm(oracle.layer_norm(x, ones, zeros), ones, zeros)
        note = (
            "In training mode with a dropout of nearly 1 both sublayers add nothing: expected is "
            f"{'x' if norm_first else 'x, normalized twice'}. {_norm_place(norm_first)}."
        )
        right = x if norm_first else twice
        expect_close(got, right, "The output", rtol=1e-3, atol=1e-4, note=note)


@EncoderLayer.check(points=0.5)
def dropout_acts_on_what_each_sublayer_adds(learner, rng):
    _compare_training(learner, rng, "EncoderLayer")


# --- PyTorch: a layer to mend ---

MendedEncoderLayer = Question(
    "MendedEncoderLayer",
    section=WRONG,
    forbid=(*READY_MADE_IN_TORCH, EncoderLayer.id),
    seconds=10.0,
)


@MendedEncoderLayer.check(points=0.25)
def the_mended_layer_is_right_without_mask_and_dropout(learner, rng):
    for norm_first in (False, True):
        _compare_torch(learner, rng, "MendedEncoderLayer", norm_first)


@MendedEncoderLayer.check(points=0.5)
def the_mended_layer_uses_both_norms(learner, rng):
    for norm_first in (False, True):
        _compare_torch(learner, rng, "MendedEncoderLayer", norm_first, learned=True)


@MendedEncoderLayer.check(points=0.5)
def the_mended_layer_reads_what_the_mask_allows(learner, rng):
    _compare_masks(learner, rng, "MendedEncoderLayer", training=False)


@MendedEncoderLayer.check(points=0.25)
def the_mended_layer_drops_nothing_in_evaluation(learner, rng):
    _compare_evaluation(learner, rng, "MendedEncoderLayer")


@MendedEncoderLayer.check(points=0.25)
def the_mended_layer_still_drops_in_training(learner, rng):
    _compare_training(learner, rng, "MendedEncoderLayer")


# --- PyTorch: the stack ---

Encoder = Question(
    "Encoder",
    section=TWIN,
    forbid=tuple(name for name in READY_MADE_IN_TORCH if name != ".TransformerEncoderLayer"),
    seconds=10.0,
)


def _stack(learner, rng, norm_first=False, dropout=0.0, count=3):
    """Make a stack with known weights; return it, its states, x and the number of heads."""
    B, L, h, d_model, d_ff = _layer_sizes(rng)
    options = {"norm_first": True} if norm_first else {}
    learner.call("torch.manual_seed", int(rng.integers(1000)))  # the weights drawn can be repeated
    stack = _new(learner, "Encoder", count, d_model, h, d_ff, dropout, **options)
    states = [_state(rng, d_model, d_ff, learned=True) for _ in range(count)]
    return stack, states, _joined(states), _tokens(rng, B, L, d_model), h


def _joined(states):
    """Put the states of the layers into one, under the names that the stack gives them."""
    return {
        f"layers.{i}.{name}": array
        for i, state in enumerate(states)
        for name, array in state.items()
    }


def _through(states, x, h, mask=None, norm_first=False):
    for state in states:
        x, _ = more.torch_layer(state, x, h, mask, norm_first)
    return x


@Encoder.check(points=0.25)
def every_layer_has_registered_weights_of_its_own(learner, rng):
    stack, states, joined, *_ = _stack(learner, rng)
    drawn = learner.method(stack, "state_dict")
    names = [f"layers.{i}.linear1.weight" for i in range(len(states))]
    absent = [name for name in names if name not in drawn]
    found = ", ".join(list(drawn)[:3]) or "no parameter at all"
    expect(not absent, f"The state dict has no {absent and absent[0]}; it begins with {found}.")
    first, second = (drawn[name].double().numpy() for name in names[:2])
    expect(not np.array_equal(first, second), "A new stack has the same weights in each layer.")
    count = len(_tensors(learner, stack, "parameters"))
    wanted = len(states) * len(SHAPES)
    expect(count == wanted, f"The stack has {count} parameter tensors; expected {wanted}.")
    _, unexpected = _load(learner, stack, joined)
    expect(not unexpected, f"There is no parameter {unexpected and unexpected[0]}.")


@Encoder.check(points=0.25)
def each_layer_works_on_the_output_of_the_one_before(learner, rng):
    for count in (3, 1):
        stack, states, joined, x, h = _stack(learner, rng, count=count)
        _load(learner, stack, joined)
        got = _run(learner, stack, x)["output"]
        note = f"The stack has {count} layer{'s' if count > 1 else ''}, and no mask."
        right = _through(states, x, h)
        expect_close(got, right, "The output", rtol=1e-3, atol=1e-3, note=note)


@Encoder.check(points=0.25)
def the_mask_reaches_every_layer(learner, rng):
    stack, states, _, x, _ = _stack(learner, rng)
    states = [_without_queries(state, x.shape[-1]) for state in states]
    _load(learner, stack, _joined(states))
    _expect_masked(_runner(learner, stack), x, _masks(rng, *x.shape[:2])[0], False)


@Encoder.check(points=0.25)
def dropout_and_the_place_of_the_norm_reach_every_layer(learner, rng):
    note = "The dropout is nearly 1; norm_first is True."
    stack, states, joined, x, h = _stack(learner, rng, norm_first=True, dropout=ALMOST_ONE)
    _load(learner, stack, joined)
    got = _run(learner, stack, x, training=True)["output"]
    expect_close(got, x, "The output in training", rtol=1e-3, atol=1e-4, note=note)
    got = _run(learner, stack, x)["output"]
    right = _through(states, x, h, norm_first=True)
    expect_close(got, right, "The output in evaluation", rtol=1e-3, atol=1e-3, note=note)


# --- inputs ---


def _sizes(rng, count):
    """Draw different sizes, so that no axis can be taken for another."""
    return tuple(int(n) for n in 3 + rng.permutation(count))
