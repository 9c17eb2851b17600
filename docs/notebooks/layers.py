# %% [markdown]
# # Layered privacy, and a server that sees sums
#
# Four promises of four algorithms side by side, and a secure sum with every message. Nothing is trained.

# %%
import math
import os

import matplotlib.pyplot as plt
import numpy as np

import dpfedmeta as dp
from dpfedmeta.accounting.rounded import rounded_up
from dpfedmeta.secure_aggregation import Client, Identities, Round, Server, agreed
from dpfedmeta.secure_aggregation.crypto.keys import Identity

# %% [markdown]
# ## Who is promised what
#
# Smaller is better; `inf` is no promise. Noise of the server protects from the public. Noise of the clients protects from both.

# %%
algorithms = ["dp-agr", "dp-agrlr", "dp-agrlr-micro", "dp-agrlr-secure"]
cells = [("client", "public"), ("client", "server"), ("record", "server"), ("record", "public")]
found = {}
for name in algorithms:
    planned = dp.plan(dp.Settings.preset(name, "omniglot"))
    found[name] = [planned.guarantees.of(*cell).epsilon for cell in cells]
    print(
        f"{name:16}",
        "  ".join(
            f"{unit}/{observer} {rounded_up(epsilon)}"
            for (unit, observer), epsilon in zip(cells, found[name], strict=True)
        ),
    )

# %%
figure, place = plt.subplots(figsize=(7.5, 3.2), layout="constrained")
for number, (name, hatch) in enumerate(zip(algorithms, ["", "//", "..", "xx"], strict=True)):
    heights = [min(each, 1000) if math.isfinite(each) else 1000 for each in found[name]]
    places = np.arange(4) + 0.2 * (number - 1.5)
    place.bar(places, heights, 0.18, label=name, hatch=hatch, edgecolor="white")
    for x, each in zip(places, found[name], strict=True):
        if math.isinf(each):
            place.text(x, 1100, "inf", ha="center", fontsize=7)
place.set_xticks(range(4), [f"{unit}\ntowards {observer}" for unit, observer in cells])
place.set(yscale="log", ylabel="epsilon", ylim=(1e-3, 4e4))
_ = place.legend(ncols=2, fontsize=8)

# %% [markdown]
# ## A sum, and no message
#
# Ten clients, one of which falls silent after it has sent its keys. What the server gets is masked; only the sum of the nine comes out.

# %%
private = [os.urandom(32) for _ in range(10)]
server_key = os.urandom(32)
agreement = agreed(clients=10, dimension=4, bits=16, adversarial=0.1, dropout=0.2, malicious=True)
round_ = Round(
    run=os.urandom(32), round=0, attempt=0, agreement=agreement,
    identities=Identities(keys={seat: Identity(key).public for seat, key in enumerate(private)}),
    server=Identity(server_key).public,
)  # fmt: skip
server = Server(round_=round_, identity=server_key)
clients = [Client(round_=round_, seat=seat, identity=private[seat]) for seat in range(10)]
vectors = [np.array([seat, 10 * seat, -seat, 1]) for seat in range(10)]

for client in clients:
    server.receive(client.advertise())
for seat, message in server.close().items():
    server.receive(clients[seat].share(message))
for seat, message in server.close().items():
    server.receive(clients[seat].agree(message))
for seat, message in server.close().items():
    if seat != 7:  # falls silent
        server.receive(clients[seat].mask(message, vectors[seat]))
for seat, message in server.close().items():
    server.receive(clients[seat].consent(message))
for seat, message in server.close().items():
    server.receive(clients[seat].unmask(message))
server.close()
print("sum modulo 2^16:", server.sum().total.tolist(), "of", len(server.sum().survivors), "clients")
print("which it is:    ", (sum(vectors[seat] for seat in range(10) if seat != 7) % 2**16).tolist())

# %% [markdown]
# [The protocol](../secure-aggregation.md); [what holds for a sum](../guarantees.md#a-server-that-sees-sums).
