"""Roles: each may call its verbs and nothing else, needs no right on tables, and cannot make a verb do what it must not."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

import trunkline
from tests.conftest import Clock, Connection
from tests.sql.calls import call, claim, contents, enqueue, fetch, publish, read, refused, rows, settle, upkeep, value
from tests.sql.test_search_path import FAKES
from trunkline.doctor import examine
from trunkline.sql.migrate import migrate

ROLES = ["trunkline_publisher", "trunkline_consumer", "trunkline_reader", "trunkline_owner"]
PUBLIC = """
    select p.oid::regprocedure::text as name, p.proname, p.prosecdef, p.proacl::text as acl from pg_proc p
    where p.pronamespace = 'trunkline'::regnamespace and p.proname !~ '^(_|topic_[0-9]|queue_[0-9])'"""


@contextmanager
def acting_as(conn: Connection, role: str) -> Iterator[None]:
    conn.execute(f"set role {role}")
    try:
        yield
    finally:
        conn.execute("reset role")


def verbs(conn: Connection) -> dict[str, set[str]]:
    return {row.role: set(row.functions) for row in rows(conn, "select role, functions from trunkline._role_functions()")}


@pytest.fixture
def things(conn: Connection) -> Connection:
    call(conn, "create_topic", "t")
    call(conn, "create_queue", "q")
    call(conn, "create_schedule", "s", "@daily", p_topic="t")
    publish(conn, "t", 1)
    enqueue(conn, "q", 1)
    return conn


def test_every_public_function_is_given_to_a_role(shared_conn: Connection) -> None:
    """A new verb has to be put into the list of functions/roles.sql."""
    listed = set().union(*verbs(shared_conn).values())
    assert {row.proname for row in rows(shared_conn, PUBLIC)} - listed == set()


@pytest.mark.parametrize("role", ROLES)
def test_rights_are_those_of_the_list(things: Connection, role: str) -> None:
    allowed = verbs(things)[role]
    for name, proname, *_ in rows(things, PUBLIC):
        may = value(things, "select has_function_privilege(%s, %s::regprocedure, 'execute')", role, name)
        assert may == (role == "trunkline_owner" or proname in allowed), name


def test_nothing_is_for_everybody(things: Connection) -> None:
    query = """select oid::regprocedure from pg_proc where pronamespace = 'trunkline'::regnamespace
               and (proacl is null or exists (select from aclexplode(proacl) where grantee = 0))"""
    assert rows(things, query) == []
    tables = """select oid::regclass from pg_class where relnamespace = 'trunkline'::regnamespace
                and exists (select from aclexplode(relacl) where grantee = 0)"""
    assert rows(things, tables) == []
    assert not value(
        things, "select exists (select from pg_namespace, aclexplode(nspacl) where nspname = 'trunkline' and grantee = 0)"
    )


def test_only_the_owner_reaches_tables_and_internal_functions(things: Connection) -> None:
    granted = rows(
        things,
        """select r.role, c.relname from unnest(%s::text[]) r(role), pg_class c
           where c.relnamespace = 'trunkline'::regnamespace and c.relkind in ('r', 'p')
             and has_table_privilege(r.role, c.oid, 'select, insert, update, delete, truncate')""",
        ROLES[:3],
    )
    assert set(granted) == {("trunkline_reader", "alerts"), *((role, "migrations") for role in ROLES[:3])}
    call(things, "grant_roles")
    inner = rows(
        things,
        """select r.role, p.proname from unnest(%s::text[]) r(role), pg_proc p
           where p.pronamespace = 'trunkline'::regnamespace and p.proname ~ '^(_|topic_[0-9]|queue_[0-9])'
             and has_function_privilege(r.role, p.oid, 'execute')""",
        ROLES[:3],
    )
    own = {
        ("trunkline_publisher", name)
        for (name,) in rows(things, "select proname from pg_proc where proname ~ '^topic_[0-9]+_publish$'")
    }
    assert set(inner) == own
    assert own


@pytest.mark.parametrize("role", ROLES[:3])
def test_migrations_can_be_read_by_all(things: Connection, role: str) -> None:
    """So that a client can say that the schema is too old."""
    with acting_as(things, role):
        assert value(things, "select max(version) from trunkline.migrations") >= 1


def test_publisher(things: Connection) -> None:
    with acting_as(things, "trunkline_publisher"):
        publish(things, "t", 2)
        publish(things, "t", 3, p_idempotency_key="k", p_delay="1 hour")
        enqueue(things, "q", 2)
        call(things, "publish_many", "t", [b"4"])
        call(things, "publish_bytes", "t", b"5")
        call(things, "publish_messages", "t", [b"6"])
        call(things, "enqueue_job", "q", b"7")
        number = value(things, "select trunkline.topic_number('topic', 't')")
        assert value(things, f"select trunkline.topic_{number}_publish('8')") is not None
        with refused("TL010", "create_topic"):
            publish(things, "nowhere", 1)
        for forbidden in (
            "claim('q')",
            "read('t', 0, 1)",
            "create_topic('x')",
            "head('t')",
            "list_topics()",
            "fetch('t', 'g', 'm')",
        ):
            with refused("42501", "permission denied"):
                things.execute(f"select trunkline.{forbidden}")
    assert contents(read(things, "t")) == [1, 2, 4, 5, 6, 8]


def test_consumer(things: Connection) -> None:
    enqueue(things, "q", 2, 3)
    with acting_as(things, "trunkline_consumer"):
        [first, second] = claim(things, "q", 2)
        assert settle(things, "ack", first.receipt) == ["done"]
        assert settle(things, "extend", second.receipt) == ["done"]
        assert settle(things, "nack", second.receipt) == ["done"]
        [third] = claim(things, "q", 1)
        assert settle(things, "bury", third.receipt) == ["done"]
        batch = fetch(things, "t")
        assert call(things, "commit", "t", "g", 0, batch[0].generation, 1) == [("done",)]
        call(things, "init_consumer_group", "h", "t")
        assert call(things, "claim_offsets", "h", 5, "t") == [(1, 1)]
        assert len(call(things, "get_messages", 1, 1, "t")) == 1
        for forbidden in (
            "publish('t', '1')",
            "enqueue('q', '1')",
            "seek('t', 'g', 'latest')",
            "purge_queue('q')",
            "redrive('q')",
            "queue_stats('q')",
        ):
            with refused("42501", "permission denied"):
                things.execute(f"select trunkline.{forbidden}")


def test_reader(things: Connection) -> None:
    with acting_as(things, "trunkline_reader"):
        assert contents(read(things, "t")) == [1]
        assert call(things, "queue_stats", "q")[0].ready == 1
        assert call(things, "topic_stats", "t")[0].head == 1
        assert [row.name for row in call(things, "list_topics")] == ["t"]
        assert [row.name for row in call(things, "list_schedules")] == ["s"]
        assert call(things, "list_dead_letters", "q") == []
        assert len(call(things, "next_runs", "@daily")) == 5
        assert call(things, "queue_rollups", "q") == []
        assert rows(things, "select * from trunkline.alerts") == []
        for (view,) in rows(
            things,
            "select oid::regclass::text from pg_class where relnamespace = 'trunkline'::regnamespace and relkind = 'v'",
        ):
            rows(things, f"select * from {view}")
        for forbidden in (
            "publish('t', '1')",
            "claim('q')",
            "fetch('t', 'g', 'm')",
            "pause_queue('q')",
            "run_upkeep('pass')",
            "run_schedule('s')",
        ):
            with refused("42501", "permission denied"):
                things.execute(f"select trunkline.{forbidden}")
        with refused("42501"):
            things.execute("call trunkline.upkeep()")


def test_owner_runs_everything(things: Connection) -> None:
    with acting_as(things, "trunkline_owner"):
        call(things, "create_topic", "mine")
        call(things, "create_queue", "work")
        call(things, "subscribe", "work", "mine")
        publish(things, "mine", 1)
        assert contents(claim(things, "work")) == [1]
        upkeep(things)
        call(things, "alter_topic", "mine", 3)
        call(things, "delete_topic", "mine", True)
        call(things, "delete_queue", "work", True)
        rows(things, "select * from trunkline.settings")
        call(things, "grant_roles")


def test_no_role_may_hang_code_on_our_tables(things: Connection) -> None:
    """A trigger on a table that a verb writes would run with the rights of the schema's owner."""
    number = value(things, "select trunkline.topic_number('topic', 't')")
    # as an earlier release granted it
    things.execute(f"grant all on trunkline.endpoint_tests, trunkline.topic_{number} to trunkline_owner")
    call(things, "grant_roles")
    call(things, "create_topic", "later")
    rights = "trigger, references, truncate" + (", maintain" if things.info.server_version >= 170000 else "")
    granted = rows(
        things,
        """select r.role, c.oid::regclass::text from unnest(%s::text[]) r(role), pg_class c
           where c.relnamespace = 'trunkline'::regnamespace and c.relkind in ('r', 'p', 'v')
             and has_table_privilege(r.role, c.oid, %s)""",
        ROLES,
        rights,
    )
    assert granted == []
    with acting_as(things, "trunkline_owner"):
        things.execute("create function pg_temp.evil() returns trigger language plpgsql as $$ begin return new; end $$")
        with refused("42501", "permission denied"):
            things.execute(
                "create trigger evil before insert on trunkline.endpoint_tests for each row execute function pg_temp.evil()"
            )
        with refused("42501", "must be owner"):
            things.execute("create rule evil as on insert to trunkline.endpoint_tests do also select 1")


