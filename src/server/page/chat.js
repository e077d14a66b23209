// The conversation: what was said, as the server wants it back, and how it is shown. Text of the model and of the user is only ever
// set as text.
import { ServerError, streamChat } from './stream.js';

export const element = (id) => document.getElementById(id);
export const copyOf = (template) => element(template).content.firstElementChild.cloneNode(true);

const FENCE = '```';

// Text that grows, with code between lines of three backticks shown as code.
class TextView {
  #root;
  #code = false;
  #node = null;  // the text node that grows
  #held = '';    // the start of a line that may become a fence

  constructor(root) {
    this.#root = root;
  }

  append(text) {
    text = this.#held + text;
    this.#held = '';
    let begin = 0;
    // A fence stands at the start of a line; its line has to be whole.
    let lineStart = this.#atLineStart() ? 0 : this.#next(text, 0);
    while (lineStart < text.length) {
      const rest = text.slice(lineStart, lineStart + FENCE.length);
      if (FENCE.startsWith(rest) || rest === FENCE) {
        const end = text.indexOf('\n', lineStart);
        this.#write(text.slice(begin, lineStart));
        if (end < 0) {
          this.#held = text.slice(lineStart);
          return;
        }
        this.#code = !this.#code;
        this.#node = null;
        begin = end + 1;
        lineStart = begin;
      } else {
        lineStart = this.#next(text, lineStart);
      }
    }
    this.#write(text.slice(begin));
  }

  end() {
    if (!this.#held.startsWith(FENCE)) this.#write(this.#held);
    this.#held = '';
  }

  #atLineStart() {
    return this.#node === null || this.#node.data.endsWith('\n');
  }

  #next(text, from) {
    const end = text.indexOf('\n', from);
    return end < 0 ? text.length : end + 1;
  }

  #write(text) {
    if (text === '') return;
    if (this.#node === null) {
      const block = document.createElement(this.#code ? 'pre' : 'div');
      if (!this.#code) block.className = 'text';
      this.#node = document.createTextNode('');
      block.append(this.#node);
      this.#root.append(block);
    }
    this.#node.appendData(text);
  }
}

// JSON with a line for each member. Only white space changes: numbers stay as the model wrote them. What is short, or no JSON,
// stays as it is.
export function indented(json) {
  try {
    JSON.parse(json);
  } catch {
    return json;
  }
  if (json.length <= 60) return json;
  let made = '';
  let depth = 0;
  let inText = false;
  for (let i = 0; i < json.length; ++i) {
    const c = json[i];
    if (inText) {
      made += c;
      if (c === '\\') made += json[++i] ?? '';
      inText = c !== '"';
      continue;
    }
    if (c === ' ' || c === '\n' || c === '\r' || c === '\t') continue;
    if (c === '}' || c === ']') made += '\n' + '  '.repeat(depth = Math.max(0, depth - 1));
    made += c === ':' ? ': ' : c;
    inText = c === '"';
    if (c === '{' || c === '[') {
      const close = /^\s*[}\]]/.exec(json.slice(i + 1));
      if (close !== null) {
        made += close[0].trim();
        i += close[0].length;
      } else {
        made += '\n' + '  '.repeat(++depth);
      }
    }
    if (c === ',') made += '\n' + '  '.repeat(depth);
  }
  return made;
}

// One answer that is being written.
class AnswerView {
  content = '';
  reasoning = null;
  calls = [];  // {id, name, arguments, view}
  usage = null;
  facts = null;
  finish = null;
  warnings = '';

  constructor(name, reasoningOpen) {
    this.root = copyOf('answer-template');
    this.root.querySelector('h2').textContent = name;
    this.details = this.root.querySelector('.reasoning');
    this.details.open = reasoningOpen;
    this.contentText = new TextView(this.root.querySelector('.content'));
    this.reasoningNode = document.createTextNode('');
    this.details.querySelector('.text').append(this.reasoningNode);
  }

