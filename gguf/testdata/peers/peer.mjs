// Reads GGUF files with npm's @huggingface/gguf, as main.go does with another peer: FILE [N].
import { gguf } from "@huggingface/gguf";
import { writeSync } from "node:fs";

const [path, times] = process.argv.slice(2);
const read = () => gguf(path, { allowLocalFile: true });
const first = await read();
if (times) {
  const began = process.hrtime.bigint();
  for (let i = 0; i < Number(times); i++) await read();
  const each = (process.hrtime.bigint() - began) / BigInt(times);
  writeSync(1, `${each} ${process.memoryUsage().rss}\n`);
} else {
  const tensors = first.tensorInfos.map((t) => ({
    name: t.name, shape: t.shape.map(Number), type: t.dtype, offset: Number(first.tensorDataOffset + t.offset),
  }));
  // The library adds three entries of the header's own: version, tensor_count and kv_count.
  writeSync(1, JSON.stringify({ keys: Object.keys(first.metadata).length - 3, tensors }));
}
