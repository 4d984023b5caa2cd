// Acquires the lock. The steps after it find the hold by LOCKKEEPER_HOLD: `lockkeeper with-hold -- ./deploy.sh`.
import { spawn } from "node:child_process";
import { appendFileSync } from "node:fs";

const input = (name) => (process.env[`INPUT_${name.toUpperCase()}`] ?? "").trim();

function fail(text, status = 64) {
  // As JSON, a value has no line of its own that the runner could take for a command.
  console.log(`::error title=hold-lock::${JSON.stringify(text).slice(1, -1).replaceAll("%", "%25")}`);
  process.exit(status);
}

const { env } = process;
if (process.platform !== "linux") fail(`lockkeeper runs on Linux, and this runner is ${process.platform}: give the job one with Linux`);
// A container has processes of its own: the runner's is none of them.
if (process.ppid === 0) fail("in a job with container:, no process of the runner can be seen. Use with-lock there, or a job without container:");
const lock = input("lock");
if (lock === "") fail("the input lock is empty: give the name of the lock, such as deploy");
if (lock.startsWith("-")) fail(`the input lock is ${lock}: a name does not begin with -`);
if (!(input("servers") || env.LOCKKEEPER_SERVERS || env.LOCKKEEPER_CONFIG)) {
  fail("no servers: each runner would have a lock of its own. Set the input servers, such as zk1:2181,zk2:2181");
}
const run = `${env.GITHUB_SERVER_URL ?? ""}/${env.GITHUB_REPOSITORY ?? ""}/actions/runs/${env.GITHUB_RUN_ID ?? ""}`;
const options = [`--message=${input("message") || run}`];
for (const name of ["servers", "wait", "permits"]) {
  if (input(name)) options.push(`--${name}=${input(name)}`);
}
if (!["true", "false", ""].includes(input("shared"))) fail(`the input shared is ${input("shared")}: give true or false`);
if (input("shared") === "true") options.push("--shared");

// The runner's process of this job: if it ends without the post step, the hold ends too.
const acquire = spawn("lockkeeper", ["acquire", lock, ...options, `--while=${process.ppid}`, "--json"], {
  stdio: ["ignore", "pipe", "pipe"],
});
// A runner that cancels the job sends a signal to this process only. What waits would be granted the lock later.
for (const signal of ["SIGINT", "SIGTERM"]) process.on(signal, () => acquire.kill("SIGTERM"));
acquire.on("error", ({ code }) => {
  fail(code === "ENOENT" ? "no program lockkeeper in PATH: install it in an earlier step" : `the program lockkeeper cannot be started: ${code}`);
});
let [said, remarks] = ["", ""];
acquire.stdout.setEncoding("utf8").on("data", (text) => { said += text; });
acquire.stderr.setEncoding("utf8").on("data", (text) => {
  process.stderr.write(text);
  remarks += text;
});
const status = await new Promise((resolve) => {
  acquire.on("close", (code, signal) => (signal ? fail(`the wait was ended by ${signal}`, 70) : resolve(code)));
});
if (status !== 0) {
  let why = {};
  try { why = JSON.parse(remarks.trim().split("\n").at(-1)); } catch {}
  fail([why.message ?? `lockkeeper acquire ended with ${status}`, why.hint].filter(Boolean).join("; "), status);
}
const { hold, token } = JSON.parse(said);
// Both are letters and digits of ours. Permits have no token, and that of another lock is none of them.
appendFileSync(env.GITHUB_STATE, `hold=${hold}\n`);
appendFileSync(env.GITHUB_OUTPUT, `hold=${hold}\ntoken=${token ?? ""}\n`);
appendFileSync(env.GITHUB_ENV, `LOCKKEEPER_HOLD=${hold}\nLOCKKEEPER_TOKEN=${token ?? ""}\n`);
