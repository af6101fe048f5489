"""Figures and pages, made from traces alone: nothing here imports torch."""
