import sys,tempfile,time
from pathlib import Path
sys.path.insert(0,"benchmarks")
import trace_host as th
from sinklens.recording import scribe
INJ='''
import time, atexit, os
import sinklens.traces.files as F, sinklens.recording.wire as W, sinklens.recording.rows as R, sinklens.traces.sample as S, sinklens.traces.joined as J, sinklens.recording.scribe as SC
F.THREADS={n}; SC.TURN={turn}
acc={{}}
def wrap(o,name,key=None):
    old=getattr(o,name)
    def f(*a,**k):
        t=time.perf_counter(); c=time.thread_time()
        try: return old(*a,**k)
        finally:
            e=acc.setdefault(key or name,[0,0.,0.,0.]); d=time.perf_counter()-t; e[0]+=1; e[1]+=d; e[2]+=time.thread_time()-c; e[3]=max(e[3],d)
    setattr(o,name,f)
wrap(W,"receive"); wrap(R.RowMaker,"rows"); wrap(S.SampleWriter,"add"); wrap(S.SampleWriter,"_flush"); wrap(F.SampleFiles,"settle"); wrap(F,"_row_groups"); wrap(J.JoinedFile,"append"); wrap(S.SampleWriter,"end"); wrap(F.SampleFiles,"close")
oldsend=W.send
def send(*a):
    oldsend(*a)
    sys.stderr.write("   "+str({{k:(v[0],round(1e3*v[1]),round(1e3*v[2]),round(1e3*v[3])) for k,v in acc.items()}})+chr(10)); sys.stderr.flush(); acc.clear()
W.send=send
'''
base=scribe.COMMAND
card=th.Card()
th.DIFFERENT
steps=int(sys.argv[1])
for n,turn in ((15,0.0002),(15,0.005),(8,0.0002),(8,0.005),(10,0.001),(6,0.0002)):
    pre,post=base.split("from sinklens.recording.scribe")
    scribe.COMMAND=pre+"exec("+repr(INJ.format(n=n,turn=turn))+"); from sinklens.recording.scribe"+post
    with tempfile.TemporaryDirectory() as s:
        took,tail=th.sent(card,steps,0.011,Path(s)/"a",detail="full")
        print(f"threads {n} turn {turn}: {1e3*took/steps:.2f} ms a step, {1e3*tail:.0f} ms at the end",flush=True)
