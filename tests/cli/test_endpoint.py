"""Endpoints and dispatchers from the command line: what is refused, and what is said."""

from __future__ import annotations

from tests.cli.conftest import Cli
from tests.conftest import Connection


def test_replay_wants_a_time_or_an_age(cli: Cli) -> None:
    cli("queue", "create", "q")
    assert "--from 2h" in cli("endpoint", "replay", "q", code=2).stderr
    for place in ("7", "earliest", "soon"):
        assert (
            "a time (2026-01-31T12:00:00Z) or an age (2h)" in cli("endpoint", "replay", "q", "--from", place, code=2).stderr
        )
    cli("endpoint", "replay", "q", "--from", "1h", "--to", "2h", code=2)
    assert cli("endpoint", "replay", "q", "--from", "2h", "--to", "1h").json["replayed"] == 0


def test_alter_wants_something_to_change(cli: Cli) -> None:
    cli("endpoint", "create", "e", "https://example.com/")
    words = cli("endpoint", "alter", "e", code=2).stderr
    for option in (
        "--url",
        "--rate",
        "--burst",
        "--max-in-flight",
        "--request-timeout",
        "--header",
        "--mode",
        "--batch-size",
    ):
        assert option in words
    assert "between 0.001 and 100000" in cli("endpoint", "alter", "e", "--rate", "0.0001", code=2).stderr
    assert "65535" in cli("endpoint", "alter", "e", "--url", "https://example.com:99999/", code=2).stderr
    assert (
        "169.254.0.0/16 is never allowed" in cli("endpoint", "alter", "e", "--url", "http://169.254.169.254/", code=2).stderr
    )


def test_a_burst_is_shown_with_a_rate(cli: Cli) -> None:
    cli("endpoint", "create", "e", "https://example.com/")
    assert cli("endpoint", "show", "e").json["burst"] is None
    assert cli("endpoint", "alter", "e", "--rate", "100").json["burst"] == 10


def test_an_endpoint_on_a_private_network_needs_a_dispatcher_that_may(cli: Cli) -> None:
    made = cli("endpoint", "create", "e", "http://10.1.2.3/")
    assert made.json["name"] == "e"
    assert "it needs a dispatcher with --push-allow 10.0.0.0/8" in made.stderr
    changed = cli("endpoint", "alter", "e", "--url", "https://example.com/")
    assert (changed.json["needs_allow"], changed.stderr) == (None, "")


def test_dispatch_says_what_it_does_and_has_no_http_form(cli: Cli) -> None:
    refused = cli("--url", "http://localhost:8080", "dispatch", code=2)
    assert "`trunkline dispatch` does not work over HTTP" in refused.stderr
    with cli.start("dispatch", "--push-allow", "10.0.0.0/8") as running:
        assert running.stderr is not None
        first = running.stderr.readline().decode()
        running.terminate()
        assert running.wait(60) == 0
    for words in ("Sending webhooks", "10.0.0.0/8", "Ctrl-C stops"):
        assert words in first


def test_top_shows_endpoints(cli: Cli, conn: Connection) -> None:
    cli("endpoint", "create", "hooks", "https://example.com/")
    cli("queue", "create", "q")
    cli("endpoint", "bind", "q", "hooks")
    conn.execute("select trunkline.enqueue('q', '1') from generate_series(1, 3)")
    conn.execute(
        "select trunkline.settle_attempts('d', array[endpoint_id], null, null, array[gen_random_uuid()], array[1],"
        " array[0.1], array[0.1], array[500], array['nacked'], null, array['HTTP 500'], null) from trunkline.endpoints"
    )
    [row] = cli("top", "--once").json["endpoints"]
    assert (row["endpoint"], row["state"], row["ready"], row["in_flight"]) == ("hooks", "enabled", 3, 0)
    assert row["error"] == "HTTP 500" and row["per_second"] > 0
    cli("endpoint", "pause", "hooks", "--reason", "maintenance")
    shown = cli("top", "--once", "-o", "table").stdout
    assert "hooks" in shown and "maintenance" in shown and "IN FLIGHT" in shown
