// Server-sent events out of a fetch body, however the network cuts them (HTML Living Standard, 9.2.6). Only the
// data of each event: the chat API uses neither names nor ids.
export async function* serverEvents(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  let data = [];
  try {
    for (;;) {
      const {value, done} = await reader.read();
      if (done) return; // an event without its blank line is incomplete and dropped
      buffer += value;
      let start = 0;
      for (;;) {
        const end = buffer.slice(start).search(/[\r\n]/);
        if (end < 0) break;
        const stop = start + end;
        if (buffer[stop] === "\r" && stop + 1 === buffer.length) break; // perhaps the first half of \r\n
        const line = buffer.slice(start, stop);
        start = stop + (buffer.startsWith("\r\n", stop) ? 2 : 1);
        if (line === "") {
          if (data.length > 0) yield data.join("\n");
          data = [];
        } else if (line.startsWith("data:")) {
          data.push(line.slice(line[5] === " " ? 6 : 5));
        }
      }
      buffer = buffer.slice(start);
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
