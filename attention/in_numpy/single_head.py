"""One attention head in NumPy: softmax and scaled dot-product attention, and their gradients."""

import math

import numpy as np


def as_floating(name, array):
    """Return `array` with a floating dtype: float16, float32 and float64 stay as they are.

    Parameters
    ----------
    name : str
        The argument's name, for the error message.
    array : array_like
        Real numbers. Integers and booleans become float64.

    Raises
    ------
    ValueError
        If `array` holds anything but real numbers.
    """
    array = np.asarray(array)
    if array.dtype.kind in "iub":
        return array.astype(np.float64)
    if array.dtype.kind != "f":
        raise ValueError(
            f"{name}: expected real numbers, got dtype {array.dtype}; "
            f"convert it first, for example with np.asarray({name}, dtype=float)"
        )
    return array


def check_qkv(Q, K, V):
    """Raise ValueError unless the shapes of `Q`, `K` and `V` fit together for attention."""
    for name, array in (("Q", Q), ("K", K), ("V", V)):
        if array.ndim < 2:
            raise ValueError(
                f"{name}: expected at least 2 axes (..., length, width), got shape {array.shape}"
            )
    if Q.shape[-1] == 0:
        raise ValueError(f"Q: expected a width d_k of at least 1, got shape {Q.shape}")
    if K.shape[-1] != Q.shape[-1]:
        raise ValueError(
            f"K: expected the width of Q, d_k = {Q.shape[-1]}, got {K.shape[-1]} (shape {K.shape})"
        )
    if V.shape[-2] != K.shape[-2]:
        raise ValueError(
            f"V: expected one row for each key, L_k = {K.shape[-2]}, "
            f"got {V.shape[-2]} (shape {V.shape})"
        )
    try:
        np.broadcast_shapes(Q.shape[:-2], K.shape[:-2], V.shape[:-2])
    except ValueError:
        raise ValueError(
            "Q, K, V: expected leading axes that broadcast together, "
            f"got {Q.shape[:-2]}, {K.shape[:-2]} and {V.shape[:-2]}"
        ) from None


def check_mask(mask, scores_shape):
    """Return `mask` as an array, or raise ValueError if it does not fit the scores.

    Parameters
    ----------
    mask : array_like of bool
        True = may attend. It broadcasts to `scores_shape` and must not enlarge it.
    scores_shape : tuple of int
        ``(..., L_q, L_k)``.
    """
    mask = np.asarray(mask)
    if mask.dtype != bool:
        raise ValueError(
            f"mask: expected booleans (True = may attend), got dtype {mask.dtype}; "
            "convert it first, for example with mask != 0 where 1 means may attend"
        )
    try:
        np.broadcast_to(mask, scores_shape)
    except ValueError:
        raise ValueError(
            "mask: expected a shape that broadcasts to that of the scores, "
            f"{tuple(scores_shape)}, got {mask.shape}"
        ) from None
    return mask


def check_shape(name, array, expected):
    """Raise ValueError unless `array` has exactly the shape `expected`."""
    if array.shape != tuple(expected):
        raise ValueError(f"{name}: expected shape {tuple(expected)}, got {array.shape}")


def check_backward(doutput, Q, K, V, weights):
    """Raise ValueError unless the shapes are those of one forward pass and its gradient."""
    check_qkv(Q, K, V)
    lead = np.broadcast_shapes(Q.shape[:-2], K.shape[:-2])
    check_shape("weights", weights, (*lead, Q.shape[-2], K.shape[-2]))
    lead = np.broadcast_shapes(lead, V.shape[:-2])
    check_shape("doutput", doutput, (*lead, Q.shape[-2], V.shape[-1]))


def sum_to_shape(gradient, shape):
    """Sum `gradient` over the axes along which an array of `shape` was repeated.

    An array that broadcasting used many times gets the sum of the gradients of
    its uses.
    """
    extra = gradient.ndim - len(shape)
    gradient = gradient.sum(axis=tuple(range(extra)))
    repeated = tuple(i for i, n in enumerate(shape) if n == 1 and gradient.shape[i] != 1)
    return gradient.sum(axis=repeated, keepdims=True)


def softmax(x, axis=-1):
    """Turn scores into weights, not negative, that sum to 1 along `axis`.

    Computes ``exp(x_i - m) / sum_j exp(x_j - m)`` with ``m = max_j x_j``.
    That equals the definition, which has no ``m``, and does not overflow.

    Parameters
    ----------
    x : array_like
        Scores of any shape. A score of -inf means "left out": weight 0.
    axis : int
        The axis along which the weights sum to 1.

    Returns
    -------
    ndarray
        Same shape as `x`, in its floating dtype (float64 for integers). A
        row of -inf alone has nothing to choose from: its weights are all 0.
        A row that holds NaN or +inf gives NaN, as in PyTorch.

    Raises
    ------
    ValueError
        If `x` does not hold real numbers or has no such axis.
    """
    x = as_floating("x", x)
    # float16 is too coarse for long sums
    scores = x.astype(np.promote_types(x.dtype, np.float32))
    peak = scores.max(axis=axis, keepdims=True, initial=-np.inf)
    peak = np.where(np.isneginf(peak), 0, peak)  # -inf - -inf would be NaN
    # a gap too wide for the dtype becomes -inf, and its weight 0
    with np.errstate(over="ignore", invalid="ignore"):
        exps = np.exp(scores - peak)
    total = exps.sum(axis=axis, keepdims=True)
    weights = exps / np.where(total == 0, 1, total)  # 0: an empty row
    return weights.astype(x.dtype)


