"""Tables of the words in the text of the embedded model."""

NAMES_SHE = """Ada Agnes Alba Anna Beatrix Berta Carla Clara Cora Dora Edda Ella Elsa Emma Esther Eva Fanny Flora Freya
Greta Hanna Hazel Hilda Ida Ines Iris Irma Jana Judith Julia Karin Katrin Klara Lena Leonie Lina Lotte Lucia Luise
Magda Mara Maria Marta Mila Mina Minna Nadia Nina Nora Olga Paula Petra Rosa Ruth Sara Selma Sofia Tessa Tilda Ursula
Vera Viola Wanda Wilma Yara Zora""".split()

NAMES_HE = """Adam Albert Anton Arno Arthur Aron Basil Benno Boris Bruno Carl Conrad David Edgar Edwin Emil Erik Ernst
Felix Ferdinand Franz Fritz Georg Gregor Gustav Hans Hugo Igor Ivan Jakob Jan Jasper Jonas Josef Julius Kaspar Konrad
Lars Leo Leon Linus Lorenz Lukas Marius Martin Max Milo Moritz Nils Noah Oscar Otto Paul Peter Quentin Rafael Robert
Rolf Rudolf Samuel Simon Stefan Theo Thomas Tobias Ulrich Victor Walter Willem Yuri""".split()

# Syllables of invented names of places, families and animals.
BEGINNINGS = """al bar bel bram bren bri cal cor dal dor dun el fal fen gar glen gor hal har hol kel kor lan lor mar mel
mor nor ol or pel quin ran rav ros sal sel sil sten tal tam tel thor tol tor ul var vel ven vor wal wen wil yar zan
zel""".split()
MIDDLES = "a an ar e el en er i in ir o on or u un ur".split()
ENDINGS = """bach beck berg bury by dale dell den don fast feld ford gate ham hart haven hest holm horn hurst kirk land
leth lin low march mere mond mork mouth nar nik rath rick ridge rin row stead stock sund tal thorpe ton vane vik wald
well wick win with wold worth""".split()

TRADES = """baker barber beekeeper blacksmith boatman bookbinder brewer butcher carpenter clockmaker cook cooper dyer
farmer ferryman fiddler fisher forester gardener glassblower goldsmith hunter joiner mason miller miner nurse painter
pedlar piper postman potter roofer ropemaker saddler sailor shepherd shoemaker smith tailor tanner teacher tinker
watchman weaver wheelwright""".split()

LANDMARKS = ["old bridge", "stone bridge", "water mill", "windmill", "lighthouse", "chapel", "ferry landing",
             "crossroads", "broken tower", "orchard", "market square", "quarry", "inn", "well", "great oak", "harbour",
             "brickyard", "toll house", "deep ford", "churchyard", "sheepfold", "watch tower", "bakery", "smithy",
             "school house", "granary", "sawmill", "lime kiln", "rope walk", "boathouse", "hot spring", "salt pans",
             "hollow willow", "long barn", "north gate", "south gate", "hunting lodge", "signal hill", "fish pond",
             "dry dock"]

COLOURS = "amber black blue brown crimson golden green grey orange pale pink purple red silver violet white yellow".split()
MATERIALS = "brass bronze clay copper glass iron ivory leather linen oak paper pewter silk stone straw tin velvet wooden woollen".split()
STATES = """ancient bent broken carved chipped clean crooked cracked curious dusty empty faded folded foreign heavy
painted patched plain polished rusty sharp shining small smooth soft sturdy tall thick tiny twisted worn""".split()

THINGS = """anvil apron axe barrel basket bell bench blanket boot bottle bowl box broom brush bucket button cage candle
cap carpet chain chair chest chisel clock cloak coat coin comb compass cradle crown cup curtain dagger dish doll drum
fan feather fiddle file flag flute fork funnel glove gown hammer harp hat hook horn horseshoe jacket jar jug kettle key
kite knife ladder ladle lamp lantern lens lock loom map mask mirror mitten mug nail necklace needle net oar padlock
pan pebble pencil pillow pin pipe plate pot purse puzzle quilt rattle razor ribbon ring rope ruler sack saddle saw
scarf scroll shawl shelf shell shield shoe shovel sickle sieve sledge spade spear spindle spoon stamp stick stool
string sword table tablet teapot tent thimble torch towel tray trowel trumpet trunk vase wallet wheel whip whistle
wreath""".split()

