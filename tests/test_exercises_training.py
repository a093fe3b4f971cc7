"""Exercise 6: its own oracle is proven, its printed examples are right, and faults cost little."""

import copy
import math
import re
from pathlib import Path

import nbformat
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from autograder.forbidden import find_forbidden
from autograder.grade import grade_question
from autograder.learner import LiveLearner

from .checks import training as checks
from .oracle import exercise_training as oracle
from .test_exercises import MISTAKES, QUESTIONS, failures

STEM = "06_training"
ROOT = Path(__file__).parents[1]


def mistake(name):
    return next(m for m in MISTAKES if m.id == name)


def problem(seed, *sizes):
    generator = torch.Generator().manual_seed(seed)
    B, L, V = sizes
    logits = torch.randn(B, L, V, generator=generator, dtype=torch.double)
    return logits, torch.randint(V, (B, L), generator=generator)


def model_and_batches(seed):
    """Return a small network and three batches, of different sizes, one with targets of -100."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 5)).double()
    batches = [(torch.randn(n, 3).double(), torch.randint(5, (n,))) for n in (2, 5, 3)]
    batches[1][1][:3] = -100
    return model, batches


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()]).numpy()


# --- the oracle agrees with PyTorch ---


@pytest.mark.parametrize("pad_id", [None, 0, 2])
def test_loss_and_its_gradient_are_pytorchs(pad_id):
    logits, targets = problem(1, 3, 4, 5)
    targets[1, 2:] = -100
    logits.requires_grad_()
    ignored = targets if pad_id is None else targets.masked_fill(targets == pad_id, -100)
    expected = F.cross_entropy(logits.transpose(1, 2), ignored)
    expected.backward()
    got = oracle.lm_loss(logits.detach(), targets, pad_id)
    assert got == pytest.approx(expected.item(), rel=1e-12)
    gradient = oracle.lm_loss_gradient(logits.detach(), targets, pad_id)
    np.testing.assert_allclose(gradient, logits.grad.numpy(), atol=1e-14)


def test_loss_of_no_target_is_0():
    logits, targets = problem(2, 2, 3, 4)
    assert oracle.lm_loss(logits, targets * 0 - 100) == 0.0
    assert not oracle.lm_loss_gradient(logits, targets * 0 + 1, pad_id=1).any()


@pytest.mark.parametrize("L", [1, 2, 6])
def test_next_token_loss_is_that_of_slices(L):
    logits, tokens = problem(3, 3, L, 4)
    expected = F.cross_entropy(
        logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten(), reduction="sum"
    ) / max(3 * (L - 1), 1)
    assert oracle.next_token_loss(logits, tokens) == pytest.approx(expected.item(), rel=1e-12)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
def test_smoothing_is_pytorchs(smoothing):
    logits, targets = problem(4, 3, 4, 5)
    targets[0, 1] = -100
    expected = F.cross_entropy(logits.transpose(1, 2), targets, label_smoothing=smoothing)
    got = oracle.smoothed_loss(logits, targets, smoothing)
    assert got == pytest.approx(expected.item(), rel=1e-12)


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_gradient_of_the_smoothed_loss_is_pytorchs(smoothing):
    logits, targets = problem(12, 3, 4, 5)
    targets[2, 1:3] = -100
    logits.requires_grad_()
    F.cross_entropy(logits.transpose(1, 2), targets, label_smoothing=smoothing).backward()
    got = oracle.smoothed_loss_gradient(logits.detach(), targets, smoothing)
    np.testing.assert_allclose(got, logits.grad.numpy(), atol=1e-14)


def test_floor_of_two_softmaxes_is_the_formula_and_no_probabilities_get_below_it():
    guess, floor = oracle.guess_and_floor(50)
    assert guess == pytest.approx(math.log(50))
    assert floor == pytest.approx(-math.log(math.e / (math.e + 49)))
    drawn = np.random.default_rng(5).dirichlet(np.full(50, 0.05), size=200)
    assert min(oracle.lm_loss(row[None], np.array([0])) for row in drawn) >= floor


@pytest.mark.parametrize("limit", [None, 0.01, 100.0])
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
def test_step_of_training_is_the_usual_loop(limit, optimizer):
    model, batches = model_and_batches(6)
    twin = copy.deepcopy(model)
    opt, twin_opt = (optimizer(m.parameters(), lr=0.1) for m in (model, twin))
    for x, y in batches:
        loss = F.cross_entropy(twin(x), y)
        twin_opt.zero_grad()
        loss.backward()
        if limit is not None:
            nn.utils.clip_grad_norm_(twin.parameters(), limit)
        twin_opt.step()
        got = oracle.train_step(model, opt, x, y, F.cross_entropy, limit)
        assert got == pytest.approx(loss.item(), rel=1e-3)
    np.testing.assert_allclose(weights(model), weights(twin), rtol=1e-3)


def test_gradient_norm_is_the_one_that_pytorch_clips_by():
    model, [(x, y), *_] = model_and_batches(11)
    got = oracle.gradient_norm(model, x, y, F.cross_entropy)
    F.cross_entropy(model(x), y).backward()
    assert got == pytest.approx(nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())


def test_joined_step_is_one_step_on_the_concatenated_batch():
    model, batches = model_and_batches(7)
    twin = copy.deepcopy(model)
    opt, twin_opt = (torch.optim.SGD(m.parameters(), lr=0.5) for m in (model, twin))
    oracle.joined_step(model, opt, batches, F.cross_entropy)
    x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
    F.cross_entropy(twin(x), y).backward()
    twin_opt.step()
    np.testing.assert_allclose(weights(model), weights(twin), rtol=1e-12)


def test_mean_of_an_epoch_and_of_an_evaluation_is_that_of_the_joined_batch():
    model, batches = model_and_batches(8)
    still = torch.optim.SGD(model.parameters(), lr=0.0)
    x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
    expected = F.cross_entropy(model(x), y).item()
    assert oracle.epoch(model, still, batches, F.cross_entropy, 1.0) == pytest.approx(expected)
    loss, accuracy = oracle.evaluate(model, batches)
    assert loss == pytest.approx(expected)
    keep = y != -100
    right = (model(x).argmax(-1) == y)[keep].double().mean().item()
    assert accuracy == pytest.approx(right)
    assert model.training


def test_first_steps_are_those_of_the_formulas():
    lr, gradient = 0.1, 40.0
    expected = (lr * gradient, lr * 1.0, lr, lr)  # Adam: lr g / sqrt(g²)
    assert oracle.first_steps(gradient, lr, 1.0) == pytest.approx(expected)


def test_trapezoid_is_the_smallest_of_three():
    steps, peak, warmup, decay = 40, 0.7, 12, 9
    for step in range(steps):
        expected = peak * min(1.0, (step + 1) / warmup, (steps - step) / decay)
        assert oracle.trapezoid_rate(step, steps, peak, warmup, decay) == pytest.approx(expected)


def test_normalized_entropy_is_that_of_pytorchs_distribution():
    generator = torch.Generator().manual_seed(9)
    mask = torch.ones(4, 4, dtype=torch.bool).tril().expand(2, 1, 4, 4)
    scores = torch.randn(2, 3, 4, 4, generator=generator, dtype=torch.double)
    attention = scores.masked_fill(~mask, -torch.inf).softmax(-1)
    entropy = torch.distributions.Categorical(probs=attention).entropy()  # (B, h, L)
    shares = entropy[..., 1:] / torch.tensor([2.0, 3.0, 4.0], dtype=torch.double).log()
    np.testing.assert_allclose(
        oracle.normalized_entropy(attention, mask), shares.mean(dim=(0, 2)), rtol=1e-12
    )
    alone = mask & (torch.arange(4)[:, None] < 2)  # queries 2 and 3 are padding
    np.testing.assert_allclose(
        oracle.normalized_entropy(attention, alone), shares[..., 0].mean(dim=0), rtol=1e-12
    )


def test_masked_softmax_is_pytorchs_where_a_key_is_allowed():
    generator = torch.Generator().manual_seed(10)
    scores = torch.randn(3, 4, 5, generator=generator, dtype=torch.double)
    mask = torch.rand(3, 4, 5, generator=generator) < 0.6
    mask[..., 0] = True
    mask[1, 2] = False
    expected = scores.masked_fill(~mask, -torch.inf).softmax(-1).nan_to_num(0.0)
    np.testing.assert_allclose(oracle.masked_softmax(scores, mask), expected, rtol=1e-12)


def test_gradient_of_the_masked_softmax_is_pytorchs_and_0_in_an_empty_row():
    generator = torch.Generator().manual_seed(13)
    scores = torch.randn(3, 4, 5, generator=generator, dtype=torch.double, requires_grad=True)
    upstream = torch.randn(3, 4, 5, generator=generator, dtype=torch.double)
    mask = torch.rand(3, 4, 5, generator=generator) < 0.6
    mask[..., 1] = True
    scores.masked_fill(~mask, -torch.inf).softmax(-1).backward(upstream)
    got = oracle.masked_softmax_gradient(scores.detach(), mask, upstream)
    np.testing.assert_allclose(got, scores.grad.numpy(), atol=1e-14)
    mask[0, 3] = False
    got = oracle.masked_softmax_gradient(scores.detach(), mask, upstream)
    assert not got[0, 3].any()
    assert got[0, 2].any()


def test_loss_of_the_grader_is_cross_entropy_with_nan_gradients_where_nothing_counts():
    loss_fn = eval(checks.MASKED_MEAN)
    scores = problem(14, 1, 6, 5)[0][0].requires_grad_()
    y = torch.tensor([1, -100, 4, 0, -100, 2])
    assert loss_fn(scores, y).item() == pytest.approx(F.cross_entropy(scores, y).item())
    (gradient,) = torch.autograd.grad(0.0 * loss_fn(scores, torch.full_like(y, -100)), scores)
    assert gradient.isnan().any()


# --- what a fault costs ---


@pytest.mark.parametrize(
    ("name", "costs"),
    [
        ("loss-pad-id-zero-is-none", {"the_padding_may_have_the_number_0"}),
        (
            "loss-zero-without-a-graph",
            {"where_no_target_counts_it_is_0_and_has_a_gradient"},
        ),
        (
            "loss-zero-that-hangs-on-nothing",
            {"where_no_target_counts_it_is_0_and_has_a_gradient"},
        ),
        ("loss-targets-overwritten", {"logits_and_targets_are_left_unchanged"}),
        ("next-token-nan-for-one-token", {"one_token_leaves_nothing_to_predict"}),
        (
            "next-token-zero-that-hangs-on-nothing",
            {"one_token_leaves_nothing_to_predict"},
        ),
        ("mended-loss-log-of-softmax", {"scores_in_the_thousands_give_a_finite_loss"}),
        ("mended-loss-cut-off-from-the-model", {"the_model_can_learn_from_the_loss"}),
        ("smoothing-zero-is-taken-for-none", {"without_smoothing_it_is_the_cross_entropy"}),
        (
            "smoothing-cut-off-from-the-logits",
            {"the_gradient_of_the_smoothed_loss_is_right"},
        ),
        ("train-clip-first-group", {"the_step_uses_gradients_of_norm_max_norm_at_most"}),
        ("train-loss-as-an-array", {"the_loss_is_a_plain_number"}),
        ("rate-as-a-tensor", {"between_rise_and_fall_it_is_the_peak_as_a_plain_number"}),
        (
            "accumulation-all-forward-passes-first",
            {"each_micro_batch_is_done_before_the_next_is_begun"},
        ),
        ("accumulation-multiplies-nan-by-zero", {"a_micro_batch_without_any_target_adds_nothing"}),
        ("accumulation-leaves-out-losses-of-nan", {"a_loss_that_is_nan_is_not_hidden"}),
        ("evaluate-returns-tensors", {"loss_and_accuracy_are_plain_numbers"}),
        ("masked-softmax-infinity-added", {"the_gradient_is_finite_and_0_without_a_key"}),
        (
            "masked-softmax-lowest-number-is-no-score",
            {"hidden_keys_get_nothing_whatever_the_scores"},
        ),
        ("train-zero-grad-missing", {"gradients_of_earlier_steps_do_not_count"}),
        ("train-loss-with-its-graph", {"the_loss_is_a_plain_number"}),
        (
            "train-sets-training-mode",
            {"the_model_runs_once_in_the_mode_that_it_is_in"},
        ),
        (
            "train-frozen-parameters-have-gradients",
            {"parameters_that_do_not_train_are_left_alone"},
        ),
        ("train-gradients-cleared-twice", {"the_gradients_are_left_as_they_were_used"}),
        ("accumulation-one-backward", {"each_micro_batch_is_done_before_the_next_is_begun"}),
        ("accumulation-zero-grad-missing", {"gradients_from_before_the_call_do_not_count"}),
        ("accumulation-stops-at-an-empty-one", {"a_micro_batch_without_any_target_adds_nothing"}),
        ("entropy-nan-for-allowed-zero-weights", {"an_allowed_key_may_have_the_weight_0"}),
        ("masked-softmax-returns-float32", {"weights_have_the_type_of_the_scores"}),
    ],
)
def test_a_fault_costs_its_own_checks_alone(name, costs):
    wrong = mistake(name)
    failed = set(failures(wrong.question, wrong.answer, seed=0))
    assert failed == costs


def test_a_joined_batch_is_refused_where_lengths_differ():
    wrong = mistake("accumulation-joins-the-batches")
    failed = failures(wrong.question, wrong.answer, seed=0)
    assert failed["a_larger_micro_batch_counts_for_more"][0] == "error"
    kind, message = failed["each_micro_batch_is_done_before_the_next_is_begun"]
    assert kind == "failed"
    assert "one backward pass" in message


@pytest.mark.parametrize("used", ["F.cross_entropy", "nn.CrossEntropyLoss()"])
def test_smoothed_loss_must_not_use_what_has_it_built_in_not_even_through_another_answer(used):
    setup = "import torch.nn.functional as F\nfrom torch import nn\n"
    other = f"def lm_loss(logits, targets):\n    return {used}(logits, targets)\n"
    answer = "def smoothed_loss(logits, targets, smoothing):\n    return lm_loss(logits, targets)\n"
    forbid = QUESTIONS["smoothed_loss"].forbid
    assert find_forbidden([setup, other, answer], "smoothed_loss", forbid)
    allowed = other.replace(used, "F.nll_loss")
    assert find_forbidden([setup, allowed, answer], "smoothed_loss", forbid) is None


# --- the code that is given in the debug questions ---


@pytest.mark.parametrize(
    "name", ["mended_loss", "mended_epoch", "mended_evaluate", "mended_masked_softmax"]
)
def test_broken_code_runs_and_is_wrong(name):
    notebook = nbformat.read(ROOT / "exercises" / f"{STEM}.ipynb", as_version=4)
    source = next(
        cell.source
        for cell in notebook.cells
        if cell.metadata.get("nbgrader", {}).get("grade_id") == name
    )
    namespace = {"torch": torch, "F": F, "nn": nn}
    exec(source, namespace)
    found = failures(name, namespace[name], seed=0)
    assert found
    assert {kind for kind, _ in found.values()} == {"failed"}  # no error: a silent fault


def test_untouched_faults_together_are_told_by_the_first_check():
    notebook = nbformat.read(ROOT / "exercises" / f"{STEM}.ipynb", as_version=4)
    source = next(c.source for c in notebook.cells if c.source.startswith("def mended_loss"))
    namespace = {"F": F}
    exec(source, namespace)
    learner = LiveLearner(namespace)
    result = grade_question(QUESTIONS["mended_loss"], learner, 0, MISTAKES)
    passed = [check.name for check in result.checks if check.passed]
    assert passed == ["the_model_can_learn_from_the_loss"]
    assert "repeats one token" in result.feedback
    assert "right" not in result.feedback  # nothing is


def test_mean_of_untouched_clipping_is_not_called_right():
    notebook = nbformat.read(ROOT / "exercises" / f"{STEM}.ipynb", as_version=4)
    source = next(c.source for c in notebook.cells if c.source.startswith("def mended_epoch"))
    namespace = {"torch": torch}
    exec(source, namespace)
    result = grade_question(QUESTIONS["mended_epoch"], LiveLearner(namespace), 0, MISTAKES)
    assert result.mistake == "epoch-still-clips-after-the-step"  # one of the two faults
    assert "is right" not in result.feedback


# --- what the notebook prints ---


def printed(cell_id):
    notebook = nbformat.read(ROOT / "solutions" / f"{STEM}.ipynb", as_version=4)
    cell = next(cell for cell in notebook.cells if cell.id == cell_id)
    return cell.source, "".join(out.text for out in cell.outputs)


def test_printed_losses_of_the_example_are_right():
    source, text = printed("lm-loss-example")
    namespace = {"torch": torch}
    exec(source, namespace)
    logits, targets = namespace["logits"], namespace["targets"]
    each = [
        oracle.lm_loss(logits[b : b + 1, t : t + 1], targets[b : b + 1, t : t + 1])
        for b, t in np.argwhere(targets.numpy() != -100)
    ]
    means = [oracle.lm_loss(logits, targets), oracle.lm_loss(logits, targets, 2)]
    numbers = [float(n) for n in re.findall(r"\d\.\d{3}", text)]
    assert numbers == pytest.approx(each + means, abs=6e-4)


def test_printed_entropy_of_the_example_is_right():
    source, text = printed("normalized-entropy-example")
    namespace = {"math": math}
    exec(source, namespace)
    row = np.array(namespace["row"])
    weights = np.broadcast_to(row, (1, 1, 3, 3))
    expected = oracle.normalized_entropy(weights, np.ones((1, 1, 3, 3), dtype=bool))
    assert float(text.split()[-1]) == pytest.approx(expected[0], abs=6e-4)


def test_rates_in_the_text_are_right():
    notebook = nbformat.read(ROOT / "solutions" / f"{STEM}.ipynb", as_version=4)
    text = next(cell.source for cell in notebook.cells if cell.id == "trapezoid-rate-text")
    line = next(line for line in text.splitlines() if line.startswith("`trapezoid_rate(0"))
    numbers = [float(n) for n in re.findall(r"\d\.\d\d\b", line.partition("rates ")[2])]
    assert numbers == pytest.approx([oracle.trapezoid_rate(s, 9, 1, 4, 2) for s in range(9)])
