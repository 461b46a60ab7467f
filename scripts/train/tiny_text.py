"""The embedded model's language: word lists, sentences, stories and question kinds, from a seed.

This module needs only the standard library and bpe.py. scripts/demo.py and `sleigh eval` use exactly the wording of the training texts, because
another wording lowers the model's scores.

    python3 scripts/train/tiny_text.py --kind needle --tokens 8192 --questions 16 --seed 1

prints JSONL lines {"id", "kind", "context", "question", "answer"}. A prompt is context + question. It ends in "Answer:", and the model
continues with the answer and a newline, e.g. " 1234567.\\n". Generate to the newline, and compare the stripped line with the stripped
answer (the full stop is part of both).
"""
import argparse
import json
import os
import random
import sys

from bpe import Tok

# ---- words ----

NOUNS = """river mountain lantern garden window bottle candle basket mirror ladder hammer anchor blanket pillow
kettle teapot saddle feather pebble bridge tunnel harbor meadow forest valley island desert canyon glacier volcano
castle tower temple palace cottage cabin barn stable kitchen cellar attic chimney staircase hallway library
museum theater market bakery station airport hospital school college factory workshop office studio gallery
apple banana cherry grape lemon melon orange peach pear plum berry carrot potato onion pepper pumpkin tomato
cabbage spinach garlic mushroom walnut almond peanut honey butter cheese bread biscuit cookie pancake pudding soup
tiger lion leopard panther wolf fox bear rabbit squirrel badger otter beaver hedgehog monkey elephant giraffe zebra
camel donkey horse pony goat sheep lamb turtle lizard snake frog toad salmon trout shark whale dolphin octopus crab
lobster eagle falcon hawk owl raven crow sparrow robin pigeon parrot penguin swan goose duck turkey spider beetle
butterfly dragonfly cricket ant wasp snail worm violin piano guitar trumpet flute drum cello harp whistle bell
camera radio telephone computer printer engine motor wheel pedal rocket balloon airplane helicopter submarine canoe
sailboat ferry wagon carriage bicycle scooter tractor truck compass telescope microscope magnet battery cable
pencil notebook envelope letter stamp postcard newspaper magazine dictionary map globe calendar clock watch ring
necklace bracelet crown helmet shield sword arrow banner ribbon button needle thread scarf jacket sweater mitten
glove boot sandal slipper hat umbrella wallet purse suitcase backpack pocket curtain carpet cushion sofa table chair
desk shelf drawer cupboard closet hook rope chain lock key door gate fence wall roof floor brick stone marble
crystal diamond emerald ruby pearl silver copper iron glass paper cotton velvet leather wood cloud storm thunder
rain snow wind fog frost sunrise sunset shadow rainbow comet planet star moon ocean beach wave cliff cave pond
stream fountain waterfall path road street corner village city country kingdom flower tulip daisy lily rose thistle
clover ivy fern moss oak maple willow cedar pine birch branch leaf root seed acorn barrel bucket shovel rake broom
sponge towel soap comb brush razor plate bowl spoon fork knife cup mug jar lid tray oven stove""".split()
ADJS = """quiet bright ancient gentle hollow golden silent crimson frozen hidden narrow rusty wooden purple yellow
green blue red white black gray brown pink violet scarlet amber ivory tiny little small large huge giant tall short
long wide deep shallow heavy light thick thin round square flat curved straight crooked smooth rough soft hard
sharp blunt warm cool cold hot icy dry damp wet dusty muddy sandy rocky grassy snowy rainy windy stormy sunny
cloudy foggy misty early late young old new modern famous secret common rare simple plain fancy elegant humble
noble royal loyal honest clever wise foolish brave timid shy bold calm nervous happy cheerful merry sad lonely
angry grumpy sleepy tired lazy busy eager curious careful careless patient playful polite rude kind cruel friendly
jealous proud modest greedy generous hungry thirsty healthy fragile sturdy strong weak quick slow swift rapid
steady sudden gradual distant nearby local foreign northern southern eastern western central upper lower inner
outer empty full open broken perfect precious cheap costly useful useless strange odd weird normal regular random
magic mighty fierce wild tame savage graceful clumsy shiny dull faded vivid pale dark gloomy dim glowing sparkling
striped spotted polished painted woven carved knitted folded twisted tangled loose tight sweet sour bitter salty
spicy fresh stale ripe rotten crispy creamy juicy noisy loud hushed musical velvet silver copper solid liquid
lucky unlucky jolly sincere stubborn restless peaceful daring""".split()
VERB_T = """carried found opened painted watched followed cleaned repaired collected borrowed lifted pushed pulled moved
covered touched noticed admired described remembered discovered examined measured counted protected guarded polished
wrapped delivered dropped stole bought sold built broke washed kicked missed chose drew held kept lost loved
liked needed wanted welcomed visited passed crossed reached circled warmed cooled shook tied hid mended sketched
photographed planted trimmed weighed packed unpacked returned traded decorated""".split()
VERB_I = """waited slept laughed smiled rested wandered vanished appeared arrived listened sang danced whispered shouted
trembled paused stopped turned grew fell stood sat lay rolled floated drifted glowed faded waved stumbled hurried
lingered sighed yawned blinked climbed jumped crawled marched traveled returned remained hesitated sneezed hummed""".split()
ADV = """slowly quickly quietly loudly gently carefully suddenly happily sadly proudly patiently softly eagerly calmly
politely bravely nervously silently often rarely again twice always never early late together alone""".split()
PREP = """near behind beside under above beyond inside outside around past toward across against""".split()
TIMEP = """In the morning|In the evening|At noon|At midnight|Last winter|Last summer|Every spring|Every autumn|After lunch|
Before dinner|On Monday|On Tuesday|On Friday|On Sunday|Long ago|One day|Later that day|During the storm|
After the rain|Most of the time|From time to time|At the end of the week|A year later|By that time""".replace("\n", "").split("|")
MASC = """Adam Albert Andrew Arthur Benjamin Boris Bruno Carl Charles Daniel David Dennis Edgar Edward Felix Frank
Frederick George Gilbert Harold Henry Hugo Isaac Jacob James Jonas Joseph Julian Karl Kevin Leon Louis Lucas Marcus
Martin Matthew Max Michael Nathan Nicholas Noah Oliver Oscar Otto Patrick Paul Peter Philip Ralph Raymond Richard
Robert Roland Samuel Simon Stefan Stephen Theodore Thomas Timothy Tobias Victor Vincent Walter William""".split()
FEMI = """Ada Agnes Alice Amelia Anna Beatrice Bella Bridget Camilla Caroline Cecilia Clara Daisy Diana Dora Edith
Eleanor Elena Elsa Emily Emma Esther Eva Fiona Flora Frances Grace Greta Hannah Harriet Helen Ida Irene Iris Isabel
Jane Jessica Josephine Julia Karen Katherine Laura Lena Lily Linda Louise Lucy Mabel Margaret Maria Martha Matilda
Miriam Molly Nadia Naomi Nina Nora Olive Olivia Paula Petra Rachel Rebecca Rosa Ruth Sarah Selma Sofia Stella Susan
Teresa Ursula Vera Victoria Violet Wanda Winifred Yvonne Zoe""".split()
SURN = """Abbott Baker Barnes Becker Bennett Berg Blake Brooks Burton Carter Chandler Clark Coleman Cooper Curtis
Dalton Dawson Draper Ellis Evans Ferris Fischer Fletcher Foster Garner Gibson Graham Grant Hale Harper Hayes Holt
Hudson Hunter Jensen Keller Kramer Lambert Larsen Lawson Manning Marsh Mason Meyer Miller Mercer Morris Murray Nash
Norton Olsen Page Palmer Parker Pearce Porter Quinn Reed Rivers Rhodes Sawyer Schmidt Shaw Sutton Thorne Tucker
Turner Vance Vogel Wagner Walsh Warner Weaver Webb Weber Whitman Winters Wolfe Young Ziegler""".split()
PLACES = """Amsterdam Athens Atlanta Auckland Baltimore Bangkok Barcelona Basel Belfast Berlin Bogota Bombay Boston
Brisbane Bristol Brussels Budapest Cairo Calgary Cardiff Chicago Cologne Copenhagen Dakar Dallas Damascus Denver
Detroit Dover Dresden Dublin Durban Edinburgh Florence Frankfurt Geneva Genoa Glasgow Granada Hamburg Hanoi Havana
Helsinki Houston Istanbul Jakarta Kingston Krakow Kyoto Lagos Leeds Leipzig Lima Lisbon Liverpool London Lyon
Madrid Malaga Manila Marseille Melbourne Memphis Miami Milan Montreal Moscow Munich Nairobi Naples Nashville Odessa
Orlando Osaka Oslo Ottawa Oxford Palermo Paris Perth Phoenix Plymouth Portland Porto Prague Quebec Quito Riga Rome
Rotterdam Salem Salzburg Santiago Seattle Seoul Seville Sheffield Sofia Stockholm Stuttgart Sydney Tampa Tokyo
Toronto Tunis Turin Utrecht Valencia Vancouver Venice Verona Vienna Warsaw Wellington Winnipeg York Zagreb
Zurich""".split()
JOBS = """baker banker barber brewer butcher carpenter cashier chemist clerk coach cook courier dancer dentist designer
doctor driver farmer fisherman florist gardener geologist glassmaker guard hairdresser hunter janitor jeweler judge
lawyer librarian locksmith mason mechanic miner musician nurse painter pharmacist photographer pilot plumber poet
porter potter printer professor sailor scientist sculptor secretary shepherd shoemaker singer soldier surgeon
surveyor tailor teacher translator waiter watchmaker weaver welder writer zookeeper""".split()
NAMES = MASC + FEMI

