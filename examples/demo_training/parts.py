"""Parts from which the second stage of training composes its sentences.

The clauses of ``tables.py`` are few enough that a model learns their wording; here a clause is
drawn from a small grammar, so that hardly any two are alike. A slot in braces is replaced by one of
the alternatives of ``PARTS`` (separated by ``|``), again and again, until only the slots of
``tables.py`` are left.

No part but "yes" holds a word of the polarity lexicon, so that sign and class come from the word
put into a polarity slot (a test compares them); an alternative that is repeated is more frequent.
"""

from __future__ import annotations

from typing import Final

PARTS: Final = {
    "det": "the|the|the|the|the|the|this|that|our|my|their|his|her|the other|the first|the second",
    "thing": "{x}|{x}|{x}|{n}|{nadj} {x}",
    "city": "Graz|Vienna|Leeds|Oslo|Porto|Boston|Lyon|Dublin|Kyoto|Denver|Toronto|Madrid|Turin",
    "name": "Anna|Peter|Maria|Tom|Julia|David|Nora|Ben|Emma|Paul|Mrs Brown|Mr Green|Lucas|Ida",
    "place": """station|harbor|square|bridge|church|school|library|river|tower|corner|entrance|
second floor|north side|main road|museum|park|post office|town hall|airport|garage|kitchen|cellar|
yard|hall|counter|door|window|shelf|lake|village|valley|desk|table|building|street|platform|roof|
wall|stage|lobby|crossing|factory|field|coast|island|basement|corridor|staircase|drawer|
cupboard""",
    "prep": """near|behind|beside|opposite|in front of|under|above|inside|outside|next to|at|by|in|
beyond|along|around|on|over|across|past|through|between the {n} and|not far from|close to""",
    "pp": """{prep} the {place}|{prep} the {place}|{prep} the {place}|{prep} the {n}|
{prep} {det} {thing}|from {city}|in {city}|with {num} {p0}|on page {num}|at number {num}""",
    "unit": """minutes|hours|days|weeks|months|years|meters|miles|kilometers|pages|grams|liters|
dollars|euros|people|inches|pounds|degrees|rows|floors|steps|letters|boxes""",
    "time": """{when}|{when}|{when}|on Monday|on Tuesday|on Thursday|at {num}|at six|
at half past nine|in {month}|in {year}|every hour|twice a day|each morning|since {year}|until noon|
before lunch|after dinner|for {num} {unit}|all afternoon|during the week|most days|once a month|
by then|now|these days|then|today|tomorrow|tonight|next week|a year ago|in the afternoon|later|
at midnight|every other day|from Monday to Friday|within {num} days|in the evening|on weekdays|
in spring""",
    "pro": "it|this|that|he|she|everything|all of it",
    "sg": """{det} {thing}|{det} {thing}|{det} {thing}|{det} {thing}|{det} {thing} {pp}|{s}|{s}|
{pro}|{name}|{who}|one of {p}|the {x} of the {x}|the {x} that we {vt}|the {n} {x}|
{det} {thing} and everything about it|{det} {thing} I {vt}""",
    "pl": """{p}|{p}|these {p0}|those {p0}|our {p0}|their {p0}|they|both|most of them|we|you|
some of the {p0}|{num} {p0}|the {x} and the {x}|{p} {pp}|all of them|{name} and {name}|
the {n} and {p}""",
    "obj": """{det} {thing}|{det} {thing}|a(n) {thing}|{p}|it|them|{num} {p0}|the {nadj} {p0}|
some {p0}|{det} {thing} {pp}|a(n) {n}|the {n}|one of the {p0}""",
    "people": "me|us|them|him|her|you|{who}|everyone|all of us|{name}|the guests|the children|{p}",
    "agent": "I|I|we|we|they|you|he|she|{who}|{who}|{name}|{name} and I|everyone|the {n}|{p}",
    "nadj": """blue|red|green|white|black|gray|brown|yellow|wooden|round|square|small|large|tall|
short|wide|narrow|local|daily|weekly|double|single|northern|western|metal|glass|plastic|printed|
empty|full|digital|separate|second|last|previous|usual|common|public|foreign|medium|electric|
monthly|flat|deep|distant|outer|inner|upper|left|ordinary|typical|various|indoor""",
    "vt": """moved|opened|closed|put|placed|parked|sent|printed|read|wrote|painted|measured|
counted|passed|used|kept|took|brought|bought|sold|ordered|carried|checked|watched|saw|heard about|
asked for|looked at|talked about|wrote about|showed|mentioned|described|picked|collected|returned|
changed|turned|washed|packed|unpacked|folded|signed|copied|noted|drew|followed|met|visited|rented|
borrowed|cut|mixed|poured|boiled|tied|taught|filmed|listed|numbered|tried|had|got|booked""",
    "vi": """stood|sat|hung|lay|began|opened|closed|ran|led|went|arrived|came|stayed|waited|turned|
changed|moved|lived|worked|walked|drove|rang|continued|appeared|remained|sang|spun|rolled|flew|
grew|slept|talked|answered|cooked|danced|wrote|acted|sounded|traveled|started""",
    "vs": """stands|sits|hangs|begins|opens|closes|runs|leads|goes|arrives|comes|stays|waits|turns|
moves|lives|works|rings|starts|leaves|departs|continues|appears""",
    "vb": """open|close|start|move|go|come|leave|arrive|include|contain|use|have|show|need|change|
run|carry|read|print|take|bring|send|turn|keep|put|see|find|order|count|paint|wash""",
    "part": """built|opened|closed|moved|printed|painted|written|made|put|placed|sent|sold|kept|
measured|counted|designed|organized|arranged|prepared|served|run|done|produced|filmed|packed|
delivered|returned|washed|drawn|lit|furnished|decorated|planned|translated|recorded|cooked""",
    "be": "was|was|was|is|is|will be|has been|had been|can be|may be|would be",
    "cop": """was|was|was|was|is|is|is|seemed|felt|looked|sounded|became|appeared|remained|stayed|
turned out|turned out to be|got|ended up|has been|had been|must be|can be|will be|seems|feels|
looks|sounds|remains|has become|was always|is always|was once again|is still|would have been|
ended up being|can only be called|was from the start|used to be|was, {tag},|went down as|
came over as|registered as|read as|could pass as|was seen as|was remembered as|presented itself as|
ranks as|counts as|sounded to me|was described as""",
    "cops": """were|were|were|are|are|seemed|felt|looked|sounded|became|appeared|remained|stayed|
turned out|turned out to be|got|ended up|have been|had been|must be|can be|will be|seem|feel|look|
sound|remain|have become|were always|are still|used to be|were, {tag},|went down as|
came over as|registered as|read as|could pass as|were seen as|presented themselves as|count as""",
    "ncop": """was not|was not|wasn't|wasn't|is not|isn't|is never|was never|has never been|
hasn't been|had not been|will not be|won't be|cannot be|can't be|could not be|did not seem|
didn't seem|did not feel|didn't feel|did not look|does not look|doesn't sound|did not sound|
did not appear|did not turn out|never seemed|never felt|never looked|never became|never got|
never sounded|was by no means|is by no means|was in no way|is not exactly|was not really|
was hardly|was barely|was scarcely|is hardly|is no longer|was far from|is far from|
was anything but|is anything but|was not even|wasn't remotely|was not all that|didn't get|
did not look or feel|does not seem|never once felt|never turned out|is not really|
did not go down as|never went down as|did not register as|never registered as|did not read as|
never read as|never came over as|didn't come over as|did not pass as|never passed as|
was not seen as|was never seen as|did not present itself as|never presented itself as|
never ranked as|does not rank as|does not count as|never counted as|did not feel to me|
never sounded to us|didn't appear to me|was not described as|did not show itself as|
never was described as|could never pass as|did not hit me as|never hit us as""",
    "ncops": """were not|weren't|are not|aren't|are never|were never|have never been|haven't been|
will not be|won't be|cannot be|can't be|did not seem|didn't seem|did not feel|didn't feel|
did not look|don't look|don't sound|did not appear|never seemed|never felt|never looked|
were by no means|were in no way|are not exactly|were not really|were hardly|are hardly|
were far from|are far from|were anything but|are anything but|were not even|didn't turn out|
did not go down as|never went down as|did not register as|never registered as|never read as|
never came over as|did not come over as|did not pass as|never passed as|were not seen as|
never presented themselves as|do not count as|never counted as|did not feel to me|
never sounded to us|were never described as|did not hit me as""",
    "tag": """in my view|I think|for us|overall|as always|I believe|this time|it seemed|to me|
in short""",
    "deny": """I don't think|I do not think|I didn't think|I did not think|I don't believe|
I do not believe|I never thought|I never felt|I wouldn't say|I would not say|I would never say|
I wouldn't claim|I can't claim|I cannot claim|I could not claim|I cannot pretend|I won't pretend|
we do not feel|we didn't feel|we don't think|nobody thought|no one thought|nobody could claim|
nobody would say|no one would say|few would say|none of us thought|none of us felt|
{who} doesn't think|{who} did not think|{who} never said|you can't claim|you would not think|
you could not say|I am not saying|they never told us|I don't see how""",
    "that": "that| that|",
    "nfind": """I did not find|I didn't find|I never found|I wouldn't call|I would not call|
I can't call|I cannot call|we didn't find|nobody called|no one called|nobody would call|
none of us found|{who} did not find|{who} wouldn't call|you can't call|few people found|
they don't consider|we do not consider|I don't consider|nobody here thought|I can hardly call""",
    "find": """I found|we found|{who} found|they found|I called|{who} called|we thought|I think|
I consider|most people find|everyone found|you will call|{name} called|some call|I'd call|
they made|we considered|I have always found|many would call""",
    "open": """in my view |in my opinion, |if you ask me, |overall, |in short, |I think |
I think that |I believe |I suppose |I guess |I would say |I have to say that |let me say that |
let me add that |we all felt that |my feeling is that |they say |they told us that |
as I remember it, |by the way, |looking back, |on the whole |on balance, |this time |once again |
as always, |as usual, |at first |at the end of the day, |in general, |for me, |for us, |
what can I say: |so |well, |yes, |and |also, |then |first, |finally, |in the end |
after {num} minutes |{time}, |{time} |{time} |according to {who}, |{who} said |{who} says that |
{who} thinks |all of us thought |some say |you could say that |it seemed to me that |
it turned out that |it looks as if |the thing is that |remember that |note that |
the point is that |it has to be said that |for {num} {unit} |when we arrived |as {who} told me, |
I can only say that |I noticed that |we noticed that |I know that |because |if I remember it, |
as far as I know, |one thing first: |to sum up, """,
    "tail": """ to me| for me| in my eyes| overall| on the whole| as always| as usual| this time|
 once more| from the start| for the most part| in every way| if you ask me| in my opinion| {time}|
 {time}| {time}| {pp}| {pp}| all the way through| by any measure| to everyone| to this day|
 as far as I can see| again| and nothing else| from beginning to end| for everyone| I think|
, I think|, {who} said| when we came back| after all| each time| for {num} {unit}""",
    # Whole clauses: facts, then those with a polarity slot; TURNED turns its sign round.
    "fact": """{sg} {vi} {pp}|{sg} {vs} {pp}|{sg} {vs} {time}|{sg} {vi} {time}|{pl} {vi} {pp}|
{agent} {vt} {obj}|{agent} {vt} {obj} {pp}|{agent} {vt} {obj} {time}|
{agent} {vt} {obj} {pp} {time}|{sg} {be} {part} {pp}|{sg} {be} {part} {time}|
{sg} {be} {part} by {who}|{pl} were {part} {pp}|{pl} are {part} {time}|{sg} {be} {pp}|
{pl} are {pp}|{sg} is {nadj}|{sg} was {nadj} and {nadj}|{sg} is a(n) {nadj} {thing}|
{sg} {cop} {nadj}|{pl} {cops} {nadj}|{find} {sg} {nadj}|there is a(n) {thing} {pp}|
there was a(n) {thing} {pp}|there are {num} {p0} {pp}|{num} {p0} {vi} {pp}|
there were {p0} {pp} and a(n) {n} {pp}|{sg} has {num} {unit}|{sg} had {num} {p0} and a(n) {n}|
{sg} contains {num} {p0}|{sg} takes {num} {unit}|{sg} is {num} {unit} long|
{sg} is {num} {unit} away|{sg} did not {vb} {time}|{sg} does not {vb} {pp}|
{sg} will not {vb} {obj}|{agent} didn't {vb} {obj}|there is no {thing} {pp}|there was no {n} {pp}|
{sg} has no {n}|nobody {vt} {obj} {time}|{sg} was never {part} {pp}|{sg} {ncop} {nadj}|
{sg} {ncop} {part} {time}|{deny} {sg} was {pp}|{deny} {that} {sg} {vi} {time}|
you can {vb} {obj} {pp}|you may {vb} {obj} {time}|you must {vb} {obj} {time}|
you should {vb} {obj} {pp}|{vb} {obj} {pp}|{vb} {obj} {time}|where is {sg}?|when does {sg} {vb}?|
how many {p0} are {pp}?|which {x} {vs} {pp}?|did {who} {vb} {obj}?|is {sg} {pp}?|
can I {vb} {obj} {pp}?|{who} asked whether {sg} {vi} {pp}|{who} wrote that {sg} {vi} {time}|
{num} {unit} {pp}|{sg}: {num} {unit}|{time} {sg} {vi} {pp}|{sg} was the {nadj} one|
the {n} of {sg} is {nadj}|{sg} and {sg} are {pp}|{pl} have {nadj} {p0}|
{sg} {vs} {pp} and {vs} {time}|{sg} comes in {nadj} and {nadj}|{nadj} {p0} {pp}|
{det} {nadj} {thing}|{num} of the {p0} are {nadj}|{agent} {vt} {obj} and then {vt} {obj}|
{sg} {be} about {det} {n}|{sg} is the {num} {x} {pp}|we are {pp}|{agent} {vi} {pp} {time}|
{sg} {vi} {pp} until {time}|the {n} {n} {vs} {pp}|{n} and {n} {vi} {pp}|{sg} {be} called {name}|
{sg} {be} {n}|{sg} {vs} {n}|the {n} {cop} {n}|{n} {n} {n}|{n}, {n} and {n}|the {n} {n} of the {n}|
{n} for {n} with a(n) {n}|{agent} {vt} {n} and {n}|a(n) {n} {n}|{n}|{n} {n}|{n} {pp}|
{name} {vi} the {n} of {city}|{pl} {vi} {n}""",
    "ADJ": """{sg} {cop} {i}{adj}|{sg} {cop} {i}{adj}|{sg} {cop} {i}{adj}|
{sg} {cop} {i}{adj}{tail}|{pl} {cops} {i}{adj}|{pl} {cops} {i}{adj}{tail}|{find} {sg} {i}{adj}|
{find} {pl} {adj}{tail}|{sg} {cop} {adj} and {adj2}|{pl} {cops} {adj} and {adj2}|
{sg} {cop} both {adj} and {adj2}|{det} {adj} {thing} {vi} {pp}|{agent} {vt} a(n) {i}{adj} {thing}|
{agent} {vt} {det} {adj} {thing} {time}|there was a(n) {adj} {thing} {pp}|
there is a(n) {i}{adj} {thing} {pp}|{sg} has {adj} {p0}|{sg} has a(n) {adj} {thing}|
{agent} had {adj} {p0} {pp}|{sg} is one of the most {adj} {p0} {pp}|
{sg} {cop} a(n) {i}{adj} {thing}|{sg} {be} such a(n) {adj} {thing}|
{sg} is quite a(n) {adj} {thing}|a(n) {i}{adj} {thing} {pp}|{adj} {thing} {pp}|
what a(n) {adj} {thing}|how {adj}|how {adj} {pl} were|so {adj}|{i}{adj}|{i}{adj}{tail}|
{adj}, {adj2} and {adj3}|{sg} {cop} {adj}, {adj2} and {adj3}|{sg} is as {adj} as ever|
{sg} was as {adj} as it gets|the most {adj} part was {sg}|the most {adj} thing {pp} is {sg}|
{sg} made {people} {adj}|{sg} may be the most {adj} {x} ever|nothing is as {adj} as {sg}|
no {x} was more {adj} than {sg}|never was a {x} so {adj}|for {who} {sg} {cop} {adj}|
{sg} {cop} just as {adj} as {sg}|that {thing} {cop} {i}{adj}|you get {adj} {p0} {pp}|
{sg} {vi} {pp} and {cop} {adj}|{pl} {vi} {pp}, {adj} and {adj2}|{adj} from start to end|
{sg}: {i}{adj}|{sg}, {i}{adj}|{adj} {p0}, {adj2} {x}|{adj} {n}|a(n) {adj} {n}|
I {vt} {obj} and {sg} {cop} {adj}|{sg} with its {adj} {p0}|it {cop} {adj} to have {sg} {pp}|
the {n} {cop} {adj}|the {adj} {n} of {sg}|{sg} {vs} {pp} as a(n) {adj} {n}|this {adj} {thing}|
{sg}, which {be} {adj}, {vi} {pp}|the whole {x} {cop} {i}{adj}|one {adj} {n}|
{who} and {who} {cops} {adj}""",
    "ADJ TURNED": """{sg} {ncop} {i}{adj}|{sg} {ncop} {adj}|{sg} {ncop} {adj}|
{sg} {ncop} {adj}{tail}|{pl} {ncops} {i}{adj}|{pl} {ncops} {adj}|{deny} {that} {sg} {cop} {adj}|
{deny} {that} {sg} {cop} {adj}|{deny} {that} {pl} {cops} {adj}|{nfind} {sg} {adj}|
{nfind} {sg} {i}{adj}|{nfind} {pl} {adj}{tail}|not a(n) {adj} {thing}|not {i}{adj}|not {adj}{tail}|
there was nothing {adj} about {sg}|there is nothing {adj} in {sg}|nothing about {sg} was {adj}|
nothing {pp} felt {adj}|neither {sg} nor {sg} was {adj}|{sg} {cop} neither {adj} nor {adj2}|
{sg} is not what I call {adj}|{sg} {ncop} a(n) {adj} {thing}|{sg} did not make a(n) {adj} {thing}|
hardly a(n) {adj} {thing}|far from {adj}|anything but {adj}|{sg} is not my idea of {adj}|
none of the {p0} were {adj}|{sg} {ncop} {adj} or {adj2}|no {x} could be less {adj} than {sg}|
{sg} {cop} less than {adj}|{sg} {cop} not {adj}|{sg} has never had a(n) {adj} {thing}|
not one of the {p0} {cop} {adj}""",
    "ED": """{agent} felt {i}{ed} by {obj}|{agent} left {i}{ed}|{agent} came home {ed}{tail}|
{agent} went away {i}{ed}|{agent} looked {ed}|{agent} ended up {i}{ed}|{agent} got {ed} {pp}|
I am {i}{ed}|we are {i}{ed} with {obj}|I was {i}{ed} about {obj}|{who} is {i}{ed} with {obj}|
{sg} left {people} {i}{ed}|{sg} kept {people} {ed}|{sg} {ed} {people}|{sg} {i}{ed} {people}{tail}|
{i}{ed} by {obj}|{ed} with {obj} {pp}|{ed}, {who} {vi} {pp}|{pl} were {i}{ed}|
{people} {ed} by {obj}|all of the {p0} were {ed}|everyone here is {i}{ed}|
a(n) {ed} {thing} {vi} {pp}|{ed} {p0} {vi} {pp}|{who} has never been so {ed}|
rarely have I been so {ed}|{agent} {vi} {pp}, {ed} and {ed2}|{agent} felt {ed} and {ed2}|
{sg} had me {ed}{tail}|{time} we were {i}{ed}|{ed} {pp}|{sg} {cop} {ed}|
because of {obj} we felt {ed}|{agent} remained {ed} for {num} {unit}|most of us were {i}{ed}""",
    "ED TURNED": """{agent} was not {i}{ed}|I wasn't {ed} by {obj}|{agent} did not feel {ed}{tail}|
I never felt {ed} by {obj}|{who} was hardly {ed}|we were not {i}{ed} with {obj}|I am not {i}{ed}|
nobody felt {ed} by {obj}|none of us was {ed}|{sg} did not leave {people} {ed}|no one left {ed}|
{sg} never {ed} {people}|{agent} didn't look {ed}|hardly anyone was {ed}|not {ed} by {obj}|
{deny} {that} anyone was {ed}|{who} isn't {ed} with {obj}|{sg} has never {ed} {people}""",
    "ADV": """{sg} {vi} {adv} {pp}|{sg} was {adv} {part}|{adv}, {fact}|{agent} {vt} {obj} {adv}|
{agent} {adv} {vt} {obj}|{pl} {vi} {adv} {time}|{sg} {cop} {adv} {nadj}|{adv} {part} {p0} {pp}|
{pl} were {adv} {part}|{sg} {vs} {adv}|{agent} {vi} {adv}{tail}|{sg} {vi} {adv}|{fact}, {adv}|
{sg} {be} {adv} {part} {pp}|a(n) {adv} {part} {thing}|{agent} {vi} {adv} and {adv2}|
{sg} {vi} {i}{adv}|{pl} {vi} {i}{adv}|everything {vi} {adv}{tail}|how {adv} {sg} {vi}|
as {adv} as {sg} {vi}|{adv} {n}""",
    "ADV TURNED": """{sg} did not {vb} {adv}|{sg} was not {adv} {part}|
{agent} never {vt} {obj} {adv}|{pl} were hardly {adv} {part}|{sg} does not {vb} {adv}""",
    "NOUN": """{sg} was full of {noun}|{sg} is filled with {noun}|{sg} was a source of {noun}|
{sg} is a sign of {noun}|{sg} is known for its {noun}|{sg} is all about {noun}|{agent} felt {noun}|
{sg} was nothing but {noun}|{agent} saw {noun} {pp}|{agent} noticed the {noun} {pp}|
{sg} brought {noun}|{sg} showed {noun}|{sg} meant {noun} for {people}|{sg} gave {people} {noun}|
{sg} added {noun}|there was {noun} {pp}|there is so much {noun} {pp}|{noun} {pp}|
with {noun}, {fact}|{fact} with {noun}|the {noun} of {sg}|so much {noun}|
{noun}, {noun2} and {noun3}|{pl} met us with {noun}|I could feel the {noun} {pp}|
I remember the {noun} {pp}|{sg} filled {people} with {noun}|{sg} has {noun} and {noun2}|
a picture of {noun}|{noun} is what {sg} is about|the {noun} {pp} {vi} {time}|
{sg} is one of {noun} and {noun2}|we heard about the {noun} of {sg}|my first thought was {noun}""",
    "NOUN TURNED": """there was no {noun} {pp}|there was little {noun}|
there isn't much {noun} {pp}|{sg} had no {noun}|{sg} brought no {noun}|{sg} showed no {noun}|
without {noun}|no {noun} {pp}|{agent} felt no {noun}|nobody showed any {noun}|
{fact} without any {noun}|{sg} never gave {people} {noun}""",
    "OTHER": """{other}|{other} and {other2}|{other} {pp}|{sg} will {other} {people}|{sg}: {other}|
{who} said {other} {pp}|the {other} {pp}|they {other} {obj}|{sg} {other} {people}|
{agent} {other} {obj}|so much {other} {pp}|{sg} with its {other}|{other}, {other2} and {other3}|
{sg} is about {other}|we saw {other} {time}|there is {other} {pp}|{other} {obj} {time}|
I only remember {other}""",
}
