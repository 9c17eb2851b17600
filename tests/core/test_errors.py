"""Messages of errors."""

import pytest

from dpfedmeta.core.errors import InputError, RefusedPlan


@pytest.mark.parametrize("kind", [InputError, RefusedPlan])
def test_a_message_is_one_line_whatever_name_it_repeats(kind):
    assert str(kind("a\nb.png\r\nc\u2028d: naïve 値")) == "a b.png c d: naïve 値"
