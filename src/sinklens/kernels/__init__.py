"""Attention received per key without the query x key matrix: reference (the definition), chunked, triton."""
