"""Exercise 1: its own oracle is proven, its printed examples are right, and faults cost little."""

import re
from pathlib import Path

import nbformat
import numpy as np
import pytest
import torch

from autograder.grade import grade_question
from autograder.learner import LearnerError, LiveLearner

from .oracle import exercise_rnn_limits as extra
from .oracle import rnn_limits as oracle
from .test_exercises import MISTAKES, QUESTIONS, failures

STEM = "01_rnn_limits"
ROOT = Path(__file__).parents[1]
CLOSE = {"rtol": 1e-12, "atol": 1e-12}


def mistake(name):
    return next(m for m in MISTAKES if m.id == name)


# --- the oracle agrees with PyTorch ---


def test_clipping_is_pytorchs():
    rng = np.random.default_rng(1)
    grads = [rng.normal(size=shape) for shape in ((2, 3), (4,), ())]
    for limit in (0.5, 100.0):
        tensors = [torch.tensor(grad, requires_grad=True) for grad in grads]
        for tensor, grad in zip(tensors, grads, strict=True):
            tensor.grad = torch.tensor(grad)
        norm = torch.nn.utils.clip_grad_norm_(tensors, limit)
        clipped, got = extra.clip_by_global_norm(grads, limit)
        np.testing.assert_allclose(got, norm.item(), **CLOSE)
        for array, tensor in zip(clipped, tensors, strict=True):
            np.testing.assert_allclose(array, tensor.grad.numpy(), rtol=1e-5)  # it adds 1e-6


def test_gated_step_is_pytorchs():
    rng = np.random.default_rng(2)
    x, h = rng.normal(size=(3, 4)), rng.normal(size=(3, 5))
    W, U, b = rng.normal(size=(4, 15)), rng.normal(size=(5, 15)), rng.normal(size=15)
    cell = torch.nn.GRUCell(4, 5).double()
    state = {"weight_ih": W.T, "weight_hh": U.T, "bias_ih": b, "bias_hh": np.zeros(15)}
    cell.load_state_dict({name: torch.tensor(array) for name, array in state.items()})
    expected = cell(torch.tensor(x), torch.tensor(h)).detach().numpy()
    np.testing.assert_allclose(extra.gru_step(x, h, W, U, b), expected, **CLOSE)


def test_reading_backwards_is_the_second_direction_of_pytorchs_cell():
    rng = np.random.default_rng(3)
    x, lengths = rng.normal(size=(3, 5, 4)), np.array([2, 5, 1])
    W_x, W_h, b = rng.normal(size=(4, 2)), rng.normal(size=(2, 2)), rng.normal(size=2)
    cell = torch.nn.RNN(4, 2, batch_first=True, bidirectional=True).double()
    state = cell.state_dict() | {
        "weight_ih_l0_reverse": torch.tensor(W_x.T),
        "weight_hh_l0_reverse": torch.tensor(W_h.T),
        "bias_ih_l0_reverse": torch.tensor(b),
        "bias_hh_l0_reverse": torch.zeros(2, dtype=torch.double),
    }
    cell.load_state_dict(state)
    packed = torch.nn.utils.rnn.pack_padded_sequence(
        torch.tensor(x), torch.tensor(lengths), batch_first=True, enforce_sorted=False
    )
    both, _ = torch.nn.utils.rnn.pad_packed_sequence(cell(packed)[0], batch_first=True)
    expected = both[..., 2:].detach().numpy()
    np.testing.assert_allclose(extra.read_backwards(x, lengths, W_x, W_h, b), expected, **CLOSE)


