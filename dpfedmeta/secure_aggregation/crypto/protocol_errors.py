"""Errors of a round: a message that is not accepted, or the end of a party's round."""


class Refused(Exception):
    """Error for a message that is not accepted; the text says why.

    The sender counts as absent, and nothing else changes.
    """


class Aborted(Exception):
    """This party leaves the round, for the reason that the text gives. It answers nothing more, and releases no sum."""
