"""Exercise 5: its oracle against PyTorch, its examples, and what a single fault costs."""

from pathlib import Path

import nbformat
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from autograder.checks import rng_for
from autograder.diagnose import same
from autograder.grade import grade
from autograder.learner import LiveLearner
from autograder.notebooks import as_text, grade_id
from autograder.release import make_release

from .checks import encoder_layer as checks
from .oracle import encoder_layer as oracle
from .oracle import exercise_encoder_layer as more
from .test_exercises import COURSE, MISTAKES, failures

STEM = "05_encoder_layer"
ROOT = Path(__file__).parents[1]


@pytest.fixture
def rng():
    return np.random.default_rng(5)


# --- the oracle ---


def test_rms_norm_oracle_agrees_with_pytorch(rng):
    for shape, scale in (((3, 4), 1.0), ((2, 3, 5), 1e-3)):
        x, gamma = scale * rng.normal(size=shape) + scale, rng.normal(size=shape[-1])
        right = F.rms_norm(torch.tensor(x), shape[-1:], torch.tensor(gamma), eps=1e-5)
        assert np.allclose(more.rms_norm(x, gamma), right, rtol=1e-12, atol=1e-12)
        assert not np.allclose(more.rms_norm(x, gamma, eps=0.5), right, rtol=1e-2)


def test_rms_norm_backward_oracle_agrees_with_autograd(rng):
    for shape, scale, eps in (((4,), 1.0, 0.0), ((2, 3, 5), 1.0, 0.0), ((3, 4), 3e-3, 1e-5)):
        x, gamma = scale * rng.normal(size=shape), rng.normal(size=shape[-1])
        leaves = [torch.tensor(a, requires_grad=True) for a in (x, gamma)]
        dy = torch.tensor(rng.normal(size=shape))
        right = torch.autograd.grad(F.rms_norm(leaves[0], shape[-1:], leaves[1], eps), leaves, dy)
        found = more.rms_norm_backward(dy.numpy(), x, gamma, eps)
        for mine, theirs in zip(found, right, strict=True):
            assert np.allclose(mine, theirs, rtol=1e-9, atol=1e-10)


def test_swiglu_oracle_agrees_with_pytorch(rng):
    for lead, size in (((), 1.0), ((2, 3), 1.0), ((4,), 3000.0)):
        x, W1, W2, W3 = (rng.normal(size=s) for s in ((*lead, 4), (4, 7), (7, 4), (4, 7)))
        x, W1, W2, W3 = arrays = x, size * W1, W2 / size, W3
        a, b, c, d = (torch.tensor(array) for array in arrays)
        right = (F.silu(a @ b) * (a @ d)) @ c
        assert np.allclose(more.swiglu(*arrays), right, rtol=1e-9, atol=1e-12)


def test_feed_forward_backward_oracle_agrees_with_autograd(rng):
    shapes = (2, 3, 4), (4, 7), (7,), (7, 4), (4,)
    leaves = [torch.tensor(rng.normal(size=shape), requires_grad=True) for shape in shapes]
    x, W1, b1, W2, b2 = leaves
    dy = torch.tensor(rng.normal(size=shapes[0]))
    right = torch.autograd.grad(F.linear(F.linear(x, W1.T, b1).relu(), W2.T, b2), leaves, dy)
    found = more.feed_forward_backward(dy.numpy(), *(leaf.detach().numpy() for leaf in leaves))
    for mine, theirs in zip(found, right, strict=True):
        assert np.allclose(mine, theirs, atol=1e-12)


