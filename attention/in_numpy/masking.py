"""Masks in NumPy: who may read whom. Boolean, True = may attend, in every function."""

import operator

import numpy as np

from .single_head import (
    as_floating,
    check_mask,
    check_qkv,
    check_shape,
    scaled_dot_product_attention,
)


def check_length(name, value, smallest=0):
    """Return `value` as an int, or raise ValueError unless it is at least `smallest`."""
    try:
        number = operator.index(value)
    except TypeError:
        number = smallest - 1
    if number < smallest:
        raise ValueError(f"{name}: expected an integer of at least {smallest}, got {value!r}")
    return number


def check_integers(name, array, axes):
    """Return `array` if it holds integers and has these axes, or raise ValueError."""
    array = np.asarray(array)
    if array.size == 0:
        array = array.astype(int)  # NumPy takes an empty list for floats
    if array.dtype.kind not in "iu":
        raise ValueError(f"{name}: expected integers, got dtype {array.dtype}")
    if array.ndim != len(axes):
        raise ValueError(f"{name}: expected axes ({', '.join(axes)}), got shape {array.shape}")
    return array


def check_lengths(name, lengths, max_len):
    """Return `lengths` as an array (B,), or raise ValueError unless each is 0 to `max_len`."""
    lengths = check_integers(name, lengths, ("B",))
    outside = lengths[(lengths < 0) | (lengths > max_len)]
    if outside.size:
        raise ValueError(f"{name}: expected 0 to {max_len}, got {outside[0]}")
    return lengths


def check_boolean(name, array, axes):
    """Return `array` if it is boolean and has these axes, or raise ValueError."""
    array = np.asarray(array)
    if array.dtype != bool:
        raise ValueError(f"{name}: expected booleans, got dtype {array.dtype}")
    if array.ndim != len(axes):
        raise ValueError(f"{name}: expected axes ({', '.join(axes)}), got shape {array.shape}")
    return array


def check_keep(keep, x):
    """Return `keep` if it is boolean, with a value for each token of `x`."""
    keep = np.asarray(keep)
    if x.ndim < 2:
        raise ValueError(f"x: expected at least 2 axes (..., L, D), got shape {x.shape}")
    if keep.dtype != bool:
        raise ValueError(f"keep: expected booleans (True = real), got dtype {keep.dtype}")
    check_shape("keep", keep, x.shape[:-1])
    return keep


def padding_mask(lengths, max_len):
    """Allow every query of a sequence its real keys, and no padding.

    Parameters
    ----------
    lengths : array_like of int, shape (B,)
        Number of real tokens of each sequence. They stand first.
    max_len : int
        The length L that all sequences were padded to.

    Returns
    -------
    ndarray of bool, shape (B, 1, 1, L)
        The axes of size 1 stand for all heads and all queries.

    Raises
    ------
    ValueError
        If a length is negative or above `max_len`, or is no integer.
    """
    max_len = check_length("max_len", max_len)
    lengths = check_lengths("lengths", lengths, max_len)
    keep = np.arange(max_len) < lengths[:, None]  # (B, L)
    return keep[:, None, None, :]  # (B, 1, 1, L)


def causal_mask(L):
    """Allow each position itself and those before it.

    Parameters
    ----------
    L : int
        Number of positions.

    Returns
    -------
    ndarray of bool, shape (L, L)

    Raises
    ------
    ValueError
        If `L` is negative or no integer.
    """
    L = check_length("L", L)
    return causal_mask_rect(L, L)


def causal_mask_rect(L_q, L_k):
    """Allow the last `L_q` of `L_k` positions what is not after them.

    Parameters
    ----------
    L_q : int
        Number of queries. The last one stands at the last position.
    L_k : int
        Number of keys: those of earlier positions, then the queries' own.

    Returns
    -------
    ndarray of bool, shape (L_q, L_k)
        Where `L_q` is larger than `L_k`, the first queries stand before all
        keys, and may read nothing.

    Raises
    ------
    ValueError
        If a length is negative or no integer.
    """
    L_q, L_k = check_length("L_q", L_q), check_length("L_k", L_k)
    position = np.arange(L_q)[:, None] + (L_k - L_q)  # (L_q, 1)
    return np.arange(L_k) <= position  # (L_q, L_k)


def combine_masks(keep, causal):
    """Allow what both masks allow: real keys that are not in the future.

    Parameters
    ----------
    keep : array_like of bool, shape (B, L_k)
        True = a real token.
    causal : array_like of bool, shape (L_q, L_k)
        True = may attend.

    Returns
    -------
    ndarray of bool, shape (B, 1, L_q, L_k)

    Raises
    ------
    ValueError
        If an argument is not boolean or the shapes do not fit together.
    """
    keep = check_boolean("keep", keep, ("B", "L_k"))
    causal = check_boolean("causal", causal, ("L_q", "L_k"))
    check_shape("causal", causal, (len(causal), keep.shape[1]))
    return keep[:, None, None, :] & causal  # (B, 1, L_q, L_k)