def scaled_dot_product_attention(Q, K, V, mask=None):
    """Average the values, weighted by how well each key answers the query.

    Computes ``softmax(Q K^T / sqrt(d_k)) V``: equation 1 of Vaswani et al.
    (2017), "Attention is all you need".

    Parameters
    ----------
    Q : array_like, shape (..., L_q, d_k)
        Queries.
    K : array_like, shape (..., L_k, d_k)
        Keys.
    V : array_like, shape (..., L_k, d_v)
        Values, one for each key.
    mask : array_like of bool, optional
        True = may attend. Broadcasts to the shape of the scores,
        (..., L_q, L_k), and must not enlarge it.

    Returns
    -------
    output : ndarray, shape (..., L_q, d_v)
        One context vector for each query.
    weights : ndarray, shape (..., L_q, L_k)
        Each row sums to 1. A query with no allowed key has weights 0 and
        output 0. Both arrays keep the floating dtype of the inputs (float64
        for integers).

    Raises
    ------
    ValueError
        If shapes do not fit together, the mask is not boolean or would
        enlarge the scores, or an input does not hold real numbers.
    """
    Q, K, V = as_floating("Q", Q), as_floating("K", K), as_floating("V", V)
    check_qkv(Q, K, V)
    dtype = np.result_type(Q, K, V)
    work = np.promote_types(dtype, np.float32)
    Q, K, V = Q.astype(work), K.astype(work), V.astype(work)

    scores = Q @ np.swapaxes(K, -1, -2)  # (..., L_q, L_k)
    scores /= math.sqrt(Q.shape[-1])
    if mask is not None:
        scores = np.where(check_mask(mask, scores.shape), scores, -np.inf)
    weights = softmax(scores)
    output = weights @ V  # (..., L_q, d_v)
    return output.astype(dtype), weights.astype(dtype)


def softmax_backward(dweights, weights):
    """Carry a gradient from softmax's weights back to its scores.

    Multiplies each row by softmax's Jacobian, ``diag(w) - w w^T``, without
    forming it: ``w * (dw - sum(dw * w))``.

    Parameters
    ----------
    dweights : array_like, shape (..., n)
        Gradient of a loss with respect to the weights.
    weights : array_like, shape (..., n)
        What softmax returned, with rows along the last axis.

    Returns
    -------
    ndarray, shape (..., n)
        Gradient with respect to the scores. It is 0 wherever the weight is
        0, so a masked score and an empty row get gradient 0.

    Raises
    ------
    ValueError
        If the two shapes differ or an input does not hold real numbers.
    """
    dweights = as_floating("dweights", dweights)
    weights = as_floating("weights", weights)
    check_shape("dweights", dweights, weights.shape)
    dtype = np.result_type(dweights, weights)
    work = np.promote_types(dtype, np.float32)
    dweights, weights = dweights.astype(work), weights.astype(work)
    mean = (dweights * weights).sum(axis=-1, keepdims=True)  # (..., 1)
    return (weights * (dweights - mean)).astype(dtype)


def attention_backward(doutput, Q, K, V, weights):
    """Carry a gradient from attention's output back to `Q`, `K` and `V`.

    The chain rule through equation 1 of Vaswani et al. (2017). No mask is
    needed: a key that was left out has weight 0, which stops its gradient.

    Parameters
    ----------
    doutput : array_like, shape (..., L_q, d_v)
        Gradient of a loss with respect to the output.
    Q, K, V : array_like
        What went into `scaled_dot_product_attention`.
    weights : array_like, shape (..., L_q, L_k)
        The weights that it returned.

    Returns
    -------
    dQ, dK, dV : ndarray
        Gradients, each with the shape of its array. All have the floating
        dtype that the inputs have together. A query with no allowed key has
        gradient 0 and contributes 0.

    Raises
    ------
    ValueError
        If shapes do not fit together or an input is not of real numbers.
    """
    Q, K, V = as_floating("Q", Q), as_floating("K", K), as_floating("V", V)
    doutput = as_floating("doutput", doutput)
    weights = as_floating("weights", weights)
    check_backward(doutput, Q, K, V, weights)
    arrays = (doutput, Q, K, V, weights)
    dtype = np.result_type(*arrays)
    work = np.promote_types(dtype, np.float32)
    doutput, Q, K, V, weights = (array.astype(work) for array in arrays)

    dV = np.swapaxes(weights, -1, -2) @ doutput  # (..., L_k, d_v)
    dweights = doutput @ np.swapaxes(V, -1, -2)  # (..., L_q, L_k)
    dweights = sum_to_shape(dweights, weights.shape)
    dscores = softmax_backward(dweights, weights)  # (..., L_q, L_k)
    dscores /= math.sqrt(Q.shape[-1])
    dQ = dscores @ K  # (..., L_q, d_k)
    dK = np.swapaxes(dscores, -1, -2) @ Q  # (..., L_k, d_k)
    return tuple(
        sum_to_shape(gradient, array.shape).astype(dtype)
        for gradient, array in ((dQ, Q), (dK, K), (dV, V))
    )