def test_rotary_oracle_turns_complex_numbers_and_scores_see_the_distance_alone(rng):
    q, k = rng.normal(size=(2, 3, 5, 6))
    positions = np.array([2, 3, 5, 9, 30])
    pairs = torch.view_as_complex(torch.tensor(q).unflatten(-1, (3, 2)))
    angle = torch.tensor(positions[:, None] / 10000 ** (np.arange(3) / 3))
    right = torch.view_as_real(pairs * torch.polar(torch.ones_like(angle), angle)).flatten(-2)
    assert np.allclose(more.rotary_encoding(q, positions), right, atol=1e-12)

    def scores(positions):
        turned = (more.rotary_encoding(a, positions) for a in (q, k))
        return np.einsum("bid,bjd->bij", *turned)

    assert np.allclose(scores(positions), scores(positions + 11), atol=1e-10)
    assert not np.allclose(scores(positions), scores(2 * positions), atol=1e-2)


@pytest.mark.parametrize("num_heads", [1, 2, 5])
def test_parameter_counts_are_those_of_pytorchs_layer(num_heads):
    layer = nn.TransformerEncoderLayer(10, num_heads, 30)
    counts = {name: parameter.numel() for name, parameter in layer.named_parameters()}
    found = more.layer_parameters(10, num_heads, 30)
    for part, count in zip(("self_attn", "linear", "norm"), found, strict=True):
        assert count == sum(n for name, n in counts.items() if name.startswith(part))
    assert sum(found) == sum(counts.values())


def test_rows_of_a_silent_layer_are_those_of_pytorchs_layer():
    for norm_first, expected in ((False, (1, 2)), (True, (3, 5))):
        layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, norm_first=norm_first).double()
        with torch.no_grad():
            for name, parameter in layer.named_parameters():
                if name.startswith(("self_attn.out_proj", "linear2")):
                    parameter.zero_()
                elif name.startswith("norm"):
                    parameter.fill_(2.0 if name.endswith("weight") else 1.0)
        x = torch.tensor([[[8.0, -2.0, 8.0, -2.0]]], dtype=torch.float64)
        y = layer(x).detach().numpy()
        found = more.silent_layer_rows(3.0, 5.0, gamma=2.0, beta=1.0, norm_first=norm_first)
        assert np.allclose(found, (y.mean(), y.std()), atol=1e-9)
        assert np.allclose(found, expected, atol=1e-4)


def test_pytorchs_layer_agrees_with_the_oracle_of_the_chapter(rng):
    for norm_first in (False, True):
        for mask in (None, *checks._masks(rng, 2, 4)):
            seed = int(rng.integers(1000))
            state = checks._state(np.random.default_rng(seed), 6, 11, learned=True)
            weights = checks._layer(np.random.default_rng(seed), 6, 11, learned=True)
            x = checks._tokens(rng, 2, 4, 6)
            found, _ = more.torch_layer(state, x, 3, mask, norm_first)
            right = oracle.encoder_layer(x, weights, 3, mask, norm_first)
            assert np.allclose(found, right, atol=1e-10)


# --- what a mistake costs ---


def failed_by(mistake_id):
    mistake = next(m for m in MISTAKES if m.id == mistake_id)
    return set(failures(mistake.question, mistake.answer, seed=0))


def test_a_wrong_divisor_costs_the_check_of_the_divisor_alone():
    assert failed_by("layernorm-ddof1") == {"the_variance_divides_by_the_number_of_features"}
    assert failed_by("layernorm-eps-outside-sqrt") == {"eps_is_added_to_the_variance"}


def test_mistakes_that_hide_in_a_new_layer_cost_one_check():
    assert failed_by("layer-uses-one-norm-twice") == {"each_norm_has_weights_of_its_own"}
    assert failed_by("encoder-dropout-active-in-eval") == {"nothing_is_dropped_in_evaluation"}
    assert failed_by("encoder-dropout-missing") == {"dropout_acts_on_what_each_sublayer_adds"}
    assert failed_by("pe-plain-attribute") == {
        "the_table_is_a_buffer_and_not_trained",
        "the_output_has_the_dtype_of_module_and_x",
    }


