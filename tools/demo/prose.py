"""A small story grammar, and filler prose."""
import re

import openwords as ow
from words import (ADJ, ANIMALS, CITIES, COLORS, DAYS, MONTHS, NAMES, NOUNS, ONES, PLACES, PLURAL, THINGS, VERB3, VERBS, w)

_AN = re.compile(r"\b([Aa]) (?=[aeiou])")


def an(s):
    """a -> an before a vowel."""
    return _AN.sub(r"\1n ", s)


WANT = ["find a {thing}", "cross the {place}", "visit the {place2}", "build a {thing}", "learn to {verb}",
        "give a {thing} to {friend}", "see the {place2} at night", "help {friend}"]
START = ["Once upon a time there was a {adj} {hero} named {name}.", "In a {adj} {place} there lived a {hero} called {name}.",
         "Long ago, near a {adj} {place}, there lived a {hero} named {name}.",
         "There was once a {adj} {hero}, and everyone called it {name}."]
HOME = ["{name} lived by the {place} and loved to {verb} every day.", "Every morning {name} went to the {place} to {verb}.",
        "{name} had a {adj2} {thing} and kept it under a {thing2}.", "The {place} was {adj2}, and {name} liked it that way."]
WISH = ["One day {name} wanted to {want}.", "One morning {name} decided to {want}.", "{name} had only one wish: to {want}."]
MEET = ["On the way {name} met a {adj3} {other} named {friend}.", "Near the {place2} {name} met {friend}, a {adj3} {other}.",
        "Soon a {adj3} {other} came along. Its name was {friend}."]
TALK = ['"Where are you going?" asked {friend}. "I want to {want}," said {name}.',
        '"Can I come with you?" asked {friend}. "Yes, of course," said {name}.',
        '"The way is long," said {friend}. "I am not afraid," said {name}.']
TROUBLE = ["Then the sky turned {color} and it began to rain.", "But the {place2} was dark, and they lost the way.",
           "Suddenly a {adj4} wind took the {thing} away.", "But the path was closed by a {adj4} stone."]
FEEL = ["{name} was afraid, but {friend} was calm.", "{friend} was tired, and {name} was hungry.",
        "They sat down and did not know what to do."]
SOLVE = ["Then {name} had an idea and used the {thing} to make a light.",
         "{friend} took the {thing2}, and {name} pushed with all its strength.",
         "They waited until the moon was high and then went on together.",
         "{name} began to sing, and soon {friend} could hear the way home."]
END = ["In the end they came to the {place2}, and everything was well.",
       "At last they found what they were looking for, and they laughed for a long time.",
       "When the sun came up, they were home again."]
MORAL = ["From that day on, {name} and {friend} were the best of friends.",
         "And so {name} learned that a friend is worth more than a {adj2} {thing}.",
         "And if you go to the {place} today, you can still see {name} and {friend} there."]
EXTRA = ["The {adj4} {thing2} was still there.", "{friend} carried a {color} {thing}.", "They walked for {n} hours.",
         "The {place} was {adj2} and the air was {adj4}.", "An old {third} watched them from the hill.",
         "{name} thought of the {thing} at home.", "They shared some {food} and some {food2}."]
FOOD = w("bread cheese honey apples berries nuts cake soup milk carrots")


def story(r, hero=None, name=None, place=None, thing=None, length=None):
    """A story of about 5 to 14 sentences; length 0..3 sets how many, None draws it. Given words are kept."""
    d = dict(hero=hero or r.choice(ANIMALS), name=name or r.choice(NAMES), place=place or r.choice(PLACES), place2=r.choice(PLACES),
             thing=thing or r.choice(THINGS), thing2=r.choice(THINGS), other=r.choice(ANIMALS), third=r.choice(ANIMALS),
             friend=r.choice(NAMES), verb=r.choice(VERBS), color=r.choice(COLORS), food=r.choice(FOOD), food2=r.choice(FOOD),
             n=ONES[r.randint(2, 12)])
    for k in ("adj", "adj2", "adj3", "adj4"):
        d[k] = r.choice(ADJ)
    while d["friend"] == d["name"]:
        d["friend"] = r.choice(NAMES)
    d["want"] = r.choice(WANT).format(**d)
    length = r.randint(0, 3) if length is None else length
    if length == 0:
        parts = [START, WISH, MEET, SOLVE, END]
    elif length == 1:
        parts = [START, HOME, WISH, MEET, TROUBLE, SOLVE, END, MORAL]
    else:
        parts = [START, HOME, WISH, MEET, TALK, TROUBLE, FEEL, SOLVE, END, MORAL]
    extra = r.sample(EXTRA, 4)
    out = []
    for p in parts:
        out.append(an(r.choice(p).format(**d)))
        if length >= 2 and extra and p in (HOME, MEET, TROUBLE, SOLVE) and (length == 3 or r.random() < .4):
            out.append(an(extra.pop().format(**d)))
    if length == 3:
        k = r.randint(3, 5)
        return " ".join(out[:k]) + "\n\n" + " ".join(out[k:-2]) + "\n\n" + " ".join(out[-2:])
    return " ".join(out)


FILL = ["The {adj} {noun} was near the {noun2}.", "A {animal} {verb3} by the {place}.", "{name} {verb3} in the {place} on {day}.",
        "In {month} the {place} is {adj}.", "There are {n} {plural} in the {noun}.", "{name} gave the {thing} to {name2}.",
        "Every {noun} has a {adj} {noun2}.", "The {noun} of the {place} is {adj} and {adj2}.", "On {day} it was {adj} in {city}.",
        "{name} bought {n} {plural} and a {thing}.", "Nobody knew why the {animal} {verb3}.", "The road to {city} is {adj}.",
        "{name} and {name2} talked about the {noun}.", "The {color} {thing} is on the {adj} table.", "It was a {adj} {noun} for {name}."]


def sentence(r, p=.08):
    """One filler sentence; every slot is open with probability p."""
    def c(listed, capital=False):
        if r.random() < p:
            x = ow.open_word(r)
            return x[0].upper() + x[1:] if capital else x
        return r.choice(listed)
    return an(r.choice(FILL).format(adj=c(ADJ), adj2=c(ADJ), noun=c(NOUNS), noun2=c(NOUNS), animal=c(ANIMALS), verb3=r.choice(VERB3),
                                    place=c(PLACES),
                                    name=c(NAMES, True), name2=c(NAMES, True), day=r.choice(DAYS), month=r.choice(MONTHS),
                                    n=r.choice(ONES[2:]),
                                    plural=c(PLURAL), thing=c(THINGS), city=c(CITIES, True), color=c(COLORS)))