def _distinct(words):
    return list(dict.fromkeys(words))


NOUNS, ADJS, VERB_T, VERB_I, NAMES, SURN, PLACES, JOBS = map(
    _distinct, (NOUNS, ADJS, VERB_T, VERB_I, NAMES, SURN, PLACES, JOBS))
KEY_ADJS = [w for w in ADJS if len(w) <= 6][:100]  # most needle keys use short words: few tokens
KEY_NOUNS = [w for w in NOUNS if len(w) <= 6][::2]

# ---- sentences and stories ----


def a_an(w):
    return ("an " if w[0] in "aeiou" else "a ") + w

def plural(n):
    if n.endswith(("s", "sh", "ch", "x")): return n + "es"
    if n.endswith("y") and n[-2] not in "aeiou": return n[:-1] + "ies"
    if n == "knife": return "knives"
    if n.endswith("lf") or n.endswith("af"): return n[:-1] + "ves"
    return n + "s"
def filler_sentence(r):
    """Returns a sentence from a grammar, without a leading blank."""
    N = lambda: r.choice(NOUNS)
    A = lambda: r.choice(ADJS)
    VT = lambda: r.choice(VERB_T)
    VI = lambda: r.choice(VERB_I)
    P = lambda: r.choice(PREP)
    D = lambda: r.choice(ADV)
    def NP():
        k = r.random()
        if k < 0.35: return "the " + N()
        if k < 0.65: return "the %s %s" % (A(), N())
        if k < 0.80: return a_an("%s %s" % (A(), N()))
        if k < 0.90: return a_an(N())
        return "the %s of the %s" % (N(), N())
    def SUBJ():
        k = r.random()
        if k < 0.7: return NP()
        if k < 0.85: return r.choice(NAMES)
        return r.choice(("nobody", "everyone", "someone", "the old man", "the young woman", "a child", "my friend",
                         "our neighbor", "the teacher", "the captain"))
    k = r.randrange(20)
    if k == 0: s = "%s %s %s" % (SUBJ(), VT(), NP())
    elif k == 1: s = "%s %s %s %s %s" % (SUBJ(), VT(), NP(), P(), NP())
    elif k == 2: s = "%s %s %s" % (SUBJ(), VI(), D())
    elif k == 3: s = "%s %s %s %s" % (SUBJ(), VI(), P(), NP())
    elif k == 4: s = "%s, %s %s %s" % (r.choice(TIMEP), SUBJ(), VT(), NP())
    elif k == 5: s = "%s, %s %s %s %s" % (r.choice(TIMEP), SUBJ(), VI(), P(), NP())
    elif k == 6: s = "there was %s %s %s" % (a_an(A() + " " + N()), P(), NP())
    elif k == 7: s = "%s was %s, but %s was %s" % (NP(), A(), NP(), A())
    elif k == 8: s = "%s and %s were %s" % (NP(), NP(), r.choice(("both %s" % A(), "never far apart", "in the same room", "gone")))
    elif k == 9: s = "when %s %s, %s %s" % (SUBJ(), VI(), SUBJ(), VI())
    elif k == 10: s = "%s %s %s because %s was %s" % (SUBJ(), VT(), NP(), NP(), A())
    elif k == 11: s = "%s was more %s than %s" % (NP(), A(), NP())
    elif k == 12: s = "%s %s were kept %s %s" % (r.choice(("some", "many", "two", "three", "five", "most")), plural(N()), P(), NP())
    elif k == 13: s = "%s never %s %s again" % (SUBJ(), VT(), NP())
    elif k == 14: s = "it was %s day, and %s %s %s" % (a_an(A()), SUBJ(), VI(), D())
    elif k == 15: s = "%s said that %s was %s" % (SUBJ(), NP(), A())
    elif k == 16: s = "the color of %s was %s" % (NP(), r.choice(("red", "green", "blue", "yellow", "white", "black", "brown")))
    elif k == 17: s = "%s %s %s, and then %s" % (SUBJ(), VT(), NP(), r.choice(("everyone laughed", "the light went out", "it was quiet", "the music stopped", "we went home")))
    elif k == 18: s = "without %s, %s would be %s" % (NP(), NP(), A())
    else: s = "%s has %s and %s" % (SUBJ(), a_an(A() + " " + N()), a_an(N()))
    return s[0].upper() + s[1:] + "."
