"""Description of a schema in a comparable form: from the catalogs, without object ids and creation order."""

from __future__ import annotations

import re

from tests.conftest import Connection

QUERIES = {
    "tables": """
        select c.relname, c.relkind, c.relpersistence, pg_get_partkeydef(c.oid), pg_get_expr(c.relpartbound, c.oid),
               c.reloptions
        from pg_class c where c.relnamespace = 'trunkline'::regnamespace and c.relkind in ('r', 'p', 'S', 'v', 'c')""",
    "columns": """
        select c.relname, row_number() over (partition by c.oid order by a.attnum), a.attname,
               format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity,
               a.attstorage, pg_get_expr(d.adbin, d.adrelid)
        from pg_class c join pg_attribute a on a.attrelid = c.oid
        left join pg_attrdef d on d.adrelid = c.oid and d.adnum = a.attnum
        where c.relnamespace = 'trunkline'::regnamespace and c.relkind in ('r', 'p', 'c')
          and a.attnum > 0 and not a.attisdropped""",
    "indexes": """
        select c.relname, pg_get_indexdef(i.indexrelid), i.indisvalid
        from pg_index i join pg_class c on c.oid = i.indrelid where c.relnamespace = 'trunkline'::regnamespace""",
    "constraints": """
        select c.conrelid::regclass::text, c.conname, pg_get_constraintdef(c.oid), c.convalidated
        from pg_constraint c where c.connamespace = 'trunkline'::regnamespace
          -- since Postgres 18 here too, with a name that depends on former names; "columns" has them
          and c.contype <> 'n'""",
    "sequences": """
        select sequencename, data_type::text, start_value, min_value, max_value, increment_by, cycle, cache_size
        from pg_sequences where schemaname = 'trunkline'""",
    "functions": """
        select p.oid::regprocedure::text, regexp_replace(pg_get_functiondef(p.oid), '\\s+', ' ', 'g')
        from pg_proc p where p.pronamespace = 'trunkline'::regnamespace and p.prokind in ('f', 'p')""",
    "triggers": """
        select c.relname, pg_get_triggerdef(t.oid)
        from pg_trigger t join pg_class c on c.oid = t.tgrelid
        where c.relnamespace = 'trunkline'::regnamespace and not t.tgisinternal""",
    "types": """
        select t.typname, t.typtype,
               (select array_agg(e.enumlabel order by e.enumsortorder)::text from pg_enum e where e.enumtypid = t.oid)
        from pg_type t where t.typnamespace = 'trunkline'::regnamespace and t.typcategory <> 'A'""",
    "comments": """
        select pg_describe_object(d.classoid, d.objoid, d.objsubid), d.description
        from pg_description d left join pg_class c on d.classoid = 'pg_class'::regclass and c.oid = d.objoid
        left join pg_proc p on d.classoid = 'pg_proc'::regclass and p.oid = d.objoid
        where 'trunkline'::regnamespace in (c.relnamespace, p.pronamespace)""",
    "grants": """
        select c.relname, c.relacl::text from pg_class c
        where c.relnamespace = 'trunkline'::regnamespace and c.relkind in ('r', 'p', 'S', 'v')
          -- the next upgrade grants rights on relations of one topic or cursor
          and c.relname !~ '^(topic|cursor|endpoint)_[0-9]'
        union all
        select p.oid::regprocedure::text, p.proacl::text from pg_proc p where p.pronamespace = 'trunkline'::regnamespace""",
    "settings": "select name, value from trunkline.settings",
}


def catalog(conn: Connection, *, but: str | None = None) -> dict[str, list[str]]:
    """Everything in schema trunkline, one sorted list of lines for each kind of object; `but`: names to leave out."""
    left_out = re.compile(but or r"(?!)")
    lines = {kind: [str(row) for row in conn.execute(query).fetchall()] for kind, query in QUERIES.items()}  # type: ignore[arg-type]
    return {kind: sorted(line for line in each if not left_out.search(line)) for kind, each in lines.items()}
