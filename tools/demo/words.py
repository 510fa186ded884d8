"""Word lists of the generated data. The open slots beside them are in openwords.py."""


def w(s):
    """The words of a blank-separated list."""
    return s.split()


NAMES = w("""Anna Ben Clara David Emma Felix Grace Henry Iris Jack Kate Leo Mia Noah Olivia Paul Quinn Rosa Sam Tara
Uma Victor Wendy Xena Yuri Zoe Alice Bob Carol Daniel Elena Frank Gina Hugo Ivy James Kira Liam Maria Nina Oscar Petra
Ralph Sofia Tom Ursula Vera Walter Yasmin Zack Adam Bella Chris Diana Eric Fiona George Hannah Ian Julia Kevin Laura
Martin Nora Otto Paula Robin Sarah Theo Valerie William Amir Chen Dmitri Fatima Hiro Ingrid Jamal Keiko Lars Mei Nadia
Omar Priya Raj Sana Tariq Wei Yuki Aisha Bruno Carmen Diego Esther Farid Gustav Helga Igor Jonas Katya Luca Marta""")
SURNAMES = w("""Smith Jones Brown Taylor Wilson Davies Evans Walker Wright Green Hall Wood Clark Baker Carter Fisher
Hunter Mason Miller Cooper Parker Turner Ward Young King Hill Moore Scott Adams Bell Cole Ford Grant Hayes Kelly Lane
Marsh Nash Page Reed Shaw Stone Webb West""")
CITIES = w("""Paris London Berlin Rome Madrid Vienna Prague Warsaw Dublin Lisbon Athens Oslo Stockholm Helsinki
Copenhagen Brussels Amsterdam Budapest Zurich Geneva Milan Naples Venice Munich Hamburg Cologne Lyon Nice Porto Seville
Tokyo Kyoto Osaka Seoul Beijing Shanghai Delhi Mumbai Bangkok Hanoi Manila Jakarta Sydney Melbourne Auckland Cairo
Nairobi Lagos Tunis Dakar Boston Chicago Denver Dallas Houston Miami Seattle Austin Toronto Montreal Lima Bogota Quito
Santiago Havana""")
ANIMALS = w("""fox owl cat dog mouse rabbit bear wolf deer horse sheep goat duck hen frog turtle squirrel badger otter
hedgehog lion tiger monkey elephant penguin seal whale dolphin parrot crow swan bee ant spider snail beaver donkey
camel mole bat""")
ADJ = w("""small big old young quick slow happy sad brave shy clever kind quiet loud bright dark warm cold soft hard
strong weak tall short round flat deep high low heavy light clean dirty dry wet new rich poor fresh sweet sharp smooth
rough gentle wild calm proud lazy busy hungry sleepy curious lonely golden silver green blue red yellow white black
purple grey brown pink orange""")
COLORS = w("red blue green yellow white black purple grey brown pink orange silver golden")
THINGS = w("""apple bottle book lamp chair table window door key box basket rope boat wagon wheel hammer ladder bell
clock mirror map letter coin ring crown sword shield drum flute violin kettle spoon plate cup bowl bread cheese cake
honey stone feather leaf flower seed acorn shell candle lantern blanket hat coat boot glove scarf button needle thread
bridge tower garden fence bucket broom brush pencil paper ink ball kite puzzle marble whistle pillow carpet bench""")
PLURAL = w("""apples bottles books lamps chairs tables windows doors keys boxes baskets boats wheels hammers bells
clocks mirrors maps letters coins rings drums spoons plates cups bowls cakes stones feathers leaves flowers seeds
shells candles lanterns blankets hats coats boots gloves buttons pencils balls kites marbles stamps cards tickets
bananas pears plums lemons oranges cherries potatoes carrots onions eggs""")
PLACES = w("""forest meadow river lake village mountain valley island harbour castle market garden cave beach desert
hill farm mill library school station bridge tower orchard field""")
VERBS = w("""walk run jump swim sing dance sleep read write draw paint cook bake build carry climb dig fly hide laugh
listen look play pull push ride sail shout sit smile stand talk throw wait wash watch work""")
NOUNS = w("""time year people way day man thing woman life child world school state family student group country problem
hand part place case week company system program question work government number night point home water room mother
area money story fact month lot right study book eye job word business issue side kind head house service friend father
power hour game line end member law car city name team minute idea body back face others level office door health
person art war history party result change morning reason research girl guy moment air teacher force education foot
boy age policy music market sense nation plan college interest death experience effect paper space ground form event
summer winter spring autumn season weather storm rain snow wind cloud sun moon star sky sea ocean wave sand rock tree
root branch grass plant fruit bird fish horse engine machine metal glass wood gold iron copper stone brick wall roof
floor kitchen bedroom corner street road path train plane ship bicycle ticket journey visit holiday camera picture
screen button signal message answer reply letter page sentence paragraph chapter novel poem song concert theatre film
actor artist doctor nurse driver pilot farmer baker tailor sailor soldier judge lawyer engineer scientist""")
VERB3 = w("""walks runs jumps swims sings dances sleeps reads writes draws paints cooks bakes builds carries climbs digs
flies hides laughs listens looks plays pulls pushes rides sails shouts sits smiles stands talks throws waits washes
watches works""")
COUNTRIES = dict(zip(w("""France Germany Italy Spain Austria Poland Ireland Portugal Greece Norway Sweden Finland Denmark
Belgium Hungary Japan China India Thailand Vietnam Egypt Kenya Peru Colombia Ecuador Chile Cuba England Russia Turkey
Canada Australia Mexico Brazil"""), w("""Paris Berlin Rome Madrid Vienna Warsaw Dublin Lisbon Athens Oslo Stockholm
Helsinki Copenhagen Brussels Budapest Tokyo Beijing Delhi Bangkok Hanoi Cairo Nairobi Lima Bogota Quito Santiago Havana
London Moscow Ankara Ottawa Canberra Mexico-City Brasilia""")))
OPPOSITE = dict(x.split(":") for x in w("""hot:cold big:small tall:short fast:slow old:new happy:sad light:dark wet:dry
hard:soft rich:poor strong:weak early:late open:closed full:empty up:down left:right in:out day:night good:bad
high:low deep:shallow clean:dirty loud:quiet near:far true:false thick:thin sweet:sour smooth:rough heavy:light
first:last always:never love:hate win:lose buy:sell push:pull start:stop black:white north:south east:west"""))
SOUND = dict(x.split(":") for x in w("""dog:barks cat:meows cow:moos duck:quacks owl:hoots lion:roars frog:croaks
sheep:bleats horse:neighs bee:buzzes wolf:howls mouse:squeaks hen:clucks donkey:brays crow:caws"""))
DAYS = w("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
MONTHS = w("January February March April May June July August September October November December")
TOPICS = w("""philosophy politics medicine chemistry economics astrology religion football cricket finance physics
biology geology geography literature architecture psychology sociology genetics robotics taxes lawsuits
stocks opera ballet volcanoes dinosaurs galaxies glaciers bacteria vaccines electricity magnetism gravity evolution
democracy inflation""")
MORE = w("""airport angle ankle anchor answer antique apron arrow atlas attic autumn award axle bacon badge bakery balcony
bandage banner barrel basin battery beacon beard belt bishop blade blossom board bolt bonfire border boulder bracelet
branch breakfast breeze brook bubble budget bulb bundle burger cabin cable cactus cargo carriage cartoon cellar century
cereal chain chapel charm chest chimney chocolate circus claim clay cliff cloth coach coast cocoa collar comet compass
concrete cork cotton couch cousin cradle cream creek crystal cube curtain cycle dairy dentist diamond diary dinner dish
ditch dock dragon drawer dream dust eagle earring echo elbow elevator emerald empire envelope errand escape evening
fabric factory falcon fashion ferry fever fiddle filter finger flag flame flask flood flour fog folder fountain frame
freight fridge fringe frost funnel gallery gallon gate gem ghost giant ginger glacier globe glue gossip grain granite
grape gravel guitar gutter habit hail hallway harvest hazel helmet herb heron hinge hobby hollow hook hostel hub iceberg
idol insect ivory jacket jar jelly jewel joke jungle junior kernel kettle kitten knee knot label ladle lagoon laundry
lawn leather legend lemonade lens lever lily limb linen lizard lobster locket lodge lotion lounge lunch magnet mango
mansion mantle maple marsh mask meadow medal melon mentor metro midnight mint mist mitten mosaic moss motor mustard
napkin nectar nest nickel noodle notch nutmeg oasis oak oat olive onion opal orbit orchid organ oven oyster paddle
palace panel parade parcel parsley patio pebble pedal pepper petal piano pickle pier pigeon pilgrim pine pistol pitcher
planet plaster platform plaza pocket poet pond pony porch portrait postcard powder prairie prince profit prune pulse
pumpkin puppet quarry quartz queen quilt radish raft rail rainbow raven razor recipe reed reef ribbon riddle robin
rocket rooftop rudder rug saddle salad salmon sandal satin sauce saucer scroll sheriff shelf shrimp sieve silk siren
sketch skirt slipper sloth sofa spark spice spider spiral sponge spruce stable stadium stairs statue steam stew stool
stork straw sugar sunrise swamp syrup tablet tailor tank teapot temple tent thimble thistle throne thunder tide tile
timber toast tomato torch towel tractor trail trumpet tulip tunnel turnip twig valve vase velvet vest villa vine vinegar
violet voyage waffle walnut wardrobe warehouse weasel wheat whisker widow willow winch wizard wool wreath yacht yarn
yogurt zebra zipper""")
ALL = sorted(set(x.lower() for x in ANIMALS + ADJ + COLORS + THINGS + PLURAL + PLACES + VERBS + NOUNS + VERB3))

ONES = w("zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
         "seventeen eighteen nineteen")
TENS = w("_ _ twenty thirty forty fifty sixty seventy eighty ninety")


def spell(n):
    """0 <= n < 1000 in words: 342 -> "three hundred and forty-two"."""
    if n < 20:
        return ONES[n]
    if n < 100:
        return TENS[n // 10] + ("-" + ONES[n % 10] if n % 10 else "")
    return ONES[n // 100] + " hundred" + (" and " + spell(n % 100) if n % 100 else "")
