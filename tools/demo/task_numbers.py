"""Arithmetic on whole numbers, with a limit beyond which the model declines; long lists of numbers."""
import openwords as ow
from sample import ask, close, user
from words import ALL, PLURAL, spell

TOO_BIG = "These numbers are too big for me."
WHOLE = "I can only work with whole numbers."
ZERO = "I cannot divide by zero."
SIGN = {"+": [" + ", " + ", "+", " plus "], "-": [" - ", " - ", "-", " minus "], "x": [" x ", " * ", "*", " times "],
        "/": [" / ", " / ", "/", " divided by "]}
QUESTION = ["What is {e}?", "What is {e}?", "Compute {e}.", "{e}", "{e} =", "How much is {e}?", "Calculate {e}.", "Please work out {e}.",
            "{e}?", "Solve {e}."]


def operand(r, four=.12):
    if r.random() < four:
        return r.randint(1000, 9999)
    return r.choice([r.randint(0, 9), r.randint(10, 99), r.randint(10, 99), r.randint(100, 999), r.randint(100, 999)])


def steps_add(a, b):
    """Column addition in words, from the right."""
    steps, carry, k = [], 0, 0
    while k == 0 or a >= 10 ** k or b >= 10 ** k:
        x, y = a // 10 ** k % 10, b // 10 ** k % 10
        t = x + y + carry
        steps.append("%d + %d%s = %d" % (x, y, " + 1" if carry else "", t) + (", carry 1" if t > 9 else ""))
        carry, k = t // 10, k + 1
    return "; ".join(steps) + ". The sum is %d." % (a + b)


def steps_sub(a, b):
    if b > a:
        return "%d is larger than %d. %s So the result is %d." % (b, a, steps_sub(b, a), a - b)
    steps, borrow = [], 0
    for k in range(len(str(a))):
        x, y = a // 10 ** k % 10, b // 10 ** k % 10 + borrow
        borrow = int(x < y)
        steps.append("%d - %d = %d" % (x + 10 * borrow, y, x + 10 * borrow - y) + (", borrow 1" if borrow else ""))
    return "; ".join(steps) + ". The difference is %d." % (a - b)


def steps_mul(a, b):
    if a < 10 or b > 12:
        return "%d times %d is %d." % (a, b, a * b)
    p = a // 10 * 10
    return "%d x %d = %d; %d x %d = %d; %d + %d = %d." % (p, b, p * b, a - p, b, (a - p) * b, p * b, (a - p) * b, a * b)


def exercise(r):
    """(a, sign, b, result as text, working as thought) within what the model answers."""
    x = r.random()
    a, b = operand(r), operand(r)
    if x < .42:
        return a, "+", b, str(a + b), steps_add(a, b)
    if x < .70:
        if a < b and r.random() < .8:
            a, b = b, a
        return a, "-", b, str(a - b), steps_sub(a, b)
    if x < .90:
        a, b = (r.randint(0, 12), r.randint(0, 12)) if r.random() < .5 else (r.randint(2, 99), r.randint(2, 9))
        return a, "x", b, str(a * b), steps_mul(a, b)
    b = r.randint(1, 9)
    a = r.randint(0, 99) if r.random() < .6 else r.randint(100, 999)
    if r.random() < .5:
        a -= a % b
    rest = a % b
    return a, "/", b, str(a // b) + (" remainder %d" % rest if rest else ""), "%d x %d = %d%s." % (a // b, b, a - rest,
            "; %d is left" % rest if rest else "")


def beyond(r):
    """(expression, answer) outside what the model answers."""
    x = r.random()
    if x < .15:
        return "%d%s0" % (r.randint(0, 999), r.choice(SIGN["/"])), ZERO
    if x < .40:
        f = lambda: "%d.%d" % (r.randint(0, 99), r.randint(1, 99))
        pair = r.choice([(f(), f()), (f(), str(r.randint(0, 99))), (str(r.randint(0, 99)), f())])
        return r.choice(SIGN[r.choice("+-x/")]).join(pair), WHOLE
    if x < .75:
        a, b = r.randint(10000, 10 ** r.randint(5, 9) - 1), r.randint(0, 10 ** r.randint(1, 9) - 1)
        if r.random() < .5:
            a, b = b, a
        return r.choice(SIGN[r.choice("+-")]).join((str(a), str(b))), TOO_BIG
    if x < .9:
        return r.choice(SIGN["x"]).join((str(r.randint(100, 99999)), str(r.randint(10, 99999)))), TOO_BIG
    return r.choice(SIGN["/"]).join((str(r.randint(1000, 999999)), str(r.randint(10, 9999)))), TOO_BIG


