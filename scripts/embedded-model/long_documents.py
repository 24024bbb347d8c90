"""Long documents, whose later lines repeat facts from all earlier parts. The longest fill much of a context of 2,048 tokens."""

from draw import Draw, ORDINALS, a, counted, listing, number, plural, capitalized
from narratives import things
from words import (ANIMALS, COLOURS, CRIES, FOODS, GOODS, HABITATS, LANDMARKS, MONTHS, SIZES, TEMPERS, THINGS, TRADES,
                   WEATHER)


def register(d: Draw) -> str:
    """A register of the houses of a village, then questions about some of the houses in random order."""
    village, clerk = d.invented_name(), d.people(1)[0]
    count = d.between(6, 15)
    people = d.people(count)
    rows = list(zip(people, [d.invented_name() for _ in people], d.sample(TRADES, count), d.sample(ANIMALS, count),
                    [d.pick(COLOURS) for _ in people], [d.between(1, 9) for _ in people]))
    lines = [f"The register of {village}, written by {clerk} in {d.pick(MONTHS)}. {village} has {number(count)} houses."]
    for n, (who, family, trade, animal, colour, children) in enumerate(rows):
        lines.append(f"In the {ORDINALS[n]} house lives {who} {family}, {a(trade)}. {who.They} has "
                     f"{'one child' if children == 1 else number(children) + ' children'} and {a(animal)}. "
                     f"The door of {who.their} house is {colour}.")
    lines.append(f"So the houses of {village} belong to {listing([f'{w} {f}' for w, f, *_ in rows])}.")
    for n in d.sample(range(count), min(count, d.between(5, 12))):
        who, family, trade, animal, colour, children = rows[n]
        question, answer = d.pick([
            (f"Who lives in the {ORDINALS[n]} house of {village}?", f"{who} {family}, the {trade}."),
            (f"What is the trade of {who} {family}?", f"{who} {family} is {a(trade)}."),
            (f"Who keeps the {animal}?", f"{who} {family} keeps it."),
            (f"What animal has {who} {family}?", f"{capitalized(a(animal))}."),
            (f"What colour is the door of {who} {family}?", f"It is {colour}."),
            (f"How many children has {who} {family}?", f"{capitalized(number(children))}.")])
        lines.append(f"Question: {question} Answer: {answer}")
    return "\n".join(lines)


def ships_log(d: Draw) -> str:
    """A ship's log: at every port the cargo changes and is listed again."""
    ship, captain, home = d.invented_name(), d.people(1)[0], d.invented_name()
    kinds = d.sample(GOODS, d.between(3, 5))
    hold = [d.between(3, 20) for _ in kinds]
    hold_text = lambda: listing([counted(n, k) if n else "no " + plural(k) for n, k in zip(hold, kinds)])
    day, ports = d.between(1, 4), []
    lines = [f"The log of the {ship}, captain {captain}, out of {home}. We sailed on day {day} with {hold_text()}."]
    for _ in range(d.between(4, d.pick([8, 12, 24]))):
        day += d.between(1, 5)
        port = d.invented_name()
        loaded_kind, unloaded_kind = d.sample(range(len(kinds)), 2)
        loaded = d.between(1, 9)
        unloaded = d.between(1, hold[unloaded_kind]) if hold[unloaded_kind] else 0
        hold[loaded_kind] += loaded
        hold[unloaded_kind] -= unloaded
        ports.append((port, day))
        line = f"Day {day}. {port}. It {d.pick(WEATHER)}. Took on {counted(loaded, kinds[loaded_kind])}"
        line += f" and left {counted(unloaded, kinds[unloaded_kind])}." if unloaded else "."
        lines.append(f"{line} In the hold: {hold_text()}.")
    day += d.between(2, 6)
    lines.append(f"Day {day}. Home in {home}. The {ship} called at {listing([p for p, _ in ports])}. "
                 f"Unloaded {hold_text()}, {sum(hold)} pieces in all. Signed, {captain}.")
    for port, when in d.sample(ports, 3):
        lines.append(f"When was the {ship} at {port}? On day {when}.")
    return "\n".join(lines)


def word_list(d: Draw) -> str:
    """A pupil repeats a list of words. Then the teacher asks for the word at a position, or after another word."""
    pupil, teacher = d.people(2)
    words = d.sample(THINGS + ANIMALS + FOODS, d.between(6, 16))
    if d.chance(40):
        words = [d.invented_name() for _ in words]
    lines = [f"{teacher} read {number(len(words))} words aloud: {', '.join(words)}.",
             f"{pupil} closed {pupil.their} eyes and said them again: {', '.join(words)}."]
    if d.chance(50):
        lines.append(f"\"And backwards?\" asked {teacher}. \"{capitalized(', '.join(reversed(words)))}.\"")
    for n in d.sample(range(len(words)), 3):
        lines.append(f"\"What was the {ORDINALS[n]} word?\" \"{capitalized(words[n])}.\"")
    for n in d.sample(range(len(words) - 1), 3):
        lines.append(f"\"What came after {words[n]}?\" \"{capitalized(words[n + 1])}.\"")
    lines.append(f"\"Well done, {pupil},\" said {teacher}.")
    return "\n".join(lines)


