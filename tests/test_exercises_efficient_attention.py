"""Exercise 7: its oracle against PyTorch, its examples, its memory bounds, its broken code."""

import tracemalloc
from pathlib import Path

import nbformat
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from autograder.grade import grade, grade_question
from autograder.learner import LiveLearner
from autograder.notebooks import as_text, grade_id
from autograder.release import make_release

from .checks import efficient_attention as checks
from .oracle import exercise_efficient_attention as oracle
from .test_exercises import COURSE, failures
from .variants.efficient_attention import RIGHT

STEM = "07_efficient_attention"
ROOT = Path(__file__).parents[1]


@pytest.fixture
def rng():
    return np.random.default_rng(7)


@pytest.fixture(scope="module")
def notebook():
    return nbformat.read(ROOT / "solutions" / f"{STEM}.ipynb", as_version=4)


def tensors(*arrays):
    return [torch.tensor(array) for array in arrays]


# --- the oracle ---


def test_attention_oracle_agrees_with_pytorch(rng):
    for lead in ((), (2,), (2, 3)):
        arrays = checks._qkv(rng, *lead, keys=9)
        mask = checks._random_mask(rng, (arrays[0].shape[-2], 9))
        for allowed in (None, mask):
            kept = None if allowed is None else torch.tensor(allowed)
            right = F.scaled_dot_product_attention(*tensors(*arrays), attn_mask=kept)
            assert np.allclose(oracle.attention(*arrays, allowed), right, atol=1e-12)


def test_a_query_without_a_key_gets_zeros_from_the_oracle(rng):
    arrays = checks._qkv(rng, keys=4)
    mask = np.arange(len(arrays[0]))[:, None] != 2
    rows = oracle.attention(*arrays, mask)
    assert not rows[2].any()
    assert rows[[0, 1, 3]].all()


def test_backward_oracle_agrees_with_autograd(rng):
    for lead in ((), (2, 3)):
        arrays = checks._qkv(rng, *lead, keys=9)
        doutput, *_ = checks._backward_problem(rng, arrays, 4)
        leaves = [x.requires_grad_() for x in tensors(*arrays)]
        output = F.scaled_dot_product_attention(*leaves)
        right = torch.autograd.grad(output, leaves, torch.tensor(doutput))
        found = oracle.attention_backward(doutput, *arrays)
        for mine, theirs in zip(found, right, strict=True):
            assert np.allclose(mine, theirs, atol=1e-12)
        q, k = tensors(*arrays[:2])
        logs = torch.logsumexp(q @ k.mT / np.sqrt(q.shape[-1]), dim=-1)
        assert np.allclose(oracle.logsumexp(*arrays[:2]), logs, atol=1e-12)


@pytest.mark.parametrize("k", [1, 3, 20])
@pytest.mark.parametrize("causal", [True, False])
def test_top_k_oracle_agrees_with_pytorch(rng, k, causal):
    q, k_, v = checks._causal(rng, 2, tokens=7)
    scores = torch.tensor(q @ np.swapaxes(k_, -1, -2) / np.sqrt(q.shape[-1]))
    if causal:
        scores = scores.masked_fill(torch.ones(7, 7, dtype=torch.bool).triu(1), -torch.inf)
    best, places = scores.topk(min(k, 7))
    weights = torch.zeros_like(scores).scatter(-1, places, best.softmax(-1))
    mask = oracle.visible(7) if causal else None
    found = oracle.attention(q, k_, v, mask, k=k)
    assert np.allclose(found, weights @ torch.tensor(v), atol=1e-12)


def test_linear_oracle_agrees_with_pytorch(rng):
    for causal in (False, True):
        q, k, v = tensors(*checks._causal(rng, 2, tokens=6))
        pairs = (F.elu(q) + 1) @ (F.elu(k) + 1).mT
        pairs = pairs.tril() if causal else pairs
        right = pairs @ v / pairs.sum(-1, keepdim=True)
        found = oracle.linear_attention(*(x.numpy() for x in (q, k, v)), causal)
        assert np.allclose(found, right, atol=1e-12)


