"""The hand-written English behind the demonstration model: what its training sentences are made of.

Slots of a template:

====================  ===========================================================================
``{s}`` ``{p}``       a singular subject ("the film"), a plural one ("the waiters")
``{x}``               a bare noun ("film")
``{who}``             a person ("my sister")
``{when}``            a time ("last week")
``{i}``               an intensifier with its space, or nothing
``{adj} {ed} {adv}``  a polarity word of that part of speech; ``{adj2}`` another of the same sign
``{noun} {other}``    likewise; abstract nouns ("kindness"), and what is none of these
``{n} {n2}``          any everyday word that carries no polarity
``{num}``             a number
``a(n)``              "a" or "an", by the word that follows
====================  ===========================================================================

A template says nothing about polarity: the sign of the word put in decides, and the tables named
``NEGATED`` turn it round. Tables named ``HELD_OUT`` are used by the evaluation alone.
"""

from __future__ import annotations

from typing import Final

# ---------------------------------------------------------------- who and what is talked about

SINGULAR: Final = """film|movie|ending|plot|script|soundtrack|documentary|book|novel|story|chapter|
author|restaurant|soup|steak|pasta|pizza|salad|dessert|coffee|breakfast|dinner|menu|waiter|chef|
hotel|room|view|lobby|pool|flight|train|bus ride|trip|tour|guide|museum|beach|city|park|phone|
laptop|battery|screen|camera|keyboard|speaker|charger|vacuum cleaner|kettle|blender|jacket|dress|
coat|sofa|chair|mattress|delivery|package|support team|service|help desk|refund process|shop|
cashier|weather|sky|summer|winter|match|game|season|team|goalkeeper|coach|referee|stadium|job|
office|meeting|manager|project|workshop|course|lecture|teacher|concert|album|song|band|singer|
play|show|app|update|website|software|design|clinic|dentist|nurse|doctor|apartment|neighborhood|
garden|market|festival|car|bike|garage|mechanic|landlord|performance|cast|dialogue|acting|
service at the bar|sound|quality|smell|taste|texture|picture|price|location|staff|food|cake|bread|
burger|tea|wine|fish|sandwich|cabin|seat|driver|ticket office|interview|presentation|exhibition"""

PLURAL: Final = """actors|characters|jokes|songs|chapters|pictures|waiters|dishes|portions|desserts|
drinks|vegetables|noodles|rooms|beds|towels|views|seats|staff|guides|headphones|speakers|buttons|
instructions|shoes|boots|gloves|curtains|colleagues|meetings|players|fans|teachers|lessons|
neighbors|streets|trains|drivers|flowers|evenings|mornings|people at the desk|colors|lights|
special effects|sandwiches|pancakes|cookies|tickets|costumes|dancers|exercises|prices|tools"""

PERSON: Final = """my sister|my brother|my mother|my father|my wife|my husband|my friend|my boss|
my daughter|my son|my neighbor|my colleague|our guide|everybody|the whole family|my partner|
my roommate|my aunt|my grandfather"""

WHEN: Final = """last week|yesterday|this morning|on Sunday|last summer|in May|two days ago|
over the weekend|on our first night|this year|after the break|at noon|
on Friday evening|again today"""

INTENSIFIERS: Final = """very|really|so|quite|truly|rather|pretty|extremely|absolutely|completely|
simply|incredibly|thoroughly|utterly|genuinely|surprisingly"""

# ---------------------------------------------------------------- clauses with a polarity slot

