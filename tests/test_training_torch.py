"""Losses, steps and monitors in PyTorch: against the oracle, PyTorch's own, and NumPy's twin."""

import json
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attention.in_numpy import training as in_numpy
from attention.in_torch.encoder_layer import Encoder, MultiHeadSelfAttention
from attention.in_torch.training import (
    accumulate_step,
    activation_statistics,
    attention_entropy,
    attention_weights,
    gradient_norm,
    lm_loss,
    moved_by,
    next_token_loss,
    recorded,
    smoothed_loss,
    train_step,
    warmup_inverse_root,
    without_gradient,
)
from book.experiments import warmup

from .oracle import training as oracle

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, needs_gpu])]
every_device = pytest.mark.parametrize("device", DEVICES)
CLOSE = {"rtol": 1e-12, "atol": 1e-13}


def case(*shape, classes=6, seed=0, scale=2.0):
    rng = np.random.default_rng(seed)
    return scale * rng.normal(size=(*shape, classes)), rng.integers(classes, size=shape)


# --- losses ----------------------------------------------------------------------------------


@every_device
@pytest.mark.parametrize("shape", [(), (7,), (3, 4), (2, 3, 5)])
@pytest.mark.parametrize("scale", [1.0, 1e4])
@pytest.mark.parametrize("pad_id", [None, 1])
def test_lm_loss_and_its_gradient_are_the_oracles_and_the_twins(device, shape, scale, pad_id):
    logits, targets = case(*shape, scale=scale)
    targets.flat[::4] = -100
    z = torch.tensor(logits, device=device, requires_grad=True)
    loss = lm_loss(z, torch.tensor(targets, device=device), pad_id)
    loss.backward()
    assert loss.shape == ()
    for twin in (oracle, in_numpy):
        expected, gradient = twin.lm_loss(logits, targets, pad_id)
        np.testing.assert_allclose(loss.item(), expected, **CLOSE)
        np.testing.assert_allclose(z.grad.cpu().numpy(), gradient, **CLOSE)


@every_device
@pytest.mark.parametrize("L", [1, 2, 6])
def test_next_token_loss_is_the_oracles_and_the_twins(device, L):
    logits, tokens = case(3, L)
    z = torch.tensor(logits, device=device, requires_grad=True)
    loss = next_token_loss(z, torch.tensor(tokens, device=device))
    loss.backward()
    for twin in (oracle, in_numpy):
        expected, gradient = twin.next_token_loss(logits, tokens)
        np.testing.assert_allclose(loss.item(), expected, **CLOSE)
        np.testing.assert_allclose(z.grad.cpu().numpy(), gradient, **CLOSE)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("pad_id", [None, 1])
def test_smoothed_loss_is_the_oracles(smoothing, pad_id):
    logits, targets = case(3, 4)
    targets[2, 1:] = -100
    loss = smoothed_loss(torch.tensor(logits), torch.tensor(targets), smoothing, pad_id)
    expected = oracle.smoothed_loss(logits, targets, smoothing, pad_id)
    np.testing.assert_allclose(loss.item(), expected, **CLOSE)


@pytest.mark.parametrize("loss_fn", [lm_loss, smoothed_loss])
def test_a_loss_over_nothing_is_0_with_gradient_0(loss_fn):
    z = torch.randn(2, 3, 5, requires_grad=True)
    loss = loss_fn(z, torch.full((2, 3), -100))
    loss.backward()
    assert loss.item() == 0
    assert (z.grad == 0).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_losses_keep_the_dtype_and_sum_in_single_precision_at_least(dtype):
    logits, targets = case(40, 2000, classes=3)  # float16 cannot hold the sum, nor bfloat16 add it
    z, y = torch.tensor(logits).to(dtype), torch.tensor(targets)
    for loss_fn in (lm_loss, smoothed_loss, next_token_loss):
        loss = loss_fn(z, y)
        assert loss.dtype == dtype
        exact = loss_fn(z.double(), y)
        error = abs(loss.double() - exact) / exact
        assert error < max(torch.finfo(dtype).eps, 1e-6)


