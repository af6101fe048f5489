"""What an experiment says: accuracies and their differences, with intervals over problems. Pure functions, no torch.

outcomes.py      right and wrong by problem, with draws nested in problems; accuracy; the bootstrap over problems
paired.py        the difference of two cells on the same problems, its intervals and its exact test
multiple.py      one primary contrast apart, the others under Holm
equivalence.py   "robust": the difference lies within a margin
interaction.py   the difference of the differences of two models
sequential.py    looking after every problem: when to stop, and what may be said then
elbo.py          a bound of the likelihood of a diffusion language model, by random masks

Everything is a share: 0.02 is two points. Everything is the same for the same seed, and blind to the order of the
problems, except sequential.py, where the order is the point.
"""
