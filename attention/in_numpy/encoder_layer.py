"""The encoder layer in NumPy: its pieces, the layer, the stack, and all of their gradients."""

import math

import numpy as np

from .multi_head import (
    check_axes,
    multi_head_attention,
    multi_head_attention_backward,
    project_backward,
)
from .single_head import as_floating, check_shape

ATTENTION = ("W_q", "b_q", "W_k", "b_k", "W_v", "b_v", "W_o", "b_o")
FEED_FORWARD = ("W1", "b1", "W2", "b2")
NORMS = ("gamma1", "beta1", "gamma2", "beta2")
WEIGHTS = ATTENTION + FEED_FORWARD + NORMS


def widened(**arrays):
    """Return arrays as floats of at least single precision, and the dtype of the result.

    Parameters
    ----------
    **arrays : array_like
        By their names, for the error messages.

    Returns
    -------
    arrays : list of ndarray
        In the common floating dtype, float16 as float32: sums in half
        precision are too coarse.
    dtype : dtype
        The floating dtype that results are to have.
    """
    arrays = [as_floating(name, array) for name, array in arrays.items()]
    dtype = np.result_type(*arrays)
    work = np.promote_types(dtype, np.float32)
    return [array.astype(work) for array in arrays], dtype


# --- layer norm ------------------------------------------------------------------------------


def normalize(x, eps):
    """Give each row mean 0 and variance 1; return it and its deviation.

    Parameters
    ----------
    x : ndarray, shape (..., d_model)
    eps : float
        Added to the variance, so that a row of equal numbers becomes 0.

    Returns
    -------
    normal : ndarray, shape (..., d_model)
    deviation : ndarray, shape (..., 1)
    """
    centered = x - x.mean(axis=-1, keepdims=True)
    variance = (centered**2).mean(axis=-1, keepdims=True)  # (..., 1)
    deviation = np.sqrt(variance + eps)
    return centered / deviation, deviation


def check_norm(x, **parameters):
    """Raise ValueError unless `x` has rows, and each parameter a number for each column."""
    check_axes("x", x, "(..., d_model)")
    if x.shape[-1] == 0:
        raise ValueError(f"x: expected a width d_model of at least 1, got shape {x.shape}")
    for name, parameter in parameters.items():
        check_shape(name, parameter, x.shape[-1:])


def layer_norm(x, gamma, beta, eps=1e-5):
    """Normalize each vector over its own numbers, then scale and shift.

    Computes ``gamma * (x - mean) / sqrt(variance + eps) + beta`` with mean
    and variance over the last axis: equations 3 and 4 of Ba et al. (2016),
    "Layer normalization". The variance divides by d_model, not by
    d_model - 1.

    Parameters
    ----------
    x : array_like, shape (..., d_model)
    gamma, beta : array_like, shape (d_model,)
        Scale and shift of each column.
    eps : float
        Keeps the root away from 0.

    Returns
    -------
    ndarray, shape (..., d_model)
        In the floating dtype of the inputs (float64 for integers).

    Raises
    ------
    ValueError
        If shapes do not fit together or an input does not hold real
        numbers.
    """
    (x, gamma, beta), dtype = widened(x=x, gamma=gamma, beta=beta)
    check_norm(x, gamma=gamma, beta=beta)
    normal, _ = normalize(x, eps)
    return (normal * gamma + beta).astype(dtype)


