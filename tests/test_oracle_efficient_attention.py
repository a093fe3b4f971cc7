"""The oracle of the cheaper attentions agrees with PyTorch."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention.bias import causal_lower_right

from .oracle import efficient_attention as oracle
from .oracle import masking, single_head

CLOSE = {"rtol": 1e-12, "atol": 1e-12}


def normal(*shape, seed=0):
    return torch.tensor(np.random.default_rng(seed).normal(size=shape))


@pytest.mark.parametrize("window", [1, 2, 4, 9])
@pytest.mark.parametrize(("L_q", "L_k"), [(5, 5), (2, 5), (4, 2)])
def test_a_window_is_a_band_of_ones(L_q, L_k, window):
    offset = L_k - L_q
    band = torch.ones(L_q, L_k).tril(offset).triu(offset - window + 1) == 1
    np.testing.assert_array_equal(oracle.window_mask(L_q, L_k, window), band)
    if L_q == L_k:
        expected = masking.sliding_window_mask(L_k, window)
        np.testing.assert_array_equal(oracle.window_mask(L_q, L_k, window), expected)


def test_blocks_are_a_kronecker_product():
    pattern = torch.tensor([[1, 0, 1], [0, 0, 0], [1, 1, 0], [0, 1, 1]])
    expected = torch.kron(pattern, torch.ones(3, 3, dtype=torch.int64)) == 1
    for L_q, L_k in [(12, 9), (10, 8), (11, 7)]:
        mask = oracle.block_sparse_mask(pattern.tolist(), 3, L_q, L_k)
        np.testing.assert_array_equal(mask, expected[:L_q, :L_k])


def test_logsumexp_is_pytorchs():
    Q, K = normal(2, 3, 4, 6) * 3, normal(3, 7, 6, seed=1)
    mask = np.random.default_rng(2).random((2, 1, 4, 7)) < 0.5
    mask[1, :, 2] = False
    scores = Q @ K.transpose(-1, -2) / 6**0.5
    np.testing.assert_allclose(oracle.logsumexp(Q, K), scores.logsumexp(-1), **CLOSE)
    scores = scores.masked_fill(~torch.tensor(mask), -torch.inf)
    np.testing.assert_allclose(oracle.logsumexp(Q, K, mask), scores.logsumexp(-1), **CLOSE)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("k", [1, 3, 7, 20])
def test_topk_is_a_softmax_over_pytorchs_topk(k, causal):
    Q, K, V = normal(2, 3, 5, 4), normal(2, 3, 7, 4, seed=1), normal(2, 3, 7, 6, seed=2)
    scores = Q @ K.transpose(-1, -2) / 2
    if causal:
        scores = scores.masked_fill(~torch.ones(5, 7).tril(2).bool(), -torch.inf)
    best, where = scores.topk(min(k, 7))
    weights = torch.zeros_like(scores).scatter(-1, where, best.softmax(-1))
    expected = weights @ V
    np.testing.assert_allclose(oracle.topk_attention(Q, K, V, k, causal), expected, **CLOSE)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("L_q", [2, 5, 7])
def test_linear_attention_is_a_product_of_features(L_q, causal):
    Q, K, V = normal(2, 3, L_q, 4), normal(3, 5, 4, seed=1), normal(2, 1, 5, 6, seed=2)
    weights = (F.elu(Q) + 1) @ (F.elu(K) + 1).transpose(-1, -2)
    if causal:
        weights = weights.tril(5 - L_q)
    total = weights.sum(-1, keepdim=True)
    expected = weights @ V / torch.where(total == 0, 1, total)
    np.testing.assert_allclose(oracle.linear_attention(Q, K, V, causal), expected, **CLOSE)


@pytest.mark.parametrize("g", [1, 2, 6])
def test_grouped_heads_are_pytorchs(g):
    Q, K, V = normal(2, 6, 3, 4), normal(2, g, 5, 4, seed=1), normal(2, g, 5, 7, seed=2)
    mask = causal_lower_right(3, 5)
    expected = F.scaled_dot_product_attention(Q, K, V, mask, enable_gqa=True)
    output = oracle.grouped_query_attention(Q, K, V, masking.causal_mask_rect(3, 5))
    np.testing.assert_allclose(output, expected, **CLOSE)
    expected = F.scaled_dot_product_attention(Q, K, V, enable_gqa=True)
    np.testing.assert_allclose(oracle.grouped_query_attention(Q, K, V), expected, **CLOSE)
    if g == 6:
        every = single_head.scaled_dot_product_attention(Q, K, V)[0]
        np.testing.assert_allclose(expected, every, **CLOSE)
