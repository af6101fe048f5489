/** Arrays of the payload: base 64, raw deflate, differences, byte planes. */

function fromBase64(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const raw = atob(text);
  return Uint8Array.from({ length: raw.length }, (_, at) => raw.charCodeAt(at));
}

async function inflate(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** Undoes differences along an axis, in place; typed arrays wrap around as the packing did. */
function addUp(values, shape, axis) {
  const inner = shape.slice(axis + 1).reduce((a, b) => a * b, 1);
  const span = inner * shape[axis];
  for (let start = 0; start < values.length; start += span) {
    for (let at = start + inner; at < start + span; at++) values[at] += values[at - inner];
  }
  return values;
}

/** Floats whose first bytes come first, then the second ones, and so on. */
function joinBytes(bytes) {
  const count = bytes.length / 4;
  const joined = new Uint8Array(bytes.length);
  for (let plane = 0; plane < 4; plane++) {
    for (let at = 0; at < count; at++) joined[4 * at + plane] = bytes[plane * count + at];
  }
  return joined;
}

/**
 * An array of the payload.
 * @returns {Promise<Uint8Array | Int32Array | Float32Array | null>}
 */
export async function unpack(part) {
  if (part === null || part === undefined) return null;
  let bytes = fromBase64(part.data);
  if (part.codec === "deflate") bytes = await inflate(bytes);
  if (part.split) bytes = joinBytes(bytes);
  const Type = { u1: Uint8Array, i4: Int32Array, f4: Float32Array }[part.dtype];
  const values = new Type(bytes.buffer, bytes.byteOffset, bytes.byteLength / Type.BYTES_PER_ELEMENT);
  return Number.isInteger(part.delta) ? addUp(values, part.shape, part.delta) : values;
}

/** An array over layer, step, head and key, in any order of axes, read head by head; an axis of length 1 is shared. */
export async function unpackHeads(part) {
  const stride = {};
  let size = 1;
  (part.order ?? ["layer", "step", "head", "key"])
    .map((axis, at) => [axis, part.shape[at]])
    .reverse()
    .forEach(([axis, length]) => {
      stride[axis] = length === 1 ? 0 : size;
      size *= length;
    });
  return { data: await unpack(part), stride };
}

/** One head of such an array as [step, key], in `into`. */
export function readHead({ data, stride }, sample, head, into) {
  const { T, K, H } = sample;
  const start = Math.floor(head / H) * stride.layer + (head % H) * stride.head;
  for (let t = 0; t < T; t++) {
    const from = start + t * stride.step;
    if (stride.key === 1) into.set(data.subarray(from, from + K), t * K);
    else for (let k = 0; k < K; k++) into[t * K + k] = data[from + k * stride.key];
  }
  return into;
}
