"""The chips of one host of a fleet, for `benchmarks.bench_inspection`: real chips, of which none runs for long.

`python -m benchmarks.chip_host make DIR COUNT MANUFACTURER AUTHORITY CREDENTIALS` makes chips, and role certificates
that name them, as many chips each as one may. `python -m benchmarks.chip_host report DIR CREDENTIALS ADDRESS KEY RATE`
starts each chip once, has it report its log to the Verifier's witness as chips do by themselves, over one connection
for all chips of a certificate, and switches it off again: keys, boots, logs, signatures and the witness's answers are
those of any simulated chip. The last line is JSON: how many, and the processor's seconds of this process.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

from firmware_sim.device import boot
from firmware_sim.firmware import DEFAULT_HOLD, Firmware
from firmware_sim.fleet import chips_in, provision_fleet
from firmware_sim.nvlog import NonVolatileLog
from firmware_sim.reporting_policy import Reporting, witness_key
from firmware_sim.witness_client import report_over
from weighbridge.attest.identity import CertificateAuthority, Credentials
from weighbridge.attest.peers import MAX_UEIDS
from weighbridge.rpc import endpoints


def make(directory: str, count: str, manufacturer: str, authority: str, credentials: str) -> int:
    """Makes chips, and credentials that name them; returns how many chips there are."""
    provision_fleet(Path(directory), int(count), CertificateAuthority.load(Path(manufacturer)))
    issuer = CertificateAuthority.load(Path(authority))
    for number, ueids in enumerate(shares(directory)):
        issuer.issue_role("chip", f"chips-{number}", ueids=ueids).save(Path(credentials) / str(number))
    return int(count)


def report(directory: str, credentials: str, address: str, key: str, rate: str) -> int:
    """Has each chip boot and report its log; returns how many did."""
    reporting, done = Reporting(witness=witness_key(Path(key))), 0
    for number, ueids in enumerate(shares(directory)):
        own = Credentials.load(Path(credentials) / str(number))
        with endpoints.channel(address, own, "verifier") as channel:
            for ueid in ueids:
                home = Path(directory) / ueid.hex()
                with NonVolatileLog(home) as log:
                    firmware = Firmware(
                        home, boot(home), log, rate_per_day=float(rate), clock_speed=1.0, hold=DEFAULT_HOLD,
                        reporting=reporting,
                    )  # fmt: skip
                    report_over(channel, firmware)
                done += 1
    return done


def shares(directory: str) -> list[list[bytes]]:
    """Returns the chips in `directory`, those of each certificate together."""
    ueids = sorted(chips_in(Path(directory)))
    return [ueids[first : first + MAX_UEIDS] for first in range(0, len(ueids), MAX_UEIDS)]


if __name__ == "__main__":
    work: dict[str, Callable[..., int]] = {"make": make, "report": report}
    done = work[sys.argv[1]](*sys.argv[2:])
    print(json.dumps({"chips": done, "cpu_s": time.process_time()}))
