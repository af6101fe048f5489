export PYTHONPATH=src PYTHONUNBUFFERED=1
timeout 75 python3 benchmarks/trace_gpu.py --modes graph --repeats 3 --traces "full;full, no norms;sinks" > $OUT/trace.txt 2>&1; cat $OUT/trace.txt
timeout 85 python3 benchmarks/observe_gpu.py --modes graph --json $OUT/observe.json > $OUT/observe.txt 2>&1; cat $OUT/observe.txt