def test_gradient_norms_are_those_of_autograd():
    rng = np.random.default_rng(4)
    x, W_h = rng.normal(size=(6, 3)), torch.tensor(rng.normal(size=(3, 3)))
    h, states = torch.zeros(3, dtype=torch.double, requires_grad=True), []
    for token in torch.tensor(x):
        h = torch.tanh(token + h @ W_h)
        states.append(h)
    expected = []
    for state in states:
        rows = [
            torch.autograd.grad(states[-1][j], state, retain_graph=True)[0].numpy()
            for j in range(3)
        ]
        expected.append(np.linalg.svd(np.array(rows), compute_uv=False)[0])
    hs = torch.stack(states).detach().numpy()
    np.testing.assert_allclose(extra.gradient_norms(hs, W_h.numpy()), expected, rtol=1e-9)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_training_in_chunks_is_pytorchs(momentum):
    torch.manual_seed(5)
    cell = torch.nn.RNN(3, 2, batch_first=True).double()
    state = {name: tensor.clone() for name, tensor in cell.state_dict().items()}
    chunks = [(torch.randn(4, T, 3).double(), torch.randn(4, T, 2).double()) for T in (3, 1, 2)]
    start = h = torch.randn(1, 4, 2).double()
    opt, losses = torch.optim.SGD(cell.parameters(), lr=0.3, momentum=momentum), []
    for x, y in chunks:
        out, h = cell(x, h.detach())
        loss = torch.nn.functional.mse_loss(out, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
    got = extra.train_chunks(state, chunks, start, torch.nn.functional.mse_loss, 0.3, momentum)
    np.testing.assert_allclose(got[0], losses, **CLOSE)
    np.testing.assert_allclose(got[1].numpy(), h.detach().numpy(), **CLOSE)
    for name, tensor in cell.state_dict().items():
        np.testing.assert_allclose(got[2][name].numpy(), tensor.numpy(), **CLOSE)


def test_growth_per_step_is_the_gain_times_the_slope():
    for state, gain in ((0.0, 1.25), (0.6, 1.25), (0.5, 2.0)):
        got = extra.growth_per_step(state, gain)
        assert got == pytest.approx(gain * (1 - state**2), rel=1e-9)


def test_reach_counts_the_steps_of_the_chunk_and_of_the_stream():
    assert extra.reach_of_a_step(step=7, chunk=4) == (7, 3)
    assert extra.reach_of_a_step(step=4, chunk=4) == (4, 4)
    assert extra.reach_of_a_step(step=5, chunk=2) == (5, 1)


# --- what a fault costs ---


@pytest.mark.parametrize(
    ("name", "costs"),
    [
        ("rnn-h0-ignored", {"the_first_step_starts_from_h0"}),
        ("rnn-integer-buffer", {"integer_inputs_work_too"}),
        ("rnn-backward-w-h-without-h0", None),
        ("rnn-losses-kept-as-tensors", {"the_losses_are_plain_numbers"}),
        ("rnn-last-state-with-graph", {"the_state_comes_back_without_a_graph"}),
        ("clip-divides-by-zero", {"gradients_that_are_zero_stay_finite"}),
        ("gru-sigmoid-overflows", {"gates_far_open_or_closed_stay_finite"}),
    ],
)
def test_a_fault_costs_its_own_checks_alone(name, costs):
    wrong = mistake(name)
    failed = set(failures(wrong.question, wrong.answer, seed=0))
    if costs is None:  # two checks look at it: with one step and with many
        costs = {
            "the_gradient_of_w_h_counts_h0_too",
            "one_step_gives_the_gradients_of_the_weights",
        }
    assert failed == costs


@pytest.mark.parametrize("like", ["x", "the drive", "b", "W_h"])
def test_a_buffer_of_integers_is_found_whatever_array_it_is_made_like(like):
    def answer(x, W_x, W_h, b, h0):
        drive = x @ W_x + b
        dtype = {"x": x, "the drive": drive, "b": b, "W_h": W_h}[like].dtype
        hs, h = np.zeros(drive.shape, dtype=dtype), h0
        for t in range(x.shape[1]):
            h = np.tanh(drive[:, t] + h @ W_h)
            hs[:, t] = h
        return hs

    for seed in range(3):
        assert set(failures("rnn_forward", answer, seed)) == {"integer_inputs_work_too"}
        learner = LiveLearner({"rnn_forward": answer})
        result = grade_question(QUESTIONS["rnn_forward"], learner, seed, MISTAKES)
        assert result.mistake == "rnn-integer-buffer"


@pytest.mark.parametrize("tiny", [1e-6, 1e-8, 1e-12])
def test_scaling_up_is_named_whatever_is_added_to_the_divisor(tiny):
    def answer(grads, max_norm):
        norm = np.sqrt(sum(np.sum(grad**2) for grad in grads))
        return [grad * max_norm / (norm + tiny) for grad in grads], norm

    for seed in range(3):
        learner = LiveLearner({"clip_by_global_norm": answer})
        result = grade_question(QUESTIONS["clip_by_global_norm"], learner, seed, MISTAKES)
        assert result.mistake == "clip-scales-up-too"


@pytest.mark.parametrize("shape_error", [lambda x: x @ np.ones(1), lambda x: np.split(x[:, 0], 7)])
def test_an_error_of_shapes_alone_is_not_taken_for_a_known_mistake(shape_error):
    # a probe on which the known mistake raises no error tells the two apart
    for name in ("gru_step", "read_backwards"):
        learner = LiveLearner({name: lambda x, *rest: shape_error(np.ones((len(x), 5)))})
        result = grade_question(QUESTIONS[name], learner, 0, MISTAKES)
        assert result.mistake is None


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("read_backwards", "read-backwards-starts-in-the-padding"),
        ("gradient_norms", "gradient-norms-multiplied"),
    ],
)
def test_the_broken_code_of_a_debug_question_is_the_known_mistake(name, broken):
    exercise = nbformat.read(ROOT / "exercises" / f"{STEM}.ipynb", as_version=4)
    cell = next(cell for cell in exercise.cells if cell.id == name.replace("_", "-"))
    names = {"np": np}
    exec(cell.source, names)
    wrong = mistake(broken)
    for seed in range(3):
        assert failures(name, names[name], seed) == failures(name, wrong.answer, seed) != {}


