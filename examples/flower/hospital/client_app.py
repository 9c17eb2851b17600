"""A client: dpfedmeta's, beside its own images."""

from dpfedmeta.federation.flower.flower_apps import client_app

app = client_app()
