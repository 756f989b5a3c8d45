// pg-boss with a separate table for the queue. Full batches are fetched without a pause; one statement completes a batch.
import { PgBoss } from 'pg-boss'

const QUEUE = 'bench'

export default class Boss {
  unfinished = "select count(*) as n from pgboss.job where name = 'bench' and state <> 'completed'"

  constructor (url) {
    this.boss = new PgBoss({ connectionString: url, max: 10, schedule: false })
    this.boss.on('error', (error) => { throw error })
  }

  async open () {
    await this.boss.start()
  }

  async close () {
    await this.boss.stop({ graceful: false })
  }

  async install () {
    if (await this.boss.getQueue(QUEUE)) await this.boss.deleteQueue(QUEUE)
    await this.boss.createQueue(QUEUE, { partition: true })
  }

  async add (body) {
    await this.boss.send(QUEUE, body)
  }

  async addMany (bodies) {
    await this.boss.insert(QUEUE, bodies.map((data) => ({ data })))
  }

  async work (seen) {
    const options = { batchSize: 500, localConcurrency: 4, burstWhenBatchFull: true, pollingIntervalSeconds: 0.5 }
    await this.boss.work(QUEUE, options, async (jobs) => seen(jobs.length))
    return () => this.boss.offWork(QUEUE)
  }
}
