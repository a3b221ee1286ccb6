// charts.js: the history as small charts: lines or areas with one scale, and the values under the pointer.

const CHARTS = [
  {
    id: 'hits', title: 'Hit rate', unit: percent, top: 1, is_stacked: true,
    lines: [
      { label: 'memory', colour: 'a', value: (at) => share(at.found_memory, at) },
      { label: 'disk', colour: 'b', value: (at) => share(at.found_disk, at) },
    ],
    headline: (at) => share(at.found_memory + at.found_disk, at),
  },
  {
    id: 'bytes', title: 'Block bytes moved', unit: byteRate,
    lines: [
      { label: 'to workers', colour: 'a', value: (at) => at.bytes_out },
      { label: 'from workers', colour: 'b', value: (at) => at.bytes_in },
    ],
  },
  {
    id: 'requests', title: 'Requests', unit: rate,
    lines: [{ label: 'requests', colour: 'a', value: (at) => at.requests }],
  },
  {
    id: 'times', title: 'Time to answer, p99', unit: duration,
    lines: [
      { label: 'get', colour: 'a', value: (at) => at.get_p99 },
      { label: 'match', colour: 'b', value: (at) => at.match_p99 },
    ],
  },
  {
    id: 'memory', title: 'Blocks kept', unit: bytes, is_stacked: true,
    lines: [
      { label: 'in memory', colour: 'a', value: (at) => at.memory_bytes },
      { label: 'on disk alone', colour: 'b', value: (at) => at.disk_bytes },
    ],
  },
  {
    id: 'blocks', title: 'Blocks come and gone', unit: rate,
    lines: [
      { label: 'stored', colour: 'a', value: (at) => at.stored },
      { label: 'evicted', colour: 'b', value: (at) => at.evicted },
      { label: 'written to disk', colour: 'c', value: (at) => at.spilled },
    ],
  },
];

/** Share of the blocks looked up; null without lookups. */
function share(found, at) {
  const all = at.found_memory + at.found_disk + at.missed;
  return all > 0 ? found / all : null;
}

/** The next number of the form 1, 2, 5 x 10^n (for bytes: 2, 3 x 2^n) that is not below the value. */
function roundUp(value, unit) {
  if (!(value > 0)) return 1;
  if (unit === bytes || unit === byteRate) {
    const power = 2 ** Math.ceil(Math.log2(value));
    return value <= power * 0.75 ? power * 0.75 : power;
  }
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].find((step) => step * power >= value * 0.999) * power;
}

class Chart {
  static WIDTH = 600;
  static HEIGHT = 120;

  constructor(about) {
    this.about = about;
    this.points = [];
    this.headline = element('span', { class: 'headline' }, NONE);
    this.keys = about.lines.map((line) => element('span', { class: `key key-${line.colour}` }, line.label));
    this.plot = svg('svg', { viewBox: `0 0 ${Chart.WIDTH} ${Chart.HEIGHT}`, preserveAspectRatio: 'none', 'aria-hidden': 'true' });
    this.top = element('span', { class: 'top' });
    this.from = element('span');
    this.cursor = element('span', { class: 'cursor', hidden: true });
    this.nothing = element('span', { class: 'nothing' }, 'nothing yet');
    this.frame = element('div', { class: 'plot', tabindex: '0', role: 'img', id: `chart-${about.id}` }, this.plot, this.top, this.nothing, this.cursor);
    this.root = element('figure', { class: 'chart' },
      element('figcaption', {}, element('span', { class: 'title' }, about.title), this.headline),
      this.frame,
      element('div', { class: 'axis' }, this.from, element('span', { class: 'keys' }, about.lines.length > 1 ? this.keys : []), element('span', {}, 'now')));
    this.frame.addEventListener('pointermove', (event) => this.point(event));
    this.frame.addEventListener('pointerleave', () => this.leave());
    this.frame.addEventListener('blur', () => this.leave());
    this.frame.addEventListener('keydown', (event) => this.key(event));
  }

  /** `points`: oldest first, each with its age in seconds. */
  show(points, span) {
    const { about } = this;
    this.points = points;
    this.span = span;
    const rows = points.map((at) => about.lines.map((line) => line.value(at)));
    const sums = about.is_stacked ? rows.map((row) => row.reduce((sum, value) => sum + (value ?? 0), 0)) : rows.flat();
    this.scale = about.top ?? roundUp(Math.max(0, ...sums.filter((value) => value != null)), about.unit);
    setText(this.top, about.unit(this.scale));
    setText(this.from, `${duration(span)} ago`);
    this.plot.replaceChildren(...this.gridlines(), ...this.shapes(rows));
    setText(this.headline, about.unit(this.last()));
    this.nothing.hidden = rows.some((row) => row.some((value) => value != null));
    this.frame.setAttribute('aria-label', this.summary(rows));
  }

