"""What a model can do, what it costs to remove its sinks, and what may be said about it.

Conditions and answers (docs/interventions.md, docs/evaluate.md)
    conditions.py    what is done to attention, as data: "sinks:top=5,keys=cached"
    grid.py          the cells of an experiment around the plain removal of k sinks
    greedy.py        each family's sampler at temperature 0
    answering.py     problems answered under a condition, and graded: one row a problem
    experiment.py    models x tasks x conditions, batch after batch, into a folder
    store.py         that folder: Parquet files, whole or not at all
    pace.py          how far it is
    scores.py        accuracies of a folder by every grader
Results of an experiment
    cells.py         rows as cells
    contrasts.py     which cells are compared
    across.py        models against each other
    report.py        the document of results
    card.py          the measurements of a model's card
Likelihoods
    elbo.py          a bound of the likelihood of a diffusion language model, by random masks
    likelihood.py    of a text behind a context, exact or as that bound, under a condition
    forced.py        a text through a causal model with keys denied on the way
    newest.py        keys chosen anew for every query, all in one forward
    standing.py      keys chosen once
    taken.py         how much attention is taken from the scored queries
    texts.py         a file as chunks
    perplexity.py    the loss on chunks under a condition
    text_experiment.py, text_result.py   many conditions on the same chunks, and what comes of it
Key norms and caches (docs/atlas.md, docs/compress.md)
    key_norms.py     norms of keys and the attention of the next query, chunk by chunk
    peaks.py         the largest entries of keys of small norm set to 0
    denoising_norms.py   norms and attention received while a canvas fills in
    atlas.py, atlas_numbers.py, atlas_result.py, denoising_result.py, key_norm_result.py, key_norm_findings.py
                     all of that for one model into a folder, and what comes of it
    compress_*.py    text, pass keys, needles and LongBench with a cache that is cut, into a folder
Token selection in vision transformers (docs/selection.md)
    selection_*.py   accuracy, kept tokens, cost and foreground by budget and channel, beside baselines, into a folder
lm-evaluation-harness
    lm_eval_model.py, lm_eval_settings.py   sinklens as a model of the harness
    until.py, writing.py                    generation that ends with a stop string
Statistics: pure functions, no torch (docs/evaluation-statistics.md)
    outcomes.py      right and wrong by problem, with draws nested in problems; accuracy; the bootstrap over problems
    paired.py        the difference of two cells on the same problems, its intervals and its exact test
    multiple.py      one primary contrast apart, the others under Holm
    equivalence.py   "robust": the difference lies within a margin
    interaction.py   the difference of the differences of two models
    sequential.py    looking after every problem: when to stop, and what may be said then

Everything is a share: 0.02 is two points. Everything is the same for the same seed, and blind to the order of the
problems, except sequential.py, where the order is the point.
"""
