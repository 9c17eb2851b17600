"""The mean of past releases itself."""

from dpfedmeta.core.params import Params
from dpfedmeta.learning.server_step import Moments


def sgd(moments: Moments) -> Params:
    """The first moment.

    Guarantee:
        As of `Rule`.
    """
    return moments.first


MEMBER = sgd
