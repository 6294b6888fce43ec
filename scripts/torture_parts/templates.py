"""Chat templates, which any model may bring: expressions whose work or memory grows without end, and mutated ordinary ones."""

import shutil

from . import mutate, originals
from .bench import copy, put
from .settings import ROOT

TRIED = "chat templates that nest, double and repeat values and then print, compare, sort or join them; mutated templates of usual models"
# Seconds; a rendering is bounded, and nothing else has to be computed.
LIMIT = 30

# Statements that make `x` large, deep, or full of shared parts.
SIZES = (8, 20, 60, 3000)
LARGE = (
    "{%% set ns=namespace(x=[1]) %%}{%% for i in range(%d) %%}{%% set ns.x=[ns.x,ns.x] %%}{%% endfor %%}{%% set x=ns.x %%}",
    "{%% set ns=namespace(x={'a':1}) %%}{%% for i in range(%d) %%}{%% set ns.x={'a':ns.x,'b':ns.x} %%}{%% endfor %%}{%% set x=ns.x %%}",
    "{%% set ns=namespace(x=[1]) %%}{%% for i in range(%d) %%}{%% set ns.x=[ns.x] %%}{%% endfor %%}{%% set x=ns.x %%}",
    "{%% set ns=namespace(x='ab') %%}{%% for i in range(%d) %%}{%% set ns.x=ns.x ~ ns.x %%}{%% endfor %%}{%% set x=[ns.x] %%}",
    "{%% set ns=namespace(x=[[]]) %%}{%% for i in range(%d) %%}{%% set ns.x=ns.x+ns.x %%}{%% endfor %%}{%% set x=ns.x %%}",
    "{%% set x=['1'*1000000]*(%d*1000) %%}",
    "{%% set x=range(%d*100000)|list %%}",
    "{%% macro x(n) %%}{%% if n %%}{{ x(n-1) }}{{ x(n-1) }}{%% endif %%}{%% endmacro %%}{{ x(%d) }}",
    "{%% set x=messages*%d %%}",
)
# Expressions that read `x`, or two of them.
LOOKS = (
    "{{ x }}", "{{ x|tojson }}", "{{ x|string|length }}", "{{ x ~ x }}", "{{ '%s' % x }}", "{{ '%s'|format(x) }}", "{{ x == x }}",
    "{{ x in x }}", "{{ [x,[x]]|sort }}", "{{ [x,x]|unique|list }}", "{{ {x:1} }}", "{{ [x,x]|sum(start=[]) }}", "{{ x|join|length }}",
    "{{ x|pprint }}", "{{ x|list|length }}", "{{ x|reverse|list }}", "{{ [x]|map('string')|list }}", "{{ x|replace('a','aaaaaaaa') }}",
    "{{ x < [x] }}", "{{ x|batch(2)|list }}", "{{ x|indent(100000) }}", "{{ [x]|groupby(0) }}", "{{ x|max }}", "{{ [x,x]|select('eq',x)|list }}",
    "{{ x|dictsort }}", "{{ x|items|list }}", "{{ x is in x }}", "{% for a in x recursive %}{{ loop(a) }}{% endfor %}",
    "{{ x|upper|lower|title }}", "{{ x|urlencode }}", "{{ x|escape }}", "{{ raise_exception(x) }}", "{% for a in x %}{{ loop.changed(a) }}{% endfor %}",
)  # fmt: skip
MODEL = (*originals.MODEL_FILES, "chat_template.jinja")


class Part:
    def __init__(self, bench):
        self.bench = bench
        self.folder = bench.fresh("chat")
        for name in originals.MODEL_FILES:
            (self.folder / "model").mkdir(exist_ok=True)
            shutil.copy(ROOT / "host/assets/tiny-arithmetic" / name, self.folder / "model" / name)
        self.usual = [path.read_bytes() for path in sorted((ROOT / "host/data/tests/data/chat-golden").glob("*/chat_template*"))]
        put(self.folder / "model/chat_template.jinja", b"{% for m in messages %}{{ m.content }}{% endfor %}=")
        bench.must(*command(), folder=copy(self.folder, bench.fresh("chat-tried")))

    def run(self, case):
        copy(self.folder, case.folder)
        draw = case.rng
        if draw.random() < 0.2 and self.usual:
            case.kind, text = "a usual template", case.draw(mutate.mutated(draw.choice(self.usual)))
        else:
            large, look = draw.choice(LARGE) % draw.choice(SIZES), draw.choice(LOOKS)
            case.kind, text = look, (large + look).encode()
        put(case.folder / "model/chat_template.jinja", text)
        case.call(*command(), limit=LIMIT)


def command():
    return ["generate", "--model", "model", "--chat", "--temperature", "0", "--max-completion-length", "2", "1+1"]
