"""Open slots: words, names and values that stand in no list.

A model trained on closed lists learns the lists; copying has to be taught with material that cannot be recalled.
About half of all slots of every task are filled from here: invented words, real words with a letter changed, random
letters, two words, and (rarely) other scripts, emoji and random pieces of the tokenizer.
"""
import json
import os
import unicodedata

from words import (ALL, ANIMALS, CITIES, COLORS, MORE, NAMES, NOUNS, PLACES, SURNAMES, THINGS, TOPICS, VERBS, w)

OPEN = .5           # share of slots that are open
FANCY = .08         # share of open words that leave ASCII

SYL = [c + v for c in "bdfgklmnprstvz" for v in "aeiou"] + w("an el or ir us en ar on")
ONSET = w("b bl br c ch cl cr d dr f fl fr g gl gr h j k kn l m n p ph pl pr qu r s sc sh sk sl sm sn sp st str sw t th tr "
          "tw v w wh y z") + ["", ""]
VOWEL = w("a a a e e e i i o o u ai au ea ee ie oa oi oo ou y")
CODA = w("b ck ct d ff g l ll m mp n nd ng nk nt p r rd rk rm rn rt s sh sk ss st t tch th x") + [""] * 12
ENDING = w("able age al ance ant ard ate ed el ella en ence er est ette ful ia ible ic ina ing ion ish ism ist ity ive le less "
           "ling ly ment ness o or ous ship sion ster tion ton ty ure us ville ward y")
LETTERS = "abcdefghijklmnopqrstuvwxyz"
PIECE_FILE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tokenizer.json")

ACCENT = {b: [c for c in map(chr, range(0xC0, 0x180)) if unicodedata.normalize("NFD", c)[0] == b] for b in LETTERS}
LATIN = "".join(c for c in map(chr, range(0xC0, 0x180)) if c.isalpha())
GREEK, CYRILLIC = "αβγδεζηθικλμνξοπρστυφχψως", "абвгдежзийклмнопрстуфхцчшщъыьэюяё"
SCRIPTS = [(0x3041, 0x3096), (0x30A1, 0x30FA), (0xAC00, 0xD7A3), (0x5D0, 0x5EA), (0x621, 0x63A), (0x904, 0x939), (0xE01, 0xE30),
           (0x10D0, 0x10F0), (0x561, 0x586)]
EMOJI = [(0x1F300, 0x1F5FF), (0x1F600, 0x1F64F), (0x1F680, 0x1F6C5), (0x1F900, 0x1F9FF), (0x1F32D, 0x1F37F), (0x2600, 0x26FF),
         (0x2700, 0x27BF)]
SIGNS = "".join(c for c in map(chr, list(range(33, 127)) + list(range(0xA1, 0xC0))) if not c.isalnum()) + "–—‘’“”…€→←↑↓≤≥≠×÷√∞°•"


def _pieces():
    with open(PIECE_FILE, encoding="utf-8") as f:
        vocab = json.load(f)["model"]["vocab"]
    return [s for s, i in vocab.items() if 168 <= i < 238 or 494 <= i < 4089]


PIECES = _pieces()
LETTER_PIECES = [s.lstrip("\u2581") for s in PIECES if s.lstrip("\u2581").isalpha() and s.lstrip("\u2581").isascii()]
SIGN_PIECES = [s for s in PIECES if s.strip("\u2581") and not any(c.isalnum() for c in s)]


# ---- ASCII words ----------------------------------------------------------------------------------------------

def pseudo(r, lo=2, hi=3):
    """Consonant-vowel syllables: easy to say, in few pieces."""
    return "".join(r.choice(SYL) for _ in range(r.randint(lo, hi)))


def syllables(r):
    """English-looking syllables with an optional ending."""
    s = "".join(r.choice(ONSET) + r.choice(VOWEL) + r.choice(CODA) for _ in range(r.choice([1, 1, 2, 2, 2, 3])))
    return s + r.choice(ENDING) if r.random() < .5 else s


def blend(r):
    """Front of one known word, back of another."""
    a, b = r.choice(ALL), r.choice(MORE if r.random() < .5 else ALL)
    return a[:r.randint(1, len(a))] + b[r.randint(0, max(0, len(b) - 2)):]


def mutant(r):
    """A known word with one letter changed, put in or taken out: the list must not win over the prompt."""
    s = r.choice(ALL if r.random() < .6 else NAMES + CITIES).lower()
    k, c = r.randrange(len(s)), r.choice(LETTERS)
    return r.choice([s[:k] + c + s[k + 1:], s[:k] + c + s[k:], s[:k] + s[k + 1:] if len(s) > 3 else s + c])


def random_letters(r, lo=3, hi=9):
    return "".join(r.choice(LETTERS) for _ in range(r.randint(lo, hi)))


def glued(r):
    """Two or three letter pieces of the tokenizer, glued."""
    return "".join(r.choice(LETTER_PIECES) for _ in range(r.randint(1, 3)))


def ascii_word(r):
    """One invented lower-case word (glued pieces may hold capitals)."""
    x = r.random()
    if x < .22:
        return r.choice(MORE)
    if x < .40:
        return blend(r)
    if x < .60:
        return syllables(r)
    if x < .70:
        return pseudo(r)
    if x < .80:
        return mutant(r)
    if x < .90:
        return random_letters(r)
    return glued(r)


def short_word(r):
    """An invented word of at most 8 lower-case letters, for tasks on single letters."""
    while True:
        s = r.choice((blend, syllables, pseudo, mutant, random_letters))(r).lower()
        if 2 < len(s) < 9 and s.isascii():
            return s


# ---- other scripts --------------------------------------------------------------------------------------------

