"""Masks in PyTorch, and converters between this course's masks and PyTorch's.

Here a mask is boolean and True = may attend. `nn.MultiheadAttention` and the layers built on it
use the opposite, and both of PyTorch's interfaces also take masks of numbers, which they add to
the scores.
"""

import torch

from attention.in_numpy.masking import check_length

from .single_head import check_tensor_mask, scaled_dot_product_attention


def check_bool(name, tensor, meaning="True = may attend"):
    """Raise ValueError unless `tensor` is a boolean tensor."""
    if not isinstance(tensor, torch.Tensor):
        raise ValueError(
            f"{name}: expected a boolean tensor ({meaning}), got {type(tensor).__name__}"
        )
    if tensor.dtype != torch.bool:
        raise ValueError(f"{name}: expected a boolean tensor ({meaning}), got {tensor.dtype}")


def check_axes(name, tensor, *allowed):
    """Raise ValueError unless `tensor` has as many axes as one of the allowed shapes."""
    if tensor.ndim not in {len(axes) for axes in allowed}:
        shapes = " or ".join(f"({', '.join(axes)})" for axes in allowed)
        raise ValueError(f"{name}: expected shape {shapes}, got {tuple(tensor.shape)}")


# --- the masks of the NumPy module -----------------------------------------------------------


def padding_mask(lengths, max_len):
    """Allow every query the real keys of its sequence, which stand first.

    Parameters
    ----------
    lengths : Tensor of int, shape (B,)
    max_len : int

    Returns
    -------
    Tensor of bool, shape (B, 1, 1, L)
        On the device of `lengths`.

    Raises
    ------
    ValueError
        If a length is negative or above `max_len`, or is no integer.
    """
    max_len = check_length("max_len", max_len)
    lengths = torch.as_tensor(lengths)
    if lengths.is_floating_point() or lengths.dtype == torch.bool:
        raise ValueError(f"lengths: expected integers, got {lengths.dtype}")
    check_axes("lengths", lengths, ("B",))
    outside = lengths[(lengths < 0) | (lengths > max_len)]
    if len(outside):
        raise ValueError(f"lengths: expected 0 to {max_len}, got {int(outside[0])}")
    keep = torch.arange(max_len, device=lengths.device) < lengths[:, None]  # (B, L)
    return keep[:, None, None, :]  # (B, 1, 1, L)


def causal_mask(L, device=None):
    """Allow each position itself and those before it: a tensor of bool (L, L)."""
    L = check_length("L", L)
    return causal_mask_rect(L, L, device)


def causal_mask_rect(L_q, L_k, device=None):
    """Allow the last `L_q` of `L_k` positions what is not after them.

    Parameters
    ----------
    L_q, L_k : int
        Numbers of queries and of keys.
    device : torch.device, optional

    Returns
    -------
    Tensor of bool, shape (L_q, L_k)

    Raises
    ------
    ValueError
        If a length is negative or no integer.
    """
    L_q, L_k = check_length("L_q", L_q), check_length("L_k", L_k)
    every = torch.ones(L_q, L_k, dtype=torch.bool, device=device)
    return every.tril(L_k - L_q)


def combine_masks(keep, causal):
    """Allow what both allow: real keys that are not in the future.

    Parameters
    ----------
    keep : Tensor of bool, shape (B, L_k)
    causal : Tensor of bool, shape (L_q, L_k)

    Returns
    -------
    Tensor of bool, shape (B, 1, L_q, L_k)

    Raises
    ------
    ValueError
        If an argument is not boolean or the shapes do not fit together.
    """
    check_bool("keep", keep, "True = a real token")
    check_axes("keep", keep, ("B", "L_k"))
    check_bool("causal", causal)
    check_axes("causal", causal, ("L_q", "L_k"))
    if causal.shape[1] != keep.shape[1]:
        raise ValueError(
            f"causal: expected one column for each of the {keep.shape[1]} keys in keep, "
            f"got shape {tuple(causal.shape)}"
        )
    return keep[:, None, None, :] & causal  # (B, 1, L_q, L_k)


def sliding_window_mask(L, window, device=None):
    """Allow each position itself and the ``window - 1`` before it: bool (L, L).

    Raises
    ------
    ValueError
        If `L` is negative, `window` is below 1, or either is no integer.
    """
    window = check_length("window", window, smallest=1)
    return causal_mask(L, device).triu(1 - window)


