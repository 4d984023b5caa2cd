// A client of the hold protocol: a lock that `lockkeeper hold` holds for this program.
import { spawn } from "node:child_process";
import { uptime } from "node:os";

export class Hold {
  until = 0n; // 0 while it waits, -1 when it is over
  #text = ""; #isFirst = true;

  // Starts `lockkeeper hold ARGUMENTS`, and calls tell(event) for each event.
  constructor(args, tell) {
    this.tell = tell;
    this.child = spawn(process.env.LOCKKEEPER ?? "lockkeeper", ["hold", ...args], { stdio: ["pipe", "pipe", 2] });
    this.child.stdin.on("error", () => {}); // a word to a lockkeeper that has ended
    this.child.stdout.setEncoding("utf8").on("data", (text) => this.#read((this.#text + text).split("\n")));
    this.child.on("close", (code) => {
      const message = `lockkeeper ended without a last line: ${code}`;
      this.#take({ event: this.until ? "ended" : "failed", exit_code: code || 70, message });
    });
  }

  held() { // process.hrtime stands still while the machine sleeps; uptime() does not, but is rounded down
    return process.hrtime.bigint() < this.until && BigInt(Math.ceil(uptime() * 100) + 1) * 10_000_000n < this.until;
  }

  say(word, fields) { // lines about the hold that it ends may be under way
    if (this.until >= 0n) this.until = { release: -1n, make_way: 0n }[word] ?? this.until;
    if (this.child.stdin.writable) this.child.stdin.write(JSON.stringify({ do: word, ...fields }) + "\n");
  }

  #read(lines) {
    this.#text = lines.pop(); // readline would also end a line at U+2028
    for (const line of lines) {
      let event = {};
      try { event = Object(JSON.parse(line)); } catch {}
      if (this.#isFirst && event.protocol !== 1) {
        event = { event: "failed", exit_code: 70, message: `not version 1 of the hold protocol: ${line}` };
        this.child.stdin.end();
      }
      this.#isFirst = false;
      this.#take(event);
    }
  }

  #take(event) {
    const [kind, isLast] = [event.event, ["lost", "released", "failed", "ended"].includes(event.event)];
    if (this.until < 0n && !isLast) return; // after the end, nothing counts
    const isLonger = ["valid", "checked"].includes(kind) && this.held() && event.valid_until_ns > this.until;
    if ((kind === "acquired" && this.until === 0n) || isLonger) this.until = BigInt(event.valid_until_ns);
    if (isLast && kind !== "ended") this.until = -1n; // a lockkeeper that was killed holds until its time
    this.tell(event);
  }
}
