"""docs/pictures/statuses.svg and the tables of docs/reference/statuses.md, from ledger/statuses.py."""

from __future__ import annotations

from svg import INK, PALE, Box, Picture

from ferryman.ledger.statuses import MEANING, MOVES, TERMINAL, Status

PERSON = frozenset({Status.RESTART, Status.FORCE, Status.DIRTY})
"""What a person says (or a source); all other moves are a run's."""

WIDTH, HEIGHT = 1080, 560
SIZE = (132, 46)
PLACES = {  # middle of each box
    Status.PROCESSING: (200, 250),
    Status.BATCHED: (440, 150),
    Status.INDEXING: (660, 150),
    Status.ERROR: (550, 350),
    Status.INDEXED: (960, 70),
    Status.DROPPED: (960, 190),
    Status.DEAD: (960, 310),
    Status.ERROR_DOC: (960, 430),
}
COLOURS = {
    Status.PROCESSING: "#5b86c4",
    Status.BATCHED: "#3f8f63",
    Status.INDEXING: "#8a5fb0",
    Status.ERROR: "#c2571a",
}

def boxed(s):
    x,y=PLACES[s]; return Box(x-SIZE[0]/2,y-SIZE[1]/2,*SIZE)

def picture():
    p = Picture(WIDTH, HEIGHT, "What becomes of a delivery", "scripts/docs/moves.py")
    for before, colour in COLOURS.items():
        a = boxed(before)
        targets = [t for t in PLACES if t in MOVES[before]]
        for after in targets:
            b = boxed(after)
            if after is before:
                p.arrow(f"M{a.mid_x-20:g},{a.bottom:g} C{a.mid_x-30:g},{a.bottom+44:g} {a.mid_x+30:g},{a.bottom+44:g} {a.mid_x+20:g},{a.bottom+1:g}", colour)
                continue
            if b.x > a.right:
                ports=[t for t in targets if boxed(t).x>a.right]
                i=sorted(ports,key=lambda t:PLACES[t][1]).index(after)
                y1=a.y+ (i+1)*a.h/(len(ports)+1)
                srcs=sorted([s for s in COLOURS if after in MOVES[s] and boxed(s).right<b.x], key=lambda s:PLACES[s][1])
                y2=b.y+(srcs.index(before)+1)*b.h/(len(srcs)+1)
                dx=(b.x-a.right)*0.5
                p.arrow(f"M{a.right:g},{y1:g} C{a.right+dx:g},{y1:g} {b.x-dx:g},{y2:g} {b.x-1:g},{y2:g}", colour)
            else:
                if b.y>a.bottom:
                    p.arrow(f"M{a.mid_x-12:g},{a.bottom:g} L{b.mid_x+(30 if a.mid_x>b.mid_x else -30):g},{b.y-1:g}", colour)
                else:
                    p.arrow(f"M{a.mid_x+(20 if b.mid_x>a.mid_x else -20):g},{a.y:g} L{b.mid_x+12:g},{b.bottom+1:g}", colour)
    for s in PLACES:
        b=boxed(s); p.box(b,"#ffffff",COLOURS.get(s,"#1f2933"),width=2)
        p.text(b.mid_x,b.mid_y+5,s.value,size=15,bold=True,anchor="middle")
    return p.written()
if __name__=="__main__": print(picture())