def sliding_window_mask(L, window):
    """Allow each position itself and the ``window - 1`` before it.

    Parameters
    ----------
    L : int
        Number of positions.
    window : int
        Number of keys that a query may read at most, itself among them.

    Returns
    -------
    ndarray of bool, shape (L, L)

    Raises
    ------
    ValueError
        If `L` is negative, `window` is below 1, or either is no integer.
    """
    L = check_length("L", L)
    window = check_length("window", window, smallest=1)
    back = np.arange(L)[:, None] - np.arange(L)  # (L, L): query minus key
    return (back >= 0) & (back < window)


def packed_mask(segments):
    """Keep sequences apart that were packed one after another into a row.

    Parameters
    ----------
    segments : array_like of int, shape (B, L)
        Which sequence each token belongs to. A negative number is padding,
        which neither reads nor is read.

    Returns
    -------
    ndarray of bool, shape (B, 1, L, L)
        True within a sequence: a block on the diagonal for each.

    Raises
    ------
    ValueError
        If `segments` does not hold integers or has other axes.
    """
    segments = check_integers("segments", segments, ("B", "L"))
    same = segments[:, :, None] == segments[:, None, :]  # (B, L, L)
    real = segments >= 0  # (B, L)
    return (same & real[:, None, :])[:, None]  # (B, 1, L, L)


def prefix_lm_mask(prefix_lengths, L):
    """Allow all queries the prefix, and beyond it what is not after them.

    Parameters
    ----------
    prefix_lengths : array_like of int, shape (B,)
        How many tokens of each sequence are given from the start.
    L : int
        Number of positions.

    Returns
    -------
    ndarray of bool, shape (B, 1, L, L)

    Raises
    ------
    ValueError
        If a prefix is negative or longer than `L`, or is no integer.
    """
    L = check_length("L", L)
    return padding_mask(prefix_lengths, L) | causal_mask(L)  # (B, 1, L, L)


def masked_mean_pool(x, keep):
    """Average the real tokens of each sequence.

    Parameters
    ----------
    x : array_like, shape (..., L, D)
        A vector for each token. What stands in padding has no effect.
    keep : array_like of bool, shape (..., L)
        True = a real token.

    Returns
    -------
    ndarray, shape (..., D)
        In the floating dtype of `x` (float64 for integers). 0 for a
        sequence without a real token.

    Raises
    ------
    ValueError
        If `keep` is not boolean or does not have a value for each token.
    """
    x = as_floating("x", x)
    keep = check_keep(keep, x)
    work = np.promote_types(x.dtype, np.float32)
    # not a product with keep: 0 * inf would be NaN
    real = np.where(keep[..., None], x, 0)  # (..., L, D)
    total = real.sum(axis=-2, dtype=work)  # (..., D)
    count = keep.sum(axis=-1)[..., None]  # (..., 1)
    mean = total / np.maximum(count, 1).astype(work)
    return mean.astype(x.dtype)


def masked_attention(Q, K, V, mask=None, causal=False):
    """Attend to keys that the mask allows and, if causal, are not after.

    Parameters
    ----------
    Q : array_like, shape (..., L_q, d_k)
        Queries.
    K : array_like, shape (..., L_k, d_k)
        Keys.
    V : array_like, shape (..., L_k, d_v)
        Values, one for each key.
    mask : array_like of bool, optional
        True = may attend. Broadcasts to (..., L_q, L_k), and must not
        enlarge it.
    causal : bool
        Leave out keys after the query, where the queries stand at the last
        `L_q` of the `L_k` positions.

    Returns
    -------
    output : ndarray, shape (..., L_q, d_v)
    weights : ndarray, shape (..., L_q, L_k)
        A query with no allowed key has weights 0 and output 0. Both keep
        the floating dtype of the inputs (float64 for integers).

    Raises
    ------
    ValueError
        If shapes do not fit together, the mask is not boolean or would
        enlarge the scores, or an input does not hold real numbers.
    """
    Q, K, V = as_floating("Q", Q), as_floating("K", K), as_floating("V", V)
    check_qkv(Q, K, V)
    if causal:
        lead = np.broadcast_shapes(Q.shape[:-2], K.shape[:-2])
        shape = (*lead, Q.shape[-2], K.shape[-2])
        mask = True if mask is None else check_mask(mask, shape)
        mask = mask & causal_mask_rect(*shape[-2:])
    return scaled_dot_product_attention(Q, K, V, mask)
