// panels.js: the present state: tiles, and tables that become cards on a narrow screen.

/** `columns`: {title, cell(row), isNumber, isHead, isLong (may break anywhere)}. Roles are explicit, as a browser does not see cards as a table. */
function table(caption, columns, rows, none) {
  if (rows.length === 0) return element('p', { class: 'none' }, none);
  const head = columns.map(({ title, isNumber }) => element('th', { role: 'columnheader', scope: 'col', class: isNumber ? 'number' : null }, title));
  const body = rows.map((row) => element('tr', { role: 'row' }, columns.map(({ title, cell, isNumber, isHead, isLong }) => {
    const attributes = { 'data-title': title, class: isNumber ? 'number' : isLong ? 'long' : null };
    return isHead ? element('th', { role: 'rowheader', scope: 'row', ...attributes }, cell(row)) : element('td', { role: 'cell', ...attributes }, cell(row));
  })));
  return element('table', { role: 'table', 'aria-label': caption },
    element('thead', { role: 'rowgroup' }, element('tr', { role: 'row' }, head)),
    element('tbody', { role: 'rowgroup' }, body));
}

/** A share as a bar. */
function shareBar(part) {
  const bar = element('span', { class: 'meter', 'aria-hidden': 'true' });
  bar.style.setProperty('--part', `${Math.min(1, Math.max(0, part)) * 100}%`);
  return bar;
}

/** A share as a bar beside its number. */
function meter(part, label) {
  return element('span', { class: 'metered' }, shareBar(part), element('span', {}, label));
}

function tile(title, value, more, part) {
  return element('div', { class: 'tile' },
    element('h3', {}, title), element('p', { class: 'value' }, value), part == null ? null : shareBar(part), element('p', { class: 'more' }, more));
}

function showTiles(now) {
  const { memory, disk, last, node } = now;
  const lookups = last.requests == null ? null : share(last.found_memory + last.found_disk, last);
  const tiles = [
    tile('Memory', bytes(memory.used_bytes), `of ${bytes(memory.capacity_bytes)} · ${plural(memory.blocks, 'block')}`, memory.used_bytes / memory.capacity_bytes),
    disk
      ? tile('Disk', disk.is_on ? bytes(disk.used_bytes) : 'off', disk.is_on ? `of ${bytes(disk.capacity_bytes)} · ${plural(disk.blocks, 'block')}` : 'the log says why', disk.used_bytes / disk.capacity_bytes)
      : tile('Disk', 'none', 'blocks are in memory alone'),
    tile('Hit rate', percent(lookups), lookups == null ? 'no lookups in the last seconds' : `${percent(share(last.found_disk, last))} of it from disk`),
    tile('To workers', byteRate(last.bytes_out), `from workers ${byteRate(last.bytes_in)}`),
    tile('Requests', rate(last.requests), `p99: match ${duration(last.match_p99)}, get ${duration(last.get_p99)}`),
    tile('Evicted after', memory.eviction_age_s == null ? 'never' : duration(memory.eviction_age_s), memory.evicted_blocks > 0 ? `unused · ${plural(memory.evicted_blocks, 'block')} in all` : 'nothing had to go so far'),
    tile('Sessions', count(node.sessions), `${plural(memory.leases, 'lease')} · ${count(memory.pinned_blocks)} pinned`),
    tile('Index', bytes(memory.index_used_bytes), `of ${bytes(memory.index_bytes_max)}`, memory.index_used_bytes / memory.index_bytes_max),
  ];
  byId('tiles').replaceChildren(...tiles);
}

function showSpaces(now) {
  const { shown, others, count: all } = now.spaces;
  const most = Math.max(1, ...shown.map((space) => space.bytes));
  const columns = [
    { title: 'Model', isHead: true, isLong: true, cell: (space) => space.fields.model ?? NONE },
    { title: 'Tenant', isLong: true, cell: (space) => space.fields.tenant ?? NONE },
    { title: 'Form', isLong: true, cell: (space) => spaceForm(space) },
    { title: 'Block', isNumber: true, cell: (space) => (space.is_set ? `set, to ${bytes(space.block_bytes)}` : `${count(space.block_size)} tok · ${bytes(space.block_bytes)}`) },
    { title: 'Blocks', isNumber: true, cell: (space) => count(space.blocks) },
    { title: 'On disk', isNumber: true, cell: (space) => count(space.disk_blocks) },
    { title: 'Bytes', isNumber: true, cell: (space) => meter(space.bytes / most, bytes(space.bytes)) },
  ];
  const more = others.count > 0 ? element('p', { class: 'note' }, `${plural(others.count, 'smaller namespace')} more, with ${plural(others.blocks, 'block')} and ${bytes(others.bytes)}.`) : null;
  const cut = now.spaces.is_whole ? null : element('p', { class: 'note' }, `There are ${count(all)}; not all were looked at.`);
  byId('spaces').replaceChildren(...[table('Namespaces', columns, shown, 'No namespace was opened yet.'), more, cut].filter(Boolean));
}

