// tree.js: the prefix tree as an icicle: from namespaces at the top down to blocks. A bar is a run of blocks; its width
// shows the bytes at and below it, its colour how much it is used.
//
// The node sends the largest parts of the selected scope (tree.json), exact or from a sample. Opening a bar requests
// its scope; until the answer arrives, the bar is drawn from known data.

const ROWS_MAX = 16;
const CELLS_MAX = 256;
/** As a share of the picture's width: narrower bars are not drawn. */
const WIDTH_MIN = 0.0008;

const HEAT = {
  age: {
    steps: [60, 600, 3600, 6 * 3600, 24 * 3600],
    labels: ['under 1 min', '10 min', '1 h', '6 h', '1 day', 'longer ago'],
    /** 0: hot. */
    of: (part) => HEAT.age.steps.findIndex((most) => part.age_s < most),
  },
  uses: {
    steps: [1000, 100, 20, 5, 2],
    labels: ['1,000 and more', '100', '20', '5', '2', 'once'],
    of: (part) => HEAT.uses.steps.findIndex((least) => part.uses >= least),
  },
};

/** The parts of an answer as a tree; `base` is the scope's root. */
function treeOf(answer, scope) {
  const all = { key: 'all', children: [], bytes: 0, blocks: 0, copied: 0, uses: 0, age_s: Infinity, hidden: 0, branches: null, above: null };
  const parts = answer.parts.map((part) => {
    const space = answer.spaces[part.space];
    const key = part.name ? `${part.space}/${part.name}/${part.position}` : `${part.space}`;
    return { ...part, key, space, spaceId: part.space, children: [], branches: part.children, hidden: part.hidden ?? 0 };
  });
  for (const part of parts) {
    part.above = part.parent < 0 ? all : parts[part.parent];
    part.above.children.push(part);
    if (part.parent < 0) {
      for (const sum of ['bytes', 'blocks', 'copied', 'uses']) all[sum] += part[sum];
      all.age_s = Math.min(all.age_s, part.age_s);
    }
  }
  const inside = scope.space == null ? all : parts.find((part) => part.spaceId === scope.space && !part.name);
  const base = scope.name == null ? inside : parts.find((part) => part.name === scope.name);
  return base ?? all;
}

function spaceLabel(space) {
  if (!space) return 'a namespace';
  const { model, tenant, lora, cache_group: group } = space.fields;
  return [model, tenant, lora && `adapter ${lora}`, group].filter(Boolean).join(' · ');
}

function tokensOf(part) {
  return part.own_blocks * (part.space?.block_size ?? 0);
}

/** The node counts the branches of an edge; others are counted here. */
function branchesOf(part) {
  return part.branches ?? part.children.length + part.hidden;
}

/** A bar's texts, largest first; shown as far as there is room. */
function partLabel(part) {
  if (part.key === 'all') return ['All namespaces', bytes(part.bytes)];
  if (!part.name) return [spaceLabel(part.space), bytes(part.bytes)];
  if (part.space?.is_set) return [bytes(part.bytes), ''];
  return [`${count(tokensOf(part))} tokens`, bytes(part.bytes)];
}

/** A bar's text for screen readers. */
function partSummary(part, isExact) {
  const about = isExact ? '' : 'about ';
  const sizes = `${about}${bytes(part.bytes)}, ${about}${plural(part.blocks, 'block')}`;
  const use = `last used ${ago(part.age_s)}`;
  const hidden = part.hidden > 0 ? `, ${plural(part.hidden, 'smaller branch', 'smaller branches')} not shown` : '';
  if (!Number.isFinite(part.age_s)) return `${partLabel(part)[0]}, nothing here`;
  if (!part.name || part.space?.is_set) return `${part.name ? 'Block' : partLabel(part)[0]}: ${sizes}, ${use}${hidden}`;
  const first = part.position * part.space.block_size;
  return `Tokens ${count(first)} to ${count(first + tokensOf(part))}: ${sizes}, ${use}, ${plural(branchesOf(part), 'branch', 'branches')}${hidden}`;
}

