"""The mean of past releases itself."""

from __future__ import annotations

from dpfedmeta.parameters import Params
from dpfedmeta.server import Moments


def sgd(moments: Moments) -> Params:
    """The first moment.

    Guarantee:
        As of `Rule`.
    """
    return moments.first


MEMBER = sgd
