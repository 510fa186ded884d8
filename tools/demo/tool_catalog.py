"""Tools: names, declarations, requests, results (as text or JSON text) and the answers drawn from them."""
import json
from collections import namedtuple

import openwords as ow
from prose import sentence
from words import ALL, COLORS, DAYS, MONTHS, THINGS, VERBS, w

FILES = w("notes.txt main.c readme.md data.csv report.txt config.json test.py app.log todo.txt index.html parser.c utils.py "
          "server.go build.sh list.txt story.txt table.csv")
SUFFIX = w("txt md csv json py c h cpp go sh log html rs toml yaml js")
DIRS = w("src tests docs build lib data tools include scripts assets")
SUBJECTS = w("meeting lunch invoice holiday party report ticket plan budget delivery garden music")
LANGUAGES = w("French German Spanish Italian Polish Dutch Japanese")
SKY = w("sunny cloudy rainy windy foggy snowy clear stormy")

# params: (names, slot kind, descriptions); requests and answer are templates over p0, p1 … and r, the result;
# without_tool: a request that sounds like a wish even where no tool is at hand
Entry = namedtuple("Entry", "names descriptions params requests answer result without_tool")


def path(r):
    if r.random() < .5:
        base = r.choice(FILES)
    else:
        base = r.choice([ow.ascii_word(r).lower(), ow.pseudo(r) + r.choice("_-") + ow.ascii_word(r).lower(),
                         ow.identifier(r)]) + "." + r.choice(SUFFIX)
    d = r.choice(DIRS) if r.random() < .5 else ow.ascii_word(r).lower()
    return r.choice(["", "", d + "/", "/" + d + "/"]) + base


def folder(r):
    d = r.choice(DIRS) if r.random() < .5 else ow.ascii_word(r).lower()
    return r.choice(["", "/"]) + d + ("/" + ow.pseudo(r) if r.random() < .15 else "")


