"""Wrong answers to exercise 5 that people really give, each with exactly one fault.

What surrounds the fault is right and shared: the helpers below for NumPy, and the classes that
`_layer_class`, `_positions_class` and `_stack_class` make, where PyTorch is imported.
"""

import functools
import math

import numpy as np

from autograder.mistakes import mistake, mistake_value

RESIDUAL = "The residual connection"
NORM = "Layer norm"
WHICH = "Which numbers are averaged"
NORM_BACKWARD = "Its backward pass"
FORWARD = "The feed-forward layer"
LOST = "What is lost without the non-linearity"
FORWARD_BACKWARD = "Its backward pass, and GELU"
DROPOUT = "Dropout"
WHOLE = "The whole layer"
WHERE = "Post-norm and pre-norm"
SINUSOIDS = "Sinusoids"
ROTARY = "Learned and rotary positions"
TWIN = "The torch twin"
PARITY = "Parity with PyTorch's layers"
COSTS = "What it costs"
WRONG = "How it goes wrong"


# --- predicted_parameters ---


def _counts(id, value, believed, tell):
    return mistake_value(
        "predicted_parameters", id, value, believed=believed, tell=tell, section=COSTS
    )


counts_without_biases = _counts(
    "counts-without-biases",
    (400, 600, 40),
    "The parameters of a linear map are the entries of its matrix.",
    "What is added after each matrix product? Count the biases too.",
)
counts_attention_for_each_head = _counts(
    "counts-attention-for-each-head",
    (880, 640, 40),
    "Every head has projections as wide as the model.",
    "How wide is one head, if all heads together are as wide as the model?",
)
counts_one_head_of_attention = _counts(
    "counts-one-head-of-attention",
    (220, 640, 40),
    "The matrices are as wide as one head.",
    "One head has this many. How many heads are there, and are their matrices all counted?",
)
counts_three_projections = _counts(
    "counts-three-projections",
    (330, 640, 40),
    "Attention has three matrices, for queries, keys and values.",
    "What happens to the heads' results after they are put side by side?",
)
counts_half_of_the_norms = _counts(
    "counts-half-of-the-norms",
    (440, 640, 20),
    "The norms learn one vector each, or there is only one of them.",
    "How many norms are there, and does each of them scale, shift, or both?",
)
counts_norms_as_numbers = _counts(
    "counts-norms-as-numbers",
    (440, 640, 4),
    "A norm scales and shifts all features alike, by one number each.",
    "What shapes do gamma and beta have?",
)
counts_norms_without_parameters = _counts(
    "counts-norms-without-parameters",
    (440, 640, 0),
    "A norm is a formula, so there is nothing to learn in it.",
    "What does a norm do with a row after its mean is 0 and its variance 1?",
)
counts_one_feed_forward_map = _counts(
    "counts-one-feed-forward-map",
    (440, 330, 40),
    "The feed-forward network is one linear map.",
    "The hidden layer is wider than the model. How does the way back go?",
)
counts_long_biases_twice = _counts(
    "counts-long-biases-twice",
    (440, 660, 40),
    "Both maps of the feed-forward network have a bias of the hidden width.",
    "How long is the bias of the second map: as long as its input, or as its output?",
)


# --- layer_norm ---


def _moments(x, axis=-1, ddof=0):
    return x.mean(axis=axis, keepdims=True), x.var(axis=axis, keepdims=True, ddof=ddof)


def _layer_norm(x, gamma, beta, eps=1e-5):
    mean, variance = _moments(x)
    return gamma * (x - mean) / np.sqrt(variance + eps) + beta


@mistake(
    "layer_norm",
    believed="The standard deviation of a library is the one of the formula.",
    tell="By what does your variance divide: by the number of features, or by one less?",
    section=WHICH,
)
def layernorm_ddof1(x, gamma, beta, eps=1e-5):
    mean, variance = _moments(x, ddof=1)
    return gamma * (x - mean) / np.sqrt(variance + eps) + beta


@mistake(
    "layer_norm",
    believed="eps only avoids a division by zero, so its place does not matter.",
    tell="Is eps added to the variance, or to its root? Compare for features that hardly differ.",
    section=NORM,
)
def layernorm_eps_outside_sqrt(x, gamma, beta, eps=1e-5):
    mean, variance = _moments(x)
    return gamma * (x - mean) / (np.sqrt(variance) + eps) + beta


@mistake(
    "layer_norm",
    believed="eps is a lower bound of the variance.",
    tell="For a variance of 2 eps, what stands under your root?",
    section=NORM,
)
def layernorm_eps_as_lower_bound(x, gamma, beta, eps=1e-5):
    mean, variance = _moments(x)
    return gamma * (x - mean) / np.sqrt(np.maximum(variance, eps)) + beta


@mistake(
    "layer_norm",
    believed="eps is too small to matter.",
    tell="What does your function give for a token whose features are all equal?",
    section=NORM,
)
def layernorm_eps_left_out(x, gamma, beta, eps=1e-5):
    mean, variance = _moments(x)
    return gamma * (x - mean) / np.sqrt(variance) + beta


@mistake(
    "layer_norm",
    believed="eps is always 1e-5.",
    tell="Where does your function use the eps that it is given?",
    section=NORM,
)
def layernorm_eps_fixed(x, gamma, beta, eps=1e-5):
    return _layer_norm(x, gamma, beta)


@mistake(
    "layer_norm",
    believed="One sample has one set of statistics.",
    tell="How many means does your function take for a sequence of 4 tokens?",
    section=WHICH,
)
def layernorm_joint_over_tokens_and_features(x, gamma, beta, eps=1e-5):
    mean, variance = _moments(x, tuple(range(1 if x.ndim > 2 else 0, x.ndim)))
    return gamma * (x - mean) / np.sqrt(variance + eps) + beta


@mistake(
    "layer_norm",
    believed="`x.mean()` is the mean of each token.",
    tell="Print the shape of your mean. How many tokens does it stand for?",
    section=WHICH,
)
def layernorm_over_everything(x, gamma, beta, eps=1e-5):
    return gamma * (x - x.mean()) / np.sqrt(x.var() + eps) + beta


@mistake(
    "layer_norm",
    believed="A feature is normalized over the tokens of its sequence.",
    tell="Which axis do your mean and variance run along? Change one token and look at another.",
    section=WHICH,
)
def layernorm_over_the_tokens(x, gamma, beta, eps=1e-5):
    mean, variance = _moments(x, -2)
    return gamma * (x - mean) / np.sqrt(variance + eps) + beta


@mistake(
    "layer_norm",
    believed="A feature is normalized over the whole batch.",
    tell="This is batch norm. Which numbers does a layer norm average?",
    section=WHICH,
)
def layernorm_over_the_batch(x, gamma, beta, eps=1e-5):
    mean, variance = _moments(x, tuple(range(x.ndim - 1)))
    return gamma * (x - mean) / np.sqrt(variance + eps) + beta


@mistake(
    "layer_norm",
    believed="The mean of a token is subtracted from that token by itself.",
    tell="Print the shapes of x and of its mean. How does NumPy line them up?",
    section=WHICH,
)
def layernorm_keepdims_missing(x, gamma, beta, eps=1e-5):
    return gamma * (x - x.mean(axis=-1)) / np.sqrt(x.var(axis=-1) + eps) + beta


@mistake(
    "layer_norm",
    believed="Normalizing means bringing to unit size.",
    tell="What is the mean of each row of your result, with gamma 1 and beta 0?",
    section=NORM,
)
def layernorm_mean_not_subtracted(x, gamma, beta, eps=1e-5):
    return gamma * x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps) + beta


@mistake(
    "layer_norm",
    believed="What is divided by is the variance.",
    tell="If x is doubled, by which factor does your result change?",
    section=NORM,
)
def layernorm_divides_by_the_variance(x, gamma, beta, eps=1e-5):
    mean, variance = _moments(x)
    return gamma * (x - mean) / (variance + eps) + beta


@mistake(
    "layer_norm",
    believed="Normalizing means bringing into the range from 0 to 1.",
    tell="What are the mean and the variance of a row of your result?",
    section=NORM,
)
def layernorm_to_the_unit_range(x, gamma, beta, eps=1e-5):
    low, high = x.min(axis=-1, keepdims=True), x.max(axis=-1, keepdims=True)
    return gamma * (x - low) / (high - low + eps) + beta


@mistake(
    "layer_norm",
    believed="gamma and beta start at 1 and 0, so they need no code.",
    tell="Where does your function use gamma and beta?",
    section=NORM,
)
def layernorm_without_gamma_and_beta(x, gamma, beta, eps=1e-5):
    return _layer_norm(x, 1.0, 0.0, eps)


@mistake(
    "layer_norm",
    believed="The norm scales, and the next bias shifts.",
    tell="Where does your function use beta?",
    section=NORM,
)
def layernorm_without_beta(x, gamma, beta, eps=1e-5):
    return _layer_norm(x, gamma, 0.0, eps)


@mistake(
    "layer_norm",
    believed="The order of scaling and shifting does not matter.",
    tell="Is beta multiplied by gamma in your function?",
    section=NORM,
)
def layernorm_shifts_before_it_scales(x, gamma, beta, eps=1e-5):
    return gamma * (_layer_norm(x, 1.0, 0.0, eps) + beta)


@mistake(
    "layer_norm",
    believed="gamma is what is added to a scale of 1.",
    tell="With gamma = 1, by what does your function multiply?",
    section=NORM,
)
def layernorm_scales_by_one_plus_gamma(x, gamma, beta, eps=1e-5):
    return _layer_norm(x, 1 + gamma, beta, eps)


@mistake(
    "layer_norm",
    believed="beta scales and gamma shifts.",
    tell="Which of the two is 1 in a new layer, and which is 0?",
    section=NORM,
)
def layernorm_exchanges_gamma_and_beta(x, gamma, beta, eps=1e-5):
    return _layer_norm(x, beta, gamma, eps)


@mistake(
    "layer_norm",
    believed="An argument may serve as scratch space.",
    tell="Print x before and after the call. Does `-=` make a new array?",
    section=NORM,
)
def layernorm_in_place(x, gamma, beta, eps=1e-5):
    x -= x.mean(axis=-1, keepdims=True)
    return gamma * x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps) + beta


# --- layer_norm_backward ---


def _normalized(x, eps, ddof=0):
    mean, variance = _moments(x, ddof=ddof)
    root = np.sqrt(variance + eps)
    return (x - mean) / root, root


def _to_x(g, normal, root):
    along_ones = g.mean(axis=-1, keepdims=True)
    along_normal = (g * normal).mean(axis=-1, keepdims=True)
    return (g - along_ones - normal * along_normal) / root


def _over_rows(array):
    return array.sum(axis=tuple(range(array.ndim - 1)))


def _norm_backward(dy, x, gamma, eps=1e-5, ddof=0):
    normal, root = _normalized(x, eps, ddof)
    return _to_x(dy * gamma, normal, root), _over_rows(dy * normal), _over_rows(dy)


@mistake(
    "layer_norm_backward",
    believed="Mean and variance are constants of the backward pass.",
    tell="Move one feature a little: which outputs change? All of them lead back to it.",
    section=NORM_BACKWARD,
)
def normbackward_statistics_constant(dy, x, gamma, eps=1e-5):
    _, dgamma, dbeta = _norm_backward(dy, x, gamma, eps)
    return dy * gamma / _normalized(x, eps)[1], dgamma, dbeta


@mistake(
    "layer_norm_backward",
    believed="Only the variance depends on x; the mean cancels.",
    tell="Add the same number to all features: y stays. What must the sum of each row of dx be?",
    section=NORM_BACKWARD,
)
def normbackward_mean_constant(dy, x, gamma, eps=1e-5):
    _, dgamma, dbeta = _norm_backward(dy, x, gamma, eps)
    (normal, root), g = _normalized(x, eps), dy * gamma
    dx = (g - normal * (g * normal).mean(axis=-1, keepdims=True)) / root
    return dx, dgamma, dbeta


@mistake(
    "layer_norm_backward",
    believed="Only the mean depends on x.",
    tell="Stretch a row by 1.01: y stays. Does your dx say so, for small eps?",
    section=NORM_BACKWARD,
)
def normbackward_variance_constant(dy, x, gamma, eps=1e-5):
    _, dgamma, dbeta = _norm_backward(dy, x, gamma, eps)
    g = dy * gamma
    return (g - g.mean(axis=-1, keepdims=True)) / _normalized(x, eps)[1], dgamma, dbeta


@mistake(
    "layer_norm_backward",
    believed="gamma has a gradient of its own, so it is not needed in that of x.",
    tell="y = gamma * n + beta. What is the gradient of n, given dy?",
    section=NORM_BACKWARD,
)
def normbackward_gamma_left_out(dy, x, gamma, eps=1e-5):
    dx, _, _ = _norm_backward(dy, x, np.ones(len(gamma)), eps)
    return dx, *_norm_backward(dy, x, gamma, eps)[1:]


@mistake(
    "layer_norm_backward",
    believed="Scaling commutes with everything, so gamma can come last.",
    tell="In which order does the forward pass use gamma and the means? Go back in reverse.",
    section=NORM_BACKWARD,
)
def normbackward_gamma_last(dy, x, gamma, eps=1e-5):
    dx, dgamma, dbeta = normbackward_gamma_left_out.answer(dy, x, gamma, eps)
    return gamma * dx, dgamma, dbeta


@mistake(
    "layer_norm_backward",
    believed="The gradient of the normalized row is the gradient of x.",
    tell="If x is a hundred times as large, how large is its gradient?",
    section=NORM_BACKWARD,
)
def normbackward_not_divided(dy, x, gamma, eps=1e-5):
    dx, dgamma, dbeta = _norm_backward(dy, x, gamma, eps)
    return dx * _normalized(x, eps)[1], dgamma, dbeta


@mistake(
    "layer_norm_backward",
    believed="The gradient is divided by the variance.",
    tell="If x is a hundred times as large, how large is its gradient?",
    section=NORM_BACKWARD,
)
def normbackward_divided_by_the_variance(dy, x, gamma, eps=1e-5):
    dx, dgamma, dbeta = _norm_backward(dy, x, gamma, eps)
    return dx / _normalized(x, eps)[1], dgamma, dbeta


@mistake(
    "layer_norm_backward",
    believed="gamma multiplies x.",
    tell="What is gamma multiplied by in the forward pass: x, or x after it is normalized?",
    section=NORM_BACKWARD,
)
def normbackward_dgamma_from_x(dy, x, gamma, eps=1e-5):
    dx, _, dbeta = _norm_backward(dy, x, gamma, eps)
    return dx, _over_rows(dy * x), dbeta


