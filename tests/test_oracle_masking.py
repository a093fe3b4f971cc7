"""The oracle's masks do in PyTorch's own functions what their definitions say."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention.bias import causal_lower_right

from .oracle import masking as oracle

CLOSE = {"rtol": 1e-12, "atol": 1e-12}


def normal(*shape, seed=0):
    return torch.tensor(np.random.default_rng(seed).normal(size=shape))


def attend(Q, K, V, mask=None, **options):
    """PyTorch's output under a mask of ours, with the axes for the heads in place."""
    if mask is not None:
        mask = torch.tensor(mask)
    return F.scaled_dot_product_attention(Q, K, V, attn_mask=mask, **options).numpy()


@pytest.mark.parametrize("L", [1, 2, 5])
def test_causal_is_pytorchs(L):
    Q, K, V = (normal(2, 3, L, 4, seed=i) for i in range(3))
    expected = attend(Q, K, V, is_causal=True)
    np.testing.assert_allclose(attend(Q, K, V, oracle.causal_mask(L)), expected, **CLOSE)
    square = nn.Transformer.generate_square_subsequent_mask(L)
    np.testing.assert_array_equal(oracle.causal_mask(L), square.numpy() == 0)


@pytest.mark.parametrize(("L_q", "L_k"), [(1, 5), (2, 5), (4, 4), (3, 7)])
def test_rectangular_causal_is_pytorchs_lower_right(L_q, L_k):
    Q, K, V = normal(2, 3, L_q, 4), normal(2, 3, L_k, 4, seed=1), normal(2, 3, L_k, 4, seed=2)
    bias = causal_lower_right(L_q, L_k)
    expected = F.scaled_dot_product_attention(Q, K, V, attn_mask=bias).numpy()
    mask = oracle.causal_mask_rect(L_q, L_k)
    np.testing.assert_allclose(attend(Q, K, V, mask), expected, **CLOSE)


def test_queries_before_all_keys_read_nothing():
    assert oracle.causal_mask_rect(4, 2).tolist() == [
        [False, False],
        [False, False],
        [True, False],
        [True, True],
    ]


def test_padding_is_the_shorter_sequence():
    Q, K, V = (normal(3, 2, 5, 4, seed=i) for i in range(3))
    lengths = [5, 2, 3]
    output = attend(Q, K, V, oracle.padding_mask(lengths, 5))
    for b, n in enumerate(lengths):
        alone = attend(Q[b], K[b, :, :n], V[b, :, :n])
        np.testing.assert_allclose(output[b], alone, **CLOSE)


def test_padding_and_the_future_are_the_shorter_past():
    Q, K, V = (normal(3, 2, 5, 4, seed=i) for i in range(3))
    keep = np.array([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [0, 0, 1, 1, 1]], dtype=bool)
    output = attend(Q, K, V, oracle.combine_masks(keep, oracle.causal_mask(5)))
    for b, i in np.ndindex(3, 5):
        real = torch.tensor(np.flatnonzero(keep[b, : i + 1]))
        if len(real):
            alone = attend(Q[b, :, i : i + 1], K[b][:, real], V[b][:, real])[:, 0]
        else:
            alone = np.zeros((2, 4))
        np.testing.assert_allclose(output[b, :, i], alone, **CLOSE)


@pytest.mark.parametrize("window", [1, 2, 5, 9])
def test_a_window_is_the_last_few_keys(window):
    Q, K, V = (normal(2, 5, 4, seed=i) for i in range(3))
    output = attend(Q, K, V, oracle.sliding_window_mask(5, window))
    for i in range(5):
        first = max(0, i + 1 - window)
        alone = attend(Q[:, i : i + 1], K[:, first : i + 1], V[:, first : i + 1])
        np.testing.assert_allclose(output[:, i : i + 1], alone, **CLOSE)


def test_packed_sequences_are_sequences_alone():
    Q, K, V = (normal(2, 3, 7, 4, seed=i) for i in range(3))
    segments = np.array([[0, 0, 0, 1, 1, 2, -1], [4, 4, 4, 4, 4, 4, 4]])
    output = attend(Q, K, V, oracle.packed_mask(segments))
    for b, (first, end) in [(0, (0, 3)), (0, (3, 5)), (0, (5, 6)), (1, (0, 7))]:
        alone = attend(*(tensor[b, :, first:end] for tensor in (Q, K, V)))
        np.testing.assert_allclose(output[b, :, first:end], alone, **CLOSE)
    assert not output[0, :, 6].any()


def test_a_prefix_is_read_by_all_and_the_rest_is_causal():
    Q, K, V = (normal(3, 2, 5, 4, seed=i) for i in range(3))
    lengths = [0, 3, 5]
    output = attend(Q, K, V, oracle.prefix_lm_mask(lengths, 5))
    for b, i in np.ndindex(3, 5):
        end = max(lengths[b], i + 1)
        alone = attend(Q[b, :, i : i + 1], K[b, :, :end], V[b, :, :end])
        np.testing.assert_allclose(output[b, :, i : i + 1], alone, **CLOSE)


def test_pooling_is_the_mean_of_what_is_kept():
    x = normal(3, 5, 2).numpy()
    keep = np.array([[1, 0, 1, 1, 0], [0] * 5, [1] * 5], dtype=bool)
    expected = [x[0, [0, 2, 3]].mean(axis=0), np.zeros(2), x[2].mean(axis=0)]
    np.testing.assert_allclose(oracle.masked_mean_pool(x, keep), expected, **CLOSE)


@pytest.mark.parametrize("masked", [False, True])
def test_masked_attention_is_pytorchs(masked):
    Q, K, V = normal(2, 3, 4, 6), normal(2, 3, 7, 6, seed=1), normal(2, 3, 7, 5, seed=2)
    mask = np.random.default_rng(3).random((2, 1, 4, 7)) < 0.6 if masked else None
    not_after = np.tri(4, 7, 3, dtype=bool)
    for causal in (False, True):
        allowed = not_after if causal else np.full((4, 7), True)
        if masked:
            allowed = allowed & mask
        output, _ = oracle.masked_attention(Q, K, V, mask, causal)
        np.testing.assert_allclose(output, attend(Q, K, V, allowed), **CLOSE)
