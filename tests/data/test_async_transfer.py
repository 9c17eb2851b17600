import torch

from dpfedmeta.core.params import placed


class Value:
    """A tensor that writes down what is done with it."""

    device = torch.device("cpu")

    def __init__(self):
        self.done = []

    def pin_memory(self):
        self.done.append("pinned")
        return self

    def to(self, device, **how):
        self.done.append((device.type, how))
        return self


def test_a_copy_to_a_gpu_waits_for_nothing_and_one_on_the_host_is_none():
    value = torch.arange(3)
    assert placed(value, torch.device("cpu")) is value
    here, there = Value(), Value()
    placed(here, torch.device("cuda"))
    assert here.done == ["pinned", ("cuda", {"non_blocking": True})]
    there.device = torch.device("cuda")
    placed(there, torch.device("cuda"))
    assert there.done == [("cuda", {})]
