// The parts of the page that PlanHtml writes (plan_html.h): its style, its script, the figures of seconds and of the
// search's front, and the table of changes.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "engine/compile/program/program.h"
#include "engine/plan/report/plan_html.h"
#include "engine/plan/search/search.h"
#include "engine/plan/time/prediction.h"
#include "nlohmann/json_fwd.hpp"

namespace shale {

// Colors --c0, --c1, ... belong to the categories in the order of BufferCategory: state is blue, gradients are red,
// gathered parameters are violet, activations are green, workspaces are yellow and orange, caches are teal, and the
// rest is gray.
inline constexpr char kPlanStyle[] = R"(
:root { color-scheme: light dark; --page: #ffffff; --ink: #1b1f24; --quiet: #5b6470; --line: #d5dae0; --mark: #b3123c;
  --c0: #1f5fa8; --c1: #143c69; --c2: #4b8fd0; --c3: #8dbce8; --c4: #c2452d; --c5: #ea9a86; --c6: #8256b5;
  --c7: #b79fd9; --c8: #2c8049; --c9: #82bf90; --c10: #d9a514; --c11: #b5651d; --c12: #efd27a; --c13: #8a939e;
  --c14: #bcc3cb; --c15: #2a8c82; }
@media (prefers-color-scheme: dark) {
  :root { --page: #14171b; --ink: #e6e9ed; --quiet: #9aa4b0; --line: #343b44; --mark: #ff7d9a;
    --c0: #3f83d0; --c1: #2a5c99; --c2: #6ba6e0; --c3: #a3cbf0; --c4: #d9583f; --c5: #f0a592; --c6: #a27dd2;
    --c7: #c7b0e8; --c8: #3f9c60; --c9: #8fce9e; --c10: #e0b02e; --c11: #c77b35; --c12: #f2da90; --c13: #818b97;
    --c14: #b0b8c2; --c15: #46aca1; } }
* { box-sizing: border-box; }
body { background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; max-width: 76rem;
  margin: 0 auto; padding: 1.5rem 1rem 4rem; }
h1 { font-size: 1.5rem; margin: 0 0 .25rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
p { margin: .25rem 0; max-width: 60rem; } .quiet { color: var(--quiet); }
figure { margin: 1rem 0 0; } svg { display: block; width: 100%; height: auto; }
svg text { fill: var(--quiet); font: 12px system-ui, sans-serif; } svg .peak { fill: var(--mark); font-weight: 600; }
.slider { outline-offset: 3px; } .slider:focus-visible { outline: 2px solid var(--mark); }
.grid { stroke: var(--line); } .loop { fill: var(--line); }
.limit { stroke: var(--ink); stroke-dasharray: 5 4; } .mark { stroke: var(--mark); stroke-width: 1.5; }
.measured { fill: none; stroke: var(--ink); }
.cursor { stroke: var(--ink); stroke-width: 1.5; visibility: hidden; }
.moment { min-height: 10.5rem; border-left: 3px solid var(--line); padding-left: .75rem; margin-top: .75rem; }
.moment ol, .moment ul { margin: .25rem 0; padding-left: 1.5rem; }
.legend { display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; padding: 0; margin: .5rem 0 0; list-style: none; }
.swatch { display: inline-block; width: .8em; height: .8em; margin-right: .4em; border-radius: 2px; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .75rem .2rem 0; text-align: left; border-bottom: 1px solid var(--line); }
th, td { vertical-align: bottom; }
td { white-space: nowrap; } th { font-weight: 600; } .n { text-align: right; }
tr.peak td { color: var(--mark); font-weight: 600; }
@media print {
  :root { --page: #ffffff; --ink: #000000; --quiet: #444444; --line: #bbbbbb; --mark: #b3123c; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  .screen, .cursor { display: none; } .scroll { overflow: visible; } body { max-width: none; padding: 0; }
  table { font-size: 7px; } th, td { padding-right: .4rem; } tr, figure { break-inside: avoid; } }
)";

// Reads the element `data`: {columns: [[largest, begin, end, total, [category bytes], [buffer]]], categories: [name],
// buffers: [[name, bytes, category]], instructions: [text of a column's largest], left, width, peak: column}, and with
// seconds also times, as AddTimes has it. The figures of bytes and of seconds are sliders: a pointer or the keys
// choose a column.
inline constexpr char kPlanScript[] = R"(
'use strict';
const plan = JSON.parse(document.getElementById('data').textContent);
function bytes(n) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB', 'EiB'];
  let u = 0;
  while (n >= 1000 && u + 1 < units.length) { n /= 1024; ++u; }
  const text = u === 0 || n >= 99.95 ? n.toFixed(0) : n >= 9.995 ? n.toFixed(1) : n.toFixed(2).replace(/0$/, '');
  return text + ' ' + units[u];
}
function seconds(n) {
  const [scale, unit] = n >= 1 ? [1, ' s'] : n >= 1e-3 ? [1e3, ' ms'] : [1e6, ' us'];
  return Number((n * scale).toPrecision(3)) + unit;
}
function line(tag, text, parent) {
  const element = document.createElement(tag);
  element.textContent = text;
  parent.appendChild(element);
  return element;
}
function figure(name, view, describe) {
  const chart = document.getElementById(name), cursor = document.getElementById(name + '-cursor');
  const moment = document.getElementById(name + '-moment');
  if (!chart || !view) return;
  let at = view.peak;
  function show(column) {
    at = Math.max(0, Math.min(view.columns.length - 1, column));
    const x = view.left + (at + 0.5) / view.columns.length * view.width;
    cursor.setAttribute('x1', x);
    cursor.setAttribute('x2', x);
    cursor.style.visibility = 'visible';
    moment.textContent = '';
    chart.setAttribute('aria-valuenow', at);
    chart.setAttribute('aria-valuetext', describe(at, at === view.peak ? ': the peak' : '', moment));
  }
  function columnOf(event) {
    const box = chart.getBoundingClientRect();
    const x = (event.clientX - box.left) / box.width * chart.viewBox.baseVal.width;
    return Math.floor((x - view.left) / view.width * view.columns.length);
  }
  chart.addEventListener('pointermove', event => show(columnOf(event)));
  chart.addEventListener('pointerdown', event => show(columnOf(event)));
  chart.addEventListener('focus', () => show(at));
  chart.addEventListener('keydown', event => {
    const page = Math.max(1, Math.round(view.columns.length / 20));
    const steps = {ArrowLeft: at - 1, ArrowRight: at + 1, PageUp: at - page, PageDown: at + page, Home: 0,
                   End: view.columns.length - 1, p: view.peak};
    if (event.ctrlKey || event.metaKey || event.altKey || !(event.key in steps)) return;
    event.preventDefault();
    show(steps[event.key]);
  });
  show(at);
}
figure('chart', plan, (at, peak, moment) => {
  const [largest, begin, end, total, live, buffers] = plan.columns[at];
  line('strong', plan.instructions[at] + peak, moment);
  if (end - begin > 1) line('p', 'The most of instructions ' + begin + ' to ' + (end - 1) + '.', moment);
  const parts = plan.categories.map((name, c) => [live[c], name]).filter(part => part[0] > 0);
  parts.sort((a, b) => b[0] - a[0]);
  line('p', bytes(total) + ': ' + parts.map(part => part[1] + ' ' + bytes(part[0])).join(', '), moment);
  const list = line('ol', '', moment);
  for (const b of buffers) {
    const [name, size, category] = plan.buffers[b];
    line('li', bytes(size) + '  ' + name + ', ' + category, list);
  }
  return plan.instructions[at] + ', ' + bytes(total);
});
figure('times', plan.times, (at, peak, moment) => {
  const times = plan.times, [total, predicted, measured] = times.columns[at];
  const when = seconds((at + 0.5) / times.columns.length * times.seconds);
  line('strong', when + peak, moment);
  line('p', bytes(total), moment);
  const list = line('ul', '', moment);
  const name = number => number < 0 ? 'idle' : times.names[number];
  const streams = times.streams.map((stream, s) =>
    stream + ': ' + name(predicted[s]) + (measured ? '; measured: ' + name(measured[s]) : ''));
  for (const stream of streams) line('li', stream, list);
  return [when, bytes(total), ...streams].join(', ');
});
)";

// Returns a figure in HTML: the live bytes of the arena and below them the streams, over the predicted seconds of a
// step. What lies on the critical path has a color of its own. A measured step, which may be null, is on the same axis:
// each stream then has a second row, and a table compares their seconds. The size is bounded, whatever the length of
// the program.
std::string TimeFigure(const StepProgram& program, const Prediction& prediction, const MeasuredStep* measured);
// Adds to the data of the script what this figure says at its moments: `times`: {columns: [[live bytes, [index into
// names of what each stream runs, or -1], [the same of the measured step, if there is one]]], streams: [name], names:
// [unit and instruction], seconds, left, width, peak: column}. Adds nothing if there is no figure.
void AddTimes(const StepProgram& program, const Prediction& prediction, const MeasuredStep* measured,
              nlohmann::json& data);

// Returns a figure in HTML of the seconds of the fastest ways over the bytes that they need, with the job as it is
// written and the budget, and a table of these ways.
std::string FrontFigure(const SearchResult& search);

// Returns a table of what each change would take, and empty text if there are none.
std::string ChangesTable(const std::vector<ChangedJob>& changes);

std::string Escaped(absl::string_view text);

// Returns a heading and the beginning of a table, up to the cells of its head. A wide table scrolls, also by keyboard.
std::string BeginTable(absl::string_view title);

}  // namespace shale
