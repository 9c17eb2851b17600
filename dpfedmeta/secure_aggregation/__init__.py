"""Secure aggregation: a server learns the sum of its clients' vectors and no vector (docs/secure-aggregation.md).

Usable without the rest of the package: `agreed` numbers, a `Round`, a `Client` on every device, a `Server`, and bytes
between them.
"""

from dpfedmeta.secure_aggregation.crypto.protocol_errors import Aborted, Refused
from dpfedmeta.secure_aggregation.protocol_client import Client
from dpfedmeta.secure_aggregation.protocol_server import Server, Sum
from dpfedmeta.secure_aggregation.round_parameters import Agreement, Identities, Round, agreed

__all__ = ["Aborted", "Agreement", "Client", "Identities", "Refused", "Round", "Server", "Sum", "agreed"]
