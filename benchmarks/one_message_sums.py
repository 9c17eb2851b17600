"""Sums of secret vectors: our own protocol beside Prio3, where a client sends one message for two servers.

    python -m benchmarks.one_message_sums --own --json own.json           # ours; at 5,000 clients bytes by layout
    npm install --prefix /tmp/prio @divviup/prio3@0.8.0
    python -m benchmarks.one_message_sums --prio /tmp/prio --json prio.json

Nothing here is part of the product. Prio3 is the package of ISRG (draft-irtf-cfrg-vdaf-08) under Node.js, all parties
in one process; CPU seconds are medians over repetitions.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import results
from dpfedmeta.secure_aggregation import Agreement, agreed
from dpfedmeta.secure_aggregation.protocol_messages import ProtocolPhase
from dpfedmeta.secure_aggregation.simulated_round import InProcessRound, run_round

BITS, COLLUDING, SILENT = 16, 0.05, 0.2
LENGTHS = (32, 100, 1000, 5104)
FEW, MANY = 50, 5000
# Rounds whose bytes give those of a round that is too large to run here: (clients, adversarial, drop-out).
LAYOUT = ((50, 0.05, 0.2), (100, 0.05, 0.2), (100, 0.02, 0.05), (150, 0.05, 0.1), (200, 0.02, 0.05), (200, 0.05, 0.2))
# (name, length, bits of an entry): bits = 0 is a histogram, one entry of which is 1.
CIRCUITS = (*((length, 0) for length in LENGTHS), (32, 16), (100, 16), (1000, 1), (1000, 16), (5104, 1))

PRIO = """
import { Prio3Histogram, Prio3SumVec } from "@divviup/prio3";
import { randomBytes } from "node:crypto";
const [length, bits, repetitions] = process.argv.slice(2).map(Number);
const cpu = () => { const used = process.cpuUsage(); return (used.user + used.system) / 1e6; };
const chunkLength = Math.max(1, Math.round(Math.sqrt(length * (bits || 1))));
const vdaf = bits ? new Prio3SumVec({ shares: 2, length, bits, chunkLength })
                  : new Prio3Histogram({ shares: 2, length, chunkLength });
