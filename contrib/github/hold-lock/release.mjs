// Releases the lock at the end of the job, also after a step that failed.
import { spawnSync } from "node:child_process";

const hold = process.env.STATE_hold;
if (hold) {
  const { status, error } = spawnSync("lockkeeper", ["release", hold], { stdio: "inherit" });
  if (error) console.log(`::error title=hold-lock::the program lockkeeper cannot be started, so the hold ends with the job: ${error.code}`);
  // If the lock was lost, another job may have held it meanwhile.
  if (status === 1) console.log("::error title=hold-lock::the hold is over: the lock was lost, or it was released in a step");
  process.exit(status ?? 70);
}
