import sys, time, io
from pathlib import Path
sys.path.insert(0, "benchmarks")
import torch
from collections import Counter
from observe_gpu import random_model, Side
from contextlib import nullcontext
import sinklens as sl
model = random_model("llada")
ids = torch.randint(0, 126000, (1, 192), device="cuda"); ids[:, 64::2] = model.spec.mask_id
groups = {"masked": lambda s: s.masked, "unmasked": lambda s: ~s.masked}
V = {"plain": nullcontext,
 "received": lambda: sl.observe(model, norms=False),
 "groups": lambda: sl.observe(model, norms=False, groups=groups),
 "groups+norms": lambda: sl.observe(model, groups=groups),
 "full": lambda: sl.observe(model, groups=groups, hidden_norms=True, ranks=True)}
with torch.no_grad():
    Side(model, ids, nullcontext, graph=True)
    sides={n: Side(model, ids, e, graph=True) for n,e in V.items()}
    for rep in range(4):
        print({n: round(s.milliseconds(),3) for n,s in sides.items()}, flush=True)
    # pure replay, no copies
    for n,s in sides.items():
        torch.cuda.synchronize(); t=time.perf_counter()
        for _ in range(20): s._graph.replay()
        a=time.perf_counter(); torch.cuda.synchronize(); b=time.perf_counter()
        print(n, "replay host", round((a-t)/20*1e3,3), "total", round((b-t)/20*1e3,3), flush=True)
    from torch.profiler import profile, ProfilerActivity
    for n in ("plain","received","full"):
        with profile(activities=[ProfilerActivity.CUDA]) as p:
            for _ in range(3): sides[n].step(sides[n]._graph.run)
            torch.cuda.synchronize()
        ev=[e for e in p.events() if e.device_type==torch.autograd.DeviceType.CUDA]
        c=Counter(); k=Counter()
        for e in ev: c[e.name[:60]]+=e.device_time; k[e.name[:60]]+=1
        print(n,"kernels",len(ev)/3,"sum ms",sum(c.values())/3e3, "span", (max(e.time_range.end for e in ev)-min(e.time_range.start for e in ev))/3e3)
        for name,v in c.most_common(22): print(f"   {v/3e3:.3f} ms  x{k[name]/3:.0f}  {name}")
