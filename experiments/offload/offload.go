// Package offload measures whether a real llama.cpp is faster with the emulated device: the same
// text with and without it, in turns.
package offload

// This file runs llama.cpp with and without the device, in turns.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"

	"tensorcast/experiments/llama"
	"tensorcast/fabric/device"
)

// Variant is a way to run llama.cpp.
type Variant struct {
	Name    string `json:"name"`
	Threads int    `json:"threads,omitempty"` // 0: llama.cpp's default
	Device  bool   `json:"device"`
	// Batch is the number of sequences that are decoded together, a token of each at a time. Then
	// each product has as many vectors, as with parallel requests, or with guessed tokens that are
	// verified together.
	Batch int `json:"batch"`
	// Streams is the number of contexts that are decoded at the same time, each with a batch and a
	// thread of its own.
	Streams int `json:"streams"`
	// Guess is how many tokens at most are guessed from the text so far and decoded with each
	// token.
	Guess int `json:"guess,omitempty"`
}

// kind is what the variant has in common with variants of other batches.
func (v *Variant) kind() string {
	name, _, _ := strings.Cut(v.Name, " x")
	return name
}

// baseline is the variant of all that v is compared with: the CPU, with the same numbers of vectors
// and streams.
func (v *Variant) baseline(all []Variant) *Variant {
	return &all[slices.IndexFunc(all, func(w Variant) bool {
		return w.Batch == v.Batch && w.Guess == v.Guess &&
			w.Streams == v.Streams
	})]
}

// firstOfKind is the first variant of all of the same kind.
func (v *Variant) firstOfKind(all []Variant) *Variant {
	return &all[slices.IndexFunc(all, func(w Variant) bool { return w.kind() == v.kind() })]
}

// Variants returns the variants that are compared. Each batch and number of streams has its own
// baseline, which is the first of its variants. With several batches or streams, or with guesses,
// there are fewer variants of each.
func Variants(batches, streams []int, guess int) []Variant {
	if len(batches) == 1 && len(streams) == 1 && guess == 0 {
		v := Variant{Batch: batches[0], Streams: streams[0]}
		cpu, one, device := v, v, v
		cpu.Name, one.Name, device.Name = "cpu", "device, 1 thread", "device"
		one.Threads, one.Device, device.Device = 1, true, true
		return []Variant{cpu, one, device}
	}
	var all []Variant
	add := func(what string, v Variant) {
		cpu, device := v, v
		cpu.Name, device.Name, device.Device = "cpu "+what, "device "+what, true
		all = append(all, cpu, device)
	}
	for _, s := range streams {
		for _, b := range batches {
			what := fmt.Sprintf("x%d", b)
			if s > 1 {
				what += fmt.Sprintf(", %d streams", s)
			}
			add(what, Variant{Batch: b, Streams: s})
		}
	}
	if guess > 0 {
		add(fmt.Sprintf("x1+%d", guess), Variant{Batch: 1, Streams: 1, Guess: guess})
	}
	return all
}

// Config of a series.
type Config struct {
	Model string // path of a GGUF file
	// Prompt is the length of the prompt in tokens, about: words of one or two tokens for a real
	// model, bytes for a synthetic one.
	Prompt  int
	Tokens  int   // tokens that are generated in each sequence
	Batches []int // numbers of sequences that are decoded together
	// Streams are numbers of contexts that are decoded at the same time, each with such a batch;
	// none: one.
	Streams []int
	// Guess, if it is not 0, has one sequence also decoded with up to this many guessed tokens at a
	// time.
	Guess   int
	Turns   int    // runs of each variant
	Backend string // path of libggml-tfmbs.so
	// Socket is where a device serves. Ask is asked for what the device counted.
	Socket string
	// Profile is the profile of the backend: "", or one of Profiles. With one, the device's
	// variants run without repacked weights, which the device does not take.
	Profile string
}

// Run is one run of a variant.
type Run struct {
	Variant    string  `json:"variant"`
	Turn       int     `json:"turn"`
	Threads    int     `json:"threads"`
	TokS       float64 `json:"tok_s"` // of all sequences together
	PromptTokS float64 `json:"prompt_tok_s"`
	LoadMs     float64 `json:"load_ms"`
	Decodes    int     `json:"decodes"` // decodes that generated the tokens
	// Same is how many of the first tokens of each sequence are those of the baseline's first run.
	Same int `json:"same_tokens"`
	// Idle is the share of the time, from the device's first product to its last one, in which it
	// computed none. It is 0 without the device.
	Idle float64 `json:"idle"`
}

// Profiles are the profiles of the backend.
func Profiles() []string { return []string{"accurate", "balanced", "fast"} }

// Check returns what is wrong with c, or nil.
func (c *Config) Check() error {
	if c.Prompt < 1 || c.Tokens < 2 || c.Turns < 1 {
		return fmt.Errorf("a prompt of %d tokens, %d tokens, %d turns: want 1, 2 and 1 at least", c.Prompt,
			c.Tokens, c.Turns)
	}
	if len(c.Batches) == 0 || slices.Min(c.Batches) < 1 || slices.Max(c.Batches) > 64 {
		return fmt.Errorf("batches of %v sequences: want 1 to 64", c.Batches)
	}
	if len(c.Streams) > 0 && (slices.Min(c.Streams) < 1 || slices.Max(c.Streams)*slices.Max(c.Batches) > 64) {
		return fmt.Errorf("%v streams: want 1 to 64, with all sequences of a batch", c.Streams)
	}
	if c.Guess < 0 || c.Guess > 63 {
		return fmt.Errorf("%d guessed tokens: want 1 to 63, or none", c.Guess)
	}
	if c.Profile != "" && !slices.Contains(Profiles(), c.Profile) {
		return fmt.Errorf("profile %q: want one of %s", c.Profile, strings.Join(Profiles(), ", "))
	}
	return nil
}