def test_topics_made_by_a_role_belong_to_the_installing_role(things: Connection) -> None:
    """So that upkeep can drop their segments, whichever role runs it."""
    me = value(things, "select current_user")
    with acting_as(things, "trunkline_owner"):
        call(things, "create_topic", "mine")
        call(things, "create_queue", "work")
    owners = rows(
        things, "select distinct relowner::regrole::text from pg_class where relnamespace = 'trunkline'::regnamespace"
    )
    owners += rows(
        things, "select distinct proowner::regrole::text from pg_proc where pronamespace = 'trunkline'::regnamespace"
    )
    assert set(owners) == {(me,)}


def test_a_role_without_grants_can_do_nothing(things: Connection) -> None:
    things.execute("create role nobody_special")
    try:
        with acting_as(things, "nobody_special"), refused("42501"):
            publish(things, "t", 1)
    finally:
        things.execute("drop role nobody_special")


@pytest.mark.parametrize("path", ["fake, public", "pg_temp, fake, pg_catalog", "pg_temp, trunkline"])
def test_a_caller_cannot_slip_its_own_objects_into_a_verb(things: Connection, clock: Clock, path: str) -> None:
    """Verbs run with the rights of our owner: tables, functions and operators of the caller must not reach them."""
    database = value(things, "select current_database()")
    things.execute("grant usage, create on schema public to trunkline_publisher, trunkline_consumer")
    things.execute(f"grant temporary, create on database {database} to trunkline_publisher, trunkline_consumer")
    things.execute("create table public.secrets (who text)")
    things.execute("grant trunkline_consumer to trunkline_publisher")
    try:
        with acting_as(things, "trunkline_publisher"):
            things.execute(FAKES)
            things.execute("create temp table leases (n int)")
            things.execute("create temp table schedules (n int)")
            things.execute(
                "create function pg_temp.steal(timestamptz, interval) returns timestamptz language plpgsql as $$ begin"
                " insert into public.secrets values (current_user); return $1; end $$"
            )
            things.execute("create operator fake.- (leftarg = timestamptz, rightarg = interval, function = pg_temp.steal)")
            things.execute("select pg_catalog.set_config('search_path', %s, false)", (path,))
            publish(things, "t", 2)
            [delivery] = claim(things, "q")
            assert settle(things, "ack", delivery.receipt) == ["done"]
            assert contents(fetch(things, "t")) == [1, 2]
            enqueue(things, "q", 5, p_idempotency_key="k", p_delay="1 hour")
        things.execute("reset search_path")
        with acting_as(things, "trunkline_owner"):
            upkeep(things)
        assert rows(things, "select who from public.secrets") == []
    finally:
        things.execute("revoke trunkline_consumer from trunkline_publisher")


