"""What a task hands over, and how a request is phrased."""
from collections import namedtuple

import chat_format
from prose import sentence

# spans: prompt spans of chat_format.render (None: plain text without a prompt); reply: what the model has to write;
# end: its last token; accept: replies that count as right (None: only the reply itself; []: checked otherwise)
Sample = namedtuple("Sample", "task spans reply end accept")

SYSTEM = ["You are a helpful assistant.", "You are gem's demo model.", "Be brief.", "Answer the user.", "You help with small tasks.",
          "Be polite and exact.",
          "You are a helpful assistant. Answer in English.", "Use the tools when they fit.", "Think before you answer."]
SHORT = [("What is ", "What's "), ("What is ", "Whats "), ("what is ", "what's "), ("what is ", "whats "), ("How is ", "How's "),
         ("Where is ", "Where's "),
         ("Who is ", "Who's "), ("I am ", "I'm "), ("i am ", "im "), ("Do not ", "Don't "), ("What time is ", "What time's ")]
HELLO = ["Hello! ", "Hi! ", "Hi, ", "Hey, ", "Hello, ", "Hello there. ", "Good morning! ", "hi ", "hello ", "Dear model, ", "OK, ", "Now ",
         "Please "]
THANKS = [" Thanks!", " Thank you.", " Thanks", " please", ", please", " Please.", " please!", "!"]


def restyle(r, template):
    """A request as people type it: lower case, no full stop, contractions, a greeting in front, thanks behind.

    template has slots in braces; where one ends it, nothing is added or cut there, since the slot is the text to work on.
    """
    if r.random() < .5:
        return template
    t = template
    if r.random() < .45:
        t = t.lower()
    if r.random() < .4:
        for a, b in r.sample(SHORT, len(SHORT)):
            if a in t:
                t = t.replace(a, b, 1)
                break
    if t[-1] in ".?!":
        x = r.random()
        if x < .35:
            t = t[:-1]
        if x < .08 or .9 < x:
            tail = r.choice(THANKS)
            t = (t if tail[:2] == " T" else t.rstrip(".?!")) + tail
    if r.random() < .2:
        h = r.choice(HELLO)
        t = h + (t[0].lower() + t[1:] if r.random() < .5 and t[1:2] != " " else t)
    return t


def ask(r, templates, **slots):
    """A template, restyled and filled."""
    return restyle(r, r.choice(templates)).format(**slots)


def user(text):
    return dict(role="user", content=text)


def bot(text):
    return dict(role="assistant", content=text)


def with_system(r, messages, p):
    if r.random() >= p:
        return messages
    s = r.choice(SYSTEM)
    if r.random() < .15:
        s += " " + " ".join(sentence(r) for _ in range(r.randint(1, 12)))
    return [dict(role="system", content=s)] + messages


def close(r, task, messages, answer, thought=None, tools=None, p_think=.2, accept=None, end="<turn|>", p_system=.25, opened=False):
    """Make the sample. With thinking on the reply starts with the thought; opened: the prompt has opened its channel.

    The thought has to follow from the prompt: a choice between two wordings is a coin that the model cannot call.
    """
    think = thought is not None and r.random() < p_think
    spans = chat_format.render(with_system(r, messages, p_system), tools, think)
    before = ("" if opened else "<|channel>thought\n") + thought + "\n<channel|>" if think else ""
    return Sample(task, spans, before + answer, end, None if accept is None else [before + a for a in accept])
