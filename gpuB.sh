export PYTHONPATH=src PYTHONUNBUFFERED=1
timeout 40 env SINKLENS_GPU=1 python3 -m pytest -o addopts="-ra --strict-markers" -p no:cacheprovider -q --tb=short -m gpu tests/recording/test_scribe.py tests/attention/test_outbox.py tests/sampling/test_graphs.py 2>&1 | tail -12
timeout 25 python3 benchmarks/observe_gpu.py --modes graph --batch 8 --lengths 192,1024 --variants received --json $OUT/batch.json 2>&1 | tee $OUT/batch.txt
timeout 30 python3 benchmarks/observe_gpu.py --modes graph --shape dream --lengths 192,1024,4096 --variants received,groups --json $OUT/dream.json 2>&1 | tee $OUT/dream.txt
timeout 25 python3 benchmarks/observe_gpu.py --modes graph --variants mask --lengths 1024 --json $OUT/mask.json 2>&1 | tee $OUT/mask.txt
timeout 30 python3 benchmarks/samplers_gpu.py --repeats 2 2>&1 | tee $OUT/samplers.txt
