"""Ten clients on Flower with a guarantee: the server is `server_app`, a client is `client_app`."""
