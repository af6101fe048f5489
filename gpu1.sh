export PYTHONPATH=src PYTHONUNBUFFERED=1
timeout 60 env SINKLENS_GPU=1 python3 -m pytest -o addopts="-ra --strict-markers" -p no:cacheprovider -q --tb=short -m gpu tests/sampling/test_undecided.py tests/attention/test_outbox.py 2>&1 | tail -12
timeout 60 python3 prof_tmp.py 2>&1 | cut -c1-140
timeout 90 python3 benchmarks/trace_gpu.py --modes graph --repeats 3 2>&1
timeout 40 python3 benchmarks/samplers_gpu.py --models tiny-llada,tiny-dream --repeats 3 2>&1