  take(chunk) {
    if (chunk.usage) this.usage = chunk.usage;
    if (chunk.weft) this.facts = chunk.weft;
    const choice = chunk.choices?.[0];
    if (!choice) return;
    if (choice.finish_reason) this.finish = choice.finish_reason;
    const { reasoning_content: reasoning, content, tool_calls: calls } = choice.delta;
    if (reasoning) {
      this.reasoning = (this.reasoning ?? '') + reasoning;
      this.reasoningNode.appendData(reasoning);
      this.details.hidden = false;
    }
    if (content) {
      this.content += content;
      this.contentText.append(content);
      this.root.querySelector('.content').hidden = false;
    }
    for (const call of calls ?? []) this.#takeCall(call);
    this.root.querySelector('.waiting').hidden = Boolean(this.reasoning || this.content || this.calls.length);
  }

  #takeCall({ index, id, function: part }) {
    let call = this.calls[index];
    if (call === undefined) {
      const view = copyOf('call-template');
      view.querySelector('.name').textContent = part.name;
      this.root.querySelector('.calls').append(view);
      call = this.calls[index] = { id, name: part.name, arguments: '', view };
    }
    call.arguments += part.arguments ?? '';
    call.view.querySelector('.arguments').append(part.arguments ?? '');
  }

  // No more comes.
  end(stopped) {
    this.contentText.end();
    for (const call of this.calls) call.view.querySelector('.arguments').textContent = indented(call.arguments);
    this.root.removeAttribute('aria-busy');
    this.root.querySelector('.waiting').hidden = true;
    const line = this.root.querySelector('.usage');
    line.textContent = this.#usageText(stopped);
    line.hidden = line.textContent === '';
  }

  #usageText(stopped) {
    const parts = [];
    const number = new Intl.NumberFormat('en');
    if (this.usage) {
      const { prompt_tokens: prompt, completion_tokens: generated } = this.usage;
      const reused = this.usage.prompt_tokens_details?.cached_tokens ?? 0;
      const reasoning = this.usage.completion_tokens_details?.reasoning_tokens ?? 0;
      parts.push(`prompt ${number.format(prompt)} tokens, ${number.format(reused)} reused`);
      parts.push(`generated ${number.format(generated)}${reasoning > 0 ? `, ${number.format(reasoning)} of them reasoning` : ''}`);
    }
    const rate = this.facts?.generated_tokens_per_second;
    if (rate) parts.push(`${rate.toFixed(1)} tokens/s`);
    if (stopped) parts.push('stopped');
    if (this.finish === 'length') parts.push('cut at the most tokens');
    if (this.warnings !== '') parts.push(this.warnings);
    return parts.join(' · ');
  }

  // As the server wants it back. A call that was cut off would not be whole.
  message(stopped) {
    const message = { role: 'assistant', content: this.content };
    if (this.reasoning !== null) message.reasoning_content = this.reasoning;
    if (!stopped && this.calls.length > 0) {
      message.tool_calls = this.calls.map(({ id, name, arguments: text }) =>
        ({ id, type: 'function', function: { name, arguments: text } }));
      if (this.content === '') message.content = null;
    }
    return message;
  }
}

export class Chat {
  #messages = [];
  #running = null;       // AbortController
  #reasoningOpen = true;
  #following = true;
  #frame = false;
  #options;

