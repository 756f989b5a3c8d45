"""`python -m tests.http.serve_impatient`: a server with short limits and four connections."""

import os
import sys

from trunkline.server.config import Config
from trunkline.server.run import serve

if __name__ == "__main__":
    serve(
        Config(
            database_url=os.environ["TRUNKLINE_DATABASE_URL"],
            port=int(sys.argv[sys.argv.index("--port") + 1]),
            max_connections=4,
            lock_seconds=1.0,
            statement_seconds=2.0,
            admin_seconds=4.0,
            whole_body_seconds=1.0,
        )
    )
