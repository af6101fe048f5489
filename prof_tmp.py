import sys, time, cProfile, pstats, io
sys.path.insert(0, "benchmarks")
import torch
from observe_gpu import random_model
import sinklens as sl
from sinklens.sampling.generate import steps
model = random_model("llada")
prompt = torch.randint(0, 126000, (1, 64), generator=torch.Generator().manual_seed(0)).tolist()
short = sl.LLaDASampler(steps=8, length=128, block=32)
groups = {"masked": lambda s: s.masked, "unmasked": lambda s: ~s.masked}
full=lambda: sl.observe(model, groups=groups, hidden_norms=True, ranks=True)
import contextlib
for name,c in (("plain",contextlib.nullcontext),("full",full),("plain",contextlib.nullcontext),("full",full),("full",full)):
    t0=time.perf_counter()
    with c() as f:
        it=steps(model,prompt,short,graph=True); t1=time.perf_counter(); next(it); t2=time.perf_counter(); torch.cuda.synchronize(); t3=time.perf_counter(); list(it)
    print(name,"enter",round(1e3*(t1-t0),1),"first",round(1e3*(t2-t1),1),"sync",round(1e3*(t3-t2),1),flush=True)
pr=cProfile.Profile()
with full():
    it=steps(model,prompt,short,graph=True); pr.enable(); next(it); pr.disable(); list(it)
s=io.StringIO(); pstats.Stats(pr,stream=s).sort_stats("cumtime").print_stats(45); print(s.getvalue()[:6500])