  /** The last point's value: of the first line that has one. */
  last() {
    const at = this.points.at(-1);
    if (!at) return null;
    if (this.about.headline) return this.about.headline(at);
    return this.about.lines.map((line) => line.value(at)).find((value) => value != null) ?? null;
  }

  gridlines() {
    return [0, 0.5].map((part) => svg('line', { class: 'grid', x1: 0, x2: Chart.WIDTH, y1: Chart.HEIGHT * part, y2: Chart.HEIGHT * part }));
  }

  x(at) {
    return Chart.WIDTH * (1 - at.age / this.span);
  }

  y(value) {
    return Chart.HEIGHT * (1 - Math.min(1, value / this.scale));
  }

  /** One path for each line; missing values leave a gap. */
  shapes(rows) {
    const shapes = [];  // reversed, so that the first line is on top
    [...this.about.lines.entries()].reverse().forEach(([index, line]) => {
      const below = (row) => (this.about.is_stacked ? row.slice(0, index).reduce((sum, value) => sum + (value ?? 0), 0) : 0);
      const runs = [];
      let run = null;
      rows.forEach((row, at) => {
        if (row[index] == null) {
          run = null;
          return;
        }
        if (!run) runs.push((run = []));
        run.push([this.x(this.points[at]), this.y(below(row) + row[index]), this.y(below(row))]);
      });
      for (const each of runs) {
        const path = each.map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`).join('L');
        const back = each.map(([x, , y]) => `${x.toFixed(1)} ${y.toFixed(1)}`).reverse().join('L');
        if (this.about.is_stacked || index === 0) shapes.push(svg('path', { class: `area area-${line.colour}`, d: `M${path}L${back}Z` }));
        shapes.push(svg('path', { class: `line line-${line.colour}${each.length > 1 ? '' : ' dot'}`, d: each.length > 1 ? `M${path}` : `M${path}h0.01` }));
      }
    });
    return shapes;
  }

  /** The chart's text for screen readers. */
  summary(rows) {
    const { about } = this;
    const parts = about.lines.map((line, index) => {
      const values = rows.map((row) => row[index]).filter((value) => value != null);
      if (values.length === 0) return `${line.label}: nothing yet`;
      return `${line.label}: ${about.unit(values.at(-1))} last, ${about.unit(Math.min(...values))} to ${about.unit(Math.max(...values))}`;
    });
    return `${about.title}, ${duration(this.span)}. ${parts.join('. ')}.`;
  }

  point(event) {
    const box = this.frame.getBoundingClientRect();
    const age = this.span * (1 - (event.clientX - box.left) / box.width);
    let nearest = 0;
    this.points.forEach((at, index) => {
      if (Math.abs(at.age - age) < Math.abs(this.points[nearest].age - age)) nearest = index;
    });
    this.readOut(nearest);
  }

  key(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -20, PageDown: 20 }[event.key];
    if (!step || this.points.length === 0) return;
    event.preventDefault();
    const from = this.at ?? this.points.length;
    this.readOut(Math.min(this.points.length - 1, Math.max(0, from + step)));
  }

  readOut(index) {
    const at = this.points[index];
    if (!at) return;
    this.at = index;
    const left = this.x(at) / Chart.WIDTH;
    this.cursor.hidden = false;
    this.cursor.style.setProperty('--at', `${(left * 100).toFixed(2)}%`);
    this.cursor.classList.toggle('turned', left > 0.5);
    this.cursor.replaceChildren(element('span', { class: 'values' },
      element('b', {}, at.age < 1 ? 'now' : ago(at.age)),
      ...this.about.lines.map((line) => element('span', { class: `key key-${line.colour}` }, `${line.label} ${this.about.unit(line.value(at))}`))));
  }

  leave() {
    this.at = null;
    this.cursor.hidden = true;
  }
}

/** Turns the columns of history.json into one object for each point. */
function pointsOf(history) {
  const series = Object.entries(history.series);
  return history.age_s.map((age, index) => ({ age, ...Object.fromEntries(series.map(([name, values]) => [name, values[index]])) }));
}