def test_a_wrong_prediction_is_named_however_its_numbers_are_written():
    for answer in ((7, 4), [7.0, 4.0]):
        learner = LiveLearner({"predicted_reach": answer})
        result = grade_question(QUESTIONS["predicted_reach"], learner, 0, MISTAKES)
        assert result.mistake == "reach-always-a-whole-chunk"


# --- what a check of a torch function stands on ---


def test_a_dotted_name_makes_a_library_object_where_the_answer_runs():
    learner = LiveLearner({"count": lambda cell: sum(p.numel() for p in cell.parameters())})
    cell = learner.call("torch.nn.RNN", 3, 2, batch_first=True)
    assert learner.call("count", cell) == 3 * 2 + 2 * 2 + 2 + 2
    with pytest.raises(LearnerError, match="no attribute 'NoSuchCell'"):
        learner.call("torch.nn.NoSuchCell")


def test_the_sandbox_makes_library_objects_too(server):
    from autograder.sandbox import SandboxedLearner

    source = "def width(cell):\n    return cell.hidden_size"
    learner = SandboxedLearner(server, [("width", source)])
    try:
        assert learner.call("width", learner.call("torch.nn.RNN", 3, 2)) == 2
    finally:
        learner.close()


# --- the printed examples ---


@pytest.fixture(scope="module")
def notebook():
    return nbformat.read(ROOT / "solutions" / f"{STEM}.ipynb", as_version=4)


def printed_by(notebook, cell_id):
    cell = next(cell for cell in notebook.cells if cell.id == cell_id)
    return cell.outputs[0].text


def matrices(text):
    """Parse the matrices that `show` printed: each a title, a line of columns, then rows."""
    found = []
    for line in text.splitlines():
        numbers = re.findall(r"(?<!\S)-?\d+(?:\.\d+)?(?!\S)", line)
        names = re.findall(r"[a-z]\S*", line)
        if numbers and len(names) <= 1 and line.startswith(" "):
            found[-1].append([float(number) for number in numbers])
        else:
            found.append([])
    return [np.array(rows) for rows in found if rows]


def test_the_numbers_of_the_first_example_are_right(notebook):
    x, W_x, W_h, b, h0, hs = matrices(printed_by(notebook, "rnn-forward-example"))
    assert np.abs(hs - oracle.rnn_forward(x[None], W_x, W_h, b[0], h0)[0]).max() < 0.00051


def test_the_tokens_of_the_first_example_are_those_of_the_book(notebook):
    chapter = nbformat.read(ROOT / "book" / "02_single_head.ipynb", as_version=4)
    names = {"np": np, "show": lambda *args, **kwargs: None}
    for cell in chapter.cells:
        if cell.source.startswith("tokens = ["):
            exec(cell.source, names)
    x, *_ = matrices(printed_by(notebook, "rnn-forward-example"))
    assert np.array_equal(x, names["X"])


def test_the_numbers_of_the_last_state_example_are_right(notebook):
    text = printed_by(notebook, "rnn-last-state-example")
    hs, last = matrices(text)
    lengths = [int(n) for n in re.search(r"lengths = \[(\d), (\d)\]", text).groups()]
    assert np.array_equal(last, oracle.rnn_last_state(hs[..., None], lengths))


def test_the_numbers_of_the_clipping_example_are_right(notebook):
    text = printed_by(notebook, "clip-by-global-norm-example")
    numbers = [float(number) for number in re.findall(r"\d+\.\d+", text)]
    a, b, limit, norm, clipped = numbers[:2], numbers[2:4], numbers[4], numbers[5], numbers[6:]
    right, right_norm = extra.clip_by_global_norm([a, [b]], limit)
    assert norm == pytest.approx(right_norm)
    assert clipped == pytest.approx([*right[0], *right[1][0]])