def test_losses_take_any_integers_and_leave_their_arguments():
    logits, targets = (torch.tensor(a) for a in case(3, 4))
    targets[0, :2] = -100
    kept = logits.clone(), targets.clone()
    losses = [lm_loss(logits, targets.to(kind), 2) for kind in (torch.int16, torch.int64)]
    assert losses[0] == losses[1]
    assert torch.equal(logits, kept[0])
    assert torch.equal(targets, kept[1])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: lm_loss(torch.zeros(2, 3, 4), torch.zeros(2, 4).long()), "logits, targets: exp"),
        (lambda: lm_loss(torch.zeros(2, 4), torch.zeros(2)), "targets: expected integers"),
        (lambda: next_token_loss(torch.zeros(4), torch.tensor(0)), "logits: expected shape"),
        (lambda: smoothed_loss(torch.zeros(2, 4), torch.zeros(2).long(), 1.5), "smoothing: exp"),
        (lambda: warmup_inverse_root(3, 0), "warmup: expected"),
    ],
)
def test_a_wrong_argument_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# --- steps -----------------------------------------------------------------------------------


def linear(W, b):
    model = nn.Linear(*W.shape).double()
    with torch.no_grad():
        model.weight.copy_(torch.tensor(W.T))
        model.bias.copy_(torch.tensor(b))
    return model


@pytest.mark.parametrize("max_norm", [None, 0.05, 100.0])
def test_train_step_takes_the_oracles_steps(max_norm):
    rng = np.random.default_rng(1)
    W, b = rng.normal(size=(4, 3)), rng.normal(size=3)
    model = linear(W, b)
    opt = torch.optim.SGD(model.parameters(), lr=0.3)
    for seed in range(3):  # gradients of one step must not reach into the next
        x, y = case(6, classes=4, seed=seed)
        y = np.where(y == 3, -100, y)
        loss = train_step(model, opt, torch.tensor(x), torch.tensor(y), lm_loss, max_norm)
        W, b, expected, dW, db = oracle.linear_step(W, b, x, y, 0.3, max_norm)
        assert isinstance(loss, float)
        close = {"rtol": 1e-4, "atol": 1e-5}  # PyTorch adds 1e-6 to the norm
        np.testing.assert_allclose(loss, expected, **close)
        np.testing.assert_allclose(model.weight.detach().numpy().T, W, **close)
        np.testing.assert_allclose(model.bias.detach().numpy(), b, **close)
        np.testing.assert_allclose(model.weight.grad.numpy().T, dW, **close)
        np.testing.assert_allclose(model.bias.grad.numpy(), db, **close)


def test_clipping_looks_at_what_the_optimizer_moves():
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)).double()
    opt = torch.optim.SGD(model[1].parameters(), lr=0.1)
    for seed in range(3):  # the first layer's gradients pile up: nobody clears them
        x, y = (torch.tensor(a) for a in case(5, classes=4, seed=seed))
        train_step(model, opt, 100 * x, y % 2, lm_loss, max_norm=0.5)
        norm = math.sqrt(sum(p.grad.square().sum() for p in moved_by(opt)))
        assert norm == pytest.approx(0.5, rel=1e-4)


def tagger(seed=0):
    torch.manual_seed(seed)
    layers = [nn.Embedding(7, 8), Encoder(1, 8, 2, 12, 0.0, norm_first=True), nn.Linear(8, 5)]
    return nn.Sequential(*layers).double()


def batch_of_lengths(lengths, seed=0):
    rng = np.random.default_rng(seed)
    x = torch.tensor(rng.integers(7, size=(len(lengths), 6)))
    y = torch.tensor(rng.integers(5, size=(len(lengths), 6)))
    for row, length in enumerate(lengths):
        y[row, length:] = -100
    return x, y


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.5),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.2, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, eps=1e-4),
}


