"""Documents about things and quantities: letters, recipes, shops, sheds, sums and auctions. All amounts and sums are right."""

from draw import Draw, a, counted, listing, number, plural, capitalized
from narratives import things
from words import DAYS, DISHES, FOODS, KIN, MEASURES, MONTHS, SEASONS, THINGS, WEATHER


def letter(d: Draw) -> str:
    """A letter with requests, and the answer to each of them."""
    writer, friend, guest = d.people(3)
    writer_town, friend_town = d.invented_name(), d.invented_name()
    requested = things(d, d.between(3, 5))
    day, month, kin = d.between(1, 28), d.pick(MONTHS), d.pick(KIN[guest.they])
    greeting, weather = d.pick(["Dear", "Hello", "My dear"]), d.pick(WEATHER)
    missing = d.below(len(requested))
    sent = [w for i, w in enumerate(requested) if i != missing]
    arrival_day = d.pick(DAYS)
    return "\n".join([
        f"{writer_town}, {day} {month}",
        f"{greeting} {friend},",
        f"Yesterday it {weather} here, and my {kin} {guest} has come to stay with me. "
        f"{d.pick(['We have a favour to ask.', 'There is something you could do for us.', 'May I ask you for help?'])} "
        f"Could you send us {listing(map(a, requested))}? We need them before {arrival_day}.",
        d.pick(["Your friend", "With love", "Yours"]) + f", {writer}",
        f"{friend_town}, {day + d.between(1, 2)} {month}",
        f"Dear {writer},",
        f"I am sorry that it {weather} at {writer_town}, and glad that your {kin} {guest} is with you. You ask for "
        f"{listing(map(a, requested))}. I send you {listing([f'the {w}' for w in sent])}, but the {requested[missing]} "
        f"{d.pick(['is lost', 'was sold last year', 'is broken', 'belongs to my neighbour now'])}. "
        f"All will be in {writer_town} before {arrival_day}. Greet {guest} from me.",
        f"Yours, {friend}",
    ])


def recipe(d: Draw) -> str:
    """Ingredients, the steps that use each of them in order, and the amounts for more guests."""
    cook, place = d.people(1)[0], d.invented_name()
    foods = d.sample(FOODS, d.between(4, 7))
    amounts = [(d.between(1, 9), d.pick(MEASURES)) for _ in foods]
    dish, serves, factor = f"{d.pick(foods)} {d.pick(DISHES)}", d.between(2, 6), d.between(2, 4)
    steps = ["Wash", "Stir in", "Add", "Warm", "Fold in", "Pour in", "Weigh out", "Sprinkle", "Mix in", "Heat"]
    minutes = d.between(2, 12) * 5
    lines = [f"{capitalized(dish)}, as {cook} makes it in {place}. Serves {number(serves)}.", "You need:"]
    lines += [f"- {counted(n, m)} of {food}" for (n, m), food in zip(amounts, foods)]
    lines.append(" ".join(f"{d.pick(steps)} the {food}." for food in foods) +
                 f" Cook the {dish} for {minutes} minutes and let it rest for {minutes // 5} more.")
    lines.append(f"For {number(serves * factor)} guests take {number(factor)} times as much: " +
                 listing([f"{counted(n * factor, m)} of {food}" for (n, m), food in zip(amounts, foods)]) + ".")
    for i in d.sample(range(len(foods)), 2):
        lines.append(f"How much of the {foods[i]} for {number(serves)}? {capitalized(counted(*amounts[i]))}.")
    return "\n".join(lines)


