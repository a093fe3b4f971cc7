"""Many attention heads in NumPy: split, merge, the whole layer, its gradients."""

import operator

import numpy as np

from .single_head import (
    as_floating,
    attention_backward,
    check_shape,
    scaled_dot_product_attention,
)


def check_axes(name, array, expected):
    """Raise ValueError unless `array` has the axes of `expected`, or more in front."""
    count = len(expected.split(",")) - 1  # without the "..."
    if array.ndim < count:
        raise ValueError(
            f"{name}: expected at least {count} axes {expected}, got shape {array.shape}"
        )


def check_num_heads(num_heads):
    """Return `num_heads` as an int, or raise ValueError unless it is a positive integer."""
    try:
        count = operator.index(num_heads)
    except TypeError:
        count = 0
    if count < 1:
        raise ValueError(f"num_heads: expected a positive integer, got {num_heads!r}")
    return count


def check_divides(num_heads, width, name):
    """Raise ValueError unless `num_heads` divides the width of the array called `name`."""
    if width % num_heads:
        raise ValueError(
            f"num_heads: expected a divisor of {width}, the width of {name}, got {num_heads}"
        )


def split_heads(x, num_heads):
    """Cut each row into heads, and move the heads before the positions.

    Head i gets the columns from ``i * D / h`` up to ``(i + 1) * D / h``.

    Parameters
    ----------
    x : array_like, shape (..., L, D)
        A vector of D numbers for each position.
    num_heads : int
        Number of heads h. It must divide D.

    Returns
    -------
    ndarray, shape (..., h, L, D / h)
        A view of `x` where NumPy can make one, so do not write into it.

    Raises
    ------
    ValueError
        If `x` has fewer than 2 axes, or `num_heads` does not divide D.
    """
    x, num_heads = np.asarray(x), check_num_heads(num_heads)
    check_axes("x", x, "(..., L, D)")
    *lead, L, D = x.shape
    check_divides(num_heads, D, "x")
    x = x.reshape(*lead, L, num_heads, D // num_heads)  # (..., L, h, D/h)
    return np.swapaxes(x, -2, -3)  # (..., h, L, D/h)


def merge_heads(x):
    """Put each position's heads side by side again: undo `split_heads`.

    Parameters
    ----------
    x : array_like, shape (..., h, L, d)
        A vector of d numbers for each head and position.

    Returns
    -------
    ndarray, shape (..., L, h * d)

    Raises
    ------
    ValueError
        If `x` has fewer than 3 axes.
    """
    x = np.asarray(x)
    check_axes("x", x, "(..., h, L, d)")
    x = np.swapaxes(x, -2, -3)  # (..., L, h, d)
    *lead, h, d = x.shape
    return x.reshape(*lead, h * d)  # (..., L, h * d)


def add_head_axis(mask, num_axes):
    """Return `mask` with an axis for the heads; X has `num_axes` axes.

    A mask of 3 to `num_axes` axes has none yet: (B, L, L) becomes
    (B, 1, L, L), so every head of a sequence gets the sequence's mask. A mask
    of 2 axes holds for all sequences and heads. One of ``num_axes + 1`` axes
    has an axis for the heads already.
    """
    mask = np.asarray(mask)
    return mask[..., None, :, :] if 3 <= mask.ndim <= num_axes else mask


def prepare(num_heads, X, W_q, W_k, W_v, W_o, **biases):
    """Check the layer's arguments and make them ready to compute with.

    Returns
    -------
    arrays : list of ndarray
        X, W_q, W_k, W_v, W_o, b_q, b_k, b_v and b_o in a common floating dtype
        of at least single precision. A bias that is None becomes zeros.
    dtype : dtype
        The floating dtype that the results are to have.
    """
    X, W_q, W_k = as_floating("X", X), as_floating("W_q", W_q), as_floating("W_k", W_k)
    W_v, W_o = as_floating("W_v", W_v), as_floating("W_o", W_o)
    num_heads = check_num_heads(num_heads)
    check_axes("X", X, "(..., L, d_model)")
    for name, W in (("W_q", W_q), ("W_k", W_k), ("W_v", W_v), ("W_o", W_o)):
        if W.ndim != 2:
            raise ValueError(f"{name}: expected a matrix (d_in, d_out), got shape {W.shape}")
    check_shape("W_q", W_q, (X.shape[-1], W_q.shape[1]))
    check_shape("W_k", W_k, W_q.shape)
    check_shape("W_v", W_v, (X.shape[-1], W_v.shape[1]))
    check_shape("W_o", W_o, (W_v.shape[1], W_o.shape[1]))
    check_divides(num_heads, W_q.shape[1], "W_q")
    check_divides(num_heads, W_v.shape[1], "W_v")
    arrays = [X, W_q, W_k, W_v, W_o]
    for name, W in (("b_q", W_q), ("b_k", W_k), ("b_v", W_v), ("b_o", W_o)):
        b = biases[name]
        b = np.zeros(W.shape[1], W.dtype) if b is None else as_floating(name, b)
        check_shape(name, b, W.shape[1:])
        arrays.append(b)
    dtype = np.result_type(*arrays)
    work = np.promote_types(dtype, np.float32)  # float16 is too coarse for sums
    return [array.astype(work) for array in arrays], dtype


def multi_head_attention(
    X,
    W_q,
    W_k,
    W_v,
    W_o,
    num_heads,
    mask=None,
    *,
    b_q=None,
    b_k=None,
    b_v=None,
    b_o=None,
):
    """Let several heads read the same sequence, each with its own weights.

    Computes ``concat(head_1, ..., head_h) W_o``, where head i is attention
    with the i-th part of the columns of ``X W_q``, ``X W_k`` and ``X W_v``:
    section 3.2.2 of Vaswani et al. (2017), "Attention is all you need".

    Parameters
    ----------
    X : array_like, shape (..., L, d_model)
        A vector for each position.
    W_q, W_k : array_like, shape (d_model, h * d_k)
        Projections to queries and keys, those of all heads side by side.
    W_v : array_like, shape (d_model, h * d_v)
        Projection to values.
    W_o : array_like, shape (h * d_v, d_out)
        Output projection. It mixes what the heads found.
    num_heads : int
        Number of heads h.
    mask : array_like of bool, optional
        True = may attend. It broadcasts to (..., L, L) and then holds for
        every head, or it has an axis for the heads and broadcasts to
        (..., h, L, L). For X of 3 axes, a mask of 3 axes means (B, L, L).
    b_q, b_k, b_v, b_o : array_like, optional
        Biases of the four projections.

    Returns
    -------
    output : ndarray, shape (..., L, d_out)
        A query with no allowed key has context 0 in each head, so that its
        output is `b_o`.
    weights : ndarray, shape (..., h, L, L)
        The weights of each head. Both arrays keep the floating dtype of the
        inputs (float64 for integers).

    Raises
    ------
    ValueError
        If shapes do not fit together, `num_heads` does not divide the
        widths, the mask is not boolean or would enlarge the weights, or an
        input does not hold real numbers.
    """
    biases = {"b_q": b_q, "b_k": b_k, "b_v": b_v, "b_o": b_o}
    arrays, dtype = prepare(num_heads, X, W_q, W_k, W_v, W_o, **biases)
    X, W_q, W_k, W_v, W_o, b_q, b_k, b_v, b_o = arrays
    Q = split_heads(X @ W_q + b_q, num_heads)  # (..., h, L, d_k)
    K = split_heads(X @ W_k + b_k, num_heads)  # (..., h, L, d_k)
    V = split_heads(X @ W_v + b_v, num_heads)  # (..., h, L, d_v)
    if mask is not None:
        mask = add_head_axis(mask, X.ndim)
    context, weights = scaled_dot_product_attention(Q, K, V, mask)
    output = merge_heads(context) @ W_o + b_o  # (..., L, d_out)
    return output.astype(dtype), weights.astype(dtype)


def unpack_in_proj(in_proj_weight, out_proj_weight):
    """Cut the weights of `nn.MultiheadAttention` into four matrices.

    PyTorch keeps the three input projections in one matrix, one below the
    other, and stores every matrix transposed: it computes ``x @ weight.T``.

    Parameters
    ----------
    in_proj_weight : array_like, shape (3 * d_model, d_model)
        The layer's `in_proj_weight`: queries, then keys, then values.
    out_proj_weight : array_like, shape (d_model, d_model)
        The layer's `out_proj.weight`.

    Returns
    -------
    W_q, W_k, W_v, W_o : ndarray, shape (d_model, d_model)
        Copies, for use as ``x @ W``.

    Raises
    ------
    ValueError
        If the shapes are not these.
    """
    in_proj_weight = np.asarray(in_proj_weight)
    out_proj_weight = np.asarray(out_proj_weight)
    d_model = in_proj_weight.shape[-1] if in_proj_weight.ndim else 0
    check_shape("in_proj_weight", in_proj_weight, (3 * d_model, d_model))
    check_shape("out_proj_weight", out_proj_weight, (d_model, d_model))
    parts = [*np.split(in_proj_weight, 3), out_proj_weight]
    return tuple(part.T.copy() for part in parts)


def multi_head_attention_backward(
    doutput,
    X,
    W_q,
    W_k,
    W_v,
    W_o,
    num_heads,
    weights,
    *,
    b_q=None,
    b_k=None,
    b_v=None,
    b_o=None,
):
    """Carry a gradient from the layer's output back to input and weights.

    The chain rule through section 3.2.2 of Vaswani et al. (2017). Queries,
    keys and values are computed again from `X`. No mask is needed, since a
    key that was left out has weight 0.

    Parameters
    ----------
    doutput : array_like, shape (..., L, d_out)
        Gradient of a loss with respect to the output.
    X, W_q, W_k, W_v, W_o, num_heads, b_q, b_k, b_v, b_o
        What `multi_head_attention` was given.
    weights : array_like, shape (..., h, L, L)
        The weights that it returned.

    Returns
    -------
    dX : ndarray, shape (..., L, d_model)
    gradients : dict of str to ndarray
        The gradients of W_q, b_q, W_k, b_k, W_v, b_v, W_o and b_o, under
        these names, summed over all sequences and positions. Those of biases
        are there even if the layer had none.

    Raises
    ------
    ValueError
        If shapes do not fit together or an input does not hold real
        numbers.
    """
    doutput = as_floating("doutput", doutput)
    weights = as_floating("weights", weights)
    biases = {"b_q": b_q, "b_k": b_k, "b_v": b_v, "b_o": b_o}
    arrays, dtype = prepare(num_heads, X, W_q, W_k, W_v, W_o, **biases)
    X, W_q, W_k, W_v, W_o, b_q, b_k, b_v, b_o = arrays
    *lead, L, _ = X.shape
    check_shape("doutput", doutput, (*lead, L, W_o.shape[1]))
    check_shape("weights", weights, (*lead, num_heads, L, L))
    dtype = np.result_type(dtype, doutput, weights)
    work = np.promote_types(dtype, np.float32)
    doutput, weights = doutput.astype(work), weights.astype(work)

    # forward once more, up to the context
    Q = split_heads(X @ W_q + b_q, num_heads)  # (..., h, L, d_k)
    K = split_heads(X @ W_k + b_k, num_heads)  # (..., h, L, d_k)
    V = split_heads(X @ W_v + b_v, num_heads)  # (..., h, L, d_v)
    context = merge_heads(weights @ V)  # (..., L, h * d_v)

    # and back, in the opposite order
    gradients = {}
    dcontext, dW, db = project_backward(doutput, context, W_o)
    gradients["W_o"], gradients["b_o"] = dW, db
    dcontext = split_heads(dcontext, num_heads)  # (..., h, L, d_v)
    dQ, dK, dV = attention_backward(dcontext, Q, K, V, weights)
    dX = 0
    for c, W, dheads in (("q", W_q, dQ), ("k", W_k, dK), ("v", W_v, dV)):
        part, dW, db = project_backward(merge_heads(dheads), X, W)
        gradients[f"W_{c}"], gradients[f"b_{c}"] = dW, db
        dX = dX + part  # X was used three times: its gradients add up
    gradients = {name: g.astype(dtype) for name, g in gradients.items()}
    return dX.astype(dtype), gradients


def project_backward(dy, x, W):
    """Return the gradients of `x`, `W` and `b` for ``y = x @ W + b``.

    Parameters
    ----------
    dy : ndarray, shape (..., d_out)
    x : ndarray, shape (..., d_in)
    W : ndarray, shape (d_in, d_out)
    """
    axes = tuple(range(x.ndim - 1))  # all positions share W and b
    dW = np.tensordot(x, dy, axes=(axes, axes))  # (d_in, d_out)
    return dy @ W.T, dW, dy.sum(axis=axes)