@pytest.mark.parametrize("make_opt", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("sizes", [(4,), (2, 2), (1, 3), (1, 1, 1, 1)])
def test_accumulate_step_is_a_step_on_the_joined_batch(make_opt, sizes):
    one, parts = tagger(), tagger()
    opts = [make_opt(model.parameters()) for model in (one, parts)]
    for seed, lengths in enumerate([(1, 6, 0, 3), (2, 2, 5, 0), (6, 1, 1, 4)]):
        x, y = batch_of_lengths(lengths, seed)
        train_step(one, opts[0], x, y, lm_loss)
        micro = zip(x.split(sizes), y.split(sizes), strict=True)
        assert accumulate_step(parts, opts[1], micro, lm_loss) is None
        for p, q in zip(one.parameters(), parts.parameters(), strict=True):
            torch.testing.assert_close(p.grad, q.grad, rtol=1e-9, atol=1e-12)
            torch.testing.assert_close(p, q, rtol=1e-9, atol=1e-10)


def test_accumulation_of_a_mean_of_squares_and_of_a_mean_that_is_nan_over_nothing():
    rng = np.random.default_rng(2)
    x, y = (torch.tensor(rng.normal(size=(7, n))) for n in (4, 3))
    W, b = rng.normal(size=(4, 3)), rng.normal(size=3)
    one, parts = linear(W, b), linear(W, b)
    sgd = [torch.optim.SGD(model.parameters(), lr=0.3) for model in (one, parts)]
    train_step(one, sgd[0], x, y, nn.MSELoss())
    accumulate_step(parts, sgd[1], [(x[:2], y[:2]), (x[2:], y[2:])], nn.MSELoss())
    torch.testing.assert_close(one.weight, parts.weight)

    classes = torch.tensor([0, 2, -100, -100, 1, 1, 0])
    train_step(one, sgd[0], x, classes, nn.CrossEntropyLoss())
    micro = [(x[i:j], classes[i:j]) for i, j in ((0, 2), (2, 4), (4, 7))]
    accumulate_step(parts, sgd[1], micro, nn.CrossEntropyLoss())
    torch.testing.assert_close(one.weight, parts.weight)


@pytest.mark.parametrize("make_opt", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_without_targets_nothing_moves(make_opt):
    model = tagger()
    opt = make_opt(model.parameters())
    x, y = batch_of_lengths((1, 6, 0, 3))
    accumulate_step(model, opt, [(x, y)], lm_loss)
    before = [p.clone() for p in model.parameters()]
    accumulate_step(model, opt, [(x, torch.full_like(y, -100))], lm_loss)
    for p, old in zip(model.parameters(), before, strict=True):
        assert torch.equal(p, old)


@pytest.mark.gpu
@needs_gpu
def test_steps_run_on_a_gpu_and_agree():
    one, parts = tagger().cuda(), tagger().cuda()
    x, y = (part.cuda() for part in batch_of_lengths((1, 6, 0, 3)))
    opts = [torch.optim.SGD(model.parameters(), lr=0.5) for model in (one, parts)]
    train_step(one, opts[0], x, y, lm_loss, max_norm=100.0)
    accumulate_step(parts, opts[1], zip(x.split(2), y.split(2), strict=True), lm_loss)
    for p, q in zip(one.parameters(), parts.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-8, atol=1e-9)


def test_the_warmup_rises_to_1_and_falls_as_the_root():
    factors = [warmup_inverse_root(step, 10) for step in range(40)]
    assert factors[:10] == pytest.approx([(i + 1) / 10 for i in range(10)])
    assert factors[39] == pytest.approx(0.5)  # four times the steps: half the rate
    assert max(factors) == factors[9] == 1


# --- monitors --------------------------------------------------------------------------------


def test_gradient_norm_is_that_of_all_parameters_and_0_without_gradients():
    model = tagger()
    assert gradient_norm(model) == 0
    x, y = batch_of_lengths((4, 2))
    lm_loss(model(x), y).backward()
    expected = nn.utils.clip_grad_norm_(model.parameters(), math.inf)
    assert gradient_norm(model) == pytest.approx(expected.item())


def test_without_gradient_names_what_the_loss_does_not_reach():
    model = tagger()
    model[2].bias.requires_grad_(False)
    model.register_parameter("unused", nn.Parameter(torch.ones(2)))
    x, y = batch_of_lengths((4, 2))
    (lm_loss(model(x), y) + 0 * model[0].weight.sum()).backward()
    found = without_gradient(model)
    assert found == ["unused"]
    model[0].weight.grad.zero_()
    assert without_gradient(model) == ["unused", "0.weight"]


def test_recorded_sees_the_last_call_and_then_lets_go():
    model = tagger()
    x, _ = batch_of_lengths((4, 2))
    layer = model[1].layers[0]
    with recorded({"embed": model[0], "attention": layer.self_attn}) as seen:
        model(x)
    assert set(seen) == {"embed", "attention"}
    (tokens,), output = seen["embed"]
    assert torch.equal(tokens, x)
    assert torch.equal(output, model[0](x))
    seen.clear()
    model(x)
    assert not seen


def test_activation_statistics_are_numpys():
    x = torch.tensor([[0.0, 3.0], [-4.0, 0.0]])
    found = activation_statistics(x)
    assert found == pytest.approx({"rms": 2.5, "largest": 4.0, "zeros": 0.5})
    x[0, 0] = float("nan")
    assert math.isnan(activation_statistics(x)["rms"])
    assert math.isnan(activation_statistics(x)["largest"])


MASKS = {
    "none": None,
    "causal": torch.ones(5, 5).tril().bool(),
    "padding": torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [0, 0, 0, 0, 0]]).bool()[
        :, None, None
    ],
    "by sequence": torch.rand(3, 5, 5, generator=torch.Generator().manual_seed(1)) < 0.5,
}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_attention_weights_are_those_that_the_module_uses(mask):
    torch.manual_seed(0)
    attention = MultiHeadSelfAttention(8, 2, 0.0).double()
    nn.init.normal_(attention.in_proj_bias)
    x = torch.randn(3, 5, 8, dtype=torch.float64)
    weights = attention_weights(attention, x, mask)
    assert weights.shape == (3, 2, 5, 5)
    V = F.linear(x, attention.in_proj_weight, attention.in_proj_bias)[..., 16:]
    context = weights @ V.unflatten(-1, (2, 4)).transpose(-2, -3)
    output = attention.out_proj(context.transpose(-2, -3).flatten(-2))
    torch.testing.assert_close(output, attention(x, mask))