def shop(d: Draw) -> str:
    """A conversation in a shop. Every line of the bill follows from the text before it."""
    keeper, buyer = d.people(2)
    wares = d.sample(THINGS, d.between(2, 4))
    bought = [(d.between(1, 6), d.between(1, 9)) for _ in wares]
    total = sum(n * price for n, price in bought)
    paid = (total // 10 + 1) * 10
    lines = [f"\"Hello, {buyer},\" said {keeper}. \"What can I do for you?\"",
             f"\"I would like {listing([counted(n, w) for (n, _), w in zip(bought, wares)])}, please.\""]
    so_far = 0
    for (n, price), ware in zip(bought, wares):
        so_far += n * price
        lines.append(f"\"{capitalized(a(ware))} costs {price} pence, so {counted(n, ware)} {'costs' if n == 1 else 'cost'} "
                     f"{n * price} pence. Together that makes {so_far} pence.\"")
    lines.append(f"{buyer} paid with {paid} pence, and {keeper} gave {paid - total} pence back.")
    lines.append(f"{d.pick(['At home', 'On the way home', 'That evening'])} {buyer} counted: " +
                 ", ".join(f"{counted(n, w)} for {n * price} pence" for (n, price), w in zip(bought, wares)) +
                 f", {total} pence in all.")
    return "\n".join(lines)


def shed(d: Draw) -> str:
    """The stock of a shed, with the changes and the new stock of each day."""
    owner, *helpers = d.people(4)
    place = d.pick(["shed", "cellar", "attic", "barn", "workshop", "storeroom"])
    kinds = d.sample(THINGS, d.between(3, 5))
    stock = [d.between(2, 12) for _ in kinds]
    stock_text = lambda: listing([counted(n, k) if n else "no " + plural(k) for n, k in zip(stock, kinds)])
    lines = [f"In the {place} of {owner} there were {stock_text()}. That made {sum(stock)} things in all."]
    first_stock = list(stock)
    for day in DAYS[:d.between(3, 5)]:
        who, i = d.pick(helpers), d.below(len(kinds))
        if stock[i] > 1 and d.chance(55):
            n = d.between(1, min(stock[i], 5))
            stock[i] -= n
            lines.append(f"On {day} {who} took away {counted(n, kinds[i])}.")
        else:
            n = d.between(1, 6)
            stock[i] += n
            lines.append(f"On {day} {who} brought {counted(n, kinds[i])}.")
        lines[-1] += f" Now there were {stock_text()}."
    lines.append(f"At the end {owner} counted {sum(stock)} things.")
    i = d.below(len(kinds))
    lines.append(f"How many {plural(kinds[i])} were there at first? {first_stock[i]}. And at the end? {stock[i]}.")
    return "\n".join(lines)


def sums(d: Draw) -> str:
    """A page from a school book."""
    child, limit = d.people(1)[0], d.pick([10, 20, 50])
    lines = [f"{child}'s sums, {d.pick(DAYS)}."]
    for _ in range(d.between(6, 12)):
        x, y = d.between(1, limit), d.between(1, limit)
        kind = d.below(3)
        if kind == 0:
            lines.append(f"{x} + {y} = {x + y}")
        elif kind == 1:
            lines.append(f"{x + y} - {y} = {x}")
        else:
            x, y = d.between(1, 10), d.between(1, 10)
            lines.append(f"{x} x {y} = {x * y}")
    lines.append(f"{child} counts on: {', '.join(str(x + i * y) for i in range(8))}.")
    return "\n".join(lines)


def sale(d: Draw) -> str:
    """An auction: lots with two bids each, then the list of who has what."""
    crier, *bidders = d.people(6)
    lots, town = things(d, d.between(4, 6)), d.invented_name()
    lines, won = [f"{crier} held an auction in {town} in {d.pick(SEASONS)}. There were {number(len(lots))} lots."], []
    for n, lot in enumerate(lots, 1):
        (first_bidder, second_bidder), first_bid = d.sample(bidders, 2), d.between(3, 40)
        second_bid = first_bid + d.between(1, 9)
        lines.append(f"Lot {n} was {a(lot)}. {first_bidder} offered {first_bid} pence. {second_bidder} offered {second_bid} pence, and so the {lot} went to {second_bidder}.")
        won.append((lot, second_bidder, second_bid))
    lines.append("The list at the end: " + "; ".join(f"lot {n}, the {lot}, to {who} for {p} pence"
                                                     for n, (lot, who, p) in enumerate(won, 1)) + ".")
    for lot, who, pence in d.sample(won, 2):
        lines.append(d.pick([f"Who has the {lot}? {who}.", f"What did the {lot} cost? {pence} pence."]))
    return "\n".join(lines)
