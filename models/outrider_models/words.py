"""The lexicon of the prose grammar: large on purpose, so that the next word is really uncertain.

Word lists only, no grammar. Verbs are in the simple past; nouns are singular and countable.
"""

from __future__ import annotations

NOUNS = tuple(
    """river mountain window garden letter engine bridge lantern harbor village storm mirror forest kitchen
tower wagon island candle clock market desert palace railway orchard tunnel valley meadow library castle chimney
ladder blanket bottle hammer violin trumpet drum piano painting statue fountain courtyard balcony cellar attic
doctor farmer sailor teacher baker painter soldier merchant singer hunter miller tailor king queen stranger child
grandmother uncle neighbor captain poet thief judge monk shepherd fisherman carpenter scholar messenger widow
horse fox owl raven wolf bear cat dog goat swan eagle snake turtle rabbit whale spider beetle moth crow deer
stone feather shadow dream song story secret promise question answer memory journey winter summer evening morning
coat hat boot ring crown sword shield rope basket barrel coin map book page pencil key lock door gate wall roof
apple loaf cup plate spoon knife lamp fire cloud star moon wave shore field road path corner street square hill
branch root leaf seed flower thorn nest feast wedding funeral festival lesson prayer rumor bargain quarrel""".split()
)
ADJECTIVES = tuple(
    """old young quiet loud bright dark narrow wide heavy light broken golden silver wooden iron gentle cruel
proud humble strange familiar distant hidden empty crowded frozen warm cold bitter sweet sudden slow quick clever
foolish brave timid lonely cheerful weary hungry thirsty pale red blue green grey yellow black white tall short
ancient modern rusty polished dusty muddy silent restless patient careless honest greedy noble humid dry smooth
rough soft hard sharp dull deep shallow crooked straight round hollow fragile sturdy simple curious solemn merry
forgotten famous nameless sleepy nervous calm wild tame faithful jealous grateful stubborn tender fierce""".split()
)
VERBS_ON = tuple(
    """watched carried followed painted repaired buried remembered forgot opened closed found lost stole sold
bought praised blamed feared loved hated visited avoided crossed touched lifted dropped washed burned counted drew
described ignored admired guarded borrowed returned hid discovered examined broke mended chased greeted invited
questioned trusted doubted heard noticed pushed pulled measured polished wrapped sketched rescued imitated
collected abandoned defended mocked studied""".split()
)
VERBS_ALONE = tuple(
    """slept waited laughed wept sang danced vanished trembled listened wandered stumbled whispered shouted
smiled sighed returned arrived departed rested worked hesitated nodded knelt prayed yawned stared argued dreamed
coughed fell rose ran limped swam climbed shivered blushed frowned hummed lingered""".split()
)
ADVERBS = tuple(
    """slowly quickly quietly loudly gently suddenly carefully happily sadly bravely rarely often again alone
together forever early late proudly calmly nervously patiently secretly openly eagerly reluctantly twice
somewhere nearby outside""".split()
)
PREPOSITIONS = tuple("near behind under above beside beyond inside across around before after against without".split())
TIMES = tuple(
    """at dawn|at noon|at dusk|at midnight|in spring|in autumn|last winter|every evening|once a year|that night
the next day|a week later|long ago|before sunrise|after the rain|during the storm|on a holiday|in the old days
one morning|on the seventh day""".replace("\n", "|").split("|")
)
CONNECTIVES = tuple("but and while because so although until yet when since".split())
OPENERS = tuple("Still|However|Meanwhile|Perhaps|In truth|Of course|At first|In the end|Somehow|Afterwards|As always".split("|"))
