"""Grids of experiments as lists of independent jobs, here or on a cluster.

grid.py    a TOML file: models x tasks x interventions x seeds -> jobs
job.py     one cell of the grid: what decides its rows, and how they are made
folder.py  one Parquet file a finished job, one JSON file a failed one, a manifest
local.py   jobs in processes of this machine
ray.py     the same jobs as Ray tasks, on this machine or a cluster
run.py     what is left to do, done by one of the two and written as it comes

Nothing here is loaded with torch until a job runs; Ray only where it is asked for.
"""