const measurement = bits ? Array(length).fill(1) : 1;
for (let turn = 0; turn < repetitions; turn++) {
  const nonce = randomBytes(16), key = randomBytes(vdaf.verifyKeySize);
  let start = cpu();
  const { publicShare, inputShares } = await vdaf.shard(measurement, nonce, randomBytes(vdaf.randSize));
  const client = cpu() - start;
  const shown = vdaf.encodePublicShare(publicShare).length;
  const sent = inputShares.map((share) => vdaf.encodeInputShare(share).length + shown);
  const servers = [], states = [];
  for (const [number, share] of inputShares.entries()) {
    start = cpu();
    states.push(await vdaf.prepareInit(key, number, null, nonce, publicShare, share));
    servers.push(cpu() - start);
  }
  const between = states.map((state) => vdaf.encodePreparationShare(state.preparationShare).length);
  const message = await vdaf.unshardPreparationShares(null, states.map((state) => state.preparationShare));
  const outputs = states.map((state) => vdaf.prepareNext(state.preparationState, message).outputShare);
  const sum = vdaf.unshard(null, outputs.map((output) => vdaf.aggregate(null, [output])), 1);
  const right = sum.every((value, place) => Number(value) === (bits || place === 1 ? 1 : 0));
  console.log(JSON.stringify({ client, servers, sent, between, right }));
}
"""


def prio(folder: Path, length: int, bits: int, repetitions: int) -> dict[str, Any]:
    """The row of a circuit: bytes and CPU seconds of one client's report.

    Raises:
        AssertionError: The sum is wrong.
    """
    script = folder / "one_message_sums.mjs"
    script.write_text(PRIO, encoding="utf-8")
    # The first is warm-up.
    words = ["node", str(script), str(length), str(bits), str(repetitions + 1)]
    said = subprocess.run(words, capture_output=True, text=True, check=True, cwd=folder).stdout
    turns = [json.loads(line) for line in said.splitlines()]
    if not all(turn["right"] for turn in turns):
        raise AssertionError(f"Prio3 of length {length} gave another sum")
    kept = turns[1:]
    return {
        "circuit": "histogram" if bits == 0 else f"sums of {bits} bits",
        "length": length,
        "client_bytes": sum(turns[0]["sent"]),
        "bytes_between_servers": sum(turns[0]["between"]),
        "client_cpu": statistics.median(turn["client"] for turn in kept),
        "servers_cpu": statistics.median(sum(turn["servers"]) for turn in kept),
        "repetitions": repetitions,
    }


def own(clients: int, length: int, *, malicious: bool) -> dict[str, Any]:
    """The row of a round of our protocol, run in this process."""
    agreement = _agreement(clients, length, COLLUDING, SILENT, malicious=malicious)
    cpu, start = time.process_time(), time.perf_counter()
    found = _round(agreement, agreement.clients - agreement.fewest)
    cpu, seconds = time.process_time() - cpu, time.perf_counter() - start
    up, down = (max(sums.values()) for sums in _bytes(found))
    return {
        "clients": clients,
        "length": length,
        "malicious": malicious,
        "degree": agreement.degree,
        "messages_up": len(found.traffic.up),
        "messages_down": len(found.traffic.down) - 1,
        "bytes_up": up,
        "bytes_down": down,
        "cpu": cpu,
        "seconds": seconds,
    }


def layout() -> dict[str, Any]:
    """Bytes of a client at 5,000 clients, from rounds of up to 200: they are linear in clients and neighbours."""
    rows, ways = [], []
    for clients, adversarial, dropout in LAYOUT:
        agreement = _agreement(clients, 32, adversarial, dropout, malicious=True)
        rows.append((1.0, clients, agreement.degree))
        ways.append([max(sums.values()) for sums in _bytes(_round(agreement, 0))])
    many = _agreement(MANY, 32, COLLUDING, SILENT, malicious=True)
    factors, *_ = np.linalg.lstsq(np.array(rows), np.array(ways, dtype=float), rcond=None)
    missed = np.abs(np.array(rows) @ factors - ways) / ways
    up, down = np.array([1.0, MANY, many.degree]) @ factors
    return {
        "clients": MANY,
        "degree": many.degree,
        "bytes_up_without_vector": round(up) - 32 * BITS // 8,
        "bytes_down": round(down),
        "largest_miss": float(missed.max()),
        "factors": factors.tolist(),
    }


def _agreement(clients: int, length: int, adversarial: float, dropout: float, *, malicious: bool) -> Agreement:
    return agreed(
        clients=clients, dimension=length, bits=BITS, adversarial=adversarial, dropout=dropout, malicious=malicious
    )


def _round(agreement: Agreement, silent: int) -> InProcessRound:
    """All who fall silent do so after they shared, which costs a server most."""
    generator = np.random.default_rng(0)
    vectors = [generator.integers(0, 2**BITS, agreement.dimension).astype("<u2") for _ in range(agreement.clients)]
    quiet = dict.fromkeys(range(silent), ProtocolPhase.MASKED)
    found = run_round(vectors, agreement=agreement, silent=quiet)
    total = np.sum(vectors[silent:], axis=0, dtype=np.uint64) % 2**BITS
    if not (found.sum.total == total).all():
        raise AssertionError("the sum is not the survivors' plain sum")
    return found


def _bytes(found: InProcessRound) -> Iterator[Mapping[int, int]]:
    """By survivor: what it sent, then what it got."""
    for way in (found.traffic.up, found.traffic.down):
        yield {seat: sum(sizes.get(seat, 0) for sizes in way.values()) for seat in found.sum.survivors}


def main() -> None:
    """One row after the other."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--own", action="store_true", help="measure our own protocol")
    parser.add_argument("--many", action="store_true", help="also a whole round of 5,000 clients, some minutes")
    parser.add_argument("--prio", type=Path, help="folder in which npm installed @divviup/prio3")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--json", type=Path, help="also keep the rows")
    words = parser.parse_args()
    found: dict[str, Any] = {"load_at_start": os.getloadavg()[0]}

    def keep(name: str, row: dict[str, Any]) -> None:
        found.setdefault(name, []).append(row)
        print(name, row, flush=True)
        if words.json is not None:
            results.write(words.json, found)

    if words.own:
        for length in LENGTHS:
            keep("own", own(FEW, length, malicious=True))
        keep("own", own(FEW, 5104, malicious=False))
        keep("layout", layout())
    if words.many:
        keep("own", own(MANY, 1000, malicious=False))
    if words.prio is not None:
        for length, bits in CIRCUITS:
            keep("prio", prio(words.prio, length, bits, words.repetitions))


if __name__ == "__main__":
    main()
