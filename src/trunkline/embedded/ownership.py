"""Transfers a cluster's databases from the superuser to a login without superuser rights.

Clusters of earlier releases have one role, the bootstrap superuser, which owns everything. It cannot lose its rights,
so it is renamed, and a new role gets its old name and password. Connection URLs stay valid.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from trunkline.errors import EmbeddedServerError

if TYPE_CHECKING:
    Connection = psycopg.Connection[tuple[Any, ...]]

GROUPS = ("trunkline_publisher", "trunkline_consumer", "trunkline_reader", "trunkline_owner")
_LOCK_TIMEOUT = "10s"
# The first oid that is not part of a new cluster.
_FIRST_OID = 16384
# The superuser's objects in a database, as the middle part of ALTER ... OWNER. Extension members are left unchanged.
_OBJECTS = """
    with outer_role as (select oid from pg_roles where rolname = %(superuser)s),
    member as (select classid, objid from pg_depend where deptype = 'e'),
    -- the sequence of a column follows its table
    owned as (select objid from pg_depend where classid = 'pg_class'::regclass and deptype in ('a', 'i'))
    select format('schema %%I', nspname) from pg_namespace, outer_role r
    where nspowner = r.oid and pg_namespace.oid >= %(first)s and nspname !~ '^pg_'
      and (('pg_namespace'::regclass, pg_namespace.oid) not in (select * from member))
    union all
    select format('table %%s', c.oid::regclass) from pg_class c, outer_role r
    where relowner = r.oid and c.oid >= %(first)s and relkind in ('r', 'p', 'v', 'm', 'S', 'f') and relpersistence <> 't'
      and (relkind <> 'S' or c.oid not in (select objid from owned)) and relnamespace <> 'pg_toast'::regnamespace
      and (('pg_class'::regclass, c.oid) not in (select * from member))
    union all
    select format('type %%s', t.oid::regtype) from pg_type t left join pg_class c on c.oid = t.typrelid, outer_role r
    where typowner = r.oid and t.oid >= %(first)s and (typtype in ('d', 'e', 'r') or typtype = 'c' and c.relkind = 'c')
      and (('pg_type'::regclass, t.oid) not in (select * from member))
    union all
    select format('routine %%s', p.oid::regprocedure) from pg_proc p, outer_role r
    where proowner = r.oid and p.oid >= %(first)s and (('pg_proc'::regclass, p.oid) not in (select * from member))
    union all
    select format('large object %%s', l.oid) from pg_largeobject_metadata l, outer_role r where lomowner = r.oid
"""


def needs_separation(url: str) -> bool:
    """Return whether the role of this URL is a superuser. Not on a standby, which gets its roles from the primary."""
    with _connected(url) as conn:
        row = conn.execute(
            "select rolsuper and not pg_is_in_recovery() from pg_roles where rolname = current_user"
        ).fetchone()
    return bool(row and row[0])


def setup_statements(role: str, password: str, database: str) -> list[str]:
    """Return the setup statements of a new cluster, one line each: owner login, group roles and database."""
    return [
        f"create role {role} login password '{password}'",
        *(
            statement
            for group in GROUPS
            for statement in (f"create role {group}", f"grant {group} to {role} with admin option")
        ),
        # doctor reads the sessions of other roles
        f"grant pg_monitor to {role}",
        f"create database {database} owner {role}",
    ]


def swap_roles(url: str, *, superuser: str, password: str) -> None:
    """Rename the superuser of this URL, change its password, and create a plain role with its name and password."""
    with _connected(url) as conn, conn.transaction():
        role = conn.info.user
        names = {"role": sql.Identifier(role), "superuser": sql.Identifier(superuser), "password": sql.Literal(password)}
        # a session cannot rename its own role
        conn.execute("create role trunkline_handover superuser")
        conn.execute("set local session authorization trunkline_handover")
        conn.execute(sql.SQL("alter role {role} rename to {superuser}").format(**names))
        conn.execute("reset session authorization")
        conn.execute("drop role trunkline_handover")
        row = conn.execute("select rolpassword from pg_authid where rolname = %s", (superuser,)).fetchone()
        verifier = sql.Literal(row[0] if row else None)
        conn.execute(sql.SQL("create role {role} login password {verifier}").format(**names, verifier=verifier))
        conn.execute(sql.SQL("grant pg_monitor to {role}").format(**names))
        conn.execute(sql.SQL("alter role {superuser} password {password}").format(**names))
        for group in GROUPS:
            if conn.execute("select from pg_roles where rolname = %s", (group,)).fetchone() is None:
                conn.execute(sql.SQL("create role {}").format(sql.Identifier(group)))
            conn.execute(sql.SQL("grant {} to {role} with admin option").format(sql.Identifier(group), **names))


def hand_over(superuser_url: str, role: str) -> None:
    """Transfer the superuser's databases and its objects in them to `role`. Safe to repeat."""
    with _connected(superuser_url) as conn:
        databases = conn.execute(
            "select datname, datdba = (select oid from pg_roles where rolname = current_user)"
            " from pg_database where datallowconn and not datistemplate"
        ).fetchall()
        for name, mine in databases:
            if mine and name != "postgres":
                conn.execute(sql.SQL("alter database {} owner to {}").format(sql.Identifier(name), sql.Identifier(role)))
    for name, _ in databases:
        with _connected(make_conninfo(superuser_url, dbname=name)) as conn:
            _hand_over_objects(conn, role)


def _hand_over_objects(conn: Connection, role: str) -> None:
    rows = conn.execute(_OBJECTS, {"superuser": conn.info.user, "first": _FIRST_OID}).fetchall()
    # one transaction per object: a large log has more tables than one transaction can lock
    for (middle,) in rows:
        conn.execute(sql.SQL("alter {} owner to {}").format(sql.SQL(middle), sql.Identifier(role)))


@contextmanager
def _connected(url: str) -> Iterator[Connection]:
    try:
        with psycopg.connect(url, autocommit=True, connect_timeout=10, application_name="trunkline ownership") as conn:
            conn.execute("set search_path = pg_catalog, pg_temp")
            conn.execute(sql.SQL("set lock_timeout = {}").format(sql.Literal(_LOCK_TIMEOUT)))
            yield conn
    except psycopg.Error as exc:
        raise EmbeddedServerError(
            "cannot transfer the databases from the superuser to a role without superuser rights",
            hint="End other sessions of this server and start again.",
            detail=str(exc),
        ) from exc
