"""What a schema consists of, in a form that can be compared: from the catalogs, without object ids and creation order."""

from __future__ import annotations

from tests.conftest import Connection

QUERIES = {
    "tables": """
        select c.relname, c.relkind, c.relpersistence, pg_get_partkeydef(c.oid), pg_get_expr(c.relpartbound, c.oid),
               c.reloptions
        from pg_class c where c.relnamespace = 'trunkline'::regnamespace and c.relkind in ('r', 'p', 'S', 'v', 'c')""",
    "columns": """
        select c.relname, a.attnum, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity,
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
        from pg_constraint c where c.connamespace = 'trunkline'::regnamespace""",
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
    "settings": "select name, value from trunkline.settings",
}


def catalog(conn: Connection) -> dict[str, list[str]]:
    """Everything in schema trunkline, one sorted list of lines for each kind of object."""
    return {kind: sorted(str(row) for row in conn.execute(query).fetchall()) for kind, query in QUERIES.items()}  # type: ignore[arg-type]
