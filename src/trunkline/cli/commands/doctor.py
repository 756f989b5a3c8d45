"""`trunkline doctor`: check durability and performance risks, with a hint for each finding."""

from __future__ import annotations

import click

from trunkline import __version__
from trunkline.cli.framework.command import CHECK_FAILED, Invocation
from trunkline.cli.framework.command import command as make_command
from trunkline.cli.framework.database import is_embedded, naming
from trunkline.cli.framework.output import Column

_FINDINGS = (
    Column("", "level", whole=True),
    Column("check", "check", whole=True),
    Column("found", "message"),
    Column("what to do", lambda finding: finding.hint or ""),
)


@make_command("doctor", example="trunkline doctor --database-url postgresql:///app")
@click.option("--strict", is_flag=True, help="Treat warnings as failures.")
def command(invocation: Invocation, strict: bool) -> int:
    """Check durability and performance risks. Makes no changes. Exits with 5 if a check fails."""
    from trunkline.db.calls.list_records import Finding
    from trunkline.doctor import examine

    findings = [Finding("program", "ok", f"trunkline {__version__}")]
    if invocation.service is not None:
        findings += invocation.run_over_http(lambda http: http.system.doctor())
    else:
        kind = "embedded server of trunkline up" if is_embedded(invocation.url) else "separate server"
        findings.append(Finding("database", "ok", kind))
        with invocation.limited(), naming(invocation.source):
            findings += examine(invocation.url)
    invocation.out.many(findings, _FINDINGS)
    bad = ("fail", "warn") if strict else ("fail",)
    return CHECK_FAILED if any(finding.level in bad for finding in findings) else 0