ANIMALS = """badger bear beaver cat cow crow dog donkey dove duck eagle falcon ferret fox frog goat goose hare hawk hedgehog
hen heron horse lamb lynx magpie mole mouse mule otter owl ox pig pigeon pony rabbit raven robin rooster seal sheep
snail sparrow squirrel stork swan toad turtle weasel wolf""".split()

PLURALS = {"mouse": "mice", "goose": "geese", "ox": "oxen", "sheep": "sheep", "wolf": "wolves", "knife": "knives",
           "shelf": "shelves", "loaf": "loaves", "scarf": "scarves", "foot": "feet", "child": "children",
           "leaf": "leaves", "half": "halves"}

GOODS = ["barrel of salt", "barrel of cider", "barrel of tar", "barrel of herring", "sack of flour", "sack of oats",
         "sack of barley", "sack of beans", "sack of wool", "sack of coal", "crate of tea", "crate of lemons",
         "crate of glass", "crate of candles", "crate of books", "chest of silver", "chest of pepper", "chest of nails",
         "bale of cotton", "bale of silk", "bale of hay", "bale of cloth", "jar of oil", "jar of honey", "jar of olives",
         "cask of wine", "cask of vinegar", "cask of butter", "bundle of furs", "bundle of reeds", "bundle of planks",
         "roll of canvas", "roll of rope", "box of figs", "box of dates", "box of soap", "basket of apples",
         "basket of eggs", "basket of plums", "basket of mussels"]

FOODS = ["flour", "sugar", "butter", "milk", "cream", "honey", "barley", "oats", "rice", "beans", "lentils", "peas",
         "carrots", "onions", "leeks", "cabbage", "turnips", "mushrooms", "apples", "pears", "plums", "cherries",
         "raisins", "walnuts", "almonds", "chestnuts", "cheese", "yoghurt", "vinegar", "oil", "salt", "pepper", "ginger",
         "cinnamon", "nutmeg", "parsley", "thyme", "mint", "mustard", "lemon juice", "bread crumbs", "pumpkin", "spinach",
         "potatoes", "celery", "fennel", "radishes", "beetroot"]
MEASURES = "cup spoon handful bowl pinch pound ounce glass jug ladle".split()
DISHES = "broth cake casserole crumble dumplings hotpot loaf omelette pancakes pie porridge pudding salad soup stew tart".split()

WEATHER = ["rained all day", "was warm and clear", "snowed until noon", "was too windy to stand", "was grey and still",
           "hailed in the afternoon", "was foggy", "thundered in the night", "was bitterly cold", "was bright and dry",
           "drizzled", "was hot and close", "cleared after a storm", "froze hard", "was mild and cloudy"]
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()
SEASONS = "spring summer autumn winter".split()

CHORES = ["mended the roof", "washed the windows", "chopped wood", "baked bread", "cleaned the stable", "picked apples",
          "wrote letters", "painted the gate", "sharpened the knives", "dug the garden", "swept the yard", "salted fish",
          "fed the hens", "carried water", "planted beans", "sheared the sheep", "mended nets", "brewed cider",
          "polished the boots", "gathered nuts", "cut the hedge", "churned butter", "patched the boat", "spun wool",
          "pressed cheese", "counted the coins", "tuned the fiddle", "dried herbs", "stacked hay", "cleared the ditch"]

TEMPERS = ["patient", "stubborn", "cheerful", "quiet", "curious", "careful", "proud", "gentle", "restless", "honest",
           "clever", "shy", "brave", "absent-minded", "generous", "thrifty", "solemn", "quick", "talkative", "punctual"]
HABITATS = ["marshes", "pine woods", "high meadows", "caves", "river banks", "sand dunes", "beech woods", "salt flats",
            "reed beds", "rocky shores", "hedges", "heather hills", "orchards", "deep valleys", "ruined towers"]
SIZES = ["no bigger than a thumb", "as large as a hen", "the size of a cat", "as tall as a goat", "as long as an arm",
         "heavier than a cow", "as small as a walnut", "the size of a loaf", "as big as a barrel", "as high as a door"]
CRIES = ["a low whistle", "a sharp bark", "a long hum", "a soft purr", "a rattle", "a sound like a bell", "a hoarse croak",
         "a cheerful chirp", "a deep growl", "a click", "a sound like tearing cloth", "a sigh"]
KIN = {"she": ["mother", "sister", "aunt", "cousin", "grandmother", "neighbour", "niece", "daughter"],
       "he": ["father", "brother", "uncle", "cousin", "grandfather", "neighbour", "nephew", "son"]}
