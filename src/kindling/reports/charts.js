"use strict";
// Replaces the pictures that have data by charts of Plotly. Without this script, the pictures stay.
const COLOURS = {{ colours|tojson }}, PROMISED = "promised by the sweep";
const GRADIENTS = {  // from blue to yellow, readable on white and on black
  light: ["#46327e", "#365c8d", "#277f8e", "#1fa187", "#6ab83c", "#c9a60b"],
  dark: ["#8d83e6", "#5b9bd8", "#38b2bd", "#43cf8d", "#a5db36", "#fde725"],
};
const LOGIT_TICKS = [0.5, 0.9, 0.99, 0.999, 0.9999, 0.1, 0.01, 0.7, 0.3, 0.8, 0.95, 0.98, 0.995, 0.998, 0.97, 0.96, 0.93, 0.92, 0.94, 0.985, 0.975];  // the most welcome first
const LOGIT_EDGE = 1e-5;  // 0 and 1 lie at infinity
const FEW = COLOURS.length, MOST_COLOURS = 16, MOST_AXES = 12, MOST_LISTED = 8, MOST_LINES = 6, MANY = 30, GAP = 78;
const STRAY = 10;  // times the size and the spread of a curve's values: the axis does not fit further ones
const BARS = 5, MOST_COVERED = 0.25;  // of the deviations of a line; of a chart by bands
const FULL = "~g";  // on a logarithmic axis: by default, a tick between powers of ten has its first digit alone
const LEVELS = [  // of an effect, as charts.py orders them
  ["best setting", {mode: "lines+markers"}], ["best quarter of the settings", {mode: "lines", line: {dash: "dash", width: 1.2}}],
  ["median setting", {mode: "lines", line: {dash: "dot", width: 1.2}}],
];
const SMOOTHING = [["", "none"], ["0.5", "weak"], ["0.8", "medium"], ["0.95", "strong"]];  // of the mean before, in each value
const FONT = "system-ui, sans-serif", LEAST = 10;  // pixels of the letters in a cell
const MARGIN = {l: 10, r: 14, t: 34, b: 10};
// Relative to the whole chart: relative to the plot area, the place may change while Plotly fits the margins.
const BELOW = {orientation: "h", x: 0, xref: "container", y: 0, yref: "container", yanchor: "bottom"};
const ABOVE = {orientation: "h", x: 0, y: 1.02, yanchor: "bottom"};
const dark = matchMedia("(prefers-color-scheme: dark)"), touch = matchMedia("(pointer: coarse)").matches;

const colour = name => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
// A value is at the end of a text, so the middle is left out.
const clip = text => text.length > 60 ? text.slice(0, 29) + "…" + text.slice(-30) : text;
const escaped = text => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
const plain = text => escaped(clip(text));
// As Python rounds: a value halfway between two goes to the even one.
function hundredths(value) {
  const up = value.toFixed(2), halfway = value % 0.125 === 0 && value % 0.25 !== 0;
  return halfway && Number(up.at(-1)) % 2 ? (value - Math.sign(value) * 0.001).toFixed(2) : up;
}
const shown = (value, fraction) => value === null ? "–" : fraction ? hundredths(100 * value) + "%" : String(Number(value.toPrecision(4)));
const known = values => values.filter(value => value !== null);
const mean = values => values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null;
function deviation(values) {
  const middle = mean(values);
  return values.length < 2 ? 0 : Math.sqrt(values.reduce((sum, value) => sum + (value - middle) ** 2, 0) / (values.length - 1));
}
const quantile = (sorted, share) => sorted[Math.round(share * (sorted.length - 1))];
const ascending = values => [...values].sort((a, b) => a - b);

// Whether numbers are spread over orders of magnitude, as those that were drawn on a logarithmic scale.
function wide(values) {
  const sorted = ascending(values), [low, middle, high] = [0, 0.5, 1].map(share => quantile(sorted, share));
  return low > 0 && high > 30 * low && middle < high / 4;
}

// The range of most values of many and of those to include, with a margin; of few values, of all.
function range(values, include = []) {
  const sorted = ascending([...values, ...include]), cut = values.length < 20 ? 0 : 0.04;
  if (!sorted.length) return undefined;
  const low = Math.min(quantile(sorted, cut), ...include), high = Math.max(quantile(sorted, 1 - cut), ...include);
  const margin = 0.05 * (high - low) || 0.01 * Math.abs(high) || 0.01;
  return [low - margin, high + margin];
}
// The values of a curve that are not very far from its median: a loss of 1000 after the first epoch hides all others.
function near(values) {
  const sorted = ascending(values), [low, middle, high] = [0.25, 0.5, 0.75].map(share => quantile(sorted, share));
  return values.filter(value => Math.abs(value - middle) <= STRAY * (Math.abs(middle) + high - low));
}
const scatter = number => (0.618 * (number + 0.5)) % 1 - 0.5;  // the first ones lie on both sides of 0
const translucent = (hex, share) => hex + Math.round(255 * share).toString(16).padStart(2, "0");

function gradient(share) {
  const stops = GRADIENTS[dark.matches ? "dark" : "light"], place = share * (stops.length - 1);
  const low = Math.min(Math.floor(place), stops.length - 2), part = place - low;
  const channel = at => Math.round(parseInt(stops[low].slice(at, at + 2), 16) * (1 - part) + parseInt(stops[low + 1].slice(at, at + 2), 16) * part);
  return "#" + [1, 3, 5].map(at => channel(at).toString(16).padStart(2, "0")).join("");
}

