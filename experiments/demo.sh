#!/usr/bin/env bash
# Shows everything on this machine: it gets a real llama.cpp and a small real model, makes that heavier, prints
# its map, traces a run, draws the heatmap and the pattern, and runs the model in too little memory with and
# without prefetchd. Run it as `make demo`; it writes to demo/. Where the real model cannot be had, or if
# DEMO_SIZE asks for a size, the model has random weights, and its text is nonsense.
set -euo pipefail
cd "$(dirname "$0")/.."
tokens=${DEMO_TOKENS:-48}
prompt="Once upon a time"

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
run() { printf '$ %s\n' "$*" >&2; "$@"; }

mkdir -p demo
say "1. A real llama.cpp (prebuilt, fetched once, integrity checked)"
run bin/lab getllama --link demo/llama

# make_model runs a command that makes demo/model.gguf, unless the same command has made it before.
make_model() {
	if [ ! -f demo/model.gguf ] || [ "$(cat demo/model.made 2>/dev/null)" != "$*" ]; then
		run "$@"
		echo "$*" > demo/model.made
	fi
}
if [ -z "${DEMO_SIZE:-}" ] && say "2. Gemma 3 270M, a real model" && run bin/lab getmodel --link demo/gemma.gguf; then
	echo "It gets the bytes of a larger one. What is added adds nothing, so that it says the same:"
	make_model bin/lab synth -o demo/model.gguf --inflate 12 demo/gemma.gguf
else
	say "2. A Q8_0 model with random weights"
	make_model bin/lab synth -o demo/model.gguf --size "${DEMO_SIZE:-800MB}" --type Q8_0 --seed 1
fi

say "3. Its map"
echo '$ bin/ggufmap demo/model.gguf > demo/structure.csv'
bin/ggufmap demo/model.gguf > demo/structure.csv
head -5 demo/structure.csv
echo "... $(($(wc -l < demo/structure.csv) - 1)) tensors in all"

target=(demo/llama/llamarun -m demo/model.gguf -p "$prompt" -n "$tokens" --no-repack)
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
run bin/lab pressure -m demo/model.gguf -p "$prompt" --x 0.85 --tokens "$tokens" --repeat 2 --texts \
	--variant plain --variant 'prefetchd=bin/prefetchd --wait --pid {pid}'
