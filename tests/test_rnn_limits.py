"""The library of chapter 1 agrees with the loop oracle and with PyTorch."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import nn
from torch.nn.functional import mse_loss

from attention.in_numpy.rnn_limits import rnn_backward, rnn_forward, rnn_last_state
from attention.in_torch.rnn_limits import (
    AttentionClassifier,
    LookupReader,
    RecurrentReader,
    accuracy,
    recall_batch,
    train_chunks,
    train_reader,
)

from .oracle import rnn_limits as oracle

settings.register_profile("course", derandomize=True, deadline=None, max_examples=60)
settings.load_profile("course")

DATA = Path(__file__).resolve().parent.parent / "book" / "data"

# Half precision is computed in single precision and rounded once at the end.
ATOL = {np.float16: 2e-3, np.float32: 1e-5, np.float64: 1e-11}


@st.composite
def rnn_inputs(draw, smallest=0):
    """Draw x, W_x, W_h, b, h0 with any leading axes and lengths from `smallest`."""
    dtype = draw(st.sampled_from(list(ATOL)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    lead = draw(hnp.array_shapes(min_dims=0, max_dims=2, min_side=smallest, max_side=3))
    T, d_in, H = (draw(st.integers(smallest, 4)) for _ in range(3))
    shapes = [(*lead, T, d_in), (d_in, H), (H, H), (H,), (*lead, H)]
    return [(0.8 * rng.normal(size=s)).astype(dtype) for s in shapes]


@given(inputs=rnn_inputs())
def test_forward_is_the_oracles(inputs):
    before = [a.copy() for a in inputs]
    hs = rnn_forward(*inputs)
    for array, copy in zip(inputs, before, strict=True):
        np.testing.assert_array_equal(array, copy)
    dtype = inputs[0].dtype
    assert hs.dtype == dtype
    expected = oracle.rnn_forward(*inputs)
    assert hs.shape == expected.shape
    np.testing.assert_allclose(hs, expected, rtol=0, atol=ATOL[dtype.type])


@given(inputs=rnn_inputs(), seed=st.integers(0, 2**32 - 1))
def test_backward_is_the_oracles(inputs, seed):
    x, W_x, W_h, _, h0 = inputs
    hs = rnn_forward(*inputs)
    dhs = np.random.default_rng(seed).normal(size=hs.shape).astype(x.dtype)
    arguments = [dhs, x, hs, W_x, W_h, h0]
    before = [a.copy() for a in arguments]
    gradients = rnn_backward(*arguments)
    for array, copy in zip(arguments, before, strict=True):
        np.testing.assert_array_equal(array, copy)
    for gradient, expected in zip(gradients, oracle.rnn_backward(*arguments), strict=True):
        assert gradient.dtype == x.dtype
        assert gradient.shape == expected.shape
        size = max(1.0, np.abs(expected).max(initial=0))
        np.testing.assert_allclose(gradient, expected, rtol=0, atol=size * ATOL[x.dtype.type])


def arrays(*shapes, seed=1):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape) for shape in shapes]


def test_backward_is_what_finite_differences_give():
    arguments = arrays((2, 4, 3), (3, 5), (5, 5), (5,), (2, 5))
    x, W_x, W_h, _, h0 = arguments
    hs = rnn_forward(*arguments)
    (dhs,) = arrays(hs.shape, seed=2)
    for which, gradient in enumerate(rnn_backward(dhs, x, hs, W_x, W_h, h0)):
        for index in np.ndindex(gradient.shape):
            losses = []
            for move in (1e-6, -1e-6):
                moved = [a.copy() for a in arguments]
                moved[which][index] += move
                losses.append((dhs * rnn_forward(*moved)).sum())
            difference = (losses[0] - losses[1]) / 2e-6
            assert abs(difference - gradient[index]) < 1e-7


def test_integers_and_lists_are_taken_as_floats():
    rng = np.random.default_rng(3)
    x, W_x, W_h, b, h0 = (
        rng.integers(-1, 2, size=s) for s in [(2, 3, 2), (2, 4), (4, 4), (4,), (2, 4)]
    )
    hs = rnn_forward(x, W_x, W_h, b, h0)
    assert hs.dtype == np.float64
    np.testing.assert_allclose(hs, oracle.rnn_forward(x, W_x, W_h, b, h0), rtol=1e-12)
    from_lists = rnn_forward(*(a.tolist() for a in (x, W_x, W_h, b, h0)))
    np.testing.assert_array_equal(from_lists, hs)
    mixed = rnn_forward(
        x.astype(np.float16), W_x.astype(np.float32), *map(np.float16, (W_h, b, h0))
    )
    assert mixed.dtype == np.float32


def test_no_steps_give_no_states_and_zero_gradients():
    x, W_x, W_h, b, h0 = arrays((2, 0, 3), (3, 4), (4, 4), (4,), (2, 4))
    hs = rnn_forward(x, W_x, W_h, b, h0)
    assert hs.shape == (2, 0, 4)
    gradients = rnn_backward(hs, x, hs, W_x, W_h, h0)
    assert [g.shape for g in gradients] == [(2, 0, 3), (3, 4), (4, 4), (4,), (2, 4)]
    assert not any(g.any() for g in gradients)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ([(3,), (3, 4), (4, 4), (4,), (4,)], r"x: expected axes .*\(3,\)"),
        ([(5, 3), (3, 4), (4, 5), (4,), (4,)], r"W_h: expected a square .* \(4, 5\)"),
        ([(5, 3), (3, 4), (4,), (4,), (4,)], r"W_h: expected a square .* \(4,\)"),
        ([(5, 3), (4, 3), (4, 4), (4,), (4,)], r"W_x: .* \(3, 4\), got \(4, 3\)"),
        ([(5, 3), (3, 4), (4, 4), (3,), (4,)], r"b: expected .* \(4,\), got \(3,\)"),
        ([(2, 5, 3), (3, 4), (4, 4), (4,), (4,)], r"h0: .* \(2, 4\), got \(4,\)"),
        ([(2, 5, 3), (3, 4), (4, 4), (4,), (1, 4)], r"h0: .* \(2, 4\), got \(1, 4\)"),
    ],
)
def test_forward_says_what_is_wrong_with_its_input(shapes, message):
    with pytest.raises(ValueError, match=message):
        rnn_forward(*arrays(*shapes))


@pytest.mark.parametrize(
    ("which", "shape", "message"),
    [
        (0, (2, 4, 4), r"dhs: .* shape \(2, 5, 4\), got \(2, 4, 4\)"),
        (2, (2, 5, 3), r"hs: .* shape \(2, 5, 4\), got \(2, 5, 3\)"),
        (5, (4,), r"h0: .* \(2, 4\), got \(4,\)"),
    ],
)
def test_backward_says_what_is_wrong_with_its_input(which, shape, message):
    arguments = arrays((2, 5, 4), (2, 5, 3), (2, 5, 4), (3, 4), (4, 4), (2, 4))
    arguments[which] = np.zeros(shape)
    with pytest.raises(ValueError, match=message):
        rnn_backward(*arguments)


def test_complex_numbers_are_refused():
    x, W_x, W_h, b, h0 = arrays((5, 3), (3, 4), (4, 4), (4,), (4,))
    with pytest.raises(ValueError, match="W_h: expected real numbers, got dtype complex128"):
        rnn_forward(x, W_x, W_h * 1j, b, h0)


# --- the last real state ---------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ATOL)
@pytest.mark.parametrize("lengths", [[5, 1, 3], np.array([2, 5, 4], dtype=np.uint8)])
def test_last_state_is_the_oracles(dtype, lengths):
    hs = arrays((3, 5, 2))[0].astype(dtype)
    before = hs.copy()
    last = rnn_last_state(hs, lengths)
    assert last.dtype == dtype
    np.testing.assert_array_equal(last, oracle.rnn_last_state(hs, lengths))
    last += 1
    np.testing.assert_array_equal(hs, before)


def test_last_state_takes_any_leading_axes():
    (hs,) = arrays((2, 3, 4, 5))
    lengths = np.array([[1, 2, 3], [4, 3, 1]])
    np.testing.assert_array_equal(rnn_last_state(hs, lengths), oracle.rnn_last_state(hs, lengths))
    np.testing.assert_array_equal(rnn_last_state(hs[0, 1], 2), hs[0, 1, 1])
    assert rnn_last_state(np.zeros((0, 4, 5)), []).shape == (0, 5)


@pytest.mark.parametrize(
    ("hs", "lengths", "message"),
    [
        (np.zeros(3), 1, r"hs: expected axes .*\(3,\)"),
        (np.zeros((2, 4, 3)), [1, 2, 3], r"lengths: .* shape \(2,\), got \(3,\)"),
        (np.zeros((2, 4, 3)), 2, r"lengths: .* shape \(2,\), got \(\)"),
        (np.zeros((2, 4, 3)), [1.0, 2.0], r"lengths: expected integers, got float64"),
        (np.zeros((2, 4, 3)), [4, 0], r"lengths: expected 1 to T = 4, got 0"),
        (np.zeros((2, 4, 3)), [5, 1], r"lengths: expected 1 to T = 4, got 5"),
        (np.zeros((2, 4, 3)), [-1, 1], r"lengths: expected 1 to T = 4, got -1"),
    ],
)
def test_last_state_says_what_is_wrong_with_its_input(hs, lengths, message):
    with pytest.raises(ValueError, match=message):
        rnn_last_state(hs, lengths)


# --- training in chunks ----------------------------------------------------------------------


def chunks_for(d_in, H, count=3):
    generator = torch.Generator().manual_seed(4)
    return [
        (
            torch.randn(2, 4, d_in, generator=generator),
            torch.randn(2, 4, H, generator=generator),
        )
        for _ in range(count)
    ]


@pytest.mark.parametrize("kind", [nn.RNN, nn.LSTM])
def test_chunks_train_like_separate_batches_with_the_state_carried_over(kind):
    torch.manual_seed(5)
    cell, twin = kind(3, 5, batch_first=True), kind(3, 5, batch_first=True)
    twin.load_state_dict(cell.state_dict())
    chunks = chunks_for(3, 5)
    h0 = torch.randn(1, 2, 5)
    h0 = (h0, -h0) if kind is nn.LSTM else h0
    opt = torch.optim.Adam(cell.parameters(), lr=0.01)
    losses, h = train_chunks(cell, chunks, h0, mse_loss, opt)

    twin_opt = torch.optim.Adam(twin.parameters(), lr=0.01)
    state, expected = h0, []
    for x, y in chunks:
        states, state = twin(x, state)
        if kind is nn.LSTM:
            state = (state[0].clone().detach(), state[1].clone().detach())
        else:
            state = state.clone().detach()
        loss = ((states - y) ** 2).mean()
        for parameter in twin.parameters():
            parameter.grad = None
        loss.backward()
        twin_opt.step()
        expected.append(float(loss.detach()))
    assert losses == pytest.approx(expected, rel=1e-5)
    assert all(type(loss) is float for loss in losses)
    for ours, theirs in zip(cell.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)
    for ours, theirs in zip(
        h if kind is nn.LSTM else [h], state if kind is nn.LSTM else [state], strict=True
    ):
        torch.testing.assert_close(ours, theirs)
        assert not ours.requires_grad


def test_chunks_leave_the_first_state_alone_even_where_it_has_a_graph():
    torch.manual_seed(6)
    cell = nn.RNN(3, 5, batch_first=True)
    start = torch.randn(1, 2, 5, requires_grad=True)
    before = start.detach().clone()
    opt = torch.optim.SGD(cell.parameters(), lr=0.1)
    train_chunks(cell, chunks_for(3, 5), start * 2, mse_loss, opt)
    assert start.grad is None
    torch.testing.assert_close(start.detach(), before)


def test_no_chunks_give_no_losses_and_the_same_state():
    cell = nn.RNN(3, 5, batch_first=True)
    start = torch.randn(1, 2, 5)
    losses, h = train_chunks(cell, [], start, mse_loss, torch.optim.SGD(cell.parameters(), lr=1.0))
    assert losses == []
    torch.testing.assert_close(h, start)


# --- readers and the recall task -------------------------------------------------------------


def test_a_recall_batch_asks_for_a_value_that_it_named():
    x, answer = recall_batch(300, 4, 6, 3, torch.Generator().manual_seed(7))
    assert x.shape == (300, 5, 9)
    keys, values = x[..., :6], x[..., 6:]
    assert (keys.sum(dim=-1) == 1).all()
    assert (values[:, :-1].sum(dim=-1) == 1).all()
    assert not values[:, -1].any()
    assert (keys[:, :-1].sum(dim=1) <= 1).all()
    match = torch.einsum("bk,bpk->bp", keys[:, -1], keys[:, :-1])  # 1 at the pair asked for
    assert (match.sum(dim=-1) == 1).all()
    found = torch.einsum("bp,bpv->bv", match, values[:, :-1]).argmax(dim=-1)
    assert (found == answer).all()
    assert set(answer.tolist()) == {0, 1, 2}
    assert (match.sum(dim=0) > 40).all()  # each of the 4 places is asked for


@pytest.mark.parametrize("pairs", [0, 7])
def test_a_recall_batch_needs_enough_keys(pairs):
    with pytest.raises(ValueError, match=rf"pairs: expected 1 to 6, got {pairs}"):
        recall_batch(2, pairs, 6, 3, torch.Generator())


@pytest.mark.parametrize("kind", ["rnn", "lstm"])
def test_the_recurrent_reader_classifies_its_last_state(kind):
    torch.manual_seed(8)
    reader = RecurrentReader(kind, 3, 5, 4, forget_bias=1.0)
    x = torch.randn(2, 6, 3)
    scores = reader(x)
    _, last = reader.cell(x)
    last = last[0] if kind == "lstm" else last
    torch.testing.assert_close(scores, last[0] @ reader.classify.weight.T + reader.classify.bias)


def test_the_forget_bias_is_added_to_the_forget_gate_alone():
    readers = []
    for bias in (0.0, 2.0):
        torch.manual_seed(9)
        readers.append(RecurrentReader("lstm", 3, 5, 4, forget_bias=bias))
    difference = readers[1].cell.bias_ih_l0 - readers[0].cell.bias_ih_l0
    expected = torch.tensor([0.0, 2.0, 0.0, 0.0]).repeat_interleave(5)
    torch.testing.assert_close(difference.detach(), expected)


def test_an_unknown_kind_of_reader_is_refused():
    with pytest.raises(ValueError, match="kind: expected rnn or lstm, got 'gru'"):
        RecurrentReader("gru", 3, 5, 4)


def test_the_look_up_reader_is_pytorchs_attention_with_the_last_step_as_query():
    torch.manual_seed(10)
    reader = LookupReader(3, 5, 4)
    x = torch.randn(2, 6, 3)
    Q, K, V = reader.W_q(x[:, -1:]), reader.W_k(x[:, :-1]), reader.W_v(x[:, :-1])
    context = nn.functional.scaled_dot_product_attention(Q, K, V)[:, 0]
    torch.testing.assert_close(reader(x), reader.classify(context))


def test_the_classifier_is_pytorchs_attention_and_sees_order_only_with_positions():
    torch.manual_seed(11)
    x, order = torch.randn(2, 6, 3), torch.tensor([3, 0, 5, 1, 4, 2])
    with_positions, without = AttentionClassifier(3, 5, 4, length=6), AttentionClassifier(3, 5, 4)
    tokens = with_positions.embed(x) + with_positions.position
    parts = (
        layer(tokens) for layer in (with_positions.W_q, with_positions.W_k, with_positions.W_v)
    )
    context = nn.functional.scaled_dot_product_attention(*parts).clamp(min=0).mean(dim=1)
    torch.testing.assert_close(with_positions(x), with_positions.classify(context))
    torch.testing.assert_close(without(x), without(x[:, order]))
    assert (with_positions(x) - with_positions(x[:, order])).abs().max() > 1e-3


def test_training_a_reader_is_adam_with_clipped_gradients():
    torch.manual_seed(12)
    reader, twin = LookupReader(9, 5, 3), LookupReader(9, 5, 3)
    twin.load_state_dict(reader.state_dict())
    generator = torch.Generator().manual_seed(13)
    batches = [recall_batch(8, 4, 6, 3, generator) for _ in range(3)]
    batches = [(50 * x, y) for x, y in batches]  # large gradients, so that clipping acts
    losses = train_reader(reader, batches, lr=0.01)

    opt, expected, clipped = torch.optim.Adam(twin.parameters(), lr=0.01), [], 0
    for x, y in batches:
        loss = -twin(x).log_softmax(dim=-1)[torch.arange(8), y].mean()
        gradients = torch.autograd.grad(loss, list(twin.parameters()))
        norm = torch.sqrt(sum((g**2).sum() for g in gradients))
        clipped += int(norm > 1)
        for parameter, gradient in zip(twin.parameters(), gradients, strict=True):
            parameter.grad = gradient / max(1.0, norm + 1e-6)
        opt.step()
        expected.append(float(loss.detach()))
    assert clipped
    assert losses == pytest.approx(expected, rel=1e-4)
    for ours, theirs in zip(reader.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)


def test_a_trained_look_up_recalls_and_accuracy_counts_the_right_answers():
    torch.manual_seed(14)
    generator = torch.Generator().manual_seed(15)
    reader = LookupReader(9, 16, 3)
    x, y = recall_batch(500, 4, 6, 3, generator)
    before = accuracy(reader, x, y)
    train_reader(reader, (recall_batch(64, 4, 6, 3, generator) for _ in range(150)), lr=0.02)
    assert before < 0.6
    assert accuracy(reader, x, y) > 0.95
    assert accuracy(reader, x, reader(x).argmin(dim=-1)) == 0


# --- the committed results -------------------------------------------------------------------


@pytest.mark.parametrize("stem", ["recall_task", "digits_by_pixel"])
def test_results_are_those_of_the_settings(stem):
    script = Path(__file__).resolve().parent.parent / "book" / "experiments" / f"{stem}.py"
    code = (
        "import json, runpy, sys; "
        "print(json.dumps(runpy.run_path(sys.argv[1], run_name='read')['SETTINGS']))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, str(script)], capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, run.stderr
    result = json.loads((DATA / f"{stem}.json").read_text(encoding="utf-8"))
    assert result["settings"] == json.loads(run.stdout)
    for row in result["results"]:
        assert len(row["accuracy"]) == len(result["settings"]["seeds"])
        assert all(0 <= score <= 1 for score in row["accuracy"])


def test_numpy_runs_where_there_is_no_pytorch():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import attention.in_numpy.rnn_limits\n"
        "assert not any(name.startswith('torch.') for name in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