OURS = "p.pronamespace = 'trunkline'::regnamespace"
PINNED = "'search_path=pg_catalog, pg_temp' = any (coalesce(p.proconfig, '{}'))"
INTERNAL = "p.proname ~ '^(_|topic_[0-9]|queue_[0-9])'"


def test_every_function_with_our_rights_pins_its_path(things: Connection) -> None:
    assert rows(things, f"select oid::regprocedure from pg_proc p where {OURS} and prosecdef and not {PINNED}") == []
    inner = "select proname from pg_proc where pronamespace = 'trunkline'::regnamespace and proname ~ '^_' and prosecdef"
    assert rows(things, inner) == []


def test_every_routine_that_is_called_from_outside_pins_its_path(things: Connection) -> None:
    """From outside: by a role, by a trigger, or by our own programs. Internal functions inherit the path of these."""
    sources = "".join(path.read_text() for path in Path(trunkline.__file__).parent.rglob("*.py"))
    called = set(re.findall(r"trunkline\.(_[a-z_]+)\(", sources))
    assert {"_record_audit", "_pull", "_ages"} <= called
    # called on connections that have set the path: of the migrator, of doctor
    called -= {"_write_functions", "_write_claim", "_last_id", "_newest_segment"}
    loose = rows(
        things,
        f"""select proname, prokind::text as kind, prosrc from pg_proc p where {OURS} and not {PINNED}
              and (not {INTERNAL} or prorettype = 'trigger'::regtype or prokind <> 'f' or proname = any (%s))""",
        sorted(called),
    )
    # Two are expanded in place and must stay so. The procedures commit, and so set the path in each of their transactions.
    expected = {("clock", "f"), ("new_id", "f"), ("upkeep", "p"), ("sequence", "p"), ("pass_and_poll", "p")}
    assert {(row.proname, row.kind) for row in loose} == expected
    new_transaction = (
        r"\bcommit;\s+set transaction isolation level read committed;(\s+--[^\n]*)*\s+"
        r"perform pg_catalog\.set_config\('search_path', 'pg_catalog, pg_temp', true\);"
    )
    for row in loose:
        if row.kind == "p":
            first = re.sub(r"--[^\n]*", "", row.prosrc).split("begin", 1)[1].strip()
            assert re.match(new_transaction, first)
            assert len(re.findall(r"\bcommit;", row.prosrc)) == len(re.findall(new_transaction, row.prosrc))