/** The most used runs, including all blocks above them. */
function mostUsed(base, most) {
  const parts = [];
  const visit = (part) => {
    if (part.name && !part.space?.is_set && part.uses > 1) parts.push(part);
    part.children.forEach(visit);
  };
  visit(base);
  return parts.sort((a, b) => b.uses - a.uses).slice(0, most);
}

class Tree {
  /** `look(scope)` asks the node for a scope: {tier, space, top, name}. */
  constructor(look) {
    this.look = look;
    this.frame = byId('tree');
    this.colour = 'age';
    this.tier = 'memory';
    this.trail = [{ label: 'All namespaces', scope: {} }];
    this.bars = new Map();
    this.frame.addEventListener('keydown', (event) => this.key(event));
    choice('colour', (colour) => {
      this.colour = colour;
      this.draw();
    });
    choice('tier', (tier) => {
      this.tier = tier;
      this.trail.length = 1;
      this.answer = null;
      this.look();
    });
  }

  scope() {
    return { ...this.trail.at(-1).scope, tier: this.tier };
  }

  show(answer, scope) {
    if (JSON.stringify(scope) !== JSON.stringify(this.scope())) return;  // a late answer
    const isEmpty = scope.space != null && answer.parts.length === 0;
    if (answer.is_gone || (isEmpty && answer.is_exact)) {
      this.trail.pop();
      this.note = 'That part is not here any more.';
      this.look();
      return;
    }
    if (isEmpty) {  // the sample has no blocks in this part: keep the data from above
      this.note = 'This part is too small for a sample of so many blocks; look further inside.';
      this.draw();
      this.note = null;
      return;
    }
    this.answer = answer;
    this.base = treeOf(answer, scope);
    if (scope.space == null && this.tier === 'memory') this.overview = this.base;
    this.draw();
    this.note = null;
  }

  /** Opens a part, or goes back to one above it in the trail. */
  enter(part) {
    if (part === this.base || part.key === 'all') return this.leave();
    const between = [];
    for (let at = part; at && at !== this.base && at.key !== 'all'; at = at.above) between.unshift(at);
    for (const each of between) {
      const scope = each.name ? { space: each.spaceId, top: each.top, name: each.name } : { space: each.spaceId };
      this.trail.push({ label: partLabel(each)[0], scope });
    }
    this.base = part;
    this.draw();
    this.focus(part.key);
    this.look();
  }

  leave(length = this.trail.length - 1) {
    if (length < 1 || length >= this.trail.length) return;
    this.trail.length = length;
    this.look();
  }

  /** Bars from the base down, each {part, x, width, row}; x and width are shares of the whole. */
  layout() {
    const bars = [];
    const add = (part, x, width, row) => {
      bars.push({ part, x, width, row });
      if (row + 1 >= ROWS_MAX || part.bytes === 0) return;
      let from = x;
      const narrow = part.children.filter((child) => (width * child.bytes) / part.bytes < WIDTH_MIN);
      for (const child of part.children) {
        if (narrow.includes(child)) continue;
        const share = (width * child.bytes) / part.bytes;
        add(child, from, share, row + 1);
        from += share;
      }
      const own = part.name ? (part.own_blocks * part.bytes) / Math.max(part.blocks, part.own_blocks) : 0;
      const rest = x + width * (1 - own / part.bytes) - from;
      const left = part.hidden + narrow.length;
      if (left > 0 && rest >= WIDTH_MIN) bars.push({ part: null, above: part, left, x: from, width: rest, row: row + 1 });
    };
    add(this.base, 0, 1, 0);
    return bars;
  }