@mistake(
    "layer_norm_backward",
    believed="gamma multiplies the deviation from the mean.",
    tell="What is gamma multiplied by in the forward pass? Its variance is nearly 1.",
    section=NORM_BACKWARD,
)
def normbackward_dgamma_from_the_deviation(dy, x, gamma, eps=1e-5):
    dx, _, dbeta = _norm_backward(dy, x, gamma, eps)
    return dx, _over_rows(dy * (x - x.mean(axis=-1, keepdims=True))), dbeta


@mistake(
    "layer_norm_backward",
    believed="All gradients begin with dy times gamma.",
    tell="Is y linear in gamma? Then its gradient cannot contain gamma.",
    section=NORM_BACKWARD,
)
def normbackward_gamma_in_its_own_gradient(dy, x, gamma, eps=1e-5):
    dx, dgamma, dbeta = _norm_backward(dy, x, gamma, eps)
    return dx, gamma * dgamma, dbeta


@mistake(
    "layer_norm_backward",
    believed="The gradient of beta passes through gamma.",
    tell="beta is added at the very end. What comes between it and y?",
    section=NORM_BACKWARD,
)
def normbackward_gamma_in_the_gradient_of_beta(dy, x, gamma, eps=1e-5):
    dx, dgamma, dbeta = _norm_backward(dy, x, gamma, eps)
    return dx, dgamma, gamma * dbeta


@mistake(
    "layer_norm_backward",
    believed="Gradients of a batch are averaged.",
    tell="Twice the tokens with the same dy: does the gradient of gamma stay or double?",
    section=NORM_BACKWARD,
)
def normbackward_means_of_the_rows(dy, x, gamma, eps=1e-5):
    dx, dgamma, dbeta = _norm_backward(dy, x, gamma, eps)
    rows = math.prod(x.shape[:-1])
    return dx, dgamma / rows, dbeta / rows


@mistake(
    "layer_norm_backward",
    believed="A norm runs along the last axis, and so do all its sums.",
    tell="Which shape does gamma have, and which has your gradient of it?",
    section=NORM_BACKWARD,
)
def normbackward_sums_along_the_features(dy, x, gamma, eps=1e-5):
    dx, _, _ = _norm_backward(dy, x, gamma, eps)
    return dx, (dy * _normalized(x, eps)[0]).sum(axis=-1), dy.sum(axis=-1)


@mistake(
    "layer_norm_backward",
    believed="Axis 0 holds all the rows.",
    tell="How many leading axes can x have? All of them share gamma and beta.",
    section=NORM_BACKWARD,
)
def normbackward_sums_along_the_first_axis(dy, x, gamma, eps=1e-5):
    dx, _, _ = _norm_backward(dy, x, gamma, eps)
    return dx, (dy * _normalized(x, eps)[0]).sum(axis=0), dy.sum(axis=0)


@mistake(
    "layer_norm_backward",
    believed="A gradient has the shape of the array that it meets.",
    tell="Which shape does gamma have, and which has your gradient of it?",
    section=NORM_BACKWARD,
)
def normbackward_not_summed(dy, x, gamma, eps=1e-5):
    return _norm_backward(dy, x, gamma, eps)[0], dy * _normalized(x, eps)[0], dy


@mistake(
    "layer_norm_backward",
    believed="eps is too small to matter in the backward pass.",
    tell="Which eps stands in the forward pass? Try features that deviate by 0.003.",
    section=NORM_BACKWARD,
)
def normbackward_eps_left_out(dy, x, gamma, eps=1e-5):
    return _norm_backward(dy, x, gamma, 0.0)


@mistake(
    "layer_norm_backward",
    believed="eps is always 1e-5.",
    tell="Where does your function use the eps that it is given?",
    section=NORM_BACKWARD,
)
def normbackward_eps_fixed(dy, x, gamma, eps=1e-5):
    return _norm_backward(dy, x, gamma)


@mistake(
    "layer_norm_backward",
    believed="The variance of a sample divides by one less than its size.",
    tell="Does your variance divide by what the forward pass divides by?",
    section=NORM_BACKWARD,
)
def normbackward_ddof1(dy, x, gamma, eps=1e-5):
    return _norm_backward(dy, x, gamma, eps, ddof=1)


@mistake(
    "layer_norm_backward",
    believed="The corrections are averaged over the tokens.",
    tell="Along which axis does the forward pass take its mean? The corrections run the same way.",
    section=NORM_BACKWARD,
)
def normbackward_corrects_over_the_tokens(dy, x, gamma, eps=1e-5):
    _, dgamma, dbeta = _norm_backward(dy, x, gamma, eps)
    (normal, root), g = _normalized(x, eps), dy * gamma
    dx = (g - g.mean(axis=0) - normal * (g * normal).mean(axis=0)) / root
    return dx, dgamma, dbeta


@mistake(
    "layer_norm_backward",
    believed="Gradients are summed, so the corrections are sums.",
    tell="Each feature has a share of 1/d in the mean. Where is the d in your corrections?",
    section=NORM_BACKWARD,
)
def normbackward_corrects_by_sums(dy, x, gamma, eps=1e-5):
    _, dgamma, dbeta = _norm_backward(dy, x, gamma, eps)
    (normal, root), g = _normalized(x, eps), dy * gamma
    along = (g * normal).sum(axis=-1, keepdims=True)
    return (g - g.sum(axis=-1, keepdims=True) - normal * along) / root, dgamma, dbeta


@mistake(
    "layer_norm_backward",
    believed="The correction for the variance is added.",
    tell="A row stretched by 1.01 leaves y as it was. What is the sum of dx * x then, nearly?",
    section=NORM_BACKWARD,
)
def normbackward_correction_added(dy, x, gamma, eps=1e-5):
    _, dgamma, dbeta = _norm_backward(dy, x, gamma, eps)
    (normal, root), g = _normalized(x, eps), dy * gamma
    along = (g * normal).mean(axis=-1, keepdims=True)
    return (g - g.mean(axis=-1, keepdims=True) + normal * along) / root, dgamma, dbeta


@mistake(
    "layer_norm_backward",
    believed="The order of the results does not matter.",
    tell="Compare the order of what you return with the one that is asked for.",
    section=NORM_BACKWARD,
)
def normbackward_order_of_the_results(dy, x, gamma, eps=1e-5):
    dx, dgamma, dbeta = _norm_backward(dy, x, gamma, eps)
    return dx, dbeta, dgamma


@mistake(
    "layer_norm_backward",
    believed="After its last use an argument may be overwritten.",
    tell="Print dy before and after the call. Does `*=` make a new array?",
    section=NORM_BACKWARD,
)
def normbackward_in_place(dy, x, gamma, eps=1e-5):
    results = _norm_backward(dy, x, gamma, eps)
    dy *= gamma
    return results


# --- rms_norm ---


def _rms(x, eps, axis=-1):
    return np.sqrt((x**2).mean(axis=axis, keepdims=True) + eps)


@mistake(
    "rms_norm",
    believed="Every norm subtracts the mean.",
    tell="Read the formula once more. Where is the mean of the features in it?",
    section=NORM,
)
def rms_subtracts_the_mean(x, gamma, eps=1e-5):
    return _layer_norm(x, gamma, 0.0, eps)


@mistake(
    "rms_norm",
    believed="The root of the mean square is the standard deviation.",
    tell="Try a row of equal numbers. What is its root mean square, and what do you divide by?",
    section=NORM,
)
def rms_divides_by_the_deviation(x, gamma, eps=1e-5):
    return gamma * x / np.sqrt(x.var(axis=-1, keepdims=True) + eps)


@mistake(
    "rms_norm",
    believed="Normalizing brings a vector to length 1.",
    tell="What is the mean of the squares of a row of your result? And their sum?",
    section=NORM,
)
def rms_brings_to_length_one(x, gamma, eps=1e-5):
    return gamma * x / np.sqrt((x**2).sum(axis=-1, keepdims=True) + eps)


@mistake(
    "rms_norm",
    believed="The place of eps does not matter.",
    tell="Is eps added under the root, or outside of it?",
    section=NORM,
)
def rms_eps_outside_of_the_root(x, gamma, eps=1e-5):
    return gamma * x / (_rms(x, 0.0) + eps)


@mistake(
    "rms_norm",
    believed="eps is too small to matter.",
    tell="Where does your function use eps?",
    section=NORM,
)
def rms_eps_left_out(x, gamma, eps=1e-5):
    return gamma * x / _rms(x, 0.0)


@mistake(
    "rms_norm",
    believed="What is divided by is the mean square.",
    tell="If x is doubled, by which factor does your result change?",
    section=NORM,
)
def rms_root_missing(x, gamma, eps=1e-5):
    return gamma * x / _rms(x, eps) ** 2


@mistake(
    "rms_norm",
    believed="A feature is normalized over the tokens.",
    tell="Change one token. Which rows of your result change?",
    section=WHICH,
)
def rms_over_the_tokens(x, gamma, eps=1e-5):
    return gamma * x / _rms(x, eps, axis=-2)


@mistake(
    "rms_norm",
    believed="Axis 1 holds the features.",
    tell="For x of shape (2, 3, 4), which axis holds the features, and which do you average?",
    section=WHICH,
)
def rms_along_axis_one(x, gamma, eps=1e-5):
    return gamma * x / _rms(x, eps, axis=1)


@mistake(
    "rms_norm",
    believed="One root mean square serves all tokens.",
    tell="Change one token. Which rows of your result change?",
    section=WHICH,
)
def rms_over_everything(x, gamma, eps=1e-5):
    return gamma * x / np.sqrt((x**2).mean() + eps)


@mistake(
    "rms_norm",
    believed="A norm without beta is a norm without gamma.",
    tell="Where does your function use gamma?",
    section=NORM,
)
def rms_gamma_left_out(x, gamma, eps=1e-5):
    return x / _rms(x, eps)


@mistake(
    "rms_norm",
    believed="The mean size is as good as the root mean square.",
    tell="Compare the mean of |x| and the root of the mean of x² for the row (3, 4).",
    section=NORM,
)
def rms_mean_absolute_value(x, gamma, eps=1e-5):
    return gamma * x / (np.abs(x).mean(axis=-1, keepdims=True) + eps)


@mistake(
    "rms_norm",
    believed="gamma is what is added to a scale of 1.",
    tell="With gamma = 1, by what does your function multiply?",
    section=NORM,
)
def rms_scales_by_one_plus_gamma(x, gamma, eps=1e-5):
    return (1 + gamma) * x / _rms(x, eps)


# --- rms_norm_backward ---


def _to_rms_x(g, normal, root):
    return (g - normal * (g * normal).mean(axis=-1, keepdims=True)) / root


def _rms_backward(dy, x, gamma, eps=1e-5):
    root = _rms(x, eps)
    return _to_rms_x(dy * gamma, x / root, root), _over_rows(dy * x / root)


@mistake(
    "rms_norm_backward",
    believed="The root mean square is a constant of the backward pass.",
    tell="Move one feature a little: does the number that all are divided by stay?",
    section=NORM_BACKWARD,
)
def rmsbackward_root_constant(dy, x, gamma, eps=1e-5):
    return dy * gamma / _rms(x, eps), _rms_backward(dy, x, gamma, eps)[1]


@mistake(
    "rms_norm_backward",
    believed="The formula is that of layer norm.",
    tell="Where does RMSNorm take the mean of x? What of your dx comes from that mean?",
    section=NORM_BACKWARD,
)
def rmsbackward_also_subtracts_the_mean(dy, x, gamma, eps=1e-5):
    root, g = _rms(x, eps), dy * gamma
    return _to_x(g, x / root, root), _rms_backward(dy, x, gamma, eps)[1]


@mistake(
    "rms_norm_backward",
    believed="RMSNorm is layer norm without beta.",
    tell="Is the mean of x subtracted in the forward pass?",
    section=NORM_BACKWARD,
)
def rmsbackward_is_that_of_layer_norm(dy, x, gamma, eps=1e-5):
    return _norm_backward(dy, x, gamma, eps)[:2]


@mistake(
    "rms_norm_backward",
    believed="gamma has a gradient of its own, so it is not needed in that of x.",
    tell="y = gamma * n. What is the gradient of n, given dy?",
    section=NORM_BACKWARD,
)
def rmsbackward_gamma_left_out(dy, x, gamma, eps=1e-5):
    dx, _ = _rms_backward(dy, x, np.ones(len(gamma)), eps)
    return dx, _rms_backward(dy, x, gamma, eps)[1]


@mistake(
    "rms_norm_backward",
    believed="Scaling commutes with everything, so gamma can come last.",
    tell="In the forward pass gamma comes last. Where does it come on the way back?",
    section=NORM_BACKWARD,
)
def rmsbackward_gamma_last(dy, x, gamma, eps=1e-5):
    dx, dgamma = rmsbackward_gamma_left_out.answer(dy, x, gamma, eps)
    return gamma * dx, dgamma


@mistake(
    "rms_norm_backward",
    believed="The gradient of the normalized token is the gradient of x.",
    tell="If x is a hundred times as large, how large is its gradient?",
    section=NORM_BACKWARD,
)
def rmsbackward_not_divided(dy, x, gamma, eps=1e-5):
    dx, dgamma = _rms_backward(dy, x, gamma, eps)
    return dx * _rms(x, eps), dgamma


@mistake(
    "rms_norm_backward",
    believed="The gradient is divided by the mean square.",
    tell="If x is a hundred times as large, is its gradient a hundredth, or less?",
    section=NORM_BACKWARD,
)
def rmsbackward_divided_by_the_mean_square(dy, x, gamma, eps=1e-5):
    dx, dgamma = _rms_backward(dy, x, gamma, eps)
    return dx / _rms(x, eps), dgamma


@mistake(
    "rms_norm_backward",
    believed="The correction is made of x.",
    tell="By which power of the root is x * mean(g * x) divided? Write it with n = x / root.",
    section=NORM_BACKWARD,
)
def rmsbackward_correction_from_x(dy, x, gamma, eps=1e-5):
    _, dgamma = _rms_backward(dy, x, gamma, eps)
    return _to_rms_x(dy * gamma, x, _rms(x, eps)), dgamma


@mistake(
    "rms_norm_backward",
    believed="Gradients are summed, so the correction is a sum.",
    tell="Each feature has a share of 1/d in the mean square. Where is the d in your correction?",
    section=NORM_BACKWARD,
)
def rmsbackward_corrects_by_sums(dy, x, gamma, eps=1e-5):
    (root, g), dgamma = (_rms(x, eps), dy * gamma), _rms_backward(dy, x, gamma, eps)[1]
    n = x / root
    return (g - n * (g * n).sum(axis=-1, keepdims=True)) / root, dgamma


@mistake(
    "rms_norm_backward",
    believed="The correction is added.",
    tell="A token stretched by 1.01 leaves y as it was. What is the sum of dx * x then, nearly?",
    section=NORM_BACKWARD,
)
def rmsbackward_correction_added(dy, x, gamma, eps=1e-5):
    (root, g), dgamma = (_rms(x, eps), dy * gamma), _rms_backward(dy, x, gamma, eps)[1]
    n = x / root
    return (g + n * (g * n).mean(axis=-1, keepdims=True)) / root, dgamma


