// Reads recorded chunk streams with the AI SDK's own reader; prints the final message of each.
//
// In: JSON lines {"chunks": [...], "onto": message}. Out: one JSON line {"message", "refused"} for each;
// `refused` is the place of the chunk at which the reader gave up, null when it read them all.
import { createInterface } from 'node:readline';
import { readUIMessageStream, UIMessageStreamError } from 'ai';

// Step marks alone make the reader publish nothing; a last part of our own makes it publish what it has.
const END = { type: 'data-end-of-recording', data: null };

async function attempt(chunks, onto) {
  let refused = false;
  const stream = new ReadableStream({
    start(controller) {
      for (const chunk of [...chunks, END]) controller.enqueue(structuredClone(chunk));
      controller.close();
    },
  });
  const onError = error => {
    // An `error` chunk is reported here as well, and does not stop this reader.
    refused ||= UIMessageStreamError.isInstance(error);
  };
  let last;
  for await (const message of readUIMessageStream({ message: structuredClone(onto), stream, onError })) {
    last = message;
  }
  if (refused) return undefined;
  last.parts.pop();
  return last;
}

async function read({ chunks, onto }) {
  for (let length = chunks.length; ; length--) {
    const message = await attempt(chunks.slice(0, length), onto);
    if (message) return { message, refused: length < chunks.length ? length : null };
  }
}

for await (const line of createInterface({ input: process.stdin })) {
  console.log(JSON.stringify(await read(JSON.parse(line))));
}
