import sys, time, cProfile, pstats, tempfile, io, os
from pathlib import Path
sys.path.insert(0, "benchmarks")
import torch
from observe_gpu import random_model
import sinklens as sl
from sinklens import run as srun
from sinklens.recording import identity
from sinklens.sampling.generate import steps
from sinklens.recording.scribe import SentSample, Scribe
model = random_model("llada")
prompt = torch.randint(0, 126000, (1, 64), generator=torch.Generator().manual_seed(0)).tolist()
S = sl.LLaDASampler(steps=128, length=128, block=32)
short = sl.LLaDASampler(steps=8, length=128, block=32)
identity.hash_weights = lambda _: "x"
def sync(): torch.cuda.synchronize(); return time.perf_counter()
groups = {"masked": lambda s: s.masked, "unmasked": lambda s: ~s.masked}
def run(ctx, sampler=S, times=None):
    t0=sync()
    if ctx is None:
        for _ in steps(model, prompt, sampler, graph=True):
            if times is not None: times.append(time.perf_counter()-t0)
    else:
        with ctx() as found:
            for _ in steps(model, prompt, sampler, graph=True):
                del found.steps[:-1]
                if times is not None: times.append(time.perf_counter()-t0)
    return sync()-t0
V = {"plain": None, "full": lambda: sl.observe(model, groups=groups, hidden_norms=True, ranks=True)}
for n,c in V.items(): run(c, short)
for rep in range(2):
  for n,c in V.items():
    ts=[]; tot=run(c, times=ts)
    d=[ts[0]]+[b-a for a,b in zip(ts,ts[1:])]
    print(f"{n:22} total {1e3*tot:.0f} ms; first {1e3*d[0]:.1f} second {1e3*d[1]:.1f}; rest {1e3*(ts[-1]-ts[2])/(len(ts)-3):.2f} ms/step", flush=True)
from sinklens.recording.behind import Behind
acc={}
def wrap(cls,name):
    old=getattr(cls,name)
    def f(self,*a,**k):
        t=time.perf_counter(); r=old(self,*a,**k); acc.setdefault(f"{cls.__name__}.{name}",[]).append(time.perf_counter()-t); return r
    setattr(cls,name,f)
import sinklens.recording.steps as rs
for c,n in ((Behind,"do"),(Behind,"__exit__"),(SentSample,"add"),(SentSample,"end"),(SentSample,"__init__"),(Scribe,"__init__"),(Scribe,"end"),(rs.Recorder,"_numbers")): wrap(c,n)
with tempfile.TemporaryDirectory() as tmp:
    sl.trace(model, prompt, short, to=Path(tmp)/"w", graph=True)
    for name,opt in {"full":{}, "full2":{}, "full3":{}, "no norms":{"norms":False}, "sinks":{"detail":"sinks"}}.items():
        for delay in ((0, 1.0) if name.startswith("full") else (1.0,)):
            identity.hash_weights = lambda _: time.sleep(delay) or "x"
            p=run(None); ts=[]; acc.clear(); t0=sync()
            sl.trace(model, prompt, S, to=Path(tmp)/f"{name}{delay}", graph=True, progress=lambda *_: ts.append(time.perf_counter()-t0), **opt)
            tot=sync()-t0-delay
            d=[ts[0]-delay]+[b-a for a,b in zip(ts,ts[1:])]
            print(f"trace {name} hash {delay}: total {1e3*tot:.0f} ({tot/p:.3f} of plain {1e3*p:.0f}); first {1e3*d[0]:.1f} second {1e3*d[1]:.1f}; rest {1e3*(ts[-1]-ts[2])/(len(ts)-3):.2f} ms/step max {1e3*max(d[3:]):.1f}; tail {1e3*(tot+delay-ts[-1]):.1f}", flush=True)
            print("   ", {k:(len(v),round(1e3*sum(v),1),round(1e3*max(v),1)) for k,v in acc.items()})
    acc.clear()
    pr=cProfile.Profile()
    with sl.observe(model, groups=groups, hidden_norms=True, ranks=True) as found:
        it=steps(model, prompt, S, graph=True)
        pr.enable(); next(it); torch.cuda.synchronize(); pr.disable()
        for _ in it: del found.steps[:-1]
    s=io.StringIO(); pstats.Stats(pr,stream=s).sort_stats("tottime").print_stats(14); print(s.getvalue()[:3000])