def test_a_wrong_mask_leaves_the_points_of_the_wiring():
    masks = "masks_for_queries_and_for_padding_reach_the_attention"
    for name in ("encoder-mask-dropped", "encoder-mask-inverted", "encoder-padding-mask-ignored"):
        assert masks in failed_by(name)
        assert not {check for check in failed_by(name) if "right_output" in check}
    assert failed_by("encoder-padding-mask-clears-tokens") == {masks}


def test_each_fault_of_the_broken_code_costs_its_own_check():
    assert failed_by("mended-layer-still-drops-in-eval") == {
        "the_mended_layer_drops_nothing_in_evaluation"
    }
    assert failed_by("mended-layer-without-dropout") == {"the_mended_layer_still_drops_in_training"}
    assert failed_by("mended-layer-mask-still-inverted") == {
        "the_mended_layer_reads_what_the_mask_allows"
    }
    assert failed_by("mended-layer-one-norm-still-twice") == {"the_mended_layer_uses_both_norms"}
    assert failed_by("mended-maps-dx-passes-no-activation") == {
        "its_gradient_of_the_input_is_right"
    }


def test_each_fault_of_the_broken_dropout_costs_its_own_check():
    pattern = "what_is_dropped_on_the_way_out_is_dropped_on_the_way_back"
    assert failed_by("mended-dropout-still-draws-again") == {pattern}
    assert failed_by("mended-dropout-fixes-the-seed") == {pattern}
    assert failed_by("mended-dropout-gradient-still-not-enlarged") == {
        "what_stays_is_enlarged_by_one_factor_both_ways"
    }
    assert failed_by("mended-dropout-both-scaled-in-evaluation") == {
        "the_mended_dropout_does_nothing_in_evaluation"
    }
    assert failed_by("mended-dropout-reads-the-mask-from-y") == {
        "zeros_in_x_hide_nothing_from_the_gradient"
    }


def test_one_fault_in_a_newer_part_costs_one_check():
    assert failed_by("rmsbackward-gamma-left-out") == {"the_scale_enters_the_gradient_of_x"}
    assert failed_by("rmsbackward-eps-left-out") == {"eps_enters_both_gradients"}
    assert failed_by("swiglu-overflows") == {"large_numbers_do_not_break_the_gate"}
    assert failed_by("swiglu-flattens-the-positions") == {"the_gate_works_for_any_leading_axes"}


def test_a_fault_in_the_chance_of_dropout_costs_one_check():
    assert failed_by("dropout-drops-an-exact-number") == {
        "each_number_is_dropped_with_probability_p_by_itself"
    }
    assert failed_by("dropout-seeds-the-generator-it-makes") == {
        "chance_comes_from_the_generator_and_x_is_left_unchanged"
    }


def test_checks_of_dropout_hold_for_chance_of_another_make():
    def dropout(x, p, training=True, rng=None):
        rng = np.random.default_rng() if rng is None else rng
        ages = rng.exponential(size=x.size) if training else np.full(x.size, np.inf)
        stays = ages.reshape(x.shape) >= -np.log1p(-p)
        return x * stays / (1 - p if training else 1)

    for seed in range(20):
        assert failures("dropout", dropout, seed) == {}


def test_the_masks_of_the_checks_allow_each_query_a_key(rng):
    for _ in range(50):
        B, L, h, d_model, _ = checks._layer_sizes(rng)
        assert len({B, L, h}) == 3
        assert d_model // h not in (1, h)
        for mask in checks._masks(rng, B, L):
            allowed = np.broadcast_to(mask, (B, 1, L, L))
            assert allowed.any(axis=-1).all()
            assert not allowed.all()


# --- the broken code of the debug questions ---


@pytest.fixture(scope="module")
def broken():
    """What the release puts into the answer cells of the debug questions, as objects."""
    exercise = make_release(nbformat.read(ROOT / "solutions" / f"{STEM}.ipynb", as_version=4))
    sources = {grade_id(cell): cell.source for cell in exercise.cells}
    namespace = {"np": np, "torch": torch, "nn": nn, "F": F}
    for name in ("mended_feed_forward_backward", "mended_dropout", "MendedEncoderLayer"):
        exec(sources[name], namespace)
    return namespace