SLOTS = {
    "city": ow.city, "name": ow.name, "thing": ow.thing, "topic": ow.topic, "color": ow.color, "file": path, "dir": folder,
    "int": lambda r: r.choice([r.randint(1, 20), r.randint(1, 100), r.randint(100, 999), ow.integer(r)]),
    "temp": lambda r: r.randint(10, 30),
    "expr": lambda r: "%d %s %d" % (r.randint(2, 9999), r.choice("+-*/"), r.randint(2, 999)),
    "subject": lambda r: r.choice(SUBJECTS) if r.random() < .5 else ow.phrase(r, 1, 2),
    "text": lambda r: sentence(r, .25),
    "day": lambda r: r.choice(DAYS),
    "hour": lambda r: "%02d:%02d" % (r.randint(6, 22), r.choice([0, 15, 30, 45])),
    "mail": lambda r: ow.word(r, ["anna", "ben", "paul", "mia", "leo"], .7,
                              0).lower() + "@" + (r.choice(w("example.com mail.org post.net home.org work.com")) if r.random() < .5 else ow.pseudo(r) + "." + r.choice(w("com org net de io"))),
    "word": lambda r: ow.word(r, ALL),
    "language": lambda r: r.choice(LANGUAGES) if r.random() < .7 else ow.ascii_word(r).capitalize(),
    "currency": lambda r: r.choice(w("EUR USD GBP JPY CHF")) if r.random() < .6 else "".join(r.choice("ABCDEFGHIJKLMNOPQRSTUVWXYZ") for _ in range(3)),
}
CITY = (w("city location place town"), "city", ["City name", "The city", "Name of the city", ""])
ENTRIES = [
    Entry(w("get_weather weather current_weather weather_lookup fetch_weather"),
          ["Get the current weather.", "Current weather for a city.", "Looks up the weather."],
          [CITY],
          ["What is the weather in {p0}?", "Weather in {p0}?", "How is the weather in {p0} today?", "Is it raining in {p0}?",
           "Tell me the weather in {p0}.", "What is the weather like in {p0}?"],
          "The weather in {p0} is {r}.", "weather", True),
    Entry(w("calculator calculate calc evaluate compute"),
          ["Evaluate an arithmetic expression.", "A calculator.", "Computes an expression."],
          [(w("expression expr formula input"), "expr", ["The expression", "Expression to evaluate", ""])],
          ["Use the calculator: {p0}", "What is {p0}? Use the tool.", "Compute {p0} with the calculator.",
           "Please calculate {p0} with the tool."], "The result is {r}.", "calc", False),
    Entry(w("web_search search search_web lookup find_pages"), ["Search the web.", "Web search.", "Finds pages about a topic."],
          [(w("query q text topic"), "topic", ["Search terms", "What to look for", ""])],
          ["Search for {p0}.", "Look up {p0} on the web.", "Find pages about {p0}.", "Can you search the web for {p0}?"],
          "I found this: {r}", "text", True),
    Entry(w("get_time current_time time_in clock"), ["Get the local time.", "Current time in a city.", "Tells the time."],
          [CITY], ["What time is it in {p0}?", "Tell me the time in {p0}.", "What is the local time in {p0}?"], "It is {r} in {p0}.",
          "hour", True),
    Entry(w("send_email send_mail email mail_to"), ["Send an email.", "Sends a mail to somebody."],
          [(w("to recipient address"), "mail", ["Recipient", "Address", ""]), (w("subject title"), "subject", ["Subject line", ""])],
          ["Send a mail to {p0} about the {p1}.", "Write to {p0} about the {p1}.", "Email {p0}, subject {p1}."], "I sent the mail to {p0}.",
          "ok", True),
    Entry(w("set_timer timer start_timer countdown"), ["Start a timer.", "Sets a timer."],
          [(w("minutes duration mins"), "int", ["Minutes", "Length in minutes", ""])],
          ["Set a timer for {p0} minutes.", "Start a {p0} minute timer.", "Remind me in {p0} minutes."],
          "The timer is set for {p0} minutes.", "ok", True),
    Entry(w("add_event create_event calendar_add schedule"), ["Add an event to the calendar.", "Creates a calendar entry."],
          [(w("title event name"), "subject", ["Title", ""]), (w("day date weekday"), "day", ["Day of the week", ""]),
           (w("time start at"), "hour", ["Start time", ""])],
          ["Add {p0} on {p1} at {p2} to my calendar.", "Schedule a {p0} for {p1} at {p2}.", "Put {p0} in the calendar: {p1}, {p2}."],
          "I added {p0} on {p1} at {p2}.", "ok", True),
    Entry(w("translate translator translate_text"), ["Translate a word.", "Translates text."],
          [(w("text word phrase"), "word", ["Text to translate", ""]), (w("language target to_lang"), "language", ["Target language", ""])],
          ["Translate {p0} into {p1}.", "What is {p0} in {p1}?", "How do you say {p0} in {p1}?"], "In {p1}, {p0} is {r}.", "word", True),
    Entry(w("set_temperature thermostat heat_room set_heating"), ["Set the temperature of a room.", "Controls the heating."],
          [(w("degrees value temperature"), "temp", ["Degrees", ""])],
          ["Set the temperature to {p0} degrees.", "Make it {p0} degrees.", "Heat the room to {p0} degrees."],
          "The temperature is set to {p0} degrees.", "ok", True),
    Entry(w("set_light light_color lamp paint_light"), ["Set the colour of the light.", "Changes the light."],
          [(w("color colour shade"), "color", ["Colour", ""])], ["Make the light {p0}.", "Turn the lamp {p0}.", "I want {p0} light."],
          "The light is {p0} now.", "ok", True),
    Entry(w("exchange_rate get_rate currency_rate"), ["Exchange rate of a currency.", "Gets a rate."],
          [(w("currency code unit"), "currency", ["Currency code", ""])],
          ["What is the exchange rate of {p0}?", "How much is one {p0}?", "Get me the {p0} rate."], "The rate of {p0} is {r}.", "rate",
          True),
    Entry(w("find_contact get_phone contacts phone_book"), ["Find a phone number.", "Looks up a contact."],
          [(w("person name contact"), "name", ["Name of the person", ""])],
          ["What is the phone number of {p0}?", "Find {p0} in my contacts.", "How can I call {p0}?"], "The number of {p0} is {r}.", "phone",
          True),
    Entry(w("buy order_item shop_order add_to_cart"), ["Order an item.", "Buys things."],
          [(w("item product article"), "thing", ["Item", ""]), (w("count quantity amount"), "int", ["How many", ""])],
          ["Order {p1} of the item {p0}.", "Buy {p1} times {p0}.", "I need {p1} pieces of {p0}."], "I ordered {p1} pieces of {p0}.", "ok",
          True),
    Entry(w("read_file read cat_file open_file"), ["Read a file.", "Returns the text of a file.", "Read a file from disk."],
          [(w("path file filename file_path"), "file", ["Path of the file", "Absolute path", ""])],
          ["Read the file {p0}.", "Show me {p0}.", "What is in {p0}?", "Open {p0}."],
          "The file {p0} says: {r}", "text", False),
    Entry(w("list_dir ls list_files read_dir"), ["List a directory.", "Lists the files in a folder."],
          [(w("path dir directory folder"), "dir", ["Directory", ""])],
          ["List the files in {p0}.", "What is in the folder {p0}?", "Which files are in {p0}?"], "The folder {p0} holds {r}.", "files",
          False),
    Entry(w("write_file write save_file create_file"), ["Write a file.", "Saves text to a file."],
          [(w("path file file_path"), "file", ["Path", ""]), (w("content text data"), "text", ["Text to write", ""])],
          ["Write this to {p0}: {p1}", "Save the text \"{p1}\" in {p0}.", "Create {p0} with the content: {p1}"], "I wrote {p0}.", "ok",
          False),
]
SHELL = Entry(w("bash shell run_command exec terminal"),
              ["Run a shell command and return its output.", "Run a command.", "Execute a bash command."],
              [(w("command cmd script"), None, ["The command to run", "Command", ""])], None, None, None, False)
