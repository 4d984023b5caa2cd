// Acquires the lock. The steps after it find the hold by LOCKKEEPER_HOLD: `lockkeeper with-hold -- ./deploy.sh`.
import { spawnSync } from "node:child_process";
import { appendFileSync } from "node:fs";

const input = (name) => (process.env[`INPUT_${name.toUpperCase()}`] ?? "").trim();

function fail(text, status = 64) {
  // As JSON, a value has no line of its own that the runner could take for a command.
  console.log(`::error title=hold-lock::${JSON.stringify(text).slice(1, -1).replaceAll("%", "%25")}`);
  process.exit(status);
}

const { env } = process;
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
const acquire = spawnSync("lockkeeper", ["acquire", lock, ...options, `--while=${process.ppid}`, "--json"], {
  stdio: ["ignore", "pipe", "inherit"],
  encoding: "utf8",
});
if (acquire.error) fail(`no program lockkeeper in PATH: install it in an earlier step (${acquire.error.code})`);
if (acquire.status !== 0) process.exit(acquire.status ?? 70);
const { hold, token } = JSON.parse(acquire.stdout);
// Both are letters and digits of ours.
appendFileSync(env.GITHUB_STATE, `hold=${hold}\n`);
appendFileSync(env.GITHUB_OUTPUT, `hold=${hold}\ntoken=${token ?? ""}\n`);
appendFileSync(env.GITHUB_ENV, `LOCKKEEPER_HOLD=${hold}\n${token ? `LOCKKEEPER_TOKEN=${token}\n` : ""}`);
