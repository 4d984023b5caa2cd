// Works in steps while it holds a lock: node work.mjs NAME [OPTION...], with the options of `lockkeeper hold`.
import { setTimeout as pause } from "node:timers/promises";
import { Hold } from "./hold.mjs";

async function step(number, token) {
  console.log(`step ${number} with token ${token}`); // who stores it refuses a smaller token
  await pause(100);
}

let begin; // with the event that ends the wait
const begun = new Promise((resolve) => { begin = resolve; });
const ends = ["acquired", "failed", "released"];
const hold = new Hold(process.argv.slice(2), (event) => {
  if (event.event === "lost") process.exitCode = 76; // also during the last step
  if (ends.includes(event.event)) begin(event);
});
try {
  const { event, exit_code, message, hint, locks } = await begun;
  if (event === "failed") console.error([message, hint].filter(Boolean).join("\n"));
  process.exitCode ??= exit_code;
  for (let number = 1; event === "acquired" && number <= 5; number++) {
    if (!hold.held()) {
      console.error("the lock is lost");
      process.exitCode = 76;
      break;
    }
    await step(number, locks[0].token);
  }
  hold.say("release");
} finally {
  hold.child.stdin.end(); // releases the lock too
}