def test_internal_functions_are_for_owners_only(things: Connection) -> None:
    """A function without its own search_path is only reachable with the caller's rights."""
    query = f"""select p.oid::regprocedure, g.grantee::regrole::text from pg_proc p, aclexplode(p.proacl) g
                where {OURS} and {INTERNAL} and not {PINNED}
                  and g.grantee <> p.proowner and g.grantee <> 'trunkline_owner'::regrole"""
    assert rows(things, query) == []


THIEF = """
create schema thief;
create table thief.taken (who text);
create function thief.note(text) returns text language plpgsql
    as $$ begin insert into thief.taken values (current_user); return $1; end $$;
create function thief.format(text, text) returns text language sql as $$ select thief.note(pg_catalog.format($1, $2)) $$;
create function thief.jsonb_build_array(bigint, numeric, text, text, text, text) returns jsonb language plpgsql
    as $$ begin perform thief.note(''); return pg_catalog.jsonb_build_array($1, $2, $3, $4, $5, $6); end $$;
"""


def test_upkeep_audit_and_upgrade_run_nothing_of_the_callers_path(db: str, conn: Connection) -> None:
    """The installer's path has a schema that others may write to, as public is in clusters from before Postgres 15."""
    conn.execute(THIEF)
    conn.execute(f"alter database {conn.info.dbname} set search_path = thief, public")
    with psycopg.connect(db, autocommit=True) as fresh:
        assert value(fresh, "select format('%s', 'x'::text)") == "x"
        assert rows(fresh, "delete from thief.taken returning who") != [], "the positive control"
        fresh.execute("call trunkline.upkeep()")
        assert rows(fresh, "delete from thief.taken returning who") == []
        value(fresh, "select trunkline._record_audit('a', '127.0.0.1', 'PUT', 'x')")
        assert value(fresh, "select trunkline._verify_audit()") is None
        assert rows(fresh, "delete from thief.taken returning who") == []
        fresh.execute("select trunkline.create_topic('t', 2), trunkline.create_queue('q')")
        fresh.execute("update trunkline.function_files set checksum = 'of an older release'")
        assert migrate(db).applied
        examine(db)
        assert rows(fresh, "delete from thief.taken returning who") == []


def test_outbox_writers_need_to_be_publishers_and_get_no_more(things: Connection) -> None:
    """A cast of the table owner's own, called when the row becomes JSON, runs as who changed the row, not as our owner."""
    things.execute("create role app_writer")
    try:
        things.execute("grant usage on schema public to app_writer")
        things.execute("create type public.odd as enum ('x')")
        things.execute("create table public.seen (who text)")
        things.execute(
            "create function public.as_json(public.odd) returns json language plpgsql as"
            " $$ begin insert into public.seen values (current_user); return '1'; end $$"
        )
        things.execute("create cast (public.odd as json) with function public.as_json(public.odd)")
        things.execute("create table public.orders (id int, o public.odd)")
        things.execute("grant insert on public.orders, public.seen to app_writer")
        things.execute(
            "create trigger publish after insert on public.orders for each row execute function trunkline.publish_row('t')"
        )
        with acting_as(things, "app_writer"), refused("42501"):
            things.execute("insert into public.orders values (1, 'x')")
        things.execute("grant trunkline_publisher to app_writer")
        with acting_as(things, "app_writer"):
            things.execute("insert into public.orders values (1, 'x')")
        assert len(read(things, "t")) == 2
        assert set(rows(things, "select who from public.seen")) == {("app_writer",)}
    finally:
        things.execute("drop owned by app_writer")
        things.execute("drop role app_writer")


