export PYTHONPATH=src PYTHONUNBUFFERED=1
timeout 60 env SINKLENS_GPU=1 python3 -m pytest -o addopts="-ra --strict-markers" -p no:cacheprovider -q --tb=short -x -m gpu tests/sampling/test_undecided.py 2>&1 | tail -30
timeout 60 env SINKLENS_GPU=1 python3 -m pytest -o addopts="-ra --strict-markers" -p no:cacheprovider -q --tb=short -m gpu tests/kernels/test_ranks.py 2>&1 | tail -12
timeout 100 python3 rg_tmp.py
timeout 120 python3 prof_tmp.py 2>&1 | tee $OUT/prof.txt | cut -c1-150
