"use strict";
// Everything that comes from a run is put into the page as text, never as markup.
const $ = (id) => document.getElementById(id);
const trials = JSON.parse($("data-trials").textContent);
const metrics = JSON.parse($("data-metrics").textContent);
const packed = new Map();
for (const script of document.querySelectorAll("script.trajectory"))
  packed.set(script.dataset.trial, script.textContent);

function make(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {}))
    if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}
const number = (value, digits = 3) =>
  value === null || value === undefined ? "" : Number.isInteger(value) ? String(value) : value.toFixed(digits);

// ---- table of trajectories -------------------------------------------------------------------
const COLUMNS = [
  ["trial", (t) => t.trial],
  ["step", (t) => t.step, 1],
  ["phase", (t) => t.phase],
  ["task", (t) => t.task_id],
  ["kind", (t) => t.kind],
  ["outcome", (t) => t.outcome],
  ["treatment", (t) => t.treatment],
  ["score", (t) => t.score, 1],
  ["reward", (t) => t.reward, 1],
  ["turns", (t) => t.turns, 1],
  ["tokens", (t) => t.tokens, 1],
  ["calls", (t) => t.tool_calls, 1],
  ["good calls", (t) => t.tool_calls_ok, 1],
  ["seconds", (t) => (t.seconds || {}).total ?? null, 1],
  ["reason", (t) => t.reason],
];
const STEP = 200;
let order = { column: null, down: false };
let shown = STEP;
const FILTERS = ["phase", "kind", "outcome", "treatment"];

function fillFilters() {
  for (const key of FILTERS) {
    const select = $("filter-" + key);
    const values = [...new Set(trials.map((t) => t[key] || ""))].sort();
    select.append(make("option", { value: "*" }, "any " + key));
    for (const value of values) select.append(make("option", { value }, value || "none"));
    select.addEventListener("change", restart);
  }
  $("search").addEventListener("input", restart);
  $("filter-page").addEventListener("change", restart);
  $("more").addEventListener("click", () => { shown += STEP; drawTable(); });
}
function restart() { shown = STEP; drawTable(); }

function matching() {
  const words = $("search").value.toLowerCase();
  const rows = trials.filter((t) =>
    FILTERS.every((key) => $("filter-" + key).value === "*" || (t[key] || "") === $("filter-" + key).value) &&
    (!$("filter-page").checked || packed.has(t.trial)) &&
    (!words || `${t.trial} ${t.task_id} ${t.reason}`.toLowerCase().includes(words)));
  if (order.column !== null) {
    const value = COLUMNS[order.column][1];
    const sign = order.down ? -1 : 1;
    const empty = (v) => v === null || v === undefined || v === "";
    rows.sort((a, b) => {
      const [x, y] = [value(a), value(b)];
      if (empty(x) || empty(y)) return empty(x) - empty(y);
      return sign * (x < y ? -1 : x > y ? 1 : 0);
    });
  }
  return rows;
}

function drawTable() {
  const rows = matching();
  const head = make("tr");
  COLUMNS.forEach(([name, , numeric], index) => {
    const mark = order.column === index ? (order.down ? " ▾" : " ▴") : "";
    const cell = make("th", { class: numeric ? "n" : null }, name + mark);
    cell.addEventListener("click", () => {
      order = { column: index, down: order.column === index ? !order.down : Boolean(numeric) };
      drawTable();
    });
    head.append(cell);
  });
  $("trials").tHead.replaceChildren(head);
  $("trials").tBodies[0].replaceChildren(...rows.slice(0, shown).map(drawRow));
  $("count").textContent = `${rows.length} of ${trials.length} trials, ${packed.size} with a page`;
  $("more").hidden = rows.length <= shown;
}

function drawRow(trial) {
  const row = make("tr");
  for (const [name, value, numeric] of COLUMNS) {
    const content = value(trial);
    const cell = make("td", { class: numeric ? "n" : name === "reason" ? "reason" : null });
    if (name === "trial" && packed.has(trial.trial))
      cell.append(make("a", { href: "#" + encodeURIComponent(trial.trial) }, content));
    else if (name === "reason") cell.append(make("div", { title: content }, content ?? ""));
    else cell.append(numeric ? number(content) : String(content ?? ""));
    row.append(cell);
  }
  return row;
}