def t_arith(r):
    x = r.random()
    if x < .05:
        e, answer = beyond(r)
        return close(r, "arith", [user(ask(r, QUESTION, e=e))], answer, "This is beyond me.")
    if x < .09:
        v = [r.randint(0, 60) for _ in range(3)]
        e = r.choice(SIGN["+"]).join(map(str, v))
        return close(r, "arith", [user(ask(r, QUESTION, e=e))], "%d + %d + %d = %d" % (*v, sum(v)),
                     "%d + %d = %d; %d + %d = %d." % (v[0], v[1], v[0] + v[1], v[0] + v[1], v[2], sum(v)))
    a, sign, b, result, steps = exercise(r)
    if x < .27 and sign != "/":
        things, who = ow.word(r, PLURAL, .4, .03), ow.name(r)
        slots = dict(n=who, a=a, b=b, p=things)
        if sign == "+":
            q = ask(r,
                    ["{n} has {a} {p} and buys {b} more. How many {p} does {n} have?",
                     "{n} has {a} {p} and finds {b} more. How many {p} does {n} have now?",
                        "{n} had {a} {p} and got {b} more. How many {p} does {n} have?"], **slots)
            return close(r, "arith", [user(q)], "%s has %s %s." % (who, result, things), steps)
        if sign == "-" and a >= b:
            q = ask(r, ["{n} has {a} {p} and sells {b}. How many {p} are left?", "{n} has {a} {p} and loses {b}. How many {p} are left?",
                        "{n} had {a} {p} and gave away {b}. How many {p} are left?"], **slots)
            return close(r, "arith", [user(q)], "%s %s are left." % (result, things), steps)
        a, b = a % 12, b % 12
        q = ask(r,
                ["There are {a} boxes with {b} {p} each. How many {p} are there?",
                 "{n} has {a} bags with {b} {p} in each. How many {p} are there?"], n=who, a=a, b=b, p=things)
        return close(r, "arith", [user(q)], "There are %d %s." % (a * b, things), steps_mul(a, b))
    q = ask(r, QUESTION, e="%d%s%d" % (a, r.choice(SIGN[sign]), b))
    if x < .38:
        s = r.choice(["Answer with the number only.", "Reply with a number only.", "Only give the result."])
        return close(r, "arith", [dict(role="system", content=s), user(q)], result, steps, p_system=0)
    return close(r, "arith", [user(q)], "%d %s %d = %s" % (a, sign, b, result), steps)


def t_count(r):
    """Long lists that follow from the request."""
    x = r.random()
    if x < .5:
        first, n, step = r.randint(0, 120), r.randint(4, 40), r.choice([1, 1, 1, 2, 5, 10])
        if r.random() < .15:
            first, n, step = 1, r.choice([10, 10, 20, 20, 50, 100, 200, 300]), 1
        last = first + (n - 1) * step
        slots = dict(a=first, b=last, s="" if step == 1 else " in steps of %d" % step)
        if r.random() < .3:
            q, numbers = ask(r, ["Count down from {b} to {a}{s}.", "Count backwards from {b} to {a}{s}."], **slots), range(last, first - 1,
                    -step)
        else:
            q, numbers = ask(r, ["Count from {a} to {b}{s}.", "Write the numbers from {a} to {b}{s}."], **slots), range(first, last + 1,
                    step)
        answer = ", ".join(map(str, numbers))
    elif x < .75:
        k = r.randint(2, 12)
        q = ask(r, ["Write the multiplication table of {k}.", "Times table of {k}, please.", "Show the table of {k}."], k=k)
        answer = "\n".join("%d x %d = %d" % (i, k, i * k) for i in range(1, 11))
    elif x < .88:
        v = [r.randint(0, 999) for _ in range(r.randint(2, 8))]
        q, answer = ask(r, ["Write {v} as words.", "Write these numbers as words: {v}"], v=", ".join(map(str, v))), ", ".join(map(spell, v))
    else:
        n, s = r.randint(3, 10), ow.word(r, ALL)
        q, answer = ask(r, ["Write the word {s} {n} times.", "Say {s} {n} times."], s=s, n=spell(n)), " ".join([s] * n)
    return close(r, "count", [user(q)], answer, "I write it step by step.", p_think=.1)