NOISE_UNITS = [
    ["The field is wide.", "The lake is calm.", "The wind is cold.", "On we walk.", "Out and home again."],
    ["The grass is soft.", "The sky is clear.", "The sun is warm.", "Off we go.", "Up and down again."],
    ["The snow is white.", "The night is long.", "The moon is round.", "So it goes.", "Once and once more."],
    ["The road is dry.", "The hill is steep.", "The rain is near.", "Now we rest.", "Here and gone again."],
]
def noise_unit(r):
    if r.random() < 0.5:
        return r.choice(NOISE_UNITS)
    n = r.randint(2, 4)
    u = ["The %s is %s." % (r.choice(NOUNS), r.choice(ADJS)) for _ in range(n)]
    u += r.sample(["On we walk.", "Off we go.", "So it goes.", "Now we rest.", "Out and home again.", "Once and once more.",
                   "Up and down again.", "That is all.", "Round and round."], r.randint(1, 2))
    return u
STORY_OPEN = [
    "Once upon a time there was {a} {ROLE} named {N}.",
    "Long ago, {a} {ROLE} named {N} lived near the {PL}.",
    "{N} was {a} {ROLE} who lived in {CITY}.",
    "There once was {a} {ROLE} called {N}, and everybody in the village knew {him}.",
    "In {CITY} there lived {a} {ROLE} named {N}.",
]
STORY_TRAIT = [
    "{He} was {ADJ} and {ADJ2}, and {he} loved {his} {PET}.",
    "{He} had {a2} {PET} named {PETN}.",
    "Every morning {he} walked to the {PL} with {his} {PET}.",
    "{He} liked to sit by the {PL} and look at the {SKY}.",
    "Most of all, {he} wanted to find {a3} {OBJ}.",
    "{His} house was small, but it had a big {HOUSE}.",
    "People said that {he} was the most {ADJ} person in the whole country.",
]
STORY_EVENT = [
    "One day, {N} found {a3} {OBJ} near the {PL}.",
    "One day, {his} {OBJN} was gone.",
    "One night, {he} heard a strange noise from the {PL}.",
    "One morning, a letter came from {CITY2}.",
    "One evening, {he} met {F} on the road to {CITY2}.",
    "That winter, the snow was deep and the {PL} was closed.",
    "One afternoon, {his} {PET} ran into the {PL} and did not come back.",
]
STORY_REACT = [
    "{N} was very {FEEL}.",
    "At first {he} did not know what to do.",
    '"What is this?" {he} asked.',
    '"I must do something," said {N}.',
    "{He} thought about it for a long time.",
    "{He} put on {his} {CLOTH} and went outside.",
    "{His} heart was beating fast.",
]
STORY_TRY = [
    "{He} looked under the {THING}, but there was nothing there.",
    "{He} looked behind the {THING} and found only {a4} {THING2}.",
    "{He} walked across the {PL2} and over the bridge.",
    "{He} asked the {JOB}, but the {JOB} did not know.",
    "{He} climbed up the hill and looked around.",
    "{He} waited for two days and two nights.",
    "{He} called, but nobody answered.",
    "The way was long, and the {SKY} was dark.",
]
STORY_HELP = [
    "Then {he} met {F}, {a5} {ROLE2} from {CITY2}.",
    '"Can you help me?" asked {N}.',
    '"Of course I can help you," said {F}.',
    "{F} gave {him} {a4} {THING2} and told {him} to be careful.",
    '"Look inside the {THING}," said {F}.',
    "Together they went back to the {PL}.",
    "{F} had seen the {OBJN} before.",
]
STORY_END = [
    "In the end, {N} found the {OBJN} inside the {THING}.",
    "At last the {OBJN} was safe.",
    "{N} thanked {F} and went home.",
    "They had dinner together and talked until midnight.",
    "From that day on, {N} and {F} were good friends.",
    "{N} was {FEEL2}, and so was {his} {PET}.",
    "And they never went to the {PL2} again.",
    "After that, everyone was {FEEL2}.",
]
ROLES = "boy girl man woman farmer king queen sailor teacher baker hunter painter child singer writer doctor".split()
PETS = "dog cat horse bird rabbit goat parrot donkey".split()
PETN = "Max Bella Lucky Daisy Rusty Coco Shadow Pepper".split()
PLS = "river forest lake market castle harbor garden station mountain library valley bridge".split()
SKYS = "sky moon stars clouds sea sunset".split()
HOUSES = "garden kitchen window door table chimney cellar".split()
OBJS = "ring key map lantern crown book clock box bell stone mirror letter coin".split()
THINGS = "table chair bed box tree stone door basket carpet barrel".split()
FEELS = "surprised sad angry afraid excited worried nervous".split()
FEELS2 = "happy glad proud calm cheerful".split()
CLOTHS = "hat boots jacket scarf gloves".split()
def story_sentences(r):
    fem = r.random() < 0.5
    n = r.choice(FEMI if fem else MASC)
    f = r.choice([x for x in (r.choice(NAMES), r.choice(NAMES)) if x != n] or ["Robin"])
    ro = r.choice([x for x in ROLES if x not in (("man", "boy", "king") if fem else ("woman", "girl", "queen"))])
    o = r.choice(OBJS); oa = r.choice(ADJS); th2 = r.choice(NOUNS); pet = r.choice(PETS)
    ad = r.choice(ADJS)
    role = ro if r.random() < 0.4 else ad + " " + ro
    objf = o if r.random() < 0.4 else oa + " " + o
    role2 = r.choice(JOBS)
    d = dict(N=n, F=f, ROLE=role, ROLE2=role2, CITY=r.choice(PLACES), CITY2=r.choice(PLACES), ADJ=r.choice(ADJS), ADJ2=r.choice(ADJS),
             PET=pet, PETN=r.choice(PETN), PL=r.choice(PLS), PL2=r.choice(PLS), SKY=r.choice(SKYS), HOUSE=r.choice(HOUSES),
             OBJ=objf, OBJN=o, THING=r.choice(THINGS), THING2=th2, FEEL=r.choice(FEELS), FEEL2=r.choice(FEELS2), CLOTH=r.choice(CLOTHS),
             JOB=r.choice(JOBS), he="she" if fem else "he", He="She" if fem else "He", his="her" if fem else "his",
             His="Her" if fem else "His", him="her" if fem else "him")
    art = lambda w: "an" if w[0] in "aeiou" else "a"
    d.update(a=art(role), a2=art(pet), a3=art(objf), a4=art(th2), a5=art(role2))
    out = [r.choice(STORY_OPEN)]
    for pool, lo, hi in ((STORY_TRAIT, 1, 3), (STORY_EVENT, 1, 1), (STORY_REACT, 1, 2), (STORY_TRY, 1, 3), (STORY_HELP, 1, 3), (STORY_END, 1, 3)):
        k = r.randint(lo, hi)
        ix = set(r.sample(range(len(pool)), k))
        if pool is STORY_HELP: ix.add(0)                    # introduces the friend
        if 2 in ix and pool is STORY_HELP: ix.add(1)        # answer only after the question
        out += [pool[i] for i in sorted(ix)]
    return [s.format(**d) for s in out]