def packed_mask(segments):
    """Keep sequences apart that were packed one after another into a row.

    Parameters
    ----------
    segments : Tensor of int, shape (B, L)
        Which sequence each token belongs to; negative = padding.

    Returns
    -------
    Tensor of bool, shape (B, 1, L, L)

    Raises
    ------
    ValueError
        If `segments` does not hold integers or has other axes.
    """
    if segments.is_floating_point() or segments.dtype == torch.bool:
        raise ValueError(f"segments: expected integers, got {segments.dtype}")
    check_axes("segments", segments, ("B", "L"))
    same = segments[:, :, None] == segments[:, None, :]  # (B, L, L)
    return (same & (segments >= 0)[:, None, :])[:, None]  # (B, 1, L, L)


def prefix_lm_mask(prefix_lengths, L):
    """Allow all queries the prefix, and beyond it what is not after them.

    Parameters
    ----------
    prefix_lengths : Tensor of int, shape (B,)
    L : int

    Returns
    -------
    Tensor of bool, shape (B, 1, L, L)
    """
    prefix = padding_mask(prefix_lengths, L)
    return prefix | causal_mask(L, prefix.device)


def masked_mean_pool(x, keep):
    """Average the real tokens of each sequence.

    Parameters
    ----------
    x : Tensor, shape (..., L, D)
        What stands in padding has no effect, and gets gradient 0.
    keep : Tensor of bool, shape (..., L)
        True = a real token.

    Returns
    -------
    Tensor, shape (..., D)
        0 for a sequence without a real token. In the dtype of `x`.

    Raises
    ------
    ValueError
        If `keep` is not boolean or does not have a value for each token.
    """
    check_bool("keep", keep, "True = a real token")
    if keep.shape != x.shape[:-1]:
        raise ValueError(f"keep: expected shape {tuple(x.shape[:-1])}, got {tuple(keep.shape)}")
    work = torch.promote_types(x.dtype, torch.float32)
    total = x.masked_fill(~keep[..., None], 0).sum(dim=-2, dtype=work)  # (..., D)
    count = keep.sum(dim=-1, keepdim=True).clamp(min=1)  # (..., 1)
    return (total / count).to(x.dtype)


def masked_attention(Q, K, V, mask=None, causal=False):
    """Attend to keys that the mask allows and, if causal, are not after.

    As `attention.in_numpy.masking.masked_attention`: causal is aligned to the
    last key, and a query with no allowed key has weights, output and gradient
    0.

    Parameters
    ----------
    Q : Tensor, shape (..., L_q, d_k)
    K : Tensor, shape (..., L_k, d_k)
    V : Tensor, shape (..., L_k, d_v)
    mask : Tensor of bool, optional
        True = may attend. Broadcasts to (..., L_q, L_k).
    causal : bool

    Returns
    -------
    output : Tensor, shape (..., L_q, d_v)
    weights : Tensor, shape (..., L_q, L_k)
    """
    if causal:
        not_after = causal_mask_rect(Q.shape[-2], K.shape[-2], Q.device)
        if mask is not None:
            lead = torch.broadcast_shapes(Q.shape[:-2], K.shape[:-2])
            check_tensor_mask(mask, (*lead, *not_after.shape))
            not_after = not_after & mask
        mask = not_after
    return scaled_dot_product_attention(Q, K, V, mask)


# --- to PyTorch's conventions ----------------------------------------------------------------


def to_sdpa_mask(mask):
    """Return the `attn_mask` of `F.scaled_dot_product_attention`, 4-D inputs.

    Its meaning is this course's, True = may attend. Only the axes of a mask
    for each sequence need care: (B, L_q, L_k) would meet (h, L_q, L_k).

    Parameters
    ----------
    mask : Tensor of bool
        True = may attend. Shape (L_q, L_k), (B, L_q, L_k) or
        (B, h, L_q, L_k), where axes may have size 1.

    Returns
    -------
    Tensor of bool
        With an axis for the heads where there was none.

    Raises
    ------
    ValueError
        If `mask` is not a boolean tensor, or has other axes.
    """
    check_bool("mask", mask)
    axes = ("B", "h", "L_q", "L_k")
    check_axes("mask", mask, axes[2:], axes[:1] + axes[2:], axes)
    return mask[:, None] if mask.ndim == 3 else mask


def to_mha_key_padding_mask(keep):
    """Return a `key_padding_mask` for `nn.MultiheadAttention`: True = ignore.

    `nn.TransformerEncoder` calls it `src_key_padding_mask`.

    Parameters
    ----------
    keep : Tensor of bool, shape (B, L_k) or (B, 1, 1, L_k)
        True = a real token. The second shape is that of `padding_mask`.

    Returns
    -------
    Tensor of bool, shape (B, L_k)

    Raises
    ------
    ValueError
        If `keep` is not a boolean tensor, or has other axes.
    """
    check_bool("keep", keep, "True = a real token")
    check_axes("keep", keep, ("B", "L_k"), ("B", "1", "1", "L_k"))
    if keep.ndim == 4:
        if keep.shape[1:3] != (1, 1):
            raise ValueError(
                "keep: expected shape (B, L_k) or (B, 1, 1, L_k), "
                f"got {tuple(keep.shape)}; use to_mha_attn_mask"
            )
        keep = keep[:, 0, 0]  # (B, L_k)
    return ~keep