def test_grants_are_put_right_and_those_by_hand_are_kept(things: Connection) -> None:
    things.execute("create role by_hand")
    try:
        things.execute("grant execute on function trunkline.head to by_hand, trunkline_publisher, public")
        things.execute("revoke execute on function trunkline.publish from trunkline_publisher")
        call(things, "grant_roles")
        may = (
            "select has_function_privilege(%s, oid, 'execute') from pg_proc"
            " where proname = %s and pronamespace = 'trunkline'::regnamespace"
        )
        assert value(things, may, "by_hand", "head")
        assert not value(things, may, "trunkline_publisher", "head")
        assert value(things, may, "trunkline_publisher", "publish")
    finally:
        things.execute("drop owned by by_hand")
        things.execute("drop role by_hand")


@contextmanager
def without_roles(url: str) -> Iterator[None]:
    """As in a cluster in which the roles were never created."""
    with psycopg.connect(url, autocommit=True) as admin:
        for role in ROLES:
            admin.execute(f"alter role {role} rename to hidden_{role}")
        try:
            yield
        finally:
            for role in ROLES:
                admin.execute(f"alter role hidden_{role} rename to {role}")


@contextmanager
def plain_role(url: str, options: str) -> Iterator[str]:
    """URL of a role with its own schema `trunkline`, that is no superuser."""
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(f"create role plain login password 'x' {options}")
        admin.execute("create schema trunkline authorization plain")
        try:
            yield make_conninfo(url, user="plain", password="x")
        finally:
            admin.execute("drop owned by plain cascade")
            admin.execute("drop role plain")


def test_installs_without_the_right_to_make_roles(empty_db: str) -> None:
    with plain_role(empty_db, "nocreaterole") as url, without_roles(empty_db):
        migrate(url)
        with psycopg.connect(url, autocommit=True) as conn:
            said: list[str] = []
            conn.add_notice_handler(lambda notice: said.append(notice.message_primary or ""))
            call(conn, "create_topic", "t")
            publish(conn, "t", 1)
            assert contents(read(conn, "t")) == [1]
            upkeep(conn)
            call(conn, "grant_roles")
            assert len([text for text in said if "cannot create it" in text]) == 4


def test_roles_made_later_get_their_rights(empty_db: str) -> None:
    with plain_role(empty_db, "nocreaterole") as url:
        with without_roles(empty_db):
            migrate(url)
            with psycopg.connect(url, autocommit=True) as conn:
                call(conn, "create_topic", "t")
        with psycopg.connect(url, autocommit=True) as conn, psycopg.connect(empty_db, autocommit=True) as admin:
            call(conn, "grant_roles")
            with acting_as(admin, "trunkline_publisher"):
                publish(admin, "t", 1)
                number = value(admin, "select trunkline.topic_number('topic', 't')")
                value(admin, f"select trunkline.topic_{number}_publish('2')")
            assert contents(read(conn, "t")) == [1, 2]


def test_a_role_that_may_make_roles_does(empty_db: str) -> None:
    with without_roles(empty_db), plain_role(empty_db, "createrole") as url:
        migrate(url)
        with psycopg.connect(empty_db, autocommit=True) as admin:
            assert [
                row[0]
                for row in rows(admin, "select rolname from pg_roles where rolname = any (%s) and not rolcanlogin", ROLES)
            ] != []
            for role in ROLES:
                admin.execute(f"drop owned by {role}")
                admin.execute(f"drop role {role}")


def test_an_upgrade_by_an_administrator_does_not_raise_the_rights_of_verbs(empty_db: str) -> None:
    with plain_role(empty_db, "nocreaterole") as url:
        migrate(url)
        with psycopg.connect(empty_db, autocommit=True) as admin:
            call(admin, "create_topic", "t")
            admin.execute("drop function trunkline.next_runs")
            admin.execute("drop function trunkline.topic_1_publish")
            admin.execute("update trunkline.function_files set checksum = 'of an older release'")
            migrate(empty_db)
            query = """select distinct proowner::regrole::text from pg_proc where pronamespace = 'trunkline'::regnamespace
                       union select relowner::regrole::text from pg_class where relnamespace = 'trunkline'::regnamespace"""
            assert rows(admin, query) == [("plain",)]
        with psycopg.connect(url, autocommit=True) as conn:
            publish(conn, "t", 1)
            upkeep(conn)
