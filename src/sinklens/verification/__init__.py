"""Compare a model as sinklens computes it with the original code, run by a Python of its own.

    protocol.py     what is asked, how the reference is run, what it must answer
    compare.py      logits within a tolerance, canvases exactly
    certificate.py  the record that ties the outcome to the weights
    verify.py       the three in a row

The reference runs before our model is loaded, so that only one of the two is in memory.
"""

from sinklens.verification.certificate import certificate_for
from sinklens.verification.protocol import Reference
from sinklens.verification.verify import verify

__all__ = ["Reference", "certificate_for", "verify"]
