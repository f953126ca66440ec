/** Requests to the server of a page, and the messages that it sends; viewers/gantt/tiles/requests.py writes them. */

import { joinPlanes } from "../data/columns.js";

const TYPES = { u1: Uint8Array, u2: Uint16Array, u4: Uint32Array, f8: Float64Array };

/** A head in JSON and arrays after it. */
class Message {
  #at;

  constructor(buffer) {
    const length = new DataView(buffer).getUint32(0, true);
    this.buffer = buffer;
    this.head = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
    this.#at = 4 + length;
  }

  /** Return the next `count` numbers of a type. */
  take(type, count) {
    const Type = TYPES[type], bytes = count * Type.BYTES_PER_ELEMENT, from = this.#at;
    this.#at += bytes;
    const planes = this.buffer.slice(from, this.#at);
    return new Type(Type.BYTES_PER_ELEMENT === 1 ? planes : joinPlanes(planes, Type.BYTES_PER_ELEMENT));
  }
}

/** Return the running sums of differences from a first value. */
function sums(differences, first) {
  const values = new Float64Array(differences.length);
  let value = first;
  for (let i = 0; i < differences.length; i++) values[i] = i ? (value += differences[i]) : value;
  return values;
}

/** Return the intervals of a lane in a message. */
export function takeRows(message, { lane, count, base, first, every, wide, extra, touching }) {
  const time = wide ? "f8" : "u4";
  const start = sums(message.take(time, count), base), duration = message.take(time, count);
  const [category, name, stream] = [message.take("u1", count), message.take("u4", count), message.take("u2", count)];
  const position = sums(message.take("u4", count), first), more = Array.from({ length: extra }, () => message.take("f8", count));
  return { lane, count, every, touching, start, duration, category, name, stream, position, more };
}

/** Sends requests; counts them, those `pending`, and the `bytes` of the answers. */
export class Connection {
  constructor(send = (...request) => fetch(...request)) {
    Object.assign(this, { send, bytes: 0, requests: 0, pending: 0 });
  }

  async #post(name, body, signal, read) {
    this.requests++;
    this.pending++;
    try {
      const answer = await this.send(name, { method: "POST", body: JSON.stringify(body), signal });
      if (!answer.ok) throw new Error(`the server answered ${name} with HTTP status ${answer.status}`);
      this.bytes += Number(answer.headers.get("content-length"));
      return await read(answer);
    } finally {
      this.pending--;
    }
  }

  json(name, body, signal) {
    return this.#post(name, body, signal, (answer) => answer.json());
  }

  buffer(name, body, signal) {
    return this.#post(name, body, signal, (answer) => answer.arrayBuffer());
  }

  async message(name, body, signal) {
    return new Message(await this.buffer(name, body, signal));
  }
}
