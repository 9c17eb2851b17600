"""The compiled loop that makes a client's records: gathered, turned, mirrored and standardised in one pass."""

from __future__ import annotations

from dpfedmeta.compiled import compiled


@compiled
def draw_records(images, places, turns, mirrored, values, records):
    """Fill [n, channels, height, width] with images of an array on disk.

    Args:
        images: [images, channels, height, width] in uint8; height = width where one is turned.
        places: [n], which image.
        turns: [n], quarter turns, as numpy.rot90 over the last two axes has them.
        mirrored: [n], whether an image is mirrored after that.
        values: [channels, 256] in float32, what a network sees for each byte.
        records: Out: float32.
    """
    channels, height, width = records.shape[1:]
    for n in range(len(places)):
        # Byte (row, column) of what is drawn is byte first + row * down + column * across of what is stored.
        if turns[n] == 0:
            first, down, across = 0, width, 1
        elif turns[n] == 1:
            first, down, across = width - 1, -1, width
        elif turns[n] == 2:
            first, down, across = height * width - 1, -width, -1
        else:
            first, down, across = (height - 1) * width, 1, -width
        if mirrored[n]:
            first, across = first + (width - 1) * across, -across
        for c in range(channels):
            stored, seen = images[places[n], c].reshape(-1), values[c]
            for row in range(height):
                for column in range(width):
                    records[n, c, row, column] = seen[stored[first + row * down + column * across]]
