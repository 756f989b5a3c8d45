// graphile-worker with the settings from its performance page.
import { Logger, makeWorkerUtils, run } from 'graphile-worker'

// Logging a line per finished job would dominate the cost; its own benchmark disables it in the same way.
process.env.NO_LOG_SUCCESS = '1'
const logger = new Logger(() => () => {})

export default class Graphile {
  unfinished = 'select count(*) as n from graphile_worker._private_jobs'

  constructor (url) {
    this.url = url
  }

  async open () {
    this.utils = await makeWorkerUtils({ connectionString: this.url, maxPoolSize: 10, logger })
  }

  async close () {
    await this.utils.release()
  }

  async install () {
    await this.utils.migrate()
  }

  async add (body) {
    await this.utils.addJob('noop', body)
  }

  async addMany (bodies) {
    await this.utils.addJobs(bodies.map((payload) => ({ identifier: 'noop', payload })))
  }

  async work (seen) {
    const runner = await run({
      preset: {
        worker: {
          connectionString: this.url,
          concurrentJobs: 24,
          maxPoolSize: 25,
          localQueue: { size: 500 },
          completeJobBatchDelay: 0,
          failJobBatchDelay: 0
        }
      },
      logger,
      noHandleSignals: true,
      taskList: { noop: async () => seen(1) }
    })
    return () => runner.stop()
  }
}
