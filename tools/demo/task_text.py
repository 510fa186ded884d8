"""Work on strings: copy, order, case, letters. Copying carries every piece of the tokenizer."""
import openwords as ow
from prose import sentence
from sample import ask, close, user
from words import ALL, NAMES

COPY = ["Repeat exactly: {s}", "Repeat after me: {s}", "Copy this text: {s}", "Say: {s}", "Write exactly this:\n{s}", "Echo: {s}",
        "Repeat: {s}", "Repeat these words: {s}",
        "Copy: {s}", "Say {s}", "Repeat \"{s}\"", "Write this down: {s}", "Repeat this exactly: {s}"]


def spaced(r):
    """Words with runs of spaces or newlines between them."""
    out = ow.ascii_word(r)
    for _ in range(r.randint(1, 5)):
        x = r.random()
        out += (" " if x < .6 else "\n" if x < .9 else "\t") * r.randint(1, 31 if r.random() < .7 else 4) + ow.ascii_word(r)
    return out


def copy_text(r):
    """(kind, text) to be repeated."""
    x = r.random()
    if x < .14:
        return "copy", sentence(r, .3)
    if x < .42:
        return "copy", " ".join(ow.token(r) for _ in range(r.randint(1, 12)))
    if x < .60:
        return "copy", " ".join(ow.ascii_word(r) for _ in range(r.randint(1, 8)))
    if x < .76:
        return "unicode", " ".join(ow.fancy(r) if r.random() < .75 else r.choice(ALL) for _ in range(r.randint(1, 7)))
    if x < .95:
        return "pieces", ow.piece_text(r)
    if x < .98:
        return "pieces", spaced(r)
    return "unicode", "".join(ow.codepoint(r) for _ in range(r.randint(1, 8))) + (chr(r.randint(1, 8)) + "|" if r.random() < .3 else "")


KINDS = ["copy"] * 10 + ["reverse", "reverse", "upper", "upper", "lower", "letters", "occur", "sortn", "sortn", "sortn", "sortw", "spell",
                         "spell", "first", "last", "rev_letters", "max"]


def t_string(r):
    kind = r.choice(KINDS)
    thought = None
    if kind == "copy":
        kind, s = copy_text(r)
        q, a = ask(r, COPY, s=s), s
    elif kind == "reverse":
        words = [ow.word(r, ALL + NAMES, .5, .03) for _ in range(r.randint(2, 8))]
        words = [x for s in words for x in s.split()]
        q = ask(r, ["Reverse the order of these words: {s}", "Reverse the words: {s}", "Write these words backwards, last word first: {s}"],
                s=" ".join(words))
        a, thought = " ".join(words[::-1]), "The last word is %s, the first is %s." % (words[-1], words[0])
    elif kind == "upper":
        s = " ".join(ow.word(r, ALL, .5, 0).lower() for _ in range(r.randint(1, 5)))
        q, a = ask(r, ["Write in upper case: {s}", "Uppercase: {s}", "Make this upper case: {s}", "Shout: {s}"], s=s), s.upper()
    elif kind == "lower":
        s = " ".join(ow.word(r, ALL, .5, 0).lower() for _ in range(r.randint(1, 5)))
        q, a = ask(r, ["Write in lower case: {s}", "Lowercase: {s}", "Make this lower case: {s}"], s=s.upper()), s
    elif kind == "letters":
        s = r.choice(ALL) if r.random() < .5 else ow.short_word(r)
        q = ask(r, ["How many letters are in the word {s}?", "How long is the word {s}?", "Count the letters of {s}."], s=s)
        a, thought = "The word %s has %d letters." % (s, len(s)), "-".join(s) + ": %d." % len(s)
    elif kind == "occur":
        s = r.choice(ALL) if r.random() < .5 else ow.short_word(r)
        c = r.choice(s) if r.random() < .8 else r.choice("aeiourstn")
        n = s.count(c)
        q = ask(r, ["How many times does the letter {c} occur in {s}?", "How often does the letter {c} occur in {s}?"], c=c, s=s)
        a, thought = "The letter %s occurs %d time%s in %s." % (c, n, "" if n == 1 else "s", s), "-".join(s) + ": %s occurs %d times." % (c,
                n)
    elif kind == "sortn":
        top = r.choice([10, 100, 100, 1000])
        v = [r.randrange(top) for _ in range(r.randint(3, 8))]
        down = r.random() < .25
        q = ask(r, ["Sort these numbers{d}: {v}", "Put these numbers in order{d}: {v}"], d=" from large to small" if down else "",
                v=r.choice([" ", " ", ", "]).join(map(str, v)))
        a, thought = " ".join(map(str, sorted(v, reverse=down))), "The smallest is %d and the largest is %d." % (min(v), max(v))
    elif kind == "sortw":
        words = r.sample(ALL, r.randint(2, 5))
        words = [ow.short_word(r) if r.random() < .5 else s for s in words]
        q, a = ask(r, ["Sort these words: {s}", "Put these words in alphabetical order: {s}"], s=" ".join(words)), " ".join(sorted(words))
    elif kind == "spell":
        s = r.choice(ALL) if r.random() < .4 else ow.word(r, NAMES, .85, .03)
        s = s.split()[0]
        q, a = ask(r, ["Spell {s}.", "Spell the word {s}."], s=s), "-".join(s)
    elif kind == "rev_letters":
        s = r.choice(ALL) if r.random() < .5 else ow.short_word(r)
        q, a, thought = ask(r, ["Reverse the letters of {s}.", "Write {s} backwards."], s=s), s[::-1], "-".join(s)
    elif kind in ("first", "last"):
        words = [x for _ in range(r.randint(3, 9)) for x in ow.word(r, ALL).split()]
        q, a = ask(r, ["What is the %s word of: {s}" % kind, "Tell me the %s word: {s}" % kind],
                   s=" ".join(words)), words[0 if kind == "first" else -1]
    else:
        v = [r.randrange(r.choice([100, 1000, 10000])) for _ in range(r.randint(3, 7))]
        big = r.random() < .5
        q, a = ask(r, ["Which number is the %s: {v}?" % ("largest" if big else "smallest")],
                   v=", ".join(map(str, v))), str(max(v) if big else min(v))
    return close(r, "string_" + kind, [user(q)], a, thought)