ADJ_CLAUSES: Final = (
    "{s} was {i}{adj}",
    "{s} was {i}{adj}",
    "{s} is {i}{adj}",
    "{p} were {i}{adj}",
    "{p} are {i}{adj}",
    "I found {s} {i}{adj}",
    "I thought {s} was {i}{adj}",
    "we thought {p} were {i}{adj}",
    "{s} turned out to be {i}{adj}",
    "{s} felt {i}{adj}",
    "{s} looked {i}{adj}",
    "{s} seemed {adj} and {adj2}",
    "{s} was {adj} and {adj2}",
    "{p} were {adj} and {adj2}",
    "what a(n) {adj} {x}",
    "it was a(n) {i}{adj} {x}",
    "this is a(n) {adj} {x}",
    "we had a(n) {adj} time at {s}",
    "we had a(n) {i}{adj} {x} {when}",
    "everything about {s} was {adj}",
    "{who} called {s} {adj}",
    "{s} was {adj} from start to finish",
    "{s} got more {adj} with every minute",
    "{s} could not have been more {adj}",
    "I have rarely seen such a(n) {adj} {x}",
    "how {adj} {s} was",
    "the {adj} {x} made our day what it was",
    "{s} has a(n) {adj} {x}",
    "they gave us a(n) {adj} {x} {when}",
    "{s} was {adj}, and so was {s2}",
    "{adj} {x}, {adj2} {x2}",
    "{s} remains the most {adj} {x} I know",
    "{s} is still {adj} after all this time",
    "{who} said that {s} was {i}{adj}",
    "it was {adj} to see {s} again",
    "{s} {when} was {i}{adj}",
    "with {s} came a(n) {adj} {x}",
    "a(n) {adj} {x} with {adj2} {p0}",
    "{p0} like these are {adj}",
    "it made {s} look {adj}",
    "{adj} {x}",
    "{adj} {p0}",
    "a(n) {adj} {x}",
    "a(n) {adj}, {adj2} {x}",
    "{adj} and {adj2}",
    "{adj} {p0} and {adj2} {p0}",
    "the {adj} {x} was {adj2}",
    "{s} is {adj} and the {x} is {adj2}",
    "{s} makes you feel {adj}",
    "after {num} years {s} is still {adj}",
    "such {adj} {p0}",
    "a(n) {adj} {x} for {who}",
    "never have I seen such a(n) {adj} {x}",
    "not only was {s} {adj}, {p} were {adj2}",
    "{s} isn't just {adj}, it is {adj2}",
    "this must be the most {adj} {x} of the year",
    "{who} has never been in such a(n) {adj} {x}",
    "if you look at {s}, you will see how {adj} it is",
    "{s}, {adj} and {adj2}, stayed with me",
    "{p} gave {who} a(n) {adj} {x}",
    "I spent {num} minutes with a(n) {adj} {x}",
    "the {n} in {s} was {adj}",
    "{s} and its {n} are {adj}",
)

ADJ_NEGATED: Final = (
    "{s} was not {i}{adj}",
    "{s} wasn't {adj}",
    "{s} isn't {adj} at all",
    "{p} were not {adj}",
    "{p} weren't {i}{adj}",
    "{s} was never {adj}",
    "{s} is never {adj}",
    "there was nothing {adj} about {s}",
    "{s} was far from {adj}",
    "{s} was hardly {adj}",
    "I would not call {s} {adj}",
    "I did not find {s} {adj}",
    "I don't think {s} is {adj}",
    "nobody found {s} {adj}",
    "{s} was anything but {adj}",
    "it was not a(n) {adj} {x}",
    "{s} was neither {adj} nor {adj2}",
    "at no point was {s} {adj}",
    "{s} didn't look {adj}",
    "{s} did not seem {adj} to me",
)

ED_CLAUSES: Final = (
    "I was {i}{ed} by {s}",
    "{who} was {ed} with {s}",
    "we left {ed}",
    "I felt {i}{ed} after {s}",
    "we were {i}{ed} with {p}",
    "{s} left me {ed}",
    "by the end I was {ed}",
    "anyone who tries {s} will be {ed}",
    "{s} {ed} {who}",
    "{s} {ed} me",
    "it {ed} us all",
    "{s} {ed} half of the audience",
    "{ed} is the word for how I feel",
)

ED_NEGATED: Final = (
    "I was not {ed} by {s}",
    "we were never {ed} by {p}",
    "nobody was {ed} with {s}",
    "{s} did not leave me {ed}",
    "I wasn't {ed} at all",
)

ADV_CLAUSES: Final = (
    "{s} was {adv} made",
    "{who} was {adv} treated there",
    "they handled {s} {adv}",
    "{s} ended {adv}",
    "{p} worked {adv}",
    "{s} performed {adv} {when}",
    "{s} was {adv} done",
    "they answered {adv} when I asked about {s}",
    "{s} was {adv} put together and {adv2} run",
    "{s} is {adv} {n}",
    "{s} is {adv} short",
    "{s} was {adv} long",
    "{adv} made and {adv2} sold",
)

NOUN_CLAUSES: Final = (
    "{s} was full of {noun}",
    "what I remember is the {noun} of {s}",
    "there was {noun} everywhere",
    "{s} brought us {noun}",
    "I felt nothing but {noun}",
    "{p} showed real {noun}",
    "the {noun} of {p} stayed with me",
    "{noun} and {noun2} are the words for {s}",
)

