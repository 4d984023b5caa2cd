// What the Node example believes, for the conformance program: node adapter.mjs NAME
import { Hold } from "./hold.mjs";

const print = (word, value) => console.log(value === undefined ? word : `${word} ${JSON.stringify(value)}`);
let isChecking = false;
const values = {
  acquired: (event) => event.locks.map((lock) => lock.token),
  asked: (event) => event.why ?? null,
  lost: (event) => event.why,
  error: (event) => event.message,
  released: (event) => event.message,
  failed: (event) => event,
};

const hold = new Hold(process.argv.slice(2), (event) => {
  if (["checked", "error", "lost", "released", "ended"].includes(event.event)) isChecking = false;
  if (["waiting", "wanted", "checked", "ended"].includes(event.event)) print(event.event);
  else if (event.event in values) print(event.event, values[event.event](event));
});

function check() {
  isChecking = true;
  hold.say("check");
  const timer = setInterval(() => {
    if (isChecking && !hold.held()) print("lost", "time");
    if (!hold.held()) isChecking = false;
    if (!isChecking) clearInterval(timer);
  }, 10);
}

let text = "";
process.stdin.setEncoding("utf8").on("data", (part) => {
  const orders = (text + part).split("\n");
  text = orders.pop();
  for (const order of orders) {
    if (order === "held?") print(hold.held() ? "held" : "not held");
    else if (order === "check") check();
    else if (order.startsWith("refuse ")) hold.say("refuse", { why: order.slice("refuse ".length) });
    else hold.say(order);
  }
});
process.stdin.on("end", () => hold.child.stdin.end());