def animal(d: Draw) -> str:
    """An entry from a book of animals that do not exist."""
    name, place, author = d.invented_name().lower(), d.invented_name(), d.people(1)[0]
    colour, habitat, size, cry = d.pick(COLOURS), d.pick(HABITATS), d.pick(SIZES), d.pick(CRIES)
    food, legs, young = d.pick(FOODS), d.pick([2, 4, 6, 8]), d.between(1, 9)
    similar, temper = d.pick(ANIMALS), d.pick(TEMPERS)
    body = d.shuffled([f"It is {size} and has {number(legs)} legs.", f"The {name} eats {food}.", f"Its cry is {cry}.",
                       f"In spring the {name} has {number(young)} young.", f"It looks like {a(similar)}, but it is {colour}.",
                       f"People in {place} think the {name} {temper}."])
    questions = [(f"Where does the {name} live?", f"In the {habitat} near {place}."),
                 (f"What does the {name} eat?", f"{capitalized(food)}."),
                 (f"What is the cry of the {name}?", f"{capitalized(cry)}."), (f"How many legs has the {name}?", f"{capitalized(number(legs))}."),
                 (f"What colour is the {name}?", f"{capitalized(colour)}."), (f"Which animal is the {name} like?", f"{capitalized(a(similar))}."),
                 (f"How large is the {name}?", f"{capitalized(size)}."), (f"How many young has the {name}?", f"{capitalized(number(young))}.")]
    lines = [f"The {name}. The {name} is an animal of the {habitat} near {place}. {' '.join(body)}"]
    lines += [f"{q} {r}" for q, r in d.sample(questions, d.between(4, 8))]
    lines.append(f"(From the animal book of {author}, under \"{capitalized(name)}\".)")
    return "\n".join(lines)


def lesson(d: Draw) -> str:
    """A lesson as a dialogue: the teacher states facts, then asks for them in another order. Some first answers are wrong."""
    teacher, *pupils = d.people(4)
    name, town, hill, river, founder = d.invented_name(), d.invented_name(), d.invented_name(), d.invented_name(), d.people(1)[0]
    crop, thing, people = d.pick(FOODS), plural(d.pick(THINGS)), d.between(2, 90) * 100
    facts = [(f"The largest town is {town}.", "What is the largest town called?", town),
             (f"The hill behind it is called {hill}.", "And the hill?", hill),
             (f"The river is the {river}.", "Which river is there?", f"the {river}"),
             (f"{founder} built the first house.", "Who built the first house?", str(founder)),
             (f"The fields grow {crop}.", "What do the fields grow?", crop),
             (f"The people make {thing}.", "What do the people make?", thing),
             (f"{people} people live there.", "How many people live there?", str(people))]
    facts = d.sample(facts, d.between(4, 7))
    lines = [f"{teacher}: Today we learn about the island of {name}. {' '.join(f for f, _, _ in facts)}"]
    for (fact, question, answer) in d.shuffled(facts):
        pupil, second = d.sample(pupils, 2)
        lines.append(f"{teacher}: {question} {pupil}?")
        wrong = d.pick([x for _, _, x in facts if x != answer])
        if d.chance(20):
            lines += [f"{pupil}: {capitalized(wrong)}?", f"{teacher}: No. {second}?", f"{second}: {capitalized(answer)}.", f"{teacher}: Yes. {fact}"]
        else:
            lines += [f"{pupil}: {capitalized(answer)}.", f"{teacher}: {d.pick(['Right', 'Good', 'Yes', 'Very good'])}, {pupil}."]
    lines.append(f"{teacher}: Then write it down. The island of {name}: {' '.join(f for f, _, _ in facts)}")
    return "\n".join(lines)


def treasure_hunt(d: Draw) -> str:
    """A host hides objects, and guests find them one after the other. Then questions about where they were."""
    host, *guests = d.people(5)
    hidden = things(d, d.between(5, 9))
    places = d.sample(LANDMARKS, len(hidden))
    lines = [f"For the feast {host} hid {number(len(hidden))} things round the village. " +
             " ".join(f"{capitalized(a(t))} lay at the {p}." for t, p in zip(hidden, places))]
    score = {g.name: 0 for g in guests}
    for t, p in d.shuffled(list(zip(hidden, places))):
        who = d.pick(guests)
        score[who.name] += 1
        lines.append(f"{who} went to the {p} and found the {t}. That was {who.their} {ORDINALS[score[who.name] - 1]} find.")
    lines.append("In the end " + listing([f"{g} had found {number(n) if n else 'nothing'}" for g, n in score.items()]) + ".")
    for t, p in d.sample(list(zip(hidden, places)), 3):
        lines.append(f"Where was the {t}? At the {p}.")
    return "\n".join(lines)
