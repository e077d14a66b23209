// The live view: GET /status, as often as it says something new and only while somebody sees it.
import { ServerError, getJson } from './stream.js';
import { copyOf, element } from './chat.js';

const EVERY_MS = 1500;
const AFTER_FAILURE_MS = 4000;
const SAMPLES = 60;  // of the line

const number = new Intl.NumberFormat('en', { maximumFractionDigits: 1 });

export function bytesText(bytes) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];
  let unit = 0;
  // 1000 and more of a unit would take four digits.
  while (bytes >= 1000 && unit + 1 < units.length) {
    bytes /= 1024;
    ++unit;
  }
  const digits = unit === 0 || bytes >= 100 ? 0 : bytes >= 10 ? 1 : 2;
  return `${bytes.toFixed(digits)} ${units[unit]}`;
}

const percentText = (share) => `${number.format(100 * share)} %`;

export function durationText(seconds) {
  const s = Math.floor(seconds);
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

function set(id, text) {
  const node = element(id);
  if (node.textContent !== text) node.textContent = text;
}

function setGauge(id, share) {
  const gauge = element(id);
  gauge.hidden = share === null;
  if (share === null) return;
  const percent = Math.max(0, Math.min(100, 100 * share));
  gauge.setAttribute('aria-valuenow', percent.toFixed(0));
  gauge.setAttribute('aria-valuetext', percentText(share));
  gauge.firstElementChild.style.width = `${percent}%`;
}

// [term, text] pairs of a stage; what it does not say is left out.
function stageFigures(stage) {
  const memory = stage.memory ?? {};
  const figures = [];
  const add = (term, value, text = String) => {
    if (value !== undefined && value !== null && value !== '') figures.push([term, text(value)]);
  };
  add('Idle', stage.idle_share, percentText);
  add('Sequences', stage.sequences);
  add('Steps', stage.steps, (n) => number.format(n));
  add('Weights', stage.weight_bytes, bytesText);
  add('State', memory.state_bytes, bytesText);
  add('Memory', memory.resident_bytes, (now) => `${bytesText(now)}, at most ${bytesText(memory.peak_bytes)}`);
  add('GPU memory', memory.gpu_used_bytes, (now) => `${bytesText(now)} of ${bytesText(memory.gpu_planned_bytes)} planned`);
  add('Sent', stage.bytes_sent, bytesText);
  add('Received', stage.bytes_received, bytesText);
  add('Read from files', stage.bytes_read, bytesText);
  if (stage.failures > 0) add('Failures', stage.failures);
  add('Last failure', stage.last_failure);
  return figures;
}

function stageView(stage, index) {
  const view = copyOf('stage-template');
  const name = `Stage ${stage.stage ?? index}${stage.node ? ` · ${stage.node}` : ''}`;
  view.querySelector('.title').textContent = stage.layers ? `${name} · layers ${stage.layers}` : name;
  const where = [stage.state, stage.device, stage.address].filter(Boolean).join(' · ');
  view.querySelector('.where').textContent = stage.error ? `${where} ${stage.error}`.trim() : where;
  const list = view.querySelector('dl');
  for (const [term, text] of stageFigures(stage)) {
    const row = document.createElement('div');
    const dt = document.createElement('dt');
    const dd = document.createElement('dd');
    dt.textContent = term;
    dd.textContent = text;
    row.append(dt, dd);
    list.append(row);
  }
  return view;
}

export class LiveView {
  model = '';  // as /status names it; empty: not known yet
  #key;
  #refused;
  #timer = null;
  #asking = null;  // AbortController
  #rates = [];
  #wanted = true;  // the panel is open

  // key() gives the key; refused(): the server wants another.
  constructor(key, refused) {
    this.#key = key;
    this.#refused = refused;
    document.addEventListener('visibilitychange', () => this.poll());
    window.addEventListener('pagehide', () => this.#rest());
    this.poll();
  }

  set open(open) {
    this.#wanted = open;
    element('live').hidden = !open;
    this.poll();
  }

  // Asks now, and then again and again while the panel is seen. Once at least, for the name of the model.
  poll() {
    this.#rest();
    if (document.visibilityState === 'visible' && (this.#wanted || this.model === '')) this.#ask();
  }

  #rest() {
    clearTimeout(this.#timer);
    this.#asking?.abort();
    this.#asking = null;
  }

  async #ask() {
    const asking = this.#asking = new AbortController();
    let wait = EVERY_MS;
    try {
      const status = await getJson('status', this.#key(), asking.signal);
      if (asking === this.#asking) this.#show(status);
    } catch (error) {
      if (asking !== this.#asking) return;
      this.#showFailure(error);
      if (error instanceof ServerError && error.status === 401) return;  // until there is another key
      if (!(error instanceof ServerError && error.status === 503)) wait = AFTER_FAILURE_MS;
    }
    if (asking === this.#asking) this.#timer = setTimeout(() => this.poll(), wait);
  }

  #showFailure(error) {
    const said = error instanceof ServerError;
    element('state-dot').dataset.state = said && error.status === 503 ? 'waiting' : 'failing';
    element('live-body').hidden = true;
    element('live-notice').hidden = false;
    set('live-notice', said ? error.message : `The server cannot be reached (${error.message}).`);
    set('model-name', !said ? 'not reachable' : error.status === 401 ? 'key wanted' : error.message);
    this.#rates = [];
    if (said && error.status === 401) this.#refused();
  }

  #show(status) {
    this.model = status.model;
    element('state-dot').dataset.state = status.state;
    element('live-body').hidden = false;
    element('live-notice').hidden = status.reason === null;
    set('live-notice', status.reason ?? '');
    set('model-name', status.model);

    const rate = status.tokens_per_second;
    set('rate', number.format(rate));
    set('running', number.format(status.requests.running));
    set('waiting', number.format(status.requests.waiting));
    this.#rates = [...this.#rates.slice(1 - SAMPLES), rate];
    const most = Math.max(1, ...this.#rates);
    const points = this.#rates.map((value, i) => {
      const x = (i + SAMPLES - this.#rates.length) * 120 / (SAMPLES - 1);
      return `${x.toFixed(1)},${(27 - 26 * value / most).toFixed(1)}`;
    });
    element('spark').setAttribute('points', points.join(' '));

    const limit = status.limit;
    set('share', limit.share === undefined ? 'not measured' : percentText(limit.share));
    set('limit', limit.tokens_per_second === undefined
      ? `${bytesText(limit.bytes_per_token)} a token`
      : `of ${number.format(limit.tokens_per_second)} tokens/s: ${number.format(limit.bytes_per_second / 1e9)} GB/s at ${
          bytesText(limit.bytes_per_token)} a token`);
    setGauge('share-bar', limit.share ?? null);

    set('weights', bytesText(status.memory.weight_bytes));
    set('peak', bytesText(status.memory.peak_bytes));
    set('state-share', percentText(status.memory.state_share));
    setGauge('state-bar', status.memory.state_share);

    const stages = Array.isArray(status.stages) ? status.stages : [status.stages];
    element('stages').replaceChildren(...stages.map(stageView));

    set('state', status.state);
    set('model', status.model);
    set('context', `${number.format(status.context)} tokens`);
    set('profile', status.profile);
    set('uptime', durationText(status.uptime_seconds));
    set('build', status.build);
  }
}