def to_mha_attn_mask(mask, num_heads):
    """Return an `attn_mask` for `nn.MultiheadAttention`: True = leave out.

    `nn.TransformerEncoder` calls it `mask`.

    Parameters
    ----------
    mask : Tensor of bool
        True = may attend. Shape (L_q, L_k), (B, L_q, L_k) or
        (B, h, L_q, L_k), where h may be 1.
    num_heads : int
        The layer's number of heads h.

    Returns
    -------
    Tensor of bool, shape (L_q, L_k) or (B * h, L_q, L_k)
        Entry ``b * h + i`` belongs to head i of sequence b.

    Raises
    ------
    ValueError
        If `mask` is not a boolean tensor, or has other axes.
    """
    mask = to_sdpa_mask(mask)
    if mask.ndim == 2:
        return ~mask
    num_heads = check_length("num_heads", num_heads, smallest=1)
    B, h, L_q, L_k = mask.shape
    if h not in (1, num_heads):
        raise ValueError(f"mask: expected 1 or {num_heads} heads, got {h}")
    mask = mask.expand(B, num_heads, L_q, L_k)
    return ~mask.reshape(B * num_heads, L_q, L_k)


def to_float_mask(mask, dtype=torch.float32):
    """Return numbers to add to the scores: 0 = may attend, -inf = left out.

    Both interfaces of PyTorch take them, and mean the same.

    Parameters
    ----------
    mask : Tensor of bool
        True = may attend. Any shape.
    dtype : torch.dtype
        A floating dtype: that of the queries.

    Returns
    -------
    Tensor
        Same shape and device as `mask`.

    Raises
    ------
    ValueError
        If `mask` is not a boolean tensor or `dtype` is not floating.
    """
    check_bool("mask", mask)
    if not dtype.is_floating_point:
        raise ValueError(f"dtype: expected a floating dtype, got {dtype}")
    zeros = torch.zeros(mask.shape, dtype=dtype, device=mask.device)
    return zeros.masked_fill(~mask, -torch.inf)


# --- and back --------------------------------------------------------------------------------


def from_mha_key_padding_mask(key_padding_mask):
    """Return a mask (B, 1, 1, L_k), True = may attend, from one of True = ignore.

    Raises
    ------
    ValueError
        If `key_padding_mask` is not a boolean tensor of shape (B, L_k).
    """
    check_bool("key_padding_mask", key_padding_mask, "True = ignore")
    check_axes("key_padding_mask", key_padding_mask, ("B", "L_k"))
    return ~key_padding_mask[:, None, None, :]


def from_mha_attn_mask(attn_mask, num_heads):
    """Return a mask of True = may attend from an `attn_mask` of True = leave out.

    Parameters
    ----------
    attn_mask : Tensor of bool, shape (L_q, L_k) or (B * h, L_q, L_k)
    num_heads : int
        The layer's number of heads h.

    Returns
    -------
    Tensor of bool, shape (L_q, L_k) or (B, h, L_q, L_k)

    Raises
    ------
    ValueError
        If `attn_mask` is not a boolean tensor, or its first axis is not a
        multiple of `num_heads`.
    """
    check_bool("attn_mask", attn_mask, "True = leave out")
    check_axes("attn_mask", attn_mask, ("L_q", "L_k"), ("B * h", "L_q", "L_k"))
    if attn_mask.ndim == 2:
        return ~attn_mask
    num_heads = check_length("num_heads", num_heads, smallest=1)
    if len(attn_mask) % num_heads:
        raise ValueError(
            f"attn_mask: expected a first axis of B * {num_heads}, got {len(attn_mask)}"
        )
    return ~attn_mask.unflatten(0, (-1, num_heads))  # (B, h, L_q, L_k)


def from_float_mask(mask):
    """Return a mask of True = may attend from one of 0 and -inf.

    Parameters
    ----------
    mask : Tensor
        Holds 0 and -inf only.

    Raises
    ------
    ValueError
        If `mask` is not floating, or holds any other number. A large negative
        number is refused too: it is not the same as leaving a key out.
    """
    if not mask.is_floating_point():
        raise ValueError(f"mask: expected floats, 0 and -inf, got {mask.dtype}")
    other = mask[(mask != 0) & ~torch.isneginf(mask)]
    if len(other):
        raise ValueError(f"mask: expected 0 and -inf only, got {other[0].item():g}")
    return mask == 0
