"""Public clients, which are made of classes, beside whole clients of a plan: they hold no more than those may."""

from types import SimpleNamespace

import pytest

from dpfedmeta.core.errors import InputError
from dpfedmeta.data.episodes.shape import EpisodeShape, WholeShape
from dpfedmeta.training.build_data import _check_fits

WHOLE = WholeShape(support_share=0.5, most_ways=3, most_records=12)


@pytest.mark.parametrize(
    ("ways", "shots", "queries", "fits"),
    [(3, 2, 2, True), (3, 3, 1, True), (3, 1, 3, True), (4, 1, 1, False), (3, 3, 2, False), (3, 2, 3, False)],
)
def test_public_clients_are_as_large_as_whole_ones_may_be(ways, shots, queries, fits):
    plan = SimpleNamespace(shape=EpisodeShape(ways=ways, shots=shots, queries=queries), whole=WHOLE)
    if fits:
        _check_fits(plan)
    else:
        with pytest.raises(InputError, match=f"hold {ways} classes and {ways * (shots + queries)} records"):
            _check_fits(plan)
    plan.whole = None
    _check_fits(plan)