# (request, command, kind of output)
COMMANDS = [
    ("List the files in {d}.", "ls {d}", "files"), ("List all files here.", "ls -la", "files"),
    ("Which files are in {d}?", "ls {d}", "files"), ("List the files.", "ls", "files"),
    ("Show the file {f}.", "cat {f}", "text"), ("What is in {f}?", "cat {f}", "text"), ("Print {f}.", "cat {f}", "text"),
    ("How many lines does {f} have?", "wc -l {f}", "lines"),
    ("Count the lines of {f}.", "wc -l {f}", "lines"), ("What is the date?", "date", "date"), ("Where are we?", "pwd", "cwd"),
    ("Which directory is this?", "pwd", "cwd"),
    ("Make a folder {d}.", "mkdir -p {d}", "ok"), ("Create the directory {d}.", "mkdir -p {d}", "ok"), ("Delete {f}.", "rm {f}", "ok"),
    ("Remove the file {f}.", "rm {f}", "ok"),
    ("Find {x} in {f}.", "grep -n {x} {f}", "text"), ("Search for {x} in {d}.", "grep -rn {x} {d}", "text"),
    ("Copy {f} to {d}.", "cp {f} {d}", "ok"),
    ("Move {f} to {d}.", "mv {f} {d}", "ok"), ("Run the tests.", "make test", "tests"), ("Build the project.", "make", "ok"),
    ("Show the first {n} lines of {f}.", "head -n {n} {f}", "text"),
    ("Show the last {n} lines of {f}.", "tail -n {n} {f}", "text"), ("Say {x} in the shell.", "echo {x}", "echo"),
    ("Echo {x}.", "echo {x}", "echo"),
    ("What is the git status?", "git status", "text"), ("Run {f}.", "python3 {f}", "text")]
COMMAND_ANSWER = {"ok": "Done.", "lines": "There are {} lines.", "date": "It is {}."}
OPTIONAL = [(["unit", "units", "scale"], "string", ["celsius", "fahrenheit"], ["Unit", ""]),
            (["limit", "max_results", "top"], "integer", None, ["At most this many", ""]),
            (["verbose", "debug", "silent"], "boolean", None, ["Print more", ""]),
            (["language", "locale"], "string", None, ["Language of the answer", ""]),
            (["timeout", "seconds"], "integer", None, ["Seconds", ""]), (["format", "style"], "string", ["short", "long"], ["Format", ""])]


def draw(r, entry):
    """Values for the slots p0, p1 … of an entry."""
    return {"p%d" % i: SLOTS[p[1]](r) for i, p in enumerate(entry.params)}


