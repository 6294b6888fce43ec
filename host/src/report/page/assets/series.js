// What is drawn of a chart's data: against which axis, smoothed, by run or over seeds. Nothing here knows the page.
"use strict";

// Exponential moving average that begins at the first value; a gap stays one. The weight is that of one step: values that are many steps
// apart are hardly smoothed.
function smooth(values, steps, weight) {
  if (weight === 0) return values;
  let sum = 0, norm = 0, last = null;
  return values.map((value, at) => {
    if (value === null) return null;
    const old = weight ** (last === null ? 1 : steps[at] - last);
    last = steps[at];
    sum = old * sum + (1 - old) * value;
    norm = old * norm + (1 - old);
    return sum / norm;
  });
}

// A weight for runs of so many steps: their curves are averaged over about a fifteenth of them.
function usualWeight(steps) {
  return steps < 20 ? 0 : Math.min(Math.round(100 * (1 - 15 / steps)) / 100, 0.97);
}

// Mean and standard error of it; without a second value there is no error.
function meanAndError(values) {
  const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
  if (values.length < 2) return [mean, null];
  const squares = values.reduce((sum, value) => sum + (value - mean) ** 2, 0);
  return [mean, Math.sqrt(squares / (values.length - 1) / values.length)];
}

// A run's line: columns x, y, the values before smoothing and, of buckets, the smallest and largest values.
function ofRun(data, line, { axis, weight }) {
  const grid = data.runs[line.run].grids[line.grid];
  const places = grid[axis].flatMap((x, at) => (x === null ? [] : [at]));
  const pick = (column) => places.map((at) => column[at]);
  return {
    x: pick(grid[axis]),
    y: pick(smooth(line.y, grid.step, weight)),
    raw: weight > 0 ? pick(line.y) : null,
    low: line.low ? pick(line.low) : null,
    high: line.high ? pick(line.high) : null,
  };
}

// Several runs' lines as one: at each step the mean of those that have it, with its standard error on both sides. Between two steps the
// line goes on by the mean way of the runs that have both: a mean of the places would go back where a run ends that was ahead.
function overSeeds(data, lines, { axis, weight }) {
  const steps = new Map();
  for (const line of lines) {
    const grid = data.runs[line.run].grids[line.grid];
    smooth(line.y, grid.step, weight).forEach((y, at) => {
      if (grid[axis][at] === null) return;
      const place = steps.get(grid.step[at]) ?? { x: new Map(), y: [] };
      place.x.set(line.run, grid[axis][at]);
      if (y !== null) place.y.push(y);
      steps.set(grid.step[at], place);
    });
  }
  const columns = { x: [], y: [], raw: null, low: [], high: [] };
  let before = new Map();
  for (const step of [...steps.keys()].sort((a, b) => a - b)) {
    const place = steps.get(step);
    const last = columns.x.at(-1) ?? 0, both = [...place.x.keys()].filter((run) => before.has(run));
    const meanOf = (runs, places) => meanAndError(runs.map((run) => places.get(run)))[0];
    const x = both.length
      ? meanOf(both, place.x) + (last - meanOf(both, before))
      : Math.max(last, meanOf([...place.x.keys()], place.x));
    before = place.x;
    const [mean, error] = place.y.length ? meanAndError(place.y) : [null, null];
    columns.x.push(x);
    columns.y.push(mean);
    columns.low.push(error === null ? null : mean - error);
    columns.high.push(error === null ? null : mean + error);
  }
  if (weight > 0) columns.raw = overSeeds(data, lines, { axis, weight: 0 }).y;
  return columns;
}

// The lines that a chart shows. `of` is the number of the run or group that each belongs to.
// What a chart has without noise is never smoothed.
function linesOf(data, chart, all) {
  const state = chart.exact ? { ...all, weight: 0 } : all;
  if (!state.seeds) {
    return chart.lines.map((line) => ({
      of: line.run, style: line.style, name: line.name, columns: ofRun(data, line, state),
    }));
  }
  return data.groups.flatMap((group, of) => {
    const parts = new Map();
    for (const line of chart.lines.filter((line) => group.runs.includes(line.run))) {
      const key = `${line.style} ${line.name}`;
      parts.set(key, [...(parts.get(key) ?? []), line]);
    }
    return [...parts.values()].map((lines) => ({
      of, style: lines[0].style, name: lines[0].name, columns: overSeeds(data, lines, state),
    }));
  });
}

// A value that a logarithmic axis has no place for is a gap; a band ends at the smallest value there is.
function positive(lines) {
  const values = lines.flatMap(({ columns }) => columns.y.filter((y) => y > 0));
  const least = values.reduce((a, b) => Math.min(a, b), Infinity);
  const keep = (y) => (y > 0 ? y : null);
  const bound = (y) => (y === null ? null : Math.max(y, least));
  return lines.map((line) => {
    const { x, y, raw, low, high } = line.columns;
    const bounds = { low: low && low.map(bound), high: high && high.map(bound) };
    return { ...line, columns: { x, y: y.map(keep), raw: raw && raw.map(keep), ...bounds } };
  });
}

// Columns as uPlot takes them: one of x for all lines, and OF_A_LINE for each. The faint ones come first, so that the others lie over them.
const OF_A_LINE = 4;
const [RAW, Y, LOW, HIGH] = [1, 2, 3, 4];

function table(lines) {
  const empty = (columns) => columns.x.map(() => null);
  const tables = lines.map(({ columns }) => [
    columns.x, columns.raw ?? empty(columns), columns.y, columns.low ?? empty(columns), columns.high ?? empty(columns),
  ]);
  if (tables.length === 0) return [[]];
  const same = tables.every(([x]) => x.length === tables[0][0].length && x.every((at, i) => at === tables[0][0][i]));
  return same ? [tables[0][0], ...tables.flatMap(([, ...columns]) => columns)] : uPlot.join(tables);
}

// A number in few characters.
function brief(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(2).replace(/\.?0*e\+?/, "e");
  return String(Number(value.toPrecision(4)));
}

// A share in percent.
function percent(share) {
  return share === null || share === undefined ? "–" : `${Number((100 * share).toPrecision(3))}%`;
}

// A place on an axis: a count, or a time in seconds.
function place(axis, value) {
  if (axis === "seconds") {
    if (value < 120) return `${brief(value)} s`;
    return value < 7200 ? `${brief(value / 60)} min` : `${brief(value / 3600)} h`;
  }
  if (value >= 1e9) return `${brief(value / 1e9)} G`;
  if (value >= 1e6) return `${brief(value / 1e6)} M`;
  return value >= 1e4 ? `${brief(value / 1e3)} k` : brief(value);
}
