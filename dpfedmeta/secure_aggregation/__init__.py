"""Secure aggregation: a server learns the sum of its clients' vectors and no vector (docs/secure-aggregation.md).

Usable without the rest of the package: `agreed` numbers, a `Round`, a `Client` on every device, a `Server`, and bytes
between them.
"""

from dpfedmeta.secure_aggregation.agreement import Agreement, Identities, Round, agreed
from dpfedmeta.secure_aggregation.client import Client
from dpfedmeta.secure_aggregation.client_state import History
from dpfedmeta.secure_aggregation.refusals import Aborted, Refused
from dpfedmeta.secure_aggregation.server import Server, Sum

__all__ = ["Aborted", "Agreement", "Client", "History", "Identities", "Refused", "Round", "Server", "Sum", "agreed"]
