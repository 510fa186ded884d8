"""Stories, plain text, and small Python functions."""
import openwords as ow
from prose import an, sentence, story
from sample import Sample, close, restyle, user
from words import ADJ, NAMES, THINGS, VERBS, w

REQUEST = ["Tell me a story", "Write a short story", "Tell me a little story", "Write a story", "A story, please", "I want to hear a story"]


def t_story(r):
    x = r.random()
    if x < .12:
        return Sample("story", None, story(r) if r.random() < .6 else " ".join(sentence(r) for _ in range(r.randint(5, 25))), "<eos>", [])
    hero = name = place = thing = None
    q, length = r.choice(REQUEST), None
    if x < .25:
        length = 3
        q = q.replace("short", "long").replace("little", "long").replace("a story", "a long story")
    if r.random() < .7:
        hero = ow.animal(r)
        q += " about a {hero}"
        if r.random() < .5:
            name = ow.name(r)
            q += " named {name}"
    if r.random() < .3:
        thing = ow.thing(r)
        q += (" with a " if hero else " about a ") + "{thing}"
    if r.random() < .3:
        place = ow.place(r)
        q += " in the {place}"
    s = story(r, hero, name, place, thing, length)
    if r.random() < .1:
        k = s.find(". ", len(s) // 4) + 1
        return close(r, "story", [user("Continue this story: " + s[:k])], s[k:].strip(), None, accept=[])
    thought = "A story" + (" about " + hero if hero else "") + (" named " + name if name else "") + "."
    q = an(restyle(r, q + ".").format(hero=hero, name=name, thing=thing, place=place))
    return close(r, "story", [user(q)], s, thought, p_think=.1, accept=[])


CODE = [
    ("adds {n} to a number", "def {f}({x}):\n    return {x} + {n}"), ("subtracts {n} from a number", "def {f}({x}):\n    return {x} - {n}"),
    ("multiplies a number by {n}", "def {f}({x}):\n    return {x} * {n}"), ("adds two numbers", "def {f}(a, b):\n    return a + b"),
    ("returns the larger of two numbers", "def {f}(a, b):\n    if a > b:\n        return a\n    return b"),
    ("returns the smaller of two numbers", "def {f}(a, b):\n    if a < b:\n        return a\n    return b"),
    ("says if a number is even", "def {f}({x}):\n    return {x} % 2 == 0"),
    ("says if a number is divisible by {n}", "def {f}({x}):\n    return {x} % {n} == 0"),
    ("sums a list", "def {f}({l}):\n    total = 0\n    for {x} in {l}:\n        total += {x}\n    return total"),
    ("counts the items larger than {n}",
     "def {f}({l}):\n    count = 0\n    for {x} in {l}:\n        if {x} > {n}:\n            count += 1\n    return count"),
    ("reverses a string", "def {f}({s}):\n    return {s}[::-1]"), ("makes a string upper case", "def {f}({s}):\n    return {s}.upper()"),
    ("counts the words of a text", "def {f}({s}):\n    return len({s}.split())"),
    ("prints the numbers from 1 to {n}", "def {f}():\n    for {x} in range(1, {n} + 1):\n        print({x})"),
    ("computes the factorial", "def {f}({x}):\n    if {x} < 2:\n        return 1\n    return {x} * {f}({x} - 1)"),
    ("greets a person", "def {f}(name):\n    return \"Hello, \" + name + \"!\""),
    ("returns the first {n} items", "def {f}({l}):\n    return {l}[:{n}]"),
    ("returns the last item", "def {f}({l}):\n    return {l}[-1]"), ("squares a number", "def {f}({x}):\n    return {x} * {x}"),
    ("doubles every item", "def {f}({l}):\n    return [2 * {x} for {x} in {l}]"),
    ("keeps the even numbers", "def {f}({l}):\n    return [{x} for {x} in {l} if {x} % 2 == 0]"),
    ("computes the mean of a list", "def {f}({l}):\n    return sum({l}) / len({l})"),
]


def t_code(r):
    does, body = r.choice(CODE)
    named = r.random() < .8
    f = "solve"
    if named:
        f = r.choice([r.choice(VERBS) + "_" + r.choice(THINGS), r.choice(w("f g h func solve work run_it my_func helper")), ow.pseudo(r),
                      ow.short_word(r), ow.short_word(r) + "_" + ow.short_word(r), r.choice(VERBS)])
    v = dict(f=f, n=r.randint(2, 99), x="x", l="items", s="text")
    argument = ""
    if r.random() < .3:
        for k in "lsx":
            if "({" + k + "})" in body:
                v[k] = r.choice({"l": w("values numbers data"), "s": w("s line word"),
                                 "x": w("n k v y z")}[k]) if r.random() < .6 else ow.short_word(r)
                argument = " with the argument " + v[k]
                break
        if v["x"] == v["l"]:
            v["x"] = "x"
    q = r.choice(["Write a Python function%s that %s%s.", "Python function%s that %s%s, please.",
                  "Give me a Python function%s that %s%s."]) % (
        " named " + f if named else "", does.format(**v), argument)
    return close(r, "code", [user(restyle(r, q) if f.islower() else q)], "```python\n" + body.format(**v) + "\n```",
                 "The function " + does.format(**v) + ".", p_think=.1)
