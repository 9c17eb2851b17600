"""Stands for an object that was handed over in Python."""

from typing import Any

from dpfedmeta.config.clip_settings import ClipSettings
from dpfedmeta.core.errors import InputError
from dpfedmeta.privacy.clip_policy import ClipPolicy, Surroundings


class Own:
    """No policy itself."""

    @classmethod
    def planned(cls, clip: ClipSettings, around: Surroundings) -> ClipPolicy[Any]:
        """There is nothing to make it from.

        Raises:
            InputError: Always.
        """
        raise InputError(
            "clip.policy = own: needs a policy object, and none was handed over; in Python: "
            "dpfedmeta.train(settings, clip_policy=...)"
        )


MEMBER = Own
