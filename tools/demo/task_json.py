"""Pick values out of a text and write them as JSON."""
import json

import openwords as ow
import tool_catalog as catalog
from prose import sentence
from sample import close, restyle, user
from words import ADJ, ANIMALS, CITIES, COLORS, DAYS, NAMES, THINGS, w

JOBS = w("doctor nurse driver pilot farmer baker tailor teacher judge actor")
ORDER = ["Reply in JSON with the keys {}.", "Reply in JSON with keys {}.", "Extract {} as JSON.", "Give me a JSON object with {}.",
         "Return JSON with {}.", "Write {} as JSON.",
         "Answer as JSON with the keys {}."]


def joined(items, r):
    if len(items) == 1:
        return items[0]
    return r.choice([", ".join(items), ", ".join(items[:-1]) + " and " + items[-1]])


def t_json(r):
    c = r.choice
    kind = c(["person", "order", "event", "weather", "book", "list", "free", "free", "free"])
    if kind == "person":
        v = dict(name=ow.full_name(r) if r.random() < .6 else ow.name(r), age=r.randint(5, 95), city=ow.city(r), job=ow.word(r, JOBS, .4))
        t = c(["{name} is {age} years old, lives in {city} and works as a {job}.", "{name}, a {job} from {city}, is {age} years old.",
               "This is {name}. Age: {age}. Home: {city}. Work: {job}."])
    elif kind == "order":
        v = dict(customer=ow.name(r), item=ow.thing(r), quantity=r.randint(1, 99), price=ow.integer(r))
        t = c(["{customer} ordered {quantity} pieces of the item {item} for {price} euros.",
               "Order by {customer}: {item}, quantity {quantity}, total price {price} euros."])
    elif kind == "event":
        v = dict(title=catalog.SLOTS["subject"](r), day=c(DAYS), time=catalog.SLOTS["hour"](r), place=ow.city(r))
        t = c(["The {title} is on {day} at {time} in {place}.", "On {day} at {time} there is a {title} in {place}.",
               "We meet in {place} on {day}, {time}, for the {title}."])
    elif kind == "weather":
        v = dict(city=ow.city(r), temperature=r.randint(-9, 35), sky=c(catalog.SKY), rain=r.random() < .5)
        rain = "it rains" if v["rain"] else "it does not rain"
        t = c(["It is {sky} in {city} with {temperature} degrees, and " + rain + ".",
               "{city}: {sky}, {temperature} degrees, " + rain + "."])
    elif kind == "book":
        title = "The " + c(ADJ).capitalize() + " " + ow.word(r, THINGS, .5).capitalize() if r.random() < .7 else ow.phrase(r, 1,
                3).capitalize()
        v = dict(title=title, author=ow.full_name(r), year=r.randint(1850, 2025), pages=r.randint(50, 900))
        t = c(["{author} wrote the book {title} in {year}. It has {pages} pages.",
               "The book {title} by {author} ({year}) has {pages} pages."])
    elif kind == "list":
        plural, listed = c([("animals", ANIMALS), ("colors", COLORS), ("cities", CITIES), ("names", NAMES), ("things", THINGS)])
        items = [ow.word(r, listed) for _ in range(r.randint(2, 5))]
        q = restyle(r,
                    c(["Reply in JSON with the keys %s and count.",
                       "Give me JSON with %s and count."]) % plural) + " The %s are %s." % (plural,
                               " and ".join([", ".join(items[:-1]), items[-1]]))
        return close(r, "json", [user(q)], json.dumps({plural: items, "count": len(items)}, ensure_ascii=False),
                     "Keys: %s, count." % plural)
    else:
        keys = []
        while len(keys) < r.randint(1, 5):
            k = c(w("id status code zone kind owner label color total level version target city user path size note key mode origin")) if r.random() < .5 else ow.short_word(r)
            if k not in keys:
                keys.append(k)
        v = {k: ow.integer(r) if r.random() < .3 else c([ow.open_word, ow.name, ow.city, ow.phrase, ow.thing, ow.identifier,
                                                         catalog.path])(r) for k in keys}
        t = c([" ", " ", "\n"]).join(c(["The %s is {%s}.", "The %s is {%s}.", "%s: {%s}."]) % (k, k) for k in keys)
    text = t.format(**v)
    keys = list(v)
    r.shuffle(keys)
    keys = keys[:r.randint(1, len(keys))]
    if r.random() < .3:
        text = " ".join([sentence(r) for _ in range(r.randint(1, 3))] + [text])
    order = restyle(r, c(ORDER)).format(joined(keys, r))
    gap = c([" ", "\n", "\n\n"])
    q = order + gap + text if r.random() < .5 else text + gap + order
    return close(r, "json", [user(q)], json.dumps({k: v[k] for k in keys}, ensure_ascii=False), "Keys: " + ", ".join(keys) + ".")