@mistake(
    "rms_norm_backward",
    believed="The square brings a factor of 2.",
    tell="The 2 of the square meets the 1/2 of the root. Is one of them missing?",
    section=NORM_BACKWARD,
)
def rmsbackward_correction_doubled(dy, x, gamma, eps=1e-5):
    (root, g), dgamma = (_rms(x, eps), dy * gamma), _rms_backward(dy, x, gamma, eps)[1]
    n = x / root
    return (g - 2 * n * (g * n).mean(axis=-1, keepdims=True)) / root, dgamma


@mistake(
    "rms_norm_backward",
    believed="gamma multiplies x.",
    tell="What is gamma multiplied by in the forward pass: x, or x after it is normalized?",
    section=NORM_BACKWARD,
)
def rmsbackward_dgamma_from_x(dy, x, gamma, eps=1e-5):
    return _rms_backward(dy, x, gamma, eps)[0], _over_rows(dy * x)


@mistake(
    "rms_norm_backward",
    believed="All gradients begin with dy times gamma.",
    tell="Is y linear in gamma? Then its gradient cannot contain gamma.",
    section=NORM_BACKWARD,
)
def rmsbackward_gamma_in_its_own_gradient(dy, x, gamma, eps=1e-5):
    dx, dgamma = _rms_backward(dy, x, gamma, eps)
    return dx, gamma * dgamma


@mistake(
    "rms_norm_backward",
    believed="Gradients of a batch are averaged.",
    tell="Twice the tokens with the same dy: does the gradient of gamma stay or double?",
    section=NORM_BACKWARD,
)
def rmsbackward_means_of_the_tokens(dy, x, gamma, eps=1e-5):
    dx, dgamma = _rms_backward(dy, x, gamma, eps)
    return dx, dgamma / math.prod(x.shape[:-1])


@mistake(
    "rms_norm_backward",
    believed="A norm runs along the last axis, and so do all its sums.",
    tell="Which shape does gamma have, and which has your gradient of it?",
    section=NORM_BACKWARD,
)
def rmsbackward_sums_along_the_features(dy, x, gamma, eps=1e-5):
    return _rms_backward(dy, x, gamma, eps)[0], (dy * x / _rms(x, eps)).sum(axis=-1)


@mistake(
    "rms_norm_backward",
    believed="Axis 0 holds all the tokens.",
    tell="How many leading axes can x have? All tokens share gamma.",
    section=NORM_BACKWARD,
)
def rmsbackward_sums_along_the_first_axis(dy, x, gamma, eps=1e-5):
    return _rms_backward(dy, x, gamma, eps)[0], (dy * x / _rms(x, eps)).sum(axis=0)


@mistake(
    "rms_norm_backward",
    believed="A gradient has the shape of the array that it meets.",
    tell="Which shape does gamma have, and which has your gradient of it?",
    section=NORM_BACKWARD,
)
def rmsbackward_not_summed(dy, x, gamma, eps=1e-5):
    return _rms_backward(dy, x, gamma, eps)[0], dy * x / _rms(x, eps)


@mistake(
    "rms_norm_backward",
    believed="eps is too small to matter in the backward pass.",
    tell="Which eps stands in the forward pass? Try features of size 0.003.",
    section=NORM_BACKWARD,
)
def rmsbackward_eps_left_out(dy, x, gamma, eps=1e-5):
    return _rms_backward(dy, x, gamma, 0.0)


@mistake(
    "rms_norm_backward",
    believed="eps is always 1e-5.",
    tell="Where does your function use the eps that it is given?",
    section=NORM_BACKWARD,
)
def rmsbackward_eps_fixed(dy, x, gamma, eps=1e-5):
    return _rms_backward(dy, x, gamma)


@mistake(
    "rms_norm_backward",
    believed="The order of the results does not matter.",
    tell="Compare the order of what you return with the one that is asked for.",
    section=NORM_BACKWARD,
)
def rmsbackward_order_of_the_results(dy, x, gamma, eps=1e-5):
    return _rms_backward(dy, x, gamma, eps)[::-1]


@mistake(
    "rms_norm_backward",
    believed="After its last use an argument may be overwritten.",
    tell="Print dy before and after the call. Does `*=` make a new array?",
    section=NORM_BACKWARD,
)
def rmsbackward_in_place(dy, x, gamma, eps=1e-5):
    results = _rms_backward(dy, x, gamma, eps)
    dy *= gamma
    return results


# --- feed_forward ---


def _relu(x):
    return np.maximum(x, 0)


def _gelu(x):
    return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2


@mistake(
    "feed_forward",
    believed="Two linear maps are already a network.",
    tell="What can two linear maps in a row do that one cannot? What stands between them?",
    section=LOST,
)
def ffn_no_activation(x, W1, b1, W2, b2):
    return (x @ W1 + b1) @ W2 + b2


@mistake(
    "feed_forward",
    believed="The activation comes at the end of a network.",
    tell="Can your result be negative? Where does the formula clip at 0?",
    section=FORWARD,
)
def ffn_activation_at_the_end(x, W1, b1, W2, b2):
    return _relu((x @ W1 + b1) @ W2 + b2)


@mistake(
    "feed_forward",
    believed="Each linear map is followed by an activation.",
    tell="Can your result be negative? How often does the formula clip at 0?",
    section=FORWARD,
)
def ffn_activation_twice(x, W1, b1, W2, b2):
    return _relu(_relu(x @ W1 + b1) @ W2 + b2)


@mistake(
    "feed_forward",
    believed="The input is what is clipped.",
    tell="Is it x that is clipped, or what the first map makes of it?",
    section=FORWARD,
)
def ffn_clips_the_input(x, W1, b1, W2, b2):
    return (_relu(x) @ W1 + b1) @ W2 + b2


@mistake(
    "feed_forward",
    believed="Every transformer uses GELU.",
    tell="Which activation is asked for here? What does yours give for -1?",
    section=FORWARD_BACKWARD,
)
def ffn_gelu(x, W1, b1, W2, b2):
    return _gelu(x @ W1 + b1) @ W2 + b2


@mistake(
    "feed_forward",
    believed="ReLU keeps the size of a number.",
    tell="What does your activation give for -1?",
    section=FORWARD,
)
def ffn_absolute_value(x, W1, b1, W2, b2):
    return np.abs(x @ W1 + b1) @ W2 + b2


@mistake(
    "feed_forward",
    believed="A little of the negative side should pass.",
    tell="What does your activation give for -1?",
    section=FORWARD,
)
def ffn_leaky(x, W1, b1, W2, b2):
    before = x @ W1 + b1
    return np.where(before > 0, before, 0.01 * before) @ W2 + b2


@mistake(
    "feed_forward",
    believed="The activation keeps what is below 0.",
    tell="What does your activation give for -1, and for 1?",
    section=FORWARD,
)
def ffn_keeps_the_negative_side(x, W1, b1, W2, b2):
    return np.minimum(x @ W1 + b1, 0) @ W2 + b2


@mistake(
    "feed_forward",
    believed="A neuron fires or does not.",
    tell="What does your activation give for 2, and what for 3?",
    section=FORWARD,
)
def ffn_step(x, W1, b1, W2, b2):
    return (x @ W1 + b1 > 0) @ W2 + b2


@mistake(
    "feed_forward",
    believed="The bias is added after the activation.",
    tell="Is a hidden number clipped before or after its bias is added?",
    section=FORWARD,
)
def ffn_bias_after_the_activation(x, W1, b1, W2, b2):
    return (_relu(x @ W1) + b1) @ W2 + b2


@mistake(
    "feed_forward",
    believed="The first map has no bias.",
    tell="Where does your function use b1?",
    section=FORWARD,
)
def ffn_first_bias_missing(x, W1, b1, W2, b2):
    return _relu(x @ W1) @ W2 + b2


@mistake(
    "feed_forward",
    believed="The second map has no bias.",
    tell="Where does your function use b2?",
    section=FORWARD,
)
def ffn_second_bias_missing(x, W1, b1, W2, b2):
    return _relu(x @ W1 + b1) @ W2


@mistake(
    "feed_forward",
    believed="The residual connection is part of the feed-forward layer.",
    tell="Set both matrices to 0: what should be left? Who adds the input is the layer around it.",
    section=RESIDUAL,
)
def ffn_adds_its_input(x, W1, b1, W2, b2):
    return x + _relu(x @ W1 + b1) @ W2 + b2


@mistake(
    "feed_forward",
    believed="Positions are rows, whatever the shape.",
    tell="Compare the shape of your result with that of x, for x of shape (2, 3, 4).",
    section=FORWARD,
)
def ffn_flattens_the_positions(x, W1, b1, W2, b2):
    return _relu(x.reshape(-1, x.shape[-1]) @ W1 + b1) @ W2 + b2


@mistake(
    "feed_forward",
    believed="Weights are stored transposed, as in PyTorch.",
    tell="Print the shapes of W1 and of what you multiply with. Here weights are used as x @ W.",
    section=FORWARD,
)
def ffn_transposes_the_matrices(x, W1, b1, W2, b2):
    return _relu(x @ W1.T + b1) @ W2.T + b2


# --- swiglu ---


def _silu(z):
    return z * (1 + np.tanh(z / 2)) / 2


@mistake(
    "swiglu",
    believed="SwiGLU is a feed-forward layer with another activation.",
    tell="Where does your function use W3?",
    section=FORWARD,
)
def swiglu_without_its_gate(x, W1, W2, W3):
    return _silu(x @ W1) @ W2


@mistake(
    "swiglu",
    believed="The activation is ReLU, as before.",
    tell="What does your activation give for -1? That of SiLU is not 0.",
    section=FORWARD,
)
def swiglu_gates_with_relu(x, W1, W2, W3):
    return (_relu(x @ W1) * (x @ W3)) @ W2


@mistake(
    "swiglu",
    believed="SiLU is another name for GELU.",
    tell="What does your activation give for 1: 0.73, or 0.84?",
    section=FORWARD_BACKWARD,
)
def swiglu_gates_with_gelu(x, W1, W2, W3):
    return (_gelu(x @ W1) * (x @ W3)) @ W2


@mistake(
    "swiglu",
    believed="The gate is a number from 0 to 1.",
    tell="What does your activation give for 5: nearly 5, or nearly 1?",
    section=FORWARD,
)
def swiglu_gates_with_sigmoid(x, W1, W2, W3):
    return ((1 + np.tanh(x @ W1 / 2)) / 2 * (x @ W3)) @ W2


@mistake(
    "swiglu",
    believed="The gate divides a whole of 1 among the hidden numbers.",
    tell="Does one number of your gate depend on the others?",
    section=FORWARD,
)
def swiglu_gates_with_softmax(x, W1, W2, W3):
    z = x @ W1
    powers = np.exp(z - z.max(axis=-1, keepdims=True))
    return (powers / powers.sum(axis=-1, keepdims=True) * (x @ W3)) @ W2


@mistake(
    "swiglu",
    believed="The product is all the non-linearity that is needed.",
    tell="Twice the x: is your result four times as large? Which part of the formula is missing?",
    section=FORWARD,
)
def swiglu_with_no_activation(x, W1, W2, W3):
    return ((x @ W1) * (x @ W3)) @ W2


@mistake(
    "swiglu",
    believed="The new matrix W3 is the one behind the activation.",
    tell="Which of the two products goes through SiLU: that with W1 or that with W3?",
    section=FORWARD,
)
def swiglu_activates_the_other_map(x, W1, W2, W3):
    return ((x @ W1) * _silu(x @ W3)) @ W2


@mistake(
    "swiglu",
    believed="Each map is followed by the activation.",
    tell="How often does SiLU stand in the formula?",
    section=FORWARD,
)
def swiglu_activates_both_maps(x, W1, W2, W3):
    return (_silu(x @ W1) * _silu(x @ W3)) @ W2


@mistake(
    "swiglu",
    believed="The activation comes after the product.",
    tell="Is SiLU applied before the two maps are multiplied, or after?",
    section=FORWARD,
)
def swiglu_activates_the_product(x, W1, W2, W3):
    return _silu((x @ W1) * (x @ W3)) @ W2


@mistake(
    "swiglu",
    believed="The activation comes at the end.",
    tell="Can your result be below -0.3? Where in the formula does SiLU stand?",
    section=FORWARD,
)
def swiglu_activates_the_result(x, W1, W2, W3):
    return _silu(((x @ W1) * (x @ W3)) @ W2)


@mistake(
    "swiglu",
    believed="The two maps are added up.",
    tell="If x W3 is 0, what remains of a hidden number in the formula, and in yours?",
    section=FORWARD,
)
def swiglu_adds_the_two_maps(x, W1, W2, W3):
    return (_silu(x @ W1) + x @ W3) @ W2


@mistake(
    "swiglu",
    believed="The sigmoid has exp(z) below the line.",
    tell="What does your activation give for 5, and for -5?",
    section=FORWARD,
)
def swiglu_with_the_sign_turned_round(x, W1, W2, W3):
    return (-_silu(-(x @ W1)) * (x @ W3)) @ W2


@mistake(
    "swiglu",
    believed="The residual connection belongs to it.",
    tell="What does your function give if W2 is 0?",
    section=RESIDUAL,
)
def swiglu_adds_its_input(x, W1, W2, W3):
    return x + (_silu(x @ W1) * (x @ W3)) @ W2


@mistake(
    "swiglu",
    believed="exp(z) / (1 + exp(z)) is as good as 1 / (1 + exp(-z)).",
    tell="What is exp(1000), and what is that divided by itself?",
    section=FORWARD,
)
def swiglu_overflows(x, W1, W2, W3):
    z = x @ W1
    with np.errstate(all="ignore"):
        sigmoid = np.exp(z) / (1 + np.exp(z))
    return (z * sigmoid * (x @ W3)) @ W2


@mistake(
    "swiglu",
    believed="A batch is a list of positions.",
    tell="Compare the shape of your result with the shape of x.",
    section=FORWARD,
)
def swiglu_flattens_the_positions(x, W1, W2, W3):
    return ((_silu(x @ W1) * (x @ W3)) @ W2).reshape(-1, x.shape[-1])


@mistake(
    "swiglu",
    believed="A sequence has one gate.",
    tell="Change one token: does another token of your result change?",
    section=FORWARD,
)
def swiglu_averages_the_gate(x, W1, W2, W3):
    z = x @ W1
    if z.ndim > 2:
        z = z.mean(axis=-2, keepdims=True)
    return (_silu(z) * (x @ W3)) @ W2


# --- mended_feed_forward_backward ---


