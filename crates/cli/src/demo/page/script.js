"use strict";
// Draws what the run recorded: for each freeze a picture of that moment in every way of running, and for each run all
// of its orders. Moments are microseconds since the run began.
const data = JSON.parse(document.getElementById("data").textContent);
const MS = 1000;

function html(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}
function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}
const ms = (micros, digits = 0) => (micros / MS).toFixed(digits) + " ms";

/** The two tokens of a story, cut to what tells them apart. */
function shortTokens(tokens) {
  const known = tokens.filter(Boolean);
  if (!known.length) return () => null;
  let same = 0;
  while (known.length > 1 && same < known[0].length - 4 && known.every(token => token[same] === known[0][same])) same++;
  if (known.length === 1) same = Math.max(0, known[0].length - 7);
  // The word joiner keeps a line from ending after the dots.
  return token => token && (same ? "…\u2060" : "") + token.slice(same);
}

// ---- the freezes -------------------------------------------------------------------------------------------------

const WIDTH = 1160, GUTTER = 96, LANE = 86, TOP = 46, BREAK = 66;
const BEFORE = 2.5 * MS, AFTER = 4.5 * MS, WORTH_A_BREAK = 14 * MS;
/** No letter of the pictures is wider on average. */
const WIDEST = 7.8;
const ROLES = ["stale", "newer", "third"];

/** A time axis that shows the moments where something happens and shortens the long waits between them. */
function axis(moments) {
  const zones = [];
  for (const moment of [...moments].sort((a, b) => a - b)) {
    const last = zones.at(-1);
    if (last && moment - BEFORE - last.to < WORTH_A_BREAK) last.to = Math.max(last.to, moment + AFTER);
    else zones.push({ from: moment - BEFORE, to: moment + AFTER });
  }
  const shown = zones.reduce((sum, zone) => sum + zone.to - zone.from, 0);
  const scale = (WIDTH - GUTTER - 8 - BREAK * (zones.length - 1)) / shown;
  let x = GUTTER;
  for (const zone of zones) {
    zone.x = x;
    x += (zone.to - zone.from) * scale + BREAK;
  }
  const place = moment => {
    if (moment <= zones[0].from) return GUTTER;
    for (const [index, zone] of zones.entries()) {
      if (moment <= zone.to) return zone.x + Math.max(0, moment - zone.from) * scale;
      const next = zones[index + 1];
      if (!next) break;
      if (moment < next.from) {
        const end = zone.x + (zone.to - zone.from) * scale;
        return end + BREAK * (moment - zone.to) / (next.from - zone.to);
      }
    }
    return WIDTH - 8;
  };
  return { zones, scale, place, from: zones[0].from, to: zones.at(-1).to };
}

function story(run, freeze) {
  const here = freeze.visits.filter(visit => visit.position === freeze.position);
  const stale = here.find(visit => visit.worker === 0);
  const others = here.filter(visit => visit.worker !== 0).sort((a, b) => a.held - b.held);
  const writers = others.filter(visit => visit.written !== null);
  const roles = new Map([[0, ROLES[0]]]);
  for (const visit of writers) roles.set(visit.worker, ROLES[roles.size]);
  const short = shortTokens([freeze.token, ...writers.map(visit => visit.token)]);
  return { run, freeze, here, stale, others, writers, roles, short, order: data.orders[freeze.position] };
}

function moments({ freeze, here }) {
  const all = [freeze.frozen, freeze.thawed, freeze.lease_ended];
  for (const visit of here) all.push(visit.held, visit.sent, visit.answered, visit.written, visit.over);
  return all.filter(moment => moment !== null && moment !== undefined);
}