  // options() gives {key, name, body: fields of the request, system}, or null when the settings cannot be sent.
  // refused(): the server wants another key.
  constructor(options, refused) {
    this.#options = options;
    this.refused = refused;
    this.log = element('log');
    this.prompt = element('prompt');
    this.welcome = element('welcome');
    this.log.addEventListener('scroll', () => {
      this.#following = this.log.scrollHeight - this.log.scrollTop - this.log.clientHeight < 48;
    });
    new ResizeObserver(() => this.#follow()).observe(this.log);
    element('composer').addEventListener('submit', (event) => {
      event.preventDefault();
      this.#send();
    });
    this.prompt.addEventListener('keydown', (event) => {
      if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.#send();
    });
    this.prompt.addEventListener('input', () => this.#fit());
    element('stop').addEventListener('click', () => this.#running?.abort());
    element('new-chat').addEventListener('click', () => this.clear());
  }

  clear() {
    this.#running?.abort();
    this.#running = null;
    this.#messages = [];
    this.log.replaceChildren(this.welcome);
    this.#following = true;
    this.#show();
    this.prompt.focus();
  }

  #send() {
    const text = this.prompt.value;
    if (this.#running !== null || text.trim() === '' || this.#options() === null) return;
    this.prompt.value = '';
    this.#fit();
    this.#closeResults();
    this.#say('user-template', { role: 'user', content: text });
    this.#run();
  }

  // A message of the user or of a tool.
  #say(template, message) {
    const view = copyOf(template);
    view.querySelector('.text').textContent = message.content;
    if (message.role === 'tool') view.querySelector('code').textContent = message.name;
    this.#messages.push(message);
    this.welcome.remove();
    this.log.append(view);
  }

  async #run() {
    const options = this.#options();
    if (options === null) return;
    const messages = this.#messages;
    const controller = new AbortController();
    const answer = new AnswerView(options.name, this.#reasoningOpen);
    answer.details.addEventListener('toggle', () => { this.#reasoningOpen = answer.details.open; });
    this.#running = controller;
    this.#following = true;
    this.log.append(answer.root);
    this.#show();
    this.#follow();
    const system = options.system === '' ? [] : [{ role: 'system', content: options.system }];
    let failure = null;
    try {
      await streamChat({ ...options.body, messages: [...system, ...messages] }, options.key, controller.signal, (chunk) => {
        answer.take(chunk);
        this.#follow();
      }, (warnings) => { answer.warnings = warnings; });
    } catch (error) {
      failure = error;
    }
    const stopped = controller.signal.aborted;
    answer.end(stopped);
    if (this.#messages !== messages) return;  // another chat has begun
    this.#running = null;
    if (failure !== null && !stopped) {
      this.#fail(answer, failure);
    } else {
      messages.push(answer.message(stopped));
      if (!stopped && answer.calls.length > 0) this.#askForResults(answer);
      element('announcer').textContent = stopped ? 'Stopped.' : 'The answer is complete.';
    }
    this.#show();
    this.#follow();
  }

  #fail(answer, failure) {
    const said = failure instanceof ServerError;
    const view = copyOf('error-template');
    view.querySelector('.message').textContent = said ? failure.message : `The server cannot be reached (${failure.message}).`;
    view.querySelector('.kind').textContent = said ? [failure.status || '', failure.kind].filter(Boolean).join(' · ') : '';
    view.querySelector('button').addEventListener('click', () => {
      if (this.#running !== null) return;
      answer.root.remove();
      this.#run();
    });
    answer.root.append(view);
    if (failure.status === 401) this.refused();
  }

  // The user stands in for the tools.
  #askForResults(answer) {
    const fields = answer.calls.map(({ view }) => {
      const label = view.querySelector('.result');
      label.hidden = false;
      return label.querySelector('textarea');
    });
    const button = document.createElement('button');
    button.type = 'button';
    button.className = 'primary send-results';
    button.textContent = fields.length === 1 ? 'Send the result' : 'Send the results';
    button.addEventListener('click', () => {
      if (this.#running !== null || this.#options() === null) return;
      const results = fields.map((field) => field.value);
      this.#closeResults();
      answer.calls.forEach(({ id, name }, i) =>
        this.#say('tool-template', { role: 'tool', tool_call_id: id, name, content: results[i] }));
      this.#run();
    });
    answer.root.querySelector('.calls').append(button);
    fields[0].focus({ preventScroll: true });
  }

  #closeResults() {
    for (const button of this.log.querySelectorAll('.send-results')) button.remove();
    for (const label of this.log.querySelectorAll('.call .result')) label.hidden = true;
  }

  #show() {
    const running = this.#running !== null;
    element('send').hidden = running;
    element('stop').hidden = !running;
  }

  #fit() {
    this.prompt.style.height = 'auto';
    this.prompt.style.height = `${Math.min(this.prompt.scrollHeight + 2, 240)}px`;
  }

  // The end of the conversation stays in sight unless the user has scrolled away from it.
  #follow() {
    if (this.#frame) return;
    this.#frame = true;
    requestAnimationFrame(() => {
      this.#frame = false;
      if (this.#following) this.log.scrollTop = this.log.scrollHeight;
    });
  }
}
