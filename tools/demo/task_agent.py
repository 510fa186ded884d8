"""A coding agent: long system text, four fixed tools with long descriptions."""
import chat_format
import openwords as ow
import tool_catalog as catalog
from prose import sentence
from sample import ask, close, user
from task_chat import small_talk
from words import ADJ, ALL, NOUNS, VERBS

RULE = ["Use {n} only when the {m} is {a}.", "Never {v} the {m} without a {n}.", "Default {n} is {k} seconds.",
        "Do not {v} more than {k} files at once.", "Paths are relative to the {n}.",
        "The {m} is {a} unless the {n} is set.", "Prefer the {n} over the {m}.", "Keep answers {a} and {b}.",
        "Returns the {m} and the exit code.", "If the {n} fails, {v} it again.", "At most {k} lines are returned.",
        "Pass `{n}` for a {a} {m} (tests, builds).", "See `# {N}` for the {m}."]


def rule(r):
    def noun():
        return ow.word(r, NOUNS, .1, 0)
    n = noun()
    return r.choice(RULE).format(n=n, N=n.capitalize(), m=noun(), a=r.choice(ADJ), b=r.choice(ADJ), v=r.choice(VERBS), k=r.randint(1, 500))


def agent_tools(r):
    def p(ty, lo=0, hi=3):
        d = dict(type=ty)
        t = " ".join(rule(r) for _ in range(r.randint(lo, hi)))
        if t:
            d["description"] = t
        return d

    def tool(name, first, req, opt):
        props = {k: p("string", 0, 1) for k in req}
        props.update({k: p(t) for k, t in opt.items() if r.random() < .7})
        more = r.randint(0, 6)
        sep = r.choice([" ", "\n- "])
        return dict(name=name, description=first + "".join(sep + rule(r) for _ in range(more)),
                    parameters=dict(type="object", properties=props, required=req))
    return [tool("bash", r.choice(["Run a shell command.", "Run a command and return its output.", "Executes a shell command."]),
                 ["command"], dict(timeout_seconds="integer", background="boolean", name="string", timeout="integer")),
            tool("read", r.choice(["Read a file.", "Returns the text of a file.", "Read a file from disk."]), ["path"],
                 dict(offset="integer", limit="integer")),
            tool("write", r.choice(["Write a file.", "Create or overwrite a file."]), ["path", "content"], {}),
            tool("edit", r.choice(["Edit a file.", "Replace text in a file."]), ["path", "old_string", "new_string"],
                 dict(replace_all="boolean"))]


def surroundings(r):
    """The system text of an agent: who it is, rules under headings, the environment."""
    c = r.choice
    lines = ["You are %s, a %s %s running in the %s terminal." % (ow.name(r), c(ADJ), c(["coding assistant", "assistant", "coding agent"]),
                                                                  c(["user's", "local"]))]
    for _ in range(r.randint(0, 5)):
        lines.append(c(["", "\n"]) + "# " + ow.word(r, NOUNS, .1, 0).capitalize())
        lines += [c(["", "- "]) + rule(r) for _ in range(r.randint(1, 8))]
    if r.random() < .7:
        lines += ["\n# Environment", "- Working directory: /home/%s/%s" % (ow.ascii_word(r).lower(), c(catalog.DIRS)),
                  "- Date: %d-%02d-%02d" % (r.randint(2024, 2029), r.randint(1, 12), r.randint(1, 28))]
    return "\n".join(lines)


def job(r, have):
    """(request, tool, arguments, result, answer) for one of the tools at hand."""
    f, d, n, x = catalog.path(r), catalog.folder(r), r.randint(2, 60), ow.word(r, ALL)
    k = r.random()
    if k < .25 and "read" in have:
        slots, arguments = dict(f=f, n=n), dict(path=f)
        if r.random() < .25:
            q, arguments["limit"] = ask(r, ["Show the first {n} lines of {f}."], **slots), n
        else:
            q = ask(r,
                    ["Read {f}.", "Show me {f}.", "What is in {f}?", "Open {f}.", "Print {f}.", "Read the file {f}.", "Show the file {f}."],
                    **slots)
        text = "\n".join(sentence(r, .2) for _ in range(r.choice([1, 1, 2, 3])))
        return q, "read", arguments, text, "The file %s says: %s" % (f, text)
    if k < .42 and "write" in have:
        t = sentence(r, .25) if r.random() < .7 else ow.phrase(r, 1, 4)
        q = ask(r, ["Write this to {f}: {t}", "Create {f} with the content: {t}", "Create the file {f} with this text: {t}"], f=f, t=t)
        return q, "write", dict(path=f, content=t), "ok", "I wrote %s." % f
    if k < .56 and "edit" in have:
        y = ow.word(r, ALL)
        q = ask(r, ["Replace {x} by {y} in {f}.", "In {f}, change {x} to {y}.", "Change {x} to {y} in {f}."], x=x, y=y, f=f)
        return q, "edit", dict(path=f, old_string=x, new_string=y), "ok", "I changed %s." % f
    while True:
        q, command, kind = r.choice(catalog.COMMANDS)
        if "read" not in have or not command.startswith(("cat", "head")):
            break
    slots = dict(d=d, f=f, x=x, n=n)
    command = command.format(**slots)
    text = catalog.output(r, kind, command)
    if kind == "files":
        text = text.replace(", ", "\n")
    answer = catalog.COMMAND_ANSWER.get(kind, "The output is:\n{}" if "\n" in text else "The output is: {}").replace("{}", text)
    return ask(r, [q], **slots), "bash", dict(command=command), text, answer


def t_agent(r):
    tools = agent_tools(r)
    if r.random() < .3:
        tools = tools[:r.randint(1, 3)]
    system = dict(role="system", content=surroundings(r))
    if r.random() < .15:
        q, a = small_talk(r)
        return close(r, "agent", [system, user(q)], a, "No tool is needed.", tools, p_system=0)
    q, name, arguments, result, answer = job(r, [t["name"] for t in tools])
    messages = [system, user(q)]
    if r.random() < .6:
        return close(r, "agent", messages, chat_format.call(name, arguments), "I use " + name + ".", tools, end="<|tool_response>",
                     p_system=0)
    messages += [dict(role="assistant", content="", calls=[(name, arguments)]),
                 dict(role="tool", name=name, content=result + r.choice(["", "", "\n[exit 0]", "\n"]))]
    return close(r, "agent", messages, answer, "I have the result.", tools, p_system=0, opened=True)
