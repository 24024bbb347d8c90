"""Seeded random choices, and the rules of English for all kinds of documents.

The generator is implemented here (SplitMix64 on integers), so that the bytes of the text depend on the seed alone and not on
the version of Python's `random`."""

from words import NAMES_SHE, NAMES_HE, PLURALS, ENDINGS, BEGINNINGS, MIDDLES

MASK = (1 << 64) - 1


def mix(state: int) -> int:
    """SplitMix64's finaliser (Steele, Lea and Flood, 2014)."""
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & MASK
    return state ^ (state >> 31)


class Draw:
    """A stream of choices. Every document has a stream of its own, keyed by seed and index, so documents are independent."""

    def __init__(self, *key: int):
        self.state = 0
        for part in key:
            self.state = mix((self.state + part + 0x9E3779B97F4A7C15) & MASK)

    def below(self, limit: int) -> int:
        """A number from 0 to `limit` - 1."""
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        return (mix(self.state) >> 16) % limit  # the bias is under limit / 2^48

    def between(self, low: int, high: int) -> int:
        """A number from `low` to `high`, both included."""
        return low + self.below(high - low + 1)

    def chance(self, percent: int) -> bool:
        return self.below(100) < percent

    def pick(self, items):
        return items[self.below(len(items))]

    def sample(self, items, count: int) -> list:
        """`count` different items in random order."""
        pool, chosen = list(items), []
        for _ in range(min(count, len(pool))):
            chosen.append(pool.pop(self.below(len(pool))))
        return chosen

    def shuffled(self, items) -> list:
        return self.sample(items, len(items))

    def invented_name(self) -> str:
        """An invented proper name. A model can know it only from earlier text of the same document."""
        middle = self.pick(MIDDLES) if self.chance(35) else ""
        return (self.pick(BEGINNINGS) + middle + self.pick(ENDINGS)).capitalize()

    def people(self, count: int) -> list:
        names = self.sample([(n, "she") for n in NAMES_SHE] + [(n, "he") for n in NAMES_HE], count)
        return [Person(name, they) for name, they in names]


class Person:
    """A name with its pronouns: `they` is `she` or `he`, and `They` begins a sentence."""
    def __init__(self, name: str, they: str):
        self.name, self.they = name, they
        self.them, self.their = ("her", "her") if they == "she" else ("him", "his")

    def __str__(self) -> str:
        return self.name

    @property
    def They(self) -> str:
        return self.they.capitalize()


NUMBER_WORDS = ["no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
ORDINALS = ["first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth", "eleventh",
            "twelfth", "thirteenth", "fourteenth", "fifteenth", "sixteenth"]


def number(count: int) -> str:
    return NUMBER_WORDS[count] if 0 <= count < len(NUMBER_WORDS) else str(count)


def plural(noun: str) -> str:
    """The plural of the first word of a noun such as `pot of honey`."""
    head, gap, suffix = noun.partition(" of ")
    if head in PLURALS:
        many = PLURALS[head]
    elif head.endswith(("s", "x", "ch", "sh")):
        many = head + "es"
    elif head.endswith("y") and head[-2] not in "aeiou":
        many = head[:-1] + "ies"
    else:
        many = head + "s"
    return many + gap + suffix


def counted(count: int, noun: str) -> str:
    return f"{count} {noun if count == 1 else plural(noun)}"


def a(phrase: str) -> str:
    return ("an " if phrase[0] in "aeiou" else "a ") + phrase


def the(phrase: str) -> str:
    return "the " + phrase


def listing(items, last: str = "and") -> str:
    items = list(items)
    if len(items) == 1:
        return items[0]
    return ", ".join(items[:-1]) + f" {last} " + items[-1]


def capitalized(sentence: str) -> str:
    return sentence[0].upper() + sentence[1:]