// ---- any metric ------------------------------------------------------------------------------
function fillMetrics() {
  const names = Object.keys(metrics);
  if (!names.length) return;
  $("picker").hidden = false;
  for (const name of names) $("metric").append(make("option", { value: name }, name));
  $("metric").addEventListener("change", drawMetric);
  drawMetric();
}
function drawMetric() {
  const points = metrics[$("metric").value];
  const [xs, ys] = [points.map((p) => p[0]), points.map((p) => p[1])];
  const span = (values) => {
    const [low, high] = [Math.min(...values), Math.max(...values)];
    return low === high ? [low - (Math.abs(low) / 2 || 0.5), high + (Math.abs(high) / 2 || 0.5)] : [low, high];
  };
  const [[x0, x1], [y0, y1]] = [span(xs), span(ys)];
  const place = ([x, y]) => [46 + ((x - x0) / (x1 - x0)) * 364, 156 - ((y - y0) / (y1 - y0)) * 146];
  const svg = (tag, attributes, ...children) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  };
  const parts = [svg("polyline", { points: points.map((p) => place(p).join(",")).join(" "), stroke: "#4269d0" })];
  for (const value of [y0, (y0 + y1) / 2, y1]) {
    const y = place([x0, value])[1];
    parts.push(svg("line", { class: "grid", x1: 46, x2: 410, y1: y, y2: y }));
    parts.push(svg("text", { x: 40, y: y + 4, "text-anchor": "end" }, Number(value.toPrecision(3)).toString()));
  }
  for (const value of new Set([xs[0], xs[xs.length - 1]]))
    parts.push(svg("text", { x: place([value, y0])[0], y: 174, "text-anchor": "middle" }, String(value)));
  for (const point of points) {
    const [x, y] = place(point);
    parts.push(svg("circle", { cx: x, cy: y, r: 2.5, fill: "#4269d0" }, svg("title", {}, `step ${point[0]}: ${point[1]}`)));
  }
  $("metric-chart").replaceChildren(...parts);
}

