"""One attention head in NumPy: softmax and scaled dot-product attention."""

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


def softmax(x, axis=-1):
    """Turn scores into weights that are not negative and sum to 1 along `axis`.

    Computes ``exp(x_i - m) / sum_j exp(x_j - m)`` with ``m = max_j x_j``. That
    equals the definition, which has no ``m``, and does not overflow.

    Parameters
    ----------
    x : array_like
        Scores of any shape. A score of -inf stands for "left out": weight 0.
    axis : int
        The axis along which the weights sum to 1.

    Returns
    -------
    ndarray
        Same shape as `x`, in its floating dtype (float64 for integers). A row
        of -inf alone has nothing to choose from: its weights are all 0. A row
        that holds NaN or +inf gives NaN, as in PyTorch.

    Raises
    ------
    ValueError
        If `x` does not hold real numbers or has no such axis.
    """
    x = as_floating("x", x)
    # float16 is too coarse for long sums
    scores = x.astype(np.promote_types(x.dtype, np.float32))
    peak = scores.max(axis=axis, keepdims=True, initial=-np.inf)
    peak = np.where(np.isneginf(peak), 0, peak)  # -inf minus -inf would be NaN
    # a gap too wide for the dtype becomes -inf, and its weight 0
    with np.errstate(over="ignore", invalid="ignore"):
        exps = np.exp(scores - peak)
    total = exps.sum(axis=axis, keepdims=True)
    weights = exps / np.where(total == 0, 1, total)  # 0 only in an empty row
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
    Q, K, V = (a.astype(np.promote_types(dtype, np.float32)) for a in (Q, K, V))

    scores = Q @ np.swapaxes(K, -1, -2)  # (..., L_q, L_k)
    scores /= math.sqrt(Q.shape[-1])
    if mask is not None:
        scores = np.where(check_mask(mask, scores.shape), scores, -np.inf)
    weights = softmax(scores)
    output = weights @ V  # (..., L_q, d_v)
    return output.astype(dtype), weights.astype(dtype)
