"""Facts hidden in filler text, and facts and results of earlier turns."""
import openwords as ow
from prose import sentence
from sample import ask, bot, close, restyle, user
from task_chat import small_talk
from words import ALL, CITIES, COLORS, NAMES, PLACES, THINGS, spell


def secret(r, kind):
    if kind in ("code", "number"):
        return ow.digits(r, 3, 6) if r.random() < .9 else ow.identifier(r)
    return ow.open_word(r, .03) if r.random() < .7 else r.choice(ALL)


def capital(s):
    return s[0].upper() + s[1:]


def t_needle(r, sentences=None, n=None, depth=None):
    """n facts in filler of the given number of sentences (about 11 tokens each), then up to four questions."""
    sentences = sentences or int(16 * 2 ** (r.random() ** 1.7 * 4.5))
    n = n or r.choice([1, 2, 3, 5, 8])
    kind = r.choice(["code", "code", "code", "number", "password", "secret word"])
    if n == 1 and r.random() < .3:
        subjects = ["the secret " + kind.replace("secret ", "")]
    else:
        names = set()
        while len(names) < n:
            names.add(ow.name(r) if r.random() < .75 else "the " + r.choice(THINGS + PLACES))
        subjects = ["the %s for %s" % (kind, x) for x in sorted(names)]
    r.shuffle(subjects)
    values = [secret(r, kind) for _ in subjects]
    body = [sentence(r) for _ in range(sentences)]
    at = [int(depth * sentences)] if depth is not None else sorted(r.randrange(sentences) for _ in subjects)
    for p, s, v in reversed(list(zip(at, subjects, values))):
        body.insert(p, r.choice([capital(s), capital(s), "Remember: " + s, "Note that " + s]) + " is %s." % v)
    if r.random() < .3:
        for i in range(8, len(body), 9):
            body[i] = "\n\n" + body[i]
    text = " ".join(body).replace(" \n", "\n")
    order = list(range(n))
    r.shuffle(order)
    order = order[:4]
    questions = ["What is {s}?", "What is {s}?", "Tell me {s}.", "Which is {s}?"]
    q = ask(r, questions, s=subjects[order[0]])
    messages = [user(q + "\n\n" + text if r.random() < .15 else r.choice(["", "", "Read this text: ", "Text:\n"]) + text + r.choice(["\n\n",
            " ", "\n"]) + q)]
    answer = lambda i: capital(subjects[i]) + " is %s." % values[i]
    for last, i in zip(order, order[1:]):
        messages += [bot(answer(last)), user(ask(r, questions + ["And {s}?"], s=subjects[i]))]
    i = order[-1]
    return close(r, "needle", messages, answer(i), "I look for %s in the text: %s." % (subjects[i], values[i]), p_think=.12)


FACTS = [   # value, statement, acknowledgement, question, answer
    (ow.name, ["My name is {v}.", "I am {v}.", "Call me {v}."], "Nice to meet you, {v}.",
     ["What is my name?", "Do you remember my name?", "Who am I?"], "Your name is {v}."),
    (ow.color, ["My favourite color is {v}.", "I like the color {v} best."], "{V} is a nice color.",
     ["What is my favourite color?", "Which color do I like?"], "Your favourite color is {v}."),
    (ow.city, ["I live in {v}.", "My home is {v}.", "I am from {v}."], "{V} is a nice city.",
     ["Where do I live?", "In which city do I live?"], "You live in {v}."),
    (ow.name, ["I have a pet named {v}.", "My pet is called {v}."], "{V} is a good name for a pet.",
     ["What is the name of my pet?", "What is my pet called?"], "Your pet is called {v}."),
    (lambda r: str(r.randint(5, 99)), ["I am {v} years old.", "My age is {v}."], "{v} is a good age.", ["How old am I?", "What is my age?"],
     "You are {v} years old."),
    (lambda r: str(ow.integer(r)), ["My lucky number is {v}.", "Remember the number {v}."], "I will remember {v}.",
     ["What is my lucky number?", "Which number did I tell you?"], "Your number is {v}."),
    (ow.name, ["My friend is called {v}.", "My best friend is {v}."], "{V} is a good friend.",
     ["Who is my friend?", "What is my friend called?"], "Your friend is {v}."),
    (lambda r: ow.word(r, ALL), ["The password is {v}.", "Remember the word {v}."], "I will remember {v}.",
     ["What is the password?", "Which word did I tell you?"], "The word is {v}."),
]


def told_facts(r):
    kinds = r.sample(FACTS, r.randint(1, 4))
    messages, values = [], []
    for value, says, ack, _, _ in kinds:
        v = value(r)
        values.append(v)
        messages += [user(ask(r, says, v=v)), bot(ack.format(v=v, V=capital(v)))]
        if r.random() < .35:
            q, a = small_talk(r)
            messages += [user(q), bot(a)]
    k = r.randrange(len(kinds))
    return close(r, "multi", messages + [user(ask(r, kinds[k][3]))], kinds[k][4].format(v=values[k]),
                 "The user told me: " + values[k] + ".")


def running_sum(r):
    a, b = r.randint(1, 99), r.randint(1, 99)
    v = a + b
    messages = [user(ask(r, ["What is {a} + {b}?", "{a} + {b}"], a=a, b=b)), bot("%d + %d = %d" % (a, b, v))]
    for _ in range(r.randint(1, 3)):
        d = r.randint(1, 50)
        if r.random() < .6:
            q, new, sign = ask(r, ["Add {d} to that.", "Plus {d}?", "And {d} more?"], d=d), v + d, "+"
        else:
            q, new, sign = ask(r, ["Subtract {d} from that.", "Minus {d}?", "Take away {d}."], d=d), v - d, "-"
        messages += [user(q), bot("%d %s %d = %d" % (v, sign, d, new))]
        last, v = v, new
    answer = messages.pop()["content"]
    return close(r, "multi", messages, answer, "The last result was %d." % last)


def text_again(r):
    words = [x for _ in range(r.randint(1, 4)) for x in ow.word(r, ALL).split()]
    s = " ".join(words)
    options = [(["Again, please.", "Once more."], s), (["What did I ask you to repeat?"], s),
               (["Now reverse the words."], " ".join(words[::-1])),
               (["How many words is that?"], "That is %s word%s." % (spell(len(words)), "" if len(words) == 1 else "s"))]
    if s.isascii():
        options.append((["Now in upper case."], s.upper()))
    questions, a = r.choice(options)
    return close(r, "multi", [user(ask(r, ["Repeat exactly: {s}", "Say: {s}"], s=s)), bot(s), user(ask(r, questions))], a,
                 "The text was: " + s)


def t_multi(r):
    x = r.random()
    return told_facts(r) if x < .55 else running_sum(r) if x < .8 else text_again(r)
