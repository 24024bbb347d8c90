"""Narratives: a journey, a visit, a diary, a song, a walk, a mystery. Later text depends on earlier text."""

from draw import Draw, ORDINALS, a, listing, number, the, capitalized
from words import (ANIMALS, CHORES, COLOURS, DAYS, HABITATS, KIN, LANDMARKS, MATERIALS, SEASONS, STATES, TEMPERS,
                   THINGS, TRADES, WEATHER)


def things(d: Draw, count: int) -> list:
    """Phrases such as `rusty lantern`, all nouns different."""
    kinds = COLOURS + MATERIALS + STATES
    return [f"{d.pick(kinds)} {noun}" for noun in d.sample(THINGS, count)]


def journey(d: Draw) -> str:
    """A journey with a bag whose contents change. Questions at the end refer to the whole journey."""
    hero, *strangers = d.people(4)
    home, goal, trade = d.invented_name(), d.invented_name(), d.pick(TRADES)
    pool = things(d, 10)
    bag, spare = pool[:3], pool[3:]
    stops = d.sample(LANDMARKS, 3)
    season, temper = d.pick(SEASONS), d.pick(TEMPERS)
    lines = [f"{hero} was {a(trade)} in {home}, and nobody in {home} was more {temper}. "
             f"One {season} morning {hero} put {listing(map(a, bag))} into a bag and set out for {goal}."]
    questions = [(f"What was {hero}'s trade?", f"{hero} was {a(trade)}."),
             (f"Where did {hero} want to go?", f"{capitalized(hero.they)} wanted to go to {goal}."),
             (f"In what season did {hero} leave {home}?", f"In {season}.")]
    for stop, stranger in zip(stops, strangers):
        gift = spare.pop()
        event = d.below(4) if len(bag) > 1 else 1
        their_trade = d.pick(TRADES)
        road = d.pick([f"The road went through the {d.pick(HABITATS)}. ", f"It {d.pick(WEATHER)}. ", "", ""])
        opening = road + d.pick([f"At the {stop} {hero.they} met {stranger}, {a(their_trade)}.",
                          f"By the {stop} sat {stranger}, {a(their_trade)}.",
                          f"{capitalized(a(their_trade))} called {stranger} was waiting at the {stop}."])
        if event == 0:
            offered = d.pick(bag)
            bag[bag.index(offered)] = gift
            lines.append(f"{opening} \"Hello, {hero},\" said {stranger}. \"I need {a(offered)}, and I have {a(gift)} to spare.\" "
                         f"So {hero} gave {stranger} the {offered} and got the {gift} for it.")
            questions += [(f"What did {hero} give to {stranger}?", f"The {offered}."),
                      (f"What did {hero} get from {stranger}?", f"The {gift}.")]
        elif event == 1:
            bag.append(gift)
            lines.append(f"{opening} \"Take this {gift},\" said {stranger}. \"You will need it in {goal}.\" "
                         f"{hero} thanked {stranger.them} and put the {gift} into the bag.")
            questions.append((f"Who gave {hero} the {gift}?", f"{stranger} did, at the {stop}."))
        elif event == 2:
            forgotten = bag.pop(d.below(len(bag)))
            lines.append(f"{opening} They talked until dark, and {hero} forgot the {forgotten} there. "
                         f"\"Whose {forgotten} is this?\" asked {stranger}, but {hero} was far away.")
            questions.append((f"Where did {hero} forget the {forgotten}?", f"At the {stop}."))
        else:
            offered = bag.pop(d.below(len(bag)))
            lines.append(f"{opening} \"What a fine {offered}!\" said {stranger}. {hero} smiled and gave {stranger.them} the {offered}.")
            questions.append((f"Who has the {offered} now?", f"{stranger} has it."))
        lines.append(f"{d.pick(['Now', 'After that', 'So now'])} the bag held {listing(map(the, bag))}.")
    lines.append(f"In the evening {hero} came to {goal} and thought of the way: the {stops[0]}, the {stops[1]}, the {stops[2]}. "
                 f"{hero.They} opened the bag and laid {listing(map(the, bag))} on the table.")
    questions.append((f"Whom did {hero} meet on the way?", f"{listing(map(str, strangers))}."))
    lines += [f"Question: {q} Answer: {r}" for q, r in d.sample(questions, d.between(3, 5))]
    return "\n".join(lines)


def visit(d: Draw) -> str:
    """A person introduces themselves and then answers questions about the introduction."""
    me, friend = d.people(2)
    family, town, trade = d.invented_name(), d.invented_name(), d.pick(TRADES)
    animal, pet, years = d.pick(ANIMALS), d.invented_name(), d.between(2, 40)
    thing, colour, temper = things(d, 1)[0], d.pick(COLOURS), d.pick(TEMPERS)
    facts = [f"I come from {town}.", f"I have been {a(trade)} for {years} years.",
             f"My {animal} is called {pet}.", f"My house has {a(colour)} door.",
             f"I never travel without my {thing}.", f"My friends call me {temper}."]
    questions = [("Where do you come from?", f"I come from {town}."), ("What is your trade?", f"I am {a(trade)}."),
             ("How long have you done that?", f"For {years} years."),
             (f"What is your {animal} called?", f"My {animal} is called {pet}."),
             ("What colour is your door?", f"It is {colour}."), ("What do you always carry?", f"My {thing}."),
             ("What do your friends say of you?", f"That I am {temper}."),
             ("What is your family name?", f"My family name is {family}.")]
    hello = f"Hello, my name is {me} {family}."
    lines = [f"{hello} {' '.join(d.shuffled(facts))}"]
    for question, answer in d.sample(questions, d.between(4, 8)):
        lines.append(f"\"{question}\" asked {friend}. \"{answer[:-1]},\" said {me}.")
    lines.append(f"\"Then good day to you, {me} {family} of {town}, and greet {pet}!\" said {friend}.")
    return "\n".join(lines)