# ---- tokens ----

_tok = None


def count_tokens(text):
    """Counts tokens with the embedded model's tokenizer."""
    global _tok
    if _tok is None:
        _tok = Tok.load(os.path.join(os.path.dirname(__file__), "../..", "models", "tiny", "tokenizer.json"))
    return len(_tok.encode(text))


# ---- questions ----

INTRO_NEEDLES = "Some special magic numbers are hidden in the text below. Remember them, because there will be questions about them later."
INTRO_PEOPLE = "Read the notes below. There will be questions about people and places."
INTRO_WORDS = "Read the coded words below and count how often each one appears."
INTRO_VARIABLES = "The text below sets some variables. Keep track of their values."
END = " This is the end of the text.\n"
ROOM_FOR_ANSWER = 64  # tokens that question and answer take at most


def keys(rng, n):
    """n distinct adjective-noun keys."""
    m = len(KEY_NOUNS)
    return [f"{KEY_ADJS[i // m]}-{KEY_NOUNS[i % m]}" for i in rng.sample(range(len(KEY_ADJS) * m), n)]


def similar_keys(rng, n):
    """n distinct keys of few words, so that one of its two words does not identify a key."""
    m = next(m for m in range(1, n + 1) if 2 * m * m >= 3 * n or m == n)
    adjectives, nouns = rng.sample(KEY_ADJS, m), rng.sample(KEY_NOUNS, m)
    return [f"{adjectives[i // m]}-{nouns[i % m]}" for i in rng.sample(range(m * m), n)]


