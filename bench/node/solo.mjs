// Run one contestant in a Node process: node solo.mjs NAME ACTION OPTIONS. The actions are those of bench/solo.
//
// DATABASE_URL is the database, OPTIONS is JSON, and the result is one line of JSON on stdout.
import pg from 'pg'

const [name, action, text] = process.argv.slice(2)
const options = JSON.parse(text)
const url = process.env.DATABASE_URL
const body = { body: 'the-quick-brown-fox-jumps-over-the-lazy-dog-'.repeat(1 + options.payload / 44).slice(0, options.payload - 11) }
const { default: Contestant } = await import(`./with_${name}.mjs`)

const seconds = () => performance.now() / 1000
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms))

// Repeat a call from several tasks, each awaiting its own calls. The first half second is not counted.
async function repeat (call) {
  const during = async (span) => {
    const start = seconds()
    let calls = 0
    const task = async () => {
      while (seconds() < start + span) {
        await call()
        calls += 1
      }
    }
    await Promise.all(Array.from({ length: options.tasks }, task))
    return { calls, seconds: seconds() - start }
  }
  await during(0.5)
  return during(options.seconds)
}

const actions = {
  async install (contestant) {
    await contestant.install()
    return {}
  },

  async load (contestant) {
    for (let left = options.messages; left > 0; left -= 5000) {
      await contestant.addMany(Array(Math.min(left, 5000)).fill(body))
    }
    return {}
  },

  async single (contestant) {
    const done = await repeat(() => contestant.add(body))
    return { messages: done.calls, seconds: done.seconds }
  },

  async batch (contestant) {
    const bodies = Array(options.batch).fill(body)
    const done = await repeat(() => contestant.addMany(bodies))
    return { messages: done.calls * options.batch, seconds: done.seconds }
  },

  // Measure from the first handled message until all are finished in the tables, or the time is up.
  async consume (contestant) {
    const pool = new pg.Pool({ connectionString: url, max: 1 })
    const unfinished = async () => Number((await pool.query(contestant.unfinished)).rows[0].n)
    await unfinished()
    let handled = 0
    let start = null
    const stop = await contestant.work((n) => {
      start ??= seconds()
      handled += n
    })
    while (start === null) await pause(1)
    while (handled < options.messages && seconds() < start + options.seconds) await pause(2)
    let end = seconds()
    let left = await unfinished()
    while (handled >= options.messages && left > 0 && seconds() < end + 10) {
      await pause(5)
      left = await unfinished()
      if (left === 0) end = seconds()
    }
    await stop()
    await pool.end()
    return { messages: options.messages - left, seconds: end - start }
  }
}

const contestant = new Contestant(url)
await contestant.open()
const answer = await actions[action](contestant)
await contestant.close()
console.log(JSON.stringify(answer))
process.exit(0)