function picture(tale) {
  const { freeze } = tale;
  const time = axis(moments(tale));
  const lanes = data.workers.length, bottom = TOP + lanes * LANE + 44, height = bottom + 34;
  // Words go on top of everything else.
  const words = svg("g", {});
  const root = svg("svg", { viewBox: `0 0 ${WIDTH} ${height}`, role: "img",
    "aria-label": `${tale.run.title}: timeline of the workers at order ${tale.order} around the freeze` });
  root.append(svg("defs", {}, svg("pattern", { id: "ice", width: 7, height: 7, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
    svg("rect", { width: 1.3, height: 7, fill: "var(--ice)", opacity: .75 }))));
  data.workers.forEach((name, worker) => {
    const y = TOP + worker * LANE;
    root.append(svg("line", { x1: 0, x2: WIDTH, y1: y, y2: y, stroke: "var(--grid)" }));
    words.append(text(0, y + 39, name, "strong " + (tale.roles.get(worker) ?? "soft")));
    const near = freeze.visits.filter(visit => visit.worker === worker && visit.over >= time.from && visit.asked <= time.to);
    for (const visit of near) lane(root, words, time, tale, visit, y);
  });
  row(root, words, time, tale, TOP + lanes * LANE);
  scale(root, words, time, freeze, bottom);
  breaks(root, words, time, bottom);
  marks(root, words, time, tale, bottom);
  root.append(words);
  return root;
}

function text(x, y, words, role = "", anchor = "start") {
  return svg("text", { x, y, class: role, "text-anchor": anchor }, words);
}
/** A text that begins at a mark, or further to the left if it would run out of the picture. */
function label(x, y, words, role) {
  return x + words.length * WIDEST > WIDTH ? text(WIDTH - 2, y, words, role, "end") : text(x, y, words, role);
}

/** One worker's work on one order. */
function lane(root, words, time, tale, visit, y) {
  const { freeze } = tale, top = y + 22, thick = 26;
  const box = (from, to, attributes, title) => {
    const x = time.place(from), rect = svg("rect", { x, y: top, height: thick, width: Math.max(1.5, time.place(to) - x), rx: 3, ...attributes });
    if (title) rect.append(svg("title", {}, title));
    root.append(rect);
  };
  const about = `${data.workers[visit.worker]}, ${data.orders[visit.position]}` + (visit.token ? `, token ${visit.token}` : "");
  if (tale.run.lock && visit.held - visit.asked > MS) {
    const middle = top + thick / 2;
    root.append(svg("line", { x1: time.place(visit.asked), x2: time.place(visit.held) - 2, y1: middle, y2: middle,
      stroke: "var(--soft)", "stroke-width": 1.5, "stroke-dasharray": "1.5 4", "stroke-linecap": "round" }));
    if (visit.position === freeze.position && visit.asked < freeze.thawed) {
      words.append(text(time.place(Math.max(visit.asked, freeze.frozen)) + 8, middle - 7, "waits", "soft"));
    }
  }
  if (visit.position !== freeze.position) {
    box(visit.held, visit.over, { fill: "var(--other)" }, about);
    return;
  }
  const role = visit.written === null ? null : tale.roles.get(visit.worker);
  const fill = role ? `var(--${role}-fill)` : "var(--other)";
  const isStale = visit.worker === 0;
  const leaseEnd = isStale && freeze.lease_ended !== null ? Math.min(freeze.lease_ended, visit.over) : visit.over;
  box(visit.held, leaseEnd, { fill }, about);
  if (leaseEnd < visit.over) {
    box(leaseEnd, visit.over, { fill: "none", stroke: "var(--stale)", "stroke-width": 1.5, "stroke-dasharray": "5 3" }, about + ": it has no lease any more");
  }
  if (isStale) {
    if (leaseEnd < freeze.thawed) box(leaseEnd, freeze.thawed, { fill: "var(--ice-fill)" });
    box(freeze.frozen, freeze.thawed, { fill: "url(#ice)", stroke: "var(--ice)" }, `frozen for ${ms(freeze.thawed - freeze.frozen)}`);
    const room = time.place(freeze.frozen) - time.place(visit.held) > 100;
    const x = room ? time.place(freeze.frozen) + 7 : tokenLabel(words, time, tale, visit, y);
    words.append(text(x, top - 8, "frozen (SIGSTOP)", "strong ice"));
  }
  if (visit.sent !== null) {
    const from = time.place(visit.sent), wide = Math.max(3, time.place(visit.answered) - from);
    root.append(svg("rect", { x: from, y: top + thick - 6, width: wide, height: 6, rx: 2, fill: `var(--${role})` }));
    const post = `POST: ${visit.tracking}` + (repeated(tale, visit) ? ", same parcel" : visit.duplicate ? ", one parcel too many" : "");
    words.append(label(from, y + 62, post, visit.duplicate ? "bad strong" : ""));
  }
  if (visit.written !== null) {
    const x = time.place(visit.written), verdict = writeVerdict(tale, visit);
    root.append(svg("path", { d: `M${x} ${top - 3}V${top + thick + 3}`, stroke: `var(--${verdict.colour})`, "stroke-width": 3 }));
    words.append(label(x - 2, y + 78, verdict.words, verdict.colour + " strong"));
  }
  if (role) tokenLabel(words, time, tale, visit, y);
}

/** Writes the token above the begin of a bar; returns where there is room again. */
function tokenLabel(words, time, tale, visit, y) {
  const x = time.place(visit.held);
  if (!visit.token) return x + 7;
  const token = "token " + tale.short(visit.token);
  words.append(text(x, y + 14, token, "strong " + tale.roles.get(visit.worker)));
  return x + token.length * WIDEST + 10;
}

/** Whether the carrier knew the key and sent nothing. */
function repeated(tale, visit) {
  return tale.run.idempotency_key && tale.here.some(other =>
    other !== visit && other.tracking === visit.tracking && other.answered < visit.answered);
}

function writeVerdict(tale, visit) {
  if (!visit.accepted) return { colour: "good", words: "UPDATE refused: token is older than the row's" };
  const before = tale.here.filter(other => other.accepted && other.written < visit.written).sort((a, b) => b.written - a.written)[0];
  if (before) return { colour: "bad", words: `UPDATE accepted: replaces ${before.tracking}` };
  return { colour: tale.roles.get(visit.worker) ?? "soft", words: "UPDATE" };
}

/** What the row of the order says over time. */
function row(root, words, time, tale, y) {
  const writes = tale.here.filter(visit => visit.accepted).sort((a, b) => a.written - b.written);
  root.append(svg("line", { x1: 0, x2: WIDTH, y1: y, y2: y, stroke: "var(--grid)" }));
  words.append(text(0, y + 23, "row says", "soft strong"));
  const parts = [{ at: time.from, words: "not shipped", colour: "other" }];
  writes.forEach((visit, index) => parts.push({ at: visit.written, words: visit.tracking,
    colour: index > 0 ? "bad-fill" : tale.roles.get(visit.worker) + "-fill", bad: index > 0 }));
  parts.forEach((part, index) => {
    const x = time.place(part.at), end = index + 1 < parts.length ? time.place(parts[index + 1].at) : WIDTH - 8;
    root.append(svg("rect", { x, y: y + 8, width: Math.max(1, end - x - 1.5), height: 23, rx: 3, fill: `var(--${part.colour})`, opacity: index ? 1 : .45 }));
    if (end - x > part.words.length * WIDEST + 8) words.append(text(x + 6, y + 24, part.words, "plain " + (part.bad ? "bad strong" : index ? "strong" : "soft")));
  });
}

function scale(root, words, time, freeze, y) {
  const step = [1, 2, 5, 10, 20, 50].find(step => step * MS * time.scale > 58) ?? 100;
  for (const zone of time.zones) {
    const first = Math.ceil((zone.from - freeze.frozen) / MS / step) * step;
    for (let tick = first; freeze.frozen + tick * MS <= zone.to; tick += step) {
      const x = time.place(freeze.frozen + tick * MS);
      root.append(svg("line", { x1: x, x2: x, y1: y - 5, y2: y, stroke: "var(--line)" }));
      if (x > GUTTER + 8 && x < WIDTH - 22) words.append(text(x, y + 13, (tick > 0 ? "+" : "") + tick + " ms", "soft", "middle"));
    }
  }
}

function breaks(root, words, time, bottom) {
  time.zones.slice(1).forEach((zone, index) => {
    const before = time.zones[index], left = before.x + (before.to - before.from) * time.scale, middle = left + BREAK / 2;
    root.append(svg("rect", { x: middle - 9, y: TOP, width: 18, height: bottom - TOP, fill: "var(--card)", opacity: .93 }));
    for (const x of [middle - 9, middle + 9]) {
      let path = `M${x} ${TOP}`;
      for (let y = TOP; y < bottom; y += 8) path += `l${(y / 8) % 2 < 1 ? 3 : -3} 8`;
      root.append(svg("path", { d: path, fill: "none", stroke: "var(--line)" }));
    }
    words.append(text(middle, bottom + 29, ms(zone.from - before.to) + " left out", "soft", "middle"));
  });
}

/** The moments that matter, across all lanes. */
function marks(root, words, time, { freeze }, bottom) {
  const all = [[freeze.frozen, "stopped", "ice", 0], [freeze.thawed, "continued", "ice", 0]];
  if (freeze.lease_ended !== null) all.push([freeze.lease_ended, "its lease is over", "stale", 1]);
  for (const [moment, name, colour, level] of all) {
    const x = time.place(moment), y = 14 + level * 16;
    root.append(svg("line", { x1: x, x2: x, y1: y + 4, y2: bottom, stroke: `var(--${colour})`, "stroke-dasharray": level ? "4 3" : "none", opacity: .8 }));
    words.append(label(x - 3, y, name, "strong " + colour));
  }
}

function told({ run, freeze, stale, writers, short, order }) {
  const newer = writers.at(-1), names = data.workers;
  if (!stale || !newer) return "";
  const under = token => token ? ` under token ${short(token)}` : "";
  const before = freeze.before_post ? "had read the row and not yet asked the carrier" : `had asked the carrier (${stale.tracking}) and not yet written the row`;
  let words = `${names[0]} ${before} when it was stopped for ${ms(freeze.thawed - freeze.frozen)}. `;
  if (freeze.believed_until !== null) words += `It had looked at its lease right before: ${ms(freeze.believed_until - freeze.frozen)} left. `;
  if (run.lock) {
    const sent = newer.duplicate ? "sent a second parcel" : repeated({ run, here: [stale, newer] }, newer) ? "asked with the same key, got the same parcel" : "sent the parcel";
    words += `The lease ended, ${names[newer.worker]} was granted the order${under(newer.token)}, ${sent} and wrote ${newer.tracking}. `;
  } else {
    words += `Nothing kept the others away: ${writers.map(visit => `${names[visit.worker]} sent ${visit.tracking}`).join(", ")}. `;
  }
  words += `Continued, ${names[0]} knew of nothing`;
  if (freeze.before_post) words += stale.duplicate ? `, sent another parcel (${stale.tracking})` : `, asked the carrier with the same key and got the same parcel (${stale.tracking})`;
  words += freeze.accepted
    ? ` and wrote ${stale.tracking}${under(stale.token)}. Accepted: the row of ${order} no longer names the parcel that was written last by its rightful holder.`
    : `, and wrote ${stale.tracking}${under(stale.token)}. Refused: the row has seen token ${short(newer.token)}.`;
  return run.lock ? words : words.replace(" by its rightful holder", "");
}

function chips({ freeze }) {
  const parcels = html("span", { class: "chip " + (freeze.parcels > 1 ? "bad" : "good") }, freeze.parcels === 1 ? "1 parcel" : `${freeze.parcels} parcels`);
  const write = html("span", { class: "chip " + (freeze.accepted ? "bad" : "good") }, "stale write " + (freeze.accepted ? "accepted" : "refused"));
  return [parcels, write];
}

function drawFreezes() {
  const section = document.getElementById("freezes");
  const most = Math.max(...data.runs.map(run => run.freezes.length));
  for (let index = 0; index < most; index++) {
    const tales = data.runs.filter(run => run.freezes[index]).map(run => story(run, run.freezes[index]));
    const place = tales[0].freeze.before_post ? "between reading the row and the POST" : "between POST and UPDATE";
    section.append(html("h2", {}, `Freeze ${index + 1}: stopped ${place}`));
    section.append(html("p", {}, tales[0].freeze.before_post
      ? `Order ${tales[0].order}. The seal keeps the row right, but a carrier cannot check a token: only an idempotency key, made from the operation, stops the second parcel.`
      : `Order ${tales[0].order}. The stopped worker cannot know that its time is over, and goes on where it was. A plain UPDATE takes its stale write; a transaction that begins with the seal does not.`));
    for (const tale of tales) {
      section.append(html("article", { class: "panel" },
        html("header", {}, html("h3", {}, tale.run.title), ...chips(tale)),
        html("p", {}, told(tale)), html("div", { class: "scroll" }, picture(tale))));
    }
  }
}

// ---- all orders of a run -----------------------------------------------------------------------------------------

const tip = document.getElementById("tip");
const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

class Overview {
  constructor(run) {
    this.run = run;
    this.from = 0;
    this.to = run.took;
    this.canvas = html("canvas", { role: "img", "aria-label": `${run.title}: when each worker was busy with which order` });
    const button = (words, name, act) => { const it = html("button", { type: "button", "aria-label": name }, words); it.onclick = act; return it; };
    this.element = html("article", { class: "panel overview" },
      html("header", {}, html("h3", {}, run.title), html("span", {}, (run.took / MS / MS).toFixed(1) + " s"),
        button("+", "zoom in", () => this.zoom(.4)), button("−", "zoom out", () => this.zoom(2.5)),
        ...run.freezes.map((freeze, index) => button(`freeze ${index + 1}`, `show freeze ${index + 1}`, () => this.show(freeze.frozen - 60 * MS, freeze.thawed + 60 * MS))),
        button("all", "show all", () => this.show(0, run.took))), this.canvas);
    this.listen();
  }

  listen() {
    let drag = null;
    this.canvas.onpointerdown = event => { drag = { x: event.clientX, from: this.from, to: this.to }; this.canvas.setPointerCapture(event.pointerId); };
    this.canvas.onpointerup = () => { drag = null; };
    this.canvas.onpointerleave = () => { tip.hidden = true; };
    this.canvas.onpointermove = event => {
      if (!drag) return this.tell(event);
      const shift = (drag.x - event.clientX) / (this.width - this.gutter) * (drag.to - drag.from);
      this.show(drag.from + shift, drag.to + shift);
    };
    this.canvas.ondblclick = event => this.zoom(.4, this.moment(event.offsetX));
    this.canvas.addEventListener("wheel", event => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      this.zoom(event.deltaY > 0 ? 1.25 : .8, this.moment(event.offsetX));
    }, { passive: false });
  }

  moment(x) { return this.from + (x - this.gutter) / (this.width - this.gutter) * (this.to - this.from); }
  place(moment) { return this.gutter + (moment - this.from) / (this.to - this.from) * (this.width - this.gutter); }

  zoom(factor, around = (this.from + this.to) / 2) {
    this.show(around - (around - this.from) * factor, around + (this.to - around) * factor);
  }

  show(from, to) {
    const span = Math.min(Math.max(to - from, 10 * MS), this.run.took);
    this.from = Math.min(Math.max(from, 0), this.run.took - span);
    this.to = this.from + span;
    this.draw();
  }

  draw() {
    const ratio = devicePixelRatio || 1, height = 112;
    this.width = this.canvas.clientWidth;
    this.gutter = 82;
    this.canvas.width = this.width * ratio;
    this.canvas.height = height * ratio;
    const pen = this.canvas.getContext("2d");
    pen.scale(ratio, ratio);
    pen.font = "12px system-ui, 'Liberation Sans', sans-serif";
    const colours = [css("--nothing"), css("--first"), css("--again")];
    // Where few parcels are too many, each must be seen.
    const least = this.run.lanes.flat().filter(bar => bar[2] === 2).length < 50 ? 3 : 1;
    this.run.lanes.forEach((bars, worker) => {
      const y = 8 + worker * 28;
      pen.fillStyle = css("--grid");
      pen.fillRect(this.gutter, y, this.width - this.gutter, 20);
      // What matters most is drawn last, so that it is seen where many bars share a pixel.
      for (const kind of [0, 1, 2]) {
        pen.fillStyle = colours[kind];
        for (const [begin, length, which] of bars) {
          if (which !== kind || begin > this.to || begin + length < this.from) continue;
          const x = Math.max(this.gutter, this.place(begin));
          pen.fillRect(x, y, Math.max(kind === 2 ? least : kind ? 1 : .6, this.place(begin + length) - x - .4), 20);
        }
      }
      if (worker === 0) this.run.freezes.forEach((freeze, index) => this.ice(pen, freeze, index, y));
      pen.fillStyle = css("--card");
      pen.fillRect(0, y, this.gutter - 2, 20);
      pen.fillStyle = css("--soft");
      pen.fillText(data.workers[worker], 0, y + 14);
    });
    this.ticks(pen, height);
  }

  ice(pen, freeze, index, y) {
    const x = Math.max(this.gutter, this.place(freeze.frozen)), end = this.place(freeze.thawed);
    if (end < this.gutter || x > this.width) return;
    pen.fillStyle = css("--ice-fill");
    pen.fillRect(x, y, end - x, 20);
    pen.strokeStyle = css("--ice");
    pen.strokeRect(x + .5, y + .5, end - x - 1, 19);
    pen.fillStyle = css("--ice");
    const words = end - x > 66 ? `freeze ${index + 1}` : String(index + 1);
    pen.fillText(words, x + 5, y + 14);
    const [begin, length, kind] = this.run.lanes[0][freeze.position];
    if (kind !== 2) return;
    pen.fillStyle = css("--again");
    pen.fillRect(end, y, Math.max(3, this.place(begin + length) - end), 20);
  }

  ticks(pen, height) {
    const span = this.to - this.from;
    const step = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 60000].map(step => step * MS).find(step => span / step < 11) ?? span;
    pen.fillStyle = css("--soft");
    pen.textAlign = "center";
    for (let tick = Math.ceil(this.from / step) * step; tick <= this.to; tick += step) {
      const words = step >= 100 * MS ? (tick / MS / MS).toFixed(step % (MS * MS) ? 1 : 0) + " s" : ms(tick);
      pen.fillText(words, Math.min(this.place(tick), this.width - 18), height - 8);
    }
    pen.textAlign = "start";
  }

  tell(event) {
    const worker = Math.floor((event.offsetY - 8) / 28), moment = this.moment(event.offsetX);
    const bars = this.run.lanes[worker] ?? [], reach = (this.to - this.from) / this.width * 2;
    const position = bars.findIndex(([begin, length]) => begin - reach <= moment && moment <= begin + length + reach);
    tip.hidden = position < 0;
    if (position < 0) return;
    const [begin, length, kind, token] = bars[position];
    const lines = [`${data.orders[position]}   ${data.workers[worker]}`,
      `from ${ms(begin, 1)} for ${ms(length, 1)}`, ["was done already", "sent its first parcel", "sent one parcel too many"][kind]];
    if (token !== undefined) lines.push("token " + (BigInt(this.run.base_token) + BigInt(token)));
    tip.textContent = lines.join("\n");
    tip.style.left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8) + "px";
    tip.style.top = event.clientY + 18 + "px";
  }
}

drawFreezes();
const overviews = data.runs.map(run => new Overview(run));
document.getElementById("runs").append(...overviews.map(overview => overview.element));
const redraw = () => overviews.forEach(overview => overview.draw());
redraw();
addEventListener("resize", redraw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
