"""Each coordinate by its own size (Kingma and Ba 2015, https://arxiv.org/abs/1412.6980)."""

from dpfedmeta.core.params import Params
from dpfedmeta.learning.server_step import Moments

_FLOOR = 1e-8


def adam(moments: Moments) -> Params:
    """First moment over the root of the second.

    Guarantee:
        As of `Rule`.
    """
    return {name: value / (moments.second[name].sqrt() + _FLOOR) for name, value in moments.first.items()}


MEMBER = adam