def layer_norm_backward(dy, x, gamma, eps=1e-5):
    """Carry a gradient from layer norm's output back to its inputs.

    Parameters
    ----------
    dy : array_like, shape (..., d_model)
        Gradient of a loss with respect to the output.
    x, gamma, eps
        What `layer_norm` was given. Its `beta` is not needed.

    Returns
    -------
    dx : ndarray, shape (..., d_model)
        Each row sums to 0: adding a constant to a row changes no output.
    dgamma, dbeta : ndarray, shape (d_model,)
        Summed over all rows.

    Raises
    ------
    ValueError
        If shapes do not fit together or an input does not hold real
        numbers.
    """
    (dy, x, gamma), dtype = widened(dy=dy, x=x, gamma=gamma)
    check_norm(x, gamma=gamma)
    check_shape("dy", dy, x.shape)
    normal, deviation = normalize(x, eps)
    rows = tuple(range(x.ndim - 1))  # all rows share gamma and beta
    dgamma, dbeta = (dy * normal).sum(axis=rows), dy.sum(axis=rows)

    dnormal = dy * gamma
    along_ones = dnormal.mean(axis=-1, keepdims=True)  # (..., 1)
    along_normal = (dnormal * normal).mean(axis=-1, keepdims=True)
    dx = (dnormal - along_ones - normal * along_normal) / deviation
    return dx.astype(dtype), dgamma.astype(dtype), dbeta.astype(dtype)


# --- feed-forward ----------------------------------------------------------------------------


def relu(z):
    """Return max(z, 0), and its slope: 1 where z > 0, else 0."""
    return np.maximum(z, 0), (z > 0).astype(z.dtype)


def gelu(z):
    """Return z times the normal distribution's cdf at z, and the slope.

    Hendrycks and Gimpel (2016), "Gaussian error linear units". This is the
    exact form, not the one with tanh.
    """
    # NumPy has no erf; Python's takes one number at a time
    erf = np.frompyfunc(math.erf, 1, 1)(z / math.sqrt(2))
    cdf = (1 + np.asarray(erf).astype(z.dtype)) / 2
    density = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    return z * cdf, cdf + z * density


ACTIVATIONS = {"relu": relu, "gelu": gelu}


def pick_activation(name):
    """Return the function of this name, which gives the activation and its slope."""
    if name not in ACTIVATIONS:
        raise ValueError(f"activation: expected 'relu' or 'gelu', got {name!r}")
    return ACTIVATIONS[name]


def check_feed_forward(x, W1, b1, W2, b2):
    """Raise ValueError unless the shapes are those of two linear maps, one after the other."""
    check_axes("x", x, "(..., d_model)")
    for name, W in (("W1", W1), ("W2", W2)):
        if W.ndim != 2:
            raise ValueError(f"{name}: expected a matrix (d_in, d_out), got shape {W.shape}")
    check_shape("W1", W1, (x.shape[-1], W1.shape[1]))
    check_shape("b1", b1, W1.shape[1:])
    check_shape("W2", W2, (W1.shape[1], W2.shape[1]))
    check_shape("b2", b2, W2.shape[1:])


def feed_forward(x, W1, b1, W2, b2, *, activation="relu"):
    """Send each position through the same network of one hidden layer.

    Computes ``relu(x W1 + b1) W2 + b2``: equation 2 of Vaswani et al.
    (2017).

    Parameters
    ----------
    x : array_like, shape (..., d_model)
    W1 : array_like, shape (d_model, d_ff)
    b1 : array_like, shape (d_ff,)
    W2 : array_like, shape (d_ff, d_out)
    b2 : array_like, shape (d_out,)
    activation : {"relu", "gelu"}

    Returns
    -------
    ndarray, shape (..., d_out)
        In the floating dtype of the inputs (float64 for integers).

    Raises
    ------
    ValueError
        If shapes do not fit together, the activation is unknown, or an
        input does not hold real numbers.
    """
    act = pick_activation(activation)
    (x, W1, b1, W2, b2), dtype = widened(x=x, W1=W1, b1=b1, W2=W2, b2=b2)
    check_feed_forward(x, W1, b1, W2, b2)
    hidden, _ = act(x @ W1 + b1)  # (..., d_ff)
    return (hidden @ W2 + b2).astype(dtype)