def _maps(dy, x, W1, b1, W2, b2, *, slope=None, hidden=None, sums=_over_rows, dx=None):
    """The right backward pass; what is given replaces a step of it."""
    before = x @ W1 + b1
    hidden = _relu(before) if hidden is None else hidden(x, W1, b1)
    dhidden = dy @ W2.T
    dbefore = dhidden * (before > 0) if slope is None else slope(before, dhidden)
    flat_x, flat_before = x.reshape(-1, x.shape[-1]), dbefore.reshape(-1, len(b1))
    dW2 = hidden.reshape(-1, len(b1)).T @ dy.reshape(-1, len(b2))
    dx = dbefore @ W1.T if dx is None else dx(dhidden, dbefore)
    return dx, flat_x.T @ flat_before, sums(dbefore), dW2, sums(dy)


@mistake(
    "mended_feed_forward_backward",
    believed="ReLU clips the gradient at 0 as it clips the numbers.",
    tell="What does the slope of ReLU depend on: the number that was clipped, or its gradient?",
    section=FORWARD_BACKWARD,
)
def mended_maps_slope_from_the_gradient(dy, x, W1, b1, W2, b2):
    return _maps(dy, x, W1, b1, W2, b2, slope=lambda before, dhidden: _relu(dhidden))


@mistake(
    "mended_feed_forward_backward",
    believed="A gradient passes the activation unchanged.",
    tell="What is the slope of ReLU below 0?",
    section=FORWARD_BACKWARD,
)
def mended_maps_slope_missing(dy, x, W1, b1, W2, b2):
    return _maps(dy, x, W1, b1, W2, b2, slope=lambda before, dhidden: dhidden)


@mistake(
    "mended_feed_forward_backward",
    believed="Where ReLU is on, its slope is its value.",
    tell="What is the slope of ReLU at 2, and at 3?",
    section=FORWARD_BACKWARD,
)
def mended_maps_slope_is_the_value(dy, x, W1, b1, W2, b2):
    return _maps(dy, x, W1, b1, W2, b2, slope=lambda before, dhidden: dhidden * _relu(before))


@mistake(
    "mended_feed_forward_backward",
    believed="The activation is off where its input is positive.",
    tell="Is the slope of ReLU 1 on the left of 0, or on the right?",
    section=FORWARD_BACKWARD,
)
def mended_maps_slope_on_the_wrong_side(dy, x, W1, b1, W2, b2):
    return _maps(dy, x, W1, b1, W2, b2, slope=lambda before, dhidden: dhidden * (before < 0))


@mistake(
    "mended_feed_forward_backward",
    believed="The gradient of the input goes back from the hidden layer.",
    tell="On the way back to x, does the gradient pass the activation before or after W1?",
    section=FORWARD_BACKWARD,
)
def mended_maps_dx_passes_no_activation(dy, x, W1, b1, W2, b2):
    return _maps(dy, x, W1, b1, W2, b2, dx=lambda dhidden, dbefore: dhidden @ W1.T)


@mistake(
    "mended_feed_forward_backward",
    believed="The input of a residual connection adds its own gradient here.",
    tell="Set W1 to 0. Does the output depend on x then?",
    section=RESIDUAL,
)
def mended_maps_dx_with_a_residual(dy, x, W1, b1, W2, b2):
    return _maps(dy, x, W1, b1, W2, b2, dx=lambda dhidden, dbefore: dy + dbefore @ W1.T)


@mistake(
    "mended_feed_forward_backward",
    believed="Axis 0 holds all the rows.",
    tell="For x of shape (2, 5, d), which shape does your gradient of a bias have?",
    section=FORWARD_BACKWARD,
)
def mended_maps_bias_sums_along_the_first_axis(dy, x, W1, b1, W2, b2):
    return _maps(dy, x, W1, b1, W2, b2, sums=lambda a: a.sum(axis=0))


@mistake(
    "mended_feed_forward_backward",
    believed="The gradient of a bias is the mean over the positions.",
    tell="Twice the positions with the same dy: does the gradient of a bias stay or double?",
    section=FORWARD_BACKWARD,
)
def mended_maps_bias_takes_means(dy, x, W1, b1, W2, b2):
    return _maps(dy, x, W1, b1, W2, b2, sums=lambda a: a.mean(axis=tuple(range(a.ndim - 1))))


@mistake(
    "mended_feed_forward_backward",
    believed="The gradient of W2 comes from what the first map gives.",
    tell="What is multiplied by W2 in the forward pass?",
    section=FORWARD_BACKWARD,
)
def mended_maps_hidden_not_clipped(dy, x, W1, b1, W2, b2):
    return _maps(dy, x, W1, b1, W2, b2, hidden=lambda x, W1, b1: x @ W1 + b1)


@mistake(
    "mended_feed_forward_backward",
    believed="Biases do not matter in a backward pass.",
    tell="Compute the hidden layer as the forward pass does, to the last term.",
    section=FORWARD_BACKWARD,
)
def mended_maps_hidden_without_bias(dy, x, W1, b1, W2, b2):
    return _maps(dy, x, W1, b1, W2, b2, hidden=lambda x, W1, b1: _relu(x @ W1))


# --- dropout ---


def _keep(x, p, rng):
    rng = np.random.default_rng() if rng is None else rng
    return rng.random(x.shape) >= p


@mistake(
    "dropout",
    believed="What stays is divided by the probability to drop.",
    tell="With p = 0.2, by which factor must what stays grow so that the mean is kept?",
    section=DROPOUT,
)
def dropout_divides_by_p(x, p, training=True, rng=None):
    if not training or p == 0:
        return x.copy()
    return x * _keep(x, p, rng) / p


@mistake(
    "dropout",
    believed="The kept values are scaled by the dropout probability.",
    tell="Is what stays larger or smaller than before in your result? It has to grow.",
    section=DROPOUT,
)
def dropout_wrong_rescaling(x, p, training=True, rng=None):
    return x * _keep(x, p, rng) * p if training else x


@mistake(
    "dropout",
    believed="Dropping is all there is to dropout.",
    tell="Take the mean of many numbers before and after. Is it kept?",
    section=DROPOUT,
)
def dropout_no_rescaling(x, p, training=True, rng=None):
    return x * _keep(x, p, rng) if training else x


@mistake(
    "dropout",
    believed="What stays is multiplied by the probability to stay.",
    tell="Take the mean of many numbers before and after. Does it grow or shrink?",
    section=DROPOUT,
)
def dropout_shrinks_what_stays(x, p, training=True, rng=None):
    return x * _keep(x, p, rng) * (1 - p) if training else x


@mistake(
    "dropout",
    believed="p is the probability to stay.",
    tell="With p = 0.2, which share of the numbers becomes 0 in your result?",
    section=DROPOUT,
)
def dropout_keeps_with_probability_p(x, p, training=True, rng=None):
    return x * _keep(x, 1 - p, rng) / p if training else x


@mistake(
    "dropout",
    believed="A random number below p means: keep.",
    tell="With p = 0.2, which share of the numbers becomes 0, and by what is the rest divided?",
    section=DROPOUT,
)
def dropout_comparison_turned_round(x, p, training=True, rng=None):
    return x * ~_keep(x, p, rng) / (1 - p) if training else x


@mistake(
    "dropout",
    believed="The rescaling is done in evaluation.",
    tell="What does a call with training=False have to return?",
    section=DROPOUT,
)
def dropout_rescales_in_evaluation(x, p, training=True, rng=None):
    return x * _keep(x, p, rng) if training else x * (1 - p)


@mistake(
    "dropout",
    believed="Dropout is always on.",
    tell="Where does your function use `training`?",
    section=DROPOUT,
)
def dropout_ignores_training(x, p, training=True, rng=None):
    return x * _keep(x, p, rng) / (1 - p)


@mistake(
    "dropout",
    believed="Nothing is dropped while training.",
    tell="In which of the two modes is something dropped?",
    section=DROPOUT,
)
def dropout_modes_exchanged(x, p, training=True, rng=None):
    return x if training else x * _keep(x, p, rng) / (1 - p)


@mistake(
    "dropout",
    believed="A token is dropped as a whole.",
    tell="Look at one row of your result. Do its numbers share one fate?",
    section=DROPOUT,
)
def dropout_drops_whole_rows(x, p, training=True, rng=None):
    return x * _keep(x[..., :1], p, rng) / (1 - p) if training else x


@mistake(
    "dropout",
    believed="A feature is dropped in all tokens at once.",
    tell="Look at one column of your result. Do its numbers share one fate?",
    section=DROPOUT,
)
def dropout_drops_whole_columns(x, p, training=True, rng=None):
    return x * _keep(x[..., :1, :], p, rng) / (1 - p) if training else x


@mistake(
    "dropout",
    believed="A fixed seed makes results repeatable.",
    tell="Where does your function use `rng`? Call it twice with one generator.",
    section=DROPOUT,
)
def dropout_ignores_the_generator(x, p, training=True, rng=None):
    return x * _keep(x, p, np.random.default_rng(0)) / (1 - p) if training else x


@mistake(
    "dropout",
    believed="The mean is kept exactly if one divides by the share that stayed.",
    tell="Is the factor of what stays the same in every call with the same p?",
    section=DROPOUT,
)
def dropout_divides_by_the_share_that_stayed(x, p, training=True, rng=None):
    if not training:
        return x
    keep = _keep(x, p, rng)
    return x * keep / max(keep.mean(), 1e-9)


@mistake(
    "dropout",
    believed="An argument may be overwritten.",
    tell="Print x before and after the call.",
    section=DROPOUT,
)
def dropout_in_place(x, p, training=True, rng=None):
    if training:
        x *= _keep(x, p, rng) / (1 - p)
    return x


@mistake(
    "dropout",
    believed="There is always a generator.",
    tell="What happens in your function when rng is None?",
    section=DROPOUT,
)
def dropout_needs_a_generator(x, p, training=True, rng=None):
    return x * (rng.random(x.shape) >= p) / (1 - p) if training else x


@mistake(
    "dropout",
    believed="A share p of the numbers is dropped in each call.",
    tell="How many numbers does your function drop in each of ten calls? Is it by chance?",
    section=DROPOUT,
)
def dropout_drops_an_exact_number(x, p, training=True, rng=None):
    if not training:
        return x
    rng = np.random.default_rng() if rng is None else rng
    order = rng.permutation(x.size).reshape(x.shape)
    return np.where(order < round(p * x.size), 0.0, x / (1 - p))


@mistake(
    "dropout",
    believed="A generator needs a seed.",
    tell="Call your function twice without rng. Are the same numbers dropped?",
    section=DROPOUT,
)
def dropout_seeds_the_generator_it_makes(x, p, training=True, rng=None):
    rng = np.random.default_rng(0) if rng is None else rng
    return x * _keep(x, p, rng) / (1 - p) if training else x


# --- mended_dropout ---


def _mask(x, p, rng):
    rng = np.random.default_rng() if rng is None else rng
    return rng.binomial(1, 1 - p, size=x.shape)  # as the code that is given draws


@mistake(
    "mended_dropout",
    believed="Both directions drop with the same probability, and that is enough.",
    tell="How often does your function ask rng for numbers? Which of them did y use?",
    section=DROPOUT,
)
def mended_dropout_still_draws_again(x, dy, p, training=True, rng=None):
    if not training:
        return x, dy
    rng = np.random.default_rng() if rng is None else rng
    y = x * _mask(x, p, rng) / (1 - p)
    return y, dy * _mask(x, p, rng) / (1 - p)


@mistake(
    "mended_dropout",
    believed="The factor belongs to the output alone.",
    tell="A number that stays: y = x / (1 - p). What is its derivative?",
    section=DROPOUT,
)
def mended_dropout_gradient_still_not_enlarged(x, dy, p, training=True, rng=None):
    if not training:
        return x, dy
    factor = _mask(x, p, rng) / (1 - p)
    return x * factor, dy * (factor > 0)


@mistake(
    "mended_dropout",
    believed="What is dropped in training is made up for in evaluation.",
    tell="What stays is enlarged in training already. By what is it made smaller in evaluation?",
    section=DROPOUT,
)
def mended_dropout_both_scaled_in_evaluation(x, dy, p, training=True, rng=None):
    if not training:
        return (1 - p) * x, (1 - p) * dy
    factor = _mask(x, p, rng) / (1 - p)
    return x * factor, dy * factor


@mistake(
    "mended_dropout",
    believed="Only the output has to be made smaller in evaluation.",
    tell="What stays is enlarged in training already. What is y in evaluation?",
    section=DROPOUT,
)
def mended_dropout_output_still_scaled_in_evaluation(x, dy, p, training=True, rng=None):
    if not training:
        return (1 - p) * x, dy
    factor = _mask(x, p, rng) / (1 - p)
    return x * factor, dy * factor


@mistake(
    "mended_dropout",
    believed="Only the gradient has to be made smaller in evaluation.",
    tell="In evaluation y is x. What is dx?",
    section=DROPOUT,
)
def mended_dropout_gradient_still_scaled_in_evaluation(x, dy, p, training=True, rng=None):
    if not training:
        return x, (1 - p) * dy
    factor = _mask(x, p, rng) / (1 - p)
    return x * factor, dy * factor


@mistake(
    "mended_dropout",
    believed="In evaluation nothing is learned, so the gradient is 0.",
    tell="In evaluation y is x. What is dx?",
    section=DROPOUT,
)
def mended_dropout_no_gradient_in_evaluation(x, dy, p, training=True, rng=None):
    if not training:
        return x, 0 * dy
    factor = _mask(x, p, rng) / (1 - p)
    return x * factor, dy * factor


@mistake(
    "mended_dropout",
    believed="Dropout is always on.",
    tell="Where does your function use `training`?",
    section=DROPOUT,
)
def mended_dropout_drops_in_evaluation(x, dy, p, training=True, rng=None):
    factor = _mask(x, p, rng) / (1 - p)
    return x * factor, dy * factor


@mistake(
    "mended_dropout",
    believed="Where y is 0, a number was dropped.",
    tell="Behind a ReLU half of x is 0. Is a number that is 0 and stays dropped?",
    section=DROPOUT,
)
def mended_dropout_reads_the_mask_from_y(x, dy, p, training=True, rng=None):
    if not training:
        return x, dy
    factor = _mask(x, p, rng) / (1 - p)
    y = x * factor
    return y, dy * (y != 0) / (1 - p)


@mistake(
    "mended_dropout",
    believed="Chance has no derivative, so the gradient passes.",
    tell="A number was dropped: does y depend on it? Then what is its gradient?",
    section=DROPOUT,
)
def mended_dropout_gradient_passes_whole(x, dy, p, training=True, rng=None):
    if not training:
        return x, dy
    factor = _mask(x, p, rng) / (1 - p)
    return x * factor, dy


@mistake(
    "mended_dropout",
    believed="Only the factor leads back.",
    tell="A number was dropped: does y depend on it? Then what is its gradient?",
    section=DROPOUT,
)
def mended_dropout_gradient_enlarged_everywhere(x, dy, p, training=True, rng=None):
    if not training:
        return x, dy
    factor = _mask(x, p, rng) / (1 - p)
    return x * factor, dy / (1 - p)


