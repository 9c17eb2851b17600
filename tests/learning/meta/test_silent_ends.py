"""A meta-gradient of one's own that ends without a word for a client: one line with its name, or that client's zero."""

import sys
from dataclasses import dataclass

import pytest

from dpfedmeta.core.errors import OwnCodeFailed
from dpfedmeta.core.plugins.user_code import is_own, own_failures
from dpfedmeta.learning.algorithms.maml import Maml


def none(*given):
    return None


def leaves(*given):
    sys.exit("bye")


ENDS = {"returned None": none, "called sys.exit": leaves}


@pytest.mark.parametrize("form", ["gradient", "gradients"])
@pytest.mark.parametrize("words", ENDS)
def test_none_and_an_exit_are_failures_of_the_users_own_with_its_name(form, words):
    kind = type("Mine", (Maml,), {form: ENDS[words], "__module__": "mine_of_test"})
    with pytest.raises(OwnCodeFailed, match=rf"^mine_of_test:Mine\.{form} {words}") as failed:
        getattr(kind, form)(None, None, None)
    # So a private run leaves out the client, as with any other failure, and says it as it is.
    assert is_own(OwnCodeFailed(str(failed.value)))
    with pytest.raises(OwnCodeFailed, match=r"^mine_of_test"), own_failures("while", private=True):
        raise failed.value


@pytest.mark.parametrize("form", ["gradient", "gradients"])
def test_ctrl_c_stays_one_and_what_is_sent_stays_as_it_is(form):
    def interrupted(*given):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        getattr(type("Mine", (Maml,), {form: interrupted, "__module__": "mine_of_test"}), form)(None, None)

    @dataclass(frozen=True, kw_only=True)
    class Same(Maml):
        def gradient(self, context, episode):
            return {"w": episode}

    assert Same.gradient(None, None, 3) == {"w": 3}