function palette(labels, numbers) {
  const ordered = numbers || labels.every(label => label !== "" && !isNaN(label.replace(/[[\]'"\s]/g, "")));
  return labels.map((_, at) => ordered ? gradient(labels.length > 1 ? at / (labels.length - 1) : 0.4) : COLOURS[at % COLOURS.length]);
}

// The settings of a trial in which trials differ; of very many, the first ones.
function settings(data, trial, ofKey = () => true) {
  const found = data.keys.flatMap((key, at) => ofKey(key) ? [`${key.name} = ${trial.settings[at]}`] : []);
  return found.length > MOST_LISTED ? [...found.slice(0, MOST_LISTED), "…"] : found;
}

const rows = (title, texts, ...last) => [`<b>${plain(title)}</b>`, ...texts.map(plain), ...last].join("<br>");

// --- layout ---------------------------------------------------------------------------------------

function axis({title, ...more}) {
  return {title: {standoff: 8, ...title}, gridcolor: colour("line"), linecolor: colour("line"), zeroline: false, automargin: true, ticks: "", ...more};
}

function layout(height, more) {
  return {
    height, margin: MARGIN, paper_bgcolor: "transparent", plot_bgcolor: "transparent",
    font: {color: colour("ink"), family: FONT, size: 12}, hovermode: "closest", dragmode: touch ? false : "zoom",
    hoverlabel: {bgcolor: colour("card"), bordercolor: colour("faint"), font: {color: colour("ink")}, align: "left"},
    modebar: {bgcolor: "transparent", color: colour("faint"), activecolor: colour("accent")}, ...more,
  };
}

// Panels in rows of so many columns: axes by name and titles as annotations, of a plot area of so many pixels.
function panels(count, columns, size, gap, make, below = GAP) {
  const rows = Math.ceil(count / columns), found = {annotations: []};
  for (let at = 0; at < count; at++) {
    const column = at % columns, row = Math.floor(at / columns), number = at ? at + 1 : "";
    const across = [column / columns + (column ? gap : 0) / 2, (column + 1) / columns - (column < columns - 1 ? gap : 0) / 2];
    const tall = size + below, up = [1 - (row * tall + size) / (rows * tall - below), 1 - row * tall / (rows * tall - below)];
    const {x, y, title} = make(at);
    found["xaxis" + number] = axis({domain: across, anchor: "y" + number, ...x});
    found["yaxis" + number] = axis({domain: up.map(end => Math.max(0, end)), anchor: "x" + number, ...y});
    if (title) found.annotations.push({text: title, x: mean(across), y: up[1], xref: "paper", yref: "paper", xanchor: "center", yanchor: "bottom", showarrow: false, font: {size: 13}});
  }
  return [found, rows * (size + below) - below];
}

// The lines of a text, of at most so many letters. A value stays beside its "=".
function wrapped(text, most) {
  const lines = [""], words = text.match(/\S+( = \S+)?/g) ?? [];
  for (const word of words.flatMap(each => each.match(new RegExp(`.{1,${most}}`, "g")))) {
    if (lines.at(-1) && lines.at(-1).length + word.length >= most) lines.push("");
    lines.push([lines.pop(), word].filter(Boolean).join(" "));
  }
  return lines.length > MOST_LINES ? [...lines.slice(0, MOST_LINES), "…"] : lines;
}

// The width in pixels of texts, each of one or more lines.
const pen = document.createElement("canvas").getContext("2d");
function widest(texts, size = 12) {
  pen.font = `${size}px ${FONT}`;
  return Math.max(...texts.flatMap(text => text.split("<br>")).map(line => pen.measureText(line).width));
}

// The texts of ticks at these pixels, turned where they would overlap. Of upright ones that would still, some are left out.
function tickTexts(texts, places) {
  const wide = texts.map(text => widest([text])), gaps = places.slice(1).map((place, at) => place - places[at]);
  if (gaps.every((gap, at) => gap > (wide[at] + wide[at + 1]) / 2 + 3)) return {ticktext: texts, tickangle: 0};
  if (Math.min(...gaps) > 28 && Math.max(...wide) < 60) return {ticktext: texts, tickangle: -30};
  let last = -Infinity;
  return {tickangle: -90, ticktext: texts.map((text, at) => {
    if (places[at] - last < 14) return "";
    last = places[at];
    return text;
  })};
}

const inLines = (text, most) => wrapped(text, most).map(escaped).join("<br>");

// An entry of a legend that fits into a chart of so many pixels.
const entry = (text, width) => inLines(text, Math.max(16, Math.floor((width - 50) / 7)));

// The height in pixels of a legend below a chart, by a guess of the widths of its letters.
function legendRows(traces, width) {
  let height = 0, left = 0, tall = 0;
  for (const {name} of traces.filter(trace => trace.showlegend)) {
    const lines = name.split("<br>"), wide = 45 + 6.5 * Math.max(...lines.map(line => line.length));
    if (left + wide > width) {
      height += tall;
      left = tall = 0;
    }
    left += wide;
    tall = Math.max(tall, 14 + 16 * lines.length);
  }
  return height + tall;
}

// --- charts: each returns traces and a layout for a width in pixels --------------------------------

// An exponential mean of the values so far. Values before the first epoch stay, and count for nothing.
function smoothed(values, epochs, weight) {
  let sum = 0, all = 0;
  return values.map((value, step) => {
    if (value === null || epochs[step] < 1) return value;
    sum = weight * sum + (1 - weight) * value;
    all = weight * all + 1 - weight;
    return sum / all;
  });
}

function lines(data, {means, over, smooth}) {
  const along = data.over?.indexOf(over) ?? -1;  // instead of epochs
  const trials = data.trials.map(trial => ({
    ...trial, x: along < 0 ? trial.epochs : trial.over[along], curves: smooth ? trial.curves.map(curve => smoothed(curve, trial.epochs, Number(smooth))) : trial.curves,
  }));
  const single = (trial, at = trials.indexOf(trial)) => ({...trial, at, name: `${data.noun} ${trial.name}`, texts: settings(data, trial)});
  if (!means) return trials.map(single);
  const groups = [];  // a run that repeats another one is in no group
  for (const trial of trials) if (trial.group !== null) (groups[trial.group] ??= []).push(trial);
  const found = groups.map(group => {
    if (group.length === 1) return single(group[0]);
    const epochs = group.reduce((most, trial) => trial.epochs.length > most.length ? trial.epochs : most, []);
    const at = (curve, step) => known(group.map(trial => trial.curves[curve][step] ?? null));
    const x = along < 0 ? epochs : epochs.map((_, step) => mean(known(group.map(trial => trial.x[step] ?? null))));
    const each = make => group[0].curves.map((_, curve) => epochs.map((_, step) => make(at(curve, step))));
    return {
      at: trials.indexOf(group[0]), name: `mean of ${group.length} ${data.noun}s`, texts: settings(data, group[0], key => !key.repeated),
      value: mean(known(group.map(trial => trial.value))), epochs, x, curves: each(mean), deviations: each(deviation),
    };
  });
  const sign = data.monitor.higher ? -1 : 1, rank = line => line.value === null ? Infinity : sign * line.value;
  return found.sort((a, b) => rank(a) - rank(b));
}

function curves(data, state, width) {
  const all = lines(data, state), key = data.keys.find(each => each.name === state.key);
  const few = all.length <= FEW, separate = few && !key, labels = key ? key.labels : separate ? all.map(line => line.name) : [""];
  const shades = key || separate ? palette(labels, key && key.numbers) : [colour("faint")], classOf = line => key ? key.of[line.at] : separate ? all.indexOf(line) : 0;
  const columns = width < 640 ? 1 : data.quantities.length, traces = [];
  const banded = all.slice(0, few ? FEW : 1).filter(line => line.deviations), ranges = [];
  const last = Math.max(...all.map(line => line.x.at(-1) ?? 0)), first = state.over ? 0 : 1;
  data.quantities.forEach((quantity, panel) => {
    const logit = state.scale === "logit" && quantity.fraction, log = state.scale !== "linear" && !logit;
    const place = value => value === null || (log && value <= 0) ? null : logit ? Math.log10(1 / (1 / Math.min(Math.max(value, LOGIT_EDGE), 1 - LOGIT_EDGE) - 1)) : value;
    // As in the pictures, the axes fit epochs from 1 on, but not values far from all others, with the deviations of few lines; of many runs, most of them and the best one.
    const values = (line, split) => line.curves[2 * panel + split].map(place).filter((value, step) => line.epochs[step] > 0 && value !== null).map(log ? Math.log10 : value => value);
    const bands = banded.map(line => line.epochs.flatMap((epoch, step) => {
      const middle = line.curves[2 * panel][step], off = line.deviations[2 * panel][step];
      return middle === null || place(middle - off) === null ? [] : [{epoch, x: line.x[step], ends: [place(middle - off), place(middle + off)]}];
    }));
    const spreads = bands.flatMap(band => band.filter(({epoch}) => epoch > 0).flatMap(each => each.ends)).map(log ? Math.log10 : value => value);
    const fitted = few ? all.flatMap(line => [0, 1].flatMap(split => log || logit ? values(line, split) : near(values(line, split)))).concat(spreads) : [];
    const ends = few ? range([], fitted) : range(all.flatMap(line => values(line, 0)), values(all[0], 0)), ticks = [];
    const common = {type: "scatter", xaxis: "x" + (panel ? panel + 1 : ""), yaxis: "y" + (panel ? panel + 1 : ""), hoverinfo: "text"};
    const points = (some, split, hover) => {  // lines in one trace, with a gap after each
      const trace = {x: [], y: [], hovertext: [], customdata: []};
      for (const line of some) {
        line.epochs.forEach((epoch, step) => {
          const value = line.curves[2 * panel + split][step], spread = line.deviations ? ` ± ${shown(line.deviations[2 * panel][step], quantity.fraction)}` : "";
          trace.x.push(line.x[step]); trace.y.push(place(value)); trace.customdata.push(all.indexOf(line));
          trace.hovertext.push(rows(line.name, line.texts, `epoch ${epoch}${split ? ", training" : ""}: <b>${shown(value, quantity.fraction)}${split ? "" : spread}</b>`));
        });
        for (const column of Object.values(trace)) column.push(null);
      }
      return trace;
    };
    // The share of the chart that each band covers.
    const within = value => ends && Math.min(1, Math.max(0, ((log ? Math.log10(value) : value) - ends[0]) / (ends[1] - ends[0])));
    const covered = bands.map(band => mean(band.filter(({epoch}) => epoch > 0).map(each => within(each.ends[1]) - within(each.ends[0]))) ?? 0);
    const full = covered.reduce((sum, share) => sum + share, 0) > MOST_COVERED;
    bands.forEach((band, number) => {
      const line = banded[number], shade = shades[classOf(line)], some = {...common, hoverinfo: "skip", legendgroup: String(classOf(line)), showlegend: false};
      if (!full) {
        const [down, up] = [0, 1].map(end => band.map(each => each.ends[end])), x = band.map(each => each.x);
        traces.push({...some, x: [...x, ...x.toReversed()], y: [...up, ...down.toReversed()], mode: "lines", line: {width: 0}, fill: "toself", fillcolor: translucent(shade, 0.2)});
        return;
      }
      // Means cannot be told apart below bands that fill the chart: bars at a few epochs from the last one on, beside each other.
      const every = Math.ceil(band.length / BARS), apart = every >= bands.length, shift = apart ? 0 : 0.04 * last * (number - (bands.length - 1) / 2) / bands.length;
      const bars = band.filter(({epoch}, at) => epoch > 0 && (band.length - 1 - at - (apart ? Math.floor(number * every / bands.length) : 0)) % every === 0);
      traces.push({
        ...some, x: bars.flatMap(({x}) => [x + shift, x + shift, null]), y: bars.flatMap(each => [...each.ends, null]), mode: "lines+markers", line: {color: shade, width: 1.2},
        marker: {symbol: "line-ew", size: 6, line: {color: shade, width: 1.2}},
      });
    });
    labels.forEach((label, number) => {
      const some = all.filter(line => classOf(line) === number), shade = {color: shades[number], width: few ? 2 : 1.3};
      const name = key ? `${key.name} = ${label}` : [label, ...some[0].texts].join(", ");
      const style = {...common, name: entry(name, width), legendgroup: String(number), line: separate && !number ? {...shade, width: 3} : shade};
      const single = some.every(line => line.epochs.length < 3);
      traces.push({...style, ...points(some, 0), mode: few || single ? "lines+markers" : "lines", marker: {size: 5}, opacity: few ? 1 : all.length < 100 ? 0.85 : 0.5, showlegend: all.length > 1 && !panel && some.length > 0 && label !== ""});
      if (few) traces.push({...style, ...points(some, 1), mode: single ? "lines+markers" : "lines", marker: {size: 4}, line: {color: shades[number], width: 1.5, dash: "dash"}, showlegend: false});
    });
    if (!separate) traces.push({...common, ...points(all.slice(0, 1), 0), mode: "lines", name: entry(`best: ${[all[0].name, ...all[0].texts].join(", ")}`, width), legendgroup: "best", line: {color: colour("ink"), width: 3}, showlegend: !panel});
    for (const tick of logit && ends ? LOGIT_TICKS : []) {
      if (ticks.every(other => Math.abs(place(other) - place(tick)) > 0.08 * (ends[1] - ends[0]))) ticks.push(tick);
    }
    ranges.push({
      range: ends, type: log ? "log" : "linear",
      ...(quantity.fraction && !logit ? {tickformat: "~%"} : log ? {tickformat: FULL} : {}),
      ...(logit ? {tickvals: ticks.map(place), ticktext: ticks.map(value => Number((100 * value).toFixed(2)) + "%")} : {}),
    });
  });
  const [axes, height] = panels(data.quantities.length, columns, width < 640 ? 240 : 320, 0.09, panel => ({
    x: {title: {text: state.over || "epoch"}, ...(last > first ? {range: [first - 0.03 * last, 1.03 * last]} : {}), ...(last < 8 && !state.over ? {dtick: 1} : {})},
    y: ranges[panel], title: data.quantities[panel].title + (few && !panel ? " (training: dashed)" : ""),
  }));
  const legendHeight = all.length > 1 ? legendRows(traces, width) + 25 : 0;
  return [traces, layout(height + legendHeight + 90, {...axes, margin: {...MARGIN, b: legendHeight + 50}, legend: BELOW}), all];
}

// The keys whose values are chosen: seeds and folds only repeat.
const effective = data => data.keys.filter(key => key.labels.length > 1 && !key.repeated).slice(0, MOST_AXES);

// The traces of dots over an axis with these ends. A dot outside lies at the end, as a triangle.
function cloud({x, y, hovertext, ...common}, size, [low, high] = [-Infinity, Infinity]) {
  const part = (within, marker, more) => {
    const chosen = y.map((_, at) => at).filter(at => within(y[at])), pick = values => chosen.map(at => values[at]);
    return {...common, x: pick(x), y: pick(y), hovertext: pick(hovertext), hoverinfo: "text", type: "scatter", mode: "markers", marker: {color: colour("faint"), size, ...marker}, ...more};
  };
  const far = (name, symbol, at, within) => {
    const trace = part(within, {color: COLOURS[1], size: size + 3, symbol}, {name, legendgroup: name, showlegend: true});
    return {...trace, y: trace.y.map(() => at)};
  };
  const inset = 0.02 * (high - low);
  const outside = [far("below the axis", "triangle-down", low + inset, value => value < low), far("above the axis", "triangle-up", high - inset, value => value > high)];
  return [part(value => value >= low && value <= high), ...outside.filter(trace => trace.x.length)];
}

function slices(data, state, width) {
  const keys = effective(data), clouds = [], bands = [], traces = [];
  const columns = Math.max(1, Math.min(keys.length, 3, Math.floor(width / 260)));
  const gap = Math.max(0.06, 50 / width), size = (width - 75) * (1 / columns - gap * Math.min(1, (columns - 1) / 2));  // about that of the narrowest panel
  const xs = keys.map((key, panel) => {
    const axes = {xaxis: "x" + (panel ? panel + 1 : ""), yaxis: "y" + (panel ? panel + 1 : "")};
    const log = key.scale === "log", place = log ? Math.log10 : value => value, back = log ? value => 10 ** value : value => value;
    const groups = key.labels.map((_, number) => data.trials.map((_, at) => at).filter(at => key.of[at] === number && data.trials[at].value !== null));
    const labelled = key.at.map(place), steps = labelled.slice(1).map((end, number) => end - labelled[number]), room = Math.min(...steps);
    const dots = {x: [], y: [], hovertext: []}, levels = [], centres = [];
    groups.forEach((group, number) => {
      group.forEach((at, order) => {
        dots.x.push(key.numbers ? key.numbers[at] : back(labelled[number] + (group.length > 1 ? 0.36 * room * scatter(order) : 0)));
        dots.y.push(data.trials[at].value); dots.hovertext.push(point(data, data.trials[at]));
      });
      if (!group.length || !key.levels[number]) return;
      levels.push(key.levels[number]); centres.push(key.numbers ? back(mean(group.map(at => place(key.numbers[at])))) : key.at[number]);
    });
    clouds.push({...axes, ...dots, opacity: 0.7, showlegend: false});
    LEVELS.forEach(([name, style], level) => {
      const texts = levels.map(values => `${name}: <b>${shown(values[level], data.monitor.fraction)}</b>`);
      traces.push({...axes, ...style, x: centres, y: levels.map(values => values[level]), type: "scatter", line: {color: COLOURS[0], ...style.line}, name, legendgroup: name, hoverinfo: "text", hovertext: texts, showlegend: panel === 0});
    });
    const fit = data.fits?.[key.name];
    if (fit) {
      const texts = fit.values.map((value, at) => `fitted: <b>${shown(value, data.monitor.fraction)}</b> (${shown(fit.low[at], data.monitor.fraction)} to ${shown(fit.high[at], data.monitor.fraction)})`);
      bands.push({...axes, x: [...fit.at, ...fit.at.toReversed()], y: [...fit.high, ...fit.low.toReversed()], type: "scatter", mode: "lines", line: {width: 0}, fill: "toself", fillcolor: translucent(COLOURS[1], 0.2), hoverinfo: "skip", legendgroup: "fitted", showlegend: false});
      bands.push({...axes, x: fit.at, y: fit.values, type: "scatter", mode: "lines", line: {color: COLOURS[1], width: 1.5}, name: "fitted", legendgroup: "fitted", hoverinfo: "text", hovertext: texts, showlegend: !bands.some(each => each.showlegend)});
    }
    const span = labelled.at(-1) - labelled[0] + mean(steps), pixels = labelled.map(place => (place - labelled[0]) / span * size);
    const labels = {tickvals: key.at, ...tickTexts(key.labels.map(plain), pixels), range: [labelled[0] - mean(steps) / 2, labelled.at(-1) + mean(steps) / 2]};
    return {type: log ? "log" : "linear", ...(key.numbers ? log && {tickformat: FULL, nticks: 3} : labels)};
  });
  const values = known(data.trials.map(trial => trial.value));  // the best is the first
  const common = range(values, [...values.slice(0, 1), ...traces.flatMap(({y}) => y)]), named = new Set();
  // On the axis of a strong key, the lines of a weak one are flat.
  const ends = keys.map((_, panel) => {
    const drawn = [...traces, ...bands.filter(each => !each.fill)].filter(each => each.xaxis === clouds[panel].xaxis).flatMap(({y}) => y);
    return keys.length > 1 && drawn.length && Math.max(...drawn) - Math.min(...drawn) < (common[1] - common[0]) / 3 ? range([], drawn) : common;
  });
  const own = panel => ends[panel] !== common, first = ends.indexOf(common);
  const dotted = clouds.flatMap((each, panel) => cloud(each, 5, ends[panel]));
  for (const trace of dotted.filter(each => each.showlegend)) {  // once for all panels
    trace.showlegend = !named.has(trace.name);
    named.add(trace.name);
  }
  const tall = Math.max(0, ...xs.map(({tickangle, ticktext}) => tickangle === -90 ? widest(ticktext) - 16 : 0));  // upright labels keep off the panel below
  const told = keys.some((_, panel) => own(panel));  // no panel has the ticks of the panel on its left
  const [axes, height] = panels(keys.length, columns, 210, told ? gap : 0.06, panel => ({
    x: {...xs[panel], title: {text: plain(keys[panel].name) + (own(panel) ? " (own scale)" : "")}},
    y: {range: ends[panel], ...(data.monitor.fraction ? {tickformat: "~%"} : {}), ...(own(panel) || panel === first ? {} : {matches: "y" + (first ? first + 1 : "")}), ...(panel % columns ? {showticklabels: told} : {title: {text: plain(data.monitor.name)}})},
  }), GAP + tall);
  return [[...dotted, ...bands, ...traces], layout(height + 100 + tall, {...axes, legend: ABOVE})];
}

const point = (data, trial) => rows(`${data.noun} ${trial.name}`, settings(data, trial), `${plain(data.monitor.name)}: <b>${shown(trial.value, data.monitor.fraction)}</b>`);

function history(data, state, width) {
  const trials = data.trials.filter(trial => trial.value !== null).sort((a, b) => a.name - b.name), best = [];
  for (const {value} of trials) best.push(best.length === 0 || (value > best.at(-1)) === data.monitor.higher ? value : best.at(-1));
  const x = trials.map(trial => Number(trial.name)), y = trials.map(trial => trial.value), ends = range(y, best.slice(-1));
  const [near, ...far] = cloud({x, y, hovertext: trials.map(trial => point(data, trial)), name: "a trial"}, 6, ends);
  const line = {x, y: best, type: "scatter", mode: "lines", line: {color: COLOURS[0], shape: "hv", width: 2}, name: "best so far", hoverinfo: "skip"};
  return [[near, line, ...far], layout(340, {xaxis: axis({title: {text: "trial"}}), yaxis: axis({title: {text: plain(data.monitor.name)}, range: ends, ...(data.monitor.fraction ? {tickformat: "~%"} : {})}), legend: ABOVE})];
}

function heat(data, state, width) {
  const {ends} = data.heat, {name, fraction, higher} = data.monitor, turned = width < 640 && data.heat.x.labels.length > data.heat.y.labels.length;
  const [x, y] = turned ? [data.heat.y, data.heat.x] : [data.heat.x, data.heat.y];
  const values = turned ? y.labels.map((_, at) => data.heat.best.map(row => row[at])) : data.heat.best;
  const place = labels => labels.map((_, number) => number), most = texts => Math.max(...texts.map(text => text.split("<br>").length));
  const texts = (labels, letters) => {  // a line may end within a range or a list, but not within a word
    const pieces = labels.map(label => label.split(/(?<=[–, ])/)), most = Math.min(22, Math.max(letters, ...pieces.flat().map(piece => piece.length)));
    return labels.map((label, at) => inLines(label.length > most ? pieces[at].join(" ") : label, most));
  };
  const beside = texts(y.labels, width < 640 ? 9 : 22), left = widest(beside) + 32, right = 16, count = x.labels.length;
  // Where cells are narrow, their numbers are short and small; where that is too wide, the chart is wider than the page.
  const forms = [value => shown(value, fraction), ...[2, 1].map(digits => value => fraction ? (100 * value).toFixed(digits) : String(Number(value.toPrecision(digits + 2))))];
  const writeAll = form => values.map(row => row.map(value => value === null ? "" : form(value))), sizeIn = (room, form) => Math.min(13, Math.floor(13 * (room - 4) / widest(writeAll(form).flat(), 13)));
  const fitting = (width - left - right) / count, form = forms.find(each => sizeIn(fitting, each) >= LEAST) ?? forms.at(-1), written = writeAll(form), named = writeAll(forms[0]);
  const flat = texts(x.labels, Math.min(22, Math.max(9, Math.floor(fitting / 7)))), upright = widest(flat) + 4 > fitting, below = upright ? texts(x.labels, 22) : flat;
  const across = Math.max(fitting, widest(written.flat(), LEAST) + 4, upright ? 15 * most(below) : 0);
  // Plotly's own dark grey is hard to read on the middle greens. Where Viridis is brighter than this, black has more contrast than white.
  const share = value => ends[1] > ends[0] ? (value - ends[0]) / (ends[1] - ends[0]) : 0.5, bright = value => (higher ? share(value) : 1 - share(value)) > 0.42, cells = values.flatMap((row, at) => row.map((value, number) => ({value, x: number, y: at, text: written[at][number]})));
  const inks = {type: "scatter", mode: "text", x: cells.map(cell => cell.x), y: cells.map(cell => cell.y), text: cells.map(cell => cell.text), textfont: {size: sizeIn(across, form), color: cells.map(cell => bright(cell.value) ? "#000" : "#fff")}, hoverinfo: "skip", showlegend: false};
  const unit = form === forms[0] || !fraction ? [] : [{text: `${plain(name)} in %`, x: 0, xref: "paper", xanchor: "left", y: 1, yref: "paper", yanchor: "bottom", showarrow: false}];
  return [[{
    type: "heatmap", z: values, x: place(x.labels), y: place(y.labels), zmin: ends[0], zmax: ends[1], colorscale: "Viridis", reversescale: !higher, showscale: false, xgap: 1, ygap: 1,
    text: named, hoverinfo: "text",
    hovertext: named.map((row, at) => row.map((text, number) => rows(`${y.name} = ${y.labels[at]}`, [`${x.name} = ${x.labels[number]}`], `${plain(name)}: <b>${text}</b>`))),
  }, inks], layout(84 + (upright ? widest(below) : 16 * most(below)) + Math.max(48, 8 + 16 * most(beside)) * y.labels.length, {
    xaxis: axis({title: {text: plain(x.name)}, tickvals: place(x.labels), ticktext: below, tickangle: upright ? -90 : 0, showgrid: false}),
    yaxis: axis({title: {text: plain(y.name)}, tickvals: place(y.labels), ticktext: beside, showgrid: false, autorange: "reversed"}), dragmode: false, annotations: unit, width: Math.max(width, left + across * count + right),
  })];
}

// Rows of dots with a mean, its interval and, in a confirmation, what the sweep promised. On narrow pages, labels are above their rows.
// The ends of an axis. Shares end at 0% and 100%, with room for half a dot.
function around(values, fraction) {
  const low = Math.min(...values), high = Math.max(...values), beside = 0.05 * (high - low || high || 1);
  return clipped([low - beside, high + beside], fraction);
}
const clipped = ([low, high], fraction) => fraction ? [Math.max(low, -0.02), Math.min(high, 1.02)] : [low, high];

function intervals(data, state, width) {
  const {name, fraction, value, mean: told, samples, ends: fitted} = data.intervals, narrow = width < 640;
  const labels = samples.map(({label}) => wrapped(label, narrow ? Math.max(8, Math.floor(width / 7.5)) : 44)), most = Math.max(...labels.map(lines => lines.length));
  const tall = (narrow ? 44 : 30) + 16 * most, below = narrow ? 0.5 - 20 / tall : 0;  // of a row: from its middle to its dots
  const common = {type: "scatter", mode: "markers", hoverinfo: "text"}, numbered = samples.map((sample, row) => ({...sample, row: row + below}));
  const within = x => !fitted || (x >= fitted[0] && x <= fitted[1]);
  const means = numbered.filter(({mean}) => mean !== null && within(mean)), far = numbered.filter(({mean}) => mean !== null && !within(mean)), promised = numbered.filter(sample => sample.promised !== null);
  const dots = numbered.flatMap(({values, row}) => values.map((x, at) => ({x, y: row + (narrow ? 8 : 24) / tall * scatter(at)}))).filter(({x}) => within(x));
  const ends = sample => (sample.interval ?? [sample.mean, sample.mean]);
  const traces = [
    {...common, x: dots.map(({x}) => x), y: dots.map(({y}) => y), marker: {color: colour("faint"), size: 5, opacity: 0.7}, name: plain(value), hovertext: dots.map(({x}) => `${plain(value)}: ${shown(x, fraction)}`), showlegend: true},
    {
      ...common, x: means.map(sample => sample.mean), y: means.map(({row}) => row), marker: {color: COLOURS[0], size: 9}, name: plain(told), showlegend: true,
      error_x: {array: means.map(sample => ends(sample)[1] - sample.mean), arrayminus: means.map(sample => sample.mean - ends(sample)[0]), color: COLOURS[0], thickness: 2, width: 4},
      hovertext: means.map(sample => `${inLines(sample.label, 60)}<br>mean: <b>${shown(sample.mean, fraction)}</b>, 95% interval: ${ends(sample).map(end => shown(end, fraction)).join(" to ")}`),
    },
  ];
  if (promised.length) traces.push({...common, x: promised.map(sample => sample.promised), y: promised.map(({row}) => row), marker: {color: COLOURS[1], symbol: "diamond-open", size: 9, line: {width: 2}}, name: PROMISED, hovertext: promised.map(sample => `${PROMISED}: ${shown(sample.promised, fraction)}`), showlegend: true});
  for (const [symbol, end, side] of [["triangle-left", 0, "right"], ["triangle-right", 1, "left"]]) {
    const some = far.filter(({mean}) => end ? mean > fitted[1] : mean < fitted[0]);
    if (some.length) traces.push({...common, mode: "markers+text", x: some.map(() => fitted[end] + (end ? -0.012 : 0.012) * (fitted[1] - fitted[0])), y: some.map(({row}) => row), marker: {color: COLOURS[0], symbol, size: 9}, text: some.map(({mean}) => ` ${shown(mean, fraction)} `), textposition: "middle " + side, textfont: {color: colour("faint")}, hovertext: some.map(({label, mean}) => `${inLines(label, 60)}<br>mean: <b>${shown(mean, fraction)}</b>`), showlegend: false});
  }
  const under = legendRows(traces, width) + 60, text = lines => lines.map(escaped).join("<br>");
  return [traces, layout(tall * samples.length + under + MARGIN.t, {
    xaxis: axis({title: {text: plain(name)}, range: fitted ? clipped(fitted, fraction) : around([...dots.map(({x}) => x), ...means.flatMap(ends), ...promised.map(sample => sample.promised)], fraction), ...(fraction ? {tickformat: "~%"} : {})}),
    yaxis: {...axis({}), range: [samples.length - 0.5, -0.5], showgrid: false, tickvals: narrow ? [] : samples.map((_, row) => row), ticktext: labels.map(text)},
    annotations: narrow ? labels.map((lines, row) => ({x: 0, xref: "paper", xanchor: "left", y: row - 0.45, yanchor: "top", align: "left", text: text(lines), showarrow: false, font: {size: 12}})) : [],
    margin: {...MARGIN, b: under}, legend: BELOW, dragmode: false,  // the tool bar lies in the upper margin
  })];
}

// Where a trial lies on an axis, from 0 to 1, and the ticks of the axis: pairs of a place and a text.
// Values outside of the ends lie at the end.
function scale(values, log, text, low = Math.min(...values), high = Math.max(...values)) {
  const place = log ? Math.log10 : value => value, ends = [low, high].map(place);
  const at = value => ends[0] === ends[1] ? 0.5 : Math.min(1, Math.max(0, (place(value) - ends[0]) / (ends[1] - ends[0])));
  const ticks = [0, 0.25, 0.5, 0.75, 1].map(share => [share, ends[0] + share * (ends[1] - ends[0])]).map(([share, value]) => [share, log ? 10 ** value : value]);
  return {at, ticks: ticks.map(([share, value]) => [at(value), text(value, share)])};
}

function parallel(data, state, width) {
  const trials = data.trials.map((trial, at) => ({...trial, at})).filter(trial => trial.value !== null);
  const beside = (number, count) => 0.04 + 0.92 * number / (count - 1);
  const axes = effective(data).map(key => {
    if (key.numbers) {
      const {at, ticks} = scale(key.numbers, key.scale === "log", value => String(Number(value.toPrecision(2))));
      return {title: key.name, ticks, place: trial => at(key.numbers[trial.at])};
    }
    const count = key.labels.length, every = Math.ceil(count / MOST_COLOURS);
    return {
      title: key.name, ticks: key.labels.map((label, number) => [beside(number, count), label]).filter((_, number) => number % every === 0),
      place: trial => beside(key.of[trial.at], count) + Math.min(0.08, 0.2 / count) * scatter(trial.at),
    };
  });
  const values = trials.map(trial => trial.value), [low, high] = data.monitor.ends;
  const valued = scale(values, !data.monitor.fraction && wide(values), (value, share) => {  // a fraction has no orders of magnitude to compare
    const sign = share === 0 && Math.min(...values) < low ? "≤ " : share === 1 && Math.max(...values) > high ? "≥ " : "";
    return sign + (data.monitor.fraction ? Number((100 * value).toPrecision(3)) + "%" : shown(value));
  }, low, high);
  axes.push({title: data.monitor.name, ticks: valued.ticks, place: trial => valued.at(trial.value)});
  const classes = Math.min(GRADIENTS.light.length, trials.length), traces = [];
  for (let number = classes - 1; number >= 0; number--) {  // the best are first, and drawn last
    const some = trials.slice(Math.round(number * trials.length / classes), Math.round((number + 1) * trials.length / classes));
    for (const chosen of [false, true]) {
      const trace = {x: [], y: [], customdata: [], hovertext: []}, members = some.filter(trial => (state.chosen?.has(trial.at) ?? true) === chosen);
      for (const trial of members) {
        axes.forEach((axis, place) => {
          trace.x.push(place); trace.y.push(axis.place(trial)); trace.customdata.push(trial.at); trace.hovertext.push(point(data, trial));
        });
        for (const column of Object.values(trace)) column.push(null);
      }
      const ends = [some.at(-1), some[0]].map(trial => shown(trial.value, data.monitor.fraction));
      const shade = chosen ? gradient(1 - number / Math.max(1, classes - 1)) : colour("faint");
      traces.push({
        ...trace, type: "scatter", mode: "lines+markers", line: {color: shade, width: number ? 1 : 1.6}, marker: {size: 3}, opacity: chosen ? 0.8 : 0.12, hoverinfo: chosen ? "text" : "skip",
        name: [...new Set(ends)].join(" to "), legendgroup: String(number), showlegend: chosen && members.length > 0, selected: {marker: {opacity: 1}}, unselected: {marker: {opacity: 1}},
      });
    }
  }
  const posts = axes.flatMap((_, place) => [[place, 0], [place, 1], [null, null]]), ink = {color: colour("ink"), size: 11};
  traces.push({x: posts.map(([x]) => x), y: posts.map(([, y]) => y), type: "scatter", mode: "lines", line: {color: colour("faint"), width: 1}, hoverinfo: "skip", showlegend: false});
  const headed = axis => axis.title.split(".").at(-1), annotations = axes.flatMap((axis, x) => [
    {x, y: 1.08, text: `<b>${plain(headed(axis))}</b>`, showarrow: false, font: ink},
    ...axis.ticks.map(([y, text]) => ({x, y, text: plain(text), xanchor: "right", xshift: -3, showarrow: false, font: ink, bgcolor: translucent(colour("card"), 0.7), borderpad: 1})),
  ]);
  // The titles and the labels of the first axis are never cut.
  const half = axis => widest([plain(headed(axis))], "bold 11") / 2 + 4, apart = Math.max(78, ...axes.slice(1).map((axis, at) => half(axes[at]) + half(axis)));
  const left = Math.max(39, half(axes[0]), widest(axes[0].ticks.map(([, text]) => plain(text)), 11) + 8), right = Math.max(31, half(axes.at(-1)));
  const steps = Math.max(1, axes.length - 1), whole = Math.max(width, left + apart * steps + right), step = (whole - left - right) / steps;
  const fixed = {visible: false}, below = legendRows(traces, width) + 20;
  return [traces, layout(380 + below, {
    annotations, width: whole, dragmode: touch ? false : "select", xaxis: {...fixed, range: [-left / step, axes.length - 1 + right / step]}, yaxis: {...fixed, range: [-0.04, 1.15]},
    margin: {l: 0, r: 0, t: 10, b: below}, legend: BELOW, newselection: {line: {color: colour("ink")}},
  })];
}

// The scale that was chosen last, on this page or another one. A private window, or a page that may keep nothing, forgets.
const SCALES = ["linear", "log", "logit"], KEPT_SCALE = "kindling.scale";
function remembered() {
  try { return SCALES.find(scale => scale === localStorage.getItem(KEPT_SCALE)); } catch { return undefined; }
}
function remember(scale) {
  try { localStorage.setItem(KEPT_SCALE, scale); } catch { /* nothing is kept */ }
}

// --- the page ---------------------------------------------------------------------------------------

function controls(data, state, changed) {
  const bar = document.createElement("div");
  bar.className = "controls";
  const select = (title, options, chosen, change) => {
    if (options.length < 2) return;
    const label = document.createElement("label"), list = document.createElement("select");
    for (const [value, text] of options) list.add(new Option(text, value, false, value === chosen));
    list.name = title;
    list.addEventListener("change", () => { change(list.value); changed(); });
    label.append(title + " ", list);
    bar.append(label);
  };
  const repeated = data.keys.filter(key => key.repeated), grouped = data.trials.filter(trial => trial.group !== null);
  const several = new Set(grouped.map(trial => trial.group)).size < grouped.length;
  if (several) state.means ??= data.trials.length > MANY;
  const keys = data.keys.filter(key => key.labels.length > 1 && key.labels.length <= MOST_COLOURS && !(state.means && key.repeated)).map(key => [key.name, key.name]);
  const few = data.trials.length <= FEW;
  if (few) keys.unshift(["", data.noun]);
  if (!keys.some(([key]) => key === state.key)) state.key = keys.length ? keys[0][0] : null;  // at first, or after a change of the data
  if (data.trials.length > 1) select("colour by", keys, state.key, value => { state.key = value; });
  const over = repeated.map(key => key.name.split(".").at(-1) + "s").join(" and ");
  if (several) select("lines", [["", `each ${data.noun}`], ["means", `mean ± deviation over ${over}`]], state.means ? "means" : "", value => { state.means = value !== ""; });
  select("scale", SCALES.map(name => [name, name]), state.scale, value => { state.scale = value; remember(value); });
  if (data.over) {
    select("over", [["", "epoch"], ...data.over.map(name => [name, name])], state.over, value => { state.over = value; });
    select("smoothing", SMOOTHING, state.smooth, value => { state.smooth = value; });
  }
  return bar;
}

// The line of a run or trial as shapes: the only change that does not draw everything anew.
function highlighted(chart, number) {
  const traces = new Map();
  for (const trace of chart.data.filter(each => each.customdata?.includes(number) && each.mode.startsWith("lines"))) if (!traces.has(trace.yaxis)) traces.set(trace.yaxis, trace);
  return [...traces.values()].map(trace => {
    const points = trace.x.flatMap((x, at) => trace.customdata[at] === number && trace.y[at] !== null ? [`${x},${trace.y[at]}`] : []);
    return {type: "path", path: "M" + points.join("L"), xref: trace.xaxis ?? "x", yref: trace.yaxis ?? "y", line: {color: colour("ink"), width: 2}};
  });
}

const CHARTS = {curves, slices, history, parallel, heat, intervals};
const redraws = new Map();  // of each figure with a chart: a function

function show(figure) {
  const read = () => figure.chartData ?? JSON.parse(document.getElementById(figure.dataset.source).textContent);
  // A page may set and read the data and the controls of a figure.
  const chart = document.createElement("div"), state = figure.chartState = {scale: remembered() ?? "linear", means: null, key: null, over: "", smooth: "", ...figure.chartState};
  let data = read(), bar = null, drawn = {};  // the last state, and the range of each axis before a zoom
  const part = document.createElement("span");
  const draw = () => {
    figure.querySelector("figcaption")?.prepend(part);  // anew: a page may have changed the caption
    part.textContent = data.entries > data.trials?.length ? `${data.trials.length.toLocaleString("en")} of ${data.entries.toLocaleString("en")} ${data.noun}s are drawn. ` : "";
    if (!chart.clientWidth) return;  // a hidden figure is drawn when it is shown
    const [traces, plan] = CHARTS[figure.dataset.chart](data, state, chart.clientWidth), before = drawn, uirevision = JSON.stringify(state);
    drawn = {uirevision};
    for (const [name, part] of Object.entries(plan)) if (part?.range) {  // Plotly keeps a zoom while the range stays
      const zoomed = before.uirevision === uirevision && String(chart.layout[name]?.range) !== String(before[name]);
      if (zoomed) part.range = before[name];
      drawn[name] = [...part.range];
    }
    Plotly.react(chart, traces, {...plan, uirevision}, {displaylogo: false, showSendToCloud: false, displayModeBar: touch || chart.clientWidth < 640 ? false : "hover", modeBarButtonsToRemove: ["toImage", "select2d", "lasso2d", "autoScale2d"]});
  };
  chart.className = "chart";
  figure.hidden = false;
  figure.prepend(chart);
  const control = () => {  // an open list stays open
    const next = controls(data, state, () => { control(); draw(); }), focused = document.activeElement;
    if (bar?.isEqualNode(next)) return;
    const place = bar?.contains(focused) ? focused.name : null;
    bar?.remove();
    figure.prepend(bar = next);
    next.querySelector(`[name="${place}"]`)?.focus();
  };
  if (figure.dataset.chart === "curves") control();
  draw();
  figure.querySelector(".still")?.remove();
  redraws.set(figure, () => {
    data = read();
    if (bar) control();
    draw();
  });
  if (["curves", "parallel"].includes(figure.dataset.chart)) {
    chart.on("plotly_hover", event => { if (data.trials.length > 1) Plotly.relayout(chart, {shapes: highlighted(chart, event.points[0].customdata)}); });
    chart.on("plotly_unhover", () => Plotly.relayout(chart, {shapes: []}));
  }
  if (figure.dataset.chart === "parallel") {
    chart.on("plotly_selected", event => {
      if (!event?.points.length) return;
      state.chosen = new Set(event.points.map(each => each.customdata));
      draw();
    });
    chart.on("plotly_deselect", () => { state.chosen = null; draw(); });
  }
  dark.addEventListener("change", draw);
  let width = chart.clientWidth;
  new ResizeObserver(() => {
    if (chart.clientWidth === width) return;
    width = chart.clientWidth;
    draw();
  }).observe(figure);
}

const nonce = document.currentScript.nonce;
let library = null;

async function load() {
  const bytes = Uint8Array.from(atob(document.getElementById("plotly").textContent), letter => letter.charCodeAt(0));
  const script = document.createElement("script");
  script.nonce = nonce;
  script.textContent = await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  document.head.append(script);
}

// Draws the charts of all figures; those that are drawn already get the page's data of now.
async function showAll() {
  if (!document.querySelector("[data-chart]") || !window.DecompressionStream) return;
  await (library ??= load());
  for (const figure of document.querySelectorAll("[data-chart]")) (redraws.get(figure) ?? show)(figure);
}

showAll();