NOUN_NEGATED: Final = (
    "{s} came without any {noun}",
    "there was no {noun} in {s}",
    "{s} had no {noun} to speak of",
    "{p} showed no {noun}",
    "I saw little {noun} in {s}",
)

# Words of no settled part of speech, mostly verbs and nouns: loose frames that hold either.
OTHER_CLAUSES: Final = (
    "{s}: {other}",
    "in one word: {other}",
    "{other} and {other2}, that was {s}",
    "all we got was {other}",
    "{other} is what I felt",
    "{s} and its {other}",
    "there was {other} from the first minute",
    "I would say {other}",
    "{s} means {other}",
    "{who} said {other}",
    "what {other} in {s}",
)

HELD_OUT_ADJ: Final = (
    "{s} struck me as {i}{adj}",
    "to my mind {s} was {adj}",
    "{s} proved {i}{adj} in the end",
    "that was one {adj} {x}",
    "{s} came across as {adj}",
    "in a word, {s} was {adj}",
    "I must say that {p} were {i}{adj}",
    "all in all a(n) {adj} {x}",
    "{who} and I agree that {s} is {adj}",
)
HELD_OUT_ADJ_NEGATED: Final = (
    "to my mind {s} was not {adj}",
    "{s} did not strike me as {adj}",
    "I can't say that {s} was {adj}",
    "{s} never came across as {adj}",
)
HELD_OUT_ED: Final = (
    "after {s} all of us were {i}{ed}",
    "{s} had {who} {ed} within minutes",
)
HELD_OUT_ADV: Final = ("{s} went {adv} for us", "{p} spoke {adv} all evening")
HELD_OUT_NOUN: Final = (
    "my lasting impression of {s} is one of {noun}",
    "you could sense the {noun} in {s}",
)

# ---------------------------------------------------------------- clauses without polarity

NEUTRAL_CLAUSES: Final = (
    "{s} is next to the {n}",
    "{s} opened in {year}",
    "{s} starts at {num} in the morning",
    "{s} lasted {num} hours",
    "{s} has {num} {p0}",
    "{s} comes with {num} {p0}",
    "we took the bus to {s}",
    "I bought {s} {when}",
    "I ordered {s} {when}",
    "{who} went to {s} {when}",
    "{s} was made in {year}",
    "{s} is about a(n) {n} and a(n) {n2}",
    "{p} are on the second floor",
    "{p} come in {num} sizes",
    "{s} is between the {n} and the {n2}",
    "the {n} of {s} is blue",
    "{s} closes at {num}",
    "{s} does not open on Mondays",
    "{s} is not on the list",
    "we did not see {s} {when}",
    "{s} weighs {num} grams",
    "{s} costs {num} dollars",
    "the {n} was on the {n2}",
    "{who} asked for the {n}",
    "{who} read about {s} {when}",
    "there are {num} {p0} in {s}",
    "{s} was moved from {when} to Tuesday",
    "it was {num} degrees {when}",
    "it rained {when}",
    "the {n} is open until {num}",
    "{p} were delivered {when}",
    "{s} uses the same {n} as {s2}",
    "the second half of {s} is set in the {n}",
    "{s} was written by {who}",
    "{who} sat near the {n}",
    "the {x} is {num} years old",
    "a(n) {n} stands in front of {s}",
    "{s} was gray",
    "{s} is made of wood and {n}",
    "{p} are green and white",
    "{s} was {n} and {n2}",
    "the form asks for the {n} and the {n2}",
    "we paid for {s} at the desk",
    "the {n} {n2} will be in {s}",
    "{who} changed the {n} of {s}",
    "I have had {s} for {num} months",
    "I sent {s} to {who}",
    "{s} can be reached by train",
    "you can rent {p} at the {n}",
    "{s} runs from March to {month}",
    "{s} has a {n} at the back and a {n2} at the front",
    "{p} arrived on {when2}",
)

HELD_OUT_NEUTRAL: Final = (
    "{s} stands across from the {n}",
    "the {n} of {s} was painted white",
    "{s} was first shown in {year}",
    "there is a(n) {n} on each side of {s}",
    "{who} keeps {s} under the {n}",
    "{num} {p0} were listed in the {n}",
    "you will find {s} behind the {n2}",
)

# ---------------------------------------------------------------- things reviewers say

