"""A client: an ordinary ClientApp, and the mod that clips what leaves it."""

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

import dpfedmeta as dp

from .task import RECORDS, trained

app = ClientApp(mods=[dp.flower.clip_mod])


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train on the records of this client."""
    weights = message.content.array_records["arrays"]["weights"].numpy()
    moved = trained(weights, int(context.node_config["partition-id"]))
    arrays, metrics = ArrayRecord({"weights": Array(moved)}), MetricRecord({"num-examples": RECORDS})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)
