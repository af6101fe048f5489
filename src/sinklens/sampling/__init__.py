"""Generation as an iterator of steps.

step.py            Step, Generation, and the Sampler protocol
generate.py        steps() and generate(): any sampler on any model
llada.py dream.py  the two denoising loops; diffusion.py names both
autoregressive.py  one token a step
unmask.py          which positions commit, and with which token: pure functions
canvas.py          what the denoising loops share
prompt.py rng.py   what goes in: ids and padding, random draws
prompt_list.py     prompts as people keep them: texts, ids, conversations, files
special_ids.py     which ids end a row, which fill it
checks.py          ranges of settings
"""
