export PYTHONPATH=src PYTHONUNBUFFERED=1
timeout 120 python3 prof_tmp.py 2>&1 | tee $OUT/prof.txt