def test_visible_is_aligned_to_the_last_key():
    assert oracle.visible(2, 5).tolist() == [[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]
    assert oracle.visible(2, 5, window=2).tolist() == [[0, 0, 1, 1, 0], [0, 0, 0, 1, 1]]
    assert np.array_equal(oracle.visible(6), np.tri(6, dtype=bool))


def test_block_sparse_oracle_by_hand():
    rows = ["10000", "11000", "11100", "11110", "11111"]
    assert [[int(c) for c in row] for row in rows] == oracle.local_global_mask(5, 2).tolist()
    assert oracle.local_global_mask(7, 2)[6].tolist() == [1, 1, 0, 0, 1, 1, 1]


def test_predicted_numbers_are_those_of_real_arrays():
    shape = 2, 8, 256, 256
    scores = np.zeros(shape, dtype=np.float16).nbytes * (2048 // 256) ** 2
    whole, twice, chunk = oracle.score_mebibytes()
    assert whole == scores / 2**20
    assert (twice / whole, whole / chunk) == (4, 2048 / 128)
    layer = 2 * np.zeros((4, 16, 2048, 64), dtype=np.float16).nbytes
    whole, grouped, window = oracle.cache_mebibytes()
    assert whole == 24 * layer / 2**20
    assert (whole / grouped, grouped / window) == (16 / 4, 2048 / 512)
    assert oracle.chunk_pairs() == (12 * 11 // 2, 12, 2 * (5 + 4 + 3 + 2 + 1))


# --- the memory bounds ---


def peak_of(function, *arguments):
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        function(*arguments)
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


def test_one_matrix_of_all_pairs_is_more_than_is_allowed_even_of_booleans():
    booleans = checks.LONG**2
    assert checks._allowed(checks.CHUNKED_NUMBERS) < 0.95 * booleans
    assert checks._allowed(checks.LINEAR_NUMBERS) < 0.95 * booleans


def test_dense_right_values_are_those_of_the_oracle(rng):
    q, k, v = (array[:60] for array in checks._long_problem(rng))
    doutput = rng.normal(size=v.shape)
    output, weights, logs = checks._dense(q, k, v)
    assert np.allclose(output, oracle.attention(q, k, v), atol=1e-12)
    assert np.allclose(logs, oracle.logsumexp(q, k), atol=1e-12)
    assert np.allclose(weights.T @ doutput, oracle.attention_backward(doutput, q, k, v)[2])
    causal = oracle.visible(60)
    output, *_ = checks._dense(q, k, v, causal)
    assert np.allclose(output, oracle.attention(q, k, v, causal), atol=1e-12)


def test_right_answers_stay_well_below_the_bound(rng):
    qkv = checks._long_problem(rng)
    output, _, logs = checks._dense(*qkv)
    backward = [rng.normal(size=output.shape), *qkv, output, logs, checks.CHUNK]
    for name, arguments, numbers in (
        ("chunked_attention", [*qkv, checks.CHUNK], checks.CHUNKED_NUMBERS),
        ("chunked_attention_backward", backward, checks.CHUNKED_NUMBERS),
        ("causal_attention_by_query_chunks", [*qkv, checks.CHUNK], checks.CHUNKED_NUMBERS),
        ("linear_attention", [*qkv, True], checks.LINEAR_NUMBERS),
    ):
        peaks = [peak_of(answer, *arguments) for answer in RIGHT[name].values()]
        assert max(peaks) < 0.7 * checks._allowed(numbers)
        assert np.median(peaks) < 0.6 * checks._allowed(numbers)


CHEATS = {
    "resets the peak": """
import tracemalloc
def chunked_attention(Q, K, V, chunk_size, mask=None):
    out = dense(Q, K, V, mask)
    tracemalloc.reset_peak()
    return out
""",
    "stops the count": """
import tracemalloc as t
def chunked_attention(Q, K, V, chunk_size, mask=None):
    t.stop()
    return dense(Q, K, V, mask)
""",
    "inside of a helper": """
def quiet():
    from tracemalloc import reset_peak
    reset_peak()
def chunked_attention(Q, K, V, chunk_size, mask=None):
    out = dense(Q, K, V, mask)
    quiet()
    return out
""",
    "the module behind it": """
def chunked_attention(Q, K, V, chunk_size, mask=None):
    import _tracemalloc
    out = dense(Q, K, V, mask)
    _tracemalloc.reset_peak()
    return out
""",
}
DENSE = """
def dense(Q, K, V, mask):
    s = Q @ np.swapaxes(K, -1, -2) / np.sqrt(Q.shape[-1])
    s = s if mask is None else np.where(mask, s, -np.inf)
    top = s.max(axis=-1, keepdims=True)
    p = np.exp(s - np.where(np.isinf(top), 0, top))
    total = p.sum(axis=-1, keepdims=True)
    return p @ V / np.where(total == 0, 1, total)
"""


def graded(notebook, server, tmp_path, name, source):
    """Grade the notebook with this one answer, and return what its question gets."""
    handed_in = make_release(notebook)
    for cell in handed_in.cells:
        if grade_id(cell) == name:
            cell.source = source
    path = tmp_path / f"{STEM}.ipynb"
    path.write_text(as_text(handed_in), encoding="utf-8")
    return next(q for q in grade(path, COURSE, server).questions if q.id == name)


@pytest.mark.parametrize("how", CHEATS)
def test_answers_that_touch_the_measurement_are_refused(how, notebook, server, tmp_path):
    found = graded(notebook, server, tmp_path, "chunked_attention", DENSE + CHEATS[how])
    assert (found.points, found.status) == (0, "forbidden")


def test_without_that_the_dense_answer_loses_the_points_of_memory(notebook, server, tmp_path):
    source = f"{DENSE}\ndef chunked_attention(Q, K, V, chunk_size, mask=None):\n"
    found = graded(
        notebook, server, tmp_path, "chunked_attention", source + "    return dense(Q, K, V, mask)"
    )
    failed = [check for check in found.checks if not check.passed]
    assert [check.name for check in failed] == [
        "memory_grows_with_the_length_and_not_with_its_square"
    ]
    assert "allowed are 0.52 MiB" in failed[0].message
    assert "matrix takes 4.50 MiB, of booleans 0.56 MiB" in failed[0].message
    assert found.mistake == "chunked-dense-inside"


@pytest.mark.parametrize(
    ("name", "source"),
    [
        (
            "mended_chunked_attention",
            "def mended_chunked_attention(Q, K, V, c):\n    return chunked_attention(Q, K, V, c)",
        ),
        (
            "mended_linear_attention",
            "def mended_linear_attention(Q, K, V):\n    return linear_attention(Q, K, V, True)",
        ),
        (
            "topk_attention",
            "import torch\n"
            "def topk_attention(Q, K, V, k, causal=True):\n    return torch.topk(Q, k)",
        ),
        (
            "cached_attention",
            "from attention.in_numpy import efficient_attention as e\n"
            "def cached_attention(Q, K, V, cache=None, window=None):\n    return e.decode(Q)",
        ),
    ],
)
def test_ready_made_answers_are_refused(name, source, notebook, server, tmp_path):
    found = graded(notebook, server, tmp_path, name, source)
    assert (found.points, found.status) == (0, "forbidden")


# --- answers that are right in part ---


BANK = COURSE.mistakes(STEM)


def named(name, answer):
    """Return the points of an answer, the mistake it is taken for, and the feedback."""
    question = getattr(checks, name)
    result = grade_question(question, LiveLearner({name: answer}), 0, BANK)
    return result.points, result.mistake, result.feedback


@pytest.mark.parametrize("kept", range(3))
def test_one_gradient_of_three_earns_its_own_points_only(kept):
    right = RIGHT["chunked_attention_backward"]["plain"]

    def answer(*arguments):
        return [g * (i == kept) for i, g in enumerate(right(*arguments))]

    assert named("chunked_attention_backward", answer)[0] == 0.5


@pytest.mark.parametrize("fill", [-1e4, -65504.0, -1e9, -1e10])
def test_a_finite_fill_loses_points_also_where_empty_rows_are_mended(fill):
    def answer(Q, K, V, chunk_size, mask=None):
        mask = np.broadcast_to(True if mask is None else mask, (*Q.shape[:-1], K.shape[-2]))
        top, total, summed = -np.inf, 0.0, 0.0
        for start in range(0, K.shape[-2], chunk_size):
            part = slice(start, start + chunk_size)
            s = Q @ np.swapaxes(K[..., part, :], -1, -2) / np.sqrt(Q.shape[-1])
            s = np.where(mask[..., part], s, fill)
            new = np.maximum(top, s.max(axis=-1, keepdims=True))
            p, factor = np.exp(s - new), np.exp(top - new)
            total = total * factor + p.sum(axis=-1, keepdims=True)
            summed = summed * factor + p @ V[..., part, :]
            top = new
        return np.where(mask.any(axis=-1, keepdims=True), summed / total, 0)

    points, _, feedback = named("chunked_attention", answer)
    assert points < 4
    assert "Is your fill lower than every allowed score?" in feedback


def dense_in(dtype):
    def answer(Q, K, V, chunk_size, mask=None):
        Q, K, V = (array.astype(dtype) for array in (Q, K, V))
        s = Q @ np.swapaxes(K, -1, -2) / dtype(np.sqrt(Q.shape[-1]))
        s = s if mask is None else np.where(mask, s, dtype(-np.inf))
        top = s.max(axis=-1, keepdims=True)
        p = np.exp(s - np.where(np.isinf(top), dtype(0), top))
        total = p.sum(axis=-1, keepdims=True)
        return p / np.where(total == 0, dtype(1), total) @ V

    return answer


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_dense_answers_are_told_about_memory_in_any_precision(dtype):
    points, mistake, _ = named("chunked_attention", dense_in(dtype))
    assert (points, mistake) == (3.5, "chunked-dense-inside")


@pytest.mark.parametrize("mebibytes", [(134.2, 536.9, 8.39), (134, 537, 8.4)])
def test_megabytes_are_told_from_mebibytes(mebibytes):
    points, _, feedback = named("predicted_score_memory", mebibytes)
    assert points == 0
    assert "A MiB has 2^20 bytes" in feedback
    megabytes = (805.3, 201.3, 50.3)
    points, _, feedback = named("predicted_cache_memory", megabytes)
    assert points == 0.5
    assert "A MiB has 2^20 bytes" in feedback


def test_a_slip_in_the_cache_is_counted_once():
    for first in (384, 1536, 32):
        assert named("predicted_cache_memory", (first, first / 4, first / 16))[0] == 0.5
    assert named("predicted_cache_memory", (768, 768, 192))[0] == 0.5
    assert named("predicted_cache_memory", (768, 192, 192))[0] == 0.5
    assert named("predicted_cache_memory", (1152, 192, 48))[0] == 0.5


def test_slips_at_the_diagonal_are_told_one_by_one():
    assert "counted the boxes on the diagonal" in named("predicted_chunks", (78, 12, 30))[2]
    assert "are those on the diagonal half" in named("predicted_chunks", (72, 12, 30))[2]
    points, _, feedback = named("predicted_chunks", (66, 12, 36))
    assert points == 0.5
    assert "Half of all pairs" in feedback


@pytest.mark.parametrize("name", ["chunked_attention", "mended_chunked_attention"])
def test_a_chunk_without_keys_is_told_about(name):
    def answer(Q, K, V, chunk_size, mask=None):
        K[..., K.shape[-2] :, :].max(axis=-2)

    assert "One of your chunks has no keys" in named(name, answer)[2]


# --- the broken code of the debug questions ---

DEBUG = "mended_chunked_attention", "mended_window_attention", "mended_linear_attention"


@pytest.fixture(scope="module")
def broken(notebook):
    """What the release puts into the answer cells of the debug questions, as functions."""
    sources = {grade_id(cell): cell.source for cell in make_release(notebook).cells}
    namespace = {"np": np}
    for name in DEBUG:
        exec(sources[name], namespace)
    return namespace


def test_the_broken_chunks_show_the_symptoms_that_are_told(broken, rng):
    mended, arrays = broken["mended_chunked_attention"], checks._qkv(rng, keys=8)
    right = oracle.attention(*arrays)
    assert np.allclose(mended(*arrays, 8), right)
    assert not np.isclose(mended(*arrays, 2), right).all(axis=-1).mean() > 0.5
    with np.errstate(invalid="ignore"):
        assert np.isnan(mended(*arrays, 9)).all()
    q, k, v = checks._qkv(rng, keys=5)
    short = mended(q, k[:3], v[:3], 3)
    assert np.array_equal(mended(q, k, v, 3), short)


def test_the_broken_window_shows_the_symptoms_that_are_told(broken, rng):
    mended, (q, k, v) = broken["mended_window_attention"], checks._causal(rng, tokens=8)
    two = oracle.attention(q, k, v, oracle.visible(8, window=2))
    assert np.allclose(mended(q, k, v, 1, 8), two)
    assert not np.allclose(two, v, atol=0.1)
    for i in range(4, 8):  # the second chunk
        other = v.copy()
        other[i] += 10
        assert np.array_equal(mended(q, k, other, 3, 4)[i], mended(q, k, v, 3, 4)[i])


def test_the_broken_linear_attention_shows_the_symptoms_that_are_told(broken, rng):
    mended = broken["mended_linear_attention"]
    arrays = checks._causal(rng, 2, tokens=5)
    found, right = mended(*arrays), oracle.linear_attention(*arrays, True)
    assert np.allclose(found[:, -1], right[:, -1])
    size = np.abs(found / right)[:, :, 0]
    assert (np.diff(size, axis=1) > 0).all()
    assert (size[:, :-1] < 1).all()
    for lead in ((), (2, 3)):
        arrays = checks._causal(rng, *lead, tokens=5)
        found, right = mended(*arrays), oracle.linear_attention(*arrays, True)
        assert not np.allclose(found[..., -1, :], right[..., -1, :])


def test_the_broken_code_fails_checks_and_not_by_an_error(broken):
    for name in DEBUG:
        kinds = {kind for kind, _ in failures(name, broken[name], seed=0).values()}
        assert kinds == {"failed"}


# --- the notebook ---


def printed_by(notebook, name):
    """Parse the matrices that an example cell prints, in order."""
    cell = next(cell for cell in notebook.cells if grade_id(cell) == name)
    matrices = []
    rows = ("   cats", "  chase", "   mice")
    for line in cell.outputs[0].text.splitlines():
        if line.startswith(rows):
            matrices[-1].append([float(entry) for entry in line.split()[1:]])
        elif line and not line.startswith("cache"):
            matrices.append([])
    return [np.array(matrix) for matrix in matrices if matrix]


@pytest.fixture(scope="module")
def example(notebook):
    cell = next(cell for cell in notebook.cells if grade_id(cell) == "setup")
    namespace = {}
    exec(cell.source, namespace)
    return [namespace[name] for name in "QKV"]


def test_the_example_is_that_of_the_book(example):
    X = np.array([[2, 0, 1, 0], [0, 1, 1, 0], [1, 0, 0, 1]])
    W_q = np.array([[1, 0], [0, 1], [1, 1], [2, 2]])
    W_k = np.array([[0, 0], [1, -1], [0, 2], [0, 1]])
    W_v = np.array([[1, 0, 0], [0, 2, 1], [0, 1, 0], [0, 0, 2]])
    for found, W in zip(example, (W_q, W_k, W_v), strict=True):
        assert np.array_equal(found, X @ W)


def test_the_numbers_of_the_examples_are_right(notebook, example):
    causal = oracle.visible(3)
    right = {
        "chunked_attention": [oracle.attention(*example)],
        "causal_attention_by_query_chunks": [oracle.attention(*example, causal)],
        "topk_attention": [oracle.attention(*example, causal, k=2)],
        "linear_attention": [oracle.linear_attention(*example, c) for c in (False, True)],
        "cached_attention": np.split(oracle.attention(*example, causal), [2]),
    }
    for name, matrices in right.items():
        found = printed_by(notebook, f"{name}_example")
        for mine, theirs in zip(found, matrices, strict=True):
            assert np.abs(mine - theirs).max() < 0.00051
    doutput, *gradients = printed_by(notebook, "chunked_attention_backward_example")
    for mine, theirs in zip(gradients, oracle.attention_backward(doutput, *example), strict=True):
        assert np.abs(mine - theirs).max() < 0.00051


def test_the_example_of_the_blocks_is_right(notebook):
    cell = next(cell for cell in notebook.cells if grade_id(cell) == "local_global_mask_example")
    rows = [line.split()[1:] for line in cell.outputs[0].text.splitlines()[1:]]
    assert np.array_equal(np.array(rows, dtype=int), oracle.local_global_mask(7, 2))


def test_the_bounds_that_are_told_are_those_of_the_checks(notebook):
    texts = {grade_id(cell): cell.source for cell in notebook.cells}
    d_k, d_v = 1, 2
    bound = r"$8 \cdot L \cdot (\mathtt{chunk\_size} + d_k + d_v)$"
    assert 8 * checks.LONG * (checks.CHUNK + d_k + d_v) == checks.CHUNKED_NUMBERS
    assert 8 * checks.LONG * (d_k + 1) * (d_v + 1) == checks.LINEAR_NUMBERS
    for question in (
        checks.chunked_attention,
        checks.chunked_attention_backward,
        checks.causal_attention_by_query_chunks,
    ):
        assert bound in texts[f"{question.id}_text"]
    assert r"$8 \cdot L \cdot (d_k + 1) \cdot (d_v + 1)$" in texts["linear_attention_text"]
    assert f"for {checks.LONG} tokens" in texts["intro"]


def test_the_exercise_takes_less_than_two_hours_and_says_where_to_pause(notebook):
    table = [line.split("|") for line in notebook.cells[0].source.splitlines() if "| `" in line]
    minutes = [int(row[4]) for row in table]
    assert len(minutes) == len(COURSE.questions(STEM))
    assert 100 <= sum(minutes) < 120
    assert max(sum(minutes[:6]), sum(minutes[6:])) <= 60
    assert "break is before question 7" in " ".join(notebook.cells[0].source.split())


ODD_CACHES = [
    None,
    "text",
    {"K": 1},
    ([], []),
    ([np.ones(2)], [np.ones((2, 2))]),
    (np.ones(3),) * 2,
]


@pytest.mark.parametrize("odd", range(len(ODD_CACHES)))
def test_a_cache_of_another_form_is_told_about_and_is_no_accident(odd):
    def answer(Q, K, V, cache=None, window=None):
        return RIGHT["cached_attention"]["plain"](Q, K, V)[0], ODD_CACHES[odd]

    failed = failures("cached_attention", answer, seed=0)
    assert {"the_cache_holds_the_window_and_no_more"} <= set(failed)
    assert {kind for kind, _ in failed.values()} == {"failed"}


ODD_NUMBERS = [None, "text", (1, 2), ((1, 2), 3, 4), (10**400, 1, 2), (np.nan,) * 3, (1j, 2, 3)]


@pytest.mark.parametrize("odd", range(len(ODD_NUMBERS)))
def test_odd_predictions_are_told_about_and_are_no_accident(odd):
    for name in ("predicted_score_memory", "predicted_chunks", "predicted_cache_memory"):
        failed = failures(name, ODD_NUMBERS[odd], seed=0)
        assert {kind for kind, _ in failed.values()} == {"failed"}
        assert len(failed) == 3


def test_the_cache_may_be_of_any_length_that_later_calls_need():
    """A cache of window - 1 tokens is as right as one of window tokens."""
    lengths = set()
    for answer in RIGHT["cached_attention"].values():
        learner = LiveLearner({"cached_attention": answer})
        arrays = checks._causal(np.random.default_rng(0), tokens=6)
        _, caches = checks._decode(learner, arrays, (3, 3), 3)
        lengths.add(caches[-1][0].shape[-2])
    assert lengths == {2, 3}