def people(rng, n):
    return [f"{NAMES[i // len(SURN)]} {SURN[i % len(SURN)]}" for i in rng.sample(range(len(NAMES) * len(SURN)), n)]


def number(rng, digits=7):
    return str(rng.randrange(10 ** (digits - 1), 10**digits))


def needle(key, value):
    return f" One of the special magic numbers for {key} is: {value}."


def ask_number(key):
    return f"What is the special magic number for {key} mentioned in the text? Answer:"


def needles(rng, n, n_asked, values=1, digits=7, keys=keys):
    """Returns n needles, and questions for n_asked needles. `values` is how many numbers each key has, `keys` a function that names keys."""
    facts, questions = [], []
    for i, key in enumerate(keys(rng, n)):
        found = [number(rng, digits) for _ in range(values)]
        facts.append([needle(key, v) for v in found])
        question = ask_number(key) if values == 1 else f"What are all the special magic numbers for {key} mentioned in the text? Answer:"
        if i < n_asked:
            questions.append((question, " " + ", ".join(found) + "."))
    return facts, questions


def several_needles(rng, n, n_asked):
    """Questions that ask for four keys at once."""
    names, facts, questions = keys(rng, n), [], []
    values = [number(rng) for _ in names]
    facts = [[needle(k, v)] for k, v in zip(names, values)]
    for q in range(n_asked):
        group = rng.sample(range(n), 4)
        listed = ", ".join(names[i] for i in group[:-1]) + " and " + names[group[-1]]
        questions.append((f"What are the special magic numbers for {listed} mentioned in the text? Answer:",
                          " " + ", ".join(f"{names[i]}: {values[i]}" for i in group) + "."))
    return facts, questions


