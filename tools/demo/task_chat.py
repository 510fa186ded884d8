"""Small talk, small facts, and the answers to what the model cannot do."""
import openwords as ow
import tool_catalog as catalog
from prose import sentence
from sample import ask, close, restyle, bot, user
from words import ADJ, ALL, COUNTRIES, DAYS, MONTHS, NAMES, NOUNS, OPPOSITE, SOUND, VERBS

HELLO = "Hello! How can I help you?"
ME = "I am gem's demo model, a very small Gemma 4 trained on made-up text."
CAN = "I can do small sums, copy and sort things, find facts in a text, call tools, write JSON and tell little stories."
CANNOT = "I am only a small demo model, so I cannot answer that. Try a sum, a story or a tool call."
NO_TOOL = "I have no tool for that."
UNCLEAR = "I did not understand that. Ask me something, or give me a small task."
EMPTY = "Your message is empty. What can I do for you?"
ENGLISH = "Sorry, I only speak English."
REMARK = "I see. Ask me something, or give me a small task."

TALK = [
    (["Hello", "Hi", "Hey", "Hello!", "Hi!", "Hi there", "Hello there!", "Hey there", "hello", "hi", "Good day", "Good day!", "Greetings",
      "yo", "Howdy"], HELLO),
    (["Good morning", "Good morning!", "good morning"], "Good morning! How can I help you?"),
    (["Good evening", "Good evening!", "good evening"], "Good evening! How can I help you?"),
    (["Who are you?", "What are you?", "Tell me about yourself.", "Introduce yourself.", "Say who you are.", "What model are you?",
      "Which model is this?"], ME),
    (["What is your name?", "Do you have a name?", "Tell me your name."], "My name is gem demo."),
    (["What can you do?", "What are you good at?", "Help", "help", "How can you help me?", "Can you help me?", "What do you know?",
      "I need help."], CAN),
    (["Who made you?", "Who trained you?", "Where do you come from?"], "I was trained from made-up text as the demo model of gem."),
    (["Are you a human?", "Are you real?", "Are you a person?", "Are you a robot?"], "No, I am a small language model."),
    (["How are you?", "How are you today?", "How is it going?", "How do you do?"], "I am fine, thank you. How can I help you?"),
    (["Thanks", "Thank you", "Thanks!", "Thank you!", "thanks", "Thank you very much!", "Great, thanks."], "You are welcome!"),
    (["Bye", "Goodbye", "bye", "See you", "Good night", "See you later!", "Goodbye!"], "Goodbye! Have a nice day."),
    (["Tell me a joke.", "Do you know a joke?", "Make me laugh.", "A joke, please."],
     "Why did the duck cross the road? To prove it was not a chicken."),
    (["Another joke, please.", "Tell me another joke.", "One more joke."], "Why was six afraid of seven? Because seven ate nine."),
    (["Sorry", "I am sorry.", "sorry"], "No problem."),
    (["ok", "OK", "Okay", "Good", "Great", "Nice", "Fine", "Yes", "No", "yes", "no", "Cool"], "Good. What else can I do for you?"),
    (["Write a haiku.", "Write a poem.", "A short poem, please."],
     "Rain on the still lake,\na frog listens to the wind,\nthe moon has no words."),
    (["How old are you?", "When were you born?"], "I have no age. I am a small language model."),
    (["What color is the sky?", "What colour is the sky?"], "The sky is blue."),
    (["What color is grass?", "What colour is grass?"], "Grass is green."),
    (["How many days are in a week?", "How many days does a week have?"], "A week has seven days."),
    (["How many months are in a year?", "How many months does a year have?"], "A year has twelve months."),
    (["How many hours are in a day?", "How many hours does a day have?"], "A day has twenty-four hours."),
    (["Name the days of the week.", "List the days of the week."], ", ".join(DAYS) + "."),
    (["Name the months of the year.", "List the months."], ", ".join(MONTHS) + "."),
    (["Say the alphabet.", "Write the alphabet."], " ".join("abcdefghijklmnopqrstuvwxyz")),
]
BEYOND = ["Explain {t}.", "What do you think about {t}?", "Why is {t} important?", "Write an essay about {t}.", "How does {t} work?",
          "Tell me about the history of {t}.",
          "Give me advice on {t}.", "Who invented {t}?", "What is the meaning of {t}?", "Summarize the latest news about {t}.",
          "Is {t} dangerous?", "Do you like {t}?",
          "Can you {v} the {n}?", "Why does the {n} {v}?", "What is {t}?", "When was {t} built?", "Where can I buy {t}?",
          "How do I {v} a {n}?", "Which {n} is the best?",
          "Tell me about {t}.", "Should I {v} the {n}?", "Describe {t} in detail.", "What is the difference between {t} and {n}?",
          "Compare {t} with {n}.",
          "Who won the {n} in {y}?", "How many {n} are in {t}?", "What happened in {y}?", "Recommend a {n}.", "Prove that {t} is {a}.",
          "Draw a {n}."]
