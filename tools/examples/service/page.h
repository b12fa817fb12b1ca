// The page that WebPage serves. Its script reads /jobs once a second, and draws.
#pragma once

namespace service {

// Texts of jobs are set as text, never as HTML.
inline constexpr char kPage[] = R"(<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Training jobs</title>
<style>
:root { color-scheme: light dark; --ink: #1b1f24; --quiet: #5b6470; --line: #d5dae0; --mark: #1f5fa8; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ed; --quiet: #9aa4b0; --line: #343b44; --mark: #6ba6e0; } }
body { color: var(--ink); font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 0 auto; padding: 1.5rem; }
h1 { font-size: 1.4rem; } .quiet { color: var(--quiet); } .scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .4rem .75rem .4rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line); }
svg { width: 240px; height: 64px; } polyline { fill: none; stroke: var(--mark); stroke-width: 1.5; }
</style>
<h1>Training jobs</h1>
<p class="quiet" id="note" role="status">Loading</p>
<div class="scroll" tabindex="0" role="region" aria-label="Jobs">
<table><thead><tr><th>Job<th>State<th>Step<th>Loss<th>Curve<th>Threads<th>Memory<th>Plan or error</thead>
<tbody id="jobs"></tbody></table></div>
<script>
"use strict";
const WIDTH = 240, HEIGHT = 64, SVG = "http://www.w3.org/2000/svg";

function cell(text) {
  const td = document.createElement("td");
  td.textContent = text;
  return td;
}

function curve(job) {
  const td = document.createElement("td");
  if (job.curve.length === 0) return td;
  const losses = job.curve.map(([, loss]) => loss);
  const low = Math.min(...losses), high = Math.max(...losses), steps = Math.max(job.total_steps, 2);
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", `-2 -2 ${WIDTH + 4} ${HEIGHT + 4}`);
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", `Loss of ${job.id}: from ${high.toFixed(3)} to ${low.toFixed(3)}`);
  const line = document.createElementNS(SVG, "polyline");
  line.setAttribute("points", job.curve.map(([step, loss]) => {
    const x = WIDTH * (step - 1) / (steps - 1), y = HEIGHT * (high - loss) / (high - low || 1);
    return `${x.toFixed(1)},${y.toFixed(1)}`;
  }).join(" "));
  svg.append(line);
  td.append(svg);
  return td;
}

function row(job) {
  const tr = document.createElement("tr");
  tr.id = `job-${job.id}`;
  const last = job.curve.at(-1);
  tr.append(cell(job.id), cell(job.state), cell(job.total_steps ? `${job.steps_done} of ${job.total_steps}` : ""),
            cell(last ? last[1].toFixed(4) : ""), curve(job), cell(job.threads),
            cell(`${(job.bytes / 2 ** 20).toFixed(1)} MiB`), cell(job.text));
  return tr;
}

async function update() {
  const note = document.getElementById("note");
  try {
    const jobs = await (await fetch("jobs", {cache: "no-store"})).json();
    document.getElementById("jobs").replaceChildren(...jobs.map(row));
    note.textContent = jobs.length === 1 ? "1 job" : `${jobs.length} jobs`;
  } catch (error) {
    note.textContent = `The service does not answer (${error.message}). Trying again.`;
  }
  setTimeout(update, 1000);
}
update();
</script>
</html>
)";

}  // namespace service