def one_hop(rng, n, n_asked):
    facts, questions = [], []
    for i, name in enumerate(people(rng, n)):
        place, job = rng.choice(PLACES), rng.choice(JOBS)
        facts.append([f" {name} works in {place} as a {job}."])
        if i < n_asked:
            questions.append((f"Where does {name} work? Answer:", f" {place}.") if i % 2 else
                             (f"What is the job of {name}? Answer:", f" {job}."))
    return facts, questions


def two_hop(rng, n, n_asked):
    """A lives with B, B lives in a place. The answer names both facts."""
    names, facts, questions = people(rng, 2 * n), [], []
    for i in range(n):
        a, b, place = names[2 * i], names[2 * i + 1], rng.choice(PLACES)
        facts += [[f" {a} lives with {b}."], [f" {b} lives in {place}."]]
        if i < n_asked:
            questions.append((f"Where does {a} live? Answer:", f" with {b} in {place}."))
    return facts, questions


def variable_chains(rng, n, n_asked, hops=4):
    facts, questions, names = [], [], set()
    while len(names) < n * (hops + 1):
        names.add("".join(rng.choice("ABCDEFGHIJKLMNOPQRSTUVWXYZ") for _ in range(3)))
    names = sorted(names)
    rng.shuffle(names)
    for i, value in enumerate(rng.sample(range(10000, 100000), n)):
        chain = names[i * (hops + 1):(i + 1) * (hops + 1)]
        facts.append([f" VAR {chain[0]} = {value}."] + [f" VAR {b} = VAR {a}." for a, b in zip(chain, chain[1:])])
        if i < n_asked:
            questions.append((f"Which variables hold {value}? Answer:", " " + ", ".join(chain) + "."))
    return facts, questions


