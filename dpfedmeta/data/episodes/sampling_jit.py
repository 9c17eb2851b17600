"""The compiled loop that makes a client's records: gathered, turned, mirrored, moved and standardised in one pass."""

import numpy as np

from dpfedmeta.core.jit import compiled


@compiled
def draw_records(images, places, turns, mirrored, shifts, values, records):
    """Fill [n, channels, height, width] with images of an array on disk.

    Args:
        images: [images, channels, height, width] in uint8; height = width where one is turned.
        places: [n], which image.
        turns: [n], quarter turns, as numpy.rot90 over the last two axes has them.
        mirrored: [n], whether an image is mirrored after that.
        shifts: [n, 2], pixels by which it is then moved up and to the left, less than its height and width; what comes
            in is the reflection at its border.
        values: [channels, 256] in float32, what a network sees for each byte.
        records: Out: float32.
    """
    channels, height, width = records.shape[1:]
    columns = np.empty(width, np.int64)
    for n in range(len(places)):
        # Byte (row, column) once turned and mirrored is byte first + row * down + column * across as stored.
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
        for column in range(width):
            columns[column] = reflected(column + shifts[n, 1], width) * across
        for c in range(channels):
            stored, seen = images[places[n], c].reshape(-1), values[c]
            for row in range(height):
                start = first + reflected(row + shifts[n, 0], height) * down
                for column in range(width):
                    records[n, c, row, column] = seen[stored[start + columns[column]]]


@compiled
def reflected(place, size):
    """A place on a line of `size` pixels that is mirrored at its first and last one; at most size - 1 beyond either."""
    if place < 0:
        return -place
    return 2 * (size - 1) - place if place >= size else place
