"""An example or two for the help of every command, in one table: a test parses each, and asks that none is missing."""

from __future__ import annotations

from typing import Any

_CHIP_LOG = "127.0.0.1:4461 --credentials credentials/operator --manufacturer maker/authority.pem"
_ONE = "0100000000000000000000000000000001"
_FLEET = "--chips 1e5 --flops 5.76e23"

_DIGEST, _OTHER = "5f" * 32, "91" * 32
_SECRETS = "--agreement agreement.cbor --prover-secret prover.secret --verifier-secret verifier.secret"

EXAMPLES: dict[str, tuple[str, ...]] = {
    "record": ("--out runs/gpt2 train.py --epochs 3", "--logs on-demand --out runs/gpt2 train.py"),
    "doctor": ("train.py --epochs 3", "--steps 20 --json train.py --epochs 3"),
    "replay": ("runs/gpt2", "runs/gpt2 --steps 10:20 --device cuda --json", "runs/gpt2 --sensitivity 3"),
    "regenerate": ("runs/gpt2 --steps 10:20",),
    "compare": ("runs/gpt2 runs/other",),
    "audit plan": (
        f"runs/gpt2 --auditor alice={_DIGEST} --copies 1 --beacon beacon --key coordinator.key --out case",
        f"runs/gpt2 runs/planted --auditor alice={_DIGEST} --planted runs/planted=7 --copies 1 --beacon beacon "
        "--key coordinator.key --out case",
        f"runs/gpt2 --order runs/gpt2=gpt2.order --auditor alice={_DIGEST} --copies 1 --beacon beacon "
        "--key client.key --out case",
    ),
    "audit order": (f"runs/rehearsal --steps 1000 --service {_DIGEST} --key client.key --out gpt2.order",),
    "audit accept": ("gpt2.order --key service.key",),
    "audit delivery": ("gpt2.order runs/gpt2",),
    "audit enrol": ("case --beacon beacon --key alice.key",),
    "audit assigned": ("case --beacon beacon",),
    "audit run": ("case runs/gpt2 --beacon beacon --key alice.key",),
    "audit close": ("case --beacon beacon --key coordinator.key",),
    "audit open": ("case --beacon beacon --key alice.key",),
    "audit verdict": ("case runs/gpt2 --beacon beacon --key referee.key",),
    "audit verify": ("case --beacon beacon",),
    "audit plant": ("runs/own runs/planted --step 7 --key other.key",),
    "dispute open": (
        "runs/gpt2 --step 7 --key mine.key --out step7.dispute",
        f"runs/gpt2 --step 7 --key mine.key --referee 127.0.0.1:4470 --credentials mine --defender {_DIGEST}",
    ),
    "dispute answer": (
        "step7.dispute runs/gpt2 --key mine.key",
        f"{_DIGEST} runs/gpt2 --key mine.key --referee 127.0.0.1:4470 --credentials mine",
    ),
    "dispute memory": (
        "runs/gpt2 --step 8 --region 0.weight --evidence snapshot.evidence --manufacturer root.pem --key mine.key "
        "--out memory.dispute",
        "other.bin --evidence snapshot.evidence --manufacturer root.pem --key mine.key --out other.dispute",
    ),
    "dispute show": (
        "step7.dispute",
        f"{_DIGEST} --referee 127.0.0.1:4470 --credentials mine --out step7.dispute",
    ),
    "referee serve": (f"--docket disputes --key referee.key --credentials credentials/referee --party lab={_DIGEST}",),
    "referee charges": (f"--docket disputes --key referee.key --party lab={_DIGEST}",),
    "dispute judge": ("step7.dispute --key referee.key",),
    "dispute verify": ("step7.dispute", "session/dispute --root authority.pem"),
    "dispute sealed terms": (
        f"--step 7 --name gpt2-7 --challenger {_DIGEST} --defender {_OTHER} --measurement MEASUREMENT --site {_ONE} "
        "--defender-transcript runs/gpt2 --subject gpt2.subject --out gpt2.terms",
    ),
    "dispute sealed transcript": ("runs/gpt2",),
    "dispute sealed show": ("--terms gpt2.terms",),
    "dispute sealed gather": ("runs/gpt2 --terms gpt2.terms --subject gpt2.subject --out inputs",),
    "dispute sealed seat": (
        "inputs --terms gpt2.terms --key mine.key --sealed-key sealed.key --book book --out mine.seat",
    ),
    "dispute sealed send": (
        "inputs --terms gpt2.terms --seat mine.seat --seat theirs.seat --own mine.seat --sealed-key sealed.key "
        "--attestation session/attestation --root authority.pem --out mine.lane",
    ),
    "show": ("runs/gpt2",),
    "ops": ("--kind rounded", "--missing"),
    "demo": ("--out runs/demo",),
    "up": ("", "--name gpu-a --name gpu-b --clock-speed 43200 --rate 1", "--confidential"),
    "down": ("", "--dir laboratory"),
    "status": ("", "--json"),
    "example": ("digits --declared chip-0 --hidden chip-1",),
    "warm": ("",),
    "site identity": (f"maker --ueid {_ONE} --out site/launcher",),
    "site image": ("site/image",),
    "site compare": ("site/image theirs/image.cbor",),
    "site endorse": ("site/image --key endorser.key --out a.endorsement",),
    "site publish": ("log a.endorsement b.endorsement --key log.key --origin images.example.org/log",),
    "site prove": ("log --policy images.toml --measurement MEASUREMENT --out image.proof",),
    "site monitor": (
        "log --policy images.toml --seen log.seen",
        "log --policy images.toml --seen log.seen --cosign witness.key --name monitor.example.org",
    ),
    "site vet": ("image.proof --policy images.toml --measurement MEASUREMENT",),
    "site machines": ("a/launcher.der b/launcher.der --root authority.pem --out machines.tsv",),
    "site choose": ("--agreement agreement.cbor --case case.cbor --machines machines.tsv",),
    "site case": ("case.cbor",),
    "site gather": (f"inputs --case case.cbor --runs runs --chip {_ONE}=chips/gpu-0.sock",),
    "site order": (
        "--out order.cbor --agreement agreement.cbor --case case.cbor --inputs inputs --key sealed.key "
        "--report-key report.key --measurement MEASUREMENT",
        "--out order.cbor --agreement agreement.cbor --case case.cbor --inputs inputs --key sealed.key "
        "--report-key report.key --measurement MEASUREMENT --parts 2 --root authority.pem",
    ),
    "site assent": (
        "order.cbor --agreement agreement.cbor --case case.cbor --measurement MEASUREMENT --key prover.key "
        "--out prover.assent",
    ),
    "site session": (
        "order.cbor --agreement agreement.cbor --case case.cbor --inputs inputs --key sealed.key --report-key "
        "report.key --secret prover.secret --prover-assent prover.assent --verifier-assent verifier.assent "
        "--root authority.pem --worker 'weighbridge site worker ...' --out session",
        "order.cbor --agreement agreement.cbor --case case.cbor --inputs inputs --key sealed.key --report-key "
        "report.key --secret prover.secret --prover-assent prover.assent --verifier-assent verifier.assent "
        "--root authority.pem --worker 'weighbridge site worker ...' --out session "
        "--part 'weighbridge site worker --order session/part-1.order ...' "
        "--part 'weighbridge site worker --order session/part-2.order ...'",
    ),
    "site admit": (
        "order.cbor --agreement agreement.cbor --case case.cbor --attestation attestation --root authority.pem "
        "--secret verifier.secret --out verifier.box",
    ),
    "site key": ("order.cbor --attestation attestation --root authority.pem --statement statement",),
    "site referee": (
        "--terms gpt2.terms --seat mine.seat --seat theirs.seat --worker 'weighbridge site worker ...' --out session",
    ),
    "site worker": ("--order order.cbor --identity site/launcher --image site/image --log site/starts",),
    "calibrate": ("--out tables/this.json", "--device cuda --out tables/gpu.json"),
    "tape show": ("runs/gpt2", "runs/gpt2 3f9a --operations"),
    "tape passport": ("runs/gpt2", "runs/gpt2 --recognise 3 --json"),
    "tape approve": ("runs/gpt2 --key party.key --out gpt2.passport",),
    "tape verify-passport": ("gpt2.passport --parties parties.toml --run runs/other",),
    "transcript upload": ("runs/gpt2 --verifier 127.0.0.1:4460 --credentials credentials/prover",),
    "transcript export": ("--minimal runs/gpt2 sent",),
    "transcript recover": ("runs/gpt2",),
    "job show": ("runs/gpt2",),
    "job results": ("runs/gpt2 --rank 1 --steps 0:10 --out results.bin",),
    "job challenge": ("runs/gpt2 --rank 1 --chunks 100 --out challenge.bin",),
    "job open": ("runs/gpt2 --rank 1 --challenge challenge.bin --out openings.bin",),
    "job check": ("runs/gpt2 --rank 1 --challenge challenge.bin --openings openings.bin",),
    "job layout": ("runs/sharded runs/gpt2 --step 1",),
    "chip image": ("maker --out firmware.img",),
    "chip provision": ("chips/0 --manufacturer maker --image firmware.img",),
    "chip boot": (
        "--dir chips/0 --credentials credentials/chip-0 --socket chips/0.sock --address-file chips/0.address "
        "--rate 0.1",
    ),
    "chip fleet": (
        "--dir fleet --count 2000 --manufacturer maker --credentials credentials/chip-0 --address-file fleet.address",
    ),
    "chip show": ("chips/0", _CHIP_LOG),
    "chip unlock": ("chips/0",),
    "chip log read": (_CHIP_LOG,),
    "chip log export": ("127.0.0.1:4461 log --credentials credentials/operator --manufacturer maker/authority.pem",),
    "chip log fsck": ("log --manufacturer maker/authority.pem", "chips/0"),
    "chip log prove": ("log 7 --manufacturer maker/authority.pem --out snapshot.tlog-proof",),
    "chip log verify": ("snapshot.tlog-proof snapshot.token --manufacturer maker/authority.pem",),
    "chip log compare": ("log theirs/checkpoint --manufacturer maker/authority.pem",),
    "identity browser": ("credentials/alice --out alice.p12",),
    "identity create": ('ca --name "Example authority"',),
    "identity issue": (
        "ca --role verifier --name example --out credentials/verifier",
        f"ca --role chip --name chip-0 --ueid {_ONE} --out credentials/chip-0",
    ),
    "identity renew": ("ca credentials/verifier credentials/prover",),
    "identity revoke": ("ca --role operator --name bob",),
    "identity update": ("ca/revocations.pem credentials/verifier credentials/prover",),
    "serve prover": ("--runs runs --credentials credentials/prover --address-file prover.address",),
    "serve verifier": (
        "--db registry.sqlite --cache cache --credentials credentials/verifier --manufacturer maker/authority.pem "
        "--firmware firmware.img --address-file verifier.address",
    ),
    "inspect list": ("", "--limit 5 --json"),
    "inspect show": ("", "27ab"),
    "inspect verify-draw": ("draw --log-key verifier.pub",),
    "inspect draw": ("27ab --out draw",),
    "inspect beacon": ("--key beacon.key --out beacon --round 1000",),
    "inspect population": (
        "--db registry.sqlite --credentials verifier --manufacturer maker/authority.pem --out population.tsv",
    ),
    "inspect case": (
        "--agreement agreement.cbor --population population.tsv --beacon beacon --db registry.sqlite --cache cache "
        "--credentials verifier --manufacturer maker/authority.pem --firmware firmware.img --out case.cbor",
    ),
    "inspect criteria": ("--out criteria.json --every 10:3",),
    "inspect register": (f"--ueid {_ONE} --chip 127.0.0.1:4461 --prover 127.0.0.1:4462 --name gpu-0",),
    "inspect chips": ("", "--json"),
    "inspect start": (
        "--samples 1 --threshold 1e21 --chip-flops 1e15 --period 30 --rate 0.1 --watch",
        "--samples 9 --threshold 1e21 --chip-flops 1e15 --period 30 --rate 0.1 --strata owner,site",
    ),
    "inspect watch": ("", "27ab"),
    "inspect report": ("--out report", "27ab --json"),
    "inspect db current": ("--db registry.sqlite",),
    "inspect db upgrade": ("--db registry.sqlite",),
    "registry party": ("acme --db registry.sqlite --role owner --public-key acme/certificate.pem",),
    "registry import": ("chips.csv --db registry.sqlite",),
    "registry export": ("chips.csv --db registry.sqlite",),
    "registry show": ("--db registry.sqlite", "gpu-0 --db registry.sqlite"),
    "registry audit": ("--db registry.sqlite --deep",),
    "registry event sign": (
        f"lost --registry weighbridge/registry/50b99f90e96a9877 --by acme --private-key acme/key.pem --ueid {_ONE} "
        "--out lost.cose",
    ),
    "registry event countersign": ("offer.cose --private-key acme/key.pem --out sold.cose",),
    "registry event show": ("offer.cose",),
    "registry event submit": ("made.cose sold.cose --db registry.sqlite",),
    "registry log checkpoint": ("--db registry.sqlite",),
    "registry log export": ("log --db registry.sqlite",),
    "registry log fsck": ("log --public-key registry.sqlite.registry-key.pub",),
    "registry log prove": ("7 --db registry.sqlite --out sale.tlog-proof",),
    "registry log verify": ("sale.tlog-proof --public-key registry.sqlite.registry-key.pub",),
    "report show": ("report/report.dsse", "report/report.json --html page.html"),
    "report verify": ("report/report.dsse --key registry.sqlite.report-key.pub",),
    "outcome terms": ("terms.toml --out terms.cbor",),
    "outcome join": (
        "prover.side --terms terms.cbor --role prover --key prover.key --book prover.book --out prover.commitment",
    ),
    "outcome open": ("prover.side verifier.commitment --out prover.share",),
    "outcome agree": ("prover.side verifier.share --out agreement.cbor --secret prover.secret",),
    "outcome key": (_SECRETS,),
    "outcome record": (
        f"report.dsse {_SECRETS} --salt prover.salt --out outcome.bin",
        f"--ended late --due 1,1,0 --chips 8 {_SECRETS} --salt prover.salt --out outcome.bin",
    ),
    "outcome reveal": ("report.dsse --salt prover.salt --part chips/0 --out chip.part",),
    "outcome part": ("outcome.bin chip.part",),
    "outcome audit": (f"outcome.bin {_SECRETS}",),
    "evidence export": (
        "27ab --finding 0 --db registry.sqlite --cache cache --manufacturer maker/authority.pem --out finding.zip",
        "27ab --snapshot gpu-0:5 --db registry.sqlite --cache cache --manufacturer maker/authority.pem --out clean.zip",
    ),
    "evidence verify": ("finding.zip --key registry.sqlite.report-key.pub --manufacturer maker/authority.pem",),
    "console": (
        "",
        "--db registry.sqlite --credentials credentials/verifier",
        "--db registry.sqlite --credentials credentials/verifier --cache cache --manufacturer maker/authority.pem "
        "--report-key registry.sqlite.report-key",
    ),
    "gpu-evidence make": ("--out gpu.evidence", "--size tiny --steps 3 --device cpu --out cpu.evidence"),
    "gpu-evidence verify": ("gpu.evidence", "gpu.evidence --sample 8 --json"),
    "rules key": ("party.key",),
    "rules check": ("treaty.yaml",),
    "rules sign": ("treaty.yaml --key party.key --out treaty.dsse",),
    "rules verify": ("treaty.dsse --parties parties.toml",),
    "rules eval": ("treaty.yaml --facts facts.json",),
    "analysis plan": (f"--budget 1e6 {_FLEET}",),
    "analysis sweep": (f"--vary rate=0.01:1:50:log --samples 1080 {_FLEET} --out rates.csv",),
    "analysis figure": ("figure2 --out figure2.svg",),
    "analysis report": ("runs/examples/scenarios/treaty.toml",),
    "analysis examples": ("",),
    "analysis simulate": (f"{_FLEET} --samples 1080 --stretch 2",),
    "analysis attack": (f"{_FLEET} --samples 1080 --longest-days 90",),
    "analysis table1": ("--mode printed",),
    "analysis samples": (f"{_FLEET} --period-days 30 --rate 0.1 --probability 0.9",),
    "analysis probability": (f"--samples 1080 {_FLEET}",),
    "analysis smallest-run": ("--samples 1080 --chips 1e5 --probability 0.9",),
    "analysis attribute": ("--population 1000 --defects 10 --probability 0.9",),
}
"""Arguments of examples by command; a command that is added needs one here."""


def text(command: str) -> str:
    """Returns the examples of a command as its help shows them; empty if it has none.

    Args:
        command: Its words without `weighbridge`.
    """
    lines = [f"weighbridge {command} {arguments}".rstrip() for arguments in EXAMPLES.get(command, ())]
    if not lines:
        return ""
    head = "Example:" if len(lines) == 1 else "Examples:"
    return "\n".join([head, *(f"  {line}" for line in lines)])


def attach(app: Any, path: str = "") -> None:
    """Puts the examples into the help of every command of a group.

    Args:
        app: The group, a `typer.Typer`.
        path: Its words, with a space at the end.
    """
    for command in app.registered_commands:
        name = command.name or command.callback.__name__.rstrip("_").replace("_", "-")
        if shown := text(path + name):
            command.epilog = f"\b\n{shown}"  # \b: lines stay as they are
    for group in app.registered_groups:
        attach(group.typer_instance, f"{path}{group.name} ")
