"use strict";
{  // a scope of its own: charts.js has names such as rows, and takes that of window.history
const ABOUT = JSON.parse(document.getElementById("about").textContent), HEIGHT = 34, BESIDE = 12;  // pixels of a row; rows drawn outside of the view
const OF_WHOLE = ["test", "trials", "kind", "data", "began"], NUMBERS = ["best", "test", "seconds", "trials"], MOST_WIDE = 34, MOST_TICKED = 500, KEPT = "kindling board columns";
const USUAL = {in: "", where: "", sort: "began", group: "", columns: "", ticked: [], chart: "curves", x: "", y: "best", run: "", beside: "", scale: "linear", over: "", smooth: "", means: "", colour: ""};
const $ = id => document.getElementById(id), make = (name, given = {}, ...inside) => {
  const made = Object.assign(document.createElement(name), given);
  made.append(...inside);
  return made;
};
const table = $("table"), body = table.querySelector("tbody"), heads = table.querySelector("thead tr");

// --- the view, which the address holds ---------------------------------------------------------

let view = {}, written = null;

function read() {
  const given = new URLSearchParams(location.hash.slice(1));
  return Object.fromEntries(Object.entries(USUAL).map(([name, usual]) => [name, Array.isArray(usual) ? given.getAll(name) : given.get(name) ?? usual]));
}

function address(changes) {
  const found = new URLSearchParams();
  for (const [name, value] of Object.entries({...view, ...changes})) {
    for (const each of [value].flat()) if (each !== USUAL[name]) found.append(name, each);
  }
  return "#" + found;
}

// Changes the view and its address; with `step`, the browser's button Back returns to the view before.
function change(changes, step = false) {
  const next = address(changes);
  view = {...view, ...changes};
  written = next;
  if (step) location.hash = next;
  else location.replace(next);
  show_view();
}

addEventListener("hashchange", () => {
  if (location.hash === written || (location.hash || "#") === written) return;
  written = location.hash;
  view = read();
  show_view();
});

// --- questions to the server ---------------------------------------------------------------------

async function ask(path, given, options) {
  let response;
  try {
    response = await fetch(given ? `${path}?${new URLSearchParams(given)}` : path, {signal: AbortSignal.timeout(300000), ...options});
  } catch (error) {
    $("silent").hidden = false;
    throw error;
  }
  $("silent").hidden = true;
  if (response.ok) return response.json();
  const told = await response.json().catch(() => ({error: response.statusText}));
  throw Object.assign(new Error(told.error), {told: true});
}

// Calls of the function one after the other; of those that come meanwhile, only the last.
function latest(act) {
  let running = false, again = false;
  return async function call() {
    if (running) { again = true; return; }
    running = true;
    try {
      await act();
    } catch (error) {
      if (!error.told && $("silent").hidden) throw error;
    } finally {
      running = false;
      if (again) { again = false; call(); }
    }
  };
}

// --- rows ----------------------------------------------------------------------------------------

let rowsOf = "", version = 0, fresh = true, timer = null, first = [], typed = [], whole = true, total = 0, keys = [];
let rowOf = new Map(), order = [], listing = [], cursor = 0, changed = false, mixed = false;  // mixed: rows have other metrics
const unfolded = new Set();  // groups

const usual = () => ["best", "status", ...first, ...(order.some(row => row.trials) ? ["trials"] : []), "seconds", "began"];
const columns = () => ((view.columns || kept())?.split(",") ?? usual()).filter(name => whole || !OF_WHOLE.includes(name));
const kept = () => { try { return localStorage.getItem(KEPT); } catch { return null; } };
const isField = name => ABOUT.fields.includes(name), metrics = () => [...new Set([...rowOf.values()].slice(0, 500).flatMap(row => Object.keys(row.metrics)))].sort();
const across = () => view.x || (first.find(name => name !== "seed") ?? typed[0] ?? "seconds");  // of the scatter
const asKey = name => !isField(name) && !name.includes("/");

const load_rows = latest(async () => {
  const sort = view.sort.replace(/^-/, ""), more = [view.group, sort].filter(name => !first.includes(name));
  const wanted = [...new Set([...(view.columns || kept() || "").split(","), ...more])].filter(name => name && asKey(name)), same = JSON.stringify([view.in, wanted]);
  const given = [["in", view.in], ["where", view.where], ["sort", sort], ["since", rowsOf === same ? version : 0], ...wanted.map(name => ["key", name]), ...(fresh ? [["fresh", ""]] : [])];
  fresh = false;  // a choice of the viewer need not wait for a look at all folders
  let found;
  try {
    found = await ask("/rows", given);
    $("fault").hidden = true;
  } catch (error) {
    if (error.told) {
      $("fault").textContent = error.message;
      $("fault").hidden = false;
      if (!order.length) $("told").textContent = "";
    }
    plan();
    throw error;
  }
  if (rowsOf === same && String(found.keys) !== String(keys)) {  // the cells of older rows belong to other columns
    rowsOf = "";
    return load_rows();
  }
  if (rowsOf !== same) rowOf = new Map();
  changed = rowsOf !== same || version !== found.version;
  rowsOf = same;
  ({version, first, typed, whole, total, keys} = found);
  for (const row of found.rows) rowOf.set(row.number, row);
  order = found.order.map(number => rowOf.get(number)).filter(Boolean);
  mixed = new Set(order.map(row => row.monitor)).size > 1;
  if (view.sort.startsWith("-")) {
    const valued = order.filter(row => value(row, sort) !== null && value(row, sort) !== "");
    order = [...valued.reverse(), ...order.filter(row => value(row, sort) === null || value(row, sort) === "")];
  }
  show_rows();
  const ended = new Set([...rowOf.values()].filter(row => /^(finished|failed|diverged|damaged)/.test(row.status)).map(row => row.folder));
  const moves = folder => changed || !ended.has(folder);
  if (changed || (view.chart === "curves" && view.ticked.some(moves))) load_charts();
  if (view.beside && view.ticked.some(moves)) load_compared();
  if (view.run && moves(view.run) && !edited() && !$("run").contains(document.activeElement)) { opened = null; load_run(); }
  plan();
});

function plan() {
  clearTimeout(timer);
  timer = setTimeout(() => { fresh = true; load_rows(); }, 1000 * ABOUT.seconds);
}

function value(row, name) {
  if (name === "run") return whole ? row.name || row.folder : `trial ${row.folder.split("/").at(-1)}`;  // a trial has the name of its sweep
  if (isField(name)) return name === "tag" ? row.tag.join(", ") : row[name] ?? null;
  if (Object.hasOwn(row.metrics, name)) return row.metrics[name][0];
  return row.values[keys.indexOf(name)] ?? null;
}

function text(row, name) {
  const found = value(row, name);
  if (found === null) return row.fault && name === "status" ? "damaged" : "";
  if (name === "best") return (mixed ? `${row.monitor} ` : "") + shown(found, row.fraction);
  if (name === "test") return shown(found, row.score);
  if (name === "seconds") return found < 1 ? String(Number(found.toPrecision(2))) : found < 100 ? found.toFixed(1) : Math.round(found).toLocaleString("en");
  if (Object.hasOwn(row.metrics, name)) return shown(found, row.metrics[name][1]);
  return String(found).split("\n", 1)[0];
}

const numeric = name => NUMBERS.includes(name) || name.includes("/");

// A line for each row or, if they are grouped, for each group, and for the rows of those that are unfolded. Groups
// are in the order of their first rows; but the best row may be the luckiest one, so with "best" they go by their means.
function show_rows() {
  const found = new Map();
  if (view.group) for (const row of order) {
    const label = text(row, view.group) || "–";
    if (!found.has(label)) found.set(label, []);
    found.get(label).push(row);
  }
  const groups = [...found].map(([label, some]) => {
    const comparable = new Set(some.map(row => `${row.data} ${row.monitor}`)).size === 1, values = comparable ? known(some.map(row => row.best)) : [];
    return {label, some, comparable, values, mean: mean(values)};
  });
  if (["best", "-best"].includes(view.sort)) {
    const all = known(order.map(row => row.best)), sign = all[0] > all.at(-1) ? -1 : 1, rank = group => group.mean === null ? Infinity : sign * group.mean;
    groups.sort((a, b) => rank(a) - rank(b) || 0);
  }
  listing = view.group ? groups.flatMap(group => [group, ...(unfolded.has(group.label) ? group.some : [])]) : order;
  cursor = Math.max(0, Math.min(cursor, listing.length - 1));
  const of = order.length === total ? "" : `${order.length.toLocaleString("en")} of `, noun = (whole ? ["run or sweep", "runs and sweeps"] : ["trial", "trials"])[total === 1 ? 0 : 1];
  const means = groups.some(group => group.values.length) ? ", with the mean ± standard deviation of their best values" : "";
  const grouped = groups.length ? ` in ${groups.length.toLocaleString("en")} group${groups.length > 1 ? "s" : ""}${means}` : "";
  $("told").textContent = total ? `${of}${total.toLocaleString("en")} ${noun}${grouped}${order.length ? "" : ": none meets the conditions"}` : "There is no run or sweep yet. Rows appear here when training begins.";
  head();
  rows_in_view(true);
  offer();
  ticks();
}

// Of the columns after the first, in rem. On a phone, the value and the status fit beside the name.
function widths(names) {
  const some = order.filter((_, at) => at % Math.ceil(order.length / 400) === 0), narrow = innerWidth <= 640, phone = {run: 13, best: 11};
  const most = name => narrow && Object.hasOwn(phone, name) ? phone[name] : name === "run" || isField(name) ? MOST_WIDE : 20;
  return names.map(name => (Math.min(most(name), Math.max(name.length + 2, ...some.map(row => text(row, name).length))) + (narrow ? 1 : 3)) * 0.5 + 0.5);
}

function head() {
  const names = ["run", ...columns()], key = view.sort.replace(/^-/, ""), focused = heads.contains(document.activeElement) ? document.activeElement.textContent : null;
  table.querySelector("colgroup").replaceChildren(...[innerWidth <= 640 ? 1.9 : 2.6, ...widths(names)].map(wide => make("col", {style: `width: ${wide}rem`})));
  heads.replaceChildren(make("th", {scope: "col"}), ...names.map(name => {
    const by = name === "run" ? "folder" : name, cell = make("th", {scope: "col", className: numeric(name) ? "number" : "", title: name}, make("button", {type: "button", textContent: name, onclick: () => change({sort: view.sort === by ? "-" + by : by})}));
    if (by === key) cell.ariaSort = view.sort.startsWith("-") === ["best", "began"].includes(by) ? "ascending" : "descending";
    return cell;
  }));
  [...heads.querySelectorAll("button")].find(button => button.textContent === focused)?.focus();
}

let drawn = "";
function rows_in_view(anew = false) {
  const from = Math.max(0, Math.floor(table.scrollTop / HEIGHT) - BESIDE), to = Math.min(listing.length, from + Math.ceil(table.clientHeight / HEIGHT) + 2 * BESIDE);
  if (!anew && drawn === `${from} ${to}`) return;
  drawn = `${from} ${to}`;
  const names = ["run", ...columns()], wide = names.length + 1, focused = body.contains(document.activeElement);
  const space = count => make("tr", {className: "space", ariaHidden: "true"}, make("td", {colSpan: wide, style: `height: ${count * HEIGHT}px`}));
  body.replaceChildren(space(from), ...listing.slice(from, to).map((line, at) => {
    const row = line.some ? group_line(line, wide) : run_line(line, names);
    row.ariaRowIndex = from + at + 1;
    row.id = `line${from + at}`;
    row.classList.toggle("cursor", from + at === cursor);
    row.addEventListener("click", () => { cursor = from + at; mark(); });
    return row;
  }), space(listing.length - to));
  if (focused) table.focus({preventScroll: true});
  table.setAttribute("aria-activedescendant", `line${cursor}`);
}

function mark() {
  for (const row of body.rows) row.classList.toggle("cursor", row.id === `line${cursor}`);
  table.setAttribute("aria-activedescendant", `line${cursor}`);
}

function run_line(row, names) {
  const ticked = view.ticked.includes(row.folder), box = make("input", {type: "checkbox", checked: ticked, tabIndex: -1, ariaLabel: `tick ${row.name || row.folder}`, onchange: () => tick(toggled([row]))});
  const cells = names.map(name => {
    const told = text(row, name), cell = make("td", {title: row.fault && name === "run" ? row.fault : String(value(row, name) ?? "")});
    if (numeric(name)) cell.className = "number";
    if (name === "status") cell.className = told.split(",", 1)[0] === "damaged" ? "failed" : told.split(",", 1)[0];
    if (name === "run") {
      cell.title = [row.folder, row.note, row.fault].filter(Boolean).join("\n");
      cell.append(link(told, {run: row.folder}));
    } else if (name === "trials" && row.trials !== null) cell.append(link(told, {...USUAL, columns: view.columns, ticked: view.ticked, in: row.folder}));
    else cell.textContent = told;
    return cell;
  });
  return make("tr", {className: ticked ? "ticked" : ""}, make("td", {}, box), ...cells);
}

const link = (told, changes) => make("a", {textContent: told, href: address(changes), tabIndex: -1, onclick: event => {
  if (event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  change(changes, true);
}});

function group_line({label, some, comparable, values}, wide) {
  const of = some[0].fraction, lost = some.length - values.length, count = number => number.toLocaleString("en");
  const told = !comparable ? `${count(some.length)} rows on several data sets or metrics` : !values.length ? `${count(some.length)} without a value`
    : `mean ${shown(mean(values), of)}${values.length > 1 ? ` ± ${shown(deviation(values), of)}` : ""} of ${count(values.length)}${lost ? `, ${count(lost)} more without a value` : ""}`;
  const many = some.length > MOST_TICKED;
  const box = make("input", {
    type: "checkbox", checked: all_ticked(some), disabled: many, tabIndex: -1, ariaLabel: `tick the rows of ${label}`, title: many ? `more than ${MOST_TICKED} rows: choose some of them by a condition, such as seed<100` : "",
    onclick: event => event.stopPropagation(), onchange: () => tick(toggled(some)),
  });
  return make("tr", {className: "group", onclick: () => fold(label)}, make("td", {}, box), make("td", {colSpan: wide - 1}, make("span", {textContent: `${unfolded.has(label) ? "▾" : "▸"} ${clip(label)}: ${told}`})));
}

function fold(label) {
  if (!unfolded.delete(label)) unfolded.add(label);
  show_rows();
}

function all_ticked(some) {
  const ticked = new Set(view.ticked);
  return some.every(row => ticked.has(row.folder));
}

// The ticked folders after these rows are ticked or, if all of them were, unticked.
function toggled(some) {
  const folders = new Set(some.map(row => row.folder));
  return all_ticked(some) ? view.ticked.filter(folder => !folders.has(folder)) : [...new Set([...view.ticked, ...folders])];
}

function tick(ticked) {
  change({ticked, ...(view.ticked.length ? {} : {chart: "curves"})});
}

function ticks() {
  const count = view.ticked.length;
  $("ticks").textContent = count ? `${count.toLocaleString("en")} ticked` : "Tick rows to lay their curves over each other.";
  $("untick").hidden = $("beside").hidden = !count;
  $("beside").disabled = count < 2 || count > ABOUT.most;
  $("beside").title = `for 2 to ${ABOUT.most} ticked rows`;
}

// --- choices --------------------------------------------------------------------------------------

function fill(list, names, chosen) {
  const wanted = names.includes(chosen) ? names : [...names, chosen];
  const now = [...list.options].map(option => option.value);
  if (now.join("\n") !== wanted.join("\n")) list.replaceChildren(...wanted.map(name => new Option(name === "" ? "nothing" : clip(name), name)));
  list.value = chosen;
}

function offer() {
  const fields = ABOUT.fields.filter(name => !["folder", "name"].includes(name) && (whole || !OF_WHOLE.includes(name)));
  const chosen = columns(), all = [...new Set([...fields, ...metrics(), ...typed, ...chosen])];
  if (!$("offered").contains(document.activeElement)) $("offered").replaceChildren(...all.map(name => make("label", {}, make("input", {
    type: "checkbox", checked: chosen.includes(name),
    onchange: event => choose(event.target.checked ? [...columns(), name] : columns().filter(other => other !== name)),
  }), " " + clip(name))));
  fill($("group"), ["", "kind", "data", "status", "tag", ...typed.filter(asKey)], view.group);
  const numbers = ["best", ...metrics(), "seconds", ...(whole ? ["trials", "test"] : [])];
  fill($("x"), [...new Set([...typed, "seconds", ...(whole ? ["trials"] : []), ...metrics()])], across());
  fill($("y"), numbers, view.y);
  $("chart").value = view.chart;
  $("x").parentElement.hidden = view.chart !== "scatter";
  $("y").parentElement.hidden = view.chart === "curves";
}

function choose(names) {
  try { localStorage.setItem(KEPT, names.join(",")); } catch { /* a private window keeps nothing */ }
  change({columns: names.join(",")});
}

// --- charts ---------------------------------------------------------------------------------------

const figures = [];  // kept, because charts.js knows a figure by its element

function figure(at, chart) {
  const name = `${chart}${at}`;
  let found = figures.find(each => each.id === name);
  if (!found) {
    found = make("figure", {className: "card", id: name}, make("figcaption"));
    found.dataset.chart = chart;
    found.addEventListener("change", () => {
      const {scale, over, smooth, means, key} = found.chartState;
      change({scale, over, smooth, means: means === null ? "" : means ? "yes" : "no", colour: key ?? ""});
    });
    figures.push(found);
    $("charts").append(found);
  }
  return found;
}

const load_charts = latest(async () => {
  let found = [], told = "";
  try {
    if (ABOUT.no_charts) told = `There are no charts, because ${ABOUT.no_charts} and start this command again.`;
    else if (view.chart === "curves") {
      if (view.ticked.length) {
        const {charts, skipped} = await ask("/curves", view.ticked.map(folder => ["folder", folder]));
        // One curve has no legend that tells its run.
        found = charts.map(({title, data}) => ["curves", data, [charts.length > 1 && title, data.trials.length === 1 && `Run ${data.trials[0].name}`, ABOUT.curves].filter(Boolean).join(". ")]);
        told = [...skipped, ...(charts.length ? [] : ["The ticked rows have no curve yet."])].join("; ");
      }
    } else if (rowsOf) {  // the rows tell the keys; when they come, this is called again
      const wanted = view.chart === "scatter" ? [across()] : [...new Set([...columns().filter(name => asKey(name) || name.includes("/")), ...first])].filter(name => name !== view.y);
      const {data, left_out, group} = await ask("/chart", [["in", view.in], ["where", view.where], ["metric", view.y], ...wanted.map(name => ["key", name])]);
      const dots = data && effective(data).length;
      told = [...(dots ? [] : [`No row has several values of ${clip(wanted.join(", ") || "a key")} and a value of ${clip(view.y)}.`]), ...(left_out ? [`${left_out.toLocaleString("en")} rows on other data, with another metric or without a value are left out.`] : [])].join(" ");
      if (dots) found = [[view.chart === "scatter" ? "slices" : "parallel", data, `${view.chart === "scatter" ? "A dot per row" : "A line per row; drag a box over an axis to choose rows"}: ${group}.`]];
    }
  } catch (error) {
    if (!error.told) throw error;
    told = error.message;
  }
  $("remark").textContent = told;
  const used = found.map(([chart], at) => figure(at, chart));
  for (const each of figures) each.hidden = !used.includes(each);
  if (used.length) await (library ??= load());
  used.forEach((each, at) => {
    const [, data, caption] = found[at];
    each.chartData = data;
    each.querySelector("figcaption").textContent = caption;
    each.chartState = Object.assign(each.chartState ?? {}, {scale: view.scale, over: view.over, smooth: view.smooth, means: {yes: true, no: false}[view.means] ?? null, key: view.colour || each.chartState?.key || null});
    (redraws.get(each) ?? show)(each);
  });
});

// --- side by side, and one run ----------------------------------------------------------------------

// A text that may break after some letters, and there alone.
const breakable = (text, after) => text.split(after).flatMap((part, at) => at ? [make("wbr"), part] : [part]), KEY = /(?<=[/._])/, LIST = /(?<=,)/;
const listed = (header, rows) => make("div", {className: "wide"}, make("table", {}, ...(header ? [make("thead", {}, make("tr", {}, ...header))] : []), make("tbody", {}, ...rows.map(cells => make("tr", {}, ...cells.map((cell, at) => make("td", {}, make("div", {className: "cell"}, ...breakable(cell, at ? LIST : KEY)))))))));
const closing = changes => make("button", {type: "button", className: "act", textContent: "close", onclick: () => change(changes)});

let beside = true;  // whether the rows side by side were brought into view; a page begins at its top
const load_compared = latest(async () => {
  const section = $("compared"), top = [make("h2", {textContent: "Side by side"}), make("p", {className: "bar"}, closing({beside: ""}))];
  section.hidden = !view.beside;
  if (!view.beside) { beside = false; return; }
  try {
    const {folders, names, facts, settings, same, chance} = await ask("/compare", view.ticked.map(folder => ["folder", folder]));
    const header = [make("th"), ...folders.map((folder, at) => {
      const opens = link("", {run: folder});
      opens.append(...breakable(names[at], KEY));
      return make("th", {scope: "col"}, opens);
    })];
    const told = cells => cells.slice(1).filter(Boolean), differ = cells => new Set(told(cells)).size > 1;  // what only some have is not told of the others
    section.replaceChildren(
      ...top, ...(chance ? [make("p", {textContent: chance})] : []), listed(header, [...facts.filter(differ), ...settings]),
      make("p", {className: "soft", textContent: `${same.toLocaleString("en")} settings are the same${settings.length ? "" : ", and none differs"}.`}),
      make("details", {}, make("summary", {textContent: "facts that are the same"}), listed(null, facts.filter(cells => !differ(cells)).map(cells => [cells[0], told(cells)[0]]))),
    );
  } catch (error) {
    section.replaceChildren(...top, make("p", {className: "trouble", textContent: error.message}));
  }
  if (!beside) section.scrollIntoView({block: "nearest"});
  beside = true;
});

// A picture is as wide as it was drawn, and scrolls where it would be too small to read.
const picture = ({caption, src}) => make("figure", {}, make("div", {className: "still"}, make("img", {src, alt: caption, onload: event => { event.target.style.minWidth = `${0.56 * event.target.naturalWidth}px`; }})), make("figcaption", {textContent: caption}));

let opened = null, seen = null;  // the run that is shown, and the one that was brought into view
const load_run = latest(async () => {
  const section = $("run"), folder = view.run;
  section.hidden = !folder;
  if (!folder) seen = null;
  if (!folder || opened === folder) { opened = folder; return; }
  opened = folder;
  let found;
  try {
    found = await ask("/run", [["folder", folder]]);
  } catch (error) {
    section.replaceChildren(make("h2", {textContent: folder}), closing({run: ""}), make("p", {className: "trouble", textContent: error.message}));
    section.scrollIntoView({block: "nearest"});
    return;
  }
  const bar = make("p", {className: "bar"}, make("span", {textContent: `${found.kind}, ${found.status}`}), closing({run: ""}));
  if (found.sweep) bar.append(link("the trials of its sweep", {in: found.sweep, run: "", where: ""}));
  else bar.append(make("a", {textContent: "report", href: `/report?${new URLSearchParams({folder})}`}));
  if (!["run", "committee", "trial"].includes(found.kind)) bar.append(link("its trials", {in: folder, run: "", where: ""}));
  const own = found.settings.filter(([,, typed]) => typed), others = found.settings.filter(([,, typed]) => !typed), pairs = some => listed(null, some.map(([key, value]) => [key, value]));
  section.replaceChildren(
    make("h2", {textContent: found.name ? `${found.name} (${folder})` : folder}), bar, labels(found),
    make("div", {className: "pair"},
      make("div", {}, make("h3", {textContent: "Facts"}), pairs(found.facts), ...(found.machine.length ? [make("details", {}, make("summary", {textContent: "machine and versions"}), pairs(found.machine))] : [])),
      make("div", {}, make("h3", {textContent: "Settings"}), ...(own.length ? [pairs(own)] : [make("p", {className: "soft", textContent: "all as by default"})]),
        make("details", {}, make("summary", {textContent: `${others.length} settings by default`}), pairs(others)))),
    ...(found.command ? [make("p", {className: "command"}, make("code", {textContent: found.command}))] : []),
    ...(found.log ? [make("h3", {textContent: "Log"}), ...(found.stacked > 1 ? [make("p", {className: "soft", textContent: `of ${found.stacked.toLocaleString("en")} trials that were trained together: best and median are theirs`})] : []), ...(found.omitted ? [make("p", {className: "soft", textContent: `the end; ${found.omitted.toLocaleString("en")} bytes come before`})] : []), make("pre", {tabIndex: 0, textContent: found.log})] : []),
    ...(found.pictures.length ? [make("h3", {textContent: "Pictures of its report"}), make("div", {className: "pictures"}, ...found.pictures.map(picture))] : found.draw ? [make("h3", {textContent: "Pictures of its report"}), make("p", {className: "soft"}, "Pictures, such as the confusion matrix, appear here after ", make("code", {textContent: found.draw}))] : []),
  );
  section.querySelector("pre")?.scrollTo(0, 1e9);  // the newest lines
  if (seen !== folder) section.scrollIntoView({block: "nearest"});
  seen = folder;
});

const edited = () => [...$("run").querySelectorAll("input, textarea")].some(each => each.value !== each.defaultValue);

function labels({folder, name, tags, note}) {
  const field = (title, input) => [make("label", {textContent: title, htmlFor: input.id}), input], told = make("span", {role: "status"});
  const inputs = [make("input", {id: "name", defaultValue: name ?? "", spellcheck: false}), make("input", {id: "tags", defaultValue: tags.join(", "), placeholder: "separated by commas", spellcheck: false}), make("textarea", {id: "note", defaultValue: note ?? "", rows: 2})];
  return make("form", {className: "labels", onsubmit: async event => {
    event.preventDefault();
    const next = inputs[1].value.split(",").map(tag => tag.trim()).filter(Boolean);
    const asked = {folder, name: inputs[0].value, note: inputs[2].value, add: next, remove: tags.filter(tag => !next.includes(tag))};
    try {
      await ask("/label", null, {method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify(asked)});
      [told.textContent, told.className, opened] = ["saved", "finished", null];
      tags = next;
      for (const input of inputs) input.defaultValue = input.value;
      fresh = true;
      load_rows();
    } catch (error) {
      [told.textContent, told.className] = [error.message, "trouble"];
    }
  }}, ...field("name", inputs[0]), ...field("tags", inputs[1]), ...field("note", inputs[2]), make("span"), make("span", {}, make("button", {className: "act", textContent: "save"}), " ", told));
}

// --- the page ---------------------------------------------------------------------------------------

let before = {};
function show_view() {
  const was = before, differs = (...names) => names.some(name => String(was[name]) !== String(view[name]));
  before = {...view};
  if (document.activeElement !== $("where")) $("where").value = view.where;
  $("path").hidden = !view.in;
  $("path").lastElementChild.textContent = `trials of ${view.in}`;
  document.title = `${view.run || view.in || "Board"}`;
  if (differs("in", "group")) { cursor = 0; table.scrollTop = 0; unfolded.clear(); }
  if (differs("in", "where", "sort", "columns", "group")) load_rows();
  else if (differs("ticked")) rows_in_view(true);
  ticks();
  offer();
  if (differs("chart", "x", "y", "scale", "over", "smooth", "means", "colour") || (view.chart === "curves" ? differs("ticked") : differs("in", "where", "columns"))) load_charts();
  if (differs("beside") || (view.beside && differs("ticked"))) load_compared();
  if (differs("run")) load_run();
}

$("filter").addEventListener("submit", event => { event.preventDefault(); change({where: $("where").value.trim()}); });
$("where").addEventListener("search", () => change({where: $("where").value.trim()}));
$("path").querySelector("a").addEventListener("click", event => { event.preventDefault(); change({in: "", where: ""}, true); });
$("group").addEventListener("change", event => change({group: event.target.value}));
$("another").addEventListener("change", event => {
  const name = event.target.value.trim();
  if (name) choose([...new Set([...columns(), name])]);
  event.target.value = "";
});
$("usual").addEventListener("click", () => {
  try { localStorage.removeItem(KEPT); } catch { /* nothing is kept */ }
  change({columns: ""});
});
$("chart").addEventListener("change", event => change({chart: event.target.value}));
$("x").addEventListener("change", event => change({x: event.target.value}));
$("y").addEventListener("change", event => change({y: event.target.value}));
$("charts").querySelector("form").addEventListener("submit", event => event.preventDefault());
$("untick").addEventListener("click", () => change({ticked: [], beside: ""}));
$("beside").addEventListener("click", () => change({beside: "yes"}));
table.addEventListener("scroll", () => requestAnimationFrame(() => rows_in_view()), {passive: true});
new ResizeObserver(() => rows_in_view()).observe(table);

function go(to) {
  cursor = Math.max(0, Math.min(listing.length - 1, to));
  const top = cursor * HEIGHT, room = table.clientHeight - 2 * HEIGHT;
  if (top < table.scrollTop) table.scrollTop = top;
  if (top > table.scrollTop + room) table.scrollTop = top - room;
  rows_in_view();
  mark();
}

addEventListener("keydown", event => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const inside = event.target.closest("input, select, textarea, button, a, summary");
  if (event.key === "Escape") {
    event.preventDefault();  // the conditions stay
    if (inside) inside.blur();
    $("chooser").open = false;
    if ((view.run || view.beside) && !edited()) change({run: "", beside: ""});
    table.focus({preventScroll: true});
    return;
  }
  const line = listing[cursor], page = Math.floor(table.clientHeight / HEIGHT) - 2, act = {
    "/": () => $("where").focus(), u: () => $("untick").click(), s: () => { if (!$("beside").disabled) $("beside").click(); },
    ...(document.activeElement === table ? {
      ArrowDown: () => go(cursor + 1), ArrowUp: () => go(cursor - 1), PageDown: () => go(cursor + page), PageUp: () => go(cursor - page), Home: () => go(0), End: () => go(listing.length - 1),
      " ": () => { if (line && !(line.some?.length > MOST_TICKED)) tick(toggled(line.some ?? [line])); }, Enter: () => line && (line.some ? fold(line.label) : change({run: line.folder}, true)),
      t: () => { if (line && !line.some && line.trials !== null) change({in: line.folder, run: "", where: ""}, true); },
    } : {}),
  }[event.key];
  if (!act || (inside && inside.type !== "checkbox")) return;
  event.preventDefault();
  act();
});

view = read();
written = location.hash;
show_view();
}