  draw() {
    if (!this.answer || !this.base) return;
    const isExact = this.answer.is_exact;
    const focused = document.activeElement?.dataset?.key;
    const bars = this.layout();
    const rows = Math.max(...bars.map((bar) => bar.row)) + 1;
    this.frame.style.setProperty('--rows', Math.max(rows, 3));
    const old = this.bars;
    this.bars = new Map();
    const pixels = this.frame.clientWidth || 320;
    const shown = bars.map((bar) => {
      const key = bar.part ? bar.part.key : `rest of ${bar.above.key}`;
      const made = this.bars.has(key) ? null : old.get(key);
      const root = made?.root ?? this.makeBar(key, bar.part);
      this.bars.set(key, { root, ...bar });
      root.style.setProperty('--x', `${bar.x * 100}%`);
      root.style.setProperty('--width', `${bar.width * 100}%`);
      root.style.setProperty('--row', bar.row);
      this.dress(root, bar, pixels * bar.width, isExact);
      return root;
    });
    const isSame = shown.length === this.frame.children.length && shown.every((root, index) => root === this.frame.children[index]);
    if (!isSame) this.frame.replaceChildren(...shown);
    if (focused != null) this.focus(this.bars.has(focused) ? focused : this.base.key);
    this.current = this.bars.has(this.current) ? this.current : this.base.key;
    this.bars.get(this.current).root.tabIndex = 0;
    this.drawTrail();
    this.drawLegend();
    this.describe(this.bars.get(this.current).part ?? this.base);
    this.drawNote();
  }

  makeBar(key, part) {
    const main = element('span', { class: 'main' }), more = element('span', { class: 'more' });
    if (!part) return element('div', { class: 'part-bar rest', 'aria-hidden': 'true' }, main);
    const root = element('div', { class: 'part-bar', role: 'treeitem', tabindex: '-1', 'data-key': key }, main, more);
    const now = () => this.bars.get(key)?.part;
    root.addEventListener('click', () => now() && this.enter(now()));
    root.addEventListener('pointerenter', (event) => event.pointerType === 'mouse' && now() && this.describe(now()));
    root.addEventListener('focus', () => now() && this.select(key));
    return root;
  }

  /** Sets a bar's colour, texts and screen reader text. */
  dress(root, bar, pixels, isExact) {
    const { part } = bar;
    if (!part) {
      setText(root.firstChild, pixels > 60 ? `${count(bar.left)} more` : '');
      return;
    }
    const heat = HEAT[this.colour];
    const step = heat.of(part);
    // Whole namespaces are nearly always in use, so a colour would carry no information.
    root.className = `part-bar ${part.name ? `heat-${step < 0 ? heat.steps.length : step}` : 'is-space'}${bar.row === 0 ? ' is-base' : ''}${pixels < 5 ? ' is-narrow' : ''}`;
    const [main, more] = partLabel(part);
    setText(root.children[0], pixels > 44 ? main : '');
    setText(root.children[1], pixels > 150 ? more : '');
    const siblings = part.above && bar.row > 0 ? part.above.children : [part];
    const facts = {
      'aria-label': partSummary(part, isExact),
      'aria-level': bar.row + 1,
      'aria-setsize': siblings.length,
      'aria-posinset': siblings.indexOf(part) + 1,
      'aria-selected': 'false',
    };
    for (const [name, value] of Object.entries(facts)) root.setAttribute(name, value);
    if (part.children.length > 0) root.setAttribute('aria-expanded', String(bar.row + 1 < ROWS_MAX));
  }

  select(key) {
    const before = this.bars.get(this.current);
    if (before) {
      before.root.tabIndex = -1;
      before.root.setAttribute('aria-selected', 'false');
    }
    this.current = key;
    const bar = this.bars.get(key);
    bar.root.tabIndex = 0;
    bar.root.setAttribute('aria-selected', 'true');
    this.describe(bar.part);
  }

  focus(key) {
    this.bars.get(key)?.root.focus({ preventScroll: true });
  }