def accented(r):
    """A Latin word with accents: mostly on its own letters, sometimes any letter up to U+017F."""
    s = list(ascii_word(r).lower())
    for _ in range(r.choice([1, 1, 2, 3])):
        k = r.randrange(len(s))
        s[k] = r.choice(ACCENT.get(s[k]) or LATIN) if r.random() < .75 else r.choice(LATIN)
    s = "".join(s)
    return s.capitalize() if r.random() < .3 and len(s.capitalize()) == len(s) else s


def codepoint(r):
    """Any character that UTF-8 can write, every lead byte alike; no white space, no controls."""
    while True:
        lead = r.randint(0xC2, 0xF4)
        tail = [r.randint(0x80, 0xBF) for _ in range(1 if lead < 0xE0 else 2 if lead < 0xF0 else 3)]
        c = bytes([lead] + tail).decode("utf-8", "ignore")
        if len(c) == 1 and not c.isspace() and not 0x80 <= ord(c) < 0xA0:
            return c


def emoji(r):
    c = chr(r.randint(*r.choice(EMOJI)))
    x = r.random()
    if x < .06:
        return c + "\ufe0f"
    if x < .10:
        return c + "\u200d" + chr(r.randint(*r.choice(EMOJI[:4])))
    return c


def foreign(r):
    """A word outside Latin letters."""
    x = r.random()
    n = r.randint(1, 6)
    if x < .2:
        s = "".join(r.choice(GREEK) for _ in range(n + 2))
    elif x < .4:
        s = "".join(r.choice(CYRILLIC) for _ in range(n + 2))
    elif x < .65:
        return "".join(chr(r.randint(0x4E00, 0x9FA5)) for _ in range(n))
    elif x < .95:
        lo, hi = r.choice(SCRIPTS)
        return "".join(chr(r.randint(lo, hi)) for _ in range(n + 1))
    else:
        return "".join(codepoint(r) for _ in range(r.randint(1, 3)))
    return s.capitalize() if r.random() < .4 else s


def fancy(r):
    """A word that is not ASCII: accents, another script, emoji alone or behind a word."""
    x = r.random()
    if x < .45:
        return accented(r)
    if x < .75:
        return foreign(r)
    e = "".join(emoji(r) for _ in range(r.choice([1, 1, 1, 2, 3])))
    return e if r.random() < .5 else r.choice(ALL) + r.choice(["", " "]) + e


def piece_text(r, n=None):
    """n random pieces of the tokenizer as they come (letters, signs, digits, accents), in one line of text."""
    out = []
    for _ in range(n or r.randint(2, 16)):
        p = r.choice(PIECES).replace("\u2581", " ") if r.random() < .9 else r.choice(SIGN_PIECES).replace("\u2581", " ")
        out.append(p if r.random() < .4 else r.choice(["-", "/", "_", ".", ",", "=", "(", ")", ":", " ", "0", "7"]) + p)
    return "".join(out).strip() or r.choice(ALL)


# ---- slots ----------------------------------------------------------------------------------------------------

def open_word(r, p_fancy=FANCY):
    return fancy(r) if r.random() < p_fancy else ascii_word(r)


def word(r, listed=ALL, p=OPEN, p_fancy=FANCY):
    return open_word(r, p_fancy) if r.random() < p else r.choice(listed)


def proper(r, listed):
    """A name: from the list, or invented, with a capital most of the time; one in seven has two words."""
    if r.random() > OPEN:
        return r.choice(listed)
    s = open_word(r)
    x = r.random()
    if x < .75:
        s = s[0].upper() + s[1:]
    elif x < .80 and s.isascii():
        s = s.upper()
    if r.random() < .15:
        t = r.choice(listed) if r.random() < .5 else ascii_word(r)
        s = (s + " " + (t[0].upper() + t[1:] if x < .75 else t))
    return s


def name(r):
    return proper(r, NAMES)


def city(r):
    return proper(r, CITIES)


def full_name(r):
    return name(r) + " " + proper(r, SURNAMES)


def phrase(r, lo=1, hi=2, listed=ALL):
    return " ".join(word(r, listed) for _ in range(r.randint(lo, hi)))


def thing(r):
    return word(r, THINGS) if r.random() < .85 else phrase(r, 2, 2, THINGS)


def place(r):
    return word(r, PLACES, .4)


def animal(r):
    return word(r, ANIMALS, .4, .03)


def topic(r):
    x = r.random()
    if x < .25:
        return r.choice(TOPICS)
    if x < .40:
        return r.choice(NOUNS) + " " + r.choice(NOUNS)
    if x < .55:
        return city(r)
    return phrase(r, 1, 3, NOUNS)


def color(r):
    return word(r, COLORS, .4)


def verb(r):
    return word(r, VERBS, .3, 0)


def digits(r, lo=1, hi=6):
    """A digit string; zeros in front are possible."""
    return "".join(r.choice("0123456789") for _ in range(r.randint(lo, hi)))


def integer(r):
    """An integer of up to six places, short ones more often."""
    return r.choice([r.randint(0, 20), r.randint(1, 99), r.randint(100, 999), r.randint(1000, 9999), r.randint(10000, 999999)])


def identifier(r):
    """Letters, digits and joints: r4-Kx_9."""
    return "".join(r.choice(LETTERS + "0123456789-_ABCDEFGHIJKLMNOPQRSTUVWXYZ") for _ in range(r.randint(2, 10)))


def token(r):
    """Anything that may stand in a list to be copied."""
    x = r.random()
    if x < .25:
        return r.choice(ALL)
    if x < .33:
        return name(r)
    if x < .43:
        return digits(r)
    if x < .85:
        return open_word(r)
    if x < .93:
        return identifier(r)
    return r.choice(SIGNS) if r.random() < .3 else ascii_word(r) + r.choice(SIGNS)
