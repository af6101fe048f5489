import time, resource, threading, sys, os
from concurrent.futures import ThreadPoolExecutor, ProcessPoolExecutor
import multiprocessing as mp
import numpy as np, pyarrow as pa, pyarrow.parquet as pq
from sinklens.traces.schema import schema
from sinklens.traces.storage import Storage, ROUNDED
from sinklens.traces.files import _row_group
from sinklens.traces.pack import Lists
H,K,S=32,192,28
rng=np.random.default_rng(0)
st=Storage.of(exact=False)
rows=H*S
c={"sample":np.zeros(rows,int),"step":np.repeat(np.arange(S),H),"layer":np.full(rows,3),"head":np.tile(np.arange(H),S)}
for n in ("received","received_masked","received_unmasked","output_norm"):
    c[n]=Lists(values=[rng.gamma(1.0,size=H*K).astype(np.float32) for _ in range(S)],lengths=np.full((1,rows),K))
c["output_rank"]=rng.random(rows,dtype=np.float32); c["output_size"]=rng.random(rows,dtype=np.float32)
w=schema("attention",causal=False,detail="full")
local=threading.local()
def scratch(n, i):
    have=getattr(local,"b",None)
    if have is None: have=local.b={}
    if i not in have or len(have[i])<n: have[i]=np.empty(n,np.float32)
    return have[i][:n]
def fast_round(x, bits, tmp):
    drop=23-bits; raw=x.view(np.uint32); t=tmp.view(np.uint32)
    top=raw.max()
    assert top<0x7f000000
    np.right_shift(raw,np.uint32(drop),out=t); np.bitwise_and(t,np.uint32(1),out=t); t+=np.uint32((1<<(drop-1))-1); raw+=t; raw&=np.uint32((0xffffffff<<drop)&0xffffffff)
    return x
def lean(_=0, rounding=True):
    arrays=[]
    for i,f in enumerate(w):
        v=c.get(f.name)
        if v is None: arrays.append(pa.nulls(rows,f.type)); continue
        if isinstance(v,Lists):
            n=rows*K; flat=np.concatenate(v.values,out=scratch(n,i))
            if rounding: fast_round(flat, 12 if f.name.startswith("received") else 8, scratch(n,"tmp"))
            off=np.concatenate([[0],np.cumsum(v.lengths.ravel())]).astype(np.int32)
            arrays.append(pa.ListArray.from_arrays(pa.array(off),pa.array(flat),type=f.type))
        else: arrays.append(pa.array(v.astype(f.type.to_pandas_dtype()),type=f.type))
    made=pa.BufferOutputStream()
    with pq.ParquetWriter(made,w,**st.writer_options(w)) as writer:
        writer.write_table(pa.Table.from_arrays(arrays,schema=w),row_group_size=rows)
    return len(made.getvalue())
def old(_=0): return len(_row_group(w,c,rows,st))
def nor(_=0): return lean(rounding=False)
def onlywrite(_=0):
    made=pa.BufferOutputStream()
    with pq.ParquetWriter(made,w,**st.writer_options(w)) as writer: writer.write_table(TABLE,row_group_size=rows)
    return 0
TABLE=pq.read_table(pa.BufferReader(_row_group(w,c,rows,st)))
TABLE=pa.Table.from_arrays([x.combine_chunks() if x.num_chunks!=1 else x.chunk(0) for x in TABLE.columns],schema=w)
def go(label,f,n,pool,count):
    list(pool.map(f,range(n)))
    a=resource.getrusage(resource.RUSAGE_SELF); t=time.perf_counter(); list(pool.map(f,range(count))); t=time.perf_counter()-t; b=resource.getrusage(resource.RUSAGE_SELF)
    print(f"{label:12} n={n:2d}: {t/count*1e3:.2f} ms a group wall; user {(b.ru_utime-a.ru_utime)/count*1e3:.1f} sys {(b.ru_stime-a.ru_stime)/count*1e3:.1f} minflt {(b.ru_minflt-a.ru_minflt)/count:.0f} vcs {(b.ru_nvcsw-a.ru_nvcsw)/count:.0f}",flush=True)
if __name__=="__main__":
    N=max(1,(os.cpu_count() or 1)-1)
    for sw in (0.005,0.0005):
        sys.setswitchinterval(sw); print("switch",sw)
        for label,f in {"old":old,"lean":lean,"lean noround":nor,"only write":onlywrite}.items():
            for n in sorted({1,min(4,N),min(8,N),N}):
                with ThreadPoolExecutor(n) as p: go(label,f,n,p,12 if n==1 else 60)
    for pool in ("system","mimalloc","jemalloc"):
        try: pa.set_memory_pool(getattr(pa,pool+"_memory_pool")())
        except Exception as e: print(pool,e); continue
        with ThreadPoolExecutor(N) as p: go("lean "+pool,lean,N,p,60)
    for n in sorted({min(4,N),N}):
        with ProcessPoolExecutor(n,mp_context=mp.get_context("fork")) as p: go("procs lean",lean,n,p,60)