def feed_forward_backward(dy, x, W1, b1, W2, b2, *, activation="relu"):
    """Carry a gradient from the network's output back to input and weights.

    Parameters
    ----------
    dy : array_like, shape (..., d_out)
        Gradient of a loss with respect to the output.
    x, W1, b1, W2, b2, activation
        What `feed_forward` was given.

    Returns
    -------
    dx : ndarray, shape (..., d_model)
    gradients : dict of str to ndarray
        Those of W1, b1, W2 and b2, summed over all positions.

    Raises
    ------
    ValueError
        As `feed_forward`, and if `dy` has not the shape of its output.
    """
    act = pick_activation(activation)
    arrays, dtype = widened(dy=dy, x=x, W1=W1, b1=b1, W2=W2, b2=b2)
    dy, x, W1, b1, W2, b2 = arrays
    check_feed_forward(x, W1, b1, W2, b2)
    check_shape("dy", dy, (*x.shape[:-1], W2.shape[1]))
    hidden, slope = act(x @ W1 + b1)  # forward once more
    dhidden, dW2, db2 = project_backward(dy, hidden, W2)
    dx, dW1, db1 = project_backward(dhidden * slope, x, W1)
    gradients = {"W1": dW1, "b1": db1, "W2": dW2, "b2": db2}
    gradients = {name: g.astype(dtype) for name, g in gradients.items()}
    return dx.astype(dtype), gradients


# --- dropout, positions ----------------------------------------------------------------------


def dropout(x, p, training=True, rng=None):
    """Set numbers to 0 at random while training, and enlarge the others.

    Each number is dropped with probability `p`. Those that stay are divided
    by ``1 - p``, so that the expected value is that of `x` ("inverted"
    dropout). The gradient is treated like the input: with the same `rng`,
    ``dropout(dy, p, rng=rng)`` is the gradient of `x`.

    Parameters
    ----------
    x : array_like
        Any shape.
    p : float
        From 0 to 1.
    training : bool
        If False, nothing is dropped.
    rng : numpy.random.Generator, optional
        Where chance comes from. By default a new generator.

    Returns
    -------
    ndarray
        A new array of the shape of `x`, in its floating dtype (float64 for
        integers).

    Raises
    ------
    ValueError
        If `p` is not from 0 to 1, or `x` does not hold real numbers.
    """
    if not 0 <= p <= 1:
        raise ValueError(f"p: expected a share from 0 to 1, got {p!r}")
    x = as_floating("x", x)
    if not training or p == 0:
        return x.copy()
    rng = np.random.default_rng() if rng is None else rng
    stays = rng.random(x.shape) >= p
    scale = 0 if p == 1 else 1 / (1 - p)
    return np.where(stays, x * scale, 0).astype(x.dtype)