FOREIGN = ["Bonjour", "Bonjour, comment allez-vous ?", "Guten Tag", "Wie geht es dir?", "Hola", "¿Cómo estás?", "Buongiorno",
           "Ciao, come stai?", "Olá, tudo bem?",
           "Hej, hur mår du?", "Dzień dobry", "Ahoj, jak se máš?", "Merhaba", "Привет", "Как дела?", "Γειά σου", "こんにちは", "お元気ですか", "你好",
           "你是谁？", "안녕하세요",
           "مرحبا", "שלום", "नमस्ते", "สวัสดี", "Quelle heure est-il ?", "Was ist die Hauptstadt von Frankreich?", "Cuéntame una historia.",
           "Schreibe ein Gedicht.", "Parlez-vous français ?"]


def noise(r):
    """A message without a question: letters, signs, numbers or emoji."""
    x = r.random()
    if x < .3:
        return " ".join(ow.random_letters(r, 2, 9) for _ in range(r.randint(1, 5)))
    if x < .5:
        return "".join(r.choice("?!.,;:-_*#+=()[]/\\|~^&%$@") for _ in range(r.randint(1, 12)))
    if x < .7:
        return " ".join("".join(ow.emoji(r) for _ in range(r.randint(1, 4))) for _ in range(r.randint(1, 3)))
    if x < .8:
        return (r.choice("abcdefghijklmnopqrstuvwxyz?!.0") * r.randint(8, 120))
    return " ".join(ow.identifier(r) for _ in range(r.randint(2, 6)))


def fact(r):
    """A question about a closed list, or about something that is not in it."""
    x = r.random()
    if x < .40:
        c = r.choice(list(COUNTRIES)) if r.random() < .7 else ow.open_word(r).capitalize()
        q = ask(r, ["What is the capital of {c}?", "Capital of {c}?", "Which city is the capital of {c}?", "Tell me the capital of {c}."],
                c=c)
        known = COUNTRIES.get(c)
        return q, "The capital of %s is %s." % (c, known.replace("-", " ")) if known else "I do not know the capital of %s." % c
    if x < .62:
        k = r.choice(list(OPPOSITE)) if r.random() < .7 else ow.open_word(r)
        q = ask(r, ["What is the opposite of {k}?", "Opposite of {k}?", "Tell me the opposite of {k}."], k=k)
        return q, "The opposite of %s is %s." % (k, OPPOSITE[k]) if k in OPPOSITE else "I do not know the opposite of %s." % k
    if x < .77:
        k = r.choice(list(SOUND))
        return ask(r, ["What does a {k} do?", "What sound does a {k} make?"], k=k), ("An %s %s." if k == "owl" else "A %s %s.") % (k,
                SOUND[k])
    listed, kind = (DAYS, "day") if r.random() < .5 else (MONTHS, "month")
    i = r.randrange(len(listed))
    if r.random() < .5:
        return ask(r, ["Which {k} comes after {d}?", "What {k} is after {d}?"], k=kind,
                   d=listed[i]), "%s comes after %s." % (listed[(i + 1) % len(listed)], listed[i])
    return ask(r, ["Which {k} comes before {d}?", "What {k} is before {d}?"], k=kind, d=listed[i]), "%s comes before %s." % (listed[i - 1],
            listed[i])


def small_talk(r):
    """(question, answer) that needs no tool."""
    x = r.random()
    if x < .48:
        questions, answer = r.choice(TALK)
        return restyle(r, r.choice(questions)), answer
    if x < .70:
        return fact(r)
    if x < .74:
        return sentence(r), REMARK
    if x < .79:
        return noise(r), UNCLEAR
    if x < .82:
        return r.choice(FOREIGN), ENGLISH
    t = ow.topic(r) if r.random() < .7 else "the %s %s" % (ow.word(r, NOUNS), r.choice(NOUNS))
    return ask(r, BEYOND, t=t, n=ow.word(r, NOUNS), v=r.choice(VERBS), y=r.randint(1000, 2030), a=r.choice(ADJ)), CANNOT


def tool_wish(r):
    """A request that only a tool could serve, and the catalogue entry that would."""
    entry = r.choice([e for e in catalog.ENTRIES if e.without_tool])
    return ask(r, entry.requests, **catalog.draw(r, entry)), entry


def t_chat(r):
    if r.random() < .12:
        n, ad = ow.name(r), r.choice(ADJ)
        q = ask(r, ["Who are you?", "What is your name?", "Introduce yourself."])
        persona = r.choice(["Your name is {}.", "You are {}.", "You are called {}. Be " + ad + ".",
                            "You are {}, a " + ad + " assistant."]).format(n)
        return close(r, "chat", [dict(role="system", content=persona), user(q)], "I am %s." % n, "My name is %s." % n, p_system=0)
    x = r.random()
    if x < .08:
        q, a, thought = tool_wish(r)[0], NO_TOOL, "There is no tool."
    elif x < .11:
        q, a, thought = "", EMPTY, "The message is empty."
    else:
        q, a = small_talk(r)
        thought = "The user says: " + q.split("\n")[0][:200]
    messages = [user(q)]
    if r.random() < .25:
        q0, a0 = small_talk(r)
        messages = [user(q0), bot(a0)] + messages
    return close(r, "chat", messages, a, thought)
