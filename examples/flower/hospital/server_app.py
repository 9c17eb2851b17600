"""The server: dpfedmeta's training loop over Flower's grid."""

from dpfedmeta.federation.flower.flower_apps import server_app

app = server_app()
