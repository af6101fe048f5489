import sys, time, tempfile, os
from pathlib import Path
sys.path.insert(0, "benchmarks")
import torch
from observe_gpu import random_model
import sinklens as sl
from sinklens.recording import identity, scribe
from sinklens.sampling.generate import steps
from sinklens.recording.scribe import SentSample, Scribe
INJ='''
import time, sys
import sinklens.traces.files as F, sinklens.traces.makers as M, sinklens.recording.wire as W, sinklens.recording.rows as R, sinklens.traces.sample as S, sinklens.traces.joined as J, sinklens.traces.gather as G
M.THREADS={n}; G.PART_BYTES={part}; S.BUFFER_BYTES={buf}; J.SYNC_BYTES={sync}
acc={{}}; log=[]
def wrap(o,name,key=None):
    old=getattr(o,name)
    def f(*a,**k):
        t=time.time(); c=time.thread_time()
        try: return old(*a,**k)
        finally:
            e=acc.setdefault(key or name,[0,0.,0.,0.]); d=time.time()-t; e[0]+=1; e[1]+=d; e[2]+=time.thread_time()-c; e[3]=max(e[3],d)
            if (key or name) in ("settle","close","end","_flush"): log.append((key or name, t, time.time()))
    setattr(o,name,f)
wrap(W,"receive"); wrap(R.RowMaker,"rows"); wrap(S.SampleWriter,"add"); wrap(S.SampleWriter,"_flush"); wrap(M.Makers,"settle"); wrap(G.Gathering,"add","gather"); wrap(F,"_row_groups"); wrap(J.JoinedFile,"append"); wrap(J.JoinedFile,"close","fclose"); wrap(F,"sync","fsync"); wrap(S.SampleWriter,"end"); wrap(F.SampleFiles,"close"); wrap(M.Makers,"close","mclose")
oldsend=W.send
def send(*a):
    oldsend(*a)
    z=log[-1][2] if log else 0
    sys.stderr.write("   helper "+str({{k:(v[0],round(1e3*v[1]),round(1e3*v[2]),round(1e3*v[3])) for k,v in acc.items()}})+chr(10)+"   "+str([(k,round(1e3*(a-z)),round(1e3*(b-a))) for k,a,b in log[-8:]])+chr(10)); sys.stderr.flush(); acc.clear(); log.clear()
W.send=send
'''
base=scribe.COMMAND
def inject(n=15,part=4<<20,buf=32<<20,sync=8<<20):
    pre,post=base.split("from sinklens.recording.scribe")
    scribe.COMMAND=pre+"exec("+repr(INJ.format(n=n,part=part,buf=buf,sync=sync))+"); from sinklens.recording.scribe"+post
model = random_model("llada")
prompt = torch.randint(0, 126000, (1, 64), generator=torch.Generator().manual_seed(0)).tolist()
S = sl.LLaDASampler(steps=128, length=128, block=32)
short = sl.LLaDASampler(steps=8, length=128, block=32)
def sync(): torch.cuda.synchronize(); return time.perf_counter()
def plain():
    t0=sync(); sl.generate(model,prompt,S,graph=True); return sync()-t0
plain(); plain()
from sinklens.recording.behind import Behind
acc={}
def wrap(cls,name):
    old=getattr(cls,name)
    def f(self,*a,**k):
        t=time.perf_counter(); r=old(self,*a,**k); acc.setdefault(f"{cls.__name__}.{name}",[]).append(time.perf_counter()-t); return r
    setattr(cls,name,f)
for c,n in ((Behind,"do"),(Behind,"__exit__"),(SentSample,"add"),(SentSample,"end")): wrap(c,n)
delay=1.2
identity.hash_weights = lambda _: time.sleep(delay) or "x"
with tempfile.TemporaryDirectory() as tmp:
    sl.trace(model, prompt, short, to=Path(tmp)/"w", graph=True)
    for i,inj in enumerate(({}, {}, {"n":10}, {"buf":16<<20}, {"sync":1<<40}, {"part":2<<20}, {"n":12,"buf":64<<20})):
            inject(**inj)
            p=plain(); ts=[]; acc.clear(); t0=sync()
            sl.trace(model, prompt, S, to=Path(tmp)/f"{i}", graph=True, progress=lambda *_: ts.append(time.perf_counter()-t0))
            tot=sync()-t0-delay
            d=[ts[0]-delay]+[b-a for a,b in zip(ts,ts[1:])]
            print(f"{inj}: total {1e3*tot:.0f} ({tot/p:.3f} of plain {1e3*p:.0f}); first {1e3*d[0]:.1f}; rest {1e3*(ts[-1]-ts[2])/(len(ts)-3):.2f} ms/step; over 20 ms: {[(j,round(1e3*x)) for j,x in enumerate(d) if x>0.02]}; tail {1e3*(tot+delay-ts[-1]):.1f}", flush=True)
            print("   ", {k:(len(v),round(1e3*sum(v),1),round(1e3*max(v),1)) for k,v in acc.items()},flush=True)