def diary(d: Draw) -> str:
    """Four to seven days of a week, one by one, then a summary of them."""
    writer, guest = d.people(2)
    place, kin = d.invented_name(), d.pick(KIN[guest.they])
    days = DAYS[:d.between(4, 7)]
    weather, chores = d.sample(WEATHER, len(days)), d.sample(CHORES, len(days))
    visited = d.below(len(days))
    lines = [f"The diary of {writer}, kept at {place}."]
    for i, day in enumerate(days):
        line = f"{day}. It {weather[i]}. I {chores[i]}."
        if i == visited:
            line += f" My {kin} {guest} came from {d.invented_name()} and helped me."
        lines.append(line)
    lines.append("Looking back: " + " ".join(f"On {day} it {w} and I {c}." for day, w, c in zip(days, weather, chores)))
    lines.append(f"{guest} came on {days[visited]}, when it {weather[visited]}.")
    for i in d.sample(range(len(days)), 3):
        lines.append(d.pick([f"When was it that I {chores[i]}? On {days[i]}.",
                             f"What did I do on {days[i]}? I {chores[i]}.",
                             f"What was the weather on {days[i]}? It {weather[i]}."]))
    return "\n".join(lines)


def song(d: Draw) -> str:
    """A song in which each verse is the sentence of the verse before, with one more animal in front."""
    singer, town = d.people(1)[0], d.invented_name()
    count = d.between(4, 7)
    verbs = d.sample(["carried", "guarded", "hid", "found", "followed", "dropped", "wanted", "chased", "stole", "kept"], count)
    beasts = [f"{d.pick(COLOURS + STATES)} {animal}" for animal in d.sample(ANIMALS, count)]
    first = things(d, 1)[0]
    lines, chain = [f"This is the song that {singer} sang in {town}."], f"the {first} that was lost in {town}"
    for i, (verb, beast) in enumerate(zip(verbs, beasts)):
        chain = f"the {beast} that {verb} {chain}"
        lines.append(f"The {ORDINALS[i]} verse: This is {chain}.")
    lines.append(f"So {number(count)} animals came into the song of {singer}: {listing(map(a, beasts))}.")
    return "\n".join(lines)


def walk(d: Draw) -> str:
    """Directions to a place, then the reverse directions back."""
    guide, guest = d.people(2)
    start, goal = d.invented_name(), d.invented_name()
    stops = d.sample(LANDMARKS, d.between(4, 8))
    lines = [f"\"How do I get from {start} to {goal}?\" asked {guest}.",
             f"\"Leave {start} by the {stops[0]},\" said {guide}. \"" +
             " ".join(f"{d.pick(['Then go on to', 'From there walk to', 'Next comes', 'After that find'])} the {s}."
                      for s in stops[1:]) + f" Behind the {stops[-1]} you will see {goal}.\"",
             f"\"And how do I get back to {start}?\"",
             f"\"The same way turned round: {listing([the(s) for s in reversed(stops)])}. "
             f"Behind the {stops[0]} you will see {start}.\"",
             f"{guest} said it once more: \"There by {listing(map(the, stops))}; back by {listing(map(the, reversed(stops)))}.\""]
    for i in d.sample(range(len(stops) - 1), 2):
        lines.append(f"\"What comes after the {stops[i]} on the way to {goal}?\" \"The {stops[i + 1]}.\"")
    return "\n".join(lines)


def mystery(d: Draw) -> str:
    """A theft: each suspect names a place. The stolen object is found at one of these places: the suspect of this place is
    the thief."""
    judge, *suspects = d.people(d.between(4, 7))
    town, (stolen, clue) = d.invented_name(), things(d, 2)
    places, trades = d.sample(LANDMARKS, len(suspects)), d.sample(TRADES, len(suspects))
    guilty = d.below(len(suspects))
    lines = [f"One morning in {town} the {stolen} of {judge} was gone. The day before it {d.pick(WEATHER)}, and nobody had seen anything. "
             f"{judge} called {listing(map(str, suspects))} and asked where they had been."]
    for who, place, trade in zip(suspects, places, trades):
        lines.append(d.pick([f"\"I was at the {place},\" said {who}, the {trade}.",
                             f"{who}, the {trade}, said: \"All night I was at the {place}.\"",
                             f"\"At the {place},\" said {who}, who was {a(trade)}, \"and nowhere else.\""]))
    where, thief = places[guilty], suspects[guilty]
    lines.append(f"Before noon {a(clue)} was found at the {where}, and under the {clue} lay the {stolen}.")
    lines.append(f"\"Who was at the {where}?\" asked {judge}. It was {thief}, the {trades[guilty]}, who had been at the {where}. "
                 f"So it was {thief} who had taken the {stolen}.")
    lines.append(f"{thief} gave back the {stolen}, and the others went home: "
                 f"{listing(f'{w} the {t}' for i, (w, t) in enumerate(zip(suspects, trades)) if i != guilty)}.")
    return "\n".join(lines)
