// Server-sent events, as POST /v1/chat/completions writes them.

// Bytes in, the data of whole events out. Bytes may be cut anywhere, also inside a character or between CR and LF.
export class EventReader {
  #decoder = new TextDecoder();
  #line = '';
  #data = [];
  #skipLineFeed = false;

  // The events that are complete with these bytes.
  push(bytes) {
    return this.#read(this.#decoder.decode(bytes, { stream: true }));
  }

  #read(text) {
    const events = [];
    let begin = 0;
    for (let at = 0; at < text.length; ++at) {
      const c = text[at];
      if (c !== '\n' && c !== '\r') {
        this.#skipLineFeed = false;
        continue;
      }
      const secondOfTwo = c === '\n' && this.#skipLineFeed;
      this.#skipLineFeed = c === '\r';
      if (!secondOfTwo) {
        const event = this.#take(this.#line + text.slice(begin, at));
        this.#line = '';
        if (event !== null) events.push(event);
      }
      begin = at + 1;
    }
    this.#line += text.slice(begin);
    return events;
  }

  // A line. The event's data when it is the empty line that ends an event, else null.
  #take(line) {
    if (line === '') {
      const event = this.#data.length > 0 ? this.#data.join('\n') : null;
      this.#data = [];
      return event;
    }
    const colon = line.indexOf(':');
    const field = colon < 0 ? line : line.slice(0, colon);
    if (field === 'data') this.#data.push(colon < 0 ? '' : line.slice(line[colon + 1] === ' ' ? colon + 2 : colon + 1));
    return null;
  }
}

// What a server says went wrong; `status` is 0 for what no server said.
export class ServerError extends Error {
  constructor(status, error) {
    super(error.message || `The server answered ${status}.`);
    this.status = status;
    this.kind = [error.type, error.code].filter(Boolean).join(', ');
  }
}

async function errorOf(response) {
  let body = {};
  try {
    body = (await response.json()).error ?? {};
  } catch {
    // A proxy in between: no JSON.
  }
  return new ServerError(response.status, body);
}

function headers(key, more = {}) {
  return key === '' ? more : { ...more, Authorization: `Bearer ${key}` };
}

// The JSON at `path`. Throws ServerError, or what fetch throws.
export async function getJson(path, key, signal) {
  const response = await fetch(path, { headers: headers(key), cache: 'no-store', credentials: 'omit', signal });
  if (!response.ok) throw await errorOf(response);
  return response.json();
}

// One chat completion: calls onChunk with each chunk, onWarnings with the words of the header X-Weft-Warning when there are any.
// Returns when the server says [DONE]. Throws ServerError, what fetch throws, AbortError after signal.
export async function streamChat(body, key, signal, onChunk, onWarnings) {
  const response = await fetch('v1/chat/completions', {
    method: 'POST',
    headers: headers(key, { 'Content-Type': 'application/json' }),
    body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
    credentials: 'omit',
    signal,
  });
  if (!response.ok) throw await errorOf(response);
  const warnings = response.headers.get('X-Weft-Warning');
  if (warnings !== null) onWarnings(warnings);
  const events = new EventReader();
  const reader = response.body.getReader();
  let whole = false;
  for (;;) {
    const { done, value } = await reader.read();
    if (done && whole) return;
    if (done) throw new ServerError(0, { message: 'The connection ended before the answer did.' });
    for (const data of events.push(value)) {
      // The body is read to its end all the same: a client that leaves before counts as gone.
      if (data === '[DONE]') whole = true;
      if (whole) break;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new ServerError(response.status, chunk.error);
      onChunk(chunk);
    }
  }
}
