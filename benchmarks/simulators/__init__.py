"""One federated task in several simulators, each in an environment of its own: `make simulators`."""