def declare(r, entry):
    """One declaration of an entry, and the parameter names chosen for it, in the order of the slots."""
    name = r.choice(entry.names)
    if r.random() < .12:
        name = r.choice([ow.pseudo(r), ow.short_word(r)]) + "_" + name
    properties, chosen = {}, []
    for names, kind, descriptions in entry.params:
        p = r.choice(names)
        while p in properties:
            p = r.choice(names) + "_2"
        chosen.append(p)
        properties[p] = {"type": "integer" if kind in ("int", "temp") else "string"}
        d = r.choice(descriptions)
        if d:
            properties[p]["description"] = d
    if r.random() < .4:
        for names, kind, enum, descriptions in r.sample(OPTIONAL, r.randint(1, 2)):
            p = r.choice(names)
            if p not in properties:
                properties[p] = {"type": kind}
                d = r.choice(descriptions)
                if d:
                    properties[p]["description"] = d
                if enum:
                    properties[p]["enum"] = enum
    return dict(name=name, description=r.choice(entry.descriptions),
                parameters=dict(type="object", properties=properties, required=list(chosen))), chosen


def invent(r):
    """An entry without a fixed meaning: the request names what the description says."""
    v, n = (r.choice(VERBS), r.choice(THINGS)) if r.random() < .5 else (ow.short_word(r), ow.short_word(r))
    name = r.choice([v + "_" + n, n + "_" + v, v + n.capitalize(), "tool_" + v + n])
    names = r.choice([w("value level setting"), w("arg input x"), w("target option mode"), [ow.short_word(r)]])
    kind = r.choice(["int", "word", "name", "color", "city", "topic"])
    return Entry([name], ["%s the %s." % (v.capitalize(), n)], [(names, kind, ["", "The " + names[0]])],
                 [v.capitalize() + " the " + n + " with {p0}.", "Please " + v + " the " + n + " with {p0}.", "Use " + name + " with {p0}."],
                 "I did it: " + v + " the " + n + " with {p0}.", "ok", False)


def calculate(expression):
    a, sign, b = expression.split()
    a, b = int(a), int(b)
    return str(a + b if sign == "+" else a - b if sign == "-" else a * b if sign == "*" else round(a / b, 3))


def output(r, kind, command=None):
    """What a tool says, as plain text."""
    c = r.choice
    if kind == "weather":
        return "%s, %d degrees" % (c(SKY) if r.random() < .6 else ow.word(r, ALL), r.randint(-9, 39))
    if kind == "calc":
        return calculate(command)
    if kind in ("hour", "text"):
        return SLOTS[kind](r)
    if kind == "rate":
        return str(r.randint(1, 999)) if r.random() < .5 else "%d.%d" % (r.randint(0, 9), r.randint(1, 9999))
    if kind == "word":
        return ow.open_word(r)
    if kind == "phone":
        return ow.digits(r, 6, 7)
    if kind == "files":
        return ", ".join(path(r).split("/")[-1] for _ in range(r.randint(1, 4)))
    if kind == "lines":
        return str(r.randint(1, 999))
    if kind == "date":
        return "%s %d %s" % (c(DAYS), r.randint(1, 28), c(MONTHS))
    if kind == "cwd":
        return "/home/" + ow.ascii_word(r).lower() + "/" + c(DIRS)
    if kind == "tests":
        return "%d passed, %d failed" % (r.randint(1, 99), c([0, 0, 1, 2]))
    if kind == "echo":
        return command.split(" ", 1)[1]
    return "ok"


def as_json(r, kind, text, slots):
    """The same result as JSON text, the way web interfaces give it."""
    if kind == "weather":
        sky, degrees = text.rsplit(", ", 1)
        d = {r.choice(["temperature", "temp", "degrees"]): int(degrees.split()[0]),
             r.choice(["sky", "condition", "conditions", "weather"]): sky}
        if r.random() < .4:
            d["unit"] = "celsius"
        if r.random() < .3:
            d["humidity"] = r.randint(10, 99)
        if r.random() < .3:
            d["city"] = slots["p0"]
    elif kind == "ok":
        d = r.choice([{"status": "ok"}, {"success": True}, {"ok": True}, {"status": "ok", "id": r.randint(1, 9999)}])
    else:
        key = {"hour": ["time", "local_time"], "phone": ["phone", "number"], "rate": ["rate", "value"], "calc": ["result", "value"],
               "text": ["text", "content"]}.get(kind, ["result", "output"])
        d = {r.choice(key + ["result"]): text}
        if r.random() < .2:
            d["status"] = "ok"
    items = list(d.items())
    r.shuffle(items)
    return json.dumps(dict(items), ensure_ascii=False, separators=r.choice([None, (",", ":")]))
