import json, random
from pathlib import Path
import psycopg, pytest
from tests.console.test_acting import bury, TIMEOUT
from tests.http.servers import serving
OUT = Path("/tmp/pbshots"); OUT.mkdir(exist_ok=True)

def test_shots(browser, module_db):
    with psycopg.connect(module_db, autocommit=True) as conn:
        conn.execute("select trunkline.create_topic('orders', 2)")
        for q in ("mail", "thumbs", "exports", "refunds"):
            conn.execute("select trunkline.create_queue(%s)", (q,))
        conn.execute("select trunkline.subscribe(p_queue => 'mail', p_name => 'orders-eu', p_topic => 'orders', p_pattern => 'order.*.eu')")
        conn.execute("select trunkline.pause_queue('exports')")
        bury(conn, "mail", 57, TIMEOUT)
        bury(conn, "mail", 4, "KeyError: 'total'", "send_invoice")
        ids = bury(conn, "refunds", 6, "Traceback (most recent call last):\n  File \"/app/shop/mail.py\", line 88, in refund\n    pay()\nstripe.RateLimited: 429", "refund")
        for n in range(40):
            conn.execute("select trunkline.enqueue_bytes('mail', %s::bytea, p_label => 'send_receipt', p_key => %s)", (json.dumps({"order": 9007199254740993 + n, "to": f"a{n}@acme.example"}).encode(), f"cust-{n % 7}"))
            conn.execute("select trunkline.enqueue('thumbs', '{}', p_label => 'resize')")
        conn.execute("select trunkline.enqueue('mail', '{}', p_label => 'send_receipt', p_delay => '10 minutes')")
        rows = conn.execute("select receipt from trunkline.claim('mail', 20, p_consumer => 'host-a:2214')").fetchall()
        conn.execute("select trunkline.ack(%s::text[])", ([r[0] for r in rows[:10]],))
        conn.execute("select trunkline.nack(%s::text[], '5 minutes', 'smtp 421 try later')", ([r[0] for r in rows[10:14]],))
        conn.execute("""select trunkline.register_worker('host-a:2214', '{"host": "host-a", "queues": {"mail": 20}, "kinds": ["send_receipt"], "version": "1.2", "running": 12, "done": 4000, "failed": 4}', '{"send_receipt": {"type": "object"}}')""")
        conn.execute("select trunkline.ensure_limit('stripe', 5, 50, 50)")
    with serving(module_db) as server:
        with psycopg.connect(module_db, autocommit=True) as conn:
            fp = conn.execute("select fingerprint, messages from trunkline.dead_groups('mail') order by messages desc limit 1").fetchone()[0]
            run = conn.execute("select trunkline.start_run('redrive', '{\"queue\": \"mail\", \"label\": \"send_invoice\"}', 4, '{\"canary\": 2, \"stop_share\": 0.05, \"rate\": 20}')").fetchone()[0]
        pages = {"queues": "queues", "queue": "queues/mail", "delayed": "queues/mail?tab=delayed", "leased": "queues/mail?tab=leased&check=1", "history": "queues/mail?tab=history", "dead": "dead", "group": f"dead/mail/{fp}", "letter": f"queues/refunds/dead/{ids[0]}", "runs": "runs", "run": f"runs/{run}", "newrun": f"queues/mail/run?kind=redrive&fingerprint={fp}", "purge": "queues/mail/run?kind=purge_queue", "jobs": "jobs", "job": f"jobs/{ids[0]}", "again": f"jobs/{ids[0]}/again", "kinds": "jobs/kinds", "workers": "jobs/workers", "limits": "jobs/limits"}
        light = browser.page(); dark = browser.page(dark=True); phone = browser.page(width=390, height=844)
        for name, path in pages.items():
            light.go(f"{server.url}/console/{path}"); light.screenshot(OUT / f"{name}.png")
            if name in ("queue", "group", "run", "job"):
                dark.go(f"{server.url}/console/{path}"); dark.screenshot(OUT / f"{name}-dark.png")
            phone.go(f"{server.url}/console/{path}")
            w = phone.run("document.documentElement.scrollWidth")
            if w > 390: print("WIDE", name, w)
            if name in ("queue", "dead", "run", "job", "jobs"): phone.screenshot(OUT / f"{name}-phone.png")
            print(name, light.errors)
