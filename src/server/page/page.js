// The page of `weft serve`: key, settings and what holds the chat and the live view together.
import { Chat, element } from './chat.js';
import { LiveView } from './live.js';

const EXAMPLE_TOOLS = [{
  type: 'function',
  function: {
    name: 'get_weather',
    description: 'Get the current weather for a city.',
    parameters: {
      type: 'object',
      properties: { city: { type: 'string', description: 'City name' } },
      required: ['city'],
    },
  },
}];
const FIELDS = ['temperature', 'max-tokens', 'thinking', 'system', 'tools'];

// What lasts as long as the tab. Browsers may forbid it; then it lasts as long as the page.
const tab = {
  values: {},
  get(name) {
    try {
      return sessionStorage.getItem(name) ?? this.values[name] ?? '';
    } catch {
      return this.values[name] ?? '';
    }
  },
  set(name, value) {
    this.values[name] = value;
    try {
      sessionStorage.setItem(name, value);
    } catch {
      // See above.
    }
  },
};

const key = () => tab.get('weft.key');

// ---- key ----------------------------------------------------------------------------------------------------------------------

function showKey(shown) {
  element('key-form').hidden = !shown;
  element('open-key').setAttribute('aria-expanded', String(shown));
}

function askForKey() {
  element('key-note').textContent = key() === '' ? 'This server asks for a key.' : 'The server does not take this key.';
  const hidden = element('key-form').hidden;
  showKey(true);
  if (hidden) element('key').focus();
}

element('open-key').addEventListener('click', () => {
  showKey(element('key-form').hidden);
  if (!element('key-form').hidden) element('key').focus();
});

element('key-form').addEventListener('submit', (event) => {
  event.preventDefault();
  tab.set('weft.key', element('key').value.trim());
  element('key').value = '';
  element('key-note').textContent = 'Kept until this tab is closed.';
  showKey(false);
  live.poll();
  element('prompt').focus();
});

// ---- settings -----------------------------------------------------------------------------------------------------------------

const dialog = element('settings');

function valueOf(field) {
  return field.type === 'checkbox' ? field.checked : field.value;
}

// {tools, note}; tools is undefined when the text is none.
function readTools() {
  const text = element('tools').value.trim();
  if (text === '') return { tools: [], note: 'No tools.' };
  try {
    const tools = JSON.parse(text);
    if (!Array.isArray(tools)) return { note: 'Wanted a JSON array of tools.' };
    const names = tools.map((tool) => tool?.function?.name ?? '(no name)');
    return { tools, note: `${names.length} ${names.length === 1 ? 'tool' : 'tools'}: ${names.join(', ')}` };
  } catch (error) {
    return { note: error.message };
  }
}

function checkTools() {
  const { tools, note } = readTools();
  element('tools').setAttribute('aria-invalid', String(tools === undefined));
  element('tools-note').textContent = note;
  return tools;
}

function saveSettings() {
  tab.set('weft.settings', JSON.stringify(Object.fromEntries(FIELDS.map((id) => [id, valueOf(element(id))]))));
}

function loadSettings() {
  let saved = {};
  try {
    saved = JSON.parse(tab.get('weft.settings') || '{}');
  } catch {
    // Of another version.
  }
  for (const id of FIELDS) {
    if (!(id in saved)) continue;
    if (element(id).type === 'checkbox') element(id).checked = saved[id];
    else element(id).value = saved[id];
  }
  checkTools();
}

element('open-settings').addEventListener('click', () => dialog.showModal());
element('close-settings').addEventListener('click', () => dialog.close());
element('settings-form').addEventListener('submit', (event) => {
  event.preventDefault();
  dialog.close();
});
element('settings-form').addEventListener('input', () => {
  checkTools();
  saveSettings();
});
// A press beside the dialog closes it.
dialog.addEventListener('click', (event) => {
  if (event.target === dialog) dialog.close();
});
dialog.addEventListener('close', () => element('prompt').focus());
element('example-tools').addEventListener('click', () => {
  element('tools').value = JSON.stringify(EXAMPLE_TOOLS, null, 2);
  checkTools();
  saveSettings();
});

function options() {
  const tools = checkTools();
  if (tools === undefined) {
    dialog.showModal();
    element('tools').focus();
    return null;
  }
  const body = { model: live.model || 'default' };
  const temperature = element('temperature').value;
  const maxTokens = element('max-tokens').value;
  if (temperature !== '') body.temperature = Number(temperature);
  if (maxTokens !== '') body.max_completion_tokens = Number(maxTokens);
  if (!element('thinking').checked) body.thinking = { type: 'disabled' };
  if (tools.length > 0) body.tools = tools;
  return { key: key(), name: live.model || 'Model', body, system: element('system').value };
}

// ---- panel --------------------------------------------------------------------------------------------------------------------

function showLive(shown) {
  live.open = shown;
  element('toggle-live').setAttribute('aria-expanded', String(shown));
}

loadSettings();
const live = new LiveView(key, askForKey);
new Chat(options, askForKey);
element('toggle-live').addEventListener('click', () => showLive(element('live').hidden));
// A narrow screen shows the chat first.
if (window.matchMedia('(max-width: 52rem)').matches) showLive(false);
