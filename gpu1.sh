export PYTHONPATH=src PYTHONUNBUFFERED=1
timeout 100 env SINKLENS_GPU=1 python3 -m pytest -o addopts="-ra --strict-markers" -p no:cacheprovider -q --tb=short -m gpu tests/sampling/test_undecided.py tests/attention/test_outbox.py tests/sampling/test_graphs.py 2>&1 | tail -40
timeout 180 python3 prof_tmp.py 2>&1 | tee $OUT/prof.txt