/** The fields that distinguish namespaces of one model, besides the tenant. */
function spaceForm(space) {
  const { dtype, quantization, revision, lora, cache_group: group, layer_range: layers, head_range: heads } = space.fields;
  const parts = [dtype, quantization, lora && `adapter ${lora}`, group, layers && `layers ${layers}`, heads && `heads ${heads}`, revision && `rev. ${revision.slice(0, 10)}`];
  return parts.filter(Boolean).join(' · ') || NONE;
}

/** In a cluster, nodes count the beginnings of lookups. A single node does not: there the tree has the most used runs. */
function showHot(now, overview) {
  const rows = now.hot.length > 0 || !overview
    ? now.hot
    : mostUsed(overview, 8).map((part) => ({
      model: spaceLabel(part.space), name: part.name, uses: part.uses, share: part.uses / overview.uses,
      tokens: (part.position + part.own_blocks) * part.space.block_size,
    }));
  const columns = [
    { title: 'Model', isHead: true, isLong: true, cell: (hot) => hot.model },
    { title: 'Prefix', cell: (hot) => element('code', {}, hot.name.slice(0, 8)) },
    { title: 'Tokens', isNumber: true, cell: (hot) => count(hot.tokens) },
    { title: now.hot.length > 0 ? 'Of lookups' : 'Uses', isNumber: true, cell: (hot) => meter(hot.share, hot.uses ? count(hot.uses) : percent(hot.share)) },
  ];
  byId('hot').replaceChildren(table('Hottest prefixes', columns, rows, 'No beginning is used by many yet.'));
}

function showTenants(now) {
  const most = Math.max(1, ...now.tenants.map((tenant) => tenant.bytes));
  const columns = [
    { title: 'Tenant', isHead: true, isLong: true, cell: (tenant) => tenant.name || 'no tenant' },
    { title: 'Namespaces', isNumber: true, cell: (tenant) => count(tenant.spaces) },
    { title: 'Blocks', isNumber: true, cell: (tenant) => count(tenant.blocks) },
    { title: 'Bytes', isNumber: true, cell: (tenant) => meter(tenant.bytes / most, bytes(tenant.bytes)) },
  ];
  byId('tenants').replaceChildren(table('Tenants', columns, now.tenants, 'Nobody has stored anything yet.'));
}

function showCluster(now) {
  const columns = [
    { title: 'Node', isHead: true, isLong: true, cell: (member) => (member.is_self ? `${member.id} (this one)` : member.id) },
    { title: 'State', cell: (member) => element('span', { class: `pill ${member.state}` }, member.state) },
    { title: 'Endpoint', isLong: true, cell: (member) => member.endpoints[0] ?? NONE },
    { title: 'Zone', isLong: true, cell: (member) => member.zone || NONE },
    { title: 'Version', cell: (member) => member.version || NONE },
    { title: 'Weight', isNumber: true, cell: (member) => digits(member.weight) },
  ];
  const members = now.cluster?.members ?? [];
  const more = now.cluster && now.cluster.count > members.length ? element('p', { class: 'note' }, `${count(now.cluster.count - members.length)} more.`) : null;
  byId('cluster').replaceChildren(...[table('Cluster', columns, members, 'This node belongs to no cluster.'), more].filter(Boolean));
}

function showClasses(now) {
  const columns = [
    { title: 'Slot', isHead: true, cell: (each) => bytes(each.block_bytes) },
    { title: 'Slots', isNumber: true, cell: (each) => count(each.slots) },
    { title: 'Used', isNumber: true, cell: (each) => meter(each.used / Math.max(1, each.slots), count(each.used)) },
  ];
  byId('classes').replaceChildren(table('Block sizes', columns, now.classes, 'No block was stored yet.'));
}

function showNode(now) {
  const { node } = now;
  setText(byId('node-name'), node.id);
  document.title = `${node.id} · kvstore`;
  const facts = [`up ${duration(Math.floor(node.uptime_s))}`, `version ${node.version}`];
  if (node.has_rdma) facts.push('RDMA');
  if (node.checksum_failures > 0) facts.push(`${plural(node.checksum_failures, 'checksum failure')}`);
  setText(byId('node-facts'), facts.join(' · '));
  byId('tier-choice').hidden = !now.disk;
}

function showNow(now, overview) {
  showNode(now);
  showTiles(now);
  showSpaces(now);
  showHot(now, overview);
  showTenants(now);
  showCluster(now);
  showClasses(now);
}
