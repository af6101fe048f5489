"""Language models: native LLaDA, Dream and MMaDA, and everything that transformers can load.

`load.load` is the way in; `language_model.LanguageModel` says what the rest of the library asks of a model.
Importing this package loads nothing, so that `catalog` can be read without torch.
"""