def test_the_broken_backward_pass_shows_the_symptoms_that_are_told(broken, rng):
    arguments = checks._maps(rng, 5)
    dy = rng.normal(size=arguments[0].shape)
    found = broken["mended_feed_forward_backward"](dy, *arguments)
    right = more.feed_forward_backward(dy, *arguments)
    assert [a.shape for a in found] == [a.shape for a in right]
    agree = [np.allclose(a, b) for a, b in zip(found, right, strict=True)]
    assert agree == [False, False, False, True, True]
    *_, db2 = broken["mended_feed_forward_backward"](
        np.stack([dy, dy]), np.stack([arguments[0]] * 2), *arguments[1:]
    )
    assert db2.shape == dy.shape


def test_the_broken_dropout_shows_the_symptoms_that_are_told(broken, rng):
    mended = broken["mended_dropout"]
    x, dy = rng.normal(size=(2, 30, 20))
    assert all(np.array_equal(*pair) for pair in zip(mended(x, dy, 0.0), (x, dy), strict=True))
    assert np.array_equal(mended(x, dy, 0.5, training=False)[0], x / 2)

    def loss(x):
        return float((mended(x, dy, 0.5, rng=np.random.default_rng(7))[0] * dy).sum())

    _, dx = mended(x, dy, 0.5, rng=np.random.default_rng(7))
    agreed = []
    for index in np.ndindex(x.shape):
        step = np.zeros(x.shape)
        step[index] = 1e-4
        slope = (loss(x + step) - loss(x - step)) / 2e-4
        if abs(slope - dx[index]) < 1e-5:
            agreed.append(dx[index])
    assert agreed
    assert not np.any(agreed)


def test_the_broken_layer_shows_the_symptoms_that_are_told(broken):
    torch.manual_seed(0)
    x = torch.randn(2, 4, 6)
    causal = torch.ones(4, 4, dtype=torch.bool).tril()
    layer = broken["MendedEncoderLayer"](6, 2, 11, 0.5).eval()
    assert not torch.allclose(layer(x), layer(x))
    y = layer(x, causal)
    assert torch.isnan(y[:, -1]).all()
    layer = broken["MendedEncoderLayer"](6, 2, 11, 0.0, norm_first=True)
    layer(x).sum().backward()
    without = [name for name, p in layer.named_parameters() if p.grad is None]
    assert without == ["norm2.weight", "norm2.bias"]


def test_the_broken_code_passes_some_checks_and_fails_others(broken):
    for name in ("mended_feed_forward_backward", "mended_dropout", "MendedEncoderLayer"):
        question = getattr(checks, name)
        failed = failures(name, broken[name], seed=0)
        assert 0 < len(failed) < len(question.checks)


# --- the notebook ---


@pytest.fixture(scope="module")
def notebook():
    return nbformat.read(ROOT / "solutions" / f"{STEM}.ipynb", as_version=4)


def printed_by(notebook, name):
    """Parse the matrices that an example cell prints: ``{title: array}``."""
    cell = next(cell for cell in notebook.cells if grade_id(cell) == name)
    matrices = {}
    for line in cell.outputs[0].text.splitlines():
        if line and not line.startswith(" "):
            title = line.partition(":")[0]
        elif line:
            matrices.setdefault(title, []).append([float(entry) for entry in line.split()[1:]])
    return {title: np.array(rows) for title, rows in matrices.items()}


def test_the_numbers_of_the_layer_norm_example_are_right(notebook):
    found = printed_by(notebook, "layer_norm_example")
    right = oracle.layer_norm(found["x"], *found["gamma and beta"])
    assert np.abs(found["layer norm of x"] - right).max() < 0.00051


def test_the_numbers_of_the_backward_example_are_right(notebook):
    found = printed_by(notebook, "layer_norm_backward_example")
    right = oracle.layer_norm_backward(found["dy"], found["x"], found["gamma"][0])
    for mine, theirs in zip([found["dx"], *found["dgamma and dbeta"]], right, strict=True):
        assert np.abs(mine - theirs).max() < 0.00051


