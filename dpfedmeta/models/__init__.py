"""Small stateless networks: no running statistics, no hidden state, weights always passed in."""

from dpfedmeta.models.frozen import Fixed, frozen_network, mixes_queries, restored_network
from dpfedmeta.models.functional import (
    apply,
    apply_body,
    apply_head,
    channels_last,
    head_of,
    without_prefix,
)
from dpfedmeta.models.initial import BUILT_IN, initial_weights
from dpfedmeta.models.registry import (
    build_network,
    check_first_gain,
    check_has_head,
    check_precision,
    check_records_uncoupled,
    learned_part,
)
from dpfedmeta.models.spec import NetworkSpec
from dpfedmeta.models.ways import check_weights, with_ways

__all__ = [
    "BUILT_IN",
    "Fixed",
    "NetworkSpec",
    "apply",
    "apply_body",
    "apply_head",
    "build_network",
    "channels_last",
    "check_first_gain",
    "check_has_head",
    "check_precision",
    "check_records_uncoupled",
    "check_weights",
    "frozen_network",
    "head_of",
    "initial_weights",
    "learned_part",
    "mixes_queries",
    "restored_network",
    "with_ways",
    "without_prefix",
]