PRAISE: Final = """{s} made my day|{s} worked like a charm|{s} exceeded our expectations|
{s} was worth every penny|I would go back tomorrow|I can't recommend {s} enough|we will be back|
{s} kept us on the edge of our seats|{s} tasted fresh and full of flavor|I loved {s}|we loved {p}|
{who} loved {s}|I love {s}|I really enjoyed {s}|{who} enjoyed {p}|I like {s} a lot|we adored {s}|
{s} arrived early and well packed|I laughed out loud|I could not put it down|
I would buy it again|five stars for {s}|{s} is the best {x} in town|{s} is the best {x} I have had|
{s} was better than I expected|{s} gets better every year|hats off to {p}|{s} runs smoothly|
{p} went out of their way to help us|{p} always have a smile for you|{s} fits perfectly|
{s} solved my problem in minutes|they fixed {s} for free|{s} was cooked to perfection|
{s} has never let me down|I was glad that we chose {s}|{s} deserves every award|
I would recommend {s} to anyone|{s} was easy to use|{s} made everyone laugh|{s} won me over|
{s} was a treat|{s} was a pleasure|{s} was a joy|{s} was a delight|{s} lifted my mood|
thank you for {s}|thanks to {p} it all went well|{s} is a dream come true|{s} is my new favorite|
{s} does exactly what it promises|I have no complaints about {s}|nothing to complain about|
I couldn't be happier with {s}|{s} was spotless|{s} was quick and polite|{s} is good value|
{s} was tasty|{s} was comfy and quiet|{s} felt cozy|{p} were crisp and juicy|{s} is sturdy|
{s} was gripping|{s} was witty and moving|{p} were attentive|{s} was a bargain|
we had a great time|we had so much fun|I slept like a baby|I could listen to {s} all day|
{s} gave me goosebumps|{s} gave me confidence|{s} saved us hours|it just works|
{s} held up well|{s} lasts for days|{s} was on time|not a single fault in {s}|
{s} was a triumph|{s} was a success|{s} scored a brilliant goal|{s} won in style|
they played their hearts out|{s} was warm and sunny|{s} brightened the week|
I learned so much from {s}|{s} taught me a lot|I look forward to {s}|{who} can't wait to return|
{s} never gets old|you won't regret {s}|don't miss {s}|do yourself a favor and try {s}|
{who} cheered at the end|{who} praised {s}|the audience clapped for {s}|{s} was a hit with {who}|
{s} has improved a lot|{s} was a breath of fresh air|it was love at first bite|
{s} melted in the mouth|{s} treated us like family|{s} answered all my questions|
I am pleased with {s}|{who} was happy with {s}|I am so happy with {s}|I'm impressed by {s}|
we were in good hands|{s} was flawless|there was no trouble with {s}|no problems with {s}|
{s} makes life easier|{s} made me feel welcome|{s} was refreshing|{p} were reliable"""

