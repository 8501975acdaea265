// Package offload measures whether a real llama.cpp is faster with the emulated device: the same text with and without it, in turns.
package offload

// This file runs llama.cpp, in turns.

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"tensorcast/experiments/llama"
	"tensorcast/fabric/device"
)

// Variant is a way to run it.
type Variant struct {
	Name    string `json:"name"`
	Threads int    `json:"threads,omitempty"` // 0: llama.cpp's default
	Device  bool   `json:"device"`
}

// Variants are those that are compared: the first is the baseline.
func Variants() []Variant {
	return []Variant{{Name: "cpu"}, {Name: "device, 1 thread", Threads: 1, Device: true}, {Name: "device", Device: true}}
}

// Config of a series.
type Config struct {
	Model   string // path of a GGUF file
	Prompt  int    // about so many tokens: words of one or two for a real model, bytes for a synthetic one
	Tokens  int    // that are generated
	Turns   int    // runs of each variant
	Backend string // path of libggml-tfmbs.so
	Socket  string // where a device serves; Ask is asked what it counted
	Profile string // of the backend: "", or one of Profiles. With one, the device's variants run without repacked weights, which the device does not take
}

// Run is one run of a variant.
type Run struct {
	Variant    string  `json:"variant"`
	Turn       int     `json:"turn"`
	Threads    int     `json:"threads"`
	TokS       float64 `json:"tok_s"`
	PromptTokS float64 `json:"prompt_tok_s"`
	LoadMs     float64 `json:"load_ms"`
	Same       int     `json:"same_tokens"` // the first so many tokens are those of the baseline's first run
}

// Profiles are those of the backend.
func Profiles() []string { return []string{"accurate", "balanced", "fast"} }

// Check returns what is wrong with c, or nil.
func (c *Config) Check() error {
	if c.Prompt < 1 || c.Tokens < 2 || c.Turns < 1 {
		return fmt.Errorf("a prompt of %d tokens, %d tokens, %d turns: want 1, 2 and 1 at least", c.Prompt, c.Tokens, c.Turns)
	}
	if c.Profile != "" && !slices.Contains(Profiles(), c.Profile) {
		return fmt.Errorf("profile %q: want one of %s", c.Profile, strings.Join(Profiles(), ", "))
	}
	return nil
}

// Compare runs all variants in each turn, beginning with another one each time, and tells done and total runs. If ctx ends or a run fails, the report has the
// turns that are whole, and the error says why.
func Compare(ctx context.Context, in *llama.Installation, c Config, progress func(done, total int)) (*Report, error) {
	r := &Report{Profile: c.Profile, Model: c.Model, Tokens: c.Tokens, Prompt: c.Prompt}
	variants := Variants()
	text := strings.Repeat("a page of the file ", c.Prompt)[:c.Prompt]
	var want []int32
	var err error
turns:
	for turn := range c.Turns {
		var runs []Run
		for i := range variants {
			v := variants[i]
			if turn > 0 { // the very first run is the baseline's, whose text the others are compared with
				v = variants[(i+turn)%len(variants)]
			}
			var result *llama.Result
			if result, err = c.run(ctx, in, v, text); err != nil {
				err = fmt.Errorf("%s, turn %d: %w", v.Name, turn+1, err)
				break turns
			}
			if want == nil {
				want = result.Tokens
				r.Llama = result.Llama
			}
			run := Run{Variant: v.Name, Turn: turn + 1, Threads: result.Threads, TokS: result.TokS, LoadMs: result.LoadMs}
			if result.PromptMs > 0 {
				run.PromptTokS = 1000 * float64(result.PromptTokens) / result.PromptMs
			}
			for run.Same < min(len(want), len(result.Tokens)) && result.Tokens[run.Same] == want[run.Same] {
				run.Same++
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

func (c *Config) run(ctx context.Context, in *llama.Installation, v Variant, text string) (*llama.Result, error) {
	cmd := in.Command(ctx, llama.Options{Model: c.Model, Prompt: text, Tokens: c.Tokens, Threads: v.Threads, NoRepack: v.Device && c.Profile != ""})
	cmd.Env = append(os.Environ(), "GGML_BACKEND_PATH=")
	if v.Device {
		cmd.Env = append(os.Environ(), "GGML_BACKEND_PATH="+c.Backend, "TFMBS_SOCKET="+c.Socket, "TFMBS_PROFILE="+c.Profile)
	}
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	line, _, _ := strings.Cut(said.String(), "\n")
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err != nil:
		return nil, fmt.Errorf("%w: %s", err, line)
	case v.Device && strings.HasPrefix(line, "tfmbs: "):
		return nil, errors.New(line) // it went on without the device
	}
	return llama.ParseResult(out)
}
