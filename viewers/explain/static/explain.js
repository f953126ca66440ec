/** The page of an explanation: pictures, controls, and the words of the current step. */

import { element, table, typing } from "../../base/static/dom.js";
import { Board } from "./board.js";
import { figure } from "./geometry.js";
import { Player } from "./player.js";
import { Timeline } from "./timeline.js";

const explanation = JSON.parse(document.getElementById("explanation").textContent);
explanation.steps.forEach((step, i, steps) => (step.before ??= steps[i - 1].after));
const find = (id) => document.getElementById(id);
const motion = matchMedia("(prefers-reduced-motion: reduce)");
let worded = null, last = 0;
const player = new Player(explanation.steps.length, motion.matches, show);
const pictures = [];
if (find("board")) pictures.push(new Board(find("board"), explanation));
if (find("timeline")) pictures.push(new Timeline(find("timeline"), explanation));

function size(bytes) {
  return bytes >= 1e5 ? `${Number((bytes / 1e6).toPrecision(4)).toLocaleString("en")} MB` : `${Math.round(bytes).toLocaleString("en")} B`;
}

/** The messages of a step as a table: who, to whom, what, how much, and what becomes of it. */
function messages(step) {
  const rows = step.messages.map((message) => {
    const before = step.before[message.target]?.[message.into], after = step.after[message.target]?.[message.into];
    const sum = message.adds && after && message.columns === 1;
    const what = message.values.length && message.values.length <= 4 ? `${message.label} = ${message.values.map(figure).join(" ")}` : message.label;
    const result = sum ? `${before.values.map(figure).join(" ")} → ${after.values.map(figure).join(" ")}` : message.adds ? "added" : "kept";
    const sizes = message.count > 1 ? `${size(message.bytes)} in ${message.count} messages` : size(message.bytes);
    return [`${message.source} → ${message.target}`, what, sizes, explanation.unit ? "received" : result];
  });
  return step.messages.length ? table(["From → to", "What", "Size", "At the receiver"], rows, "messages") : element("p", "note", "No message in this step.");
}

function show(now) {
  for (const picture of pictures) picture.draw(now);
  const key = `${now.done} ${now.part > 0}`;
  if (key !== worded) words(now);
  worded = key;
  find("position").value = now.part > 0 ? now.done + 1 : now.done;
  find("position").setAttribute("aria-valuetext", `step ${find("position").value} of ${now.steps}`);
  find("play").textContent = now.playing ? "Pause" : "Play";
  find("previous").disabled = now.position <= 0;
  find("next").disabled = now.position >= now.steps;
}

function words({ done, part }) {
  const step = explanation.steps[part > 0 ? done : done - 1];
  const time = step?.start === null || step?.start === undefined ? "" : ` · t = ${step.start}`;
  find("status").textContent = step ? `Step ${step.number} of ${explanation.steps.length}${time} · ${step.phase}` : "Start: nothing has been sent yet";
  find("title").textContent = step ? step.title : "Press Space to play, → for the next step.";
  find("remark").textContent = step?.text ?? "";
  find("messages").replaceChildren(...(step ? [messages(step)] : []));
}

function frame(time) {
  // A frame's time may lie before the key that started the animation.
  player.pass(Math.min(0.1, Math.max(0, (time - last) / 1000)));
  last = time;
  if (player.playing) requestAnimationFrame(frame);
}

function play() {
  player.toggle();
  last = performance.now();
  if (player.playing) requestAnimationFrame(frame);
}

function theme() {
  const dark = document.documentElement.dataset.theme ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "light" : "dark";
}

function jump(position) {
  player.pause();
  player.go(position);
}

find("play").addEventListener("click", play);
find("previous").addEventListener("click", () => player.previous());
find("next").addEventListener("click", () => player.next());
find("theme").addEventListener("click", theme);
find("position").addEventListener("input", ({ target }) => jump(Number(target.value)));
find("speed").addEventListener("change", ({ target }) => (player.speed = Number(target.value)));
motion.addEventListener("change", () => (player.still = motion.matches));
const acts = { ArrowRight: () => player.next(), ArrowLeft: () => player.previous(), Home: () => jump(0), End: () => jump(player.steps), " ": play };
addEventListener("keydown", (event) => {
  const button = event.target instanceof HTMLButtonElement && event.key === " ";
  if (event.ctrlKey || event.altKey || event.metaKey || button || (typing(event) && event.target.id !== "position")) return;
  if (event.target.id === "position" && event.key !== " ") return;
  acts[event.key]?.();
  if (event.key in acts) event.preventDefault();
});
addEventListener("resize", () => {
  for (const picture of pictures) {
    picture.resize();
    picture.draw(player);
  }
});
const asked = /^#step=(\d+)$/.exec(location.hash)?.[1] ?? document.body.dataset.step;
jump(Number(asked) || 0);
globalThis.dptrace = { player, explanation };
document.documentElement.dataset.ready = "1";
