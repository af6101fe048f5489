"""Traces: a folder of Parquet files and a manifest, readable without torch and without sinklens."""