// ---- page of one trajectory ------------------------------------------------------------------
async function unpack(text) {
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

async function route() {
  const name = decodeURIComponent(location.hash.slice(1));
  const known = packed.has(name);
  $("overview").hidden = known;
  $("page").hidden = !known;
  if (!known) return;
  const page = await unpack(packed.get(name));
  const trial = trials.find((t) => t.trial === name);
  const back = make("p", {}, make("a", { href: "#" }, "← all trajectories"));
  $("page").replaceChildren(back, ...drawPage(name, trial, page));
  scrollTo(0, 0);
}

function drawPage(name, trial, page) {
  const outcome = page.outcome || {};
  const facts = [["outcome", outcome.outcome || (trial && trial.outcome)], ["treatment", trial && trial.treatment],
    ["score", number(page.verdict ? page.verdict.score : trial && trial.score)],
    ["reward", number(trial && trial.reward)], ["turns", page.turns.length],
    ["tokens", page.tokens && page.tokens.ids ? page.tokens.ids.length : ""]];
  const parts = [make("h2", {}, name)];
  parts.push(make("p", { class: "quiet" }, `task ${trial ? trial.task_id : ""}`,
    ...facts.filter(([, v]) => v !== "" && v !== null && v !== undefined)
      .map(([k, v]) => make("span", { class: "fact" }, k + " ", make("b", {}, String(v))))));
  if (outcome.error_message) parts.push(make("pre", { class: "bad" }, `${outcome.error_type}: ${outcome.error_message}`));
  if (page.verdict) parts.push(drawVerdict(page.verdict));
  if (page.reward) parts.push(drawReward(page.reward));
  parts.push(drawSeconds((trial && trial.seconds) || outcome.seconds || {}));
  if (page.prompt.length) parts.push(drawPrompt(page));
  if (page.tokens && page.tokens.error) parts.push(make("p", { class: "bad" }, page.tokens.error));
  page.turns.forEach((turn, index) => parts.push(drawTurn(turn, index, page.tokens)));
  if (outcome.answer) parts.push(make("h2", {}, "Final answer"), make("pre", {}, outcome.answer));
  return parts;
}

function drawVerdict(verdict) {
  const section = make("section", {}, make("h2", {}, "Verdict"));
  if (verdict.error) section.append(make("p", { class: "bad" }, `No score: ${verdict.error}`));
  else section.append(make("p", {}, `Score ${number(verdict.score)} by grader ${verdict.grader}.`));
  if (verdict.criteria.length) {
    const table = make("table", {}, make("thead", {}, make("tr", {}, make("th", {}, "criterion"),
      make("th", { class: "n" }, "score"), make("th", {}, "rationale"))), make("tbody"));
    for (const c of verdict.criteria)
      table.tBodies[0].append(make("tr", {},
        make("td", {}, (c.primary ? "★ " : "") + (c.criteria || c.criterion_id)),
        make("td", { class: "n " + (c.score === null || c.score < 1 ? "bad" : "good") }, c.score === null ? "error" : number(c.score)),
        make("td", {}, c.rationale)));
    section.append(table);
  }
  return section;
}

function drawReward(reward) {
  const table = make("table", {}, make("tbody"));
  const add = (name, value) => table.tBodies[0].append(make("tr", {}, make("td", {}, name), make("td", { class: "n" }, number(value, 4))));
  add("score", reward.score);
  for (const term of reward.terms) add(term.name, term.value);
  add("reward", reward.reward);
  table.style.width = "auto";
  return make("section", {}, make("h2", {}, "Reward"), table);
}

function drawSeconds(seconds) {
  const phases = Object.entries(seconds).filter(([name]) => !name.includes("/"));
  const shown = phases.map(([name, value]) => `${name} ${number(value, 1)} s`).join(", ");
  return shown ? make("p", { class: "quiet" }, "Time: " + shown) : null;
}

function drawPrompt(page) {
  const body = make("div", { class: "body" });
  for (const message of page.prompt) body.append(make("div", { class: "quiet" }, message.role), make("pre", {}, message.text));
  if (page.tokens && page.tokens.ids)
    body.append(lazyTokens("tokens of the prompt", page.tokens, 0, page.tokens.prompt_length, page.tokens.prompt_length));
  return make("details", { class: "turn" }, make("summary", {}, " Prompt"), body);
}

function drawTurn(turn, index, tokens) {
  const notes = [turn.finish, turn.seconds !== null && turn.seconds !== undefined ? `model ${number(turn.seconds, 2)} s` : null];
  const offsets = tokens && tokens.turns ? tokens.turns[index] : null;
  if (offsets) notes.push(`${offsets.end - offsets.start} sampled tokens`, `${offsets.observation_end - offsets.end} observed`);
  if (offsets && offsets.weight_version !== null) notes.push(`weights ${offsets.weight_version}`);
  const head = make("h3", {}, `Turn ${index + 1}`, ...notes.filter(Boolean).map((note) => make("span", {}, note)));
  if (turn.malformed) head.append(make("span", { class: "bad" }, `malformed: ${turn.malformed}`));
  const body = make("div", { class: "body" });
  if (turn.reasoning) body.append(make("div", { class: "reasoning" }, make("pre", {}, turn.reasoning)));
  if (turn.content) body.append(make("pre", {}, turn.content));
  const results = new Map(turn.results.map((result) => [result.id, result]));
  for (const call of turn.calls) body.append(drawCall(call, results.get(call.id)));
  if (offsets) body.append(lazyTokens("tokens", tokens, offsets.start, offsets.end, offsets.observation_end));
  return make("div", { class: "turn" }, head, body);
}

function drawCall(call, result) {
  const failed = result && (!result.ok || !result.dispatched);
  const remark = !result ? "no result" : `${result.server || ""} ${number(result.seconds, 3)} s` +
    (result.dispatched ? "" : ", refused before dispatch") + (result.error ? `, ${result.error}` : "");
  const parts = [make("b", {}, call.name), " ", make("span", { class: failed ? "bad" : "quiet" }, remark),
    make("pre", {}, JSON.stringify(call.arguments, null, 1))];
  if (result && result.text) parts.push(make("details", failed ? { open: "" } : {}, make("summary", {}, `result, ${result.text.length} characters`), make("pre", {}, result.text)));
  return make("div", { class: "call" + (failed ? " failed" : "") }, ...parts);
}

// Tokens are drawn when they are opened: a trajectory may have a hundred thousand of them.
function lazyTokens(title, tokens, start, end, observationEnd) {
  const legend = make("span", { class: "scale" }, "logprob 0", make("i"), "−5; grey: not trained on");
  const details = make("details", { class: "token-block" }, make("summary", {}, title), legend);
  details.addEventListener("toggle", () => {
    if (details.open && !details.querySelector(".tokens")) details.append(drawTokens(tokens, start, end, observationEnd));
  });
  return details;
}

function drawTokens(tokens, start, end, observationEnd) {
  const block = make("div", { class: "tokens" });
  for (let i = start; i < observationEnd; i++) {
    const id = tokens.ids[i];
    const text = tokens.texts[id] ?? `[${id}]`;
    const sampled = i >= tokens.prompt_length && i < end;
    const logprob = tokens.logprobs[i];
    const span = make("span", { class: sampled ? "t" : "masked",
      title: sampled ? `token ${id}, logprob ${logprob}, mask 1` : `token ${id}, mask 0` }, text.replace(/\n/g, "⏎\n"));
    if (sampled) span.style.background = `rgb(255 114 92 / ${Math.min(-logprob / 5, 1) * 85}%)`;
    block.append(span);
  }
  return block;
}

fillFilters();
fillMetrics();
drawTable();
addEventListener("hashchange", route);
route();