  key(event) {
    const part = this.bars.get(this.current)?.part;
    if (!part) return;
    const drawn = (parts) => parts.filter((each) => this.bars.has(each.key));
    const beside = (step) => {
      const siblings = part === this.base ? [part] : drawn(part.above.children);
      return siblings[siblings.indexOf(part) + step];
    };
    const moves = {
      ArrowUp: () => (part === this.base ? null : part.above),
      ArrowDown: () => drawn(part.children)[0],
      ArrowLeft: () => beside(-1),
      ArrowRight: () => beside(1),
      Home: () => this.base,
    };
    if (event.key === 'Enter' || event.key === ' ') {
      this.enter(part);
    } else if (event.key === 'Escape' || event.key === 'Backspace') {
      this.leave();
    } else if (moves[event.key]) {
      const next = moves[event.key]();
      if (next) this.focus(next.key);
    } else {
      return;
    }
    event.preventDefault();
  }

  drawTrail() {
    byId('trail').replaceChildren(...this.trail.flatMap(({ label }, index) => {
      const isLast = index === this.trail.length - 1;
      if (isLast) return [element('span', { 'aria-current': 'true' }, label)];
      const button = element('button', { type: 'button' }, label);
      button.addEventListener('click', () => this.leave(index + 1));
      return [button, element('span', { class: 'between', 'aria-hidden': 'true' }, '›')];
    }));
  }

  drawLegend() {
    if (this.legendOf === this.colour) return;
    this.legendOf = this.colour;
    const title = this.colour === 'age' ? 'Last used' : 'Uses, of all at and below';
    byId('legend').replaceChildren(element('span', {}, title),
      ...HEAT[this.colour].labels.map((label, step) => element('span', { class: `step heat-${step}` }, label)));
  }

  drawNote() {
    const { answer } = this;
    const sample = answer.is_exact ? 'Every block was counted.' : `From a sample of one block in ${count(answer.blocks_per_sample)}: sizes are estimates.`;
    const held = `The store was looked at in ${plural(answer.lock_holds, 'step')}, ${duration(answer.lock_held_max_us / 1e6)} at most each.`;
    setText(byId('tree-note'), [this.note, this.base.blocks === 0 ? 'No blocks are stored here.' : sample, held].filter(Boolean).join(' '));
  }

  /** Shows the part in words, and its blocks one by one. */
  describe(part) {
    const about = this.answer.is_exact ? '' : '≈ ';
    const facts = [];
    const say = (name, value) => facts.push(element('div', {}, element('dt', {}, name), element('dd', {}, value)));
    if (part.space) say('Namespace', spaceLabel(part.space));
    if (part.name && !part.space?.is_set) {
      const first = part.position * part.space.block_size;
      say('Tokens', `${count(first)} – ${count(first + tokensOf(part))}`);
      say('Blocks in this run', count(part.own_blocks));
    }
    say('With all below', `${about}${plural(part.blocks, 'block')}`);
    if (part.space?.block_size) say('Tokens with all below', about + count(part.blocks * part.space.block_size));
    say('Bytes', about + bytes(part.bytes));
    if (Number.isFinite(part.age_s)) say('Last used', ago(part.age_s));
    if (this.tier === 'memory') say('Uses', about + count(part.uses));
    if (part.copied > 0) say(this.tier === 'memory' ? 'Also on disk' : 'Also in memory', percent(part.copied / part.blocks));
    say('Branches', count(branchesOf(part)));
    byId('part').replaceChildren(element('dl', {}, facts), ...(part.name && !part.space?.is_set ? [this.cells(part)] : []));
  }

  cells(part) {
    const shown = Math.min(part.own_blocks, CELLS_MAX);
    const strip = element('div', { class: 'cells', 'aria-hidden': 'true' });
    for (let at = 0; at < shown; ++at) {
      const first = (part.position + at) * part.space.block_size;
      strip.append(element('span', { title: `tokens ${count(first)} – ${count(first + part.space.block_size)}, ${bytes(part.space.block_bytes)}` }));
    }
    const rest = part.own_blocks > shown ? `, the first ${shown} shown` : '';
    return element('figure', { class: 'blocks' }, strip,
      element('figcaption', {}, `${plural(part.own_blocks, 'block')} of ${count(part.space.block_size)} tokens and ${bytes(part.space.block_bytes)} each${rest}`));
  }
}