# kind: (introduction, facts and questions, facts for n questions)
KINDS = {
    "needle": (INTRO_NEEDLES, needles, lambda n: n),
    "multivalue": (INTRO_NEEDLES, lambda rng, n, asked: needles(rng, n, asked, values=4), lambda n: n),
    "multiquery": (INTRO_NEEDLES, several_needles, lambda n: max(4, 4 * n)),
    "one-hop": (INTRO_PEOPLE, one_hop, lambda n: 2 * n + 2),
    "two-hop": (INTRO_PEOPLE, two_hop, lambda n: n + 2),
    "variables": (INTRO_VARIABLES, variable_chains, lambda n: n),
}


def coded_word(rng):
    """A word of two or three syllables that means nothing."""
    consonants = "b d f g k l m n p r s t v z ch sh".split()
    return "".join(rng.choice(consonants) + rng.choice("aeiou") for _ in range(rng.choice((2, 3, 3))))


def frequent_words_context(rng, n_tokens):
    """Coded words whose frequencies fall with the square of their rank (RULER's FWE); the question asks for the top three."""
    n_words = max(12, n_tokens // 50)
    words = []
    while len(words) < n_words:
        word = coded_word(rng)
        if word not in words:
            words.append(word)
    size = [count_tokens(" " + w) for w in words]
    share = [(k + 1) ** -2.0 for k in range(n_words)]
    budget = n_tokens - ROOM_FOR_ANSWER - 1 - count_tokens(INTRO_WORDS) - count_tokens("." + END)
    scale = budget / sum(p * n for p, n in zip(share, size))
    text = [" " + w for w, p in zip(words, share) for _ in range(int(scale * p))]
    rng.shuffle(text)
    question = "Which three coded words appear most often? Answer:"
    return INTRO_WORDS + "".join(text) + "." + END, [(question, " " + ", ".join(words[:3]) + ".")]


def filler(rng, budget, stories=False):
    """Sentences of at most `budget` tokens in all, each with a leading blank; a paragraph ends now and then."""
    out = []
    while True:
        batch = story_sentences(rng) if stories else [filler_sentence(rng)]
        for sentence in batch:
            text = ("\n" if out and rng.random() < 1 / 12 else " ") + sentence
            budget -= count_tokens(text)
            if budget < 0:
                return out
            out.append(text)


def compose(rng, intro, facts, n_tokens):
    """Distributes the facts over filler so that the text has just below n_tokens tokens. The order of facts in a group stays."""
    fixed = 1 + count_tokens(intro) + count_tokens(END) + sum(count_tokens(s) for group in facts for s in group)
    sentences = filler(rng, n_tokens - ROOM_FOR_ANSWER - fixed)
    placed = []
    for group in facts:
        places = sorted(rng.randrange(len(sentences) + 1) for _ in group)
        placed += zip(places, group)
    placed.sort(key=lambda item: item[0])
    out, at = [intro], 0
    for place, fact in placed:
        out += sentences[at:place] + [fact]
        at = place
    return "".join(out + sentences[at:] + [END])


def task_context(kind, rng, n_tokens, n_questions):
    """Returns (context, [(question, answer), ...]). Context, BOS, a question and its answer have together just below n_tokens tokens."""
    if kind == "frequent-words":
        return frequent_words_context(rng, n_tokens)
    intro, make, n_facts = KINDS[kind]
    facts, questions = make(rng, n_facts(n_questions), n_questions)
    return compose(rng, intro, facts, n_tokens), questions


def needle_context(rng, n_tokens, n_needles):
    return task_context("needle", rng, n_tokens, n_needles)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--kind", choices=sorted([*KINDS, "frequent-words"]), default="needle")
    p.add_argument("--tokens", type=int, default=8192)
    p.add_argument("--questions", type=int, default=16)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--prompt", action="store_true", help="print one prompt instead: the context and its first question")
    a = p.parse_args()
    context, questions = task_context(a.kind, random.Random(a.seed), a.tokens, a.questions)
    if a.prompt:
        sys.stdout.write(context + questions[0][0])
        return
    for i, (question, answer) in enumerate(questions):
        print(json.dumps({"id": i, "kind": a.kind, "context": context, "question": question, "answer": answer}))


if __name__ == "__main__":
    main()
