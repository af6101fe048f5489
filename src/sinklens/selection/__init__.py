"""Learned token selection for vision transformers: one model for every budget of compute and bandwidth."""
