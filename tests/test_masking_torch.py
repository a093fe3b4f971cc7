"""The torch masks agree with the oracle, and the converters with what PyTorch's layers do."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attention.in_torch import masking
from attention.in_torch.multi_head import copy_from_torch

from .oracle import masking as oracle
from .oracle import single_head as oracle_single

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, needs_gpu])]
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
every_device = pytest.mark.parametrize("device", DEVICES)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)

B, H, L, D = 3, 2, 5, 8
LENGTHS = [5, 2, 3]


def normal(*shape, seed=0):
    return torch.tensor(np.random.default_rng(seed).normal(size=shape))


def booleans(*shape, seed=0):
    """Draw a mask with something allowed in each row."""
    mask = np.random.default_rng(seed).random(shape) < 0.5
    mask[..., 0] |= ~mask.any(axis=-1)
    return torch.tensor(mask)


def same_mask(mask, expected, device="cpu"):
    assert mask.dtype == torch.bool
    assert mask.device.type == device
    np.testing.assert_array_equal(mask.cpu().numpy(), expected, strict=True)


def close(tensor, expected, times=8):
    bound = times * torch.finfo(tensor.dtype).eps
    array = tensor.detach().double().cpu().numpy()
    np.testing.assert_allclose(array, expected, rtol=bound, atol=bound)


# --- masks -----------------------------------------------------------------------------------


@every_device
@pytest.mark.parametrize(("L_q", "L_k"), [(4, 4), (2, 5), (5, 2), (1, 3), (0, 3), (3, 0)])
def test_masks_of_positions_are_the_oracles(L_q, L_k, device):
    same_mask(masking.causal_mask(L_k, device), oracle.causal_mask(L_k), device)
    expected = oracle.causal_mask_rect(L_q, L_k)
    same_mask(masking.causal_mask_rect(L_q, L_k, device), expected, device)
    for window in (1, 2, 9):
        expected = oracle.sliding_window_mask(L_k, window)
        same_mask(masking.sliding_window_mask(L_k, window, device), expected, device)


@every_device
def test_masks_of_sequences_are_the_oracles(device):
    lengths = torch.tensor([4, 0, 2], device=device)
    same_mask(masking.padding_mask(lengths, 4), oracle.padding_mask([4, 0, 2], 4), device)
    same_mask(masking.prefix_lm_mask(lengths, 4), oracle.prefix_lm_mask([4, 0, 2], 4), device)
    segments = torch.tensor([[0, 0, 1, 1, -1], [2, 2, 2, 0, 0]], device=device)
    same_mask(masking.packed_mask(segments), oracle.packed_mask(segments.cpu()), device)
    keep, causal = booleans(3, 5), booleans(4, 5, seed=1)
    expected = oracle.combine_masks(keep, causal)
    same_mask(masking.combine_masks(keep.to(device), causal.to(device)), expected, device)


@every_device
@every_dtype
def test_pooling_is_the_oracles_and_padding_gets_no_gradient(device, dtype):
    x = normal(2, 3, 5, 4).to(device, dtype).requires_grad_()
    keep = booleans(2, 3, 5, seed=1).to(device)
    keep[0, 1] = False
    mean = masking.masked_mean_pool(x, keep)
    assert mean.dtype == dtype
    close(mean, oracle.masked_mean_pool(x.detach().double().cpu().numpy(), keep.cpu().numpy()))
    mean.sum().backward()
    assert not x.grad[~keep].any()
    assert x.grad[keep].all()
    with torch.no_grad():
        x[~keep] = torch.nan
    assert masking.masked_mean_pool(x, keep).equal(mean)


@every_device
@every_dtype
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_masked_attention_and_its_gradients_are_the_oracles(device, dtype, causal, masked):
    shapes = [(2, 3, 4, 6), (2, 3, 7, 6), (2, 3, 7, 5)]
    tensors = [normal(*s, seed=i).to(device, dtype).requires_grad_() for i, s in enumerate(shapes)]
    mask = None
    if masked:
        mask = booleans(2, 1, 4, 7, seed=3)
        mask[1, :, 2] = False  # an empty row
    output, weights = masking.masked_attention(
        *tensors, mask=None if mask is None else mask.to(device), causal=causal
    )
    arrays = [t.detach().double().cpu().numpy() for t in tensors]
    expected = oracle.masked_attention(
        *arrays, mask=None if mask is None else mask.numpy(), causal=causal
    )
    close(output, expected[0])
    close(weights, expected[1])
    doutput = normal(*output.shape, seed=4).to(device, dtype)
    output.backward(doutput)
    gradients = oracle_single.attention_backward(
        doutput.double().cpu().numpy(), *arrays, expected[1]
    )
    for tensor, gradient in zip(tensors, gradients, strict=True):
        close(tensor.grad, gradient, times=64)
    if masked:
        assert not tensors[0].grad[1, :, 2].any()


def test_masked_attention_refuses_a_mask_that_does_not_fit():
    Q, K, V = normal(2, 3), normal(4, 3), normal(4, 2)
    for causal in (False, True):
        with pytest.raises(ValueError, match=r"mask: expected booleans .*float64"):
            masking.masked_attention(Q, K, V, normal(2, 4), causal)
        with pytest.raises(ValueError, match=r"mask: .*scores, \(2, 4\), got \(5, 2, 4\)"):
            masking.masked_attention(Q, K, V, booleans(5, 2, 4), causal)


# --- converters, proven on PyTorch's own functions -------------------------------------------


def masks():
    """Return masks of every kind and shape, where each query has a key."""
    keep = masking.padding_mask(torch.tensor(LENGTHS), L)[:, 0, 0]
    return {
        "causal": masking.causal_mask(L),
        "window": masking.sliding_window_mask(L, 2),
        "for each sequence": booleans(B, L, L, seed=5),
        "padding and causal": masking.combine_masks(keep, masking.causal_mask(L)),
        "for each head": booleans(B, H, L, L, seed=6),
    }


each_mask = pytest.mark.parametrize("mask", masks().values(), ids=masks())


def with_heads(mask):
    return mask[:, None] if mask.ndim == 3 else mask


@each_mask
@pytest.mark.parametrize("as_floats", [False, True])
def test_sdpa_takes_the_converted_mask(mask, as_floats):
    Q, K, V = (normal(B, H, L, 4, seed=i) for i in range(3))
    given = masking.to_sdpa_mask(mask)
    if as_floats:
        given = masking.to_float_mask(given, torch.float64)
    output = F.scaled_dot_product_attention(Q, K, V, attn_mask=given)
    close(output, oracle.masked_attention(Q, K, V, with_heads(mask).numpy())[0], times=64)


@each_mask
@pytest.mark.parametrize("as_floats", [False, True])
@pytest.mark.parametrize("need_weights", [False, True])
def test_mha_takes_the_converted_mask(mask, as_floats, need_weights):
    theirs = nn.MultiheadAttention(D, H, batch_first=True, dtype=torch.float64)
    x = normal(B, L, D)
    given = masking.to_mha_attn_mask(mask, H)
    if as_floats:
        given = masking.to_float_mask(masking.from_mha_attn_mask(given, H), torch.float64)
        given = given.flatten(0, 1) if given.ndim == 4 else given
    output, _ = theirs(x, x, x, attn_mask=given, need_weights=need_weights)
    expected, _ = copy_from_torch(theirs)(x, mask)
    close(output, expected.detach().numpy(), times=64)


@pytest.mark.parametrize("four_axes", [False, True])
def test_mha_and_the_encoder_take_the_converted_padding(four_axes):
    keep = masking.padding_mask(torch.tensor(LENGTHS), L)
    given = masking.to_mha_key_padding_mask(keep if four_axes else keep[:, 0, 0])
    x = normal(B, L, D)
    theirs = nn.MultiheadAttention(D, H, batch_first=True, dtype=torch.float64)
    output, _ = theirs(x, x, x, key_padding_mask=given)
    close(output, copy_from_torch(theirs)(x, keep)[0].detach().numpy(), times=64)

    layer = nn.TransformerEncoderLayer(D, H, 16, 0.0, batch_first=True, dtype=torch.float64)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    output = encoder(x, src_key_padding_mask=given)
    for b, n in enumerate(LENGTHS):
        alone = encoder(x[b : b + 1, :n])[0]
        close(output[b, :n], alone.detach().numpy(), times=256)


@each_mask
def test_masks_make_the_round_trip(mask):
    kept = mask.clone()
    back = masking.from_mha_attn_mask(masking.to_mha_attn_mask(mask, H), H)
    assert back.equal(mask if mask.ndim == 2 else with_heads(mask).expand(B, H, L, L))
    assert masking.from_float_mask(masking.to_float_mask(mask, torch.float16)).equal(mask)
    assert mask.equal(kept)


def test_padding_makes_the_round_trip():
    keep = masking.padding_mask(torch.tensor(LENGTHS), L)
    assert masking.from_mha_key_padding_mask(masking.to_mha_key_padding_mask(keep)).equal(keep)


def test_pytorchs_own_causal_mask_comes_in():
    theirs = nn.Transformer.generate_square_subsequent_mask(4)
    assert masking.from_float_mask(theirs).equal(masking.causal_mask(4))


@every_dtype
def test_a_float_mask_is_zero_or_minus_infinity(dtype):
    mask = booleans(3, 4)
    floats = masking.to_float_mask(mask, dtype)
    assert floats.dtype == dtype
    assert not floats[mask].any()
    assert floats[~mask].isneginf().all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: masking.to_sdpa_mask(normal(2, 2)), "mask: expected a boolean .* torch.float64"),
        (lambda: masking.to_sdpa_mask(np.full((2, 2), True)), "mask: expected .* got ndarray"),
        (lambda: masking.to_sdpa_mask(booleans(4)), r"mask: expected shape .*, got \(4,\)"),
        (
            lambda: masking.to_mha_key_padding_mask(booleans(2, 4).long()),
            r"keep: expected a boolean tensor \(True = a real token\), got torch.int64",
        ),
        (
            lambda: masking.to_mha_key_padding_mask(booleans(2, 1, 4, 4)),
            r"keep: .*got \(2, 1, 4, 4\); use to_mha_attn_mask",
        ),
        (
            lambda: masking.to_mha_key_padding_mask(booleans(4)),
            r"keep: expected shape \(B, L_k\) or \(B, 1, 1, L_k\), got \(4,\)",
        ),
        (
            lambda: masking.to_mha_attn_mask(booleans(2, 3, 4, 4), 2),
            "mask: expected 1 or 2 heads, got 3",
        ),
        (lambda: masking.to_mha_attn_mask(booleans(2, 4, 4), 0), "num_heads: .* at least 1, got 0"),
        (
            lambda: masking.to_float_mask(booleans(4, 4), torch.int64),
            "dtype: expected a floating dtype, got torch.int64",
        ),
        (lambda: masking.to_float_mask(normal(4, 4)), "mask: expected a boolean tensor"),
        (
            lambda: masking.from_mha_key_padding_mask(normal(2, 4)),
            r"key_padding_mask: expected a boolean tensor \(True = ignore\), got torch.float64",
        ),
        (lambda: masking.from_mha_attn_mask(booleans(5, 4, 4), 2), r"B \* 2, got 5"),
        (lambda: masking.from_mha_attn_mask(normal(4, 4), 2), r"\(True = leave out\), got"),
        (lambda: masking.from_float_mask(booleans(4, 4)), "expected floats, .* got torch.bool"),
        (lambda: masking.from_float_mask(torch.tensor([0, -1e9])), "0 and -inf only, got -1e"),
        (lambda: masking.from_float_mask(torch.tensor([torch.nan])), "0 and -inf only, got nan"),
        (lambda: masking.padding_mask(torch.tensor([2, 5]), 4), "lengths: .* 0 to 4, got 5"),
        (lambda: masking.padding_mask(torch.tensor([2.0]), 4), "lengths: expected integers"),
        (lambda: masking.padding_mask(torch.tensor(2), 4), r"lengths: expected shape \(B\), got"),
        (lambda: masking.sliding_window_mask(4, 0), "window: .* at least 1, got 0"),
        (lambda: masking.packed_mask(normal(2, 4)), "segments: expected integers"),
        (lambda: masking.packed_mask(torch.tensor([1, 1])), r"segments: expected shape \(B, L\)"),
        (
            lambda: masking.combine_masks(booleans(3, 2), booleans(2, 3)),
            r"causal: expected one column for each of the 2 keys in keep, got shape \(2, 3\)",
        ),
        (lambda: masking.combine_masks(normal(3, 2), booleans(2, 2)), "keep: expected a boolean"),
        (
            lambda: masking.masked_mean_pool(normal(4, 2, 3), booleans(4, 3)),
            r"keep: expected shape \(4, 2\), got \(4, 3\)",
        ),
    ],
)
def test_what_does_not_fit_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# --- what the chapter says about PyTorch -----------------------------------------------------


@pytest.mark.parametrize("as_floats", [False, True])
def test_sdpa_gives_an_empty_row_zero(as_floats):
    mask = booleans(B, 1, L, L)
    mask[1, :, 2] = False
    given = masking.to_float_mask(mask, torch.float64) if as_floats else mask
    Q, K, V = (normal(B, H, L, 4, seed=i) for i in range(3))
    output = F.scaled_dot_product_attention(Q, K, V, attn_mask=given)
    assert not output[1, :, 2].any()
    assert output.isfinite().all()


def test_mha_gives_an_empty_row_nan_where_it_returns_weights_and_ours_does_not():
    theirs = nn.MultiheadAttention(D, H, batch_first=True, dtype=torch.float64)
    x, mask = normal(B, L, D), booleans(B, L, L)
    mask[1, 2] = False
    given = masking.to_mha_attn_mask(mask, H)
    output, _ = theirs(x, x, x, attn_mask=given)
    assert output[1, 2].isnan().all()
    expected, _ = copy_from_torch(theirs)(x, mask)
    assert expected.isfinite().all()
    without_weights, _ = theirs(x, x, x, attn_mask=given, need_weights=False)
    close(without_weights, expected.detach().numpy(), times=64)


def test_is_causal_is_aligned_to_the_first_key():
    Q, K, V = normal(2, 2, 4), normal(2, 5, 4, seed=1), normal(2, 5, 3, seed=2)
    output = F.scaled_dot_product_attention(Q, K, V, is_causal=True)
    first = np.tri(2, 5, dtype=bool)
    close(output, oracle.masked_attention(Q, K, V, first)[0])
    last = oracle.masked_attention(Q, K, V, causal=True)[0]
    assert np.abs(output.numpy() - last).max() > 0.1


def test_the_hint_without_a_mask_is_refused_but_on_the_fast_path_where_nothing_is_masked():
    layer = nn.TransformerEncoderLayer(D, H, 16, 0.0, batch_first=True, dtype=torch.float64)
    x = normal(B, L, D)
    with pytest.raises(RuntimeError, match="Need attn_mask"):
        layer(x, is_causal=True)
    layer.eval()
    with torch.no_grad():
        close(layer(x, is_causal=True), layer(x).numpy(), times=64)
        mask = masking.to_mha_attn_mask(masking.causal_mask(L), H)
        assert (layer(x, mask) - layer(x)).abs().max() > 0.1


def test_an_empty_sequence_gives_nan_on_the_fast_path_only():
    layer = nn.TransformerEncoderLayer(D, H, 16, 0.0, batch_first=True, dtype=torch.float64)
    x, keep = normal(B, L, D), masking.padding_mask(torch.tensor([5, 0, 3]), L)
    ignore = masking.to_mha_key_padding_mask(keep)
    slow = layer(x, src_key_padding_mask=ignore)
    assert slow.isfinite().all()
    layer.eval()
    with torch.no_grad():
        fast = layer(x, src_key_padding_mask=ignore)
    assert fast[1].isnan().all()
    real = keep[:, 0, 0]
    close(fast[real], slow[real].detach().numpy(), times=64)