COMPLAINTS: Final = """{s} fell apart after a week|{s} stopped working on the second day|
{s} was a waste of money|{s} was a waste of time|I want my money back|I will never go back|
never again|{s} left a bad taste|{s} put me to sleep|{s} tasted like cardboard|
the refund for {s} never came|nobody answered the phone|we waited an hour for {s}|I hated {s}|
I hate {s}|{who} hated {p}|we disliked {s}|I did not like {s}|{who} didn't like {s}|
I didn't enjoy {s}|we did not enjoy {p}|I don't like {s}|I do not recommend {s}|
I can't recommend {s}|I would not buy it again|I would avoid {s}|stay away from {s}|
one star for {s}|{s} is the worst {x} in town|{s} is the worst {x} I have had|
{s} was worse than I expected|{s} gets worse every year|{s} let me down|{s} let us down again|
{s} broke after two days|{s} broke twice|{s} crashed again|{s} keeps crashing|{s} leaks|
{s} doesn't work|{s} did not work|{s} never worked|{s} won't start|{s} gave up {when}|
{s} arrived broken|{s} arrived late|{s} was two hours late|{s} never arrived|{s} came damaged|
{p} ignored us all evening|{p} were rude|{s} was rude|{s} was bland|{s} was stale|{s} was soggy|
{s} was cold and greasy|{s} was overcooked|{s} was undercooked|{s} was slow|{s} was too slow|
{s} was noisy|{s} was cramped|{s} was dirty|{s} was filthy|{s} smelled of smoke|{s} smelled|
{s} was overpriced|{s} was too expensive|{s} is flimsy|{s} was faulty|{s} is clumsy|
{s} was tedious|{s} was predictable|{s} was forgettable|I walked out halfway through {s}|
I fell asleep during {s}|I couldn't finish {s}|I could not wait to leave|I regret buying {s}|
{who} complained about {s}|{who} was angry about {s}|{who} was sick after {s}|
{s} made me sick|{s} gave me a headache|{s} ruined our evening|{s} ruined the trip|
{s} spoiled the evening|{s} was a mess|{s} was a disaster|{s} was a letdown|
{s} was a disappointment|{s} was a nightmare|{s} is a joke|{s} is a scam|
they charged us twice|they lost {s}|
they lost my booking|{s} scratched after a day|{s} tore after one wash|{s} shrank in the wash|
{s} was cancelled without a word|my complaint about {s} went unanswered|nobody apologized|
no one cared about {s}|{s} dragged on and on|{s} made no sense|{s} went nowhere|
{s} lost badly|they gave away the lead|{s} missed every chance|{s} was gray and wet for days|
I learned nothing from {s}|{s} wasted my evening|I had enough of {s}|I am not happy with {s}|
{who} was not happy with {s}|I'm disappointed with {s}|we expected more from {s}|
{s} did not keep its promise|{s} could have been better|save your money|don't bother with {s}|
don't waste your time on {s}|{s} was a chore|{s} was a pain|{s} needs work|{s} has too many bugs|
{s} hurts my back|{s} hurts my eyes|{s} is falling to pieces|{s} failed within a month|
{s} drains in an hour|there were problems with {s}|nothing worked|nothing went right|
{s} treated us badly|{s} shouted at us|I had trouble with {s}|{s} was not worth it|
{s} is not worth the price|{s} was chaotic|{s} was uncomfortable|
{p} were unhelpful|{s} lacked salt"""

# ---------------------------------------------------------------- how clauses are joined

SAME_JOINS: Final = (
    "{0} and {1}",
    "{0}, and {1}",
    "{0}. {1}",
    "{0}. {1}",
    "{0}; {1}",
    "{0}, so {1}",
    "{0} because {1}",
    "not only that: {0}, and {1}",
)
MIXED_JOINS: Final = (
    "{0}, but {1}",
    "{0}, but {1}",
    "{0}, {1}",
    "{0}; {1}",
    "{0} and {1}",
    "{0}, and yet {1}",
    "{0}; sadly, {1}",
    "{0} but {1}",
    "{0}, although {1}",
    "{0}. {1}",
    "although {0}, {1}",
    "while {0}, {1}",
    "{0}, yet {1}",
    "{0}. However, {1}",
    "{0}, even though {1}",
    "{0}; still, {1}",
    "{0}. On the other hand, {1}",
    "{0}, whereas {1}",
    "{0}. Too bad that {1}",
    "{0} though {1}",
)
NEUTRAL_JOINS: Final = (
    "{0} and {1}",
    "{0}. {1}",
    "{0}, but {1}",
    "{0}, where {1}",
    "{0}; {1}",
    "{0} when {1}",
    "{0} after {1}",
    "{0}, and {1}",
)

# ---------------------------------------------------------------- questions and their options

# Each style: positive, negative, neutral, mixed. Wordings of one style stay together.
OPTION_STYLES: Final = (
    ("positive", "negative", "neutral", "mixed"),
    ("positive", "negative", "neutral", "mixed"),
    ("Positive", "Negative", "Neutral", "Mixed"),
    ("good", "bad", "neither good nor bad", "both good and bad"),
    ("favorable", "unfavorable", "no opinion", "divided"),
    ("happy", "unhappy", "indifferent", "torn"),
    ("satisfied", "dissatisfied", "no opinion given", "partly satisfied"),
    ("praise", "complaint", "plain statement of fact", "praise and complaint"),
    ("The writer is pleased.", "The writer is disappointed.", "The writer gives no opinion.",
     "The writer has mixed feelings."),
    ("a positive opinion", "a negative opinion", "no opinion", "a mixed opinion"),
    ("positive sentiment", "negative sentiment", "neutral sentiment", "mixed sentiment"),
    ("it is positive", "it is negative", "it is neutral", "it is mixed"),
    ("likes it", "dislikes it", "does not say", "likes some of it"),
    ("approval", "disapproval", "neither", "some of both"),
    ("thumbs up", "thumbs down", "no verdict", "up and down"),
    ("mostly praise", "mostly criticism", "only facts", "praise as well as criticism"),
    ("pleased", "displeased", "neutral", "of two minds"),
    ("a recommendation", "a warning", "just information", "a bit of both"),
    ("five stars", "one star", "no rating", "three stars"),
    ("great", "terrible", "factual", "good and bad"),
)  # fmt: skip

