"""A published data set that nobody planned for: stripes, whose width is told by the class. One file.

Its task file lies beside whoever uses it: `source: {reader: tests.seams.own_reader:Stripes, widths: 7}`.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpfedmeta.core.errors import InputError
from dpfedmeta.data.sources import Located, PublishedReader, Source, entries_of, images_of_a_class
from dpfedmeta.data.storage.decoded_cache import Contents


@dataclass(frozen=True, kw_only=True)
class StripesSource(Source):
    widths: int


class Stripes(PublishedReader):
    form: ClassVar = StripesSource
    channels: ClassVar = (1,)

    @classmethod
    def locate(cls, task, splits, folder):
        size, images = task.form.shape[-1], images_of_a_class(task)
        strange = [name for name in splits if not 0 < int(name) <= task.source.widths]
        if strange:
            raise InputError(f"stripes: no width {strange[0]}")

        def decode():
            for name in splits:
                row = np.arange(size) // int(name) % 2 * 255
                yield np.broadcast_to(row, (images, 1, size, size)).astype(np.uint8)

        return Located(
            key=["stripes", dict(splits), size, images],
            contents=lambda: Contents(classes=entries_of(splits, images), decode=decode),
        )


class NoReader:
    """Has nothing of one."""