def positional_encoding(L, d_model):
    """Return a vector for each position, made of sines and cosines.

    Column 2i holds ``sin(position / 10000^(2i / d_model))``, column 2i + 1
    the cosine of the same angle: section 3.5 of Vaswani et al. (2017). For
    odd `d_model` the last sine has no cosine.

    Parameters
    ----------
    L : int
        Number of positions, counted from 0.
    d_model : int

    Returns
    -------
    ndarray of float64, shape (L, d_model)

    Raises
    ------
    ValueError
        If `L` is negative or `d_model` less than 1.
    """
    if L < 0:
        raise ValueError(f"L: expected at least 0, got {L}")
    if d_model < 1:
        raise ValueError(f"d_model: expected at least 1, got {d_model}")
    even = np.arange(0, d_model, 2)  # 2i
    angle = np.arange(L)[:, None] / 10000 ** (even / d_model)
    encoding = np.empty((L, d_model))
    encoding[:, 0::2] = np.sin(angle)
    encoding[:, 1::2] = np.cos(angle)[:, : d_model // 2]
    return encoding


# --- the layer -------------------------------------------------------------------------------


def init_encoder_layer(d_model, d_ff, rng):
    """Draw the weights of a layer.

    Matrices are uniform with variance ``2 / (d_in + d_out)`` (Glorot and
    Bengio, 2010), biases and shifts are 0, scales are 1.

    Parameters
    ----------
    d_model, d_ff : int
    rng : numpy.random.Generator

    Returns
    -------
    dict of str to ndarray
        The 16 arrays of `encoder_layer`, in float64.
    """
    weights = {}
    for name in ("W_q", "W_k", "W_v", "W_o"):
        weights[name] = draw_matrix(d_model, d_model, rng)
        weights[name.replace("W", "b")] = np.zeros(d_model)
    weights["W1"] = draw_matrix(d_model, d_ff, rng)
    weights["b1"] = np.zeros(d_ff)
    weights["W2"] = draw_matrix(d_ff, d_model, rng)
    weights["b2"] = np.zeros(d_model)
    for number in "12":
        weights[f"gamma{number}"] = np.ones(d_model)
        weights[f"beta{number}"] = np.zeros(d_model)
    return weights


def draw_matrix(d_in, d_out, rng):
    """Return a uniform matrix of mean 0 and variance 2 / (d_in + d_out)."""
    bound = math.sqrt(6 / (d_in + d_out))
    return rng.uniform(-bound, bound, size=(d_in, d_out))


def prepare_layer(x, weights, **more):
    """Check a layer's arguments; return them as floats, the weights in three groups.

    Returns
    -------
    arrays : list of ndarray
        `x` and what else was named.
    groups : list of dict
        The attention's weights, the feed-forward network's, and the norms'.
    dtype : dtype
        The floating dtype that the results are to have.
    """
    missing = [name for name in WEIGHTS if name not in weights]
    if missing:
        raise ValueError(f"weights: expected {', '.join(WEIGHTS)}; missing {', '.join(missing)}")
    named = {"x": x, **more}
    arrays, dtype = widened(**named, **{name: weights[name] for name in WEIGHTS})
    arrays, values = arrays[: len(named)], dict(zip(WEIGHTS, arrays[len(named) :], strict=True))
    x, d_model = arrays[0], arrays[0].shape[-1:]
    check_axes("x", x, "(..., L, d_model)")
    check_shape("W_o", values["W_o"], (*values["W_o"].shape[:1], *d_model))
    check_shape("W2", values["W2"], (*values["W2"].shape[:1], *d_model))
    groups = [{name: values[name] for name in group} for group in (ATTENTION, FEED_FORWARD, NORMS)]
    return arrays, groups, dtype


def encoder_layer(
    x,
    weights,
    num_heads,
    mask=None,
    norm_first=False,
    *,
    activation="relu",
    eps=1e-5,
):
    """Let each position read from all positions, then work on what it has.

    Two sublayers, each added to its own input: self-attention and a
    feed-forward network. With ``norm_first=False`` (post-norm, Vaswani et
    al., 2017) each sum is normalized; with ``norm_first=True`` (pre-norm)
    each sublayer's input is, and the sums are left alone.

    Parameters
    ----------
    x : array_like, shape (..., L, d_model)
    weights : dict of str to array_like
        ``W_q b_q W_k b_k W_v b_v W_o b_o`` of the attention,
        ``W1 b1 W2 b2`` of the feed-forward network, ``gamma1 beta1`` of the
        norm that belongs to the attention, ``gamma2 beta2`` of the other.
    num_heads : int
    mask : array_like of bool, optional
        True = may attend, as in `multi_head_attention`.
    norm_first : bool
    activation : {"relu", "gelu"}
    eps : float
        Of both norms.

    Returns
    -------
    ndarray, shape (..., L, d_model)
        In the floating dtype of the inputs (float64 for integers).

    Raises
    ------
    ValueError
        If a weight is missing, shapes do not fit together, or an option is
        unknown.
    """
    (x,), (att, ff, norm), dtype = prepare_layer(x, weights)
    att = {"num_heads": num_heads, **att}

    def attend(x):
        output, _ = multi_head_attention(x, mask=mask, **att)
        return output

    def think(x):
        return feed_forward(x, **ff, activation=activation)

    def norm1(x):
        return layer_norm(x, norm["gamma1"], norm["beta1"], eps)

    def norm2(x):
        return layer_norm(x, norm["gamma2"], norm["beta2"], eps)

    if norm_first:
        x = x + attend(norm1(x))
        x = x + think(norm2(x))
    else:
        x = norm1(x + attend(x))
        x = norm2(x + think(x))
    return x.astype(dtype)


def encoder_layer_backward(
    dy,
    x,
    weights,
    num_heads,
    mask=None,
    norm_first=False,
    *,
    activation="relu",
    eps=1e-5,
):
    """Carry a gradient from the layer's output back to input and weights.

    Parameters
    ----------
    dy : array_like, shape (..., L, d_model)
        Gradient of a loss with respect to the output.
    x, weights, num_heads, mask, norm_first, activation, eps
        What `encoder_layer` was given.

    Returns
    -------
    dx : ndarray, shape (..., L, d_model)
    gradients : dict of str to ndarray
        Those of the 16 weights, under their names, summed over all
        sequences and positions.

    Raises
    ------
    ValueError
        As `encoder_layer`, and if `dy` has not the shape of its output.
    """
    (x, dy), (att, ff, norm), dtype = prepare_layer(x, weights, dy=dy)
    check_shape("dy", dy, x.shape)
    att = {"num_heads": num_heads, **att}
    ff = {"activation": activation, **ff}
    gamma1, beta1, gamma2, beta2 = norm.values()

    if norm_first:
        # forward once more: every sublayer's input is needed
        n1 = layer_norm(x, gamma1, beta1, eps)
        a, A = multi_head_attention(n1, mask=mask, **att)
        h = x + a
        n2 = layer_norm(h, gamma2, beta2, eps)
        # and back: a sum hands its gradient to both of its parts
        dn2, dff = feed_forward_backward(dy, n2, **ff)
        part, dgamma2, dbeta2 = layer_norm_backward(dn2, h, gamma2, eps)
        dh = dy + part
        dn1, datt = multi_head_attention_backward(dh, n1, weights=A, **att)
        part, dgamma1, dbeta1 = layer_norm_backward(dn1, x, gamma1, eps)
        dx = dh + part
    else:
        a, A = multi_head_attention(x, mask=mask, **att)
        s1 = x + a
        h = layer_norm(s1, gamma1, beta1, eps)
        s2 = h + feed_forward(h, **ff)
        ds2, dgamma2, dbeta2 = layer_norm_backward(dy, s2, gamma2, eps)
        part, dff = feed_forward_backward(ds2, h, **ff)
        dh = ds2 + part
        ds1, dgamma1, dbeta1 = layer_norm_backward(dh, s1, gamma1, eps)
        part, datt = multi_head_attention_backward(ds1, x, weights=A, **att)
        dx = ds1 + part

    dnorm = zip(NORMS, (dgamma1, dbeta1, dgamma2, dbeta2), strict=True)
    gradients = {**datt, **dff, **dict(dnorm)}
    gradients = {name: g.astype(dtype) for name, g in gradients.items()}
    return dx.astype(dtype), gradients


def encoder(x, layers, num_heads, mask=None, norm_first=False, **options):
    """Send `x` through one layer after another, with no norm at the end.

    Parameters
    ----------
    x : array_like, shape (..., L, d_model)
    layers : list of dict
        The weights of each layer.
    num_heads, mask, norm_first, **options
        As in `encoder_layer`, the same for all layers.

    Returns
    -------
    ndarray, shape (..., L, d_model)
    """
    shared = (num_heads, mask, norm_first)
    for weights in layers:
        x = encoder_layer(x, weights, *shared, **options)
    return x


def encoder_backward(
    dy,
    x,
    layers,
    num_heads,
    mask=None,
    norm_first=False,
    **options,
):
    """Carry a gradient from the stack's output back to input and weights.

    Returns
    -------
    dx : ndarray, shape (..., L, d_model)
    gradients : list of dict
        For each layer, in the order of `layers`.
    """
    shared, inputs = (num_heads, mask, norm_first), []
    for weights in layers:
        inputs.append(x)
        x = encoder_layer(x, weights, *shared, **options)
    gradients = []
    for x, weights in zip(reversed(inputs), reversed(layers), strict=True):
        dy, of_layer = encoder_layer_backward(dy, x, weights, *shared, **options)
        gradients.insert(0, of_layer)
    return dy, gradients