// Compare runs all variants in each turn, beginning with another one each time, and calls progress
// with done and total runs. If ctx ends or a run fails, the report has the turns that are whole,
// and the error says why.
func Compare(ctx context.Context, in *llama.Installation, c Config, progress func(done, total int)) (*Report, error) {
	r := &Report{Profile: c.Profile, Model: c.Model, Tokens: c.Tokens, Prompt: c.Prompt}
	variants := Variants(c.Batches, c.streams(), c.Guess)
	want := map[string][]llama.Generation{} // by baseline
	var err error
turns:
	for turn := range c.Turns {
		var runs []Run
		for i := range variants {
			v := variants[i]
			// In the first turn each batch begins with the baseline, because the others are
			// compared with its text.
			if turn > 0 {
				v = variants[(i+turn)%len(variants)]
			}
			var result *llama.Result
			var idle float64
			if result, idle, err = c.run(ctx, in, v); err != nil {
				err = fmt.Errorf("%s, turn %d: %w", v.Name, turn+1, err)
				break turns
			}
			texts := want[v.baseline(variants).Name]
			if texts == nil {
				texts = result.Generations()
				want[v.Name] = texts
				r.Llama = result.Llama
			}
			run := Run{Variant: v.Name, Turn: turn + 1, Threads: result.Threads,
				TokS: combinedSpeed(result.Generations()), LoadMs: result.LoadMs, Decodes: c.Tokens, Same: c.Tokens,
				Idle: idle}
			if v.Guess > 0 {
				run.Decodes = result.Decodes
			}
			if result.PromptMs > 0 {
				run.PromptTokS = float64(v.Batch*v.Streams) * 1000 * float64(result.PromptTokens) /
					slowestPrompt(result.Generations())
			}
			for s, g := range result.Generations() {
				run.Same = min(run.Same, countSame(texts[s].Tokens, g.Tokens))
			}
			runs = append(runs, run)
			progress(turn*len(variants)+i+1, c.Turns*len(variants))
		}
		r.Runs = append(r.Runs, runs...)
	}
	r.Interrupted = err != nil
	status, askErr := device.Ask(context.WithoutCancel(ctx), c.Socket)
	r.Device = status
	r.summarise(variants)
	return r, errors.Join(err, askErr)
}

// streams are c.Streams, or one.
func (c *Config) streams() []int {
	if len(c.Streams) == 0 {
		return []int{1}
	}
	return c.Streams
}

// combinedSpeed is the tokens per second of all sequences. The contexts begin their prompts at the
// same time. The time is counted from when the first context has decoded its prompt until the last
// one has its last token.
func combinedSpeed(all []llama.Generation) float64 {
	tokens, from, to := 0, math.Inf(1), 0.0
	for _, g := range all {
		end := g.PromptMs
		for _, ms := range g.TokenMs {
			end += ms
		}
		tokens, from, to = tokens+len(g.Tokens), min(from, g.PromptMs), max(to, end)
	}
	return 1000 * float64(tokens) / (to - from)
}

// slowestPrompt is the time of the slowest prompt in milliseconds.
func slowestPrompt(all []llama.Generation) float64 {
	return slices.MaxFunc(all, func(a, b llama.Generation) int { return cmp.Compare(a.PromptMs, b.PromptMs) }).PromptMs
}

// countSame is how many of the first tokens are equal.
func countSame(a, b []int32) int {
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}

// prompts are texts that begin at different letters, one for each sequence.
func (c *Config) prompts(n int) []string {
	const words = "a page of the file "
	text := strings.Repeat(words, c.Prompt+n)
	all := make([]string, n)
	for i := range all {
		all[i] = text[i%len(words):][:c.Prompt]
	}
	return all
}

// run runs a variant. idle is the share of the device's time in which it computed no product.
func (c *Config) run(ctx context.Context, in *llama.Installation, v Variant) (r *llama.Result, idle float64,
	err error) {
	prompts := c.prompts(v.Batch * v.Streams)
	cmd := in.Command(ctx, llama.Options{
		Model: c.Model, Prompt: prompts[0], Prompts: prompts[1:], Parallel: v.Batch, Contexts: v.Streams,
		Concurrent: v.Streams > 1, Guess: v.Guess, Tokens: c.Tokens, Threads: v.Threads,
		NoRepack: v.Device && c.Profile != "",
	})
	cmd.Env = append(os.Environ(), "GGML_BACKEND_PATH=")
	var before, after device.Status
	if v.Device {
		cmd.Env = append(os.Environ(), "GGML_BACKEND_PATH="+c.Backend, "TFMBS_SOCKET="+c.Socket,
			"TFMBS_PROFILE="+c.Profile)
		before, err = device.Ask(ctx, c.Socket)
	}
	var said strings.Builder
	cmd.Stderr = &said
	out, runErr := cmd.Output()
	line, _, _ := strings.Cut(said.String(), "\n")
	switch {
	case ctx.Err() != nil:
		return nil, 0, context.Cause(ctx)
	case runErr != nil:
		return nil, 0, fmt.Errorf("%w: %s", runErr, line)
	case v.Device && strings.HasPrefix(line, "tfmbs: "):
		return nil, 0, errors.New(line) // llama.cpp went on without the device
	}
	if v.Device && err == nil {
		after, err = device.Ask(ctx, c.Socket)
	}
	if err != nil {
		return nil, 0, err
	}
	if products, host := after.FabricTime-before.FabricTime, after.HostTime-before.HostTime; products > 0 {
		idle = host / (products + host)
	}
	r, err = llama.ParseResult(out)
	return r, idle, err
}
