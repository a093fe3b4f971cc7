"""The torch twins agree with the oracle, forward and backward, in every precision and device."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from attention.in_numpy import efficient_attention as in_numpy
from attention.in_torch import efficient_attention as ours
from attention.in_torch.single_head import scaled_dot_product_attention

from .oracle import efficient_attention as oracle
from .oracle import masking as oracle_masking
from .oracle import single_head as oracle_single

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, needs_gpu])]
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
every_device = pytest.mark.parametrize("device", DEVICES)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def normal(*shape, seed=0):
    return torch.tensor(np.random.default_rng(seed).normal(size=shape))


def inputs(*shapes, device="cpu", dtype=torch.float64):
    return [normal(*s, seed=i).to(device, dtype).requires_grad_() for i, s in enumerate(shapes)]


def arrays(tensors):
    return [t.detach().double().cpu().numpy() for t in tensors]


def close(tensor, expected, times=8):
    bound = times * torch.finfo(tensor.dtype).eps
    array = tensor.detach().double().cpu().numpy()
    assert array.shape == np.shape(expected)
    np.testing.assert_allclose(array, expected, rtol=bound, atol=bound)


def masks():
    """Return masks of every kind for scores of shape (2, 3, 5, 7)."""
    rng = np.random.default_rng(5)
    ragged = rng.random((2, 1, 5, 7)) < 0.5
    ragged[1, :, 2] = False
    return {
        "none": None,
        "causal": oracle_masking.causal_mask_rect(5, 7),
        "padding right": oracle_masking.padding_mask([7, 3], 7),
        "padding left": oracle_masking.padding_mask([7, 2], 7)[..., ::-1].copy(),
        "window": oracle.window_mask(5, 7, 2),
        "random, an empty row": ragged,
        "whole queries": np.array([[True], [False], [True], [True], [False]]),
        "nothing": np.zeros((5, 7), dtype=bool),
    }


each_mask = pytest.mark.parametrize("mask", masks().values(), ids=masks())


@every_device
@every_dtype
@each_mask
def test_chunks_and_their_gradients_are_the_oracles(device, dtype, mask):
    shapes = (2, 3, 5, 6), (2, 3, 7, 6), (2, 3, 7, 4)
    tensors = inputs(*shapes, device=device, dtype=dtype)
    expected, weights = oracle_single.scaled_dot_product_attention(*arrays(tensors), mask)
    doutput = normal(*expected.shape, seed=4).to(device, dtype)
    gradients = oracle_single.attention_backward(*arrays([doutput, *tensors]), weights)
    given = None if mask is None else torch.tensor(mask, device=device)
    for chunk_size in (1, 3, 7, 50):
        output, logsumexp = ours.chunked_attention(
            *tensors, chunk_size, given, return_logsumexp=True
        )
        assert output.dtype == dtype
        assert output.device.type == device
        close(output, expected)
        exact = oracle.logsumexp(*arrays(tensors[:2]), mask)
        np.testing.assert_allclose(arrays([logsumexp])[0], exact, rtol=1e-5, atol=1e-5)
        found = torch.autograd.grad(output, tensors, doutput)
        for gradient, exact in zip(found, gradients, strict=True):
            assert gradient.dtype == dtype
            close(gradient, exact, times=64)


def test_shared_keys_and_values_get_the_sum_of_their_gradients():
    tensors = inputs((2, 3, 5, 4), (3, 6, 4), (2, 1, 6, 2))
    assert torch.autograd.gradcheck(lambda *t: ours.chunked_attention(*t, 4), tensors)


def test_autograd_keeps_no_weights():
    tensors = inputs((40, 4), (50, 4), (50, 4))
    kept = []

    def keep(tensor):
        kept.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        ours.chunked_attention(*tensors, 8)
        chunked, kept = max(kept), []
        scaled_dot_product_attention(*tensors)
    assert chunked == 50 * 4
    assert max(kept) >= 40 * 50


@every_device
@every_dtype
def test_scores_of_any_size(device, dtype):
    Q = torch.tensor([[245.0, 0], [245, 0]], device=device, dtype=dtype)
    K = torch.tensor([[0, 1], [240, 0], [-240.0, 0], [-250, 0]], device=device, dtype=dtype)
    V = torch.tensor([[-3.0], [5], [1], [2]], device=device, dtype=dtype)
    mask = torch.tensor([[False, False, True, True], [False] * 4], device=device)
    for chunk_size in (1, 2, 3, 4):
        output = ours.chunked_attention(Q, K, V, chunk_size, mask)
        assert output.tolist() == [[1], [0]]


@every_device
@every_dtype
@pytest.mark.parametrize(("L_q", "L_k"), [(6, 6), (3, 8), (8, 3), (0, 4)])
def test_query_chunks_windows_and_blocks_are_the_masked_oracle(device, dtype, L_q, L_k):
    shapes = (2, 3, L_q, 4), (2, 3, L_k, 4), (2, 1, L_k, 5)
    tensors = inputs(*shapes, device=device, dtype=dtype)
    for size in (1, 2, 5, 20):
        output = ours.causal_attention_by_query_chunks(*tensors, size)
        mask = oracle_masking.causal_mask_rect(L_q, L_k)
        close(output, oracle_single.scaled_dot_product_attention(*arrays(tensors), mask)[0])
        output = ours.sliding_window_attention(*tensors, 3, size)
        assert output.dtype == dtype
        mask = oracle.window_mask(L_q, L_k, 3)
        close(output, oracle_single.scaled_dot_product_attention(*arrays(tensors), mask)[0])
        blocks = (-(-L_q // size), -(-L_k // size))
        pattern = np.random.default_rng(size).random(blocks) < 0.6
        mask = oracle.block_sparse_mask(pattern, size, L_q, L_k)
        pattern = torch.tensor(pattern, device=device)
        found = ours.block_sparse_mask(pattern, size, L_q, L_k)
        np.testing.assert_array_equal(found.cpu(), mask)
        output = ours.block_sparse_attention(*tensors, pattern, size)
        close(output, oracle_single.scaled_dot_product_attention(*arrays(tensors), mask)[0])


@pytest.mark.parametrize("window", [None, 2])
def test_the_gradient_of_query_chunks(window):
    tensors = inputs((5, 3), (7, 3), (7, 2))
    assert torch.autograd.gradcheck(
        lambda *t: ours.sliding_window_attention(*t, window, 2), tensors
    )


@every_device
def test_the_patterns_are_numpys(device):
    for arguments in [(5, 1, 1), (4, 0, 2), (6, 2, 0)]:
        pattern = ours.local_global_pattern(*arguments, device=device)
        expected = in_numpy.local_global_pattern(*arguments)
        np.testing.assert_array_equal(pattern.cpu(), expected)


@every_device
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("k", [1, 3, 20])
def test_topk_is_the_oracles(device, causal, k):
    tensors = inputs((2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 6), device=device)
    close(
        ours.topk_attention(*tensors, k, causal), oracle.topk_attention(*arrays(tensors), k, causal)
    )


@every_device
@every_dtype
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("L_q", [0, 2, 5, 7])
def test_linear_attention_is_the_oracles(device, dtype, causal, L_q):
    tensors = inputs((2, 3, L_q, 4), (3, 5, 4), (2, 1, 5, 6), device=device, dtype=dtype)
    output = ours.linear_attention(*tensors, causal)
    assert output.dtype == dtype
    close(output, oracle.linear_attention(*arrays(tensors), causal))


@pytest.mark.parametrize("causal", [False, True])
def test_the_gradient_of_linear_attention(causal):
    tensors = inputs((6, 3), (5, 3), (5, 2))
    assert torch.autograd.gradcheck(lambda *t: ours.linear_attention(*t, causal), tensors)


@every_device
@every_dtype
@pytest.mark.parametrize("g", [1, 2, 6])
def test_grouped_heads_are_pytorchs(device, dtype, g):
    shapes = (2, 6, 4, 8), (2, g, 5, 8), (2, g, 5, 8)
    tensors = inputs(*shapes, device=device, dtype=dtype)
    output = ours.grouped_query_attention(*tensors)
    close(output, oracle.grouped_query_attention(*arrays(tensors)))
    theirs = F.scaled_dot_product_attention(*tensors, enable_gqa=True)
    close(output, theirs.detach().double().cpu().numpy(), times=32)
    mask = np.random.default_rng(3).random((2, 6, 4, 1)) < 0.5
    output = ours.grouped_query_attention(*tensors, torch.tensor(mask, device=device))
    close(output, oracle.grouped_query_attention(*arrays(tensors), mask))


@every_device
@every_dtype
@pytest.mark.parametrize("steps", [[1] * 6, [3, 1, 2], [6]], ids=str)
def test_decoding_from_a_cache_is_the_full_pass(device, dtype, steps):
    tensors = inputs((2, 4, 6, 3), (2, 2, 6, 3), (2, 2, 6, 5), device=device, dtype=dtype)
    cache = ours.KeyValueCache(6, (2, 2, 3), (2, 2, 5), dtype, device)
    parts, start = [], 0
    for n in steps:
        new = [t[..., start : start + n, :] for t in tensors]
        parts.append(ours.decoding_step(cache, *new))
        start += n
    mask = oracle_masking.causal_mask(6)
    close(torch.cat(parts, dim=-2), oracle.grouped_query_attention(*arrays(tensors), mask))
    assert cache.nbytes == 2 * 2 * 6 * (3 + 5) * tensors[0].element_size()
    with pytest.raises(ValueError, match="at most 6 positions in all, got 7"):
        cache.append(*(t[..., :1, :] for t in tensors[1:]))


@every_device
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("L", [300, 1000])
def test_long_sequences_are_the_fused_kernels(device, dtype, L):
    tensors = [normal(1, 2, L, 16, seed=i).to(device, dtype) for i in range(3)]
    exact = F.scaled_dot_product_attention(*(t.double() for t in tensors), is_causal=True)
    exact = exact.cpu().numpy()
    close(ours.causal_attention_by_query_chunks(*tensors, 128), exact)
    mask = torch.ones(L, L, dtype=torch.bool, device=device).tril()
    close(ours.chunked_attention(*tensors, 128, mask), exact)
    theirs = F.scaled_dot_product_attention(*tensors, is_causal=True)
    close(theirs, exact, times=16)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda Q: ours.chunked_attention(Q.long(), Q, Q, 2), "Q: expected floats, got torch.int"),
        (lambda Q: ours.chunked_attention(Q, Q, Q, 0), "chunk_size: .* at least 1, got 0"),
        (lambda Q: ours.chunked_attention(Q, Q, Q, 2, Q > 0), r"mask: .*\(4, 4\), got \(4, 3\)"),
        (
            lambda Q: ours.chunked_attention_backward(Q[:3], Q, Q, Q, Q, Q[:, 0], 2),
            r"doutput: expected shape \(4, 3\)",
        ),
        (lambda Q: ours.sliding_window_attention(Q, Q, Q, 0, 2), "window: .* at least 1, got 0"),
        (
            lambda Q: ours.block_sparse_attention(Q, Q, Q, Q > 0, 2),
            r"pattern: expected shape \(2, 2\), got \(4, 3\)",
        ),
        (lambda Q: ours.topk_attention(Q, Q, Q, 0), "k: .* at least 1, got 0"),
        (lambda Q: ours.grouped_query_attention(Q, Q, Q), "Q: expected at least 3 axes"),
        (
            lambda Q: ours.grouped_query_attention(*(normal(n, 4, 3) for n in (3, 2, 2))),
            "Q: expected a multiple of the 2 key heads, got 3 heads",
        ),
        (
            lambda Q: ours.grouped_query_attention(*(normal(n, 4, 3) for n in (4, 2, 1))),
            "V: expected the 2 heads of K, got 1",
        ),
        (
            lambda Q: ours.KeyValueCache(3, (2,), (2,)).append(normal(1, 3), normal(1, 2)),
            r"K: expected shape \(1, 2\), got \(1, 3\)",
        ),
    ],
)
def test_what_does_not_fit_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call(normal(4, 3))