@mistake(
    "mended_dropout",
    believed="On the way back the factor is used once more.",
    tell="y is x times a factor. Is that factor squared in its derivative?",
    section=DROPOUT,
)
def mended_dropout_gradient_enlarged_twice(x, dy, p, training=True, rng=None):
    if not training:
        return x, dy
    factor = _mask(x, p, rng) / (1 - p)
    return x * factor, dy * factor / (1 - p)


@mistake(
    "mended_dropout",
    believed="The way back undoes the way out.",
    tell="y is x times a factor. Is the derivative that factor, or one over it?",
    section=DROPOUT,
)
def mended_dropout_gradient_divided_by_the_factor(x, dy, p, training=True, rng=None):
    if not training:
        return x, dy
    factor = _mask(x, p, rng) / (1 - p)
    return x * factor, dy * (factor > 0) * (1 - p)


@mistake(
    "mended_dropout",
    believed="The gradient goes to what was dropped.",
    tell="Which numbers of x does y depend on: those that stay, or those that are dropped?",
    section=DROPOUT,
)
def mended_dropout_gradient_where_it_dropped(x, dy, p, training=True, rng=None):
    if not training:
        return x, dy
    factor = _mask(x, p, rng) / (1 - p)
    return x * factor, dy * (factor == 0) / (1 - p)


@mistake(
    "mended_dropout",
    believed="The gradient is dy times the output.",
    tell="y = factor * x. Does the derivative with respect to x still hold an x?",
    section=DROPOUT,
)
def mended_dropout_multiplies_dy_by_y(x, dy, p, training=True, rng=None):
    if not training:
        return x, dy
    factor = _mask(x, p, rng) / (1 - p)
    return x * factor, dy * x * factor


@mistake(
    "mended_dropout",
    believed="With a fixed seed both draws are the same.",
    tell="Does your function drop the same numbers in every step of the training?",
    section=DROPOUT,
)
def mended_dropout_fixes_the_seed(x, dy, p, training=True, rng=None):
    if not training:
        return x, dy
    factor = _mask(x, p, np.random.default_rng(0)) / (1 - p)
    return x * factor, dy * factor


@mistake(
    "mended_dropout",
    believed="Without the factor both directions agree.",
    tell="Take the mean of many numbers before and after. Is it kept?",
    section=DROPOUT,
)
def mended_dropout_neither_enlarged(x, dy, p, training=True, rng=None):
    if not training:
        return x, dy
    factor = _mask(x, p, rng) / (1 - p)
    return x * (factor > 0), dy * (factor > 0)


@mistake(
    "mended_dropout",
    believed="The order of the results does not matter.",
    tell="Compare the order of what you return with the one that is asked for.",
    section=DROPOUT,
)
def mended_dropout_exchanges_its_results(x, dy, p, training=True, rng=None):
    if not training:
        return dy, x
    factor = _mask(x, p, rng) / (1 - p)
    return dy * factor, x * factor


# --- positional_encoding ---


