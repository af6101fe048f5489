import sys,tempfile,time
from pathlib import Path
sys.path.insert(0,"benchmarks")
import trace_host as th
from sinklens.recording import scribe
INJ='''
import time, atexit, os
import sinklens.traces.files as F, sinklens.traces.makers as M, sinklens.recording.wire as W, sinklens.recording.rows as R, sinklens.traces.sample as S, sinklens.traces.joined as J, sinklens.recording.scribe as SC
M.FORKS={n}
import sinklens.traces.gather as G
G.PART_BYTES={part}
acc={{}}
def wrap(o,name,key=None):
    old=getattr(o,name)
    def f(*a,**k):
        t=time.perf_counter(); c=time.thread_time()
        try: return old(*a,**k)
        finally:
            e=acc.setdefault(key or name,[0,0.,0.,0.]); d=time.perf_counter()-t; e[0]+=1; e[1]+=d; e[2]+=time.thread_time()-c; e[3]=max(e[3],d)
    setattr(o,name,f)
wrap(W,"receive"); wrap(R.RowMaker,"rows"); wrap(S.SampleWriter,"add"); wrap(S.SampleWriter,"_flush"); wrap(M.Forks,"settle"); wrap(M.Forks,"go");wrap(M.Forks,"step");wrap(G.Gathering,"add"); wrap(J.JoinedFile,"append"); wrap(S.SampleWriter,"end"); wrap(F.SampleFiles,"close")
oldsend=W.send
def send(*a):
    oldsend(*a)
    sys.stderr.write("   "+str({{k:(v[0],round(1e3*v[1]),round(1e3*v[2]),round(1e3*v[3])) for k,v in acc.items()}})+chr(10)); sys.stderr.flush(); acc.clear()
W.send=send
'''
base=scribe.COMMAND
card=th.Card()
steps=int(sys.argv[1])
import sinklens.recording.wire as W
acc={}
for o,name in ((W,"send"),(th.Run,"_numbers")):
    old=getattr(o,name)
    def f(*a,old=old,name=name,**k):
        t=time.perf_counter(); r=old(*a,**k); acc.setdefault(name,[]).append(time.perf_counter()-t); return r
    setattr(o,name,f)
for n,part in ((12,4<<20),(12,4<<20),(8,4<<20),(12,2<<20),(10,8<<20)):
    pre,post=base.split("from sinklens.recording.scribe")
    scribe.COMMAND=pre+"exec("+repr(INJ.format(n=n,part=part))+"); from sinklens.recording.scribe"+post
    with tempfile.TemporaryDirectory() as s:
        acc.clear()
        took,tail=th.sent(card,steps,0.011,Path(s)/"a",detail="full")
        print(f"forks {n} part {part>>20}: {1e3*took/steps:.2f} ms a step, {1e3*tail:.0f} ms at the end", {k:(len(v),round(1e3*sum(v)),round(1e3*max(v))) for k,v in acc.items()},flush=True)