def test_attention_entropy_is_the_oracles_mean_over_the_queries_that_count():
    rng = np.random.default_rng(3)
    weights = rng.dirichlet([0.5] * 6, size=(2, 3, 4))  # (B, h, L_q, L_k)
    keep = np.array([[True] * 4, [True, False, True, False]])
    each = oracle.entropy(weights)  # (B, h, L_q)
    everything = attention_entropy(torch.tensor(weights))
    np.testing.assert_allclose(everything.numpy(), each.mean(axis=(0, 2)), **CLOSE)
    some = attention_entropy(torch.tensor(weights), torch.tensor(keep))
    expected = [each[:, head][keep].mean() for head in range(3)]
    np.testing.assert_allclose(some.numpy(), expected, **CLOSE)


def test_attention_entropy_of_one_key_is_0_and_of_equal_weights_the_logarithm():
    weights = torch.stack([torch.eye(5), torch.full((5, 5), 0.2)])  # (h, L, L)
    found = attention_entropy(weights)
    torch.testing.assert_close(found, torch.tensor([0.0, math.log(5)]))


# --- the experiment of the chapter -----------------------------------------------------------


def test_words_are_followed_by_their_letters_in_order_and_only_these_are_targets():
    tokens, targets = warmup.draw_words(50, np.random.default_rng(0))
    for line, wanted in zip(tokens.tolist(), targets.tolist(), strict=True):
        text = "".join(warmup.SIGNS[token] for token in line)
        word, answer = text.rstrip("_").split("=")
        assert 2 <= len(set(word)) == len(word) <= 6
        assert answer == "".join(sorted(word)) + "."
        counted = [t for t in wanted if t != -100]
        assert "".join(warmup.SIGNS[t] for t in counted) == answer
        for position, target in enumerate(wanted):  # each foresees the token after it
            assert target in (-100, *line[position + 1 : position + 2])
    assert len({len(line) - line.count(warmup.PAD) for line in tokens.tolist()}) == 5


@pytest.mark.parametrize("norm_first", [False, True])
def test_the_sorter_reads_no_token_that_comes_later(norm_first):
    torch.manual_seed(0)
    model = warmup.Sorter(norm_first=norm_first)
    tokens, _ = warmup.draw_words(4, np.random.default_rng(1))
    changed = tokens.clone()
    changed[:, 6:] = (changed[:, 6:] + 3) % 11
    with torch.no_grad():
        before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[:, :6], after[:, :6])
    assert (before[:, 6:] - after[:, 6:]).abs().amax() > 0.1


def test_the_committed_runs_are_the_scripts():
    result = json.loads(warmup.RESULT.read_text(encoding="utf-8"))
    assert result["settings"] == warmup.SETTINGS
    found = {(r["norm"], r["depth"], r["lr"], r["cure"]): r["loss"] for r in result["results"]}
    assert len(found) == len(result["results"]) == 2 * 3 * 3 * 3
    seed, last = warmup.SETTINGS["seeds"][0], warmup.SETTINGS["last"]
    losses = warmup.one_run(2, True, 0.006, 0, None, seed)
    # another processor rounds otherwise, and training enlarges it
    assert np.mean(losses[-last:]) == pytest.approx(
        found["pre-norm", 2, 0.006, "none"][0], abs=0.03
    )


def test_the_committed_runs_show_what_the_chapter_says():
    result = json.loads(warmup.RESULT.read_text(encoding="utf-8"))
    found = {
        (r["norm"], r["cure"]): np.median(r["loss"])
        for r in result["results"]
        if r["depth"] == 12 and r["lr"] == 0.012
    }
    assert found["post-norm", "none"] > 2
    assert found["post-norm", "clipping"] > 2
    assert found["post-norm", "warm-up"] < 1.5
    assert found["pre-norm", "none"] < 0.1