def _interleaved(angle, d_model):
    encoding = np.zeros((len(angle), d_model))
    encoding[:, 0::2] = np.sin(angle)
    encoding[:, 1::2] = np.cos(angle)[:, : d_model // 2]
    return encoding


def _even(d_model):
    return np.arange(0, d_model, 2)


def _angle(L, d_model):
    return np.arange(L)[:, None] / 10000 ** (_even(d_model) / d_model)


@mistake(
    "positional_encoding",
    believed="The i of the formula is the column, and is doubled once more.",
    tell="What is the exponent of the last pair of columns? It stays below 1.",
    section=SINUSOIDS,
)
def pe_exponent_doubled(L, d_model):
    return _interleaved(np.arange(L)[:, None] / 10000 ** (2 * _even(d_model) / d_model), d_model)


@mistake(
    "positional_encoding",
    believed="The position is divided by the frequencies that were just inverted.",
    tell="Should the angle grow or shrink from one pair of columns to the next?",
    section=SINUSOIDS,
)
def pe_multiplied_instead_of_divided(L, d_model):
    return _interleaved(np.arange(L)[:, None] * 10000 ** (_even(d_model) / d_model), d_model)


@mistake(
    "positional_encoding",
    believed="Base and exponent can be exchanged.",
    tell="Which of 10000 and 2i / d_model is the base in your power?",
    section=SINUSOIDS,
)
def pe_power_swapped(L, d_model):
    return _interleaved(np.arange(L)[:, None] * (_even(d_model) / d_model) ** 1e-4, d_model)


@mistake(
    "positional_encoding",
    believed="All sines come first, then all cosines.",
    tell="Which function stands in column 1 of your result?",
    section=SINUSOIDS,
)
def pe_concat_not_interleaved(L, d_model):
    angle = _angle(L, d_model)
    return np.concatenate([np.sin(angle), np.cos(angle)], axis=1)[:, :d_model]


@mistake(
    "positional_encoding",
    believed="The first column is a cosine.",
    tell="What is row 0 of your result? Position 0 has the sine of 0 in column 0.",
    section=SINUSOIDS,
)
def pe_sin_cos_swapped(L, d_model):
    encoding, angle = np.zeros((L, d_model)), _angle(L, d_model)
    encoding[:, 0::2] = np.cos(angle)
    encoding[:, 1::2] = np.sin(angle)[:, : d_model // 2]
    return encoding


@mistake(
    "positional_encoding",
    believed="The first position is 1.",
    tell="What is row 0 of your result?",
    section=SINUSOIDS,
)
def pe_counts_from_one(L, d_model):
    return _interleaved(_angle(L + 1, d_model)[1:], d_model)


@mistake(
    "positional_encoding",
    believed="Every column has a frequency of its own.",
    tell="Columns 2i and 2i + 1 form a pair. Is sin² + cos² = 1 for each of your pairs?",
    section=SINUSOIDS,
)
def pe_frequency_for_each_column(L, d_model):
    column = np.arange(d_model)
    angle = np.arange(L)[:, None] / 10000 ** (column / d_model)
    return np.where(column % 2 == 0, np.sin(angle), np.cos(angle))


@mistake(
    "positional_encoding",
    believed="Both columns of a pair are sines.",
    tell="What is row 0 of your result?",
    section=SINUSOIDS,
)
def pe_sines_alone(L, d_model):
    return np.repeat(np.sin(_angle(L, d_model)), 2, axis=1)[:, :d_model]


@mistake(
    "positional_encoding",
    believed="Positions are measured as a share of the length.",
    tell="Does row 1 of your result depend on L? It should not.",
    section=SINUSOIDS,
)
def pe_scaled_by_the_length(L, d_model):
    return _interleaved(_angle(L, d_model) / L, d_model)


@mistake(
    "positional_encoding",
    believed="2i // d_model is 2i / d_model.",
    tell="Print your exponents. Are they all the same?",
    section=SINUSOIDS,
)
def pe_integer_division(L, d_model):
    return _interleaved(np.arange(L)[:, None] / 10000 ** (_even(d_model) // d_model), d_model)


@mistake(
    "positional_encoding",
    believed="Angles are in degrees.",
    tell="Which unit do np.sin and np.cos expect? The formula has no degrees in it.",
    section=SINUSOIDS,
)
def pe_in_degrees(L, d_model):
    return _interleaved(np.deg2rad(_angle(L, d_model)), d_model)


@mistake(
    "positional_encoding",
    believed="The width is always even.",
    tell="How many sines and how many cosines does a row of 5 numbers have?",
    section=SINUSOIDS,
)
def pe_fails_for_odd_widths(L, d_model):
    encoding, angle = np.zeros((L, d_model)), _angle(L, d_model)
    encoding[:, 0::2], encoding[:, 1::2] = np.sin(angle), np.cos(angle)
    return encoding


@mistake(
    "positional_encoding",
    believed="A feature without a partner stays 0.",
    tell="What stands in the last column for an odd width?",
    section=SINUSOIDS,
)
def pe_leaves_the_last_column_empty(L, d_model):
    encoding = _interleaved(_angle(L, d_model), d_model)
    if d_model % 2:
        encoding[:, -1] = 0
    return encoding


@mistake(
    "positional_encoding",
    believed="The width in the exponent is the next even number.",
    tell="For an odd width, by what do you divide 2i? It should be d_model itself.",
    section=SINUSOIDS,
)
def pe_rounds_the_width(L, d_model):
    return _interleaved(_angle(L, d_model + d_model % 2), d_model)


# --- rotary_encoding ---


def _turn(x, angle):
    first, second = x[..., 0::2], x[..., 1::2]
    cos, sin = np.cos(angle), np.sin(angle)
    parts = first * cos - second * sin, first * sin + second * cos
    return np.stack(parts, axis=-1).reshape(x.shape)


def _rotary_angle(x, positions):
    d = x.shape[-1]
    return np.asarray(positions)[:, None] / 10000 ** (_even(d) / d)


@mistake(
    "rotary_encoding",
    believed="The direction of a rotation does not matter.",
    tell="Turn the pair (1, 0) by a small angle. Is its second number positive?",
    section=ROTARY,
)
def rotary_turns_backwards(x, positions):
    return _turn(x, -_rotary_angle(x, positions))


@mistake(
    "rotary_encoding",
    believed="A feature in the first half is paired with one in the second half.",
    tell="Which feature is the partner of feature 0 in your function?",
    section=ROTARY,
)
def rotary_pairs_the_halves(x, positions):
    angle, half = _rotary_angle(x, positions), x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    cos, sin = np.cos(angle), np.sin(angle)
    return np.concatenate([first * cos - second * sin, first * sin + second * cos], axis=-1)


@mistake(
    "rotary_encoding",
    believed="Positions are added.",
    tell="How long is a pair before and after your function? A rotation keeps its length.",
    section=ROTARY,
)
def rotary_adds_sinusoids(x, positions):
    return x + _interleaved(_rotary_angle(x, positions), x.shape[-1])


@mistake(
    "rotary_encoding",
    believed="All pairs turn by the same angle.",
    tell="By how much does your last pair turn from one position to the next?",
    section=ROTARY,
)
def rotary_one_frequency(x, positions):
    return _turn(x, np.asarray(positions)[:, None] * np.ones(x.shape[-1] // 2))


@mistake(
    "rotary_encoding",
    believed="The positions are always 0, 1, 2, and so on.",
    tell="Where does your function use `positions`?",
    section=ROTARY,
)
def rotary_ignores_the_positions(x, positions):
    return _turn(x, _rotary_angle(x, np.arange(len(positions))))


@mistake(
    "rotary_encoding",
    believed="The first given position is the origin.",
    tell="What happens to the first token, if its position is 7?",
    section=ROTARY,
)
def rotary_starts_at_the_first_position(x, positions):
    return _turn(x, _rotary_angle(x, np.asarray(positions) - positions[0]))


@mistake(
    "rotary_encoding",
    believed="After the first number of a pair is turned, the second can be.",
    tell="Which value of the first number do you use for the second: the old or the new one?",
    section=ROTARY,
)
def rotary_reads_what_it_has_overwritten(x, positions):
    y, angle = x.copy(), _rotary_angle(x, positions)
    y[..., 0::2] = y[..., 0::2] * np.cos(angle) - y[..., 1::2] * np.sin(angle)
    y[..., 1::2] = y[..., 0::2] * np.sin(angle) + y[..., 1::2] * np.cos(angle)
    return y


@mistake(
    "rotary_encoding",
    believed="An argument may be overwritten.",
    tell="Print x before and after the call.",
    section=ROTARY,
)
def rotary_in_place(x, positions):
    x[...] = _turn(x, _rotary_angle(x, positions))
    return x


@mistake(
    "rotary_encoding",
    believed="A slice is a copy.",
    tell="Print x before and after the call. Which value of the first number does the second use?",
    section=ROTARY,
)
def rotary_in_place_reads_what_it_has_overwritten(x, positions):
    angle = _rotary_angle(x, positions)
    first, second = x[..., 0::2], x[..., 1::2]
    x[..., 0::2] = first * np.cos(angle) - second * np.sin(angle)
    x[..., 1::2] = first * np.sin(angle) + second * np.cos(angle)
    return x


@mistake(
    "rotary_encoding",
    believed="Both sines have the same sign.",
    tell="Turn the pair (0, 1) by a small angle. Which sign has its first number?",
    section=ROTARY,
)
def rotary_both_signs_plus(x, positions):
    angle = _rotary_angle(x, positions)
    first, second = x[..., 0::2], x[..., 1::2]
    cos, sin = np.cos(angle), np.sin(angle)
    parts = first * cos + second * sin, first * sin + second * cos
    return np.stack(parts, axis=-1).reshape(x.shape)


@mistake(
    "rotary_encoding",
    believed="Each feature is multiplied by its own cosine.",
    tell="How long is a pair before and after your function? A rotation keeps its length.",
    section=ROTARY,
)
def rotary_scales_by_cosines(x, positions):
    return x * np.repeat(np.cos(_rotary_angle(x, positions)), 2, axis=-1)


@mistake(
    "rotary_encoding",
    believed="The i of the formula is the column, and is doubled once more.",
    tell="What is the exponent of the last pair? It stays below 1.",
    section=ROTARY,
)
def rotary_exponent_doubled(x, positions):
    d = x.shape[-1]
    return _turn(x, np.asarray(positions)[:, None] / 10000 ** (2 * _even(d) / d))


@mistake(
    "rotary_encoding",
    believed="Angles are in degrees.",
    tell="Which unit do np.sin and np.cos expect?",
    section=ROTARY,
)
def rotary_in_degrees(x, positions):
    return _turn(x, np.deg2rad(_rotary_angle(x, positions)))


@mistake(
    "rotary_encoding",
    believed="The positions run along the first axis.",
    tell="For x of shape (2, 5, 4), which axis counts the tokens?",
    section=ROTARY,
)
def rotary_along_the_first_axis(x, positions):
    angle = _rotary_angle(x, positions)[: len(x)]
    return _turn(x, angle.reshape(len(angle), *[1] * (x.ndim - 2), -1))


# --- predicted_rows ---


def _rows(id, value, believed, tell, section=WHERE):
    return mistake_value("predicted_rows", id, value, believed=believed, tell=tell, section=section)


rows_without_gamma_and_beta = _rows(
    "rows-without-gamma-and-beta",
    ((0, 1), (3, 5)),
    "After a norm, a row has mean 0 and standard deviation 1.",
    "What do gamma and beta make of a row with mean 0 and standard deviation 1?",
    NORM,
)
rows_normalized_in_both_layers = _rows(
    "rows-normalized-in-both-layers",
    ((1, 2), (1, 2)),
    "Both kinds of layer give normalized rows.",
    "In a pre-norm layer, is a row normalized on the residual path, or on the way into a sublayer?",
)
rows_plain_in_both_layers = _rows(
    "rows-plain-in-both-layers",
    ((0, 1), (0, 1)),
    "A layer always gives rows of mean 0 and standard deviation 1.",
    "What do gamma and beta do? And is there a norm on the residual path of both layers?",
)
rows_norm_inside_the_residual = _rows(
    "rows-norm-inside-the-residual",
    ((5, 5), (3, 5)),
    "Post-norm adds the normalized output of a sublayer.",
    "Is the sum normalized, or what is added to it?",
)
rows_norm_compounds = _rows(
    "rows-norm-compounds",
    ((3, 4), (3, 5)),
    "The second norm scales and shifts what the first has scaled and shifted.",
    "What does a norm do to a row before it scales and shifts it?",
    NORM,
)
rows_exchanged = _rows(
    "rows-exchanged",
    ((3, 5), (1, 2)),
    "Pre-norm means that the row is normalized first.",
    "Where does the norm stand in each of the two: after the sum, or before the sublayer?",
)
rows_variance = _rows(
    "rows-variance",
    ((1, 4), (3, 25)),
    "The variance says the same as the standard deviation.",
    "The standard deviation is asked for. What is its square called?",
    NORM,
)
rows_pre_norm_adds_beta = _rows(
    "rows-pre-norm-adds-beta",
    ((1, 2), (5, 5)),
    "In a pre-norm layer the norms' beta reaches the output.",
    "A sublayer with weights 0 gets the normalized row. What does it give?",
)
rows_unchanged = _rows(
    "rows-unchanged",
    ((3, 5), (3, 5)),
    "Sublayers that add nothing leave the row as it was, whatever the norm.",
    "Which of the two layers has a norm on the path from x to the output?",
)


# --- encoder_layer ---


def _softmax(scores):
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def _attention(x, w, num_heads, mask=None):
    B, L, d = x.shape
    q, k, v = (
        (x @ w[f"W_{c}"] + w[f"b_{c}"]).reshape(B, L, num_heads, -1).transpose(0, 2, 1, 3)
        for c in "qkv"
    )
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    if mask is not None:
        scores = np.where(mask, scores, -np.inf)
    context = (_softmax(scores) @ v).transpose(0, 2, 1, 3).reshape(B, L, d)
    return context @ w["W_o"] + w["b_o"]


def _think(x, w):
    return _relu(x @ w["W1"] + w["b1"]) @ w["W2"] + w["b2"]


def _parts(w, num_heads, mask, norms=(1, 2)):
    """The four parts of a layer, each as a function of x alone."""

    def norm(number):
        return lambda x: _layer_norm(x, w[f"gamma{number}"], w[f"beta{number}"])

    first, second = norms
    return (
        lambda x: _attention(x, w, num_heads, mask),
        lambda x: _think(x, w),
        norm(first),
        norm(second),
    )


def _wire(x, attend, think, norm1, norm2, norm_first):
    if norm_first:
        x = x + attend(norm1(x))
        return x + think(norm2(x))
    x = norm1(x + attend(x))
    return norm2(x + think(x))


@mistake(
    "encoder_layer",
    believed="After `x = f(x)`, adding x is a residual connection.",
    tell="What does the name x stand for at the moment when you add it?",
    section=RESIDUAL,
)
def layer_adds_the_sublayer_to_itself(x, weights, num_heads, mask=None, norm_first=False):
    attend, think, norm1, norm2 = _parts(weights, num_heads, mask)
    if norm_first:
        x = 2 * attend(norm1(x))
        return x + think(norm2(x))
    x = norm1(2 * attend(x))
    return norm2(x + think(x))


@mistake(
    "encoder_layer",
    believed="A norm is a function, and one will do.",
    tell="Which of gamma1, gamma2, beta1, beta2 does your function never use?",
    section=WHOLE,
)
def layer_uses_one_norm_twice(x, weights, num_heads, mask=None, norm_first=False):
    return _wire(x, *_parts(weights, num_heads, mask, norms=(1, 1)), norm_first)


@mistake(
    "encoder_layer",
    believed="The norms can stand in any order.",
    tell="Which norm belongs to the attention, and which to the feed-forward network?",
    section=WHOLE,
)
def layer_exchanges_the_norms(x, weights, num_heads, mask=None, norm_first=False):
    return _wire(x, *_parts(weights, num_heads, mask, norms=(2, 1)), norm_first)


@mistake(
    "encoder_layer",
    believed="The norms' weights are 1 and 0.",
    tell="Where does your function use gamma1, gamma2, beta1 and beta2?",
    section=NORM,
)
def layer_ignores_the_norms_weights(x, weights, num_heads, mask=None, norm_first=False):
    d = x.shape[-1]
    plain = {f"{name}{i}": np.full(d, value) for name, value in GAMMA_BETA for i in "12"}
    return _wire(x, *_parts(weights | plain, num_heads, mask), norm_first)


GAMMA_BETA = (("gamma", 1.0), ("beta", 0.0))


@mistake(
    "encoder_layer",
    believed="Post-norm adds the normalized output of a sublayer.",
    tell="Is the sum normalized, or what is added to it? Look at the mean of an output row.",
    section=WHERE,
)
def layer_normalizes_inside_the_residual(x, weights, num_heads, mask=None, norm_first=False):
    attend, think, norm1, norm2 = _parts(weights, num_heads, mask)
    if norm_first:
        return _wire(x, attend, think, norm1, norm2, True)
    x = x + norm1(attend(x))
    return x + norm2(think(x))


@mistake(
    "encoder_layer",
    believed="Attention replaces its input.",
    tell="What is added to the attention's output before it goes on?",
    section=RESIDUAL,
)
def layer_without_first_residual(x, weights, num_heads, mask=None, norm_first=False):
    attend, think, norm1, norm2 = _parts(weights, num_heads, mask)
    if norm_first:
        x = attend(norm1(x))
        return x + think(norm2(x))
    x = norm1(attend(x))
    return norm2(x + think(x))


@mistake(
    "encoder_layer",
    believed="The feed-forward network replaces its input.",
    tell="What is added to the output of the feed-forward network?",
    section=RESIDUAL,
)
def layer_without_second_residual(x, weights, num_heads, mask=None, norm_first=False):
    attend, think, norm1, norm2 = _parts(weights, num_heads, mask)
    if norm_first:
        return think(norm2(x + attend(norm1(x))))
    return norm2(think(norm1(x + attend(x))))


@mistake(
    "encoder_layer",
    believed="Both residual connections start at the layer's input.",
    tell="What goes into the second sublayer, and what is added to its output?",
    section=RESIDUAL,
)
def layer_adds_its_input_twice(x, weights, num_heads, mask=None, norm_first=False):
    attend, think, norm1, norm2 = _parts(weights, num_heads, mask)
    if norm_first:
        return x + think(norm2(x + attend(norm1(x))))
    return norm2(x + think(norm1(x + attend(x))))


@mistake(
    "encoder_layer",
    believed="In a pre-norm layer the normalized input is what goes on.",
    tell="In a pre-norm layer, is x itself added to the sublayer's output, or x normalized?",
    section=WHERE,
)
def layer_adds_the_normalized_input(x, weights, num_heads, mask=None, norm_first=False):
    attend, think, norm1, norm2 = _parts(weights, num_heads, mask)
    if norm_first:
        x = norm1(x)
        x = norm2(x + attend(x))
        return x + think(x)
    return _wire(x, attend, think, norm1, norm2, False)


@mistake(
    "encoder_layer",
    believed="The place of the norm does not matter.",
    tell="Where does your function use `norm_first`?",
    section=WHERE,
)
def layer_is_always_post_norm(x, weights, num_heads, mask=None, norm_first=False):
    return _wire(x, *_parts(weights, num_heads, mask), False)


@mistake(
    "encoder_layer",
    believed="The place of the norm does not matter; pre-norm is what is used today.",
    tell="Where does your function use `norm_first`, and what is its default?",
    section=WHERE,
)
def layer_is_always_pre_norm(x, weights, num_heads, mask=None, norm_first=False):
    return _wire(x, *_parts(weights, num_heads, mask), True)


@mistake(
    "encoder_layer",
    believed="norm_first=True means post-norm.",
    tell="With norm_first=True, what comes first: the norm or the sublayer?",
    section=WHERE,
)
def layer_exchanges_pre_and_post(x, weights, num_heads, mask=None, norm_first=False):
    return _wire(x, *_parts(weights, num_heads, mask), not norm_first)


@mistake(
    "encoder_layer",
    believed="A pre-norm layer ends with a norm.",
    tell="What is the last step of a pre-norm layer? What a whole stack adds is another matter.",
    section=WHERE,
)
def layer_pre_norm_with_a_norm_at_the_end(x, weights, num_heads, mask=None, norm_first=False):
    parts = _parts(weights, num_heads, mask)
    y = _wire(x, *parts, norm_first)
    return parts[3](y) if norm_first else y


@mistake(
    "encoder_layer",
    believed="In a pre-norm layer one norm for the layer's input is enough.",
    tell="In a pre-norm layer, what goes into the feed-forward network?",
    section=WHERE,
)
def layer_pre_norm_without_second_norm(x, weights, num_heads, mask=None, norm_first=False):
    attend, think, norm1, norm2 = _parts(weights, num_heads, mask)
    if norm_first:
        x = x + attend(norm1(x))
        return x + think(x)
    return _wire(x, attend, think, norm1, norm2, False)


@mistake(
    "encoder_layer",
    believed="The layer has no use for the mask.",
    tell="Where does your function hand on the mask?",
    section=WHOLE,
)
def layer_drops_the_mask(x, weights, num_heads, mask=None, norm_first=False):
    return _wire(x, *_parts(weights, num_heads, None), norm_first)


@mistake(
    "encoder_layer",
    believed="The mask is needed in one branch only.",
    tell="Compare the calls of the attention in both branches of your function.",
    section=WHOLE,
)
def layer_drops_the_mask_in_pre_norm(x, weights, num_heads, mask=None, norm_first=False):
    return _wire(x, *_parts(weights, num_heads, None if norm_first else mask), norm_first)


@mistake(
    "encoder_layer",
    believed="True in a mask means: ignore.",
    tell="Which keys does True allow here, and which does your code hide?",
    section=WHOLE,
)
def layer_inverts_the_mask(x, weights, num_heads, mask=None, norm_first=False):
    return _wire(x, *_parts(weights, num_heads, None if mask is None else ~mask), norm_first)


@mistake(
    "encoder_layer",
    believed="The feed-forward network comes first.",
    tell="Which sublayer comes first?",
    section=WHOLE,
)
def layer_exchanges_the_sublayers(x, weights, num_heads, mask=None, norm_first=False):
    attend, think, norm1, norm2 = _parts(weights, num_heads, mask)
    return _wire(x, think, attend, norm2, norm1, norm_first)


@mistake(
    "encoder_layer",
    believed="A layer is attention alone.",
    tell="How many sublayers does a layer have?",
    section=WHOLE,
)
def layer_without_feed_forward(x, weights, num_heads, mask=None, norm_first=False):
    attend, _, norm1, _ = _parts(weights, num_heads, mask)
    return x + attend(norm1(x)) if norm_first else norm1(x + attend(x))


@mistake(
    "encoder_layer",
    believed="Two linear maps are already a network.",
    tell="What stands between the two maps of the feed-forward network?",
    section=LOST,
)
def layer_without_activation(x, weights, num_heads, mask=None, norm_first=False):
    attend, _, norm1, norm2 = _parts(weights, num_heads, mask)
    w = weights

    def think(x):
        return (x @ w["W1"] + w["b1"]) @ w["W2"] + w["b2"]

    return _wire(x, attend, think, norm1, norm2, norm_first)


@mistake(
    "encoder_layer",
    believed="The number of heads does not change the result.",
    tell="Where does your function use `num_heads`?",
    section=WHOLE,
)
def layer_with_one_head(x, weights, num_heads, mask=None, norm_first=False):
    return _wire(x, *_parts(weights, 1, mask), norm_first)


@mistake(
    "encoder_layer",
    believed="`x += ...` is the short form of `x = x + ...`.",
    tell="Print x before and after the call. Whose array does `+=` change?",
    section=RESIDUAL,
)
def layer_changes_x(x, weights, num_heads, mask=None, norm_first=False):
    attend, think, norm1, norm2 = _parts(weights, num_heads, mask)
    if norm_first:
        x += attend(norm1(x))
        x += think(norm2(x))
        return x
    x += attend(x)
    x = norm1(x)
    return norm2(x + think(x))


@mistake(
    "encoder_layer",
    believed="The dict belongs to the function.",
    tell="Print the keys of `weights` before and after the call.",
    section=WHOLE,
)
def layer_takes_weights_out_of_the_dict(x, weights, num_heads, mask=None, norm_first=False):
    y = _wire(x, *_parts(weights, num_heads, mask), norm_first)
    weights.pop("gamma1")
    return y


# --- PositionalEncoding ---


@functools.cache
def _positions_class():
    """Make the right module, in steps that a mistake can replace."""
    import torch
    from torch import nn

    class Positions(nn.Module):
        def __init__(self, d_model, max_len=512):
            super().__init__()
            self.hold(torch.tensor(self.table(max_len, d_model)).float())

        def table(self, max_len, d_model):
            return _interleaved(_angle(max_len, d_model), d_model)

        def hold(self, table):
            self.register_buffer("pe", table)

        def forward(self, x):
            return x + self.pe[: x.shape[1]]

    return Positions


def _positions(d_model, max_len, **replaced):
    return type("Positions", (_positions_class(),), replaced)(d_model, max_len)


@mistake(
    "PositionalEncoding",
    believed="`pe[L]` is the first L rows.",
    tell="Print the shape of what you add. How many positions does it stand for?",
    section=TWIN,
)
def pe_single_position_indexed(d_model, max_len=512):
    return _positions(d_model, max_len, forward=lambda self, x: x + self.pe[x.shape[1]])


@mistake(
    "PositionalEncoding",
    believed="`nn.Parameter` is how a module stores a tensor.",
    tell="What would an optimizer do with your table?",
    section=TWIN,
)
def pe_trainable_parameter(d_model, max_len=512):
    def hold(self, table):
        from torch import nn

        self.pe = nn.Parameter(table)

    return _positions(d_model, max_len, hold=hold)


@mistake(
    "PositionalEncoding",
    believed="Any attribute of a module belongs to it.",
    tell="After `module.double()` or `module.to(device)`, where is your table?",
    section=TWIN,
)
def pe_plain_attribute(d_model, max_len=512):
    return _positions(d_model, max_len, hold=lambda self, table: setattr(self, "pe", table))


@mistake(
    "PositionalEncoding",
    believed="The first axis of x counts the tokens.",
    tell="x has shape (B, L, d_model). Which of its sizes picks the rows of the table?",
    section=TWIN,
)
def pe_rows_for_the_batch(d_model, max_len=512):
    return _positions(
        d_model, max_len, forward=lambda self, x: x + self.pe[: x.shape[0]].unsqueeze(1)
    )


@mistake(
    "PositionalEncoding",
    believed="Positions weigh the features.",
    tell="Is the table added, or multiplied? What happens at position 0?",
    section=SINUSOIDS,
)
def pe_multiplied_with_x(d_model, max_len=512):
    return _positions(d_model, max_len, forward=lambda self, x: x * self.pe[: x.shape[1]])


@mistake(
    "PositionalEncoding",
    believed="x is scaled up first, as embeddings are.",
    tell="What is added to what? Nothing is scaled in this question.",
    section=SINUSOIDS,
)
def pe_scales_x(d_model, max_len=512):
    return _positions(
        d_model,
        max_len,
        forward=lambda self, x: x * math.sqrt(x.shape[-1]) + self.pe[: x.shape[1]],
    )


@mistake(
    "PositionalEncoding",
    believed="The module returns the encoding.",
    tell="Does your output depend on x?",
    section=TWIN,
)
def pe_returned_without_x(d_model, max_len=512):
    return _positions(
        d_model, max_len, forward=lambda self, x: self.pe[: x.shape[1]].expand_as(x).clone()
    )


@mistake(
    "PositionalEncoding",
    believed="`+=` on a slice of the buffer makes a new tensor.",
    tell="Call your module twice. Is the buffer the same before and after?",
    section=TWIN,
)
def pe_buffer_changed_by_the_call(d_model, max_len=512):
    def forward(self, x):
        rows = self.pe[: x.shape[1]]
        rows += x[0]
        return x - x[0] + rows

    return _positions(d_model, max_len, forward=forward)


@mistake(
    "PositionalEncoding",
    believed="Positions are a feature of their own.",
    tell="Compare the shape of your output with that of x.",
    section=TWIN,
)
def pe_appended_to_x(d_model, max_len=512):
    def forward(self, x):
        import torch

        return torch.cat([x, self.pe[: x.shape[1]].expand_as(x)], dim=-1)

    return _positions(d_model, max_len, forward=forward)


@mistake(
    "PositionalEncoding",
    believed="The width is always even.",
    tell="How many sines and how many cosines does a row of 5 numbers have?",
    section=SINUSOIDS,
)
def pe_module_fails_for_odd_widths(d_model, max_len=512):
    def table(self, max_len, d_model):
        return pe_fails_for_odd_widths.answer(max_len, d_model)

    return _positions(d_model, max_len, table=table)


@mistake(
    "PositionalEncoding",
    believed="All sines come first, then all cosines.",
    tell="Which function stands in column 1 of your table?",
    section=SINUSOIDS,
)
def pe_module_not_interleaved(d_model, max_len=512):
    def table(self, max_len, d_model):
        return pe_concat_not_interleaved.answer(max_len, d_model)

    return _positions(d_model, max_len, table=table)


@mistake(
    "PositionalEncoding",
    believed="The first position is 1.",
    tell="What is added to the token at position 0?",
    section=SINUSOIDS,
)
def pe_module_counts_from_one(d_model, max_len=512):
    def table(self, max_len, d_model):
        return pe_counts_from_one.answer(max_len, d_model)

    return _positions(d_model, max_len, table=table)


@mistake(
    "PositionalEncoding",
    believed="The last position is max_len, and it is not needed.",
    tell="How many rows does your table have? A sequence may be as long as max_len.",
    section=TWIN,
)
def pe_table_one_row_short(d_model, max_len=512):
    def table(self, max_len, d_model):
        return _interleaved(_angle(max_len - 1, d_model), d_model)

    return _positions(d_model, max_len, table=table)


@mistake(
    "PositionalEncoding",
    believed="No sequence is longer than 512.",
    tell="Where does your module use `max_len`?",
    section=TWIN,
)
def pe_ignores_max_len(d_model, max_len=512):
    return _positions(d_model, 512)


@mistake(
    "PositionalEncoding",
    believed="A tensor made from a NumPy array has PyTorch's default dtype.",
    tell="Print the dtype of your table, and that of the output for a float32 x.",
    section=TWIN,
)
def pe_table_in_float64(d_model, max_len=512):
    return _positions(
        d_model, max_len, hold=lambda self, table: self.register_buffer("pe", table.double())
    )


@mistake(
    "PositionalEncoding",
    believed="Positions are computed in single precision, whatever x is.",
    tell="Which dtype does your output have after `module.half()`?",
    section=TWIN,
)
def pe_casts_to_float32(d_model, max_len=512):
    return _positions(
        d_model, max_len, forward=lambda self, x: x.float() + self.pe[: x.shape[1]].float()
    )


@mistake(
    "PositionalEncoding",
    believed="Dropout belongs to every module.",
    tell="Run your module in evaluation and in training mode. Is the output x plus the table?",
    section=TWIN,
)
def pe_normalizes_the_sum(d_model, max_len=512):
    def forward(self, x):
        y = x + self.pe[: x.shape[1]]
        return (y - y.mean(-1, keepdim=True)) / y.std(-1, keepdim=True)

    return _positions(d_model, max_len, forward=forward)


# --- EncoderLayer and MendedEncoderLayer ---


@functools.cache
def _layer_class():
    """Make the right layer in PyTorch, in steps that a mistake can replace."""
    import torch
    from torch import nn

    class Layer(nn.Module):
        def __init__(self, d_model, num_heads, d_ff, dropout, norm_first=False):
            super().__init__()
            self.sizes = (d_model, num_heads, d_ff)
            self.p, self.norm_first = dropout, norm_first
            self.parts(d_model, num_heads, d_ff)

        def parts(self, d_model, num_heads, d_ff):
            self.self_attn = nn.MultiheadAttention(
                d_model, num_heads, dropout=self.p, batch_first=True
            )
            self.linear1 = nn.Linear(d_model, d_ff)
            self.linear2 = nn.Linear(d_ff, d_model)
            self.norm1, self.norm2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)

        def ignored(self, mask, x):
            """What `nn.MultiheadAttention` is to ignore: True = ignore, (B * h, L, L)."""
            if mask is None:
                return None
            B, L, _ = x.shape
            return ~mask.expand(B, self.sizes[1], L, L).reshape(-1, L, L)

        def drop(self, x):
            return torch.dropout(x, self.p, self.training)

        def attend(self, x, mask):
            hidden = self.ignored(mask, x)
            return self.drop(self.self_attn(x, x, x, attn_mask=hidden, need_weights=False)[0])

        def activate(self, x):
            return torch.relu(x)

        def think(self, x):
            return self.drop(self.linear2(self.drop(self.activate(self.linear1(x)))))

        def forward(self, x, mask=None):
            first = self.norm_first
            wired = functools.partial(_wire, norm1=self.norm1, norm2=self.norm2, norm_first=first)
            return wired(x, lambda x: self.attend(x, mask), self.think)

    return Layer


def _layer(arguments, **replaced):
    return type("Layer", (_layer_class(),), replaced)(*arguments)


@mistake(
    "EncoderLayer",
    believed="After `x = f(x)`, adding x is a residual connection.",
    tell="What does the name x stand for at the moment when you add it?",
    section=RESIDUAL,
)
def encoder_residual_adds_itself(d_model, num_heads, d_ff, dropout, norm_first=False):
    def forward(self, x, mask=None):
        if self.norm_first:
            x = 2 * self.attend(self.norm1(x), mask)
            return x + self.think(self.norm2(x))
        x = self.norm1(2 * self.attend(x, mask))
        return self.norm2(x + self.think(x))

    return _layer((d_model, num_heads, d_ff, dropout, norm_first), forward=forward)


def _shared_norm(self, x, mask=None):
    return _wire(
        x, lambda x: self.attend(x, mask), self.think, self.norm1, self.norm1, self.norm_first
    )


@mistake(
    "EncoderLayer",
    believed="A norm is a function, and one object serves both sublayers.",
    tell="After a backward pass, which parameter of your layer has no gradient?",
    section=WRONG,
)
def encoder_shared_norm(d_model, num_heads, d_ff, dropout, norm_first=False):
    return _layer((d_model, num_heads, d_ff, dropout, norm_first), forward=_shared_norm)


def _swapped_norms(self, x, mask=None):
    return _wire(
        x, lambda x: self.attend(x, mask), self.think, self.norm2, self.norm1, self.norm_first
    )


@mistake(
    "EncoderLayer",
    believed="The norms can stand in any order.",
    tell="Which of norm1 and norm2 belongs to the attention?",
    section=WHOLE,
)
def encoder_norms_exchanged(d_model, num_heads, d_ff, dropout, norm_first=False):
    return _layer((d_model, num_heads, d_ff, dropout, norm_first), forward=_swapped_norms)


@mistake(
    "EncoderLayer",
    believed="'Add & Norm' means adding the normalized output of a sublayer.",
    tell="Is the sum normalized, or what is added to it? Look at the mean of an output row.",
    section=WHERE,
)
def encoder_norm_inside_residual(d_model, num_heads, d_ff, dropout, norm_first=False):
    def forward(self, x, mask=None):
        if self.norm_first:
            return _layer_class().forward(self, x, mask)
        x = x + self.norm1(self.attend(x, mask))
        return x + self.norm2(self.think(x))

    return _layer((d_model, num_heads, d_ff, dropout, norm_first), forward=forward)


def _always_drop(self, x):
    import torch

    return torch.dropout(x, self.p, True)


@mistake(
    "EncoderLayer",
    believed="Functional dropout knows about `module.eval()`.",
    tell="Call your layer twice in evaluation mode, with dropout 0.5. Who tells dropout the mode?",
    section=WRONG,
)
def encoder_dropout_active_in_eval(d_model, num_heads, d_ff, dropout, norm_first=False):
    return _layer((d_model, num_heads, d_ff, dropout, norm_first), drop=_always_drop)


@mistake(
    "EncoderLayer",
    believed="Dropout inside of the attention is enough.",
    tell="What does each sublayer add to x in training mode? It should pass through dropout first.",
    section=DROPOUT,
)
def encoder_dropout_missing(d_model, num_heads, d_ff, dropout, norm_first=False):
    return _layer((d_model, num_heads, d_ff, dropout, norm_first), drop=lambda self, x: x)


@mistake(
    "EncoderLayer",
    believed="Dropout acts on the sum.",
    tell="Can your dropout set a number of x itself to 0? What it may touch is what is added to x.",
    section=DROPOUT,
)
def encoder_dropout_on_the_sum(d_model, num_heads, d_ff, dropout, norm_first=False):
    def forward(self, x, mask=None):
        p, self.p = self.p, 0.0
        drop = functools.partial(self.drop_by, p)
        if self.norm_first:
            x = drop(x + self.attend(self.norm1(x), mask))
            x = drop(x + self.think(self.norm2(x)))
        else:
            x = self.norm1(drop(x + self.attend(x, mask)))
            x = self.norm2(drop(x + self.think(x)))
        self.p = p
        return x

    def drop_by(self, p, x):
        import torch

        return torch.dropout(x, p, self.training)

    options = (d_model, num_heads, d_ff, dropout, norm_first)
    return _layer(options, forward=forward, drop_by=drop_by)


@mistake(
    "EncoderLayer",
    believed="The argument of `nn.Dropout` is the probability to keep.",
    tell="With dropout = 0.1, which share of the numbers becomes 0 in your layer?",
    section=DROPOUT,
)
def encoder_dropout_keeps_with_probability_p(d_model, num_heads, d_ff, dropout, norm_first=False):
    def drop(self, x):
        import torch

        return torch.dropout(x, 1 - self.p, self.training)

    return _layer((d_model, num_heads, d_ff, dropout, norm_first), drop=drop)


@mistake(
    "EncoderLayer",
    believed="`nn.MultiheadAttention` reads masks as this course does.",
    tell="What does True mean in the mask of `nn.MultiheadAttention`, and what does it mean here?",
    section=WRONG,
)
def encoder_mask_inverted(d_model, num_heads, d_ff, dropout, norm_first=False):
    def ignored(self, mask, x):
        hidden = _layer_class().ignored(self, mask, x)
        return None if hidden is None else ~hidden

    return _layer((d_model, num_heads, d_ff, dropout, norm_first), ignored=ignored)


@mistake(
    "EncoderLayer",
    believed="The layer has no use for the mask.",
    tell="Where does your layer hand on the mask?",
    section=WHOLE,
)
def encoder_mask_dropped(d_model, num_heads, d_ff, dropout, norm_first=False):
    return _layer(
        (d_model, num_heads, d_ff, dropout, norm_first), ignored=lambda self, mask, x: None
    )


@mistake(
    "EncoderLayer",
    believed="A mask is a matrix for queries and keys.",
    tell="Try a mask of shape (B, 1, 1, L). Does your layer use it?",
    section=WHOLE,
)
def encoder_padding_mask_ignored(d_model, num_heads, d_ff, dropout, norm_first=False):
    def ignored(self, mask, x):
        return ~mask if mask is not None and mask.dim() == 2 else None

    return _layer((d_model, num_heads, d_ff, dropout, norm_first), ignored=ignored)


@mistake(
    "EncoderLayer",
    believed="A mask can be multiplied with the tokens.",
    tell="A token with zeros still has a key. Does it get weight 0 in your layer?",
    section=WHOLE,
)
def encoder_padding_mask_clears_tokens(d_model, num_heads, d_ff, dropout, norm_first=False):
    def attend(self, x, mask):
        if mask is not None and mask.dim() == 4:
            x, mask = x * mask[:, 0, 0, :, None], None
        return _layer_class().attend(self, x, mask)

    return _layer((d_model, num_heads, d_ff, dropout, norm_first), attend=attend)


@mistake(
    "EncoderLayer",
    believed="A mask is added to the scores as it is.",
    tell="What does your mask add to a score that it should hide?",
    section=WHOLE,
)
def encoder_mask_added_as_numbers(d_model, num_heads, d_ff, dropout, norm_first=False):
    def ignored(self, mask, x):
        hidden = _layer_class().ignored(self, mask, x)
        return None if hidden is None else (~hidden).to(x.dtype)

    return _layer((d_model, num_heads, d_ff, dropout, norm_first), ignored=ignored)


@mistake(
    "EncoderLayer",
    believed="The default dtype is the dtype of every tensor.",
    tell="Which dtype does the mask have that you add to the scores, after `layer.double()`?",
    section=TWIN,
)
def encoder_mask_in_float32(d_model, num_heads, d_ff, dropout, norm_first=False):
    def ignored(self, mask, x):
        import torch

        hidden = _layer_class().ignored(self, mask, x)
        if hidden is None:
            return None
        added = torch.zeros(hidden.shape, dtype=torch.float32).masked_fill(hidden, -math.inf)
        return added if x.dtype == torch.float32 else _refuse(added, x)

    return _layer((d_model, num_heads, d_ff, dropout, norm_first), ignored=ignored)


def _refuse(added, x):
    raise RuntimeError(f"Expected attn_mask of {x.dtype}, got {added.dtype}")


@mistake(
    "EncoderLayer",
    believed="The place of the norm does not matter.",
    tell="Where does your layer use `norm_first`?",
    section=WHERE,
)
def encoder_norm_first_ignored(d_model, num_heads, d_ff, dropout, norm_first=False):
    return _layer((d_model, num_heads, d_ff, dropout, False))


@mistake(
    "EncoderLayer",
    believed="In a pre-norm layer the normalized input is what goes on.",
    tell="In a pre-norm layer, is x itself added to the sublayer's output, or x normalized?",
    section=WHERE,
)
def encoder_residual_from_the_norm(d_model, num_heads, d_ff, dropout, norm_first=False):
    def forward(self, x, mask=None):
        if not self.norm_first:
            return _layer_class().forward(self, x, mask)
        x = self.norm1(x)
        x = self.norm2(x + self.attend(x, mask))
        return x + self.think(x)

    return _layer((d_model, num_heads, d_ff, dropout, norm_first), forward=forward)


@mistake(
    "EncoderLayer",
    believed="Both residual connections start at the layer's input.",
    tell="What goes into the second sublayer, and what is added to its output?",
    section=RESIDUAL,
)
def encoder_adds_its_input_twice(d_model, num_heads, d_ff, dropout, norm_first=False):
    def forward(self, x, mask=None):
        if self.norm_first:
            return x + self.think(self.norm2(x + self.attend(self.norm1(x), mask)))
        return self.norm2(x + self.think(self.norm1(x + self.attend(x, mask))))

    return _layer((d_model, num_heads, d_ff, dropout, norm_first), forward=forward)


@mistake(
    "EncoderLayer",
    believed="Attention reads (B, L, d_model) by itself.",
    tell="Which axis does `nn.MultiheadAttention` take for the tokens, unless it is told?",
    section=TWIN,
)
def encoder_batch_and_tokens_exchanged(d_model, num_heads, d_ff, dropout, norm_first=False):
    def attend(self, x, mask):
        return _layer_class().attend(self, x.transpose(0, 1), mask).transpose(0, 1)

    return _layer((d_model, num_heads, d_ff, dropout, norm_first), attend=attend)


@mistake(
    "EncoderLayer",
    believed="Two linear maps are already a network.",
    tell="What stands between linear1 and linear2?",
    section=LOST,
)
def encoder_without_activation(d_model, num_heads, d_ff, dropout, norm_first=False):
    return _layer((d_model, num_heads, d_ff, dropout, norm_first), activate=lambda self, x: x)


@mistake(
    "EncoderLayer",
    believed="Names of attributes are a matter of taste.",
    tell="Print `layer.state_dict().keys()` beside that of `nn.TransformerEncoderLayer`.",
    section=PARITY,
)
def encoder_norms_named_otherwise(d_model, num_heads, d_ff, dropout, norm_first=False):
    def parts(self, *sizes):
        _layer_class().parts(self, *sizes)
        self.layer_norm1, self.layer_norm2 = self.norm1, self.norm2
        del self.norm1, self.norm2

    def forward(self, x, mask=None):
        norms = self.layer_norm1, self.layer_norm2
        return _wire(x, lambda x: self.attend(x, mask), self.think, *norms, self.norm_first)

    options = (d_model, num_heads, d_ff, dropout, norm_first)
    return _layer(options, parts=parts, forward=forward)


@mistake(
    "EncoderLayer",
    believed="A layer has a third norm, for its end.",
    tell="Which of your parameters does `nn.TransformerEncoderLayer` not have?",
    section=PARITY,
)
def encoder_with_a_norm_too_many(d_model, num_heads, d_ff, dropout, norm_first=False):
    def parts(self, *sizes):
        from torch import nn

        _layer_class().parts(self, *sizes)
        self.norm3 = nn.LayerNorm(sizes[0])

    return _layer((d_model, num_heads, d_ff, dropout, norm_first), parts=parts)


@mistake(
    "EncoderLayer",
    believed="Linear maps before a norm need no bias.",
    tell="Which parameters does `nn.TransformerEncoderLayer` have that yours has not?",
    section=PARITY,
)
def encoder_linear_without_bias(d_model, num_heads, d_ff, dropout, norm_first=False):
    def parts(self, d_model, num_heads, d_ff):
        from torch import nn

        _layer_class().parts(self, d_model, num_heads, d_ff)
        self.linear2 = nn.Linear(d_ff, d_model, bias=False)

    return _layer((d_model, num_heads, d_ff, dropout, norm_first), parts=parts)


@mistake(
    "EncoderLayer",
    believed="Attention is used as it is, and needs no gradient.",
    tell="After a backward pass, which parameters of your layer have no gradient?",
    section=TWIN,
)
def encoder_attention_detached(d_model, num_heads, d_ff, dropout, norm_first=False):
    def attend(self, x, mask):
        return _layer_class().attend(self, x, mask).detach()

    return _layer((d_model, num_heads, d_ff, dropout, norm_first), attend=attend)


# the broken layer of the question, with one fault of it left


@mistake(
    "MendedEncoderLayer",
    believed="`F.dropout` knows about `module.eval()`.",
    tell="Call the layer twice in evaluation mode, with dropout 0.5. Who tells F.dropout the mode?",
    section=WRONG,
)
def mended_layer_still_drops_in_eval(d_model, num_heads, d_ff, dropout, norm_first=False):
    return _layer((d_model, num_heads, d_ff, dropout, norm_first), drop=_always_drop)


@mistake(
    "MendedEncoderLayer",
    believed="Without dropout, evaluation is no longer random.",
    tell="Does your layer still drop in training?",
    section=WRONG,
)
def mended_layer_without_dropout(d_model, num_heads, d_ff, dropout, norm_first=False):
    return _layer((d_model, num_heads, d_ff, 0.0, norm_first))


@mistake(
    "MendedEncoderLayer",
    believed="The mask is right, since it has the right shape.",
    tell="What does True mean in the mask of `nn.MultiheadAttention`, and what does it mean here?",
    section=PARITY,
)
def mended_layer_mask_still_inverted(d_model, num_heads, d_ff, dropout, norm_first=False):
    return encoder_mask_inverted.answer(d_model, num_heads, d_ff, dropout, norm_first)


@mistake(
    "MendedEncoderLayer",
    believed="Without a mask nothing can go wrong with it.",
    tell="Where does the layer hand on the mask?",
    section=PARITY,
)
def mended_layer_mask_dropped(d_model, num_heads, d_ff, dropout, norm_first=False):
    return encoder_mask_dropped.answer(d_model, num_heads, d_ff, dropout, norm_first)


@mistake(
    "MendedEncoderLayer",
    believed="One norm will do where the norm comes first.",
    tell="Read the branch for norm_first. Which norm is never used there?",
    section=WRONG,
)
def mended_layer_one_norm_still_twice(d_model, num_heads, d_ff, dropout, norm_first=False):
    def forward(self, x, mask=None):
        run = _shared_norm if self.norm_first else _layer_class().forward
        return run(self, x, mask)

    return _layer((d_model, num_heads, d_ff, dropout, norm_first), forward=forward)


@mistake(
    "MendedEncoderLayer",
    believed="norm2 belongs to both places of the pre-norm branch.",
    tell="Read the branch for norm_first. Which norm is never used there now?",
    section=WRONG,
)
def mended_layer_other_norm_twice(d_model, num_heads, d_ff, dropout, norm_first=False):
    def forward(self, x, mask=None):
        if not self.norm_first:
            return _layer_class().forward(self, x, mask)
        x = x + self.attend(self.norm2(x), mask)
        return x + self.think(self.norm2(x))

    return _layer((d_model, num_heads, d_ff, dropout, norm_first), forward=forward)


@mistake(
    "MendedEncoderLayer",
    believed="The norms have to be exchanged.",
    tell="Which of norm1 and norm2 belongs to the attention?",
    section=WRONG,
)
def mended_layer_norms_exchanged(d_model, num_heads, d_ff, dropout, norm_first=False):
    return _layer((d_model, num_heads, d_ff, dropout, norm_first), forward=_swapped_norms)


@mistake(
    "MendedEncoderLayer",
    believed="The norm belongs before the sum.",
    tell="Compare the branch for post-norm with what stood there. Is the sum still normalized?",
    section=WHERE,
)
def mended_layer_norm_moved_inside(d_model, num_heads, d_ff, dropout, norm_first=False):
    return encoder_norm_inside_residual.answer(d_model, num_heads, d_ff, dropout, norm_first)


# --- Encoder ---


@functools.cache
def _stack_class():
    """Make the right stack, in steps that a mistake can replace."""
    from torch import nn

    class Stack(nn.Module):
        def __init__(self, num_layers, *options):
            super().__init__()
            self.layers = nn.ModuleList(self.make(num_layers, options))

        def make(self, num_layers, options):
            return [_layer_class()(*options) for _ in range(num_layers)]

        def forward(self, x, mask=None):
            for layer in self.layers:
                x = layer(x, mask)
            return x

    return Stack


def _stack(num_layers, options, **replaced):
    return type("Stack", (_stack_class(),), replaced)(num_layers, *options)


@mistake(
    "Encoder",
    believed="A list of n times the same layer has n layers.",
    tell="How many parameters does your stack have for 1 layer, and how many for 3?",
    section=TWIN,
)
def stack_repeats_one_layer(num_layers, d_model, num_heads, d_ff, dropout, norm_first=False):
    def make(self, num_layers, options):
        return [_layer_class()(*options)] * num_layers

    return _stack(num_layers, (d_model, num_heads, d_ff, dropout, norm_first), make=make)


@mistake(
    "Encoder",
    believed="A copy of a layer is a new layer.",
    tell="Print the first weights of each layer of a new stack.",
    section=TWIN,
)
def stack_copies_one_layer(num_layers, d_model, num_heads, d_ff, dropout, norm_first=False):
    import copy

    def make(self, num_layers, options):
        first = _layer_class()(*options)
        return [copy.deepcopy(first) for _ in range(num_layers)]

    return _stack(num_layers, (d_model, num_heads, d_ff, dropout, norm_first), make=make)


@mistake(
    "Encoder",
    believed="A module finds its parts in any list.",
    tell="How many parameters does your stack have? What kind of list registers modules?",
    section=TWIN,
)
def stack_in_a_plain_list(num_layers, d_model, num_heads, d_ff, dropout, norm_first=False):
    stack = _stack(num_layers, (d_model, num_heads, d_ff, dropout, norm_first))
    layers = list(stack.layers)
    del stack.layers
    stack.layers = layers
    return stack


@mistake(
    "Encoder",
    believed="Masking the first layer is enough.",
    tell="Which layers of your stack get the mask? A later one can look into the future too.",
    section=TWIN,
)
def stack_masks_the_first_layer(num_layers, d_model, num_heads, d_ff, dropout, norm_first=False):
    def forward(self, x, mask=None):
        for i, layer in enumerate(self.layers):
            x = layer(x, mask if i == 0 else None)
        return x

    return _stack(num_layers, (d_model, num_heads, d_ff, dropout, norm_first), forward=forward)


@mistake(
    "Encoder",
    believed="The stack has no use for the mask.",
    tell="Where does your stack hand on the mask?",
    section=TWIN,
)
def stack_drops_the_mask(num_layers, d_model, num_heads, d_ff, dropout, norm_first=False):
    def forward(self, x, mask=None):
        return _stack_class().forward(self, x)

    return _stack(num_layers, (d_model, num_heads, d_ff, dropout, norm_first), forward=forward)


@mistake(
    "Encoder",
    believed="A stack ends with a norm.",
    tell="What is the last thing that happens to x in your stack? No final norm is asked for.",
    section=WHERE,
)
def stack_with_a_final_norm(num_layers, d_model, num_heads, d_ff, dropout, norm_first=False):
    from torch import nn

    def forward(self, x, mask=None):
        return self.norm(_stack_class().forward(self, x, mask))

    stack = _stack(num_layers, (d_model, num_heads, d_ff, dropout, norm_first), forward=forward)
    stack.norm = nn.LayerNorm(d_model)
    return stack


@mistake(
    "Encoder",
    believed="Counting to n takes n + 1 layers.",
    tell="How many layers does your stack have when one is asked for?",
    section=TWIN,
)
def stack_with_a_layer_too_many(num_layers, d_model, num_heads, d_ff, dropout, norm_first=False):
    return _stack(num_layers + 1, (d_model, num_heads, d_ff, dropout, norm_first))


@mistake(
    "Encoder",
    believed="The layers know where the norm stands.",
    tell="Where does your stack hand on `norm_first`?",
    section=WHERE,
)
def stack_drops_norm_first(num_layers, d_model, num_heads, d_ff, dropout, norm_first=False):
    return _stack(num_layers, (d_model, num_heads, d_ff, dropout))


@mistake(
    "Encoder",
    believed="Dropout is set elsewhere.",
    tell="Where does your stack hand on `dropout`?",
    section=DROPOUT,
)
def stack_drops_dropout(num_layers, d_model, num_heads, d_ff, dropout, norm_first=False):
    return _stack(num_layers, (d_model, num_heads, d_ff, 0.0, norm_first))


@mistake(
    "Encoder",
    believed="Every layer reads the input.",
    tell="What does your second layer get?",
    section=TWIN,
)
def stack_whose_layers_all_read_x(num_layers, d_model, num_heads, d_ff, dropout, norm_first=False):
    def forward(self, x, mask=None):
        return [layer(x, mask) for layer in self.layers][-1]

    return _stack(num_layers, (d_model, num_heads, d_ff, dropout, norm_first), forward=forward)


@mistake(
    "Encoder",
    believed="The whole stack has a residual connection as well.",
    tell="Is x added anywhere outside of the layers?",
    section=RESIDUAL,
)
def stack_adds_its_input(num_layers, d_model, num_heads, d_ff, dropout, norm_first=False):
    def forward(self, x, mask=None):
        for layer in self.layers:
            x = x + layer(x, mask)
        return x

    return _stack(num_layers, (d_model, num_heads, d_ff, dropout, norm_first), forward=forward)


@mistake(
    "Encoder",
    believed="The last layer of the list comes first.",
    tell="In which order does x pass your layers?",
    section=TWIN,
)
def stack_backwards(num_layers, d_model, num_heads, d_ff, dropout, norm_first=False):
    def forward(self, x, mask=None):
        for layer in reversed(self.layers):
            x = layer(x, mask)
        return x

    return _stack(num_layers, (d_model, num_heads, d_ff, dropout, norm_first), forward=forward)


@mistake(
    "Encoder",
    believed="All outputs are of interest.",
    tell="What type does your output have? One tensor is asked for.",
    section=TWIN,
)
def stack_returns_every_output(num_layers, d_model, num_heads, d_ff, dropout, norm_first=False):
    def forward(self, x, mask=None):
        outputs = []
        for layer in self.layers:
            x = layer(x, mask)
            outputs.append(x)
        return outputs

    return _stack(num_layers, (d_model, num_heads, d_ff, dropout, norm_first), forward=forward)