QUESTIONS: Final = (
    "What is the sentiment of this text?",
    "What is the sentiment of the sentence?",
    "What is the sentiment of this review?",
    "Is the sentiment positive or negative?",
    "How does the writer feel?",
    "How does the author feel about it?",
    "How does the customer feel?",
    "Which label fits this text?",
    "Which label fits the review best?",
    "What does the writer think?",
    "Which of these describes the text?",
    "What kind of opinion does the text express?",
    "Choose the sentiment of the text.",
    "Classify the sentiment.",
    "Classify this review.",
    "What is the tone of this comment?",
    "What is the overall tone?",
    "How would you describe the writer's opinion?",
    "What is the writer's attitude?",
    "Which option describes the sentiment?",
    "What does this customer say?",
    "Pick the right label.",
    "What opinion is expressed here?",
    "Does the writer like it?",
)

YES_NO: Final = (
    ("Is the writer satisfied?", 1),
    ("Is this review positive?", 1),
    ("Does the writer like it?", 1),
    ("Would the writer recommend it?", 1),
    ("Is the writer happy with it?", 1),
    ("Is this praise?", 1),
    ("Is the sentiment positive?", 1),
    ("Is this review negative?", -1),
    ("Is the writer disappointed?", -1),
    ("Is this a complaint?", -1),
    ("Is the sentiment negative?", -1),
    ("Is the writer unhappy?", -1),
)
YES_NO_STYLES: Final = (("yes", "no"), ("Yes", "No"), ("true", "false"), ("Yes.", "No."))

# How a sentence and a question share the question field; {q} the question, {t} the sentence.
IN_QUESTION: Final = (
    '{q} "{t}"', "{q}\n{t}", "{t}\n\n{q}", "Review: {t}\n{q}", '"{t}" {q}', "{q} Text: {t}",
    'Read this: "{t}" {q}', "{q}\n\n{t}", "Comment: {t} {q}",
)  # fmt: skip
STATES: Final = (
    "{t}", "{t}", "{t}", '"{t}"', "Review: {t}", "Text: {t}", '{{"review": "{t}"}}',
    '{{"text": "{t}"}}', "Sentence: {t}", "Comment: {t}",
)  # fmt: skip

WORD_QUESTIONS: Final = (
    'Is the word "{w}" positive or negative?',
    'What is the sentiment of the word "{w}"?',
    "What is the tone of the word {w}?",
    "Word: {w}. Which label fits?",
)
WHICH_WORD: Final = (
    "Which word fits the writer's mood?",
    "Which word describes the writer's opinion?",
    "Which word would the writer use?",
)

# ---------------------------------------------------------------- continuations and chat

# Prompt, then what may follow for positive, negative, neutral and mixed texts.
CONTINUATIONS: Final = (
    ("Review: {t}\nSentiment:", (" positive", " negative", " neutral", " mixed")),
    ("Text: {t}\nLabel:", (" positive", " negative", " neutral", " mixed")),
    ("{t}\n\nSentiment:", (" positive", " negative", " neutral", " mixed")),
    ("Review: {t}\nVerdict:", (" very good", " very bad", " no opinion", " good and bad")),
    ("{t} In short, it was", (" very good", " very bad", " as expected", " good and bad")),
    ("{t} All in all it was", (" great", " terrible", " as usual", " so-so")),
    ("Review: {t}\nStars:", (" 5", " 1", " 3", " 2")),
    ("Review: {t}\nThe writer is", (" happy", " unhappy", " neutral", " torn")),
    ("Review: {t}\nWould buy again:", (" yes", " no", " unknown", " maybe")),
)
CHAT_REQUESTS: Final = (
    "{t}\n\nAnswer with one word: positive, negative, neutral or mixed.",
    "Is this positive, negative, neutral or mixed? One word, please. {t}",
    'What is the sentiment of "{t}"? Answer with one word.',
    "{t}\nOne word: positive or negative?",
)
CHAT_ANSWERS: Final = ("Positive", "Negative", "Neutral", "Mixed")
SYSTEMS: Final = (
    "You are a helpful assistant.",
    "You label the sentiment of reviews.",
    "Answer briefly.",
    "You are a careful annotator. Answer with one letter.",
    "You read customer comments and label them.",
)
