"""How a round goes wrong: one message that is not accepted, or the end of a party's round."""


class Refused(Exception):
    """One message is not accepted; the text says why. Who sent it counts as absent, and nothing else changes."""


class Aborted(Exception):
    """This party leaves the round, for the reason that the text gives. It answers nothing more, and releases no sum."""
