// Releases the lock at the end of the job, also after a step that failed.
import { spawnSync } from "node:child_process";

const hold = process.env.STATE_hold;
if (hold) {
  const { status } = spawnSync("lockkeeper", ["release", hold], { stdio: "inherit" });
  // 76: the lock was lost while the job ran, and another one may have held it meanwhile. 1: the hold is over already.
  process.exit(status ?? 70);
}
