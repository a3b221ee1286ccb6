// page.js: polls the node and passes the answers on. The last script; it starts the page.

const EVERY_MS = { now: 2000, history: 10000, tree: 10000 };
const DEADLINE_MS = 8000;

const state = { token: null, now: null, isPaused: false, span: 'hour', isTreeSeen: true, treeAskedAt: 0, isDenied: false };

class Denied extends Error {}

async function fetchJson(path) {
  const headers = state.token ? { Authorization: `Bearer ${state.token}` } : {};
  const answer = await fetch(path, { headers, cache: 'no-store', signal: AbortSignal.timeout(DEADLINE_MS) });
  if (answer.status === 401 || answer.status === 403) throw new Denied(await answer.text());
  if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
  return answer.json();
}

const charts = CHARTS.map((about) => new Chart(about));
byId('charts').append(...charts.map((chart) => chart.root));
const tree = new Tree(() => askTree());

async function askNow() {
  const now = await fetchJson('/status/now.json');
  state.now = now;
  showNow(now, tree.overview);
  showState(now.node.state);
}

async function askHistory() {
  const isDay = state.span === 'day';
  const history = await fetchJson(`/status/history.json${isDay ? '?span=day' : ''}`);
  const points = pointsOf(history);
  // A young node's few points fill the picture; later the span is an hour, or a day.
  const span = Math.min(isDay ? 86400 : 3600, Math.max(60, (points[0]?.age ?? 0) * 1.02));
  for (const chart of charts) chart.show(points, span);
}

async function askTree() {
  state.treeAskedAt = performance.now();
  const scope = tree.scope();
  await guarded(async () => {
    tree.show(await fetchJson(`/status/tree.json?${new URLSearchParams(scope)}`), scope);
    if (state.now) showHot(state.now, tree.overview);
  });
}

function showState(text) {
  const pill = byId('node-state');
  setText(pill, text);
  pill.className = `pill ${text.replace(/\W.*/, '')}`;
}

/** Sends one request and handles a failure. Returns whether it succeeded. */
async function guarded(ask) {
  try {
    await ask();
    byId('trouble').hidden = true;
    byId('token-form').hidden = true;
    state.isDenied = false;
    return true;
  } catch (error) {
    if (error instanceof Denied) {
      state.isDenied = true;  // further requests would count as further attempts
      showState('access denied');
      const isFirst = byId('token-form').hidden;
      byId('token-form').hidden = false;
      if (isFirst) byId('token').focus();
      showTrouble(error.message);
    } else {
      showState('no answer');
      showTrouble('The node does not answer. What you see is its last answer; the page tries again.');
      console.error(error);
    }
    return false;
  }
}

function showTrouble(text) {
  setText(byId('trouble'), text);
  byId('trouble').hidden = false;
}

/** Repeats a request while the page is visible: a page in the background sends none. */
async function repeat(ask, everyMs) {
  for (;;) {
    const isAsked = !document.hidden && !state.isPaused && !state.isDenied;
    if (isAsked) await guarded(ask);
    await new Promise((resolve) => setTimeout(resolve, everyMs));
  }
}

choice('span', (span) => {
  state.span = span;
  guarded(askHistory);
});
byId('pause').addEventListener('click', (event) => {
  state.isPaused = !state.isPaused;
  event.currentTarget.setAttribute('aria-pressed', String(state.isPaused));
  setText(event.currentTarget, state.isPaused ? 'Go on' : 'Pause');
});
byId('token-form').addEventListener('submit', (event) => {
  event.preventDefault();
  state.token = byId('token').value.trim();
  byId('token').value = '';
  askAll();
});
document.addEventListener('visibilitychange', () => {
  if (!document.hidden && !state.isPaused) askAll();
});
new IntersectionObserver((entries) => {
  state.isTreeSeen = entries.at(-1).isIntersecting;
  if (state.isTreeSeen && performance.now() - state.treeAskedAt > EVERY_MS.tree) askTree();
}).observe(byId('tree'));
new ResizeObserver(() => tree.draw()).observe(byId('tree'));

async function askAll() {
  if (!(await guarded(askNow))) return;
  await guarded(askHistory);
  await askTree();
}

repeat(askNow, EVERY_MS.now);
repeat(askHistory, EVERY_MS.history);
repeat(async () => state.isTreeSeen && askTree(), EVERY_MS.tree);
