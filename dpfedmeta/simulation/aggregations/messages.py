"""The server receives every message and adds them up: a trusted server, or clients that release theirs towards it."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from dpfedmeta.accounting.privacy_plan.privacy_plan import ServerSees
    from dpfedmeta.config.settings import Settings
    from dpfedmeta.core.worker_pool import Workers
    from dpfedmeta.simulation.backend import Backend
    from dpfedmeta.simulation.client_runner import ClientRunner


class Messages:
    """On worker processes of this machine."""

    sees: ClassVar[ServerSees] = "messages"

    @classmethod
    def made(cls, settings: Settings, clients: ClientRunner, workers: Workers) -> Backend:
        """For these clients."""
        from dpfedmeta.simulation.cohort_sums import LocalBackend

        return LocalBackend(clients=clients, workers=workers, abort_on_failure=settings.server.abort_on_failure)


MEMBER = Messages
