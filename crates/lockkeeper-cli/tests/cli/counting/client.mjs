// Counts under a lock, again and again: client.mjs SOCKET OPTION...
import { connect } from "node:net";
import { createInterface } from "node:readline";
import { Hold } from "./hold.mjs";

const [path, ...options] = process.argv.slice(2);
const counter = connect(path);
const lines = createInterface({ input: counter })[Symbol.asyncIterator]();
async function ask(words) {
  counter.write(`${words}\n`);
  return (await lines.next()).value;
}

function count() {
  return new Promise((resolve) => {
    const hold = new Hold(options, async ({ event, token }) => {
      if (event === "acquired") {
        if (hold.held()) await ask(`set ${Number(await ask("get")) + 1} ${token} node`);
        hold.say("release");
      } else if (["ended", "failed", "lost", "released"].includes(event)) {
        hold.child.stdin.end();
        resolve();
      }
    });
  });
}

for (;;) await count();
