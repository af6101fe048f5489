"""`compress`: a transformers decoder keeps fewer entries of its cache while a context is open.

    with compress(model, Compression(order="low", keep=128)) as cut:
        out = generate(model, prompt, AutoregressiveSampler(length=64))
    cut.lengths, cut.bytes, cut.kept

Layers of the model's DynamicCache are replaced by ones that can be cut (layer.py) as the attention modules meet them,
and each module gets the mask of its own layer (masks.py). Nothing stays behind on the model.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from weakref import WeakSet

from torch import nn

from sinklens.attention.seam import registered
from sinklens.cache import checks
from sinklens.cache.cut import Cut
from sinklens.cache.editor import Editor
from sinklens.cache.listening import Listening
from sinklens.cache.settings import Compression
from sinklens.cache.vocabulary import marked_ids
from sinklens.errors import UsageError

_LISTENS = ("received", "expected")  # orders that need the queries
_compressed: "WeakSet[nn.Module]" = WeakSet()


@contextmanager
def compress(model: Any, compression: Any, *, tokenizer: Any = None) -> Iterator[Cut]:
    """Cut the caches that `model` fills, by `compression`, while the context is open.

    model: what `load` returns, or a transformers decoder; sdpa or eager attention, caches of plain dynamic layers.
    tokenizer: for order="fastgen", where the model has none of its own.
    """
    if not isinstance(compression, Compression):
        raise UsageError(
            f"compression is {compression!r}; expected settings such as Compression(order='low', keep=128)"
        )
    decoder = checks.decoder_of(model)
    modules = checks.attention_modules(decoder)
    checks.check_layers(compression, modules)
    if decoder in _compressed:
        raise UsageError("this model is compressed already: leave one context before opening another")
    marks = None
    if compression.order == "fastgen":
        marks = marked_ids(tokenizer if tokenizer is not None else getattr(model, "tokenizer", None))
    listening = Listening(decoder, compression.order) if compression.order in _LISTENS else None
    cut = Cut(compression)
    editor = Editor(cut, decoder, listening, marks)
    with ExitStack() as stack:
        _compressed.add(decoder)
        stack.callback(_compressed.discard, decoder)
        stack.callback(editor.close)
        if listening is not None:
            stack.enter_context(registered(decoder, listening))
            stack.enter_context(listening.watch.doors())
        for module in modules:
            stack.callback(module.register_forward_pre_hook(editor.before, with_kwargs=True, prepend=True).remove)
            stack.callback(module.register_forward_hook(editor.after, with_kwargs=True).remove)
        stack.enter_context(_forward_replaced(decoder, editor.forward))
        yield cut
    if editor.forwards and not cut.lengths:
        raise UsageError("the model ran without a cache, so that nothing was compressed; generate with one (use_cache)")


@contextmanager
def _forward_replaced(module: nn.Module, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
    before = module.__dict__.get("forward")
    module.__dict__["forward"] = make(module.forward)
    try:
        yield
    finally:
        if before is None:
            del module.__dict__["forward"]
        else:
            module.__dict__["forward"] = before