def test_the_numbers_of_the_position_examples_are_right(notebook):
    (found,) = printed_by(notebook, "positional_encoding_example").values()
    assert np.abs(found - oracle.positional_encoding(3, 5)).max() < 0.00051
    x, turned = printed_by(notebook, "rotary_encoding_example").values()
    assert np.abs(turned - more.rotary_encoding(x, np.arange(3))).max() < 0.00051


def test_the_attention_that_is_given_is_right(notebook, rng):
    cell = next(cell for cell in notebook.cells if grade_id(cell) == "encoder_layer_helper")
    namespace = {"np": np}
    exec(cell.source, namespace)
    x, weights = checks._tokens(rng, 2, 4, 6), checks._layer(rng, 6, 11)
    for mask in (None, *checks._masks(rng, 2, 4)):
        found = namespace["self_attention"](x, weights, 3, mask)
        assert np.allclose(found, oracle.self_attention(x, weights, 3, mask), atol=1e-12)


def test_the_exercise_takes_less_than_two_hours_and_says_where_to_pause(notebook):
    table = [line.split("|") for line in notebook.cells[0].source.splitlines() if "`" in line]
    minutes = [int(row[4]) for row in table if len(row) > 4]
    assert len(minutes) == len(COURSE.questions(STEM))
    assert 60 <= sum(minutes) <= 105
    assert sum(minutes[:10]) <= 60
    assert sum(minutes[10:]) <= 60
    assert "break is\nbefore question 11" in notebook.cells[0].source


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("layer_norm", "def layer_norm(x, gamma, beta, eps=1e-5):\n    return F.layer_norm(x, 3)"),
        (
            "rms_norm_backward",
            "def rms_norm_backward(dy, x, gamma, eps=1e-5):\n    return F.rms_norm(x, 3), gamma",
        ),
        ("swiglu", "def swiglu(x, W1, W2, W3):\n    return F.silu(x @ W1) * (x @ W3) @ W2"),
        (
            "mended_dropout",
            "def mended_dropout(x, dy, p, training=True, rng=None):\n    return F.dropout(x), dy",
        ),
        (
            "EncoderLayer",
            "EncoderLayer = lambda *a, **k: nn.TransformerEncoderLayer(*a, batch_first=True, **k)",
        ),
        (
            "MendedEncoderLayer",
            "class MendedEncoderLayer(EncoderLayer):\n    pass",
        ),
        (
            "Encoder",
            "def Encoder(n, *a):\n"
            "    return nn.TransformerEncoder(nn.TransformerEncoderLayer(*a), n)",
        ),
    ],
)
def test_ready_made_answers_are_refused(name, source, server, tmp_path):
    handed_in = nbformat.read(ROOT / "solutions" / f"{STEM}.ipynb", as_version=4)
    for cell in handed_in.cells:
        if grade_id(cell) == name:
            cell.source = source
    path = tmp_path / f"{STEM}.ipynb"
    path.write_text(as_text(handed_in), encoding="utf-8")
    question = next(q for q in grade(path, COURSE, server).questions if q.id == name)
    assert (question.points, question.status) == (0, "forbidden")


def test_the_checks_of_modules_ask_the_same_again():
    """A diagnosis replays what was asked: the same seed has to give the same record."""
    from .variants.encoder_layer import RIGHT

    for name in ("EncoderLayer", "Encoder"):
        question = getattr(checks, name)
        answer = next(iter(RIGHT[name].values()))
        records = []
        for _ in range(2):
            learner = LiveLearner({name: answer})
            for check in question.checks:
                check.function(learner, rng_for(0, question, check))
            records.append(learner.record)
        handles = {}
        for first, second in zip(*records, strict=True):
            assert same(first.outcome, second.outcome, handles), (name, first.name)
