"""Errors of a round: a message that is not accepted, or the end of a party's round."""


def plain_line(text: str) -> str:
    """Write out what a terminal or a log would obey, such as line ends, in a text that another party chose."""
    return "".join(letter if letter.isprintable() else f"\\x{ord(letter):02x}" for letter in text)


class Refused(Exception):
    """Error for a message that is not accepted; the text says why.

    The sender counts as absent, and nothing else changes.
    """


class Aborted(Exception):
    """This party leaves the round, for the reason that the text gives. It answers nothing more, and releases no sum."""
