"""The server: dpfedmeta's training loop over Flower's grid."""

from dpfedmeta.federation.flower_apps import server_app

app = server_app()
