#!/usr/bin/env bash
# Shows everything on this machine: it gets a real llama.cpp, makes a model, prints its map, traces a run,
# draws the heatmap and the pattern, and runs the model in too little memory with and without prefetchd. Run
# it as `make demo`; it writes to demo/.
set -euo pipefail
cd "$(dirname "$0")/.."
size=${DEMO_SIZE:-800MB}
tokens=${DEMO_TOKENS:-32}

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
run() { printf '$ %s\n' "$*" >&2; "$@"; }

mkdir -p demo
say "1. A real llama.cpp (prebuilt, fetched once, integrity checked)"
run bin/lab getllama --link demo/llama

say "2. A Q8_0 model of $size with random weights"
if [ ! -f demo/model.gguf ] || [ "$(cat demo/model.size 2>/dev/null)" != "$size" ]; then
	run bin/lab synth -o demo/model.gguf --size "$size" --type Q8_0 --seed 1
	echo "$size" > demo/model.size
fi

say "3. Its map"
echo '$ bin/ggufmap demo/model.gguf > demo/structure.csv'
bin/ggufmap demo/model.gguf > demo/structure.csv
head -5 demo/structure.csv
echo "... $(($(wc -l < demo/structure.csv) - 1)) tensors in all"

target=(demo/llama/llamarun -m demo/model.gguf -p "The page cache" -n "$tokens" --no-repack)
if [ "$(id -u)" != 0 ]; then
	say "4. A run of llama.cpp. It is not traced: eBPF probes need root. For the rest: sudo make demo"
	run "${target[@]}"
	exit 0
fi

say "4. A traced run of an unmodified llama.cpp"
run bin/tracer -o demo/capture -- "${target[@]}" > demo/run.json
cat demo/run.json

say "5. What it read, token by token"
run bin/analyze --heatmap --capture demo/capture --output demo/analysis

say "6. The same model in memory for 85 % of its weights: plain, and with prefetchd attached"
run bin/lab pressure -m demo/model.gguf --x 0.85 --tokens "$tokens" --repeat 2 \
	--variant plain --variant 'prefetchd=bin/prefetchd --wait --pid {pid}'
