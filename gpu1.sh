export PYTHONPATH=src PYTHONUNBUFFERED=1
timeout 80 python3 prof_tmp.py 2>&1
